//! The conductor: walks the corridor of rooms, once per attempt.
//!
//! Owns the order of things and the way data goes from room to room, and nothing
//! else: what is read, decided, started or said lies in the rooms. It alone may
//! call them. Every phase before the start ends at once when a stop is asked for.

mod attempt;
mod card;
mod check;
mod check_nodes;
mod commands;
mod end;
mod excuse;
mod explain;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod install;
mod look;
mod node;
mod place;
mod profiles;
mod restart;
mod scratch;
mod shared;
mod stale;
mod together;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use scratch::ScratchName;

use crate::cli::{self, Command, Options};
use crate::deadline::with_deadline;
use crate::host::Host;
use crate::lang::{self, Lang, Text};
use crate::logs::Console;
use crate::muster;
use crate::observe::OomWatch;
use crate::report;
use crate::report::closing;
use crate::report::journal::Journal;
use crate::settings::{self, Settings};
use crate::supervise::guard::{self, HowLost, Lost};
use crate::supervise::isolate::isolate;
use crate::supervise::{AgentLink, EndStep, GuardCommands, Halt, shim};
use crate::sys::{Dispositions, PollFd, PollFlags, Signal, poll};
use crate::text;
use crate::verdict::{Id, Refusal, Verdict};

/// How long the last words may wait for a console that does not take them.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long the closing block may hold up what is written after it.
const SAID: Duration = Duration::from_millis(500);

/// The whole program: its arguments, name first → exit code.
pub fn main(arguments: impl Iterator<Item = OsString>) -> i32 {
    let arguments: Vec<OsString> = arguments.collect();
    if let [_, role, rest @ ..] = arguments.as_slice()
        && role == "rank"
    {
        // Started once per rank, by an engine: no argument parser, no settings.
        return shim::rank(rest.to_vec());
    }
    // Where nothing else of the settings is read.
    let lang = || {
        let flag = cli::language_of(&arguments);
        settings::language(&Options { lang: flag, ..Options::default() }, &Host::live())
    };
    if let Err(refusal) = crate::prepare::has_randomness() {
        return commands::refuse(&refusal, lang());
    }
    let cli = match cli::parse(arguments.iter().cloned()) {
        Ok(cli) => cli,
        Err(cli::Stop::Shown(text)) => {
            let text = cli::shown(text, &arguments, lang());
            return printing(lang(), || {
                commands::print(text);
                0
            });
        }
        Err(cli::Stop::Refused(refusal)) => {
            let lang = lang();
            let code = commands::refuse(&refusal, lang);
            if excuse::launches_where_the_platform_says(&arguments) {
                let told = commands::block_on(excuse::unread(&Options::default(), &refusal));
                if let Ok(Some(line)) = told {
                    commands::say(&closing::line(&line, lang));
                }
            }
            return code;
        }
    };
    match cli.command {
        Command::Run(options) => run(&options),
        Command::Init(init) => commands::init(&init),
        Command::Plan(plan) => isolate(|| printing(lang(), || commands::plan(&plan))),
        Command::Check(asked) => {
            Host::hide(muster::SECRET);
            isolate(|| printing(lang(), || check::check(&asked)))
        }
        Command::Clean(clean) => isolate(|| printing(lang(), || commands::clean(&clean))),
        Command::Wait(wait) => commands::wait(&wait),
        Command::Lint(lint) => printing(lang(), || commands::lint(&lint)),
        Command::Explain(asked) => printing(lang(), || explain::explain(&asked, lang())),
        Command::Profile { action } => printing(lang(), || profiles::profile(&action)),
        Command::Install { folder } => printing(lang(), || install::install(Path::new(&folder))),
        Command::Completions { shell } => printing(lang(), || commands::completions(shell)),
        Command::Man { .. } => printing(lang(), || commands::man(lang())),
    }
}

/// A command whose work is what it writes: a limit on the size of files (`ulimit -f`) does
/// not end it, but fails its write, and what did not get out is said.
fn printing(lang: Lang, command: impl FnOnce() -> i32) -> i32 {
    crate::sys::ignore(&[Signal::XFSZ]);
    commands::complete(command(), lang)
}

/// `ranklaunch run`: forks the agent below the guard before any thread exists.
fn run(options: &Options) -> i32 {
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
            commands::say(&closing::line(&text, lang));
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
        commands::say(&closing::line(&text, lang));
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
    let code = will.exit_codes.get(&ending.code).copied().unwrap_or(ending.code);
    let words = closing::ended_early(&ending, code, lang);
    // One thread, and no time to lose: a console that takes nothing now gets nothing.
    let console = std::io::stderr();
    let mut ready = [PollFd::new(&console, PollFlags::OUT)];
    if poll(&mut ready, Some(Duration::ZERO)).is_ok_and(|count| count > 0) {
        commands::say(&words);
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
        return commands::refuse(&refusal, settings::language(options, &Host::live()));
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let Text { en, zh } = lang::cause(&error);
            let text = text!("cannot start the runtime: {en}", "无法启动运行时：{zh}");
            commands::say(&closing::line(&text, settings::language(options, &Host::live())));
            return Verdict::Internal.code();
        }
    };
    let code = runtime.block_on(conduct(options, link, dispositions, scratch));
    // A phase that hangs in a thread (a dead mount, a driver) must not hold the verdict.
    runtime.shutdown_background();
    code
}

/// Both directions of the talk with the guard.
#[derive(Clone, Copy)]
pub(crate) struct Guard<'a> {
    pub(crate) link: &'a AgentLink,
    pub(crate) guard_commands: &'a GuardCommands,
}

/// What every phase needs.
pub(crate) struct Scene {
    pub(crate) host: Arc<Host>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) console: Console,
    pub(crate) started: Instant,
    scratch: ScratchName,
    journal: Journal,
}

impl Scene {
    pub(crate) fn lang(&self) -> Lang {
        self.settings.lang
    }

    pub(crate) fn say(&self, text: &Text) {
        self.console.say(&closing::line(text, self.lang()));
    }

    /// Writes the termination message, right behind the closing block: whatever is
    /// slower than a small file comes after it. From then on the exit code stands, also
    /// where the guard has to end this process.
    fn announce(
        &self,
        link: &AgentLink,
        ending: &report::Ending,
        node: Option<u32>,
        clock: end::Clock,
    ) {
        let settings = &self.settings;
        let code = remap(&settings.exit_codes, ending.code);
        let path = settings.termination_log.as_ref().map(|path| path.value.as_path());
        let patience = clock.left_for_answer(EndStep::LastWords);
        let (host, lang) = (&self.host, settings.lang);
        let announced = report::files::announce_in(patience, path, host, ending, node, code, lang);
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

/// How long a profile and the places where one may lie may take to answer, without
/// a `--deadline`.
const PROFILE: Duration = Duration::from_secs(30);

/// The host and the settings, or the refusal and the language to say it in.
#[tracing::instrument(name = "settings", skip_all)]
pub(crate) fn open(options: &Options) -> Result<(Host, Settings), (Refusal, Lang)> {
    let host = Host::live();
    let lang = settings::language(options, &host);
    let patience = settings::deadline(options, &host).unwrap_or(PROFILE);
    let (reader, trail) = host.traced();
    let asked = options.clone();
    let read = with_deadline(patience, move || {
        let mut settings = settings::read(&asked, &reader)?;
        enter(&mut settings, &reader)?;
        Ok(settings)
    });
    let settings = match read {
        Some(read) => read.map_err(|refusal| (refusal, lang))?,
        None => return Err((unread(trail.last(), patience), lang)),
    };
    let host = match &settings.host_root {
        Some(root) => host.with_root(root),
        None => host,
    };
    Ok((host, settings))
}

/// Goes to the folder in which the job works: whatever is relative counts from there, for
/// us, for the engine and for the ranks. A copied node has no such folder.
fn enter(settings: &mut Settings, host: &Host) -> Result<(), Refusal> {
    let (Some(chdir), None) = (&mut settings.chdir, &settings.host_root) else { return Ok(()) };
    host.at(&chdir.value);
    let absolute = std::path::absolute(&chdir.value).unwrap_or_else(|_| chdir.value.clone());
    std::env::set_current_dir(&absolute).map_err(|error| {
        let (folder, source) = (absolute.display(), &chdir.source);
        Refusal::new(
            Id::SettingsChdir,
            text!(
                "the working directory {folder} ({source}) cannot be entered: {error}",
                "无法进入工作目录 {folder}（{source}）：{error}"
            ),
            text!(
                "mount the folder, or name another one with --chdir DIR",
                "请挂载该目录，或用 --chdir DIR 指定其他目录"
            ),
        )
    })?;
    chdir.value = absolute;
    Ok(())
}

fn unread(path: Option<PathBuf>, patience: Duration) -> Refusal {
    let path = path.unwrap_or_default();
    let (path, seconds) = (path.display(), patience.as_secs_f64());
    Refusal::new(
        Id::SettingsHung,
        crate::text!(
            "{path} does not answer within {seconds} s, and profile and program are looked for there: is its mount dead?",
            "{path} 在 {seconds} 秒内无应答，而配置与程序需在此处查找：其挂载点是否失效？"
        ),
        crate::text!(
            "name another profile with --profile, start in another folder, or take the folder out of PATH",
            "请用 --profile 指定其他配置、在其他目录中启动，或从 PATH 中去掉该目录"
        ),
    )
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
        Err((refusal, lang)) => {
            let console = Console::standard(lang);
            let code = refusal.verdict.code();
            console.say(&closing::refusal(&refusal, code, lang));
            // A stop, or the guard's end, cuts the excuse short.
            if let Ok(guard_commands) = link.listen()
                && let Ok(Some(line)) =
                    until_stop(&guard_commands, excuse::unread(options, &refusal)).await
            {
                console.say(&closing::line(&line, lang));
            }
            console.flush(LAST_WORDS);
            let ending = report::refused(&refusal);
            if let Err(error) =
                report::files::announce(None, &Host::live(), &ending, None, code, lang)
            {
                let Text { en, zh } = lang::cause(&error);
                let text =
                    text!("cannot write the termination message: {en}", "无法写入终止消息：{zh}");
                console.say(&closing::line(&text, lang));
                console.flush(LAST_WORDS);
            }
            return code;
        }
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
    let scene = Scene {
        host: Arc::new(host),
        settings: Arc::new(settings),
        console: console.clone(),
        started,
        scratch,
        journal,
    };
    let guard_commands = match link.listen() {
        Ok(guard_commands) => guard_commands,
        Err(error) => {
            console.say(&format!("ranklaunch: cannot listen to the guard: {error}\n"));
            console.flush(LAST_WORDS);
            return Verdict::Internal.code();
        }
    };

    let early = match until_stop(&guard_commands, node::prepare(&scene, None)).await {
        Ok(Ok(ready)) => {
            let ending = attempt::all(
                &scene,
                ready,
                Guard { link, guard_commands: &guard_commands },
                dispositions,
            )
            .await;
            console.flush(LAST_WORDS);
            return remap(&scene.settings.exit_codes, ending.code);
        }
        Ok(Err(refusal)) => {
            let ending = report::refused(&refusal);
            let code = remap(&scene.settings.exit_codes, ending.code);
            console.say(&closing::refusal(&refusal, code, scene.lang()));
            ending
        }
        Err(halt) => {
            let ending = report::ending::halted(halt);
            let code = remap(&scene.settings.exit_codes, ending.code);
            console.say(&closing::ended_early(&ending, code, scene.lang()));
            ending
        }
    };
    scene.announce(link, &early, None, end::Clock::of(scene.settings.grace.value, None));
    console.flush(LAST_WORDS);
    remap(&scene.settings.exit_codes, early.code)
}

/// The profile's `[exit]`.
fn remap(exits: &BTreeMap<i32, i32>, code: i32) -> i32 {
    exits.get(&code).copied().unwrap_or(code)
}

/// Runs a phase before the start; a stop, or the loss of the guard, drops it.
async fn until_stop<T>(
    guard_commands: &GuardCommands,
    phase: impl Future<Output = T>,
) -> Result<T, Halt> {
    tokio::pin!(phase);
    loop {
        tokio::select! {
            done = &mut phase => return Ok(done),
            word = guard_commands.next() => if let Some(halt) = word.halt() {
                return Err(halt);
            }
        }
    }
}
