//! `node-probe`: queries NVML and libc's resolver, which a static executable cannot do.
//!
//! NVML needs the dynamic loader, and names that only NSS knows need libc's resolver. The launcher starts this program
//! as a process with a deadline, so a driver that hangs or crashes costs only a timeout.
//!
//! Takes `nvml MILLISECONDS [LIBRARY]` or `resolve NAME`; writes one JSON document to descriptor 0. Descriptor 0 is a
//! socket or the write end of a pipe, because driver libraries and preload hooks print to 1 and 2, and nothing ever
//! writes to standard input. Takes `watch LIBRARY PCI…` with a socket as descriptor 0 (an empty LIBRARY means the library
//! that is found); writes a JSON document per line until nobody reads them. Ends by `_exit`, since nvmlShutdown can hang on a
//! faulty node.

#[expect(unreachable_pub, reason = "the launcher compiles this file too, as public types")]
mod answer;
mod health;
mod nvml;
mod watch;

use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use answer::{Answer, NamesAnswer};

fn main() {
    leave_no_trace();
    let out = take_answer_descriptor();
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["watch", library, gpus @ ..] = words.as_slice() {
        watch::watch(Some(*library).filter(|name| !name.is_empty()), gpus, out);
        leave(out, 0);
    }
    let answer = match words.as_slice() {
        ["nvml", timeout, library @ ..] if library.len() < 2 && timeout.parse::<u32>().is_ok() => {
            let timeout = Duration::from_millis(timeout.parse::<u32>().map_or(0, u64::from));
            Answer::Nvml(nvml::ask(library.first().copied(), timeout))
        }
        ["resolve", name] => Answer::Names(resolve(name)),
        _ => Answer::Usage(format!(
            "node-probe nvml MILLISECONDS [LIBRARY] | resolve NAME | watch LIBRARY PCI..., \
             not {words:?}"
        )),
    };
    let written = serde_json::to_vec(&answer).is_ok_and(|bytes| watch::write_all(out, &bytes));
    leave(out, i32::from(!written))
}

/// Closes the pipe and ends the process.
fn leave(out: i32, code: i32) -> ! {
    // A thread that is stuck in the driver keeps the process alive and would keep the pipe open, but the reader must
    // see its end now. SAFETY: close takes a descriptor of ours that is not used after this; _exit takes no pointer and
    // does not return. Exit handlers of the driver library must not run.
    unsafe {
        libc::close(out);
        libc::_exit(code)
    }
}

/// Prevents core files of a crashed driver library. Also prevents a probe that outlives the thread that waits for it.
fn leave_no_trace() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls take values or a pointer to a live struct; a failure changes nothing on which the answer
    // depends.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &none);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Moves the pipe away from descriptor 0, out of reach of libraries that use standard input.
fn take_answer_descriptor() -> i32 {
    // SAFETY: fcntl on a descriptor number; the number is checked below.
    let moved = unsafe { libc::fcntl(0, libc::F_DUPFD_CLOEXEC, 3) };
    if moved < 0 {
        return 0;
    }
    // SAFETY: a literal path and plain descriptor numbers. Without /dev/null descriptor 0 remains the pipe as well,
    // which is harmless.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if null >= 0 {
            libc::dup2(null, 0);
        }
    }
    moved
}

/// The addresses of `name` in getaddrinfo's order, each once.
fn resolve(name: &str) -> NamesAnswer {
    let failed =
        |code: i32, why: String| NamesAnswer { error: Some((code, why)), ..NamesAnswer::default() };
    let Ok(name) = CString::new(name) else {
        return failed(libc::EAI_NONAME, "the name holds a NUL byte".to_owned());
    };
    // SAFETY: an all-zero addrinfo is the documented "no hints".
    let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
    // The hint requests one answer per address rather than one per socket type.
    hints.ai_socktype = libc::SOCK_STREAM;
    let mut list: *mut libc::addrinfo = std::ptr::null_mut();
    // SAFETY: all pointers are to live values; `list` is freed below.
    let code = unsafe { libc::getaddrinfo(name.as_ptr(), std::ptr::null(), &hints, &mut list) };
    if code != 0 {
        // SAFETY: gai_strerror gives a static string for every code.
        let words = unsafe { CStr::from_ptr(libc::gai_strerror(code)) };
        return failed(code, words.to_string_lossy().into_owned());
    }
    let mut addresses = Vec::new();
    let mut entry = list;
    // SAFETY: the list is getaddrinfo's own, walked to its null end.
    while let Some(info) = unsafe { entry.as_ref() } {
        // SAFETY: the type of ai_addr is the one that ai_family names.
        let address = unsafe { address_of(info) };
        if let Some(address) = address
            && !addresses.contains(&address)
        {
            addresses.push(address);
        }
        entry = info.ai_next;
    }
    // SAFETY: the list came from getaddrinfo and is no longer used.
    unsafe { libc::freeaddrinfo(list) };
    NamesAnswer { addresses, error: None }
}

/// # Safety
///
/// `info.ai_addr` is null or points to a socket address of `info.ai_family`.
unsafe fn address_of(info: &libc::addrinfo) -> Option<IpAddr> {
    match info.ai_family {
        libc::AF_INET => {
            // SAFETY: by the caller's promise.
            let inet = unsafe { info.ai_addr.cast::<libc::sockaddr_in>().as_ref() }?;
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(inet.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: by the caller's promise.
            let inet6 = unsafe { info.ai_addr.cast::<libc::sockaddr_in6>().as_ref() }?;
            Some(IpAddr::V6(Ipv6Addr::from(inet6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}
