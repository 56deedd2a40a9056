//! The kernel's data about a thread: its state, the place where it waits, the file for which it
//! waits, and whose code made it wait.
//!
//! Everything here is optional: an older kernel, gVisor or hidepid shows less. The two ends of a TCP
//! socket are in `/proc/PID/net/tcp` and `tcp6`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::elf::Code;
use super::memory::{Memory, ProcessMemory};
use super::syscalls::{self, Argument};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelState {
    /// `comm`: at most 15 characters.
    pub name: String,
    /// `R`, `S`, `D`, `T`, `Z`… (proc_pid_stat(5)).
    pub state: char,
    /// The kernel function in which the thread sleeps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wchan: Option<String>,
    /// User and system time so far.
    pub cpu_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub syscall: Option<Syscall>,
}

/// The system call in which a thread is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Syscall {
    /// Name of the call, or its number if the name is not known.
    pub name: String,
    /// The six arguments of the call, in hexadecimal digits.
    pub arguments: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<UsedFile>,
    /// Name of the library, or of the executable, that made the call through the C library.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub caller: Option<String>,
}

/// The memory of a process, and the files that its code is from.
#[derive(Clone, Copy)]
pub(super) struct Mapped<'a> {
    pub(super) memory: &'a ProcessMemory,
    pub(super) code: &'a Code,
}

/// The file that an argument names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedFile {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fd: Option<u32>,
    /// The kernel's name of the file: a path, `socket:[…]`, `pipe:[…]`.
    pub path: String,
    /// The two ends, if the file is a TCP socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,
    /// The mount of the file: `nfs4 on /data from server:/export`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount: Option<Mount>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    pub at: String,
    pub kind: String,
    pub source: String,
}

/// The state of one thread of the process whose folder in /proc is `process`; None if it ended.
pub(super) fn state(process: &Path, tid: i32, mapped: Option<Mapped<'_>>) -> Option<KernelState> {
    /// USER_HZ is 100 on every architecture of today.
    const TICK_MS: u64 = 10;
    let folder = process.join("task").join(tid.to_string());
    let read = |name: &str| {
        let bytes = std::fs::read(folder.join(name)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let stat = read("stat")?;
    let (head, rest) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    // utime and stime are fields 14 and 15, the state is field 3.
    let ticks = fields.skip(10).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    let wchan = read("wchan").map(|text| text.trim().to_owned());
    Some(KernelState {
        name,
        state,
        wchan: wchan.filter(|name| !name.is_empty() && name != "0"),
        cpu_ms: ticks * TICK_MS,
        syscall: read("syscall").and_then(|line| syscall(process, &line, mapped)),
    })
}

/// `number arguments… stack-pointer program-counter`; `running` and -1 are outside of a system
/// call.
fn syscall(process: &Path, line: &str, mapped: Option<Mapped<'_>>) -> Option<Syscall> {
    const ARGUMENTS: usize = 6;
    let (number, words) = line.split_once(' ')?;
    let number: i64 = number.parse().ok()?;
    if number < 0 {
        return None;
    }
    let mut arguments: Vec<u64> = words
        .split_ascii_whitespace()
        .filter_map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok())
        .collect();
    let stack = arguments.get(ARGUMENTS).copied();
    arguments.truncate(ARGUMENTS);
    let memory = mapped.map(|mapped| mapped.memory);
    let known = syscalls::call(number);
    let named = known.map_or(Argument::Nothing, |(_, argument)| argument);
    let file = match named {
        Argument::Fd(at) => arguments.get(at).and_then(|fd| of_descriptor(process, *fd)),
        Argument::Path(at) => arguments.get(at).and_then(|at| of_path(process, *at, memory?)),
        Argument::Polled(at) => match (arguments.get(at), arguments.get(at + 1)) {
            // `fd` is the first field of `struct pollfd`. Among several files, no single one is
            // waited for.
            (Some(list), Some(1)) => memory
                .and_then(|memory| memory.u32(*list).ok())
                .and_then(|fd| of_descriptor(process, u64::from(fd))),
            _ => None,
        },
        Argument::Nothing => None,
    };
    Some(Syscall {
        name: known.map_or_else(|| number.to_string(), |(name, _)| name.to_owned()),
        arguments: arguments.iter().map(|argument| format!("{argument:x}")).collect(),
        file,
        caller: stack.and_then(|stack| caller(mapped?, stack)),
    })
}

/// The file of the innermost return address on a thread's stack that is not the C library's. A return address lies in
/// code behind a call; what lies before the first one of the C library belongs to its own frame. `stack`: the stack
/// pointer.
fn caller(Mapped { memory, code }: Mapped<'_>, stack: u64) -> Option<String> {
    /// The frames of the C library below a wait take some hundred bytes. The end of the stack may be nearer than this.
    const MOST: u64 = 4096;
    /// The C library, its loader and parts, and those of C and C++ that their compiler brings.
    const OF_C: &[&str] =
        &["libc.", "libc-", "libpthread", "ld-", "librt", "libstdc++", "libgcc_s", "[vdso]"];
    let in_page = MOST - stack % MOST;
    let block = |at, length| memory.block(at, usize::try_from(length).ok()?).ok();
    let mut bytes = block(stack, in_page)?;
    bytes.extend(block(stack.checked_add(in_page)?, MOST - in_page).unwrap_or_default());
    let (words, _) = bytes.as_chunks::<8>();
    let returns = words.iter().map(|word| u64::from_le_bytes(*word)).filter_map(|at| {
        let file = code.file(at)?;
        let before: [u8; LONGEST_CALL] = memory.bytes(at.checked_sub(LONGEST_CALL as u64)?).ok()?;
        ends_with_call(&before).then_some(file)
    });
    let is_of_c = |name: &str| OF_C.iter().any(|prefix| name.starts_with(prefix));
    returns.skip_while(|name| !is_of_c(name)).find(|name| !is_of_c(name)).map(str::to_owned)
}

/// Bytes of the longest call instruction.
const LONGEST_CALL: usize = 7;

/// Whether these bytes of code end with a call.
fn ends_with_call(code: &[u8; LONGEST_CALL]) -> bool {
    if cfg!(target_arch = "aarch64") {
        // BL, and BLR with a register.
        let [.., a, b, c, d] = *code;
        let word = u32::from_le_bytes([a, b, c, d]);
        return word >> 26 == 0b10_0101 || word & 0xffff_fc1f == 0xd63f_0000;
    }
    // `call` with an offset of four bytes, or FF /2 with a register or a place in memory of up to six bytes.
    const NEAR: usize = 5;
    let is_indirect = |at: usize| {
        let rest = code.get(at..).unwrap_or_default();
        let (&[0xff, mode, ..], length) = (rest, rest.len()) else { return false };
        let (kind, register) = (mode >> 6, mode & 7);
        let with_index = usize::from(kind != 3 && register == 4);
        let offset = match kind {
            0 if register == 5 => 4,
            0 | 3 => 0,
            1 => 1,
            _ => 4,
        };
        (mode >> 3) & 7 == 2 && length == 2 + with_index + offset
    };
    code.get(LONGEST_CALL - NEAR) == Some(&0xe8) || (0..LONGEST_CALL - 1).any(is_indirect)
}

/// Does not touch the file: the kernel prints the path with which it was opened.
fn of_descriptor(process: &Path, fd: u64) -> Option<UsedFile> {
    let fd = u32::try_from(fd).ok()?;
    let path = std::fs::read_link(process.join(format!("fd/{fd}"))).ok()?;
    let path = path.to_string_lossy().into_owned();
    let (connection, mount) = (connection(process, &path), mount_of(process, &path));
    Some(UsedFile { fd: Some(fd), path, connection, mount })
}

fn of_path(process: &Path, at: u64, memory: &ProcessMemory) -> Option<UsedFile> {
    /// PATH_MAX
    const LONGEST: usize = 4096;
    let path = String::from_utf8_lossy(&memory.text(at, LONGEST).ok()?).into_owned();
    if path.is_empty() {
        return None;
    }
    let whole = match path.starts_with('/') {
        true => path.clone(),
        false => std::fs::read_link(process.join("cwd")).ok()?.join(&path).display().to_string(),
    };
    Some(UsedFile { fd: None, mount: mount_of(process, &whole), path, connection: None })
}

/// The mount with the longest path that leads to `path`; None for `/` itself, and if the text is no
/// path.
fn mount_of(process: &Path, path: &str) -> Option<Mount> {
    let table = std::fs::read_to_string(process.join("mountinfo")).ok()?;
    longest(&table, path)
}

fn longest(table: &str, path: &str) -> Option<Mount> {
    if !path.starts_with('/') {
        return None;
    }
    let mut best: Option<Mount> = None;
    for line in table.lines() {
        // proc_pid_mountinfo(5): id parent device root mount-point options tags… - type source
        let Some((head, tail)) = line.split_once(" - ") else { continue };
        let (Some(at), mut tail) = (head.split(' ').nth(4), tail.split(' ')) else { continue };
        let at = unescaped(at);
        let leads = path == at
            || path.strip_prefix(&at).is_some_and(|rest| rest.starts_with('/') || at == "/");
        // A later mount on the same point hides the earlier one.
        if leads && best.as_ref().is_none_or(|best| at.len() >= best.at.len()) {
            let kind = tail.next().unwrap_or_default().to_owned();
            best = Some(Mount { at, kind, source: unescaped(tail.next().unwrap_or_default()) });
        }
    }
    best.filter(|best| best.at != "/")
}

/// Spaces and similar characters are written as `\040`.
fn unescaped(field: &str) -> String {
    let mut out = String::with_capacity(field.len());
    let mut rest = field;
    while let Some((before, after)) = rest.split_once('\\') {
        out.push_str(before);
        match after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                out.push('\\');
                rest = after;
            }
        }
    }
    out + rest
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    pub local: String,
    /// None for a listener.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

/// The connection of `socket:[INODE]`, in the network namespace of the process.
pub(super) fn connection(process: &Path, link: &str) -> Option<Connection> {
    let inode: u64 = link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
    ["net/tcp", "net/tcp6"].into_iter().find_map(|table| {
        let table = std::fs::read_to_string(process.join(table)).ok()?;
        table.lines().skip(1).find_map(|line| row(line, inode))
    })
}

/// proc_pid_net(5): `sl local_address rem_address st … uid timeout inode`.
fn row(line: &str, inode: u64) -> Option<Connection> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (local, peer) = (fields.next()?, fields.next()?);
    if fields.nth(6)?.parse() != Ok(inode) {
        return None;
    }
    let peer = address(peer)?;
    let peer = (peer.port() != 0).then(|| peer.to_string());
    Some(Connection { local: address(local)?.to_string(), peer })
}

/// `0100007F:6F99`: words of four bytes in the order of the machine, then the port as a number.
fn address(field: &str) -> Option<SocketAddr> {
    let (host, port) = field.split_once(':')?;
    let word = |at: usize| {
        let digits = host.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    let host = match host.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut bytes = [0; 16];
            bytes.iter_mut().zip(words.as_flattened()).for_each(|(byte, from)| *byte = *from);
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(host, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn path_mount_is_last_with_longest_prefix() {
        let table = "\
21 1 0:20 / / rw - ext4 /dev/vda rw
22 21 0:21 / /data rw,relatime shared:2 - ext4 /dev/vdb rw
23 22 0:22 / /data rw - nfs4 10.0.0.7:/export rw
24 21 0:23 / /my\\040files rw - fuse.s3fs bucket rw
";
        let mount = |path| longest(table, path).map(|mount| (mount.kind, mount.source));
        let is = |kind: &str, source: &str| Some((kind.to_owned(), source.to_owned()));
        assert_eq!(mount("/data/a/b"), is("nfs4", "10.0.0.7:/export"));
        assert_eq!(mount("/my files/x"), is("fuse.s3fs", "bucket"));
        assert_eq!(mount("/database/x"), None);
        assert_eq!(mount("socket:[12]"), None);
        assert_eq!(longest("garbage\n\n - \n", "/a"), None);
    }

    #[test]
    fn own_blocking_read_is_seen() {
        let (read, write) = std::io::pipe().expect("a pipe");
        let (tell, told) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            let tid = std::fs::read_link("/proc/thread-self").expect("proc");
            let _ = tell.send(tid);
            std::io::Read::read(&mut { read }, &mut [0]).expect("end of file")
        });
        let tid = told.recv().expect("the thread");
        let tid: i32 = tid.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("a tid");
        let process = Path::new("/proc/self");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let seen = loop {
            let seen = state(process, tid, None).expect("lives");
            if seen.state == 'S' && seen.syscall.is_some() {
                break seen;
            }
            assert!(std::time::Instant::now() < deadline, "{seen:?}");
            std::thread::yield_now();
        };
        let call = seen.syscall.expect("a call");
        assert_eq!(call.name, "read");
        assert!(call.file.expect("its file").path.starts_with("pipe:["));
        drop(write);
        assert_eq!(waiting.join().expect("ended"), 0);
        assert_eq!(state(process, i32::MAX, None), None);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn calls_are_told_from_other_code() {
        for (code, is_call) in [
            ([0, 0, 0xe8, 1, 2, 3, 4], true),
            ([0, 0, 0, 0, 0, 0xff, 0xd0], true),
            // [rip + offset], [rsp + 8], [rax + offset]
            ([0, 0xff, 0x15, 1, 2, 3, 4], true),
            ([0, 0, 0, 0xff, 0x54, 0x24, 8], true),
            ([0, 0xff, 0x90, 1, 2, 3, 4], true),
            // A jump, and a call that ends earlier.
            ([0, 0, 0xe9, 1, 2, 3, 4], false),
            ([0, 0, 0, 0, 0, 0xff, 0xe0], false),
            ([0, 0xe8, 1, 2, 3, 4, 0], false),
            ([0, 0, 0, 0, 0xff, 0xd0, 0], false),
        ] {
            assert_eq!(ends_with_call(&code), is_call, "{code:x?}");
        }
    }

    #[test]
    fn single_polled_file_is_shown() {
        let process = Path::new("/proc/self");
        let (read, _write) = std::io::pipe().expect("a pipe");
        let list = [read.as_raw_fd().cast_unsigned(), 1];
        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
        let memory = ProcessMemory::open(process, until).expect("our own");
        // poll(2) is 7 on x86-64, ppoll(2) 73 on arm64.
        let number = if cfg!(target_arch = "x86_64") { 7 } else { 73 };
        let polled = |count: u32| {
            let line = format!("{number} {:p} {count:#x} 0x0 0x0 0x0 0x0", list.as_ptr());
            let mapped = Mapped { memory: &memory, code: &Code::new("") };
            syscall(process, &line, Some(mapped)).expect("a call").file.map(|file| file.path)
        };
        assert!(polled(1).is_some_and(|path| path.starts_with("pipe:[")));
        assert_eq!(polled(2), None);
    }

    #[test]
    fn connection_ends_match_the_socket() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = std::net::TcpListener::bind(host) else { continue };
            let at = listener.local_addr().expect("bound");
            let stream = std::net::TcpStream::connect(at).expect("connected");
            let process = Path::new("/proc/self");
            let seen = |fd: i32| {
                let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).expect("a link");
                connection(process, link.to_str().expect("text"))
            };
            let local = stream.local_addr().expect("bound").to_string();
            let both = Connection { local, peer: Some(at.to_string()) };
            assert_eq!(seen(stream.as_raw_fd()), Some(both));
            let alone = Connection { local: at.to_string(), peer: None };
            assert_eq!(seen(listener.as_raw_fd()), Some(alone));
        }
        for broken in ["", "1", "a b c d e f g h i 7", "0: 0100007F:0016 x:y 0A 0 0 0 0 0 7"] {
            assert_eq!(row(broken, 7), None);
        }
        assert_eq!(connection(Path::new("/proc/self"), "pipe:[7]"), None);
    }
}
