//! One process: its Python threads, and the kernel's state of every thread.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::elf::{Code, Symbols, candidates};
use super::kernel::{self, KernelState, Mapped};
use super::layout::{self, Version};
use super::memory::{ProcessMemory, Unread};
use super::python::{Frame, Interpreter, PythonStack, PythonThread, ThreadPlace, is_default};
use linux::procfs;
use text::order::{InOrder, Ordered};

/// Maximum number of threads of a process that are read; the others are counted.
const MOST_THREADS: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessStacks {
    pub pid: i32,
    /// Name of the first thread in the kernel.
    pub name: String,
    /// Command line, with secrets masked.
    #[serde(default)]
    pub command: String,
    /// Version of the interpreter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// The reason why there are no Python stacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<Unread>,
    /// The first thread of the process comes first, then the threads with Python stacks.
    pub threads: Vec<ThreadStack>,
    #[serde(skip_serializing_if = "is_default", default)]
    pub threads_left_out: usize,
}

impl ProcessStacks {
    /// A process about which nothing is known.
    pub(super) fn unread(pid: i32, why: Unread) -> ProcessStacks {
        ProcessStacks { pid, unread: Some(why), ..ProcessStacks::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStack {
    /// None if the interpreter's thread could not be matched with a thread of the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelState>,
    /// None for a thread that the interpreter does not know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonStack>,
}

impl ThreadStack {
    /// The frames of Python, the innermost first.
    pub fn frames(&self) -> &[Frame] {
        self.python.as_ref().map_or(&[], |python| python.frames.as_slice())
    }

    /// The innermost frame of the user's own code.
    pub fn own_frame(&self) -> Option<crate::Frame> {
        self.frames().iter().map(crate::Frame::from).find(crate::Frame::is_own)
    }
}

/// The stacks of a process, as far as they can be read until `until`. None if the process has ended.
pub(super) fn read(proc: &Path, pid: i32, until: Instant) -> Option<ProcessStacks> {
    let folder = proc.join(pid.to_string());
    let tids = tids(&folder)?;
    let memory = ProcessMemory::open(&folder, until);
    let maps = std::fs::read(folder.join("maps"))
        .map(|maps| String::from_utf8_lossy(&maps).into_owned())
        .map_err(|error| Unread::Unlisted { errno: error.raw_os_error().unwrap_or(0) });
    let code = maps.as_deref().map_or_else(|_| Code::new(""), Code::new);
    let found = match (&memory, &maps) {
        (Ok(memory), Ok(maps)) => find(&folder, maps, memory),
        (Err(unread), _) | (_, Err(unread)) => Err(unread.clone()),
    };
    let read = found.as_ref().map_err(Unread::clone);
    let (stacks, mut unread) = match read.and_then(|(interpreter, _)| interpreter.threads(&tids)) {
        Ok(stacks) => (stacks, None),
        Err(unread) => (Vec::new(), Some(unread)),
    };
    let python = found.as_ref().ok().map(|(_, version)| version.shown());
    let holds_gil = |place| found.as_ref().ok()?.0.holds_gil(place);
    let mapped = memory.as_ref().ok().map(|memory| Mapped { memory, code: &code });
    let state = |tid| kernel::state(&folder, tid, mapped);
    let (threads, threads_left_out) = join(&tids, stacks, holds_gil, state, pid);
    let first = threads.first().and_then(|first| first.kernel.as_ref());
    // A process that is ending has no memory before it is a zombie.
    if matches!(first.map(|kernel| kernel.state), None | Some('Z' | 'X')) {
        unread = Some(Unread::Gone);
    }
    let command = command(&folder).unwrap_or_default();
    let name = first.map_or_else(String::new, |kernel| kernel.name.clone());
    Some(ProcessStacks { pid, name, command, python, unread, threads, threads_left_out })
}

fn command(folder: &Path) -> Option<String> {
    /// Maximum bytes that are read; a command line may be some megabytes long.
    const LONGEST: u64 = 16 * 1024;
    let mut line = Vec::new();
    File::open(folder.join("cmdline")).ok()?.take(LONGEST).read_to_end(&mut line).ok()?;
    Some(procfs::shown(&procfs::split_nul(&line)))
}

fn tids(folder: &Path) -> Option<BTreeSet<i32>> {
    let entries = std::fs::read_dir(folder.join("task")).ok()?;
    Some(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Each thread of the kernel with its Python stack, if it has one.
fn join(
    tids: &BTreeSet<i32>,
    stacks: Vec<PythonThread>,
    holds_gil: impl Fn(ThreadPlace) -> Option<bool>,
    state: impl Fn(i32) -> Option<KernelState>,
    pid: i32,
) -> (Vec<ThreadStack>, usize) {
    let known: BTreeSet<i32> = stacks.iter().filter_map(|stack| stack.tid).in_set();
    let mut threads = Vec::new();
    for PythonThread { tid, place, stack } in stacks {
        let look = || (holds_gil(place), tid.and_then(&state));
        let (holds_gil, kernel) = settled((stack.holds_gil, tid.and_then(&state)), look);
        let python = Some(PythonStack { holds_gil, ..stack });
        threads.push(ThreadStack { tid, kernel, python });
    }
    let others: Vec<i32> = tids.difference(&known).copied().collect();
    let room = MOST_THREADS.saturating_sub(threads.len());
    for tid in others.iter().take(room) {
        let kernel = state(*tid);
        threads.push(ThreadStack { tid: Some(*tid), kernel, python: None });
    }
    // The first thread has a state of its own in each interpreter that it has made.
    let interpreter = |thread: &ThreadStack| thread.python.as_ref().map(|one| one.interpreter);
    threads.order_by_key(|thread| {
        (thread.tid != Some(pid), thread.python.is_none(), interpreter(thread), thread.tid)
    });
    (threads, others.len().saturating_sub(room))
}

/// Whether a thread holds the GIL, and its state. The two are read one after the other, and a thread that sleeps has
/// usually just released the GIL. So a sleeping holder counts only if it is seen several times.
fn settled(
    first: (Option<bool>, Option<KernelState>),
    look: impl Fn() -> (Option<bool>, Option<KernelState>),
) -> (Option<bool>, Option<KernelState>) {
    const LOOKS: u32 = 3;
    const PAUSE: Duration = Duration::from_millis(10);
    let keeps = |(holds, kernel): &(Option<bool>, Option<KernelState>)| {
        *holds == Some(true) && kernel.as_ref().is_some_and(|kernel| kernel.state == 'S')
    };
    let mut seen = first;
    for _ in 0..LOOKS {
        if !keeps(&seen) {
            break;
        }
        std::thread::sleep(PAUSE);
        seen = look();
    }
    seen
}

/// The interpreter of a process, and its version.
type Found<'a> = (Interpreter<'a, ProcessMemory>, Version);

fn find<'a>(folder: &Path, maps: &str, memory: &'a ProcessMemory) -> Result<Found<'a>, Unread> {
    let executable = std::fs::read_link(folder.join("exe")).ok();
    let executable = executable.as_ref().map(|path| path.to_string_lossy());
    let mut unread = Unread::NotPython;
    for candidate in candidates(maps, executable.as_deref()) {
        let symbols = Symbols::find(memory, candidate.start)?;
        let address = |name: &str| match &symbols {
            Some(symbols) => symbols.address(memory, name),
            None => Ok(None),
        };
        if let (Some(symbols), Some(runtime), Some(code_type)) =
            (&symbols, address("_PyRuntime")?, address("PyCode_Type")?)
        {
            let version = Version::find(memory, symbols)?;
            let layout = layout::layout(memory, runtime, version)?;
            return Ok((Interpreter { memory, layout, runtime, code_type }, version));
        }
        // Debian's python3 without the library; a program named python-something is no proof.
        if candidate.file.rsplit('/').next().is_some_and(|name| name.starts_with("libpython")) {
            unread = Unread::NoSymbol { file: candidate.file };
        }
    }
    Err(unread)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn sleeps(state: char) -> Option<KernelState> {
        Some(KernelState { name: "python".into(), state, wchan: None, cpu_ms: 0, syscall: None })
    }

    #[test]
    fn just_released_gil_is_not_reported_as_held() {
        let after = |next: fn(u32) -> (Option<bool>, char)| {
            let looks = Cell::new(0);
            let look = || {
                looks.set(looks.get() + 1);
                let (holds, state) = next(looks.get());
                (holds, sleeps(state))
            };
            let (holds, kernel) = settled((Some(true), sleeps('S')), look);
            (holds, kernel.map(|kernel| kernel.state))
        };
        assert_eq!(after(|_| (Some(false), 'S')), (Some(false), Some('S')));
        assert_eq!(after(|look| (Some(look < 3), 'S')), (Some(false), Some('S')));
        assert_eq!(after(|_| (Some(true), 'R')), (Some(true), Some('R')), "it runs");
        assert_eq!(after(|_| (Some(true), 'S')), (Some(true), Some('S')), "it keeps it");
        let never = || panic!("there is nothing to be looked at again");
        assert_eq!(settled((Some(true), sleeps('R')), never).0, Some(true));
    }
}
