//! A mount without its server: every access hangs, and no signal ends it.
//!
//! FUSE without a file system. The kernel's first request (INIT) is answered; all others are read
//! and never answered. A killed process that waits for an answer stays in state D until the device
//! is closed (linux/fs/fuse/dev.c, request_wait_answer), as with a dead NFS server.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};

use crate::skipped;

/// Calls `work` with a folder on a dead mount, in a separate mount namespace that children inherit.
/// False, with a printed reason, if FUSE is missing or not permitted.
pub fn with_hung_mount(work: impl FnOnce(&Path) + Send) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            let device = match mounted(folder.path()) {
                Ok(device) => device,
                Err(error) => {
                    skipped(format_args!("no FUSE mount can be made here: {error}"));
                    return false;
                }
            };
            std::thread::scope(|serving| {
                serving.spawn(|| swallow(device, &stop));
                // The server must end even if this fails.
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    work(folder.path());
                }));
                stop.store(true, Ordering::Relaxed);
                done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            });
            true
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn mounted(folder: &Path) -> std::io::Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nix::libc::O_CLOEXEC | nix::libc::O_NONBLOCK)
        .open("/dev/fuse")?;
    // The mount is only for this thread and its children.
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS)?;
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    mount(Some("hung"), folder, Some("fuse"), flags, Some(options.as_str()))?;
    Ok(device)
}

/// linux/fuse.h
const INIT: u32 = 26;

/// Reads requests until it is stopped. Closing the device then releases all waiting processes.
fn swallow(mut device: File, stop: &AtomicBool) {
    let mut request = vec![0u8; 1 << 18];
    while !stop.load(Ordering::Relaxed) {
        let mut waits = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut waits, PollTimeout::from(20u8));
        let Ok(length) = device.read(&mut request) else { continue };
        // fuse_in_header: length, opcode, then the number of the request.
        let word = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().expect("4 bytes"));
        if length < 16 || word(4) != INIT {
            continue;
        }
        // fuse_out_header, then fuse_init_out: version 7.31, and no flags.
        let mut answer = Vec::new();
        answer.extend(80u32.to_le_bytes());
        answer.extend(0u32.to_le_bytes());
        answer.extend(&request[8..16]);
        for word in [7u32, 31, 0, 0, 0, 4096, 1] {
            answer.extend(word.to_le_bytes());
        }
        answer.resize(80, 0);
        device.write_all(&answer).expect("an answer to INIT");
    }
}
