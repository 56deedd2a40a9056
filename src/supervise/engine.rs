//! Starts the engine, or the ranks if there is no engine, and tracks programs whose execve has not finished.
//!
//! execve reads the program and its interpreter, which takes for ever on a mount without its
//! server. A program that hangs there is reported and finally given up, while the supervisor
//! goes on.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::time::Instant;

use super::bind;
use super::forwarded::TWICE;
use super::socket::{
    AGENT_SOCKET, ATTEMPT, DEAF_ENGINE, FREE_ENGINE, RANK_SLOT, RESTARTS, TERMINAL,
};
use super::warmed::{EngineRequest, WARM};
use super::{terminal, tree};
use linux::cpus::CpuList;
use linux::host::Host;
use linux::procfs::JOB_MARK;
use linux::sys::{self, Begun, Dispositions, ProcessGroup, Session, Signal, SignalSet};
use text::lang::failure;
use text::rank::{GlobalRank, RankId};
use text::text;
use verdict::outcome::{Notice, Planned, RankUnit};

/// The launch on this node, as fixed by the plan.
#[derive(Debug)]
pub struct Launch {
    pub start: Start,
    /// The ranks of this node, whether ranklaunch or an engine starts them.
    pub planned: Planned,
    /// The whole environment, ours and the container's.
    pub env: BTreeMap<OsString, OsString>,
    /// The signal state with which this program was started; children inherit it.
    pub dispositions: Dispositions,
    /// An elastic job's engine itself decides what follows the failure of a rank, and may start its ranks again.
    pub engine_restarts: bool,
    /// The engine is forked from the interpreter that the environment names with [`WARM`].
    pub forks_engine: bool,
    /// The stop budget, from the first TERM to the last KILL.
    pub grace: Duration,
    /// Time limit for execve, since the program may be on a dead mount.
    pub exec_timeout: Duration,
    /// The single rank inherits stdin, stdout and stderr; its output is not captured.
    pub interactive: bool,
    /// Number of the attempt, from 0.
    pub attempt: u32,
    /// Maximum number of attempts after the first.
    pub restarts: u32,
    /// Names the job in [`JOB_MARK`]; no colon.
    pub job: String,
    /// The CPUs of each local rank, None for a rank that is not bound. Empty if no rank is
    /// bound.
    pub bindings: Vec<Option<CpuList>>,
    /// The pid of a child of ours that watches the node beside the job. It is killed when the
    /// ranks are over, and one that does not end then is left behind.
    pub companion: Option<i32>,
    pub patience: Patience,
}

/// How long the ranks of this node may go on when one of them, or those of another node, have ended: while a notice is
/// pending, they may save.
#[derive(Clone)]
pub struct Patience(pub Arc<dyn Fn() -> Duration + Send + Sync>);

impl Default for Patience {
    /// None: they are stopped at once.
    fn default() -> Patience {
        Patience(Arc::new(|| Duration::ZERO))
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Patience({:?})", (self.0)())
    }
}

impl Launch {
    pub(super) fn has_engine(&self) -> bool {
        matches!(self.start, Start::Engine { .. })
    }
}

#[derive(Debug)]
pub enum Start {
    /// An engine that starts the ranks, with the shim in its command line.
    Engine { argv: Vec<OsString> },
    /// No engine: each rank is our own child, in a session of its own.
    Ranks { shim: PathBuf, argv: Vec<OsString>, ranks: Vec<RankStart> },
}

#[derive(Debug, Clone)]
pub struct RankStart {
    pub id: RankId,
    /// Variables of this rank only.
    pub env: BTreeMap<OsString, OsString>,
}

/// The processes that were started, and the pipes of those that are not ranks.
pub(super) struct StartedEngine {
    /// Our children: the engine, or one shim per rank with its rank.
    pub(super) children: Vec<(i32, Option<RankId>)>,
    /// The program of each, and the descriptor on which [`sys::Begun`] reports its execve.
    pub(super) reports: Vec<(PathBuf, OwnedFd)>,
    pub(super) out: OwnedFd,
    pub(super) err: OwnedFd,
}

/// The variable that marks a process as started for `job` by this agent, and its value: job, boot of the host, PID
/// namespace, and pid and start time there. The guard looks for the pid between two colons.
pub fn mark_of(job: &str) -> (&'static str, String) {
    let me = sys::own_pid();
    let started_at = tree::process(me).map_or(0, |process| process.start_ticks);
    let place = Host::live().process(me).pid_place().unwrap_or_else(|| "-:-".to_owned());
    (JOB_MARK, format!("{job}:{place}:{me}:{started_at}"))
}

/// Starts everything, and waits only for a warmed interpreter that is to fork the engine, which has some
/// seconds. After an error the caller has to end the processes that were started before it. Not cancel-safe.
pub(super) async fn start(
    launch: &Launch,
    socket: &str,
    token: &str,
) -> Result<StartedEngine, (PathBuf, io::Error)> {
    let nowhere = |error| (PathBuf::new(), error);
    let (out, out_write) = io::pipe().map_err(nowhere)?;
    let (err, err_write) = io::pipe().map_err(nowhere)?;
    let mut agent_socket = format!("{socket} {token} {}", launch.grace.as_millis());
    if launch.interactive {
        agent_socket = format!("{agent_socket} {TERMINAL}");
    }
    if launch.planned.what == RankUnit::Rank {
        agent_socket = format!("{agent_socket} {RESTARTS}{}", launch.restarts);
    }
    if launch.engine_restarts {
        agent_socket = format!("{agent_socket} {FREE_ENGINE}");
    }
    // Slurm signals every process of a step, and Python has no handler for these: an engine would
    // die of them. Ignored signals stay ignored by exec, so the shims give the ranks the default.
    let (mut dispositions, twice) = (launch.dispositions, SignalSet::of(&TWICE));
    let is_deaf = launch.has_engine() && !dispositions.ignored.has_any_of(&twice);
    if is_deaf {
        dispositions.ignored = dispositions.ignored.with(&twice);
        agent_socket = format!("{agent_socket} {DEAF_ENGINE}");
    }
    // A session of its own would detach a rank from the terminal. An engine creates sessions
    // itself and needs no terminal.
    let own_session = !launch.interactive || launch.has_engine();
    let (_, mark) = mark_of(&launch.job);

    let environment = |more: &BTreeMap<OsString, OsString>| {
        let mut env = launch.env.clone();
        env.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
        env.insert(AGENT_SOCKET.into(), OsString::from(&agent_socket));
        env.insert(JOB_MARK.into(), OsString::from(&mark));
        env.insert(ATTEMPT.into(), launch.attempt.to_string().into());
        match launch.bindings.as_slice() {
            [] => env.remove(OsStr::new(bind::CPUS)),
            bindings => env.insert(bind::CPUS.into(), bind::encode(bindings)),
        };
        env
    };
    let streams = |is_first: bool| -> io::Result<[OwnedFd; 3]> {
        let input = if is_first { terminal::own_stdin() } else { terminal::no_stdin() }?;
        Ok([input, out_write.try_clone()?.into(), err_write.try_clone()?.into()])
    };
    let spawn = |argv: &[OsString], more: &BTreeMap<OsString, OsString>, is_first: bool| {
        let program = PathBuf::from(argv.first().cloned().unwrap_or_default());
        let begin = || {
            sys::start(argv, &environment(more), streams(is_first)?, || {
                if own_session { Session::begin() } else { ProcessGroup::begin() }?;
                dispositions.restore_in_child()
            })
        };
        let Begun { pid, report } = begin().map_err(|error| (program.clone(), error))?;
        Ok((pid, Some((program, report))))
    };
    let request = |argv: &[OsString]| {
        let offered = launch.env.get(OsStr::new(WARM)).filter(|_| launch.forks_engine)?;
        let ignored: &[Signal] = if is_deaf { &TWICE } else { &[] };
        let streams = streams(true).ok()?;
        EngineRequest::new(offered, argv, &environment(&BTreeMap::new()), ignored, streams)
    };

    let (mut children, mut reports) = (Vec::new(), Vec::new());
    let mut begun = |(pid, report), rank| {
        children.push((pid, rank));
        reports.extend(report);
    };
    match &launch.start {
        Start::Engine { argv } => {
            let forked = match request(argv) {
                Some(request) => request.fork().await,
                None => None,
            };
            match forked {
                Some(pid) => begun((pid, None), None),
                None => begun(spawn(argv, &BTreeMap::new(), true)?, None),
            }
        }
        Start::Ranks { shim, argv, ranks } => {
            let mut line = vec![shim.clone().into_os_string(), "rank".into(), "--".into()];
            line.extend(argv.iter().cloned());
            for (at, rank) in ranks.iter().enumerate() {
                let mut env = rank.env.clone();
                let RankId { global, local } = rank.id;
                env.insert(RANK_SLOT.into(), format!("{global} {local}").into());
                begun(spawn(&line, &env, at == 0)?, Some(rank.id));
            }
        }
    }
    Ok(StartedEngine { children, reports, out: out.into(), err: err.into() })
}

/// A program that is not executed after this time is reported.
const QUIET: Duration = Duration::from_secs(5);

pub(super) struct Launching {
    since: Instant,
    timeout: Duration,
    /// Our own children.
    begun: Vec<Starting>,
    /// The programs of ranks, which their shims execute.
    ranks: Vec<(RankId, String, Instant)>,
    told: bool,
}

struct Starting {
    program: PathBuf,
    report: AsyncFd<OwnedFd>,
}

impl Launching {
    pub(super) fn new(
        reports: Vec<(PathBuf, OwnedFd)>,
        timeout: Duration,
    ) -> io::Result<Launching> {
        let watched = |(program, report): (PathBuf, OwnedFd)| {
            rustix::io::ioctl_fionbio(&report, true)?;
            Ok(Starting { program, report: sys::watch(report)? })
        };
        let begun = reports.into_iter().map(watched).collect::<io::Result<_>>()?;
        Ok(Launching { since: Instant::now(), timeout, begun, ranks: Vec::new(), told: false })
    }

    /// Records that a shim is about to execute its rank's program.
    pub(super) fn rank_begins(&mut self, rank: RankId, program: String) {
        self.ranks.push((rank, program, Instant::now()));
    }

    /// Records that the rank's program was executed, or never will be.
    pub(super) fn rank_is_through(&mut self, rank: GlobalRank) {
        self.ranks.retain(|(id, _, _)| id.global != rank);
    }

    /// Whether all our own children were executed.
    pub(super) fn is_through(&self) -> bool {
        self.begun.is_empty()
    }

    /// Completes when [`look`](Self::look) has something to read. Cancel-safe.
    pub(super) async fn changed(&self) {
        poll_fn(|context| {
            for one in &self.begun {
                while let Poll::Ready(ready) = one.report.poll_read_ready(context) {
                    match ready {
                        Ok(mut ready) if !sys::is_readable(&one.report) => ready.clear_ready(),
                        _ => return Poll::Ready(()),
                    }
                }
            }
            Poll::Pending
        })
        .await;
    }

    /// Reads the reports.
    ///
    /// # Errors
    /// The first program whose execve failed or was late, and why.
    pub(super) fn look(&mut self) -> Result<(), (PathBuf, io::Error)> {
        let mut failed = None;
        self.begun.retain(|one| {
            let mut number = [0; 4];
            match rustix::io::read(&one.report, &mut number) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => true,
                Ok(4) => {
                    let error = io::Error::from_raw_os_error(i32::from_ne_bytes(number));
                    failed.get_or_insert((one.program.clone(), error));
                    false
                }
                Ok(_) | Err(_) => false,
            }
        });
        if let Some(failed) = failed {
            return Err(failed);
        }
        if let Some(late) = self.begun.first().filter(|_| self.since.elapsed() >= self.timeout) {
            let seconds = self.timeout.as_secs_f64();
            let why = text!(
                "it was not executed within {seconds} s; its mount may be dead",
                "{seconds} 秒内仍未开始执行，其挂载点可能已失效"
            );
            return Err((late.program.clone(), failure(io::ErrorKind::TimedOut, why)));
        }
        Ok(())
    }

    /// Reports each program that hangs, once.
    pub(super) fn tell(&mut self, notice: &mut (dyn FnMut(Notice) + Send)) {
        if let Some(one) = self.begun.first()
            && !self.told
            && self.since.elapsed() >= QUIET
        {
            self.told = true;
            let program = one.program.display().to_string();
            let given_up = Some(self.timeout);
            notice(Notice::NotExecuted { rank: None, program, after: QUIET, given_up });
        }
        self.ranks.retain(|(rank, program, since)| {
            let late = since.elapsed() >= QUIET;
            if late {
                let (rank, program) = (Some(*rank), program.clone());
                notice(Notice::NotExecuted { rank, program, after: QUIET, given_up: None });
            }
            !late
        });
    }

    /// The next time to call [`look`](Self::look) and [`tell`](Self::tell).
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let told = if self.told { self.timeout } else { QUIET.min(self.timeout) };
        let own = (!self.is_through()).then(|| self.since + told);
        let ranks = self.ranks.iter().map(|(_, _, since)| *since + QUIET);
        ranks.chain(own).min()
    }
}
