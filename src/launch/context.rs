//! What every phase of a launch needs: the node, the settings, the console, the journal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::scratch::ScratchName;
use crate::host::Host;
use crate::lang::{Lang, Text};
use crate::logs::Console;
use crate::report::journal::Journal;
use crate::report::{Ending, closing, files};
use crate::settings::Settings;
use crate::supervise::{AgentLink, EndStep, GuardCommands, Halt};
use crate::text;

/// How long the closing block may delay what is written after it.
const SAID: Duration = Duration::from_millis(500);

/// Both directions of the talk with the guard.
#[derive(Clone, Copy)]
pub(super) struct Guard<'a> {
    pub(super) link: &'a AgentLink,
    pub(super) commands: &'a GuardCommands,
}

/// What every phase needs.
pub(super) struct Context {
    pub(super) host: Arc<Host>,
    pub(super) settings: Arc<Settings>,
    pub(super) console: Console,
    pub(super) started: Instant,
    pub(super) scratch: ScratchName,
    pub(super) journal: Journal,
}

impl Context {
    pub(super) fn lang(&self) -> Lang {
        self.settings.lang
    }

    /// The exit code of an ending, by the profile's `[exit]`.
    pub(super) fn exit_code(&self, ending: &Ending) -> i32 {
        remap(&self.settings.exit_codes, ending.code)
    }

    pub(super) fn say(&self, text: &Text) {
        self.console.say(&closing::line(text, self.lang()));
    }

    /// Writes the termination message, right behind the closing block: whatever is
    /// slower than a small file comes after it. From then on the exit code stands, also
    /// where the guard has to end this process.
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
        let patience = clock.left_for_answer(EndStep::LastWords);
        let (host, lang) = (&self.host, settings.lang);
        let announced = files::announce_in(patience, path, host, ending, node, code, lang);
        if let Err(error) = announced {
            self.say(&text!(
                "cannot write the termination message: {error}",
                "无法写入终止消息：{error}"
            ));
        }
        // The guard could not say it to a console that takes nothing either.
        self.console.flush(SAID.min(clock.left_for_answer(EndStep::LastWords)));
        link.announce_said(code);
    }
}

/// The profile's `[exit]`.
pub(super) fn remap(exits: &BTreeMap<i32, i32>, code: i32) -> i32 {
    exits.get(&code).copied().unwrap_or(code)
}

/// Runs a phase before the start; a stop, or the loss of the guard, drops it.
pub(super) async fn until_stop<T>(
    commands: &GuardCommands,
    phase: impl Future<Output = T>,
) -> Result<T, Halt> {
    tokio::pin!(phase);
    loop {
        tokio::select! {
            done = &mut phase => return Ok(done),
            // Other commands are for ranks, of which there are none.
            command = commands.next() => if let Some(halt) = command.halt() {
                return Err(halt);
            }
        }
    }
}
