//! One attempt from the first fork to the last reaped process.
//!
//! A single task owns the state and puts everything that can happen (a shim
//! speaks, a child ends, the guard speaks, a deadline passes) in one order.
//! The state is in [`supervisor`], the rules of a stop are in [`stop`]. The loss
//! of the guard is a KILL at once.

mod stop;
mod supervisor;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::PathBuf;

use tokio::sync::mpsc;
use tokio::time::Instant;

use super::engine::{self, Launch, Launching, Start};
use super::link::{GuardCommand, GuardCommands};
use super::socket::ShimListener;
use super::tree;
use stop::kill_all_descendants;
pub use supervisor::Streams;
use supervisor::{Companion, ShimConnection, Supervisor};
use verdict::outcome::{Notice, Outcome, Owner, StopReason, Stream};

/// Runs one attempt. An error names the program that could not be started and the reason; then nothing
/// of the attempt is running.
///
/// `halt` completes when the job is to end for a reason that these ranks do not show: another node has
/// failed, or the job stands still.
pub async fn run(
    launch: &Launch,
    guard_commands: &GuardCommands,
    streams: &mut (dyn Streams + Send),
    notice: &mut (dyn FnMut(Notice) + Send),
    halt: impl Future<Output = StopReason>,
) -> Result<Outcome, (PathBuf, io::Error)> {
    tokio::pin!(halt);
    // Existing descendants do not belong to the job, such as a probe that a driver blocks.
    let others: HashSet<i32> = tree::living_below().into_iter().collect();
    let mut is_halted = false;
    let nowhere = |error| (PathBuf::new(), error);
    let listener = ShimListener::bind().map_err(nowhere)?;
    let mut ended =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::child()).map_err(nowhere)?;
    let (sender, mut said) = mpsc::unbounded_channel();
    let started = engine::start(launch, &listener.name, &listener.token).await;
    let started = started.and_then(|mut started| {
        let reports = std::mem::take(&mut started.reports);
        Ok((Launching::new(reports, launch.exec_timeout).map_err(nowhere)?, started))
    });
    let (launching, started) = match started {
        Ok(started) => started,
        Err(error) => {
            kill_all_descendants(&others, &mut ended).await;
            return Err(error);
        }
    };
    streams.attach(Owner::Engine, Stream::Out, started.out);
    streams.attach(Owner::Engine, Stream::Err, started.err);
    let mut state = Supervisor {
        token: listener.token.clone(),
        companion: launch
            .companion
            .filter(|pid| others.contains(pid))
            .and_then(tree::process)
            .map(|process| Companion { process, given_up: None }),
        others,
        records: HashSet::new(),
        grace: launch.grace,
        interactive: launch.interactive,
        has_engine: matches!(launch.start, Start::Engine { .. }),
        engine_restarts: launch.engine_restarts,
        children: started.children.iter().copied().collect(),
        shims: HashMap::new(),
        unreported: Vec::new(),
        nothing_left: false,
        launching,
        ranks: BTreeMap::new(),
        outcome: Outcome { planned: launch.planned, ..Outcome::default() },
        engine_weighed: false,
        stop: None,
        leftovers: None,
        streams,
        notice,
    };
    if state.has_engine {
        for (pid, _) in &started.children {
            (state.notice)(Notice::EngineStarted { pid: *pid });
        }
    }

    let mut next_id = 0u64;
    let mut guard_gone = false;
    loop {
        state.reap();
        // Connections are accepted after the reaping, so that the connection of a shim that has ended
        // is included.
        while let Some(connection) = listener.accept_waiting() {
            next_id += 1;
            state.shims.insert(next_id, ShimConnection::new(connection, next_id, sender.clone()));
        }
        while let Ok((id, word)) = said.try_recv() {
            state.on_shim_message(id, word);
        }
        // Launches are checked first, since the end of a child whose execve failed would be taken for
        // the engine's own end.
        match state.launching.look() {
            // A stop may have ended the program before execve.
            Err(error) if state.outcome.stop.is_none() => {
                kill_all_descendants(&state.others, &mut ended).await;
                return Err(error);
            }
            _ => state.launching.tell(state.notice),
        }
        state.report_unreported();
        state.weigh_engine();
        // All events are handled first, since nothing else may wake this loop before a deadline.
        state.advance();
        state.end_leftovers();
        if state.finished() {
            break;
        }
        let launched = state.launching.next_deadline().filter(|_| state.stop.is_none());
        let wake = launched.into_iter().fold(state.next_deadline().into(), Instant::min);
        tokio::select! {
            accepted = listener.accept() => if let Ok(connection) = accepted {
                next_id += 1;
                state.shims.insert(next_id, ShimConnection::new(connection, next_id, sender.clone()));
            },
            Some((id, word)) = said.recv() => state.on_shim_message(id, word),
            word = guard_commands.next(), if !guard_gone => {
                guard_gone = word == GuardCommand::Gone;
                state.on_guard_command(word);
            }
            reason = &mut halt, if !is_halted => {
                is_halted = true;
                state.begin_stop(reason);
            }
            () = state.launching.changed(), if !state.launching.is_through() => {}
            _ = ended.recv() => {}
            () = tokio::time::sleep_until(wake) => {}
        }
    }
    Ok(state.into_outcome())
}
