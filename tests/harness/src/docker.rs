//! Containers of a real Docker engine, without a registry: images are imported from folders made
//! here, and the host's own programs are mounted read-only.
//!
//! Every container, network, volume and image has a unique name and is removed when its value is
//! dropped, even if a test fails.

mod setup;

use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{run_tool, skipped, wait_until};

pub use setup::Setup;

/// The path of ranklaunch in the containers.
pub const RANKLAUNCH: &str = "/ranklaunch";

/// `None` if a Docker engine answers; otherwise prints and gives the reason to skip a test.
pub fn missing() -> Option<&'static str> {
    let why = why_missing();
    if let Some(why) = why {
        skipped(format_args!("no Docker engine: {why}"));
    }
    why
}

pub(crate) fn why_missing() -> Option<&'static str> {
    static WHY: OnceLock<Option<String>> = OnceLock::new();
    WHY.get_or_init(|| {
        let asked = Command::new("docker").args(["version", "--format", "{{.Server.Os}}"]).output();
        match asked {
            Ok(answer) if answer.status.success() => None,
            Ok(answer) => Some(String::from_utf8_lossy(&answer.stderr).trim().to_owned()),
            Err(error) => Some(format!("docker: {error}")),
        }
    })
    .as_deref()
}

/// A unique name.
pub fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("ranklaunch-{what}-{}-{count}", std::process::id())
}

/// `docker ARGS…`, which may fail.
pub fn docker(args: &[&str]) -> Output {
    Command::new("docker").args(args).output().unwrap()
}

/// Runs `docker ARGS…` and gives its standard output. Fails with its error output.
#[track_caller]
pub fn tell(args: &[&str]) -> String {
    let output = docker(args);
    assert!(output.status.success(), "docker {args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// An object that is removed when dropped, by `docker REMOVE… NAME`.
#[derive(Debug)]
pub struct Owned {
    pub name: String,
    remove: &'static [&'static str],
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = docker(&[self.remove, &[self.name.as_str()]].concat());
    }
}

/// The image's name, as `docker run` takes it.
impl Deref for Owned {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

/// A container that is about to be started with this name.
pub(crate) fn container_named(name: String) -> Owned {
    Owned { name, remove: &["rm", "-f", "-v"] }
}

/// A network with Docker's own names for its containers.
pub fn network() -> Owned {
    let network = Owned { name: unique("net"), remove: &["network", "rm"] };
    tell(&["network", "create", &network.name]);
    network
}

pub fn volume() -> Owned {
    let volume = Owned { name: unique("volume"), remove: &["volume", "rm", "-f"] };
    tell(&["volume", "create", &volume.name]);
    volume
}

/// An image that `docker build` or `docker import` is about to make.
pub fn image_named(name: String) -> Owned {
    Owned { name, remove: &["rmi", "-f"] }
}

/// `docker import` of a folder.
fn imported(folder: &Path) -> Owned {
    let image = image_named(unique("image"));
    import(folder, &image);
    image
}

fn import(folder: &Path, name: &str) {
    let tar = tempfile::NamedTempFile::new().unwrap();
    run_tool(Command::new("tar").arg("-cf").arg(tar.path()).arg("-C").arg(folder).arg("."));
    tell(&["import", tar.path().to_str().unwrap(), name]);
}

/// The pid on the host of a running container's first process.
pub fn first_pid(container: &str) -> i32 {
    wait_until("the container's first process", || {
        let said = docker(&["inspect", "-f", "{{.State.Pid}}", container]).stdout;
        let pid: i32 = String::from_utf8_lossy(&said).trim().parse().ok()?;
        (pid > 0).then_some(pid)
    })
}

/// `docker exec` of a line of shell. Gives its standard output, and fails with its error output.
#[track_caller]
pub fn shell(container: &str, script: &str) -> String {
    tell(&["exec", container, "sh", "-c", script])
}

/// A file of a container, which may have ended.
#[track_caller]
pub fn file(container: &str, path: &str) -> String {
    let output = Command::new("sh")
        .args(["-c", "docker cp -L \"$0:$1\" - | tar -xO", container, path])
        .output()
        .unwrap();
    assert!(output.status.success(), "{path}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A root with the links and folders that the host's programs expect, and no programs;
/// [`Setup::programs`] mounts those.
pub fn host_like() -> Owned {
    let folder = tempfile::tempdir().unwrap();
    for name in ["usr", "etc", "root"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    run_tool(Command::new("mkdir").args(["-m", "1777"]).arg(folder.path().join("tmp")));
    for name in LIBRARIES {
        if let Ok(target) = std::fs::read_link(Path::new("/").join(name)) {
            std::os::unix::fs::symlink(target, folder.path().join(name)).unwrap();
        }
    }
    imported(folder.path())
}

/// A root with only an empty /tmp, which the launcher may need. It is made once and kept, since
/// many tests start it, and a new import would leave the older image without a name.
pub fn bare() -> &'static str {
    static MADE: OnceLock<()> = OnceLock::new();
    const NAME: &str = "ranklaunch-test-empty";
    MADE.get_or_init(|| {
        if !docker(&["image", "inspect", NAME]).status.success() {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("tmp")).unwrap();
            import(folder.path(), NAME);
        }
    });
    NAME
}

/// A root with only one empty folder, which is not /tmp.
pub fn empty() -> Owned {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("dev")).unwrap();
    imported(folder.path())
}

/// Links into /usr on most systems, folders on others.
const LIBRARIES: [&str; 5] = ["bin", "sbin", "lib", "lib32", "lib64"];
