//! A proxy between nodes: carries their connections, and resets all of them on request.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// A proxy that lives as long as the test's process.
#[derive(Debug, Clone)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    carried: Arc<Mutex<Vec<TcpStream>>>,
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Write);
}

impl Proxy {
    /// Starts a proxy in front of a port of this machine.
    pub(crate) fn before(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let proxy = Proxy { port: own, carried: Arc::default() };
        let carried = Arc::clone(&proxy.carried);
        std::thread::spawn(move || {
            for near in listener.incoming().filter_map(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let copy = |one: &TcpStream| one.try_clone().expect("a descriptor");
                carried.lock().expect("no panic").extend([copy(&near), copy(&far)]);
                let back = (copy(&far), copy(&near));
                std::thread::spawn(move || carry(near, far));
                std::thread::spawn(move || carry(back.0, back.1));
            }
        });
        proxy
    }

    /// Resets both ends of each connection.
    pub(crate) fn reset(&self) {
        for end in self.carried.lock().expect("no panic").drain(..) {
            let _ = rustix::net::connect_unspec(&end);
        }
    }
}
