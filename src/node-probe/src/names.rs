//! Resolves names with libc's resolver, including every source that NSS adds (mDNS, LDAP, a hosts database).

use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::answer::NamesAnswer;

/// The addresses of `name` in getaddrinfo's order, each once.
pub(crate) fn resolve(name: &str) -> NamesAnswer {
    let Ok(name) = CString::new(name) else {
        return NamesAnswer {
            addresses: Vec::new(),
            error: Some((libc::EAI_NONAME, "the name holds a NUL byte".to_owned())),
        };
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
        return NamesAnswer {
            addresses: Vec::new(),
            error: Some((code, words.to_string_lossy().into_owned())),
        };
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
