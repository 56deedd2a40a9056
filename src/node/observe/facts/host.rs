//! Other facts of a node: folders, clock, leftovers, virtualiser, script, late sources, PID 1.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use text::lang::Text;

/// Further facts that can make a job fail on this node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The log folder, the first of the candidates.
    pub logs: Option<Folder>,
    /// Other folders in which a job writes: TMPDIR and the caches of its libraries.
    #[serde(default)]
    pub folders: Vec<UsedFolder>,
    /// Files in /dev/shm that no running process uses.
    #[serde(default)]
    pub leftovers: Vec<Leftover>,
    /// A libcuda of CUDA's forward compatibility that is found before the driver's.
    #[serde(default)]
    pub compat: Option<Compat>,
    /// The way by which NCCL can let an HCA read GPU memory; None if there is no way.
    #[serde(default)]
    pub gpudirect: Option<String>,
    /// Whether a seccomp profile forbids the NUMA calls; None if the kernel has no such calls.
    #[serde(default)]
    pub numa_blocked: Option<bool>,
    pub clock: Option<ClockState>,
    /// Signs of a GPU virtualiser; None if there are no signs.
    pub hami: Option<Hami>,
    /// Sources that did not answer in time.
    pub late: Vec<TimedOut>,
    /// Variables of NCCL that name a missing file, or a file in a missing folder.
    #[serde(default)]
    pub absent: Vec<String>,
    /// The file that the ranks run, if the program names one.
    #[serde(default)]
    pub script: Option<Script>,
    /// Configuration files that the engine's arguments may name.
    #[serde(default)]
    pub engine_files: Vec<NamedFile>,
    /// PID 1, if it does not forward SIGTERM to us.
    #[serde(default, rename = "deaf_shell")]
    pub non_forwarding_init: Option<NonForwardingInit>,
}

/// The script as its reader would find it, starting from the ranks' working folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// The path as given.
    pub path: PathBuf,
    /// The folder against which a relative path is resolved.
    pub from: PathBuf,
    /// Whether there is a file or a folder; true if access is denied.
    pub exists: bool,
    /// The first 16 hex digits of the content's BLAKE2s; None for a folder or more than 16 MiB.
    pub digest: Option<String>,
    /// The fault that the script's reader finds in its first line.
    #[serde(default)]
    pub fault: Option<FirstLineFault>,
}

/// A fault in the first line, because of which a file does not start, or not as its author intends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstLineFault {
    /// The kernel takes the carriage return before the line feed as a part of this line (`#!…`).
    KernelReads(String),
    /// This shell takes the carriage return as a part of each line.
    ShellReads(String),
    /// The interpreter does not exist.
    NoInterpreter(PathBuf),
}

/// A file that an argument names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFile {
    /// The path as given.
    pub path: PathBuf,
    /// The folder against which a relative path is resolved.
    pub from: PathBuf,
    /// Whether the file exists; true if access is denied.
    pub exists: bool,
}

/// A shell that runs a script as PID 1 without a handler for SIGTERM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NonForwardingInit {
    /// `bash`
    pub name: String,
    /// The command line of the shell, shortened, with secrets masked.
    pub command: String,
}

/// The file system below a folder that may not exist yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folder {
    pub path: PathBuf,
    /// The file system (st_dev); None if it is not known.
    #[serde(default)]
    pub device: Option<u64>,
    /// Bytes (statvfs f_blocks and f_bavail × f_frsize).
    pub total: u64,
    pub free: u64,
    /// Inodes; total is 0 on file systems that create them as needed.
    pub inodes: u64,
    pub inodes_free: u64,
    /// The reason why nothing can be written there.
    pub problem: Option<Text>,
}

/// State of the kernel's clock from adjtimex(2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockState {
    /// Whether the kernel's clock is unsynchronised (STA_UNSYNC).
    pub unsynchronised: bool,
    /// The largest error that the time service estimates.
    pub error_micros: u64,
}

/// Signs of HAMi, which hooks CUDA and NVML by a preloaded library and limits the memory and cores of each GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hami {
    /// The source that preloads HAMi's library: `/etc/ld.so.preload` or `LD_PRELOAD`.
    pub preloaded_by: Option<String>,
    /// HAMi's variables that are set, by name.
    pub variables: BTreeMap<String, String>,
    /// Whether HAMi is switched off by CUDA_DISABLE_CONTROL=true.
    pub disabled: bool,
}

/// A source of facts that did not answer in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedOut {
    /// Name of the source.
    pub source: Text,
    /// The path at which the source hangs, if known.
    #[serde(default)]
    pub path: Option<PathBuf>,
    pub after_millis: u64,
}

/// A folder in which a library writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedFolder {
    /// The variable that sets the folder, or could set it (`TMPDIR`, `HF_HOME`).
    pub by: String,
    pub folder: Folder,
}

/// A file of /dev/shm that a process left behind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    pub name: String,
    pub bytes: u64,
    /// User id of the owner.
    pub uid: u32,
}

/// The libcuda of a `cuda-compat` package.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compat {
    pub folder: PathBuf,
    /// The source that puts the folder first in the search: `LD_LIBRARY_PATH`, or a file of /etc/ld.so.conf.d.
    pub by: String,
    /// The driver version with which it was built, `560.35.03`.
    pub driver: Option<String>,
}
