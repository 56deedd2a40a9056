//! `ranklaunch top`: a running job in the terminal.
//!
//! There are two processes. The first one only waits: it forwards signals, and restores the terminal
//! if the second one, which draws, is killed. If the first one is killed, the second one gets a TERM
//! from the kernel and restores the terminal itself. Threads ask the job, so that a silent node delays no key, or one
//! node over HTTP. Nothing of the job is touched.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use rustix::process::{WaitOptions, WaitStatus, kill_process};

use super::output::{block_on, refuse};
use crate::find_run;
use crate::here::RunningJob;
use linux::deadline::{read_by, spawn_detached};
use linux::host::Host;
use linux::sys::{self, Fork, Pid, PollFd, PollFlags, Signal, SignalQueue, SignalSet};
use linux::users;
use logs::LogLine;
use monitor::socket::{self, Answer, Ask, Job, Listener, Selection};
use monitor::status::{NodeStatus, look_pace};
use muster::names;
use preflight::prepare;
use report::runs::lines::{Begin, RunLines, view};
use report::runs::view::{LinesAsk, View, ViewAsk, refusal_of, silence};
use report::stacks_view;
use report::top::{Backend, Colours, Keys, Model, News, Request, Saved, Screen, Source, draw};
use settings::cli::{self, Top};
use text::escape::printable;
use text::lang::{Lang, Text, cause, failure};
use text::rank::GlobalRank;
use text::run_id::RunId;
use text::text;
use verdict::{Id, Refusal, Verdict};

/// Interval of drawing without news: ages grow, and the terminal may have another size.
const TICK: Duration = Duration::from_millis(500);
/// Bytes that follow an ESC within this time belong to it, also over a slow connection.
const SEQUENCE: Duration = Duration::from_millis(60);
/// Signals that end the view.
const ENDS: &[Signal] = &[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

pub(crate) fn top(asked: &Top, lang: Lang) -> Result<i32, Refusal> {
    let saved = Saved::of_terminal().map_err(|error| no_terminal(&error))?;
    let signals = SignalSet::of(ENDS).with(&SignalSet::of(&[Signal::WINCH]));
    let signals =
        SignalQueue::begin(signals).map_err(|error| Refusal::internal(&error.to_string()))?;
    let parent = rustix::process::getpid();
    Ok(match Fork::single_threaded() {
        Ok(Fork::Parent { child }) => attend(child, &saved, &signals),
        Ok(Fork::Child) => {
            let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
            let is_orphan = rustix::process::getppid() != Some(parent);
            let code = if is_orphan { 0 } else { look_at(asked, saved, &signals, lang) };
            sys::exit_now(code)
        }
        Err(_) => look_at(asked, saved, &signals, lang),
    })
}

/// Waits for the process that draws; gives its exit code.
fn attend(child: i32, saved: &Saved, signals: &SignalQueue) -> i32 {
    let pid = Pid::from_raw(child);
    loop {
        match rustix::process::waitpid(pid, WaitOptions::NOHANG) {
            Ok(Some((_, status))) => return exit_code(status, saved),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Verdict::Internal.code(),
        }
        let _ = sys::poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(TICK));
        while let Some(signal) = signals.take() {
            if let (Some(pid), true) = (pid, ENDS.iter().any(|end| signal.is(*end))) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
    }
}

fn exit_code(status: WaitStatus, saved: &Saved) -> i32 {
    match status.exit_status() {
        Some(code) => code,
        None => {
            // The process was killed, so it could not restore the terminal.
            saved.restore();
            status.terminating_signal().map_or(Verdict::Internal.code(), |signal| 128 + signal)
        }
    }
}

fn no_terminal(error: &io::Error) -> Refusal {
    let Text { en, zh } = cause(error);
    Refusal::new(
        Id::TopTerminal,
        text!(
            "ranklaunch top needs a terminal on standard input and output: {en}",
            "ranklaunch top 需要标准输入和标准输出都是终端：{zh}"
        ),
        text!(
            "kubectl exec -it POD -- ranklaunch top; without a terminal ranklaunch ps prints the same once",
            "kubectl exec -it POD -- ranklaunch top；没有终端时 ranklaunch ps 会输出一次相同的内容"
        ),
    )
}

/// Draws until the person quits or a signal comes.
fn look_at(asked: &Top, saved: Saved, signals: &SignalQueue, lang: Lang) -> i32 {
    let Told { news, woken, requests, source, owner } = match start(asked, lang) {
        Ok(told) => told,
        Err(refusal) => return refuse(&refusal, lang),
    };
    let mut model = Model::new(source, lang).of_user(owner);
    let restored = saved.clone();
    // A panic would print over the picture.
    std::panic::set_hook(Box::new(move |panic| {
        restored.restore();
        let words = text!("internal error: {panic}", "内部错误：{panic}");
        super::output::say(&report::closing::line(&words, lang));
        sys::exit_now(Verdict::Internal.code());
    }));
    let shown = Screen::enter(saved).and_then(|screen| {
        let done = look(&mut model, &news, &woken, &requests, signals);
        drop(screen);
        done
    });
    match shown {
        Ok(()) => 0,
        // The terminal is gone.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => 0,
        Err(error) => refuse(&no_terminal(&error), lang),
    }
}

fn look(
    model: &mut Model,
    news: &Receiver<News>,
    woken: &PipeReader,
    requests: &Sender<Request>,
    signals: &SignalQueue,
) -> io::Result<()> {
    let mut terminal = Terminal::new(Backend::new(colours()))?;
    let mut keys = Keys::default();
    let mut input = io::stdin();
    loop {
        terminal.draw(|frame| draw(model, frame))?;
        if let Some(request) = model.wants() {
            let _ = requests.send(request);
        }
        let began = Instant::now();
        let pause = if keys.is_waiting() { SEQUENCE } else { TICK };
        let mut fds = [
            PollFd::new(&input, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(woken, PollFlags::IN),
        ];
        let _ = sys::poll(&mut fds, Some(pause));
        let [typed, signalled, woke] = fds.map(|fd| !fd.revents().is_empty());
        if signalled {
            while let Some(signal) = signals.take() {
                if ENDS.iter().any(|end| signal.is(*end)) {
                    return Ok(());
                }
            }
        }
        if woke {
            let mut bytes = [0; 64];
            let mut pipe = woken;
            let _ = pipe.read(&mut bytes);
            while let Ok(one) = news.try_recv() {
                model.hear(one);
            }
        }
        let mut pressed = Vec::new();
        if typed {
            let mut bytes = [0; 1024];
            match input.read(&mut bytes) {
                // The terminal has gone.
                Ok(0) => return Ok(()),
                Ok(read) => pressed = keys.feed(bytes.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        } else if keys.is_waiting() && began.elapsed() >= SEQUENCE {
            pressed.extend(keys.pause());
        }
        for key in pressed {
            match model.press(key) {
                Some(Request::Quit) => return Ok(()),
                Some(request) => drop(requests.send(request)),
                None => {}
            }
        }
    }
}

/// NO_COLOR is unset or empty (no-color.org), and TERM is not dumb.
fn colours() -> Colours {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if plain { Colours::Off } else { Colours::On }
}

/// Interval of the questions for the state of one node.
const STATUS_PACE: Duration = Duration::from_secs(1);
/// Interval of the questions for new lines of a log.
const LOG_PACE: Duration = Duration::from_millis(500);
/// Maximum number of lines that are sent at once.
const AT_ONCE: usize = 2000;
/// Bytes of a line that are folded into rows of the screen.
const LONGEST_LINE: usize = 16 * 1024;
/// Time limit for resolving a name.
const RESOLVING: Duration = Duration::from_secs(5);

/// Channels through which the view hears and asks, with the source.
pub(super) struct Told {
    pub(super) news: Receiver<News>,
    /// Readable when there are news.
    pub(super) woken: PipeReader,
    pub(super) requests: Sender<Request>,
    pub(super) source: Source,
    /// The owner of the job, unless the asking user is the owner.
    pub(super) owner: Option<String>,
}

/// Sends news to the view; a failure means that the view is gone.
#[derive(Clone)]
struct Tell {
    news: Sender<News>,
    wake: Arc<PipeWriter>,
}

impl Tell {
    fn tell(&self, news: News) -> bool {
        let mut wake: &PipeWriter = &self.wake;
        self.news.send(news).is_ok() && wake.write_all(b"n").is_ok()
    }
}

/// Finds the job and begins to ask it.
///
/// # Errors
/// If there is no such job, the address does not answer, or no thread can be started.
pub(super) fn start(asked: &Top, lang: Lang) -> Result<Told, Refusal> {
    // Work that never ends would otherwise run in this thread.
    prepare::can_start_threads()?;
    let (news_in, news) = mpsc::channel();
    let (requests, asked_for) = mpsc::channel();
    let (woken, wake) = io::pipe().map_err(|error| Refusal::internal(&error.to_string()))?;
    let tell = Tell { news: news_in, wake: Arc::new(wake) };
    let at = asked.run.as_ref().map(|run| run.to_string_lossy().into_owned());
    if let Some(at) = at.filter(|at| at.contains(':')) {
        let address = address(&at)?;
        let first = get(address).map_err(|error| no_status(&at, &cause(&error)))?;
        let host = at.clone();
        tell.tell(News::Status { nodes: vec![first], unanswered: Vec::new() });
        spawn_detached(move || {
            loop {
                std::thread::sleep(STATUS_PACE);
                let news = match get(address) {
                    Ok(node) => News::Status { nodes: vec![node], unanswered: Vec::new() },
                    Err(error) => News::Silent(gone(&host, &error)),
                };
                if !tell.tell(news) {
                    return;
                }
            }
        });
        return Ok(Told { news, woken, requests, source: Source::Http(at), owner: None });
    }
    let job = find_run::running(asked.run.as_deref(), None)?;
    let RunningJob { run_id, agents, stranger } = job;
    let listeners: Vec<Listener> = agents.iter().map(|(agent, _)| agent.clone()).collect();
    let status = {
        let (tell, listeners) = (tell.clone(), listeners.clone());
        move || {
            loop {
                let (news, pace) = status(&listeners);
                if !tell.tell(news) {
                    return;
                }
                std::thread::sleep(pace);
            }
        }
    };
    spawn_detached(status);
    let details = Details { run_id, listeners, tell, lang };
    spawn_detached(move || details.follow(&asked_for));
    let owner = stranger.map(users::named);
    Ok(Told { news, woken, requests, source: Source::Socket, owner })
}

/// Status of all nodes, and the time until the next question.
fn status(agents: &[Listener]) -> (News, Duration) {
    let (mut all, mut missing, mut failed) = (Vec::new(), Vec::new(), None);
    let mut at_node_0 = false;
    for agent in agents {
        match view(agent, &ViewAsk::Status) {
            Ok(View::Status(status)) => {
                let reaches_all = status.reaches_all;
                at_node_0 |= status.at_node_0;
                let (nodes, unanswered) = status.read();
                all.extend(nodes);
                missing.extend(unanswered.iter().map(silence));
                if reaches_all {
                    break;
                }
            }
            Ok(_) => {}
            Err(error) => failed = Some(error),
        }
    }
    let pace = look_pace(all.len() + missing.len(), at_node_0);
    let news = match failed {
        Some(error) if all.is_empty() => News::Silent(ended(&error)),
        _ => News::Status { nodes: all, unanswered: missing },
    };
    (news, pace)
}

fn ended(error: &io::Error) -> Text {
    if find_run::has_ended(error) {
        return text!(
            "the job has ended; ranklaunch logs shows what it wrote",
            "任务已结束；用 ranklaunch logs 查看其输出"
        );
    }
    let Text { en, zh } = cause(error);
    text!("the job's agent gives no answer: {en}", "任务的 agent 没有应答：{zh}")
}

/// Requests the content of a page, one page at a time.
struct Details {
    run_id: RunId,
    listeners: Vec<Listener>,
    tell: Tell,
    lang: Lang,
}

impl Details {
    fn follow(&self, requests: &Receiver<Request>) {
        let mut wanted = Request::Nothing;
        let mut log: Option<RunLines> = None;
        loop {
            let asked = match wanted {
                Request::Log(_) => requests.recv_timeout(LOG_PACE),
                _ => requests.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            let is_new = match asked {
                Ok(request) => {
                    // Only the latest request counts.
                    wanted = requests.try_iter().last().unwrap_or(request);
                    true
                }
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let news = match wanted {
                Request::Quit => return,
                Request::Nothing => None,
                Request::Plan => Some(self.plan()),
                Request::Stacks(rank) => Some(self.stacks(rank)),
                Request::Log(rank) => {
                    if is_new {
                        log = None;
                    }
                    self.log(rank, &mut log)
                }
            };
            if news.is_some_and(|news| !self.tell.tell(news)) {
                return;
            }
        }
    }

    fn plan(&self) -> News {
        let mut failed = None;
        for agent in &self.listeners {
            match view(agent, &ViewAsk::Plan) {
                Ok(View::Plan(plan)) => return News::Plan(plan),
                Ok(_) => {}
                Err(error) => failed = Some(error),
            }
        }
        News::Failed(Request::Plan, failed.map_or_else(nothing, |error| cause(&error)))
    }

    fn stacks(&self, rank: GlobalRank) -> News {
        let selection = Selection { node: None, ranks: vec![rank] };
        let mut why = nothing();
        for agent in &self.listeners {
            match socket::ask(agent, &Ask::Stacks(selection.clone())) {
                Ok(Answer::Stacks(found)) => {
                    let is_there = found.nodes.iter().any(|node| !node.ranks.is_empty());
                    let Some(job) = found.nodes.first().map(|node| node.job.clone()) else {
                        continue;
                    };
                    if is_there {
                        let text = stacks_view::text(&Job { ..job }, &found, self.lang);
                        return News::Stacks(rank, printable(&text).into_owned());
                    }
                }
                Ok(other) => why = refusal_of(&other),
                Err(error) => why = cause(&error),
            }
        }
        News::Failed(Request::Stacks(rank), why)
    }

    /// The lines since the last look; at first the newest ones.
    fn log(&self, rank: GlobalRank, log: &mut Option<RunLines>) -> Option<News> {
        let failed = |why| Some(News::Failed(Request::Log(rank), why));
        let is_first = log.is_none();
        let lines = match log {
            Some(lines) => lines,
            None => {
                let asked = LinesAsk { ranks: vec![rank.0], ..LinesAsk::default() };
                let wanted = asked.wanted().ok()?;
                match RunLines::of_job(
                    &self.listeners,
                    self.run_id.as_str(),
                    Begin::NearEnd,
                    asked,
                    wanted,
                ) {
                    Ok(lines) => log.insert(lines),
                    Err(error) => return failed(cause(&error)),
                }
            }
        };
        lines.look_again();
        let mut found: Vec<LogLine> = Vec::new();
        lines.each(|line, _| {
            if found.len() >= AT_ONCE {
                found.drain(..AT_ONCE / 2);
            }
            found.push(line.end(LONGEST_LINE));
            true
        });
        let problem = std::mem::take(&mut lines.problems).pop();
        match problem {
            Some(problem) if is_first && found.is_empty() => failed(problem),
            _ => (is_first || !found.is_empty()).then(|| News::Lines(rank, found)),
        }
    }
}

fn nothing() -> Text {
    text!("nothing to show", "没有可显示的内容")
}

/// The address of `HOST:PORT`.
fn address(at: &str) -> Result<SocketAddr, Refusal> {
    let host = Host::live();
    let target = cli::Wait { target: at.into(), timeout: None, lang: None }.read(&host)?;
    let found = match names::literal(&target.host) {
        Some(address) => Ok(vec![address]),
        None => block_on(names::resolve(&host, &target.host, RESOLVING, None))?,
    };
    let first: Option<IpAddr> = found.as_ref().ok().and_then(|all| all.first().copied());
    match (first, found) {
        (Some(address), _) => Ok(SocketAddr::new(address, target.port)),
        (None, Err(error)) => Err(no_status(at, &error.text())),
        (None, Ok(_)) => Err(no_status(at, &text!("the name has no address", "该名称没有地址"))),
    }
}

fn no_status(at: &str, why: &Text) -> Refusal {
    let Text { en, zh } = why;
    Refusal::new(
        Id::TopTerminal,
        text!("{at} gives no status: {en}", "{at} 没有给出状态：{zh}"),
        text!(
            "name the address of a node that was started with --http, such as --http 0.0.0.0:9400",
            "请指定以 --http 启动的节点的地址，例如 --http 0.0.0.0:9400"
        ),
    )
}

fn gone(at: &str, error: &io::Error) -> Text {
    let Text { en, zh } = cause(error);
    text!("{at} gives no answer: {en}", "{at} 没有应答：{zh}")
}

/// Time limit to connect, to ask, and of each part of the answer.
const ANSWER: Duration = Duration::from_secs(3);
/// Time limit of the whole answer: a peer that sends a byte now and then blocks nobody.
const WHOLE: Duration = Duration::from_secs(10);
/// Maximum bytes of an answer with its head.
const LARGEST: usize = 16 << 20;
const FIELDS: usize = 64;

/// # Errors
/// No answer, or an answer that is not a status.
pub(super) fn get(at: SocketAddr) -> io::Result<NodeStatus> {
    let mut stream = TcpStream::connect_timeout(&at, ANSWER)?;
    stream.set_write_timeout(Some(ANSWER))?;
    let asked = format!(
        "GET /status HTTP/1.1\r\nHost: {at}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(asked.as_bytes())?;
    let answer = read(&mut stream, WHOLE)?;
    body(&answer).and_then(NodeStatus::read).ok_or_else(|| {
        failure(
            io::ErrorKind::InvalidData,
            text!("it answers, but not as ranklaunch does", "有应答，但不是 ranklaunch 的格式"),
        )
    })
}

/// All bytes that are sent within this time.
fn read(stream: &mut TcpStream, within: Duration) -> io::Result<Vec<u8>> {
    let until = Instant::now() + within;
    let (mut answer, mut part) = (Vec::new(), vec![0_u8; 64 << 10]);
    while answer.len() < LARGEST {
        match read_by(stream, until.min(Instant::now() + ANSWER), &mut part)? {
            0 => break,
            count => answer.extend_from_slice(part.get(..count).unwrap_or_default()),
        }
    }
    Ok(answer)
}

/// Body of an answer with status 200.
fn body(answer: &[u8]) -> Option<&[u8]> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let httparse::Status::Complete(length) = head.parse(answer).ok()? else { return None };
    (head.code == Some(200)).then(|| answer.get(length..)).flatten()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn endless_answer_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("it has one");
        let mut ours = TcpStream::connect(at).expect("connected");
        let (mut theirs, _) = listener.accept().expect("it is in the queue");
        let sends = std::thread::spawn(move || {
            // The peer sends until the reader has gone.
            while theirs.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let read = read(&mut ours, Duration::from_millis(200)).map_err(|error| error.kind());
        assert_eq!(read, Err(io::ErrorKind::TimedOut));
        drop(ours);
        sends.join().expect("it ends");
    }

    #[test]
    fn only_a_status_body_is_read() {
        let status = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{\"host\":\"here\"}";
        let read = body(status).and_then(NodeStatus::read).expect("a status");
        assert_eq!(read.host, "here");
        for other in [
            &b""[..],
            b"HTTP/1.1 404 Not Found\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\n\r\n<html>",
            b"SSH-2.0-OpenSSH_9\r\n",
        ] {
            assert!(body(other).and_then(NodeStatus::read).is_none());
        }
    }
}
