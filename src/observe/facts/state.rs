//! What else is known of a node: its folders, its clock, and who is in between.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::lang::Text;

/// What else decides whether a job lives on this node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeState {
    /// The folder in which the run's files will be made, the first of the candidates.
    pub logs: Option<Folder>,
    /// Other folders in which a job writes: TMPDIR and the caches of its libraries.
    #[serde(default)]
    pub folders: Vec<UsedFolder>,
    /// Files in /dev/shm that no living process has.
    #[serde(default)]
    pub leftovers: Vec<Leftover>,
    /// A libcuda of CUDA's forward compatibility that is found before the driver's.
    #[serde(default)]
    pub compat: Option<Compat>,
    /// How NCCL can let an HCA read GPU memory; None where nothing for it is there.
    #[serde(default)]
    pub gpudirect: Option<String>,
    /// A seccomp profile forbids the NUMA calls; None where the kernel has none.
    #[serde(default)]
    pub numa_blocked: Option<bool>,
    pub clock: Option<Clock>,
    /// Marks of a GPU virtualiser, None without any.
    pub hami: Option<Hami>,
    /// Sources that did not answer in time.
    pub late: Vec<Late>,
    /// Variables of NCCL that name a file, or a folder for one, that is not there.
    #[serde(default)]
    pub absent: Vec<String>,
    /// The script that every rank is to run, where the program is one.
    #[serde(default)]
    pub script: Option<Script>,
    /// Configuration files that the engine's arguments may name.
    #[serde(default)]
    pub engine_files: Vec<NamedFile>,
    /// PID 1, where it keeps SIGTERM from us.
    #[serde(default)]
    pub deaf_shell: Option<DeafShell>,
}

/// The script as python would find it from the folder in which the ranks start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// As given.
    pub path: PathBuf,
    /// The folder from which a relative path counts.
    pub from: PathBuf,
    /// Whether there is a file or a folder; what may not be looked at counts as there.
    pub exists: bool,
    /// The first 16 hex digits of the content's BLAKE2s; None for a folder or more than 16 MiB.
    pub digest: Option<String>,
}

/// A file that is named in an argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFile {
    /// As given.
    pub path: PathBuf,
    /// The folder from which a relative path counts.
    pub from: PathBuf,
    /// Whether something is there; what may not be looked at counts as there.
    pub exists: bool,
}

/// A shell that runs a script as PID 1 and has no handler for SIGTERM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeafShell {
    /// `bash`
    pub name: String,
    /// Its command line, shortened, with secrets masked.
    pub command: String,
}

/// The file system below a folder that may not exist yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folder {
    pub path: PathBuf,
    /// Bytes (statvfs f_blocks and f_bavail × f_frsize).
    pub total: u64,
    pub free: u64,
    /// Inodes; total is 0 on file systems that make them as needed.
    pub inodes: u64,
    pub inodes_free: u64,
    /// Why nothing can be written there.
    pub problem: Option<String>,
}

/// adjtimex(2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// The kernel does not know that anybody keeps its clock (STA_UNSYNC).
    pub unsynchronised: bool,
    /// The greatest error that the clock's keeper admits.
    pub error_micros: u64,
}

/// HAMi hooks CUDA and NVML by a preloaded library and limits what each GPU gives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hami {
    /// Where its library is preloaded: `/etc/ld.so.preload`, `LD_PRELOAD`.
    pub preloaded_by: Option<String>,
    /// Its variables that are set, by name.
    pub variables: BTreeMap<String, String>,
    /// Switched off by CUDA_DISABLE_CONTROL=true.
    pub disabled: bool,
}

/// A source of facts that was not waited for any longer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Late {
    /// What was asked.
    pub source: Text,
    /// Where it stood, as far as that is known.
    #[serde(default)]
    pub path: Option<PathBuf>,
    pub after_millis: u64,
}

/// A folder in which a library writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedFolder {
    /// The variable that names it, or would (`TMPDIR`, `HF_HOME`).
    pub by: String,
    pub folder: Folder,
}

/// A file of /dev/shm that a process left behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    pub name: String,
    pub bytes: u64,
    /// Owner.
    pub uid: u32,
}

/// The libcuda of a `cuda-compat` package.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compat {
    pub folder: PathBuf,
    /// What puts it first: `LD_LIBRARY_PATH`, or a file of /etc/ld.so.conf.d.
    pub by: String,
    /// The driver version that it was built with, `560.35.03`.
    pub driver: Option<String>,
}
