//! Other states of the node that can make a job fail: the folders in which it writes, the clock, NUMA calls, a GPU
//! virtualiser, leftovers in /dev/shm, a PID 1 that does not forward SIGTERM, and the libcuda that a rank will load.
//!
//! Takes the [`Host`]; gives parts of [`HostFacts`](super::HostFacts). Creates no folder, loads and deletes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Access, access, stat, statvfs};
use rustix::io::Errno;

use super::{ClockState, Compat, Folder, Hami, Leftover, NonForwardingInit};
use linux::host::Host;
use linux::procfs::is_shell;
use linux::sys;
use text::lang::{Text, cause};
use text::order::Ordered;
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
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Some(true),
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

const SHM: &str = "/dev/shm";

/// Name prefixes of the files of NCCL, torch (`torch_<pid>_<n>`) and sem_open(3).
const NAMES: &[&str] = &["nccl-", "torch_", "sem."];

/// Minimum age of a leftover. A younger file may be in transfer between two processes and mapped by neither.
const SETTLED: Duration = Duration::from_secs(60);

/// The files in /dev/shm that no process uses. If several containers share /dev/shm (`--ipc host`), processes of the
/// others are not visible, only their files. So a file is left out if its owner has a process that we may not inspect,
/// unless that process has no shared memory at all.
pub(super) fn leftovers(host: &Host) -> Vec<Leftover> {
    host.answer("leftovers", || unused_files(host)).unwrap_or_default()
}

fn unused_files(host: &Host) -> Vec<Leftover> {
    let mut found = Vec::new();
    for entry in fs::read_dir(host.path(SHM)).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Ok(file) = entry.metadata() else { continue };
        let is_named = NAMES.iter().any(|start| name.starts_with(start));
        let age = file.modified().ok().and_then(|at| at.elapsed().ok());
        if is_named && file.is_file() && age.is_some_and(|age| age >= SETTLED) {
            found.push(Leftover { name, bytes: file.len(), uid: file.uid() });
        }
    }
    if found.is_empty() {
        return found;
    }
    let (used, hidden) = in_use(host);
    found.retain(|file| !used.contains(&file.name) && !hidden.contains(&file.uid));
    found.order_by(|one, other| one.name.cmp(&other.name));
    found
}

/// Names below /dev/shm that processes map or have open, and users that have a process that we may not inspect.
fn in_use(host: &Host) -> (BTreeSet<String>, BTreeSet<u32>) {
    let (mut used, mut hidden) = (BTreeSet::new(), BTreeSet::new());
    let prefix = format!("{SHM}/");
    for pid in host.pids() {
        let folder = host.path(format!("/proc/{pid}"));
        let Ok(owner) = fs::metadata(&folder) else { continue };
        let (maps, files) = match (fs::read(folder.join("maps")), fs::read_dir(folder.join("fd"))) {
            (Ok(maps), Ok(files)) => (maps, files),
            (Err(error), _) | (_, Err(error)) => {
                // A process that has ended has neither file; another may deny access. PID 1 of a sandbox often denies
                // it too, but creates no such files.
                let closed = error.kind() == ErrorKind::PermissionDenied && pid != 1;
                if closed && has_shared_pages(host, pid) {
                    hidden.insert(owner.uid());
                }
                continue;
            }
        };
        let maps = String::from_utf8_lossy(&maps);
        // address perms offset dev inode path (proc_pid_maps(5))
        let mapped = maps.lines().filter_map(|line| Some(line.get(line.find('/')?..)?.to_owned()));
        let open = files.flatten().filter_map(|file| {
            Some(fs::read_link(file.path()).ok()?.to_string_lossy().into_owned())
        });
        used.extend(
            mapped.chain(open).filter_map(|path| Some(path.strip_prefix(&prefix)?.to_owned())),
        );
    }
    (used, hidden)
}

/// Whether a process has pages of shared memory, which every user may read (proc_pid_status(5)). True before Linux 4.5,
/// which has no such line.
fn has_shared_pages(host: &Host, pid: i32) -> bool {
    let status = fs::read_to_string(host.path(format!("/proc/{pid}/status"))).unwrap_or_default();
    let pages = status.lines().find_map(|line| line.strip_prefix("RssShmem:"));
    pages.is_none_or(|pages| !pages.trim().starts_with("0 "))
}

/// Bit of SIGTERM in the masks of proc_pid_status(5).
const TERM: u64 = 1 << 14;

/// The shell that runs as PID 1. None if PID 1 is anything else, handles SIGTERM itself (`trap`), is not our ancestor
/// (`docker exec`), or is an interactive shell.
pub(super) fn non_forwarding_init(host: &Host) -> Option<NonForwardingInit> {
    // The ancestors of a process that entered from outside (`docker exec`) end at 0, because proc_pid_stat(5) shows a
    // parent in another namespace as 0.
    if host.ancestors().last()?.pid != 1 {
        return None;
    }
    let cmdline = host.read("/proc/1/cmdline").ok()?;
    let (program, arguments) = cmdline.split_once('\0')?;
    let name = Path::new(program).file_name()?.to_str()?;
    let name = name.strip_prefix('-').unwrap_or(name);
    if !is_shell(name.as_bytes()) {
        return None;
    }
    let mut flags = String::new();
    let script = arguments.split_terminator('\0').find(|word| {
        let is_flag = word.starts_with('-');
        if is_flag {
            flags.push(' ');
            flags.push_str(word);
        }
        !is_flag
    });
    // `bash` and `bash -l` are interactive. The text of a script is not shown, since it may hold
    // secrets.
    let script = if flags.ends_with('c') { script.map(|_| "…") } else { script }?;
    let status = host.read("/proc/1/status").ok()?;
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
    let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
    (caught & TERM == 0).then(|| NonForwardingInit {
        name: name.to_owned(),
        command: format!("{program}{flags} {script}"),
    })
}

const LIBRARY: &str = "libcuda.so.1";

/// The libcuda of CUDA's forward compatibility, if the loader finds it before the driver's own libcuda: in the first
/// folder of LD_LIBRARY_PATH that has a libcuda, or in a folder of /etc/ld.so.conf.d. The package installs it below
/// `/usr/local/cuda-X.Y/compat`.
pub(super) fn compat(host: &Host) -> Option<Compat> {
    let path = host.variable("LD_LIBRARY_PATH").unwrap_or_default();
    let first = path
        .split(':')
        .filter(|folder| folder.starts_with('/'))
        .find(|folder| host.exists(Path::new(folder).join(LIBRARY)));
    if let Some(folder) = first {
        return found(host, Path::new(folder), "LD_LIBRARY_PATH".to_owned());
    }
    const FOLDER: &str = "/etc/ld.so.conf.d";
    host.list(FOLDER).into_iter().filter(|file| file.contains("compat")).find_map(|file| {
        let file = format!("{FOLDER}/{file}");
        let text = host.read(&file).ok()?;
        text.lines().map(str::trim).filter(|line| line.starts_with('/')).find_map(|folder| {
            let folder = Path::new(folder);
            host.exists(folder.join(LIBRARY)).then(|| found(host, folder, file.clone()))?
        })
    })
}

/// None if the folder does not belong to a compat package.
fn found(host: &Host, folder: &Path, by: String) -> Option<Compat> {
    let real: PathBuf = host.real_path(folder.join(LIBRARY))?;
    let of_package = |path: &Path| path.parent().is_some_and(|folder| folder.ends_with("compat"));
    let in_package = folder.ends_with("compat") || of_package(&real);
    let name = real.file_name()?.to_string_lossy().into_owned();
    let driver = name.strip_prefix("libcuda.so.").filter(|version| version.contains('.'));
    in_package.then(|| Compat { folder: folder.to_owned(), by, driver: driver.map(str::to_owned) })
}

/// Paths at which NCCL looks for the module that lets an HCA read GPU memory (nccl src/transport/net_ib/gdr.cc),
/// including Mellanox's older module.
const MODULES: &[&str] = &[
    "/sys/module/nvidia_peermem",
    "/sys/module/nv_peer_mem",
    "/sys/kernel/mm/memory_peers/nv_mem",
    "/sys/kernel/mm/memory_peers/nv_mem_nc",
];

/// Minimum kernel version of dma-buf, which also needs the open kernel modules.
const DMA_BUF: (u32, u32) = (5, 12);

/// The way by which HCAs read GPU memory: `nvidia_peermem`, or `dma-buf` if the driver needs no module.
pub(super) fn gpudirect(host: &Host) -> Option<String> {
    if let Some(module) = MODULES.iter().find(|module| host.exists(module)) {
        return Some(module.rsplit('/').next()?.to_owned());
    }
    let driver = host.read("/proc/driver/nvidia/version").ok()?;
    let release = host.read("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    let kernel = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    (driver.contains("Open Kernel Module") && kernel >= DMA_BUF).then(|| "dma-buf".to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn missing_folder_is_judged_by_its_parent() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("a/b/c");
        let found = super::folder(&Host::live(), &folder).expect("a file system");
        assert_eq!((found.path.as_path(), &found.problem), (folder.as_path(), &None));
        assert!(found.total >= found.free && found.total > 0, "{found:?}");

        let file = root.path().join("file");
        fs::write(&file, "").expect("a file");
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
            fs::create_dir(root.path().join("etc")).expect("a folder");
            fs::write(root.path().join("etc/ld.so.preload"), preload).expect("a file");
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

    fn seen(cmdline: &str, caught: &str, parent_of_guard: i32) -> Option<NonForwardingInit> {
        let root = tempfile::tempdir().expect("a folder");
        let stat = |pid: i32, parent: i32| {
            format!(
                "{pid} (x) S {parent} {pid} {pid} 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 0 0 \
                 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
            )
        };
        for (file, text) in [
            ("proc/self/stat", stat(8, 7)),
            ("proc/7/stat", stat(7, parent_of_guard)),
            ("proc/1/stat", stat(1, 0)),
            ("proc/1/cmdline", cmdline.replace(' ', "\0") + "\0"),
            ("proc/1/status", format!("Name:\tx\nSigIgn:\t0000000000000004\nSigCgt:\t{caught}\n")),
        ] {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        non_forwarding_init(&Host::replayed(root.path(), BTreeMap::new()))
    }

    #[test]
    fn only_a_script_shell_without_trap_is_deaf() {
        const NONE: &str = "0000000000010002";
        const TRAP: &str = "0000000000014002";
        let rows: [(&str, &str, i32, Option<&str>); 11] = [
            ("/bin/bash -c TOKEN=x;ranklaunch", NONE, 1, Some("/bin/bash -c …")),
            ("sh /start.sh arg", NONE, 1, Some("sh /start.sh")),
            ("/bin/bash -e -xc ranklaunch", NONE, 1, Some("/bin/bash -e -xc …")),
            ("-bash -c x", NONE, 1, Some("-bash -c …")),
            // The shell catches the signal, perhaps to forward it.
            ("/bin/bash -c trap", TRAP, 1, None),
            // The shells are interactive.
            ("bash", NONE, 1, None),
            ("-bash", NONE, 1, None),
            ("bash -l", NONE, 1, None),
            ("/usr/bin/tini -- bash -c x", NONE, 1, None),
            ("/pause", NONE, 1, None),
            // The process entered by docker exec.
            ("/bin/bash -c sleep", NONE, 0, None),
        ];
        for (cmdline, caught, above, expected) in rows {
            let found = seen(cmdline, caught, above);
            assert_eq!(found.map(|shell| shell.command).as_deref(), expected, "{cmdline}");
        }
    }

    fn node(files: &[(&str, &str)], library_path: &str) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().expect("a folder");
        for (file, text) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            match text.strip_prefix("-> ") {
                Some(target) => std::os::unix::fs::symlink(target, path).expect("a link"),
                None => fs::write(path, text).expect("a file"),
            }
        }
        let environment: BTreeMap<_, _> = [("LD_LIBRARY_PATH".into(), library_path.into())].into();
        let host = Host::replayed(root.path(), environment);
        (root, host)
    }

    #[test]
    fn the_first_libcuda_of_the_loaders_path_counts() {
        let package: &[(&str, &str)] = &[
            ("usr/local/cuda-12.6/compat/libcuda.so.560.35.03", ""),
            ("usr/local/cuda-12.6/compat/libcuda.so.1", "-> libcuda.so.560.35.03"),
        ];
        let driver: &[(&str, &str)] = &[
            ("usr/lib64/libcuda.so.570.86.15", ""),
            ("usr/lib64/libcuda.so.1", "-> libcuda.so.570.86.15"),
        ];
        let both = [package, driver].concat();
        let compat_first = "/usr/local/cuda-12.6/compat:/usr/lib64";
        let (_root, host) = node(&both, compat_first);
        let found = compat(&host).expect("it comes first");
        assert_eq!(
            (found.by.as_str(), found.driver.as_deref()),
            ("LD_LIBRARY_PATH", Some("560.35.03"))
        );
        for (files, path) in [
            (both.as_slice(), "/usr/lib64:/usr/local/cuda-12.6/compat"),
            (driver, compat_first),
            (package, ""),
        ] {
            let (_root, host) = node(files, path);
            assert_eq!(compat(&host), None, "{path}");
        }
        let conf =
            [package, &[("etc/ld.so.conf.d/00-compat.conf", "/usr/local/cuda-12.6/compat\n")]]
                .concat();
        let (_root, host) = node(&conf, "");
        assert_eq!(
            compat(&host).map(|found| found.by).as_deref(),
            Some("/etc/ld.so.conf.d/00-compat.conf")
        );
    }

    type Files = &'static [(&'static str, &'static str)];

    #[test]
    fn peer_memory_is_a_module_or_dma_buf() {
        const OPEN: &str =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n";
        const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15\n";
        let table: &[(Files, Option<&str>)] = &[
            (&[("sys/module/nvidia_peermem/version", "1")], Some("nvidia_peermem")),
            (
                &[
                    ("proc/driver/nvidia/version", OPEN),
                    ("proc/sys/kernel/osrelease", "6.8.0-45-generic\n"),
                ],
                Some("dma-buf"),
            ),
            (
                &[("proc/driver/nvidia/version", OPEN), ("proc/sys/kernel/osrelease", "5.4.0-1\n")],
                None,
            ),
            (
                &[("proc/driver/nvidia/version", CLOSED), ("proc/sys/kernel/osrelease", "6.8.0\n")],
                None,
            ),
            (&[], None),
        ];
        for (files, expected) in table {
            let (_root, host) = node(files, "");
            assert_eq!(gpudirect(&host).as_deref(), *expected, "{files:?}");
        }
    }
}
