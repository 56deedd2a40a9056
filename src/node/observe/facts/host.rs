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
    /// Files in /dev/shm that no living process uses.
    #[serde(default)]
    pub leftovers: Vec<Leftover>,
    /// A libcuda of CUDA's forward compatibility that is found before the driver's.
    #[serde(default)]
    pub compat: Option<Compat>,
    /// How NCCL can let an HCA read GPU memory; None if there is no way.
    #[serde(default)]
    pub gpudirect: Option<String>,
    /// A seccomp profile forbids the NUMA calls; None if the kernel has none.
    #[serde(default)]
    pub numa_blocked: Option<bool>,
    pub clock: Option<ClockState>,
    /// Marks of a GPU virtualiser, None without any.
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

/// The script as its reader would find it from the ranks' working folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Script {
    /// As given.
    pub path: PathBuf,
    /// The folder for a relative path.
    pub from: PathBuf,
    /// Whether there is a file or a folder; true if access is denied.
    pub exists: bool,
    /// The first 16 hex digits of the content's BLAKE2s; None for a folder or more than 16 MiB.
    pub digest: Option<String>,
    /// What its reader makes of its first line.
    #[serde(default)]
    pub fault: Option<FirstLineFault>,
}

/// A first line with which a file does not start, or not as its author means.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FirstLineFault {
    /// The kernel takes the carriage return before the line feed for a part of this line (`#!…`).
    KernelReads(String),
    /// This shell takes it for a part of each line.
    ShellReads(String),
    /// The interpreter does not exist.
    NoInterpreter(PathBuf),
}

/// A file that is named in an argument.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFile {
    /// As given.
    pub path: PathBuf,
    /// The folder for a relative path.
    pub from: PathBuf,
    /// Whether it exists; true if access is denied.
    pub exists: bool,
}

/// A shell that runs a script as PID 1 without a handler for SIGTERM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NonForwardingInit {
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
    /// Inodes; total is 0 on file systems that create them as needed.
    pub inodes: u64,
    pub inodes_free: u64,
    /// Why nothing can be written there.
    pub problem: Option<Text>,
}

/// adjtimex(2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockState {
    /// The kernel's clock is not synchronised (STA_UNSYNC).
    pub unsynchronised: bool,
    /// The largest error that the time service estimates.
    pub error_micros: u64,
}

/// HAMi hooks CUDA and NVML by a preloaded library and limits the memory and cores of each GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hami {
    /// What preloads its library: `/etc/ld.so.preload` or `LD_PRELOAD`.
    pub preloaded_by: Option<String>,
    /// Its variables that are set, by name.
    pub variables: BTreeMap<String, String>,
    /// Switched off by CUDA_DISABLE_CONTROL=true.
    pub disabled: bool,
}

/// A source of facts that did not answer in time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimedOut {
    /// The source.
    pub source: Text,
    /// The path at which it hangs, if known.
    #[serde(default)]
    pub path: Option<PathBuf>,
    pub after_millis: u64,
}

/// A folder in which a library writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedFolder {
    /// The variable that sets it, or could (`TMPDIR`, `HF_HOME`).
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
    /// What puts it first in the search: `LD_LIBRARY_PATH`, or a file of /etc/ld.so.conf.d.
    pub by: String,
    /// The driver version that it was built with, `560.35.03`.
    pub driver: Option<String>,
}
