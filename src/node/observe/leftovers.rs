//! Finds shared memory files that no process uses any more.
//!
//! Takes the [`Host`]; gives the files of NCCL, torch and semaphores in /dev/shm that no running process maps or has
//! open. Deletes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::Leftover;
use linux::host::Host;

const SHM: &str = "/dev/shm";

/// Name prefixes of the files of NCCL, torch (`torch_<pid>_<n>`) and sem_open(3).
const NAMES: &[&str] = &["nccl-", "torch_", "sem."];

/// Minimum age of a leftover. A younger file may be in transfer between two processes and mapped by neither.
const SETTLED: Duration = Duration::from_secs(60);

/// The files in /dev/shm that no process uses. If several containers share /dev/shm (`--ipc host`), processes of the
/// others are not visible, only their files. So a file is left out if its owner has a process that we may not inspect,
/// unless that process has no shared memory at all.
pub(super) fn leftovers(host: &Host) -> Vec<Leftover> {
    host.answer("leftovers", || look(host)).unwrap_or_default()
}

fn look(host: &Host) -> Vec<Leftover> {
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
    found.sort_by(|one, other| one.name.cmp(&other.name));
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
