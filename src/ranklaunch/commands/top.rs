//! `ranklaunch top`: a running job in the terminal.
//!
//! There are two processes. The first one only waits: it forwards signals, and restores the terminal
//! if the second one, which draws, is killed. If the first one is killed, the second one gets a TERM
//! from the kernel and restores the terminal itself. Neither touches anything of the job.

use std::io::{self, Read};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use ratatui::Terminal;
use rustix::process::{WaitOptions, WaitStatus, kill_process};

use super::output::refuse;
use super::top_source;
use super::top_source::Told;
use linux::sys::{self, Fork, Pid, PollFd, PollFlags, Signal, SignalQueue, SignalSet};
use report::top::{Backend, Colours, Keys, Model, News, Request, Saved, Screen, draw};
use settings::cli::Top;
use text::lang::{Lang, Text, cause};
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
            let code = if is_orphan { 0 } else { view(asked, saved, &signals, lang) };
            sys::exit_now(code)
        }
        Err(_) => view(asked, saved, &signals, lang),
    })
}

/// Waits for the process that draws; gives its exit code.
fn attend(child: i32, saved: &Saved, signals: &SignalQueue) -> i32 {
    let pid = Pid::from_raw(child);
    loop {
        match rustix::process::waitpid(pid, WaitOptions::NOHANG) {
            Ok(Some((_, status))) => return ended(status, saved),
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

fn ended(status: WaitStatus, saved: &Saved) -> i32 {
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
fn view(asked: &Top, saved: Saved, signals: &SignalQueue, lang: Lang) -> i32 {
    let Told { news, woken, requests, source, owner } = match top_source::start(asked, lang) {
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
    woken: &io::PipeReader,
    requests: &mpsc::Sender<Request>,
    signals: &SignalQueue,
) -> io::Result<()> {
    let mut terminal = Terminal::new(Backend::new(colours()))?;
    let mut keys = Keys::default();
    let mut input = io::stdin();
    loop {
        terminal.draw(|frame| draw(model, frame))?;
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
