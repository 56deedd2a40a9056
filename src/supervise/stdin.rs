//! Standard input of the ranks: the launcher's own, if it is a pipe, a file or a socket.
//!
//! torchrun lets every rank inherit it, and each byte goes to the rank that reads first. Here the
//! first rank of each launcher gets it, and the others an empty one. No process of ours reads it or
//! waits for it. A terminal belongs to `--interactive`; any other device counts as empty.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{FileType, fstat, tell};

use linux::sys::{PollFd, PollFlags, poll};
use text::lang::Text;
use text::text;

/// An empty standard input, even in a root without /dev/null.
pub(super) fn nothing() -> io::Result<OwnedFd> {
    match std::fs::File::open("/dev/null") {
        Ok(null) => Ok(null.into()),
        // The pipe's other end is closed.
        Err(_) => io::pipe().map(|(end, _)| end.into()),
    }
}

fn kind() -> Option<FileType> {
    let kind = FileType::from_raw_mode(fstat(io::stdin()).ok()?.st_mode);
    [FileType::Fifo, FileType::RegularFile, FileType::Socket].contains(&kind).then_some(kind)
}

/// The launcher's own standard input, if a rank may have it.
pub(super) fn own() -> io::Result<OwnedFd> {
    match kind() {
        Some(_) => io::stdin().as_fd().try_clone_to_owned(),
        None => nothing(),
    }
}

/// Names the rank that reads standard input, unless that is known to be empty. `again`: an earlier
/// attempt had it.
pub fn remark(again: bool) -> Option<Text> {
    let ready = || {
        let mut wait = [PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
        let _ = poll(&mut wait, Some(Duration::ZERO));
        wait[0].revents()
    };
    let (has_some, what) = match kind()? {
        FileType::RegularFile => {
            let (size, at) = (fstat(io::stdin()).ok()?.st_size, tell(io::stdin()).ok()?);
            (u64::try_from(size).is_ok_and(|size| size > at), text!("a file", "文件"))
        }
        // A pipe without a writer and without data hangs up.
        FileType::Fifo => {
            let ready = ready();
            let is_over = ready.contains(PollFlags::HUP) && !ready.contains(PollFlags::IN);
            (!is_over, text!("a pipe", "管道"))
        }
        _ => (ready().contains(PollFlags::IN), text!("a socket", "套接字")),
    };
    let Text { en, zh } = what;
    has_some.then(|| match again {
        false => text!(
            "standard input ({en}) goes to the first rank here",
            "标准输入（{zh}）交给此处的第一个 rank"
        ),
        true => text!(
            "standard input ({en}) goes to the first rank here: what earlier attempts have left of it",
            "标准输入（{zh}）交给此处的第一个 rank：只剩先前尝试未读完的部分"
        ),
    })
}

/// Leaves an empty standard input to this shim, unless its rank is the first of the node.
pub(super) fn leave_to_first(is_first: bool) {
    if !is_first
        && kind().is_some()
        && let Ok(nothing) = nothing()
    {
        let _ = rustix::stdio::dup2_stdin(nothing);
    }
}
