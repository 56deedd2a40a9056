//! A container that a test is about to start.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::{LIBRARIES, RANKLAUNCH, container_named, unique};
use crate::{Ended, Launcher, Running, executable, python};

/// The options of a container that is not started yet.
#[derive(Debug)]
pub struct Setup {
    image: String,
    options: Vec<String>,
}

impl Setup {
    /// A container with ranklaunch as its entry point.
    pub fn of(image: &str) -> Setup {
        Setup::as_it_is(image)
            .mount(&executable(), RANKLAUNCH)
            .options(&["--entrypoint", RANKLAUNCH])
    }

    /// A container as the image starts it.
    pub fn as_it_is(image: &str) -> Setup {
        Setup { image: image.to_owned(), options: Vec::new() }
    }

    /// The arguments of `docker run` before the image's name.
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

    /// Shares a writable folder of the test at the same path.
    pub fn shares(self, folder: &Path) -> Setup {
        let mount = format!("{0}:{0}", folder.display());
        self.options(&["-v", &mount])
    }

    /// Mounts the host's own programs and libraries; /usr/local stays the image's.
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

    /// Mounts the Python that has torch, at its own path, and `programs` as well.
    pub fn python(self) -> Setup {
        python_folders().iter().fold(self.programs(), |setup, folder| {
            let to = folder.display().to_string();
            setup.mount(folder, &to)
        })
    }

    /// `docker run OPTIONS IMAGE ARGS…`. The container is removed with the returned value.
    pub fn start(self, args: &[&str]) -> Running {
        let name = unique("box");
        let mut docker = Command::new("docker");
        docker.args(["run", "--name", &name]).args(&self.options).arg(&self.image);
        Launcher::of(docker, args).contained(container_named(name)).start()
    }

    pub fn run(self, args: &[&str]) -> Ended {
        self.start(args).wait()
    }
}

/// The folders of the Python with torch and of the Python from which it was made.
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
