//! System calls in which a process may block, by their numbers.
//!
//! Sources: asm/unistd_64.h (x86-64) and asm-generic/unistd.h (arm64) of Linux 6.1. A call that is
//! not listed is shown by its number.

use Argument::{Fd, Nothing, Path, Polled};

/// The argument that names a file, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Argument {
    Fd(usize),
    Path(usize),
    /// A list of `struct pollfd`; its length is the next argument.
    Polled(usize),
    Nothing,
}

/// The name of a call on this machine, and the argument that names a file.
pub fn call(number: i64) -> Option<(&'static str, Argument)> {
    let of_this_machine = |row: &Row| if cfg!(target_arch = "x86_64") { row.1 } else { row.2 };
    let row = CALLS.iter().find(|row| of_this_machine(row) == Some(number))?;
    Some((row.0, row.3))
}

/// Name, number on x86-64, number on arm64, argument.
type Row = (&'static str, Option<i64>, Option<i64>, Argument);

const CALLS: &[Row] = &[
    ("read", Some(0), Some(63), Fd(0)),
    ("write", Some(1), Some(64), Fd(0)),
    ("open", Some(2), None, Path(0)),
    ("close", Some(3), Some(57), Fd(0)),
    ("stat", Some(4), None, Path(0)),
    ("fstat", Some(5), Some(80), Fd(0)),
    ("lstat", Some(6), None, Path(0)),
    ("poll", Some(7), None, Polled(0)),
    ("lseek", Some(8), Some(62), Fd(0)),
    ("mmap", Some(9), Some(222), Nothing),
    ("munmap", Some(11), Some(215), Nothing),
    ("ioctl", Some(16), Some(29), Fd(0)),
    ("pread64", Some(17), Some(67), Fd(0)),
    ("pwrite64", Some(18), Some(68), Fd(0)),
    ("readv", Some(19), Some(65), Fd(0)),
    ("writev", Some(20), Some(66), Fd(0)),
    ("select", Some(23), None, Nothing),
    ("mremap", Some(25), Some(216), Nothing),
    ("msync", Some(26), Some(227), Nothing),
    ("madvise", Some(28), Some(233), Nothing),
    ("pause", Some(34), None, Nothing),
    ("nanosleep", Some(35), Some(101), Nothing),
    ("sendfile", Some(40), Some(71), Fd(1)),
    ("connect", Some(42), Some(203), Fd(0)),
    ("accept", Some(43), Some(202), Fd(0)),
    ("sendto", Some(44), Some(206), Fd(0)),
    ("recvfrom", Some(45), Some(207), Fd(0)),
    ("sendmsg", Some(46), Some(211), Fd(0)),
    ("recvmsg", Some(47), Some(212), Fd(0)),
    ("clone", Some(56), Some(220), Nothing),
    ("vfork", Some(58), None, Nothing),
    ("clone3", Some(435), Some(435), Nothing),
    ("shutdown", Some(48), Some(210), Fd(0)),
    ("wait4", Some(61), Some(260), Nothing),
    ("flock", Some(73), Some(32), Fd(0)),
    ("fcntl", Some(72), Some(25), Fd(0)),
    ("fsync", Some(74), Some(82), Fd(0)),
    ("fdatasync", Some(75), Some(83), Fd(0)),
    ("truncate", Some(76), Some(45), Path(0)),
    ("ftruncate", Some(77), Some(46), Fd(0)),
    ("getdents64", Some(217), Some(61), Fd(0)),
    ("chdir", Some(80), Some(49), Path(0)),
    ("rename", Some(82), None, Path(0)),
    ("unlink", Some(87), None, Path(0)),
    ("readlink", Some(89), None, Path(0)),
    ("statfs", Some(137), Some(43), Path(0)),
    ("fstatfs", Some(138), Some(44), Fd(0)),
    ("sync", Some(162), Some(81), Nothing),
    ("futex", Some(202), Some(98), Nothing),
    ("epoll_wait", Some(232), None, Fd(0)),
    ("clock_nanosleep", Some(230), Some(115), Nothing),
    ("waitid", Some(247), Some(95), Nothing),
    ("openat", Some(257), Some(56), Path(1)),
    ("newfstatat", Some(262), Some(79), Path(1)),
    ("unlinkat", Some(263), Some(35), Path(1)),
    ("renameat", Some(264), Some(38), Path(1)),
    ("readlinkat", Some(267), Some(78), Path(1)),
    ("pselect6", Some(270), Some(72), Nothing),
    ("ppoll", Some(271), Some(73), Polled(0)),
    ("sync_file_range", Some(277), Some(84), Fd(0)),
    ("splice", Some(275), Some(76), Fd(0)),
    ("fallocate", Some(285), Some(47), Fd(0)),
    ("accept4", Some(288), Some(242), Fd(0)),
    ("epoll_pwait", Some(281), Some(22), Fd(0)),
    ("preadv", Some(295), Some(69), Fd(0)),
    ("pwritev", Some(296), Some(70), Fd(0)),
    ("recvmmsg", Some(299), Some(243), Fd(0)),
    ("sendmmsg", Some(307), Some(269), Fd(0)),
    ("syncfs", Some(306), Some(267), Fd(0)),
    ("renameat2", Some(316), Some(276), Path(1)),
    ("execve", Some(59), Some(221), Path(0)),
    ("exit_group", Some(231), Some(94), Nothing),
    ("rt_sigtimedwait", Some(128), Some(137), Nothing),
    ("rt_sigsuspend", Some(130), Some(133), Nothing),
    ("sched_yield", Some(24), Some(124), Nothing),
    ("semop", Some(65), Some(193), Nothing),
    ("io_getevents", Some(208), Some(4), Nothing),
    ("io_uring_enter", Some(426), Some(426), Fd(0)),
    ("copy_file_range", Some(326), Some(285), Fd(0)),
    ("statx", Some(332), Some(291), Path(1)),
    ("openat2", Some(437), Some(437), Path(1)),
    ("epoll_pwait2", Some(441), Some(441), Fd(0)),
    ("futex_waitv", Some(449), Some(449), Nothing),
    ("semtimedop", Some(220), Some(192), Nothing),
];
