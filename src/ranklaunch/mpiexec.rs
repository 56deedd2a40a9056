//! Has MPICH's mpiexec end a job whose nodes cannot notify each other.
//!
//! A node that refuses because nothing names node 0 cannot notify the others, which take the host of mpiexec
//! for node 0 and would wait there until `--wait-timeout`. All of them have a connection to mpiexec: `abort`
//! on it makes hydra kill every process of the job (PMI 1, MPICH's src/pmi; tried with 4.0 and 4.2). The
//! message is sent only if the connection leads to a proxy above us.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat};
use rustix::io::ioctl_fionread;
use rustix::net::{SendFlags, send};

use linux::host::Host;
use linux::sys;
use settings::contract::Contract;
use verdict::Id;

/// The variable with the descriptor of the connection.
const DESCRIPTOR: &str = "PMI_FD";
/// Time for the proxy to read the output, and interval of the check.
const READ: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(1);

/// The connection, if no other node hears of this refusal.
pub(super) fn connection(host: &Host, refused: Id) -> Option<OwnedFd> {
    let number = host.variable(DESCRIPTOR).filter(|_| host.is_live());
    if refused != Id::MembershipMasterAddr {
        return None;
    }
    let socket = sys::Inherited(number?.trim().parse().ok()?).copy().ok()?;
    let proxy = sys::Peer::of(&socket).ok()?.pid;
    Contract::mpiexec_above(host)?;
    host.ancestors().iter().any(|process| process.pid == proxy).then_some(socket)
}

/// Asks mpiexec to end the job with this code. It kills this process as well, so call it last.
pub(super) fn abort(connection: &OwnedFd, code: i32) -> io::Result<()> {
    wait_until_read();
    let line = format!("cmd=abort exitcode={code}\n");
    send(connection, line.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

/// The proxy drops what it has not read of our output when the job ends. No event tells that a pipe is empty.
fn wait_until_read() {
    let until = Instant::now() + READ;
    for output in [rustix::stdio::stdout(), rustix::stdio::stderr()] {
        while has_unread(output) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
    }
}

/// False if the output is not a pipe.
fn has_unread(output: BorrowedFd<'_>) -> bool {
    let is_pipe =
        fstat(output).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    is_pipe && ioctl_fionread(output).is_ok_and(|bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn written_pipe_is_unread_until_read() {
        let (mut read, mut write) = io::pipe().expect("a pipe");
        assert!(!has_unread(write.as_fd()));
        write.write_all(b"said").expect("written");
        assert!(has_unread(write.as_fd()));
        read.read_exact(&mut [0; 4]).expect("read");
        assert!(!has_unread(write.as_fd()));
        let file = tempfile::tempfile().expect("a file");
        assert!(!has_unread(file.as_fd()));
    }
}
