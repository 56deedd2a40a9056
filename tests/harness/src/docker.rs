//! Containers of a real Docker engine, without a registry: images are imported
//! from folders made here, and the host's own programs are mounted read-only.
//!
//! Every container, network, volume and image has a name of its own and goes with
//! the value that stands for it, also when a test fails.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::{PATIENCE, executable, python, run_tool, skipped};

/// Where ranklaunch lies in the containers.
pub const RANKLAUNCH: &str = "/ranklaunch";

/// Nothing, where a Docker engine answers; else why a test is skipped, said as well.
pub fn missing() -> Option<&'static str> {
    static WHY: OnceLock<Option<String>> = OnceLock::new();
    let why = WHY.get_or_init(|| {
        let asked = Command::new("docker").args(["version", "--format", "{{.Server.Os}}"]).output();
        match asked {
            Ok(answer) if answer.status.success() => None,
            Ok(answer) => Some(String::from_utf8_lossy(&answer.stderr).trim().to_owned()),
            Err(error) => Some(format!("docker: {error}")),
        }
    });
    if let Some(why) = why {
        skipped(format_args!("no Docker engine: {why}"));
    }
    why.as_deref()
}

/// A name that nobody else uses.
pub fn unique(what: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("ranklaunch-{what}-{}-{count}", std::process::id())
}

/// `docker ARGS…`, which may fail.
pub fn docker(args: &[&str]) -> Output {
    Command::new("docker").args(args).output().unwrap()
}

/// `docker ARGS…`; its standard output. Fails with what it said.
#[track_caller]
pub fn tell(args: &[&str]) -> String {
    let output = docker(args);
    assert!(output.status.success(), "docker {args:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// What goes when it is dropped: `docker REMOVE… NAME`.
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
    let tar = tempfile::NamedTempFile::new().unwrap();
    run_tool(Command::new("tar").arg("-cf").arg(tar.path()).arg("-C").arg(folder).arg("."));
    tell(&["import", tar.path().to_str().unwrap(), &image.name]);
    image
}

/// A root with the links and folders that the host's programs expect, and none of
/// its programs: those are mounted ([`Setup::programs`]).
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

/// A root with nothing in it but one empty folder.
pub fn empty() -> Owned {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("dev")).unwrap();
    imported(folder.path())
}

/// Links into /usr on most systems, folders on others.
const LIBRARIES: [&str; 5] = ["bin", "sbin", "lib", "lib32", "lib64"];

/// A container to be.
#[derive(Debug)]
pub struct Setup {
    image: String,
    options: Vec<String>,
}

impl Setup {
    /// With ranklaunch as its entry point.
    pub fn of(image: &Owned) -> Setup {
        let setup = Setup { image: image.name.clone(), options: Vec::new() };
        setup.mount(&executable(), RANKLAUNCH).options(&["--entrypoint", RANKLAUNCH])
    }

    /// As the image starts it.
    pub fn as_it_is(image: &Owned) -> Setup {
        Setup { image: image.name.clone(), options: Vec::new() }
    }

    /// What `docker run` is given before the image's name.
    pub fn into_options(self) -> Vec<String> {
        self.options
    }

    pub fn options(mut self, options: &[&str]) -> Setup {
        self.options.extend(options.iter().map(|&option| option.to_owned()));
        self
    }

    pub fn env(self, name: &str, value: &str) -> Setup {
        let pair = format!("{name}={value}");
        self.options(&["-e", &pair])
    }

    pub fn mount(self, from: &Path, to: &str) -> Setup {
        let mount = format!("{}:{to}:ro", from.display());
        self.options(&["-v", &mount])
    }

    /// A folder of the test, writable, at the same path.
    pub fn shares(self, folder: &Path) -> Setup {
        let mount = format!("{0}:{0}", folder.display());
        self.options(&["-v", &mount])
    }

    /// The host's own programs and libraries; /usr/local stays the image's.
    pub fn programs(self) -> Setup {
        let places = ["/", "/usr"]
            .into_iter()
            .flat_map(|above| LIBRARIES.iter().map(move |name| Path::new(above).join(name)));
        let folders = places.filter(|path| path.is_dir() && !path.is_symlink());
        folders.fold(self, |setup, path| {
            let to = path.display().to_string();
            setup.mount(&path, &to)
        })
    }

    /// The python that has torch, at its own path; `programs` as well.
    pub fn python(self) -> Setup {
        python_folders().iter().fold(self.programs(), |setup, folder| {
            let to = folder.display().to_string();
            setup.mount(folder, &to)
        })
    }

    /// `docker run OPTIONS IMAGE ARGS…`
    pub fn start(self, args: &[&str]) -> Container {
        let name = unique("box");
        let folder = tempfile::tempdir().unwrap();
        let (out, err) = (folder.path().join("out"), folder.path().join("err"));
        let child = Command::new("docker")
            .args(["run", "--name", &name])
            .args(&self.options)
            .arg(&self.image)
            .args(args)
            .stdin(Stdio::null())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap())
            .spawn()
            .unwrap();
        Container {
            owned: Owned { name, remove: &["rm", "-f", "-v"] },
            child,
            out,
            err,
            _folder: folder,
        }
    }

    pub fn run(self, args: &[&str]) -> Over {
        self.start(args).wait()
    }
}

/// Where the python with torch and the one that it was made of lie.
fn python_folders() -> &'static [PathBuf] {
    static FOLDERS: OnceLock<Vec<PathBuf>> = OnceLock::new();
    FOLDERS.get_or_init(|| {
        let ask = "import sys; print(sys.prefix); print(sys.base_prefix)";
        let said = Command::new(python()).args(["-c", ask]).output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let mut folders: Vec<PathBuf> = said.lines().map(PathBuf::from).collect();
        folders.dedup();
        folders.retain(|folder| folder != Path::new("/usr"));
        folders
    })
}

/// A container that runs. Dropped, it is removed.
#[derive(Debug)]
pub struct Container {
    owned: Owned,
    child: Child,
    out: PathBuf,
    err: PathBuf,
    _folder: tempfile::TempDir,
}

/// A container that has ended; it is removed when this is dropped.
#[derive(Debug)]
pub struct Over {
    pub name: String,
    pub code: i32,
    pub out: String,
    pub err: String,
    _owned: Owned,
}

impl Container {
    pub fn name(&self) -> &str {
        &self.owned.name
    }

    pub fn out(&self) -> String {
        read(&self.out)
    }

    pub fn err(&self) -> String {
        read(&self.err)
    }

    /// Waits for a condition while the container runs.
    #[track_caller]
    pub fn waits(&mut self, what: &str, ready: impl Fn(&Container) -> bool) -> &mut Container {
        let deadline = Instant::now() + PATIENCE;
        while !ready(self) {
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "waited for {what}, ended {ended:?}\n{}\n{}",
                self.out(),
                self.err()
            );
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        self
    }

    /// Waits until standard output holds `text` `times` times.
    #[track_caller]
    pub fn says(&mut self, text: &str, times: usize) -> &mut Container {
        self.waits(text, |container| container.out().matches(text).count() >= times)
    }

    /// The pid of its PID 1 on the host.
    pub fn pid(&self) -> i32 {
        tell(&["inspect", "-f", "{{.State.Pid}}", self.name()]).parse().unwrap()
    }

    #[track_caller]
    pub fn wait(mut self) -> Over {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(
                Instant::now() < deadline,
                "the container still runs\n{}\n{}",
                self.out(),
                self.err()
            );
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        Over {
            name: self.owned.name.clone(),
            code: status.code().unwrap_or_else(|| 128 + status.signal().unwrap()),
            out: self.out(),
            err: self.err(),
            _owned: self.owned,
        }
    }
}

impl Over {
    /// Fails with the whole console unless the code is `code`.
    #[track_caller]
    pub fn code(self, code: i32) -> Over {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Fails with the whole console unless what went to stderr holds all of `words`.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Over {
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in:\n{}\n{}", self.out, self.err);
        }
        self
    }

    /// A file of the container, which has ended.
    #[track_caller]
    pub fn file(&self, path: &str) -> String {
        let output = Command::new("sh")
            .args(["-c", "docker cp -L \"$0:$1\" - | tar -xO"])
            .args([&self.name, path])
            .output()
            .unwrap();
        assert!(output.status.success(), "{path}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}
