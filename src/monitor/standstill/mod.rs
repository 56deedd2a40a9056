//! Watches whether the job makes progress, and reports who holds it up if it does not.
//!
//! Takes the starts and ends of ranks; gives the hangs that were found. A thread of its own looks and judges.
//! Never blocks a rank or the supervision.

mod remarks;
mod shared;
mod watching;

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use serde_json::Value;

pub use shared::{Ask, HangQuestion, Reporter, Standstill, Watched};

use crate::end_request::{self, Asked};
use crate::hang::FirstCulprit;
use shared::Shared;
use text::rank::RankId;
use verdict::outcome::End;
use watching::Watching;

/// The handle of the thread. It ends when this is dropped.
#[derive(Debug)]
pub struct HangWatch {
    /// Tells the thread to inform the other nodes that the job goes on.
    tell_others: Option<Sender<()>>,
    shared: Option<Arc<Shared>>,
    asked: Asked,
}

impl HangWatch {
    /// None if nothing is watched. If no thread can be started, the job is not judged.
    pub fn start(watched: Option<Watched>) -> HangWatch {
        let nothing = || HangWatch { tell_others: None, shared: None, asked: Asked::default() };
        let Some(watched) = watched else { return nothing() };
        let shared = Arc::new(Shared::new(watched));
        let (tell_others, told) = channel();
        let (end, asked) = end_request::new();
        let mut watching = Watching::new(Arc::clone(&shared), end);
        let thread = std::thread::Builder::new().name("hang".into()).stack_size(1 << 20);
        match thread.spawn(move || watching.run(&told)) {
            Ok(_) => HangWatch { tell_others: Some(tell_others), shared: Some(shared), asked },
            Err(_) => nothing(),
        }
    }

    pub fn began(&self, rank: RankId, pid: i32) {
        if let Some(shared) = &self.shared {
            shared.began(rank, pid);
        }
    }

    pub fn ended(&self, rank: RankId, end: Option<End>) {
        let Some(shared) = &self.shared else { return };
        if shared.ended(rank, end.is_some_and(End::success))
            && let Some(tell_others) = &self.tell_others
        {
            let _ = tell_others.send(());
        }
    }

    /// The ranks end because they are told to: their behaviour from now on proves nothing about a hang.
    pub fn stopping(&self) {
        if let Some(shared) = &self.shared {
            shared.state().is_over = true;
        }
    }

    /// Function that answers the questions of node 0.
    pub fn answerer(&self) -> impl Fn(HangQuestion) -> Option<Vec<u8>> + Send + Sync + use<> {
        let shared = self.shared.clone();
        move |question| shared.as_ref()?.answer(question)
    }

    /// Completes when the job stands still and is to end; once.
    pub fn take_end(&mut self) -> impl Future<Output = ()> + Send + use<> {
        std::mem::take(&mut self.asked).made()
    }

    /// All hangs of the attempt, in the form of run.json.
    pub fn found(&self) -> Vec<Value> {
        self.shared.as_ref().map(|shared| shared.state().found.clone()).unwrap_or_default()
    }

    /// The rank that the others waited for when the attempt ended.
    pub fn culprit(&self) -> Option<FirstCulprit> {
        let state = self.shared.as_ref()?.state();
        state.first.clone().filter(|_| state.stands)
    }
}

impl Drop for HangWatch {
    /// The thread may still judge, and node 0 may still report; neither belongs to the next attempt.
    fn drop(&mut self) {
        if let Some(shared) = &self.shared {
            let mut state = shared.state();
            (state.is_over, state.is_closed) = (true, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Mutex;
    use std::time::Duration;

    use super::shared::JudgedHang;
    use super::*;
    use crate::status::StatusBoard;
    use crate::watch::{NodeSources, RasSource, Surroundings};
    use linux::host::Host;
    use logs::{Console, Logs, LogsConfig};
    use node::observe::Counters;
    use settings::{ConsoleMode, ConsolePrefix, Reaction};
    use text::lang::{Lang, Text};
    use text::rank::{GlobalRank, LocalRank};
    use text::style::Color;
    use verdict::Confidence;
    use verdict::outcome::{Planned, RankUnit};

    const RANK: RankId = RankId { global: GlobalRank(0), local: LocalRank(0) };

    struct Keeper(Arc<Mutex<Vec<String>>>);

    impl Reporter for Keeper {
        fn document(&self, _: &Standstill) -> Value {
            Value::Null
        }

        fn keep(&self, event: Value) {
            let message = event["message"].as_str().unwrap_or_default().to_owned();
            self.0.lock().expect("kept").push(message);
        }

        fn stands_still(&self, _: &Standstill, _: Option<Reaction>) {}

        fn remark(&self, _: &Standstill) {}

        fn goes_on(&self) {}
    }

    /// The watch of a job of two ranks, and the events that it keeps.
    fn watch() -> (HangWatch, Arc<Mutex<Vec<String>>>) {
        let null = || File::options().write(true).open("/dev/null").expect("/dev/null").into();
        let console = Console::new(null(), null(), Lang::En, Color::Never);
        let config = LogsConfig {
            folder: None,
            world_size: 2,
            local_ranks: 2,
            console: ConsoleMode::None,
            prefix: ConsolePrefix::Rank,
            cap_rank: 1 << 20,
            cap_node: 1 << 20,
            backlog: None,
        };
        let sources = NodeSources {
            host: Arc::new(Host::live()),
            hcas: Arc::new(|_| Counters::default()),
            gpus: Arc::new(|_, _| Vec::new()),
        };
        let kept: Arc<Mutex<Vec<String>>> = Arc::default();
        let watched = Watched {
            // The first look comes after the end of the test.
            after: Duration::from_secs(3600),
            on_hang: Reaction::Report,
            node: 0,
            planned: Planned {
                what: RankUnit::Rank,
                first: GlobalRank(0),
                local: 2,
                world: Some(2),
            },
            control: None,
            surroundings: Surroundings::new(sources, RasSource::IfNamed, Some(2)),
            logs: Arc::new(Logs::start(config, console)),
            reporter: Box::new(Keeper(Arc::clone(&kept))),
            board: StatusBoard::new("a".to_owned()),
            ask: Box::new(|_, _| Vec::new()),
            only_answers: false,
        };
        (HangWatch::start(Some(watched)), kept)
    }

    fn hang() -> JudgedHang {
        let first = FirstCulprit {
            node: Some(0),
            rank: Some(1),
            frame: None,
            text: Text::same(""),
            hint: Text::same(""),
            confidence: Confidence::Likely,
            waiting: vec![0],
        };
        JudgedHang { document: serde_json::json!({}), first: Some(first) }
    }

    /// A rank that ends with code 0 because it is told to does not show that the job goes on.
    #[test]
    fn stop_does_not_end_a_reported_hang() {
        for (stops, expected) in
            [(true, &["hang"][..]), (false, &["hang", "the job goes on after a hang"])]
        {
            let (watch, kept) = watch();
            watch.began(RANK, 1);
            watch.shared.as_ref().expect("it watches").note(hang());
            if stops {
                watch.stopping();
            }
            watch.ended(RANK, Some(End::Code(0)));
            assert_eq!(*kept.lock().expect("kept"), expected);
            assert_eq!(watch.culprit().is_some(), stops);
        }
    }

    /// The next attempt has another watch, but the same board and console.
    #[test]
    fn judgement_after_the_end_is_not_reported() {
        let (watch, kept) = watch();
        let shared = Arc::clone(watch.shared.as_ref().expect("it watches"));
        drop(watch);
        shared.note(hang());
        assert_eq!(*kept.lock().expect("kept"), [""; 0]);
        assert!(shared.watched.board.snapshot().standstill.is_none());
    }
}
