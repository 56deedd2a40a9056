//! Machines of clouds: namespaces with a DMI that names the cloud, and the service of its metadata at the real address.
//!
//! A machine is a thread in network and mount namespaces of its own, since addresses and /sys are replaced; what it
//! starts is on that machine too. A listener at 127.0.0.1:3128 there is a proxy and the target of redirects: nobody may
//! ever connect to it. Skipped without the permission to make namespaces.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::skipped;

/// DMI strings: names of files below /sys/class/dmi/id, and what they hold.
pub type Machine<'m> = &'m [(&'m str, &'m str)];

pub const AWS: Machine<'_> = &[("sys_vendor", "Amazon EC2"), ("product_name", "p5.48xlarge")];
pub const XEN: Machine<'_> = &[("sys_vendor", "Xen"), ("bios_version", "4.11.amazon")];
pub const GCP: Machine<'_> = &[("sys_vendor", "Google"), ("product_name", "Google Compute Engine")];
pub const AZURE: Machine<'_> = &[
    ("sys_vendor", "Microsoft Corporation"),
    ("chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),
];
pub const ALIBABA: Machine<'_> =
    &[("sys_vendor", "Alibaba Cloud"), ("product_name", "Alibaba Cloud ECS")];
pub const SUPERMICRO: Machine<'_> =
    &[("sys_vendor", "Supermicro"), ("product_name", "SYS-821GE-TNHR")];

pub const LINK_LOCAL: &str = "169.254.169.254";
pub const OF_ALIBABA: &str = "100.100.100.200";
pub const STRANGER: &str = "127.0.0.1:3128";

/// The time for which a silent service keeps a connection.
const SILENT: Duration = Duration::from_secs(40);

/// A machine in namespaces of its own.
fn namespaces(dmi: Machine<'_>) -> Result<(), String> {
    let text = |error: nix::Error| error.to_string();
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_FS)
        .map_err(text)?;
    let nothing = None::<&str>;
    mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).map_err(text)?;
    // The devices of this network namespace, with a DMI beside them.
    mount(Some("sys"), "/mnt", Some("sysfs"), MsFlags::empty(), nothing).map_err(text)?;
    let (class, aside) = (Path::new("/sys/class"), Path::new("/mnt/class"));
    mount(Some("dmi"), class, Some("tmpfs"), MsFlags::empty(), nothing).map_err(text)?;
    (|| {
        for entry in aside.read_dir()? {
            let name = entry?.file_name();
            std::fs::create_dir(class.join(&name))?;
            if name != "dmi" {
                let (from, to) = (aside.join(&name), class.join(&name));
                mount(Some(&from), &to, nothing, MsFlags::MS_BIND, nothing)?;
            }
        }
        std::fs::create_dir_all(class.join("dmi/id"))?;
        for (name, value) in dmi {
            std::fs::write(class.join("dmi/id").join(name), format!("{value}\n"))?;
        }
        std::io::Result::Ok(())
    })()
    .map_err(|error| error.to_string())?;
    let lines: [&[&str]; 3] = [
        &["addr", "add", "169.254.169.254/32", "dev", "lo"],
        &["addr", "add", "100.100.100.200/32", "dev", "lo"],
        &["link", "set", "lo", "up"],
    ];
    for line in lines {
        let output = Command::new("ip").args(line).output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
    }
    Ok(())
}

/// Does `work` on a machine with these DMI strings; false if none can be made here.
pub fn on_machine(dmi: Machine<'_>, work: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            if let Err(why) = namespaces(dmi) {
                skipped(format_args!("no network and mount namespaces: {why}"));
                return false;
            }
            let stranger = TcpListener::bind(STRANGER).expect("a proxy");
            stranger.set_nonblocking(true).expect("nonblocking");
            work();
            let asked = stranger.accept().map(|(_, from)| from);
            assert!(asked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "a stranger");
            true
        });
        inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// An answer of the service.
#[derive(Debug)]
pub enum Reply {
    Of(u16, &'static str, String),
    Raw(Vec<u8>),
    /// Takes the request and says nothing.
    Silence,
    /// A body without an end, as fast as it is taken.
    Endless,
    /// One byte each 100 ms.
    Drips,
}

pub fn ok(body: impl Into<String>) -> Reply {
    Reply::Of(200, "", body.into())
}

pub fn google(body: &str) -> Reply {
    Reply::Of(200, "Metadata-Flavor: Google\r\n", body.to_owned())
}

pub fn none() -> Reply {
    Reply::Of(404, "", "Not Found".to_owned())
}

/// A metadata service of the machine of this thread, and the heads of all requests that it got.
#[derive(Debug)]
pub struct Service(Arc<Mutex<Vec<String>>>);

impl Service {
    /// `says` answers the head of a request.
    pub fn at(address: &str, mut says: impl FnMut(&str) -> Reply + Send + 'static) -> Service {
        let listener = TcpListener::bind((address, 80)).expect("port 80 in a namespace of our own");
        let heads = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&heads);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let head = head_of(&mut stream);
                kept.lock().expect("a lock").push(head.clone());
                let reply = says(&head);
                // One that is slow must not stop the others.
                std::thread::spawn(move || drop(send(&mut stream, reply)));
            }
        });
        Service(heads)
    }

    pub fn heads(&self) -> Vec<String> {
        self.0.lock().expect("a lock").clone()
    }
}

fn head_of(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        head.push(byte[0]);
    }
    String::from_utf8_lossy(&head).into_owned()
}

fn send(stream: &mut TcpStream, reply: Reply) -> std::io::Result<()> {
    match reply {
        Reply::Of(status, headers, body) => write!(
            stream,
            "HTTP/1.1 {status} Reason\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ),
        Reply::Raw(bytes) => stream.write_all(&bytes),
        Reply::Silence => {
            std::thread::sleep(SILENT);
            Ok(())
        }
        Reply::Endless => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
            loop {
                stream.write_all(&[b'x'; 4096])?;
            }
        }
        Reply::Drips => {
            stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
            loop {
                std::thread::sleep(Duration::from_millis(100));
                stream.write_all(b"X")?;
            }
        }
    }
}
