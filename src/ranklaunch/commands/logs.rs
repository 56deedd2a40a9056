//! `ranklaunch logs`: the output of a run, of all its ranks in the order of time.

use std::fmt::Write as _;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::output::{print_more, refuse, say};
use super::run_lines::{Begin, RunLines};
use super::running_job::{self, RunningJob};
use super::which_run::{Run, chosen};
use crate::view::LinesAsk;
use linux::host::Host;
use logs::{LogLine, RunFolder, Wanted};
use monitor::socket;
use report::closing;
use report::line_view::{LineStyle, log_line};
use settings::cli::{LogsOf, Options};
use text::lang::{Lang, Text, cause};
use text::pattern;
use text::text;
use verdict::{Id, Refusal};

/// Interval at which new lines are looked for.
const PACE: Duration = Duration::from_millis(300);
/// Maximum number of ranks that one list may name.
const MOST_RANKS: usize = 100_000;

pub(crate) fn logs(asked: &LogsOf) -> i32 {
    let options = Options { lang: asked.lang.clone(), ..Options::default() };
    let lang = options.language(&Host::live());
    match printed(asked, lang) {
        Ok(()) => 0,
        Err(refusal) => refuse(&refusal, lang),
    }
}

fn printed(asked: &LogsOf, lang: Lang) -> Result<(), Refusal> {
    let lines = lines_asked(asked)?;
    let wanted: Wanted = lines.wanted().map_err(|error| no_pattern(&lines.grep, &error))?;
    let run = chosen(asked.run.as_deref(), asked.log_dir.as_deref())?;
    let (mut lines, job) = match run {
        Run::Folder(run) if asked.follow && run.lives() => {
            let job = of_live(&run)?;
            (of_job(&job, lines, wanted, lang)?, Some(job))
        }
        Run::Launcher(run) if asked.follow && run.lives() => {
            let job = of_live(&run)?;
            (RunLines::of_folders(run.launchers, lines, wanted, false), Some(job))
        }
        Run::Folder(run) | Run::Launcher(run) => {
            (RunLines::of_folders(run.launchers, lines, wanted, true), None)
        }
        Run::Lives(job) => (of_job(&job, lines, wanted, lang)?, Some(job).filter(|_| asked.follow)),
    };
    let mut out = Out::new(asked.timestamps, lang);
    loop {
        lines.each(|one, last_rank| out.line(one, last_rank));
        for problem in std::mem::take(&mut lines.problems) {
            say(&closing::line(&problem, lang));
        }
        out.flush();
        match &job {
            Some(job) if !out.is_closed => {
                if !lives(job) {
                    let was_remote = lines.are_remote();
                    lines.end();
                    lines.each(|one, last_rank| out.line(one, last_rank));
                    out.flush();
                    if was_remote {
                        say(&closing::line(&last_ones(), lang));
                    }
                    return Ok(());
                }
                std::thread::sleep(PACE);
                lines.look_again();
            }
            _ => return Ok(()),
        }
    }
}

/// The job whose folder was named, if it runs on this node.
fn of_live(run: &RunFolder) -> Result<RunningJob, Refusal> {
    running_job::of_run(&run.id).map_err(|_| elsewhere(&run.id))
}

/// The lines of a running job, on all its nodes.
fn of_job(
    job: &RunningJob,
    lines: LinesAsk,
    wanted: Wanted,
    lang: Lang,
) -> Result<RunLines, Refusal> {
    job.tell_owner(lang);
    let agents: Vec<_> = job.agents.iter().map(|(agent, _)| agent.clone()).collect();
    RunLines::of_job(&agents, job.run_id.as_str(), Begin::Start, lines, wanted)
        .map_err(|error| no_output(&job.name(), &error))
}

/// Whether an agent of the job still listens.
fn lives(job: &RunningJob) -> bool {
    let table = socket::jobs(std::path::Path::new("/proc")).unwrap_or_default();
    job.agents.iter().any(|(agent, _)| table.iter().any(|one| one.name == agent.name))
}

fn last_ones() -> Text {
    text!(
        "the job has ended; what other nodes wrote in the last moment is in their log folders",
        "任务已结束；其他节点最后时刻的输出在它们各自的日志目录中"
    )
}

/// Standard output, which may be closed at any time.
struct Out {
    lines: String,
    timestamps: bool,
    lang: Lang,
    is_closed: bool,
}

impl Out {
    const FULL: usize = 256 * 1024;

    fn new(timestamps: bool, lang: Lang) -> Out {
        Out { lines: String::new(), timestamps, lang, is_closed: false }
    }

    /// Whether the reader wants more.
    fn line(&mut self, one: &LogLine, last_rank: u32) -> bool {
        let shown = log_line(one, LineStyle::of(last_rank, self.timestamps, self.lang));
        let _ = writeln!(self.lines, "{shown}");
        if self.lines.len() > Out::FULL {
            self.flush();
        }
        !self.is_closed
    }

    fn flush(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        self.is_closed |= !lines.is_empty() && !print_more(lines);
    }
}

fn lines_asked(asked: &LogsOf) -> Result<LinesAsk, Refusal> {
    let text = |value: &Option<std::ffi::OsString>| {
        value.as_ref().map(|value| value.to_string_lossy().into_owned())
    };
    let ranks = match text(&asked.rank) {
        Some(words) => ranks(&words).ok_or_else(|| no_ranks(&words))?,
        None => Vec::new(),
    };
    let since_ms = match text(&asked.since) {
        Some(words) => Some(since(&words).ok_or_else(|| no_time(&words))?),
        None => None,
    };
    let grep = text(&asked.grep);
    Ok(LinesAsk { cursors: Vec::new(), ranks, since_ms, grep, most: 0 })
}

/// `3`, `0,4-7`
fn ranks(words: &str) -> Option<Vec<u32>> {
    let mut ranks = Vec::new();
    for word in words.split(',').map(str::trim) {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        if first > last || (last - first) as usize >= MOST_RANKS - ranks.len() {
            return None;
        }
        ranks.extend(first..=last);
    }
    Some(ranks)
}

/// A duration up to now (`10m`, `10m ago`), or a time of day; in milliseconds since 1970.
fn since(words: &str) -> Option<u64> {
    let at = match settings::duration(words.strip_suffix("ago").unwrap_or(words).trim_end()) {
        Some(ago) => SystemTime::now().checked_sub(ago)?,
        None => OffsetDateTime::parse(words, &Rfc3339).ok()?.into(),
    };
    u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_millis()).ok()
}

fn no_ranks(words: &str) -> Refusal {
    let words = words.escape_debug();
    Refusal::new(
        Id::LogsValue,
        text!("--rank `{words}` names no ranks", "--rank `{words}` 不是 rank 列表"),
        text!("write --rank 3 or --rank 0,4-7", "请写 --rank 3 或 --rank 0,4-7"),
    )
}

fn no_time(words: &str) -> Refusal {
    let words = words.escape_debug();
    Refusal::new(
        Id::LogsValue,
        text!("--since `{words}` is no time", "--since `{words}` 不是时间"),
        text!(
            "write --since 10m for the last ten minutes, or --since 2026-11-23T18:00:00Z",
            "最近十分钟请写 --since 10m，也可写 --since 2026-11-23T18:00:00Z"
        ),
    )
}

fn no_pattern(words: &Option<String>, error: &regex::Error) -> Refusal {
    let why = pattern::flaw(error);
    let pattern = words.as_deref().unwrap_or_default().escape_debug();
    Refusal::new(
        Id::LogsValue,
        text!(
            "--grep `{pattern}` is not a regular expression: {why}",
            "--grep `{pattern}` 不是正则表达式：{why}"
        ),
        text!(
            "write a backslash before ( [ {{ * + ? . ^ $ | where they mean themselves",
            "若 ( [ {{ * + ? . ^ $ | 只表示字符本身，请在前面加反斜杠"
        ),
    )
}

fn no_output(run: &str, error: &io::Error) -> Refusal {
    let Text { en, zh } = cause(error);
    Refusal::new(
        Id::LogsUnknown,
        text!("the job {run} gives no output: {en}", "任务 {run} 没有给出输出：{zh}"),
        text!(
            "what it has written is in its log folder: ranklaunch logs DIR",
            "它已写入的内容在其日志目录中：ranklaunch logs DIR"
        ),
    )
}

fn elsewhere(run: &str) -> Refusal {
    Refusal::new(
        Id::LogsUnknown,
        text!(
            "run {run} lives, but not on this node as far as it is seen: -f follows a job that runs here",
            "运行 {run} 仍在进行，但在此处看不到其进程：-f 只能跟随此处正在运行的任务"
        ),
        text!(
            "run ranklaunch logs -f where the ranks run, as the job's user; without -f it prints what is written so far",
            "请在 rank 所在的容器中以任务的用户运行 ranklaunch logs -f；不带 -f 则输出已写入的内容"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_lists_and_times_are_parsed() {
        assert_eq!(ranks("3"), Some(vec![3]));
        assert_eq!(ranks("0, 4-6"), Some(vec![0, 4, 5, 6]));
        for wrong in ["", "x", "5-3", "-1", "1,,2", "0-4294967295"] {
            assert_eq!(ranks(wrong), None, "{wrong}");
        }
        assert_eq!(since("1970-01-01T00:00:02Z"), Some(2000));
        for ago in ["10m", "10m ago", "1h30m ago"] {
            assert!(since(ago).is_some_and(|at| at > 1_700_000_000_000), "{ago}");
        }
        for wrong in ["", "ago", "yesterday", "18:00"] {
            assert_eq!(since(wrong), None, "{wrong}");
        }
    }
}
