//! One process: its Python threads, and the kernel's state of every thread.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::elf::Symbols;
use super::kernel::{self, KernelState, Mapped};
use super::layout::{self, Layout, Version};
use super::maps::{self, Code};
use super::memory::ProcessMemory;
use super::python::{Frame, Interpreter, PythonThread, ThreadPlace};
use super::unread::Unread;
use linux::procfs;

/// Maximum number of threads of a process that are read; the others are counted.
const MOST_THREADS: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    #[serde(skip_serializing_if = "is_zero", default)]
    pub threads_left_out: usize,
}

impl ProcessStacks {
    /// A process about which nothing is known.
    pub(super) fn unread(pid: i32, why: Unread) -> ProcessStacks {
        ProcessStacks {
            pid,
            name: String::new(),
            command: String::new(),
            python: None,
            unread: Some(why),
            threads: Vec::new(),
            threads_left_out: 0,
        }
    }
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

fn is_main(interpreter: &i64) -> bool {
    *interpreter == 0
}

fn is_false(value: &bool) -> bool {
    !*value
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonStack {
    #[serde(skip_serializing_if = "is_main", default)]
    pub interpreter: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holds_gil: Option<bool>,
    /// The innermost frame comes first.
    pub frames: Vec<Frame>,
    /// Whether there are more frames than were read.
    #[serde(skip_serializing_if = "is_false", default)]
    pub cut: bool,
    /// The stack changed while it was read: its frames may never have existed together.
    #[serde(skip_serializing_if = "is_false", default)]
    pub moving: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unread: Option<Unread>,
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
    let interpreter = match (&found, &memory) {
        (Ok((found, _)), Ok(memory)) => Some(found.interpreter(memory)),
        _ => None,
    };
    let (stacks, mut unread) = match (&interpreter, &found) {
        (Some(interpreter), _) => match interpreter.threads(&tids) {
            Ok(stacks) => (stacks, None),
            Err(unread) => (Vec::new(), Some(unread)),
        },
        (None, found) => (Vec::new(), found.as_ref().err().cloned()),
    };
    let python = found.as_ref().ok().map(|(_, version)| version.shown());
    let holds_gil = |place| interpreter.as_ref()?.holds_gil(place);
    let mapped = memory.as_ref().ok().map(|memory| Mapped { memory, code: &code });
    let state = |tid| kernel::state(&folder, tid, mapped);
    let (threads, threads_left_out) = join(&tids, stacks, holds_gil, state, pid);
    let name = threads.first().and_then(|first| Some(first.kernel.as_ref()?.name.clone()));
    let state = threads.first().and_then(|first| Some(first.kernel.as_ref()?.state));
    // A process that is ending has no memory before it is a zombie.
    if matches!(state, None | Some('Z' | 'X')) {
        unread = Some(Unread::Gone);
    }
    let command = command(&folder).unwrap_or_default();
    let name = name.unwrap_or_default();
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
    let known: BTreeSet<i32> = stacks.iter().filter_map(|stack| stack.tid).collect();
    let mut threads = Vec::new();
    for stack in stacks {
        let look = || (holds_gil(stack.place), stack.tid.and_then(&state));
        let first = (stack.holds_gil, stack.tid.and_then(&state));
        let (holds_gil, kernel) = settled(first, look);
        let (frames, unread) = match stack.frames {
            Ok(frames) => (frames, None),
            Err(unread) => (Default::default(), Some(unread)),
        };
        let python = PythonStack {
            interpreter: stack.interpreter,
            holds_gil,
            frames: frames.frames,
            cut: frames.cut,
            moving: frames.moving,
            unread,
        };
        threads.push(ThreadStack { tid: stack.tid, kernel, python: Some(python) });
    }
    let others: Vec<i32> = tids.difference(&known).copied().collect();
    let room = MOST_THREADS.saturating_sub(threads.len());
    for tid in others.iter().take(room) {
        let kernel = state(*tid);
        threads.push(ThreadStack { tid: Some(*tid), kernel, python: None });
    }
    // The first thread has a state of its own in each interpreter that it has made.
    let interpreter = |thread: &ThreadStack| thread.python.as_ref().map(|one| one.interpreter);
    threads.sort_by_key(|thread| {
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

/// The data of an interpreter that was found.
struct Found {
    runtime: u64,
    code_type: u64,
    layout: Layout,
}

impl Found {
    fn interpreter<'a>(&'a self, memory: &'a ProcessMemory) -> Interpreter<'a, ProcessMemory> {
        let (layout, runtime, code_type) = (&self.layout, self.runtime, self.code_type);
        Interpreter { memory, layout, runtime, code_type }
    }
}

fn find(folder: &Path, maps: &str, memory: &ProcessMemory) -> Result<(Found, Version), Unread> {
    let executable = std::fs::read_link(folder.join("exe")).ok();
    let executable = executable.as_ref().map(|path| path.to_string_lossy());
    let candidates = maps::candidates(maps, executable.as_deref());
    let mut unread = Unread::NotPython;
    for candidate in candidates {
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
            return Ok((Found { runtime, code_type, layout }, version));
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
