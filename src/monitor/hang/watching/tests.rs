//! The watch of a job of two ranks.

use std::fs::File;
use std::sync::Mutex;
use std::time::Duration;

use super::super::shared::Reporter;
use super::*;
use crate::hang::Surroundings;
use crate::status::StatusBoard;
use crate::watch::{NodeSources, RasSource};
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
        planned: Planned { what: RankUnit::Rank, first: GlobalRank(0), local: 2, world: Some(2) },
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
