//! The rank shim: the process between the engine and the user's program.
//!
//! The engine starts it in place of the script. It creates the pipes, sends their read ends and
//! its identity to the agent, starts the program and waits for it. It reports the exact end of
//! the rank, which the agent cannot learn otherwise: the engine is the parent of a rank and
//! reports only that something failed. It ends what the rank leaves behind and then ends as the
//! rank did: same code, or same signal. An interactive rank gets the launcher's own streams and
//! terminal instead of pipes.
//!
//! One thread, no runtime. Ignores every catchable signal, since it must outlive its rank. An engine
//! that gave it a process group signals that group; the rank has another one, and gets from the
//! shim what it does not have yet ([`super::forwarded`]). A stop reaches the user's process alone, its
//! helpers when that has ended ([`super::asked`]).

mod stay;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::bind::{self, Placement};
use super::forwarded::{self, Forwarded, TWICE, WATCHED};
use super::socket::{
    self, AGENT_SOCKET, ATTEMPT, DEAF_ENGINE, FREE_ENGINE, FromRank, RANK_SLOT, RESTARTS, TERMINAL,
    ToRank,
};
use super::terminal::{self, Terminal};
use super::warmed::{self, ADOPTED, Adoption, WARM};
use crate::inject;
use linux::sys::{self, Dispositions, ProcessGroup, SignalQueue, SignalSet, own_pid};
use stay::{Lent, NAMED, Shim};
use text::lang::{Text, cause};
use text::rank::{GlobalRank, LocalRank};
use text::text;
use verdict::Verdict;
use verdict::outcome::{End, exec_code};

/// Runs the program named by `argv` as a rank. Gives the exit code.
///
/// Without an agent (no socket in the environment, or no listener) it execs the program.
pub fn rank(argv: Vec<OsString>) -> i32 {
    let argv = match argv.split_first() {
        // argparse may have removed the separator.
        Some((first, rest)) if first == "--" => rest.to_vec(),
        _ => argv,
    };
    let Some((program, args)) = argv.split_first() else {
        complain(&text!(
            "no program given\n  hint: this role is started by ranklaunch itself",
            "没有给出程序\n  提示：该角色由 ranklaunch 自己启动"
        ));
        return 64;
    };
    let mut command = Command::new(program);
    command.args(args);
    // Variables of ours that no rank gets.
    for name in [AGENT_SOCKET, RANK_SLOT, bind::CPUS, WARM, ADOPTED] {
        command.env_remove(name);
    }
    for (name, value) in inject::for_rank(|name| std::env::var_os(name)) {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    for (name, value) in attempts(|name| std::env::var(name).ok()) {
        command.env(name, value);
    }
    if std::env::var_os(RANK_SLOT).is_none() {
        terminal::leave_stdin_to_first(is_first());
    }
    let adoption = Adoption::find();
    // Asks before the agent hears of a shim that may not have the rank.
    if adoption.is_none() && std::env::var_os(AGENT_SOCKET).is_some() {
        match warmed::ask(&command) {
            Ok(Some(relay)) => return relay.stay(),
            Ok(None) => {}
            Err(late) => complain(&late),
        }
    }
    let Some(agent) = Agent::find() else {
        if adoption.is_some() {
            // The shim that asked starts the rank.
            return Verdict::Internal.code();
        }
        let inherited = dispositions();
        sys::in_child(&mut command, move || inherited.restore_in_child());
        let error = command.exec();
        complain(&not_executed(program, &error));
        return exec_code(&error);
    };
    let is_adopted = adoption.is_some();
    match start(agent, command, &program.to_string_lossy(), adoption) {
        Ok(mut shim) => shim.stay(),
        // The shim that asked, or the agent, has ended or waits no more: the program is not to blame.
        Err(error) if is_adopted && error.kind() == io::ErrorKind::BrokenPipe => {
            Verdict::Internal.code()
        }
        Err(error) => {
            complain(&not_executed(program, &error));
            exec_code(&error)
        }
    }
}

fn not_executed(program: &OsStr, error: &io::Error) -> Text {
    let (program, Text { en, zh }) = (program.display(), cause(error));
    text!("cannot execute {program}: {en}", "无法执行 {program}：{zh}")
}

fn not_begun(error: &io::Error) -> Text {
    let Text { en, zh } = cause(error);
    text!(
        "the process that was forked for this rank did not begin ({en}): it starts by itself",
        "为该 rank fork 的进程未能开始（{zh}）：改为自行启动"
    )
}

/// Prints to standard error, the only stream of a rank without its program.
fn complain(text: &Text) {
    let _ = io::stderr().lock().write_all(complaint(text).as_bytes());
}

fn complaint(text: &Text) -> String {
    format!("ranklaunch rank: {}\n", text.get(bind::language()))
}

struct Agent {
    socket: OwnedFd,
    token: String,
    /// Grace period for leftovers of the rank.
    grace: Duration,
    /// The rank keeps the launcher's streams.
    interactive: bool,
    /// The shim is below an engine that must not see a failure before the other ranks have ended.
    waits: bool,
    below_engine: bool,
}

/// The signal dispositions of the rank: those of the launcher.
fn dispositions() -> Dispositions {
    let mut inherited = Dispositions::inherited();
    let value = std::env::var(AGENT_SOCKET).unwrap_or_default();
    if value.split(' ').any(|word| word == DEAF_ENGINE) {
        inherited.ignored = inherited.ignored.without(&SignalSet::of(&TWICE));
    }
    inherited
}

impl Agent {
    fn find() -> Option<Agent> {
        let value = std::env::var(AGENT_SOCKET).ok()?;
        let mut words = value.split(' ');
        let has = |name: &str| value.split(' ').any(|word| word == name);
        let below_engine = std::env::var_os(RANK_SLOT).is_none();
        Some(Agent {
            socket: socket::dial(words.next()?).ok()?,
            token: words.next()?.to_owned(),
            grace: Duration::from_millis(words.next()?.parse().ok()?),
            interactive: has(TERMINAL),
            waits: below_engine && !has(FREE_ENGINE),
            below_engine,
        })
    }
}

fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.trim().parse().ok()
}

/// Whether the engine has this rank as the first of the node. With torchrun's
/// `--virtual-local-rank` each has LOCAL_RANK 0.
fn is_first() -> bool {
    let in_world = number("RANK").zip(number("LOCAL_WORLD_SIZE"));
    number("LOCAL_RANK").unwrap_or(0) == 0
        && in_world.is_none_or(|(rank, ranks)| rank.checked_rem(ranks).unwrap_or(0) == 0)
}

/// The rank from the slot that the agent gave, else from the engine's variables. An engine that
/// starts a single process may set none.
fn slot() -> (Option<GlobalRank>, LocalRank) {
    std::env::var(RANK_SLOT)
        .ok()
        .and_then(|value| {
            let (rank, local) = value.split_once(' ')?;
            Some((Some(GlobalRank(rank.parse().ok()?)), LocalRank(local.parse().ok()?)))
        })
        .unwrap_or_else(|| {
            let local = LocalRank(number("LOCAL_RANK").unwrap_or(0));
            (number("RANK").map(GlobalRank), local)
        })
}

/// The agent's answer to a Hello without pipes: its streams become the rank's.
fn take_streams(agent: &OwnedFd, command: &mut Command) -> io::Result<Option<Lent>> {
    let Some((ToRank::Terminal { owner }, streams)) = socket::receive(agent)? else {
        return Err(io::ErrorKind::ConnectionAborted.into());
    };
    let Ok([stdin, stdout, stderr]) = <[OwnedFd; 3]>::try_from(streams) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    // An engine that gave the rank a session has removed it from job control. It can read the
    // terminal anyway, and the guard forwards Ctrl-C.
    let owner = ProcessGroup(owner);
    let terminal = Terminal::of(stdin.as_fd(), owner);
    command.stdin(stdin).stdout(stdout).stderr(stderr);
    Ok(terminal.map(|terminal| Lent { terminal, owner }))
}

const COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
const MOST: &str = "TORCHELASTIC_MAX_RESTARTS";

/// The variables that show the attempts to a rank whose shim has these: the same with every engine. torchrun counts only
/// its own restarts, which occur only in an elastic job; the launcher starts all nodes again. So the shim, which comes
/// after the engine, adds the launcher's numbers to torchrun's variables, by which programs decide whether they resume.
/// A command of the user's gets none: its own launcher counts for its ranks.
fn attempts(variable: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
    let number = |name: &str| variable(name)?.trim().parse::<u32>().ok();
    let words = variable(AGENT_SOCKET).unwrap_or_default();
    let most = words.split(' ').find_map(|word| word.strip_prefix(RESTARTS)?.parse::<u32>().ok());
    let Some((attempt, most)) = number(ATTEMPT).zip(most) else { return Vec::new() };
    let added = |name: &'static str, own: u32| {
        (name, number(name).unwrap_or(0).saturating_add(own).to_string())
    };
    vec![added(COUNT, attempt), added(MOST, most)]
}

fn start(
    agent: Agent,
    mut command: Command,
    program: &str,
    adoption: Option<Adoption>,
) -> io::Result<Shim> {
    let inherited = dispositions();
    let me = rustix::process::getpid();
    rustix::process::set_child_subreaper(Some(me))?;
    Dispositions::ignore_all();
    // A blocked signal is queued even if it is ignored.
    let signals = SignalQueue::begin(SignalSet::of(&WATCHED))?;
    let parent = match &adoption {
        Some(adoption) => {
            adoption.adopt()?;
            adoption.engine
        }
        None => sys::parent_pid(),
    };
    // Under an engine that gave us no group, the rank stays in that of the engine.
    let engine = (!agent.interactive && ProcessGroup::own().0 == own_pid()).then_some(parent);
    let manager = forwarded::manager_above();

    let Agent { socket: agent, token, grace, interactive, waits, below_engine } = agent;
    let began = SystemTime::now();
    let (rank, local_rank) = slot();
    let world_size = number("WORLD_SIZE");
    let named: String = program.chars().take(NAMED).collect();
    let program = named.clone();
    let hello = FromRank::Hello { token, rank, local_rank, world_size, program };
    let placement = Placement::of(local_rank.0);
    let mut running = None;
    let terminal = if interactive {
        socket::send(&agent, &hello, &[])?;
        take_streams(&agent, &mut command)?
    } else {
        let (out_read, out_write) = io::pipe()?;
        let (err_read, err_write) = io::pipe()?;
        socket::send(&agent, &hello, &[out_read.as_fd(), err_read.as_fd()])?;
        if let Some(forked) = &adoption {
            placement.give(forked.rank, &err_write);
            if engine.is_some() {
                ProcessGroup::give(forked.rank);
            }
            match forked.begin(out_write.as_fd(), err_write.as_fd()) {
                Ok(()) => running = Some(forked.rank),
                Err(error) => {
                    let words = complaint(&not_begun(&error));
                    let _ = rustix::io::write(&err_write, words.as_bytes());
                }
            }
        }
        command.stdout(OwnedFd::from(out_write)).stderr(OwnedFd::from(err_write));
        None
    };
    if let Some(lent) = &terminal {
        sys::in_child(&mut command, lent.terminal.lend_in_child()?);
    }
    sys::in_child(&mut command, move || {
        placement.take();
        if engine.is_some() {
            ProcessGroup::begin()?;
        }
        inherited.restore_in_child()
    });
    let spawned = match running {
        Some(pid) => Ok(pid),
        None => command.spawn().map(|child| i32::try_from(child.id()).unwrap_or(0)),
    };
    // The command holds the write ends; with these open the agent would never see the end of
    // file.
    drop(command);
    match spawned {
        Ok(pid) => {
            let _ = socket::send(&agent, &FromRank::Started { pid }, &[]);
            Ok(Shim {
                agent: Some(agent),
                signals,
                forwarded: Forwarded::new(manager.map(|manager| manager.spread)),
                engine,
                manager: manager.map(|manager| manager.pid),
                began,
                child: pid,
                reaped: false,
                grace,
                childless: false,
                killed_in: None,
                terminal,
                waits,
                below_engine,
                stop: None,
                waits_for_others: false,
                may_leave: false,
                relay: adoption.map(|adoption| adoption.relay),
            })
        }
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(0);
            let failed = FromRank::NotExecuted { program: named, errno };
            let _ = socket::send(&agent, &failed, &[]);
            let end = End::Code(exec_code(&error));
            let _ = socket::send(&agent, &FromRank::Ended { end }, &[]);
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launcher_attempts_are_added_to_engine_restarts() {
        let of = |set: &[(&str, &str)]| {
            let seen = attempts(|name| {
                set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
            });
            seen.into_iter().map(|(_, value)| value).collect::<Vec<_>>().join(" ")
        };
        let agent = |words: &'static str| (AGENT_SOCKET, words);
        let ours = agent("name token 28000 restarts=3");
        assert_eq!(of(&[ours, (ATTEMPT, "2")]), "2 3");
        assert_eq!(of(&[ours, (ATTEMPT, "2"), (COUNT, "0"), (MOST, "0")]), "2 3");
        let elastic = agent("name token 28000 restarts=0 free-engine");
        assert_eq!(of(&[elastic, (ATTEMPT, "0"), (COUNT, "1"), (MOST, "3")]), "1 3");
        assert_eq!(of(&[agent("name token 28000"), (ATTEMPT, "1")]), "", "a command");
        assert_eq!(of(&[(ATTEMPT, "1"), (COUNT, "4")]), "", "no agent");
    }
}
