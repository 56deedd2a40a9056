//! The context that every phase of a launch takes: host, settings, console, journal and the link
//! to the guard.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::causes::RetryRules;
use super::clock::Clock;
use super::own_report::RunReport;
use super::restart::Restarts;
use super::run_mark::MarkSlot;
use super::run_socket::RunSocket;
use super::scratch::ScratchName;
use super::warm_slot::WarmSlot;
use diagnose::Catalogue;
use linux::host::Host;
use linux::pace::{Live, Pace};
use logs::Console;
use monitor::status::StatusBoard;
use report::journal::Journal;
use report::start::Remarks;
use report::{Ending, closing, files};
use settings::Settings;
use supervise::{AgentLink, EndStep, GuardCommands};
use text::lang::{Lang, Text, cause};
use text::text;
use verdict::outcome::Halt;
use verdict::{Warning, code_by_cause};

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
    /// The interpreter from which ranks are forked.
    pub(super) warm: WarmSlot,
    /// Current knowledge about the job, for its viewers.
    pub(super) board: StatusBoard,
    pub(super) report: RunReport,
    /// The mark in the log folder that shows that the run lives.
    pub(super) mark: MarkSlot,
    /// Answers the viewers of the job.
    pub(super) socket: RunSocket,
    /// The catalogue of failures, where the profile adds rows to the built-in one.
    pub(super) catalogue: Option<&'static Catalogue>,
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
        Restarts::new(self.settings.max_restarts.value, self.retry_rules.clone())
    }

    pub(super) fn say(&self, text: &Text) {
        self.console.say(&closing::line(text, self.lang()));
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
        link.announce_reported(code);
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
