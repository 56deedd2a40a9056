//! Any other node while the job runs: reports to node 0, hears its verdict.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use super::channel::Channel;
use super::session::{Command, Ends, Event};
use super::types::{Cause, Config, Loss, Memory, Unit, now};
use super::wire::Frame;

/// How long the end of a connection may take.
const DRAIN: Duration = Duration::from_secs(1);
/// Between two looks at our memory.
const WATCH: Duration = Duration::from_millis(500);

/// Runs until the conductor leaves. `offset`: milliseconds from our clock to node 0's.
pub(super) async fn run(
    config: Config,
    master: String,
    mut channel: Channel,
    offset: i64,
    ends: Ends,
) {
    let Ends { events, mut commands } = ends;
    let longest = config.longest_silence();
    let mut tick = interval(config.beat());
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watch = interval(WATCH.min(config.beat()));
    watch.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = None;
    let mut masters = None;
    let mut heard = Instant::now();
    let mut own: Option<Cause> = None;
    let loss = loop {
        tokio::select! {
            // What was said while we did not run comes before any judgement of silence.
            biased;
            frame = channel.receive() => {
                heard = Instant::now();
                match frame {
                    Ok(Frame::Stop) => drop(events.send(Event::Stop)),
                    Ok(Frame::Verdict { cause, again }) => {
                        let _ = events.send(Event::Verdict { cause: Box::new(cause), again });
                        break None;
                    }
                    Ok(Frame::AllDone) => {
                        let _ = events.send(Event::AllDone);
                        break None;
                    }
                    Ok(Frame::Ping) => drop(timeout(config.peer_timeout, channel.send(&Frame::Pong)).await),
                    Ok(Frame::Beat { memory }) => masters = memory.or(masters),
                    Ok(_) => {}
                    Err(_) => break Some(Loss::Died),
                }
            }
            command = commands.recv() => {
                let frame = match command {
                    Some(Command::Failed(cause)) => {
                        let cause = Cause { at: cause.at.saturating_add(offset), ..*cause };
                        own = Some(cause.clone());
                        Frame::Failed(cause)
                    }
                    Some(Command::Done) => Frame::Done,
                    None => break None,
                };
                // A connection that does not take it ends by silence.
                let _ = timeout(config.peer_timeout, channel.send(&frame)).await;
            }
            _ = tick.tick() => {
                told = (config.memory)();
                let beat = Frame::Beat { memory: told };
                let _ = timeout(config.peer_timeout, channel.send(&beat)).await;
            }
            // Memory that runs out does so between two heartbeats.
            _ = watch.tick() => {
                let memory = (config.memory)();
                if memory.is_some_and(Memory::is_short) && !told.is_some_and(Memory::is_short) {
                    tick.reset_immediately();
                }
            }
            () = sleep_until(heard + longest) => break Some(Loss::Silent),
        }
    };
    if let Some(loss) = loss {
        let _ = events.send(Event::Stop);
        // What we know ourselves came first.
        let cause = own.unwrap_or_else(|| {
            let at = now().saturating_add(offset);
            let on = (config.unit == Unit::Task).then_some(0);
            Cause::lost((0, on), &master, loss, masters, config.peer_timeout, at)
        });
        let _ = events.send(Event::Verdict { cause: Box::new(cause), again: None });
    }
    let _ = timeout(DRAIN, channel.close()).await;
}
