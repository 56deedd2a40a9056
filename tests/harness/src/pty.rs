//! Simulates a user at a terminal: a pseudo-terminal with a session of its own.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{Termios, tcgetattr};
use rustix::termios::Winsize;

use crate::launcher::behind;
use crate::{TIMEOUT, wait_until};

pub const CTRL_C: &str = "\x03";
pub const CTRL_D: &str = "\x04";
pub const CTRL_Z: &str = "\x1a";

#[derive(Debug)]
pub struct Terminal {
    master: Option<File>,
    /// Keeps the terminal's state readable after its last user has gone.
    slave: Option<OwnedFd>,
    child: Child,
    /// The output so far.
    seen: String,
    /// Length of the output that `shows` has consumed.
    passed: usize,
}

impl Terminal {
    /// Starts `command` as the leader of a session that this terminal controls.
    pub fn start(command: Command) -> Terminal {
        let (master, slave) = open();
        Terminal::within(master, slave, command)
    }

    fn within(master: File, slave: OwnedFd, command: Command) -> Terminal {
        let mut session = Command::new("setsid");
        session.arg("--ctty");
        let mut command = behind(session, &command);
        let stream = || slave.try_clone().unwrap();
        command.stdin(stream()).stdout(stream()).stderr(stream());
        let child = command.spawn().unwrap();
        Terminal { master: Some(master), slave: Some(slave), child, seen: String::new(), passed: 0 }
    }

    /// The same in a window of this size.
    pub fn of(columns: u16, rows: u16, command: Command) -> Terminal {
        let (master, slave) = open();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&master, size).unwrap();
        Terminal::within(master, slave, command)
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub fn types(&mut self, keys: &str) {
        self.master().write_all(keys.as_bytes()).unwrap();
    }

    /// Presses `key` once a second until `text` is shown, because an interrupt between a prompt and
    /// its read is noticed only with the next key.
    #[track_caller]
    pub fn presses_until(&mut self, key: &str, text: &str) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            self.types(key);
            if self.shows_by(Instant::now() + Duration::from_secs(1), text).is_some() {
                return;
            }
            assert!(Instant::now() < deadline, "waited for {text:?}; all of it:\n{}", self.seen);
        }
    }

    /// Waits until `text` is shown. Gives the output from the last wait up to it.
    #[track_caller]
    pub fn shows(&mut self, text: &str) -> String {
        self.shows_by(Instant::now() + TIMEOUT, text)
            .unwrap_or_else(|| panic!("waited for {text:?}; all of it:\n{}", self.seen))
    }

    /// Waits for each text and answers it with the keys beside it.
    #[track_caller]
    pub fn answers(&mut self, turns: &[(&str, &str)]) {
        for (text, keys) in turns {
            self.shows(text);
            self.types(keys);
        }
    }

    fn shows_by(&mut self, deadline: Instant, text: &str) -> Option<String> {
        loop {
            let new = &self.seen[self.passed..];
            if let Some(at) = new.find(text) {
                let before = new[..at].to_owned();
                self.passed += at + text.len();
                return Some(before);
            }
            if Instant::now() >= deadline {
                return None;
            }
            let mut waits = [PollFd::new(self.master().as_fd(), PollFlags::POLLIN)];
            poll(&mut waits, PollTimeout::from(100u8)).unwrap();
            if waits[0].any() == Some(true) {
                self.read();
            }
        }
    }

    fn read(&mut self) {
        let mut bytes = [0u8; 4096];
        // The end of a terminal is EIO.
        let length = self.master().read(&mut bytes).unwrap_or(0);
        self.seen.push_str(&String::from_utf8_lossy(&bytes[..length]));
    }

    /// The whole output, after the end of the session's leader.
    pub fn rest(&mut self) -> String {
        let mut waits = [PollFd::new(self.master().as_fd(), PollFlags::POLLIN)];
        while poll(&mut waits, PollTimeout::ZERO).unwrap() > 0 {
            let before = self.seen.len();
            self.read();
            if self.seen.len() == before {
                break;
            }
            waits = [PollFd::new(self.master().as_fd(), PollFlags::POLLIN)];
        }
        self.seen.clone()
    }

    pub fn everything(&self) -> &str {
        &self.seen
    }

    /// The process group in the foreground.
    pub fn foreground(&self) -> i32 {
        nix::unistd::tcgetpgrp(self.master()).unwrap().as_raw()
    }

    pub fn modes(&self) -> Termios {
        tcgetattr(self.slave.as_ref().unwrap()).unwrap()
    }

    /// Resizes the window.
    pub fn resizes(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(self.master(), size).unwrap();
    }

    /// Closes the window.
    pub fn hang_up(&mut self) {
        self.slave = None;
        self.master = None;
    }

    fn master(&self) -> &File {
        self.master.as_ref().expect("the window is open")
    }

    /// Reaps the leader if it has ended.
    pub fn leader_is_gone(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// The leader's exit code, or 128 + signal.
    #[track_caller]
    pub fn ends(&mut self) -> i32 {
        self.slave = None;
        let status = wait_until("the end of the session's leader", || {
            // A full terminal would block its writers.
            let mut waits = [PollFd::new(self.master().as_fd(), PollFlags::POLLIN)];
            if poll(&mut waits, PollTimeout::ZERO).unwrap() > 0 {
                self.read();
            }
            self.child.try_wait().unwrap()
        });
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }
}

/// Both sides, closed on exec, because a window that children of other tests also held open could
/// not be closed.
fn open() -> (File, OwnedFd) {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = nix::pty::posix_openpt(flags).unwrap();
    nix::pty::grantpt(&master).unwrap();
    nix::pty::unlockpt(&master).unwrap();
    let name = nix::pty::ptsname_r(&master).unwrap();
    let slave = nix::fcntl::open(name.as_str(), flags, nix::sys::stat::Mode::empty()).unwrap();
    (File::from(OwnedFd::from(master)), slave)
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
