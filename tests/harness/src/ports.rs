//! Reserves ports for tests.

use std::fs::File;
use std::net::TcpListener;
use std::sync::Mutex;

/// A free port that no other test gets while this process runs. It is outside of the kernel's range
/// for connections (ip_local_port_range, from 32768), so that no connection takes it.
pub fn free_port() -> u16 {
    static TAKEN: Mutex<Vec<File>> = Mutex::new(Vec::new());
    const PORTS: std::ops::Range<u16> = 11_000..29_000;
    let folder = std::env::temp_dir().join("ranklaunch-test-ports");
    std::fs::create_dir_all(&folder).unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let width = u32::from(PORTS.end - PORTS.start);
    let first = std::process::id().wrapping_mul(7_919).wrapping_add(now.subsec_nanos());
    for at in 0..width {
        let port = PORTS.start + u16::try_from(first.wrapping_add(at) % width).unwrap();
        let name = folder.join(port.to_string());
        let Ok(lock) = File::options().create(true).append(true).open(name) else { continue };
        if lock.try_lock().is_ok() && TcpListener::bind(("0.0.0.0", port)).is_ok() {
            // The lock goes with the process, however it ends.
            TAKEN.lock().unwrap().push(lock);
            return port;
        }
    }
    panic!("no port is left between {} and {}", PORTS.start, PORTS.end);
}
