//! Reads the folders in which a job writes, the clock, NUMA calls, and the signs of a GPU virtualiser.
//!
//! Takes the [`Host`] and a folder; gives parts of [`HostFacts`](super::HostFacts). Creates no
//! folder and writes nothing.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, access, stat, statvfs};
use rustix::io::Errno;

use super::{ClockState, Folder, Hami};
use linux::host::Host;
use linux::sys;
use text::lang::{Text, cause};
use text::text;

/// The file system on which `folder` is or will be created. Hangs if its mount is dead.
pub(super) fn folder(host: &Host, folder: &Path) -> Option<Folder> {
    let path = host.working_directory()?.join(folder);
    host.answer(&format!("folder{}", path.display()), || look(host, path))?
}

fn look(host: &Host, path: PathBuf) -> Option<Folder> {
    let mut found = Folder { path: path.clone(), ..Folder::default() };
    // The folder itself is created at launch, so the nearest existing parent is judged.
    let exists = |part: &&Path| {
        host.at(part);
        part.exists()
    };
    let existing = path.ancestors().find(exists)?;
    match statvfs(existing) {
        Ok(stat) => {
            found.total = stat.f_blocks.saturating_mul(stat.f_frsize);
            found.free = stat.f_bavail.saturating_mul(stat.f_frsize);
            found.inodes = stat.f_files;
            found.inodes_free = stat.f_favail;
        }
        Err(error) => found.problem = Some(refused(existing, error)),
    }
    found.device = stat(existing).ok().map(|stat| stat.st_dev);
    if let Err(error) = access(existing, Access::WRITE_OK | Access::EXEC_OK) {
        found.problem = Some(refused(existing, error));
    } else if !existing.is_dir() {
        found.problem = Some(text!("not a folder", "不是目录").about(existing.display()));
    }
    Some(found)
}

fn refused(path: &Path, error: Errno) -> Text {
    cause(&error.into()).about(path.display())
}

/// Variables for folders in which libraries write, with the defaults; `~` is HOME. The defaults of later variables are
/// below the folders of earlier variables if these are set.
const CACHES: &[(&str, &str)] = &[
    ("TMPDIR", "/tmp"),
    ("XDG_CACHE_HOME", "~/.cache"),
    ("HF_HOME", ""),
    ("HF_HUB_CACHE", ""),
    ("TORCH_HOME", ""),
    ("TORCH_EXTENSIONS_DIR", ""),
    ("TORCHINDUCTOR_CACHE_DIR", ""),
    ("TRITON_CACHE_DIR", "~/.triton"),
    ("CUDA_CACHE_PATH", ""),
];

/// The folders in which torch, triton and similar libraries write, each with its variable.
pub(super) fn cache_folders(host: &Host) -> Vec<(&'static str, PathBuf)> {
    let mut found: Vec<(&'static str, PathBuf)> = Vec::new();
    for (variable, default) in CACHES {
        let set = host.variable(variable).filter(|folder| folder.starts_with('/'));
        let folder = set.or_else(|| match default.strip_prefix('~') {
            Some(below) => Some(format!("{}{below}", host.variable("HOME")?)),
            None => (!default.is_empty()).then(|| (*default).to_owned()),
        });
        let Some(folder) = folder.map(PathBuf::from) else { continue };
        if folder.is_absolute() && !found.iter().any(|(_, known)| *known == folder) {
            found.push((variable, folder));
        }
    }
    found
}

/// The state of the clock. None if the kernel does not answer (a strict seccomp profile) or the node is replayed.
pub(super) fn clock(host: &Host) -> Option<ClockState> {
    host.answer("clock", || {
        let (unsynchronised, error_micros) = sys::Clocks::state().ok()?;
        Some(ClockState { unsynchronised, error_micros })
    })?
}

/// Whether NUMA calls are forbidden; None if the kernel does not have them.
pub(super) fn numa_blocked(host: &Host) -> Option<bool> {
    host.answer("numa", || match sys::numa_calls() {
        Ok(()) => Some(false),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Some(true),
        Err(_) => None,
    })?
}

/// Variables of HAMi's limits (HAMi-core src/multiprocess).
const HAMI: &[&str] = &[
    "CUDA_DEVICE_MEMORY_LIMIT",
    "CUDA_DEVICE_SM_LIMIT",
    "CUDA_DEVICE_MEMORY_SHARED_CACHE",
    "CUDA_OVERSUBSCRIBE",
];

/// The signs of HAMi in this container.
pub(super) fn hami(host: &Host) -> Option<Hami> {
    const PRELOAD: &str = "/etc/ld.so.preload";
    let names = |text: &str| text.contains("libvgpu.so");
    let preloaded_by = if host.read(PRELOAD).is_ok_and(|text| names(&text)) {
        Some(PRELOAD.to_owned())
    } else {
        host.variable("LD_PRELOAD").filter(|text| names(text)).map(|_| "LD_PRELOAD".to_owned())
    };
    let is_hami = |name: &str| {
        HAMI.contains(&name)
            || name.strip_prefix("CUDA_DEVICE_MEMORY_LIMIT_").is_some_and(|index| {
                !index.is_empty() && index.bytes().all(|byte| byte.is_ascii_digit())
            })
    };
    let variables: std::collections::BTreeMap<String, String> =
        super::environment(host).into_iter().filter(|(name, _)| is_hami(name)).collect();
    let disabled = host
        .variable("CUDA_DISABLE_CONTROL")
        .is_some_and(|value| value.trim().eq_ignore_ascii_case("true"));
    (preloaded_by.is_some() || !variables.is_empty()).then_some(Hami {
        preloaded_by,
        variables,
        disabled,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_folder_is_judged_by_its_parent() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("a/b/c");
        let found = super::folder(&Host::live(), &folder).expect("a file system");
        assert_eq!((found.path.as_path(), &found.problem), (folder.as_path(), &None));
        assert!(found.total >= found.free && found.total > 0, "{found:?}");

        let file = root.path().join("file");
        std::fs::write(&file, "").expect("a file");
        let found = super::folder(&Host::live(), &file.join("logs")).expect("a file system");
        let why = found.problem.expect("a file is no folder");
        assert!(why.en.contains("file: ") && why.zh.contains("file："), "{why:?}");
        let full = refused(Path::new("/a"), Errno::ROFS);
        assert_eq!(full.en, "/a: Read-only file system (os error 30)");
        assert_eq!(full.zh, "/a：文件系统为只读（os error 30）");
    }

    #[test]
    fn hami_is_recognised_by_library_or_variables() {
        let marks = |preload: &str, variables: &[(&str, &str)]| {
            let root = tempfile::tempdir().expect("a folder");
            std::fs::create_dir(root.path().join("etc")).expect("a folder");
            std::fs::write(root.path().join("etc/ld.so.preload"), preload).expect("a file");
            let environment =
                variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
            hami(&Host::replayed(root.path(), environment))
        };
        assert_eq!(marks("", &[("CUDA_DEVICE_ORDER", "PCI_BUS_ID")]), None);
        assert_eq!(marks("/lib/libother.so\n", &[]), None);
        let found = marks("/usr/local/vgpu/libvgpu.so\n", &[("CUDA_DEVICE_MEMORY_LIMIT_0", "64k")])
            .expect("marks");
        assert_eq!(found.preloaded_by.as_deref(), Some("/etc/ld.so.preload"));
        assert_eq!(
            found.variables.get("CUDA_DEVICE_MEMORY_LIMIT_0").map(String::as_str),
            Some("64k")
        );
        let off = marks("", &[("CUDA_DEVICE_SM_LIMIT", "50"), ("CUDA_DISABLE_CONTROL", "true")]);
        assert!(off.is_some_and(|found| found.disabled && found.preloaded_by.is_none()));
    }
}
