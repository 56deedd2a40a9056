//! One interpreter per node that imports the modules of the program before its ranks exist. Each rank is then a fork
//! of this interpreter, in place of a start of its own.
//!
//! Takes a [`Warming`]: the command line of a rank and its environment. `scout.py` finds, in an interpreter of its
//! own, the imports of the program before its first statement that could change anything. `sitecustomize.py` imports
//! them in the warmed interpreter, while `ahead.py` reads the files before it. The interpreter then forks a process
//! that becomes the rank's shim and, below it, the rank, in which the interpreter goes on as if it had just been
//! started. A shim that the engine has started asks for both (`supervise::warmed`), and starts the rank by itself if
//! it is refused.
//!
//! A thread reads the reports of the interpreter. Nothing waits for it but [`Warmed::is_listening`] and whoever
//! requires it.

#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod reasons;
mod scouted;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, waitpid};

use scouted::Learned;
pub use scouted::{ReadAhead, Scouted, Target, Warming};

use linux::procfs::Process;
use linux::random;
use linux::sys::{self, Pid, Session, Signal};
use text::lang::{Text, cause};

/// Time limit for the interpreter to start.
const STARTS: Duration = Duration::from_secs(20);
/// Time limit for an interpreter that steps aside: it runs the exit functions of its imported modules.
const LEAVES: Duration = Duration::from_secs(10);

/// A warmed interpreter, or the reason why there is none. Ends with [`Warmed::end`].
#[derive(Debug)]
pub struct Warmed {
    shared: Arc<Shared>,
    name: String,
    /// Interpreter, options and program.
    program: Vec<OsString>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The interpreter, which may have ended.
    process: Option<Process>,
    /// The process that reads files ahead for the interpreter, until a rank may begin.
    reader: Option<Reader>,
    phase: Phase,
    /// Nothing may start any more.
    over: bool,
}

/// The progress of the interpreter.
#[derive(Debug, Clone, Default)]
enum Phase {
    /// The modules to import are being determined.
    #[default]
    Scouting,
    /// The interpreter imports; shims may ask.
    Listening,
    /// Ranks are forked at once.
    Ready,
    /// Ranks are started as usual, for this reason.
    Aside(Text),
}

/// An event that [`Warmed::begin`] reports.
#[derive(Debug)]
pub enum Event {
    Scouted(Scouted),
    /// All imports are done, within this time.
    Ready(Duration),
    /// No rank will be forked, for this reason.
    Aside(Text),
    /// This rank is started as usual, for this reason.
    Refused(Text),
    /// The engine is started as usual, for this reason.
    RefusedEngine(Text),
}

/// The modules that would be imported.
///
/// # Errors
/// The reason why nothing would be imported.
pub fn scout(warming: &Warming) -> Result<Scouted, Text> {
    write_own_files(&warming.folder).map_err(|error| reasons::not_written(&error))?;
    let scouted = scouted::scout(warming, STARTS);
    let _ = std::fs::remove_dir_all(&warming.folder);
    let scouted = scouted?;
    scouted.imports()?;
    Ok(scouted)
}

impl Warmed {
    /// Begins in a thread, and returns at once. `tell` gets each event, from that thread.
    ///
    /// # Errors
    /// No random bytes for a name, or no thread. The thread lives as long as the interpreter, so it is never the
    /// caller's.
    pub fn begin(warming: Warming, tell: impl Fn(Event) + Send + 'static) -> io::Result<Warmed> {
        let name = format!("ranklaunch-warm-{}", random::hex::<12>()?);
        let shared = Arc::<Shared>::default();
        let program = warming.program().to_vec();
        let warmed = Warmed { shared: Arc::clone(&shared), name: name.clone(), program };
        let run = move || {
            let tell = |event: Event| {
                let phase = match &event {
                    Event::Ready(_) => Some(Phase::Ready),
                    Event::Aside(why) => Some(Phase::Aside(why.clone())),
                    Event::Scouted(_) | Event::Refused(_) | Event::RefusedEngine(_) => None,
                };
                if let Some(phase) = phase {
                    shared.end_reader();
                    shared.set(phase);
                }
                tell(event);
            };
            let Err(why) = warm(&shared, &warming, &name, &tell) else { return };
            let (is_over, process) = {
                let state = shared.lock();
                (state.over, state.process.clone())
            };
            // The run has ended meanwhile, so nothing would have been forked any more.
            if is_over {
                return;
            }
            tell(Event::Aside(why));
            if let Some(process) = process {
                kill_after(&process, LEAVES);
            }
        };
        std::thread::Builder::new().name("warm".to_owned()).spawn(run)?;
        Ok(warmed)
    }

    /// The abstract name of the socket on which shims ask.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the interpreter runs the program of a rank with this command line; the arguments of the program may
    /// differ.
    pub fn is_for(&self, argv: &[OsString]) -> bool {
        argv.starts_with(&self.program)
    }

    /// Waits until shims may ask. False if there is no interpreter to ask; None if it has not started in time.
    pub fn is_listening(&self, within: Duration) -> Option<bool> {
        match self.shared.wait(within, |phase| !matches!(phase, Phase::Scouting)) {
            Phase::Scouting => None,
            Phase::Listening | Phase::Ready => Some(true),
            Phase::Aside(_) => Some(false),
        }
    }

    /// Waits until all imports are done.
    ///
    /// # Errors
    /// The reason why no rank will be forked.
    pub fn is_ready(&self, within: Duration) -> Result<(), Text> {
        let decided = |phase: &Phase| matches!(phase, Phase::Ready | Phase::Aside(_));
        match self.shared.wait(within, decided) {
            Phase::Ready => Ok(()),
            Phase::Aside(why) => Err(why),
            Phase::Scouting | Phase::Listening => Err(reasons::late(within)),
        }
    }

    /// Ends the interpreter; ranks that it has forked go on. Waits a moment for its end.
    pub fn end(&self) {
        let process = {
            let mut state = self.shared.lock();
            state.over = true;
            state.process.take()
        };
        self.shared.end_reader();
        if let Some(process) = process {
            kill(&process);
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, phase: Phase) {
        self.lock().phase = phase;
        self.changed.notify_all();
    }

    fn end_reader(&self) {
        let reader = self.lock().reader.take();
        if let Some(reader) = reader {
            reader.end();
        }
    }

    fn wait(&self, within: Duration, until: impl Fn(&Phase) -> bool) -> Phase {
        let waits = |state: &mut State| !until(&state.phase);
        let waited = self.changed.wait_timeout_while(self.lock(), within, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.phase.clone()
    }
}

/// Runs until the interpreter has ended.
fn warm(shared: &Shared, warming: &Warming, name: &str, tell: &dyn Fn(Event)) -> Result<(), Text> {
    write_own_files(&warming.folder).map_err(|error| reasons::not_written(&error))?;
    let scouted = scouted::scout(warming, STARTS);
    // A scout that was ended at its time limit has a reader as well: then there is no warm start, which ends the
    // reader.
    if let Some(reader) = Reader::of(&warming.folder) {
        let mut state = shared.lock();
        let over = state.over;
        state.reader = Some(reader);
        drop(state);
        if over {
            shared.end_reader();
        }
    }
    let scouted = scouted?;
    let modules = scouted.imports()?;
    let mut added = if warming.below_python { scouted.coerced.clone() } else { BTreeMap::new() };
    for (name, value) in [
        ("RANKLAUNCH_WARM_LISTEN", name.to_owned()),
        ("RANKLAUNCH_WARM_IMPORTS", modules),
        ("RANKLAUNCH_WARM_FOLDER", scouted.folder.clone()),
        ("RANKLAUNCH_WARM_FILE", scouted.file.clone()),
    ] {
        added.insert(name.to_owned(), value);
    }
    tell(Event::Scouted(scouted));
    let said =
        start(shared, warming, added).map_err(|error| reasons::not_started(cause(&error)))?;
    // Modules after whose import the interpreter cannot be forked, and the module that it imports now.
    let (mut blamed, mut importing) = (Vec::new(), None);
    let learn = |modules: &[String], why: &[&str]| {
        if let Err(error) = Learned::of(warming).leave_out(modules, why) {
            tracing::debug!(%error, "what this run has shown is not kept");
        }
        reasons::of(why)
    };
    for line in BufReader::new(std::fs::File::from(said)).split(b'\n') {
        let Ok(line) = line else { break };
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split(' ');
        match words.next().unwrap_or_default() {
            "listening" => shared.set(Phase::Listening),
            "imports" => importing = words.next().map(str::to_owned),
            "ready" => {
                importing = None;
                let ms = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
                tell(Event::Ready(Duration::from_millis(ms)));
            }
            "blames" => blamed.extend(words.next().map(str::to_owned)),
            "aside" => {
                let why: Vec<&str> = words.collect();
                return Err(learn(&blamed, &why));
            }
            "refused" => tell(Event::Refused(reasons::of(&words.collect::<Vec<_>>()))),
            "refused-engine" => {
                tell(Event::RefusedEngine(reasons::of_engine(&words.collect::<Vec<_>>())));
            }
            // Output of Python before it imports our file.
            _ => {}
        }
    }
    let is_over = shared.lock().over;
    match importing {
        _ if is_over => Ok(()),
        Some(module) => Err(learn(std::slice::from_ref(&module), &["dies", &module])),
        None => Err(reasons::ended()),
    }
}

/// The files that the interpreter imports: the Python files beside this one, as build.rs has deflated them.
static FILES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/warm.zz"));

/// Makes the folder with the files of the interpreter.
fn write_own_files(folder: &Path) -> io::Result<()> {
    write_files(folder, &embed::files(FILES)?)
}

/// Makes the folder with these files. After an error, such as a full disk, the folder does not exist.
fn write_files(folder: &Path, files: &[(String, String)]) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(folder)?;
    let written = files.iter().try_for_each(|(name, text)| std::fs::write(folder.join(name), text));
    written.inspect_err(|_| drop(std::fs::remove_dir_all(folder)))
}

/// Starts the interpreter with these variables added. Gives its output.
fn start(
    shared: &Shared,
    warming: &Warming,
    added: BTreeMap<String, String>,
) -> io::Result<OwnedFd> {
    let mut environment = warming.environment();
    environment.extend(added.into_iter().map(|(name, value)| (name.into(), value.into())));
    let (said, say) = io::pipe()?;
    let nothing = std::fs::File::open("/dev/null")?;
    let streams = [nothing.into(), say.try_clone()?.into(), say.into()];
    let mut state = shared.lock();
    if state.over {
        return Err(io::ErrorKind::Interrupted.into());
    }
    let begun = sys::start(&warming.argv, &environment, streams, || {
        Session::begin()?;
        warming.dispositions.restore_in_child()
    })?;
    state.process = Process::at("/proc".as_ref(), begun.pid);
    Ok(said.into())
}

/// The process that reads ahead the files that the interpreter will import, so that it waits for no file: `ahead.py`,
/// forked from the scout.
///
/// This is a process and not a thread: on a mount that hangs, a thread could not be ended, and would block the end of
/// the agent. It runs at a lower priority and is killed before the first rank begins.
#[derive(Debug)]
struct Reader {
    process: Process,
    /// The file in which the process reports at its end the reason and the number of bytes read. Its exit status may go
    /// to whoever supervises the ranks.
    report: PathBuf,
}

impl Reader {
    /// `folder`: the folder of the process's files, in which it has written its pid and start time before reading
    /// anything. None if no such process exists, or it has ended.
    fn of(folder: &Path) -> Option<Reader> {
        let named = std::fs::read_to_string(folder.join("reader")).ok()?;
        let (pid, started) = named.split_once(' ')?;
        let process = Process::at("/proc".as_ref(), pid.parse().ok()?)?;
        let is_it = started.parse::<u64>() == Ok(process.start_ticks);
        is_it.then(|| Reader { process, report: folder.join("ahead") })
    }

    /// Ends the process, and logs its report. Waits a moment for its end.
    fn end(self) {
        let so_far = read_bytes(self.process.pid);
        kill(&self.process);
        let report = std::fs::read_to_string(&self.report).unwrap_or_default();
        let (bytes, why) = report.split_once(' ').unwrap_or_default();
        let why = match why {
            "done" => "all was read",
            "cached" => "the page cache had it",
            "not kept" => "the file system keeps nothing",
            "bound" => "the limit of memory",
            _ => "ended by us",
        };
        tracing::info!(bytes = bytes.parse().ok().or(so_far), why, "read ahead");
    }
}

/// Bytes that the process has read, including its own start.
fn read_bytes(pid: i32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse().ok()
}

/// Time limit for a process to end after SIGKILL. A process that waits for a dead mount takes
/// longer.
const ENDS: Duration = Duration::from_millis(250);

/// Kills the process if it has not ended by itself within this time.
fn kill_after(process: &Process, within: Duration) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(handle) = linux::signal::handle(pid) else { return };
    match &handle {
        Some(_) => linux::signal::wait_for_end(handle.as_ref(), within),
        None => std::thread::sleep(within),
    }
    kill(process);
}

/// Sends SIGKILL and waits a moment for the end.
fn kill(process: &Process) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(handle) = linux::signal::handle(pid) else { return };
    let one = (pid, process.start_ticks);
    let sent = linux::signal::send("/proc".as_ref(), one, handle.as_ref(), Signal::KILL);
    let until = Instant::now() + ENDS;
    while sent.is_ok() && Instant::now() < until {
        // A supervising process may have taken its status already.
        if !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)) {
            return;
        }
        let left = until.saturating_duration_since(Instant::now());
        linux::signal::wait_for_end(handle.as_ref(), left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incompletely_written_folder_is_removed() {
        let above = tempfile::tempdir().expect("a folder");
        let folder = above.path().join("warm");
        let missing =
            ["first.py", "nowhere/second.py"].map(|name| (name.to_owned(), String::new()));
        write_files(&folder, &missing).expect_err("there is no such folder");
        assert!(!folder.exists());
        write_own_files(&folder).expect("written");
        // A folder of somebody else is neither used nor removed.
        write_own_files(&folder).expect_err("it is there already");
        assert!(folder.join("watch.py").exists());
    }

    #[test]
    fn reader_is_identified_by_pid_and_start_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let found = || Reader::of(folder.path()).map(|reader| reader.process.pid);
        let name = |text: &str| {
            std::fs::write(folder.path().join("reader"), text).expect("written");
        };
        assert_eq!(found(), None);
        let me = Process::at("/proc".as_ref(), sys::own_pid()).expect("it lives");
        let (pid, started) = (me.pid, me.start_ticks);
        name(&format!("{pid} {started}"));
        assert_eq!(found(), Some(pid));
        // Another process has this pid by now, or the file was not completely written.
        for other in [format!("{pid} {}", started + 1), format!("{pid}"), String::new()] {
            name(&other);
            assert_eq!(found(), None, "{other:?}");
        }
    }
}
