//! The order of the phases, and the effect of a refusal, a stop or a failure in each of them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use super::*;
use verdict::{Class, Id};

/// Phases that record their calls and follow a script.
#[derive(Default)]
struct Script {
    calls: RefCell<Vec<String>>,
    /// The phase that refuses.
    refuses: Option<&'static str>,
    /// The phase during which a stop is requested.
    stops: Option<&'static str>,
    /// The job has other nodes, so each attempt begins with the first phase.
    several: bool,
    /// Code, whether a further attempt follows, whether a stop was requested.
    runs: RefCell<VecDeque<(i32, bool, bool)>>,
    /// This node has no seat so often: None means that all meet again, a code that the job has ended.
    parked: RefCell<VecDeque<Option<i32>>>,
    /// Refuse only after this many runs.
    refuses_after: usize,
}

impl Script {
    fn note(&self, call: impl Into<String>) {
        self.calls.borrow_mut().push(call.into());
    }

    fn phase(&self, name: &'static str) -> Result<(), Refusal> {
        self.note(name);
        let runs = self.calls.borrow().iter().filter(|call| *call == "run").count();
        if self.refuses != Some(name) || runs < self.refuses_after {
            return Ok(());
        }
        let text = Text::same(name);
        Err(Refusal::new(Id::LayoutUnsolvable, text.clone(), text))
    }

    fn conduct(self) -> (String, i32) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let ending = runtime.block_on(conduct(&self));
        (self.calls.into_inner().join(" "), ending.code)
    }
}

fn ending(code: i32) -> Ending {
    let (class, text) = (Class::Script, Text::same(""));
    let (rank, node, id, hint) = (None, None, Id::RankExit, text.clone());
    Ending { code, class, id, rank, node, text, hint, why: None, consequence: false }
}

impl Phases for Script {
    type Observed = ();
    type OwnPlan = ();
    type Agreed = ();
    type Cleared = ();
    /// The number of the attempt.
    type Ready = u32;
    type Next = u32;

    async fn observe(&self) {
        self.note("observe");
    }

    async fn plan(&self, (): &(), _: Option<&u32>) -> Result<(), Refusal> {
        self.phase("plan")
    }

    async fn notify_peers(&self, (): &(), _: &Refusal) {
        self.note("notify");
    }

    async fn agree(&self, (): (), (): (), _: Option<u32>) -> Result<Met<(), u32>, Refusal> {
        self.phase("agree")?;
        let parked = self.parked.borrow_mut().pop_front();
        Ok(match parked {
            None => Met::Agreed(()),
            Some(None) => Met::Again(1),
            Some(Some(code)) => Met::Over(ending(code)),
        })
    }

    fn over(&self, _: &Ending) {
        self.note("over");
    }

    async fn clear(&self, (): &()) -> Result<(), Refusal> {
        self.phase("clear")
    }

    async fn share(&self, (): (), ending: Ending) -> Ending {
        self.note("share");
        ending
    }

    fn ready(&self, (): (), (): ()) -> u32 {
        0
    }

    async fn run(&self, _: &mut u32) -> Ended {
        self.note("run");
        let (code, again, told) = self.runs.borrow_mut().pop_front().unwrap_or_default();
        let again =
            again.then_some(Again { attempt: 1, pause: 1_000, tally: muster::Tally::default() });
        let why_not = (code != 0 && again.is_none()).then(|| Text::same("why-not"));
        let clock = Clock::of(Duration::ZERO, None);
        Ended { ending: ending(code), again, why_not, told, clock, rest: None }
    }

    async fn finish(&self, _: &mut u32, _: Option<Rest>, is_last: bool) {
        self.note(if is_last { "finish-all" } else { "finish" });
    }

    fn start_again(&self, _: u32, again: Again) -> Start<u32, u32> {
        match self.several {
            true => Start::Observe(Some(again.attempt)),
            false => Start::Run(again.attempt),
        }
    }

    async fn pause(&self, _: &Start<u32, u32>, _: Again) {
        self.note("pause");
    }

    async fn leave(&self, _: Halt) {}

    async fn until_stop<T>(&self, phase: impl Future<Output = T>) -> Result<T, Halt> {
        let done = phase.await;
        let last = self.calls.borrow().last().cloned();
        if last.as_deref() == self.stops && last.is_some() {
            Err(Halt::Signal(15))
        } else {
            Ok(done)
        }
    }

    fn say(&self, line: &Text) {
        self.note(line.en.clone());
    }

    fn refused(&self, refusal: &Refusal, earlier: Option<&Earlier>) -> Ending {
        self.note("refused");
        if let Some(Earlier { attempt, ending }) = earlier {
            self.note(format!("after-{}-of-{attempt}", ending.code));
        }
        Ending::refused(refusal)
    }

    fn stopped(&self, halt: Halt) -> Ending {
        self.note("stopped");
        Ending::halted(halt)
    }

    fn announce(&self, ending: &Ending, node: Option<u32>, _: Option<Clock>) {
        let node = node.map_or("?".to_owned(), |node| node.to_string());
        self.note(format!("announce-{}-of-{node}", ending.code));
    }

    async fn close(&self, clock: Option<Clock>) {
        self.note(if clock.is_some() { "close-by-clock" } else { "close" });
    }

    fn node(&self, (): &()) -> u32 {
        2
    }
}

#[test]
fn phases_run_in_order_until_a_refusal() {
    for (refuses, calls, code) in [
        (None, "observe plan agree clear run announce-0-of-2 finish-all close-by-clock", 0),
        // The nodes have not met yet, so they are notified at once.
        (Some("plan"), "observe plan notify refused announce-66-of-? close", 66),
        // The nodes of the muster learn of the refusal there.
        (Some("agree"), "observe plan agree refused announce-66-of-? close", 66),
        // All have agreed: the refusal is the ending of the job.
        (Some("clear"), "observe plan agree clear refused announce-66-of-2 share close", 66),
    ] {
        let script = Script { refuses, ..Script::default() };
        assert_eq!(script.conduct(), (calls.to_owned(), code), "{refuses:?}");
    }
}

#[test]
fn refusal_after_an_attempt_knows_its_ending() {
    let runs = RefCell::new([(137, true, false)].into());
    let (refuses, several) = (Some("agree"), true);
    let script = Script { refuses, several, runs, refuses_after: 1, ..Script::default() };
    let calls = "observe plan agree clear run finish pause observe plan agree refused \
        after-137-of-0 announce-66-of-2 close";
    assert_eq!(script.conduct(), (calls.to_owned(), 66));
}

#[test]
fn stop_ends_every_phase_before_the_start() {
    for (stops, calls) in [
        ("agree", "observe plan agree stopped announce-143-of-? close"),
        ("clear", "observe plan agree clear stopped announce-143-of-2 share close"),
        ("pause", "observe plan agree clear run finish pause stopped announce-143-of-2 close"),
    ] {
        let runs = RefCell::new([(1, true, false)].into());
        let script = Script { stops: Some(stops), runs, ..Script::default() };
        assert_eq!(script.conduct(), (calls.to_owned(), 143), "{stops}");
    }
}

#[test]
fn node_without_a_seat_meets_the_others_again_until_the_job_has_ended() {
    for (parked, calls, code) in [
        (vec![Some(0)], "over announce-0-of-? close", 0),
        (vec![Some(143)], "over announce-143-of-? close", 143),
        (vec![None, Some(0)], "observe plan agree over announce-0-of-? close", 0),
        (vec![None], "observe plan agree clear run announce-0-of-2 finish-all close-by-clock", 0),
    ] {
        let (what, runs) = (format!("{parked:?}"), RefCell::new([(0, false, false)].into()));
        let script = Script { parked: RefCell::new(parked.into()), runs, ..Script::default() };
        assert_eq!(script.conduct(), (format!("observe plan agree {calls}"), code), "{what}");
    }
}

#[test]
fn only_multi_node_attempts_repeat_all_phases() {
    const FIRST: &str = "observe plan agree clear run";
    for (several, runs, calls, code) in [
        (
            false,
            vec![(1, true, false), (0, false, false)],
            "finish pause run announce-0-of-2 finish-all close-by-clock",
            0,
        ),
        (
            true,
            vec![(1, true, false), (0, false, false)],
            "finish pause observe plan agree clear run announce-0-of-2 finish-all close-by-clock",
            0,
        ),
        (false, vec![(1, false, false)], "announce-1-of-2 finish-all why-not close-by-clock", 1),
        // A stopped node joins no further attempt and gives no reason for that.
        (true, vec![(143, true, true)], "announce-143-of-2 finish-all close-by-clock", 143),
        (false, vec![(143, false, true)], "announce-143-of-2 finish-all close-by-clock", 143),
    ] {
        let script =
            Script { several, runs: RefCell::new(runs.clone().into()), ..Script::default() };
        assert_eq!(script.conduct(), (format!("{FIRST} {calls}"), code), "{several} {runs:?}");
    }
}
