//! The activity of a rank, as its stacks and the kernel show it.

use super::RankEvidence;
use diagnose::stacks::{Frame, KernelState, ProcessStacks, ThreadStack};

/// The reason why a rank stays where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Doing {
    /// SIGSTOP or SIGTSTP.
    Stopped,
    /// A debugger holds it, or its own debugger waits for a person.
    Debugged,
    /// Sleeps in the kernel and cannot be interrupted.
    Uninterruptible {
        call: Option<String>,
        file: Option<String>,
        /// The file is served by another program or machine.
        is_remote: bool,
    },
    /// The rank is in a collective, or in the backward pass, which waits for one.
    Collective,
    /// Sends to one rank, or receives from one.
    Message,
    /// Waits for an operation of torch that it began: a message, or a collective that no record shows.
    Operation,
    /// Waits for the other ranks before the first collective.
    Rendezvous,
    /// Waits for a key in torch's store that another rank has to set.
    Store,
    /// Waits for a process that it started.
    Child {
        pid: i32,
        name: String,
    },
    /// Waits for a process that has ended.
    DeadChild {
        pid: i32,
        name: String,
    },
    /// Waits for a lock.
    Lock,
    /// Waits for another of its threads: a queue, an event, a future.
    Thread,
    /// Waits for the GIL, which another thread holds; or holds it while it waits.
    Gil,
    /// Waits for requests.
    Serves,
    Checkpoint,
    Compiles,
    /// Anything else: the user's own code, or a library.
    Elsewhere {
        call: Option<String>,
        file: Option<String>,
    },
    /// The activity is not visible.
    Hidden,
}

impl Doing {
    /// Waits for other ranks in torch's own calls.
    pub(super) fn meets_ranks(&self) -> bool {
        matches!(self, Doing::Collective | Doing::Rendezvous) || self.is_message()
    }

    /// Waits for what one rank has to send or to receive, as far as is known.
    pub(super) fn is_message(&self) -> bool {
        matches!(self, Doing::Message | Doing::Operation)
    }

    /// The same, or waits for what another rank sets in torch's store.
    pub(super) fn awaits_ranks(&self) -> bool {
        self.meets_ranks() || *self == Doing::Store
    }
}

/// The activity of a rank, with the line of the user's own code that does it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) doing: Doing,
    pub(super) frame: Option<diagnose::Frame>,
    /// All lines of its first thread, the innermost first.
    pub(super) lines: Vec<(String, u64)>,
}

/// The processes show which child it is.
const A_CHILD: Doing = Doing::Child { pid: 0, name: String::new() };

/// Part of a file's path, the functions (all functions if empty), and the activity that they show. The first
/// row of the innermost frame that has one decides, unless the user's own code is further in: a library that
/// calls user code, such as a DataLoader without workers, waits for nothing else.
const LIBRARY: &[(&str, &str, Doing)] = &[
    ("/pdb.py", "", Doing::Debugged),
    ("/bdb.py", "", Doing::Debugged),
    ("/debugpy/", "", Doing::Debugged),
    ("/pydevd", "", Doing::Debugged),
    ("/ipdb/", "", Doing::Debugged),
    ("torch/distributed/rendezvous.py", "", Doing::Rendezvous),
    ("torch/distributed/distributed_c10d.py", "_store_based_barrier", Doing::Rendezvous),
    (
        "torch/distributed/distributed_c10d.py",
        "send recv isend irecv batch_isend_irecv send_object_list recv_object_list _send_object",
        Doing::Message,
    ),
    ("torch/distributed/pipelining/", "", Doing::Message),
    ("torch/distributed/checkpoint/", "", Doing::Checkpoint),
    // No record and no connection shows whether calls come.
    ("torch/distributed/rpc/", "", Doing::Thread),
    ("torch/futures/", "", Doing::Thread),
    ("torch/distributed/", "", Doing::Collective),
    ("torch/autograd/graph.py", "_engine_run_backward", Doing::Collective),
    ("torch/nn/parallel/distributed.py", "", Doing::Collective),
    ("torch/utils/data/dataloader.py", "", A_CHILD),
    ("multiprocessing/", "", A_CHILD),
    ("/subprocess.py", "", A_CHILD),
    ("concurrent/futures/process.py", "", A_CHILD),
    ("torch/_inductor/", "", Doing::Compiles),
    ("torch/_dynamo/", "", Doing::Compiles),
    ("/triton/", "", Doing::Compiles),
    ("torch/serialization.py", "", Doing::Checkpoint),
    ("/safetensors/", "", Doing::Checkpoint),
    ("/threading.py", "acquire __enter__", Doing::Lock),
    ("/threading.py", "", Doing::Thread),
    ("/queue.py", "get put join", Doing::Thread),
    ("concurrent/futures/", "", Doing::Thread),
    ("/socketserver.py", "", Doing::Serves),
    ("/asyncio/base_events.py", "", Doing::Serves),
    ("/uvicorn/", "", Doing::Serves),
    ("/grpc/", "", Doing::Serves),
];

/// The files of Python's own import, `<frozen importlib._bootstrap_external>`.
const IMPORT: &str = "<frozen importlib";

fn shows(frame: &Frame) -> Option<Doing> {
    // `Condition.wait` in 3.11 and later, `wait` before.
    let name = frame.function.rsplit('.').next().unwrap_or_default();
    LIBRARY
        .iter()
        .find(|(file, functions, _)| {
            frame.file.contains(file)
                && (functions.is_empty() || functions.split(' ').any(|one| one == name))
        })
        .map(|(_, _, shows)| shows.clone())
}

/// The activity that the frames of libraries show, as far as these frames are further in than the user's own
/// code. A library that is being imported shows none: it waits for nobody.
fn library(frames: &[Frame]) -> Option<Doing> {
    let is_of_library =
        |frame: &&Frame| shows(frame).is_some() || !diagnose::Frame::from(*frame).is_own();
    let mut of_libraries = frames.iter().take_while(is_of_library);
    if of_libraries.clone().any(|frame| frame.file.starts_with(IMPORT)) {
        return None;
    }
    of_libraries.find_map(shows)
}

/// The activity of a rank's first thread. If it waits for a child, the line is the child's own.
pub(super) fn seen(rank: &RankEvidence) -> Seen {
    let first = rank.stacks.as_ref().and_then(|stacks| stacks.process.threads.first());
    let line = |frame: &Frame| (frame.file.clone(), u64::from(frame.line.unwrap_or_default()));
    let lines = first.map(ThreadStack::frames).unwrap_or_default().iter().map(line).collect();
    Seen { lines, ..of_first_thread(rank) }
}

fn of_first_thread(rank: &RankEvidence) -> Seen {
    let hidden = Seen { doing: Doing::Hidden, frame: None, lines: Vec::new() };
    let Some(stacks) = &rank.stacks else { return hidden };
    let process = &stacks.process;
    let Some(first) = process.threads.first() else { return hidden };
    let stack = first.frames();
    let frame = first.own_frame().or_else(|| stack.first().map(diagnose::Frame::from));
    let found = |doing| Seen { doing, frame: frame.clone(), lines: Vec::new() };
    match first.kernel.as_ref().map(|kernel| kernel.state) {
        Some('T') => return found(Doing::Stopped),
        Some('t') => return found(Doing::Debugged),
        _ => {}
    }
    let is_remote = first.kernel.as_ref().is_some_and(is_remote);
    if let Some(stuck) = uninterruptible(first).filter(|_| rank.stuck || is_remote) {
        return found(stuck);
    }
    let library = library(stack);
    match library.clone() {
        Some(Doing::Child { .. }) => return child(rank, found(Doing::Thread)),
        Some(doing @ (Doing::Debugged | Doing::Rendezvous | Doing::Serves | Doing::Compiles)) => {
            return found(doing);
        }
        // A process that holds the GIL answers nobody, so its own line matters more.
        _ => {}
    }
    if let Some(holder) = process.threads.iter().find(|thread| holds_gil_and_waits(thread)) {
        return Seen { frame: holder.own_frame().or(frame.clone()), ..found(Doing::Gil) };
    }
    match library {
        Some(doing @ (Doing::Message | Doing::Collective | Doing::Checkpoint)) => {
            return found(doing);
        }
        Some(Doing::Lock) => return other_thread(process, found(Doing::Lock)),
        Some(Doing::Thread) => {
            let other = awaited_thread(process).unwrap_or_else(|| found(Doing::Thread));
            return other_thread(process, other);
        }
        _ => {}
    }
    // If the user's own code calls the store, no frame of torch is on the stack.
    if rank.asks_store {
        return found(Doing::Store);
    }
    let kernel = first.kernel.as_ref();
    // Neither `work.wait()` nor `with lock:` leaves a library frame on the stack.
    if is_operation(first) {
        return found(Doing::Operation);
    }
    if kernel.is_some_and(is_futex) && !stack.is_empty() {
        return other_thread(process, found(Doing::Lock));
    }
    // os.waitpid leaves no library frame either.
    if kernel.and_then(call).is_some_and(|call| ["wait4", "waitid"].contains(&call.as_str())) {
        return child(rank, found(Doing::Elsewhere { call: None, file: None }));
    }
    if process.python.is_none() && process.unread.is_some() && kernel.is_none() {
        return hidden;
    }
    found(Doing::Elsewhere { call: kernel.and_then(call), file: kernel.and_then(file) })
}

/// Whether the first thread of the rank is runnable, or the first thread of the process that the rank waits
/// for.
pub(super) fn runs(rank: &RankEvidence, doing: Option<&Doing>) -> bool {
    let Some(stacks) = &rank.stacks else { return false };
    let awaited = |child: &&ProcessStacks| matches!(doing, Some(Doing::Child { pid, .. }) if *pid == child.pid);
    let child = stacks.children.iter().find(awaited);
    let runs = |process: &ProcessStacks| process.threads.first().and_then(state) == Some('R');
    runs(&stacks.process) || child.is_some_and(runs)
}

fn state(thread: &ThreadStack) -> Option<char> {
    thread.kernel.as_ref().map(|kernel| kernel.state)
}

fn is_futex(kernel: &KernelState) -> bool {
    call(kernel).is_some_and(|call| call.starts_with("futex"))
}

/// Whether torch itself has put the thread to sleep.
fn is_operation(thread: &ThreadStack) -> bool {
    const LIBRARIES: &[&str] = &["libtorch", "libc10", "libgloo", "libnccl"];
    let kernel = thread.kernel.as_ref().filter(|kernel| is_futex(kernel));
    let caller = kernel.and_then(|kernel| kernel.syscall.as_ref()?.caller.as_ref());
    caller.is_some_and(|caller| LIBRARIES.iter().any(|library| caller.starts_with(library)))
}

/// The thread for which the first one waits: one that serves, or one that waits for other ranks, if the first one waits
/// until it ends. A thread that waits for other ranks while the first one waits for work is idle.
fn awaited_thread(process: &ProcessStacks) -> Option<Seen> {
    let (first, others) = process.threads.split_first()?;
    let is_join = |frame: &Frame| {
        let name = frame.function.rsplit('.').next().unwrap_or_default();
        frame.file.ends_with("/threading.py") && name == "join"
    };
    let joins = first.frames().iter().take_while(|frame| shows(frame).is_some()).any(is_join);
    let seen = |thread: &ThreadStack| {
        let doing = match library(thread.frames()) {
            Some(Doing::Serves) => Doing::Serves,
            Some(doing @ (Doing::Message | Doing::Collective)) if joins => doing,
            None if joins && is_operation(thread) => Doing::Operation,
            _ => return None,
        };
        Some(Seen { doing, frame: thread.own_frame(), lines: Vec::new() })
    };
    let found = || others.iter().filter(|thread| !thread.frames().is_empty()).filter_map(seen);
    found().find(|one| one.doing == Doing::Serves).or_else(|| found().next())
}

fn call(kernel: &KernelState) -> Option<String> {
    kernel.syscall.as_ref().map(|call| call.name.clone())
}

/// The file of the system call, with its mount if that is not the container's own.
fn file(kernel: &KernelState) -> Option<String> {
    let file = kernel.syscall.as_ref()?.file.as_ref()?;
    let peer = file.connection.as_ref().and_then(|ends| ends.peer.as_ref());
    let peer = peer.map(|peer| format!(" ({peer})"));
    let mount = file.mount.as_ref().map(|mount| format!(" ({} from {})", mount.kind, mount.source));
    Some([Some(file.path.clone()), peer, mount].into_iter().flatten().collect())
}

fn uninterruptible(thread: &ThreadStack) -> Option<Doing> {
    let sleeps = |kernel: &&KernelState| kernel.state == 'D' || is_remote(kernel);
    let kernel = thread.kernel.as_ref().filter(sleeps)?;
    let is_remote = is_remote(kernel);
    Some(Doing::Uninterruptible { call: call(kernel), file: file(kernel), is_remote })
}

/// Whether the kernel may hold a thread in this call until a disk has written something. False for calls that
/// wait for a started process, a driver, another thread or another machine.
pub(super) fn may_wait_for_disk(call: &str) -> bool {
    const OTHERS: &str = "vfork clone clone3 wait4 waitid ioctl futex poll ppoll select pselect6 \
        epoll_wait epoll_pwait connect accept accept4 recvfrom recvmsg sendto sendmsg";
    !OTHERS.split(' ').any(|other| other == call)
}

/// Whether the thread is in a call on a file whose server does not answer: the kernel may report such a thread
/// as interruptible.
fn is_remote(kernel: &KernelState) -> bool {
    /// Types of file systems that another program or machine serves, as mount(8) names them.
    const SERVED: &[&str] =
        &["fuse", "nfs", "cifs", "smb", "ceph", "lustre", "gpfs", "beegfs", "9p", "afs"];
    let mount = kernel.syscall.as_ref().and_then(|call| call.file.as_ref()?.mount.as_ref());
    let is_served = |kind: &str| SERVED.iter().any(|served| kind.starts_with(served));
    kernel.state != 'R' && mount.is_some_and(|mount| is_served(&mount.kind))
}

/// The thread that is stuck in the kernel may be another one, for which the first thread waits.
fn other_thread(process: &ProcessStacks, own: Seen) -> Seen {
    let stuck = process.threads.iter().find_map(|thread| Some((thread, uninterruptible(thread)?)));
    match stuck {
        Some((thread, doing)) => {
            let frame = thread.own_frame().or(own.frame.clone());
            Seen { doing, frame, ..own }
        }
        None => own,
    }
}

/// A sleeping thread releases the GIL, unless the function that it calls does not.
fn holds_gil_and_waits(thread: &ThreadStack) -> bool {
    let holds = thread.python.as_ref().and_then(|python| python.holds_gil) == Some(true);
    holds && state(thread) == Some('S')
}

/// The child that a rank waits for: one that runs the user's own code, else one that is not Python, else one
/// that has ended. A worker that waits for work is never chosen.
fn child(rank: &RankEvidence, own: Seen) -> Seen {
    let Some(stacks) = &rank.stacks else { return own };
    let busy = |process: &&ProcessStacks| {
        let Some(first) = process.threads.first() else { return false };
        // A worker of a DataLoader or of a pool without a task waits for one.
        let waits_for_work = |frame: &Frame| frame.file.contains("multiprocessing/");
        first.own_frame().is_some() && !first.frames().iter().take(4).any(waits_for_work)
    };
    let other = |process: &&ProcessStacks| process.python.is_none() && !process.name.is_empty();
    let living = stacks.children.iter().find(busy).or_else(|| stacks.children.iter().find(other));
    if let Some(process) = living {
        let of_child = process.threads.first().and_then(ThreadStack::own_frame);
        let stuck = process.threads.first().and_then(uninterruptible);
        let child = Doing::Child { pid: process.pid, name: process.name.clone() };
        let doing = stuck.unwrap_or(child);
        return Seen { doing, frame: of_child.or(own.frame.clone()), ..own };
    }
    match rank.dead_children.first() {
        Some(dead) => {
            Seen { doing: Doing::DeadChild { pid: dead.pid, name: dead.name.clone() }, ..own }
        }
        None => own,
    }
}
