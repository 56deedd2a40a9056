//! The context that the phases of a launch take: host, settings, console, journal and the link to the guard; with
//! the time budget for the steps after the ranks have ended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::bad_nodes::BadNodes;
use super::notices::Notices;
use super::open::RetryRules;
use super::own_run::OwnRun;
use super::restart::{Limits, Restarts};
use super::run_socket::RunSocket;
use super::saves::Saves;
use super::scratch::ScratchName;
use diagnose::Catalogue;
use linux::host::Host;
use linux::pace::{Live, Pace};
use logs::Console;
use monitor::status::StatusBoard;
use muster::{Config, Succession};
use report::journal::Journal;
use report::start::Remarks;
use report::{Ending, closing, files};
use settings::Settings;
use supervise::warm::Warmed;
use supervise::{AgentLink, AgentReport, EndBudget, EndStep, GuardCommands};
use text::lang::{Lang, Text, cause};
use text::text;
use verdict::outcome::{Halt, Outcome};
use verdict::{Id, Refusal, Severity, Warning, code_by_cause};

/// Maximum time by which the flush of the closing block may delay the files that follow.
const SAID: Duration = Duration::from_millis(500);

/// The link to the guard: commands from it, reports to it.
#[derive(Clone, Copy)]
pub(super) struct GuardChannel<'a> {
    pub(super) link: &'a AgentLink,
    pub(super) commands: &'a GuardCommands,
}

/// Values that every phase needs.
pub(super) struct Context {
    pub(super) host: Arc<Host>,
    pub(super) settings: Arc<Settings>,
    pub(super) retry_rules: RetryRules,
    pub(super) console: Console,
    pub(super) started: Instant,
    pub(super) scratch: ScratchName,
    pub(super) journal: Journal,
    /// The interpreter from which ranks are forked, or the reason why there is none; empty if nobody asked for it.
    pub(super) warm: Arc<OnceLock<Result<Warmed, Text>>>,
    /// Current knowledge about the job, for its viewers.
    pub(super) board: StatusBoard,
    pub(super) run: OwnRun,
    /// The checkpoints; None if the settings name no folder.
    pub(super) saves: Option<Saves>,
    /// The nodes that failed in the last days.
    pub(super) bad_nodes: BadNodes,
    /// Notices that this node or the job is to end soon.
    pub(super) notices: Notices,
    /// Answers the viewers of the job.
    pub(super) socket: RunSocket,
    /// The catalogue of failures, where the profile adds rows to the built-in one.
    pub(super) catalogue: Option<&'static Catalogue>,
    /// What this launcher keeps of a job with spares.
    pub(super) succession: OnceLock<Succession>,
    /// The warnings that this console showed, to repeat them after a failure.
    pub(super) warned: Mutex<Vec<Warning>>,
}

impl Context {
    pub(super) fn lang(&self) -> Lang {
        self.settings.lang
    }

    /// The exit code of an ending, by its cause and the profile's `[exit]`.
    pub(super) fn exit_code(&self, ending: &Ending) -> i32 {
        let code = code_by_cause(ending.class, ending.code, ending.why.as_deref());
        remap(&self.settings.exit_codes, code)
    }

    /// The restart policy of this launch, for the node that decides.
    pub(super) fn restarts(&self) -> Restarts {
        let limits = Limits {
            most: self.settings.restarts(),
            cut_off: match self.settings.spares.value {
                0 => Duration::ZERO,
                _ => muster::cut_off(self.settings.grace.value),
            },
            without_progress: self.settings.max_restarts_without_progress.value,
        };
        let restarts = Restarts::new(limits, self.retry_rules.clone());
        restarts.with(self.notices.clone(), self.saves.clone())
    }

    /// What this launcher keeps so that a job with spares goes on without its leader; None: the job has none, or nothing
    /// can be listened on.
    pub(super) fn succession(&self, config: &Config, hostname: &str) -> Option<Succession> {
        if config.seating.spares == 0 {
            return None;
        }
        if self.succession.get().is_none() {
            match config.succession_of(&self.host, hostname) {
                Ok(succession) => drop(self.succession.set(succession)),
                Err(error) => tracing::warn!(%error, "the job ends with its leader"),
            }
        }
        self.succession.get().cloned()
    }

    /// The node that leads a job with spares.
    pub(super) fn leader(&self) -> Option<u32> {
        self.succession.get()?.electorate().map(|last| last.leader)
    }

    pub(super) fn say(&self, text: &Text) {
        self.console.say(&closing::line(text, self.lang()));
    }

    /// The same for a thread.
    pub(super) fn speaker(&self) -> impl Fn(&Text) + Clone + Send + Sync + use<> {
        let (console, lang) = (self.console.clone(), self.lang());
        move |text| console.say(&closing::line(text, lang))
    }

    /// A failed check, with the severity of `id`.
    pub(super) fn weigh(&self, id: Id, failed: Refusal) -> Result<(), Refusal> {
        match plan::severity(&self.settings, id, Severity::Fail) {
            Severity::Fail => return Err(failed),
            Severity::Warn => self.say(&failed.text),
            Severity::Off => {}
        }
        Ok(())
    }

    /// Prints the warnings of a plan, the important ones first; advice is only counted.
    pub(super) fn warn_of_plan(&self, warnings: &[Warning]) {
        let remarks = Remarks::of(warnings, &self.settings);
        self.console.say(&remarks.text(self.lang()));
        self.note_warned(remarks.telling);
    }

    /// Prints warnings in full.
    pub(super) fn warn(&self, warnings: &[Warning]) {
        for warning in warnings {
            self.console.say(&closing::warning(warning, self.lang()));
        }
        self.note_warned(warnings);
    }

    fn note_warned<'a>(&self, warnings: impl IntoIterator<Item = &'a Warning>) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        warned.extend(warnings.into_iter().cloned());
    }

    /// The warnings that were printed in full.
    pub(super) fn warned(&self) -> Vec<Warning> {
        self.warned.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Pace at which a wait reports its progress: each second if a line changes in place, else as a
    /// log needs it.
    pub(super) fn wait_pace(&self) -> Pace {
        if self.console.has_status() { Pace::LIVE } else { Pace::STANDARD }
    }

    /// The last line of the terminal, for a wait.
    pub(super) fn live(&self) -> Option<Live> {
        let (console, lang) = (self.console.clone(), self.lang());
        let show = move |progress: &Text| console.status(Some(progress.get(lang)));
        self.console.has_status().then(|| Live(Arc::new(show)))
    }

    /// Writes the termination message directly after the closing block and before anything
    /// slower. From here on the exit code is fixed, even if the guard has to kill this process.
    pub(super) fn announce(
        &self,
        link: &AgentLink,
        ending: &Ending,
        node: Option<u32>,
        clock: Clock,
    ) {
        let settings = &self.settings;
        let code = self.exit_code(ending);
        let path = settings.termination_log.as_ref().map(|path| path.value.as_path());
        let time_left = clock.left_for_answer(EndStep::LastWords);
        let (host, lang) = (&self.host, settings.lang);
        let announced = files::announce(time_left, path, host, ending, node, code, lang);
        if let Err(error) = announced {
            let Text { en, zh } = cause(&error);
            self.say(&text!(
                "cannot write the termination message: {en}",
                "无法写入终止消息：{zh}"
            ));
        }
        // If the console does not drain, the guard could not print it either.
        self.console.flush(SAID.min(clock.left_for_answer(EndStep::LastWords)));
        link.say(&AgentReport::Reported(code));
    }
}

/// The profile's `[exit]`.
pub(super) fn remap(exits: &BTreeMap<i32, i32>, code: i32) -> i32 {
    exits.get(&code).copied().unwrap_or(code)
}

/// Runs a phase before the start. A stop, or the loss of the guard, cancels it.
pub(super) async fn until_stop<T>(
    commands: &GuardCommands,
    phase: impl Future<Output = T>,
) -> Result<T, Halt> {
    tokio::pin!(phase);
    loop {
        tokio::select! {
            done = &mut phase => return Ok(done),
            // Other commands concern ranks, and none runs yet.
            command = commands.next() => if let Some(halt) = command.halt() {
                return Err(halt);
            }
        }
    }
}

/// Time limit for writing one small file.
pub(super) const ANSWER: Duration = Duration::from_secs(3);

/// The budget of this end, and the time at which it began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    budget: EndBudget,
    grace: Duration,
    /// None if no stop from outside limits the time, and nothing that we wait for can hang.
    since: Option<Instant>,
}

impl Clock {
    pub(super) fn of(grace: Duration, outcome: Option<&Outcome>) -> Clock {
        // A process that outlived SIGKILL keeps its pipes open, so waiting for their end needs
        // the limit too.
        let counts = |outcome: &&Outcome| {
            outcome.told || outcome.stop_within.is_some() || !outcome.survivors.is_empty()
        };
        let since = outcome.filter(counts).and_then(|outcome| outcome.stopped_at);
        let within = outcome.and_then(|outcome| outcome.stop_within).unwrap_or(grace);
        Clock { budget: EndBudget::of(within), grace, since }
    }

    /// Time left until `step` must be over.
    pub(super) fn left(self, step: EndStep) -> Duration {
        self.since.map_or(self.grace, |since| self.budget.left(step, since))
    }

    /// The same for one small file: at least 50 ms, at most [`ANSWER`].
    pub(super) fn left_for_answer(self, step: EndStep) -> Duration {
        self.left(step).clamp(Duration::from_millis(50), ANSWER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_outside_stop_limits_the_time() {
        let grace = Duration::from_secs(10);
        let past = Instant::now().checked_sub(Duration::from_secs(60));
        let outcome = |told| Outcome { told, stopped_at: past, ..Outcome::default() };
        assert_eq!(Clock::of(grace, None).left(EndStep::Logs), grace);
        assert_eq!(Clock::of(grace, Some(&outcome(false))).left(EndStep::Logs), grace);
        if past.is_some() {
            let over = Clock::of(grace, Some(&outcome(true)));
            assert_eq!(over.left(EndStep::Logs), Duration::ZERO);
            assert!(over.left_for_answer(EndStep::Record) > Duration::ZERO);
        }
    }
}
