//! A local scratch folder for files that an engine insists on writing and for those that the ranks'
//! Python imports; removed with the job.
//!
//! Its name is chosen before the agent is forked, so that the guard can remove it if the agent
//! is killed. Only the own user may enter it. If both were killed, a later launch removes it, once it
//! is proven that nobody uses it: the agent holds a lock on a file beside it, which the kernel
//! takes back with its death, also in another container, and no process has its path in its
//! environment.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use linux::deadline::{begun, spawn_detached, with_deadline};
use linux::regular_file;
use supervise::inject::Injection;

/// Time limit for the local disk.
const ANSWER: Duration = Duration::from_secs(3);

/// Prefix of the names of these folders; 16 hexadecimal digits follow.
const PREFIX: &str = "ranklaunch-";
/// The suffixes of the folder of the warmed interpreter, and of the file that is locked.
const WARM: &str = "warm";
const LOCK: &str = "lock";
/// Maximum number of files of the temporary folder that are examined.
const MOST: usize = 10_000;

/// An unpredictable name.
#[derive(Debug, Clone)]
pub(super) struct ScratchName {
    path: PathBuf,
    lock: Arc<OnceLock<File>>,
}

impl ScratchName {
    pub(super) fn new() -> ScratchName {
        let token = getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id()));
        let path = std::env::temp_dir().join(format!("{PREFIX}{token:016x}"));
        ScratchName { path, lock: Arc::default() }
    }

    /// Locks the name as long as this process lives, and removes the folders of dead launches of this
    /// user. Runs in a thread of its own, which nobody waits for.
    pub(super) fn hold(&self) {
        let ScratchName { path, lock } = self.clone();
        spawn_detached(move || {
            if let Some(file) = locked(&path) {
                let _ = lock.set(file);
            }
            if let Some(folder) = path.parent() {
                remove_abandoned(folder);
            }
        });
    }

    /// Begins to create the folder and the files in it that the ranks' Python imports. Without a folder the engine
    /// creates its own and leaves it behind.
    pub(super) fn make(&self, inject: bool) -> impl Future<Output = Scratch> + use<> {
        let path = self.path.clone();
        let made = begun(move || {
            std::fs::DirBuilder::new().mode(0o700).create(&path).ok()?;
            let injection = inject.then(|| Injection::write(&path).ok()).flatten();
            Some((path, injection))
        });
        async move {
            let made = tokio::time::timeout(ANSWER, made).await.ok().and_then(Result::ok).flatten();
            let (path, injection) = made.unzip();
            Scratch { path, injection: injection.flatten() }
        }
    }

    /// The folder of the warmed interpreter, which lives longer than an attempt.
    pub(super) fn of_warmed(&self) -> PathBuf {
        self.path.with_extension(WARM)
    }

    /// Removes the folders synchronously. For the guard, in which nothing else runs any more.
    pub(super) fn sweep(self) {
        with_deadline(ANSWER, move || {
            remove(&self.path);
            remove(&self.of_warmed());
            let _ = std::fs::remove_file(self.path.with_extension(LOCK));
        });
    }
}

/// The folder, removed when dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    path: Option<PathBuf>,
    injection: Option<Injection>,
}

impl Scratch {
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    /// The file in which the ranks find a notice.
    pub(super) fn notice_file(&self) -> Option<PathBuf> {
        Some(self.path.as_ref()?.join("notice.json"))
    }

    /// The folder of the control sockets; None if nothing is injected into the ranks.
    pub(super) fn control(&self) -> Option<PathBuf> {
        self.injection.as_ref().map(Injection::control)
    }

    pub(super) fn injection(&self) -> Option<&Injection> {
        self.injection.as_ref()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(path) = self.path.take() {
            with_deadline(ANSWER, move || remove(&path));
        }
    }
}

fn locked(path: &Path) -> Option<File> {
    let mut options = File::options();
    let file =
        options.write(true).create_new(true).mode(0o600).open(path.with_extension(LOCK)).ok()?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).ok().map(|()| file)
}

/// Removes the folders of dead launches. Earlier versions made no lock file beside the folder; without
/// that file nothing proves that a launch is dead.
fn remove_abandoned(temporary: &Path) {
    let own = rustix::process::geteuid().as_raw();
    let entries = temporary.read_dir().into_iter().flatten().flatten().take(MOST);
    let is_named_so = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let token = name.and_then(|name| name.strip_prefix(PREFIX)?.strip_suffix(".lock"));
        token.is_some_and(|token| {
            token.len() == 16 && token.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
    };
    for lock in entries.map(|entry| entry.path()).filter(is_named_so) {
        let Ok(file) = regular_file::open_to_lock(&lock) else { continue };
        if file.metadata().is_ok_and(|of| of.uid() == own)
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
            && !is_in_an_environment(&lock.with_extension(""))
        {
            remove(&lock.with_extension(""));
            remove(&lock.with_extension(WARM));
            let _ = std::fs::remove_file(&lock);
        }
    }
}

/// Whether a process has this path in its environment, like ranks that have outlived their launcher.
fn is_in_an_environment(path: &Path) -> bool {
    let path = path.as_os_str().as_encoded_bytes();
    let processes = Path::new("/proc").read_dir().into_iter().flatten().flatten();
    processes.map(|entry| entry.path().join("environ")).any(|environ| {
        std::fs::read(environ).is_ok_and(|environ| memchr::memmem::find(&environ, path).is_some())
    })
}

fn remove(path: &Path) {
    // Usually the folder was never created or is removed already.
    let _ = std::fs::remove_dir_all(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The path of these files is how a stack tells them from the user's own code.
    #[test]
    fn injected_files_are_no_user_code() {
        let temporary = tempfile::tempdir().expect("a folder");
        let scratch = temporary.path().join(ScratchName::new().path.file_name().expect("a name"));
        std::fs::create_dir(&scratch).expect("made");
        let injection = Injection::write(&scratch).expect("written");
        let (_, folder) = injection.variable();
        let path = PathBuf::from(folder).join("python/helpers.py");
        assert!(path.exists(), "{path:?}");
        let path = path.display().to_string();
        let frame = diagnose::Frame { path, line: 1, function: String::new() };
        assert!(!frame.is_own(), "{frame}");
    }

    #[test]
    fn only_folders_of_dead_launches_are_removed() {
        let temporary = tempfile::tempdir().expect("a folder");
        let at = |name: &str| temporary.path().join(name);
        let folder = |token: &str| {
            let path = at(&format!("{PREFIX}{token}"));
            for path in [path.clone(), path.with_extension(WARM)] {
                std::fs::create_dir(&path).expect("made");
                std::fs::write(path.join("file"), "x").expect("written");
            }
            path
        };
        let dead = folder("00000000000000aa");
        drop(locked(&dead).expect("a lock"));
        let lives = folder("00000000000000bb");
        let lock = locked(&lives).expect("a lock");
        let earlier_version = folder("00000000000000cc");
        let used = folder("00000000000000dd");
        drop(locked(&used).expect("a lock"));
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .env("PYTHONPATH", used.join("python"))
            .spawn()
            .expect("started");
        // The kernel lets the parent go on before the environment of the new program is in its place.
        let environ = format!("/proc/{}/environ", child.id());
        harness::wait_until("the environment", || {
            let read = std::fs::read_to_string(&environ).ok()?;
            read.contains(&*used.to_string_lossy()).then_some(())
        });
        let other = at("ranklaunch-1000.lock");
        std::fs::write(&other, "").expect("written");
        std::fs::create_dir(other.with_extension("")).expect("made");

        remove_abandoned(temporary.path());
        let there = |path: &Path| {
            [path.exists(), path.with_extension(WARM).exists(), path.with_extension(LOCK).exists()]
        };
        child.kill().expect("killed");
        child.wait().expect("waited for");
        assert_eq!(there(&dead), [false; 3]);
        assert_eq!(there(&lives), [true; 3]);
        assert_eq!(there(&earlier_version), [true, true, false]);
        assert_eq!(there(&used), [true; 3]);
        assert!(other.exists() && other.with_extension("").exists());

        drop(lock);
        remove_abandoned(temporary.path());
        assert_eq!((there(&lives), there(&used)), ([false; 3], [false; 3]));
    }
}
