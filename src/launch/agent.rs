//! `ranklaunch run`: guard and agent, and what the guard says where the agent cannot.
//!
//! Forks the agent before any thread exists; opens what every phase needs and lets the
//! [`conductor`] walk. Gives the exit code.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::commands::output::{refuse, say};
use super::conductor;
use super::context::{Context, Guard, remap, until_stop};
use super::live::Live;
use super::notify_peers;
use super::open::open;
use super::scratch::ScratchName;
use crate::cli::Options;
use crate::host::Host;
use crate::lang::{self, Lang, Text};
use crate::logs::Console;
use crate::muster;
use crate::observe::OomWatch;
use crate::report;
use crate::report::closing;
use crate::report::journal::Journal;
use crate::settings;
use crate::supervise::AgentLink;
use crate::supervise::guard::{self, HowLost, Lost};
use crate::sys::{Dispositions, PollFd, PollFlags, poll};
use crate::text;
use crate::verdict::{Refusal, Verdict};

/// How long the last words may wait for a console that does not take them.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// `ranklaunch run`: forks the agent below the guard before any thread exists.
pub(super) fn run(options: &Options) -> i32 {
    Host::hide(muster::SECRET);
    let oom = OomWatch::begin(&Host::live());
    let scratch = ScratchName::new();
    let lang = settings::language(options, &Host::live());
    let agent = |link: &AgentLink, dispositions| {
        std::panic::set_hook(Box::new(move |panic| {
            let text = text!(
                "internal error: {panic}\n  hint: please report this; the job is being ended",
                "内部错误：{panic}\n  提示：请报告该问题；任务正在结束"
            );
            say(&closing::line(&text, lang));
            crate::sys::exit_now(Verdict::Internal.code());
        }));
        agent(options, link, dispositions, scratch.clone())
    };
    let lost = |lost: &Lost| last_words(options, &oom, lost);
    let ended = guard::guarded(agent, lost);
    // An agent that was killed has left it.
    scratch.sweep();
    ended.unwrap_or_else(|error| {
        let Text { en, zh } = lang::cause(&error);
        let text = text!("cannot start the guard process: {en}", "无法启动 guard 进程：{zh}");
        say(&closing::line(&text, lang));
        Verdict::Internal.code()
    })
}

/// What the agent leaves with the guard, which has read no settings.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Will {
    lang: Lang,
    /// The profile's `[exit]`.
    exit_codes: BTreeMap<i32, i32>,
    termination_log: Option<PathBuf>,
}

/// What the guard says in place of an agent that was lost; the exit code.
fn last_words(options: &Options, oom: &OomWatch, lost: &Lost) -> i32 {
    let host = Host::live();
    // Without one it was lost before it had read the settings.
    let will = lost.will.as_deref().and_then(|will| serde_json::from_slice(will).ok());
    let will = will
        .unwrap_or_else(|| Will { lang: settings::language(options, &host), ..Will::default() });
    let lang = will.lang;
    let mut ending = match lost.how {
        HowLost::Killed { signal, stopped_by } => report::ending::agent_killed(signal, stopped_by),
        HowLost::Hung { stopped_by } => report::ending::agent_hung(stopped_by),
    };
    if let (HowLost::Killed { signal: 9, .. }, Some(kills)) = (lost.how, oom.kills(&host)) {
        let agent = text!("the agent of ranklaunch", "ranklaunch 的 agent");
        ending = report::memory::of_victim(ending, &agent, &kills);
    }
    let code = remap(&will.exit_codes, ending.code);
    let words = closing::ended_early(&ending, code, lang);
    // One thread, and no time to lose: a console that takes nothing now gets nothing.
    let console = std::io::stderr();
    let mut ready = [PollFd::new(&console, PollFlags::OUT)];
    if poll(&mut ready, Some(Duration::ZERO)).is_ok_and(|count| count > 0) {
        say(&words);
    }
    let path = will.termination_log.as_deref();
    let _ = report::files::announce(path, &host, &ending, None, code, lang);
    code
}

fn agent(
    options: &Options,
    link: &AgentLink,
    dispositions: Dispositions,
    scratch: ScratchName,
) -> i32 {
    if let Err(refusal) = crate::prepare::can_start_threads() {
        return refuse(&refusal, settings::language(options, &Host::live()));
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let Text { en, zh } = lang::cause(&error);
            let text = text!("cannot start the runtime: {en}", "无法启动运行时：{zh}");
            say(&closing::line(&text, settings::language(options, &Host::live())));
            return Verdict::Internal.code();
        }
    };
    let code = runtime.block_on(conduct(options, link, dispositions, scratch));
    // A phase that hangs in a thread (a dead mount, a driver) must not hold the verdict.
    runtime.shutdown_background();
    code
}

async fn conduct(
    options: &Options,
    link: &AgentLink,
    dispositions: Dispositions,
    scratch: ScratchName,
) -> i32 {
    let started = Instant::now();
    let journal = Journal::begin();
    let (host, settings) = match open(options) {
        Ok(opened) => opened,
        Err((refusal, lang)) => return refuse_settings(options, link, &refusal, lang).await,
    };
    // Ranks inherit it, and so does every socket of ours.
    crate::prepare::raise_limits();
    link.announce_grace(settings.grace.value);
    let will = Will {
        lang: settings.lang,
        exit_codes: settings.exit_codes.clone(),
        termination_log: settings.termination_log.as_ref().map(|path| path.value.clone()),
    };
    link.leave_will(&serde_json::to_vec(&will).unwrap_or_default());
    let console = Console::standard(settings.lang);
    let context = Context {
        host: Arc::new(host),
        settings: Arc::new(settings),
        console: console.clone(),
        started,
        scratch,
        journal,
    };
    let commands = match link.listen() {
        Ok(commands) => commands,
        Err(error) => {
            context.say(&text!(
                "cannot receive the guard's messages: {error}",
                "无法接收 guard 的消息：{error}"
            ));
            console.flush(LAST_WORDS);
            return Verdict::Internal.code();
        }
    };
    let guard = Guard { link, commands: &commands };
    let live = Live { context: &context, guard, dispositions };
    let ending = conductor::conduct(&live).await;
    console.flush(LAST_WORDS);
    context.exit_code(&ending)
}

/// Settings that cannot be read: the other nodes are told, as far as this node knows them.
async fn refuse_settings(
    options: &Options,
    link: &AgentLink,
    refusal: &Refusal,
    lang: Lang,
) -> i32 {
    let console = Console::standard(lang);
    let code = refusal.verdict.code();
    console.say(&closing::refusal(refusal, code, lang));
    // A stop, or the guard's end, cuts this short.
    if let Ok(commands) = link.listen()
        && let Ok(Some(line)) = until_stop(&commands, notify_peers::unread(options, refusal)).await
    {
        console.say(&closing::line(&line, lang));
    }
    console.flush(LAST_WORDS);
    let ending = report::refused(refusal);
    if let Err(error) = report::files::announce(None, &Host::live(), &ending, None, code, lang) {
        let Text { en, zh } = lang::cause(&error);
        let text = text!("cannot write the termination message: {en}", "无法写入终止消息：{zh}");
        console.say(&closing::line(&text, lang));
        console.flush(LAST_WORDS);
    }
    code
}
