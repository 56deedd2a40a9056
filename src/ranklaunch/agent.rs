//! `ranklaunch run`: starts guard and agent, and reports for the agent if it is lost.
//!
//! Forks the agent before any thread exists. The agent opens the settings, the console and the
//! journal, starts the HTTP server of `--http`, then hands over to the [`conductor`]. Gives the exit
//! code.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::bad_nodes::BadNodes;
use super::context::{Context, GuardChannel, remap, until_stop};
use super::live::Live;
use super::notices::Notices;
use super::open::{Opened, open};
use super::own_run::OwnRun;
use super::run_socket::RunSocket;
use super::saves::Saves;
use super::scratch::ScratchName;
use super::status_feed::program_name;
use super::{collect, conductor, notify_peers};
use crate::commands::output::{Refused, choose, refuse, say, say_unused_profile};
use linux::host::Host;
use linux::sys::{Dispositions, PollFd, PollFlags, poll};
use linux::terminal;
use logs::Console;
use monitor::export::HttpServer;
use monitor::notice::NoticeWatch;
use monitor::socket::About;
use monitor::status::StatusBoard;
use node::observe::{LoggedKills, OomWatch};
use report::journal::Journal;
use report::runs::view::now_ms;
use report::{Ending, closing, files};
use settings::cli::Options;
use supervise::guard::{self, HowLost, LostAgent};
use supervise::{AgentLink, AgentReport};
use text::lang::{Lang, Text, cause};
use text::style::Color;
use text::text;
use verdict::Verdict;

/// Time limit for the closing lines on a console that does not drain.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// `ranklaunch run`: forks the agent as a child of the guard before any thread exists.
pub(super) fn run(options: &Options) -> i32 {
    Host::hide(muster::SECRET);
    let oom = OomWatch::begin(&Host::live());
    let scratch = ScratchName::new();
    let lang = options.language(&Host::live());
    choose(options.color(&Host::live()));
    let agent = |link: &AgentLink, dispositions| {
        std::panic::set_hook(Box::new(move |panic| {
            let text = text!(
                "internal error: {panic}\n  hint: please report this; the job is being ended",
                "内部错误：{panic}\n  提示：请报告该问题；任务正在结束"
            );
            terminal::erase_own();
            say(&closing::line(&text, lang));
            linux::sys::exit_now(Verdict::Internal.code());
        }));
        agent(options, link, dispositions, scratch.clone())
    };
    let lost = |lost: &LostAgent| last_words(options, &oom, lost);
    let ended = guard::guarded(agent, lost);
    // Left behind when the agent was killed.
    scratch.sweep();
    ended.unwrap_or_else(|error| {
        if let Some(refusal) = preflight::prepare::no_process(&error) {
            return refuse(&refusal, lang);
        }
        let Text { en, zh } = cause(&error);
        let text = text!("cannot start the guard process: {en}", "无法启动 guard 进程：{zh}");
        say(&closing::line(&text, lang));
        Verdict::Internal.code()
    })
}

/// Settings with which the guard reports for a lost agent. The guard itself reads no settings.
#[derive(Debug, Default, Serialize, Deserialize)]
struct ReportSettings {
    lang: Lang,
    color: Color,
    /// The profile's `[exit]`.
    exit_codes: BTreeMap<i32, i32>,
    termination_log: Option<PathBuf>,
}

/// Reports the loss of the agent from the guard, and returns the exit code.
fn last_words(options: &Options, oom: &OomWatch, lost: &LostAgent) -> i32 {
    let host = Host::live();
    // None if the agent was lost before it had read the settings.
    let report_settings = lost
        .report_settings
        .clone()
        .and_then(|report_settings| serde_json::from_value(report_settings).ok());
    let report_settings = report_settings.unwrap_or_else(|| ReportSettings {
        lang: options.language(&host),
        color: options.color(&host),
        ..ReportSettings::default()
    });
    let lang = report_settings.lang;
    choose(report_settings.color);
    let mut ending = match lost.how {
        HowLost::Killed { signal, stopped_by } => Ending::agent_killed(signal, stopped_by),
        HowLost::Hung { stopped_by } => Ending::agent_hung(stopped_by),
        HowLost::Still => Ending::agent_still(),
    };
    let account = oom.account(&host, LoggedKills::default());
    if let (HowLost::Killed { signal: 9, .. }, Some(kills)) = (lost.how, account.kills(None)) {
        let agent = text!("the agent of ranklaunch", "ranklaunch 的 agent 进程");
        ending = match lost.outlived.filter(|outlived| account.is_outlived_by(outlived.count)) {
            Some(outlived) => {
                let ago = outlived.rose.and_then(|rose| lost.at.checked_duration_since(rose));
                ending.after_oom_of_another(&kills, ago)
            }
            None => ending.of_oom_victim(&agent, &kills),
        };
    }
    let code = remap(&report_settings.exit_codes, ending.code);
    let words = closing::ended_early(&ending, code, lang);
    // The guard has one thread and must not block: a console that is not writable now is
    // skipped.
    let console = std::io::stderr();
    let mut ready = [PollFd::new(&console, PollFlags::OUT)];
    if poll(&mut ready, Some(Duration::ZERO)).is_ok_and(|count| count > 0) {
        say(&words);
    }
    let path = report_settings.termination_log.as_deref();
    let _ = files::announce(files::ANSWER, path, &host, &ending, None, code, lang);
    code
}

fn agent(
    options: &Options,
    link: &AgentLink,
    dispositions: Dispositions,
    scratch: ScratchName,
) -> i32 {
    if let Err(refusal) = preflight::prepare::can_start_threads() {
        return refuse(&refusal, options.language(&Host::live()));
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let Text { en, zh } = cause(&error);
            let text = text!("cannot start the runtime: {en}", "无法启动运行时：{zh}");
            say(&closing::line(&text, options.language(&Host::live())));
            return Verdict::Internal.code();
        }
    };
    let code = runtime.block_on(conduct(options, link, dispositions, scratch));
    // A thread that hangs (a dead mount, a driver) must not delay the exit code.
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
    let Opened { host, settings, catalogue, retry_rules } = match open(options) {
        Ok(opened) => opened,
        Err(refused) => return refuse_settings(options, link, refused).await,
    };
    scratch.hold();
    if settings.program.is_none() {
        // The setting may be in the profile that is not used, so the launch is refused, and there is
        // no plan.
        say_unused_profile(&settings, settings.lang);
    }
    // The ranks inherit the limits, and our own sockets count against them.
    preflight::prepare::raise_limits();
    link.say(&AgentReport::Grace(settings.grace.value));
    let report_settings = ReportSettings {
        lang: settings.lang,
        color: settings.color.value,
        exit_codes: settings.exit_codes.clone(),
        termination_log: settings.termination_log.as_ref().map(|path| path.value.clone()),
    };
    let report_settings = serde_json::to_value(&report_settings).unwrap_or_default();
    link.say(&AgentReport::ReportSettings(report_settings));
    let console = match Console::standard(settings.lang, settings.color.value) {
        Ok(console) => console,
        // Other work may have taken the threads that the trial found.
        Err(error) => return refuse(&preflight::prepare::no_thread(&error), settings.lang),
    };
    if console.has_status() {
        link.say(&AgentReport::StatusLine);
    }
    let board = StatusBoard::new(collect::hostname(&host));
    let program = settings.program.as_ref().map(|program| program_name(&program.value));
    let folder = std::env::current_dir().unwrap_or_default();
    let about = About {
        program: program.unwrap_or_default(),
        profile: settings.profile.clone(),
        folder: folder.display().to_string(),
        started_ms: now_ms(),
    };
    let socket = RunSocket::start(board.clone(), about);
    let (lang, to_console) = (settings.lang, console.clone());
    let times = (settings.notice_lead.value, settings.grace.value);
    let say = move |text: &Text| to_console.say(&closing::line(text, lang));
    let remark = {
        let say = say.clone();
        move |text: Text| say(&text)
    };
    let notices = Notices::new(times, board.clone(), say, journal.keeper());
    let heard = notices.clone();
    let tell = move |notice| heard.came(&notice);
    let watch =
        NoticeWatch::start(&host, &settings.notice.value, &settings.notice_lead, tell, remark);
    let (host, settings) = (Arc::new(host), Arc::new(settings));
    let saves = Saves::new(&host, &settings);
    let context = Context {
        board,
        socket,
        host,
        settings,
        saves,
        retry_rules,
        console: console.clone(),
        started,
        scratch,
        journal,
        warm: Arc::default(),
        run: OwnRun::default(),
        bad_nodes: BadNodes::default(),
        notices,
        catalogue,
        succession: OnceLock::new(),
        warned: Mutex::default(),
    };
    let heard = context.notices.clone();
    let is_notice = move |number| {
        let notice = watch.signalled(number);
        notice.map(|notice| heard.came(&notice)).is_some()
    };
    let commands = match link.listen(is_notice) {
        Ok(commands) => commands,
        Err(error) => {
            let Text { en, zh } = cause(&error);
            context.say(&text!(
                "cannot receive the guard's messages: {en}",
                "无法接收 guard 的消息：{zh}"
            ));
            console.flush(LAST_WORDS);
            return Verdict::Internal.code();
        }
    };
    let guard = GuardChannel { link, commands: &commands };
    let live = Live { context: &context, guard, dispositions };
    let _http = serve_http(&context);
    let ending = conductor::conduct(&live).await;
    console.flush(LAST_WORDS);
    let code = context.exit_code(&ending);
    if let Some(connection) = notify_peers::mpiexec_connection(&context.host, ending.id) {
        // A connection that cannot be written to is lost, and then mpiexec ends the job anyway.
        let _ = notify_peers::abort_mpiexec(&connection, code);
    }
    code
}

/// Handles settings that cannot be read: notifies the other nodes, as far as this node knows them.
async fn refuse_settings(options: &Options, link: &AgentLink, refused: Refused) -> i32 {
    let Refused { refusal, lang } = refused;
    let (refusal, lang) = (&refusal, lang.unwrap_or_default());
    let color = options.color(&Host::live());
    let Ok(console) = Console::standard(lang, color) else { return refuse(refusal, lang) };
    let code = refusal.verdict.code();
    console.say(&closing::refusal(refusal, code, lang));
    // A stop, or the guard's end, cuts this short.
    if let Ok(commands) = link.listen(|_| false)
        && let Ok(Some(line)) = until_stop(&commands, notify_peers::unread(options, refusal)).await
    {
        console.say(&closing::line(&line, lang));
    }
    console.flush(LAST_WORDS);
    let ending = Ending::refused(refusal);
    if let Err(error) =
        files::announce(files::ANSWER, None, &Host::live(), &ending, None, code, lang)
    {
        let Text { en, zh } = cause(&error);
        let text = text!("cannot write the termination message: {en}", "无法写入终止消息：{zh}");
        console.say(&closing::line(&text, lang));
        console.flush(LAST_WORDS);
    }
    code
}

/// Serves the board's knowledge while the result is held.
pub(super) fn serve_http(context: &Context) -> Option<HttpServer> {
    let asked = context.settings.http.as_ref()?;
    let (address, source) = (asked.value, &asked.source);
    match HttpServer::start(address, context.board.clone()) {
        Ok(server) => {
            context.board.keep_watched();
            let address = server.address();
            tracing::info!(%address, "serves metrics");
            Some(server)
        }
        Err(error) => {
            let Text { en, zh } = cause(&error);
            context.say(&text!(
                "no metrics: {address} ({source}) cannot be bound: {en}; the job runs without them",
                "没有指标：无法监听 {address}（{source}）：{zh}；任务照常运行"
            ));
            None
        }
    }
}
