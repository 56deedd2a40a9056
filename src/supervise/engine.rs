//! Starting: the engine, or the ranks themselves.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use super::bind;
use super::message::{AGENT_SOCKET, JOB_MARK, RANK_SLOT, TERMINAL};
use super::outcome::Planned;
use super::tree;
use crate::cpus::CpuList;
use crate::rank::RankId;
use crate::sys::{self, Begun, Dispositions};

/// A standard input that ends at once, also in a root without /dev/null.
fn nothing() -> io::Result<OwnedFd> {
    match std::fs::File::open("/dev/null") {
        Ok(null) => Ok(null.into()),
        // Of a pipe whose other end is closed.
        Err(_) => io::pipe().map(|(end, _)| end.into()),
    }
}

/// What to start, as fixed by the plan.
#[derive(Debug)]
pub struct Launch {
    pub start: Start,
    /// The ranks of this node, whoever starts them.
    pub planned: Planned,
    /// The whole environment, ours and the container's.
    pub env: BTreeMap<OsString, OsString>,
    /// Signal state that the program was started with; children get it.
    pub dispositions: Dispositions,
    /// The stop budget, from the first TERM to the last KILL.
    pub grace: Duration,
    /// How long a program may take to be executed: its mount may be dead.
    pub exec_timeout: Duration,
    /// The only rank keeps our stdin, stdout and stderr; nothing of it is captured.
    pub interactive: bool,
    /// Names the job in [`JOB_MARK`]; no colon.
    pub job: String,
    /// The CPUs of each local rank, None where a rank is left alone; empty: nothing is bound.
    pub bindings: Vec<Option<CpuList>>,
}

#[derive(Debug)]
pub enum Start {
    /// An engine that starts the ranks, with the shim in its command line.
    Engine { argv: Vec<OsString> },
    /// Each rank by ourselves, in a session of its own.
    Ranks { shim: PathBuf, argv: Vec<OsString>, ranks: Vec<RankStart> },
}

#[derive(Debug, Clone)]
pub struct RankStart {
    pub id: RankId,
    /// Variables of this rank alone.
    pub env: BTreeMap<OsString, OsString>,
}

/// The processes that were begun, and the pipes of everything that is not a rank.
pub(super) struct Started {
    /// Our children: the engine, or one shim per rank with its rank.
    pub(super) children: Vec<(i32, Option<RankId>)>,
    /// What becomes of them: the program of each, and what [`sys::Begun`] reports.
    pub(super) reports: Vec<(PathBuf, OwnedFd)>,
    pub(super) out: OwnedFd,
    pub(super) err: OwnedFd,
}

/// Begins everything, and waits for none of it. After an error those before it are there,
/// for the caller to end.
pub(super) fn start(
    launch: &Launch,
    socket: &str,
    token: &str,
) -> Result<Started, (PathBuf, io::Error)> {
    let nowhere = |error| (PathBuf::new(), error);
    let (out, out_write) = io::pipe().map_err(nowhere)?;
    let (err, err_write) = io::pipe().map_err(nowhere)?;
    let me = sys::own_pid();
    let started_at = tree::process(me).map_or(0, |process| process.start_ticks);
    let mut agent_socket = format!("{socket} {token} {}", launch.grace.as_millis());
    if launch.interactive {
        agent_socket = format!("{agent_socket} {TERMINAL}");
    }
    // A session of its own would cut a rank off from the terminal; an engine makes
    // sessions itself, and has no business at the terminal.
    let own_session = !launch.interactive || matches!(launch.start, Start::Engine { .. });
    let mark = format!("{}:{me}:{started_at}", launch.job);

    let spawn = |argv: &[OsString], more: &BTreeMap<OsString, OsString>| {
        let program = PathBuf::from(argv.first().cloned().unwrap_or_default());
        let begin = || {
            let mut env = launch.env.clone();
            env.extend(more.iter().map(|(name, value)| (name.clone(), value.clone())));
            env.insert(AGENT_SOCKET.into(), OsString::from(&agent_socket));
            env.insert(JOB_MARK.into(), OsString::from(&mark));
            match launch.bindings.as_slice() {
                [] => env.remove(OsStr::new(bind::CPUS)),
                bindings => env.insert(bind::CPUS.into(), bind::encode(bindings)),
            };
            let streams = [
                nothing()?,
                OwnedFd::from(out_write.try_clone()?),
                OwnedFd::from(err_write.try_clone()?),
            ];
            sys::start(argv, &env, streams, || {
                if own_session { sys::new_session() } else { sys::new_group() }?;
                sys::restore_in_child(&launch.dispositions)
            })
        };
        let Begun { pid, report } = begin().map_err(|error| (program.clone(), error))?;
        Ok((pid, (program, report)))
    };

    let (mut children, mut reports) = (Vec::new(), Vec::new());
    let mut begun = |(pid, report), rank| {
        children.push((pid, rank));
        reports.push(report);
    };
    match &launch.start {
        Start::Engine { argv } => begun(spawn(argv, &BTreeMap::new())?, None),
        Start::Ranks { shim, argv, ranks } => {
            let mut line = vec![shim.clone().into_os_string(), "rank".into(), "--".into()];
            line.extend(argv.iter().cloned());
            for rank in ranks {
                let mut env = rank.env.clone();
                let RankId { global, local } = rank.id;
                env.insert(RANK_SLOT.into(), format!("{global} {local}").into());
                begun(spawn(&line, &env)?, Some(rank.id));
            }
        }
    }
    Ok(Started { children, reports, out: out.into(), err: err.into() })
}
