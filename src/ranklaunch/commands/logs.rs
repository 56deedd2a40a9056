//! The commands about runs: `ranklaunch logs` prints the output of a run, of all its ranks in the order of time; `ps`
//! lists the jobs that run here, and the runs of the log folder; `report` and `compare` evaluate the files of a run
//! afterwards.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::output::{print, print_more, say, show, unwritten_file};
use crate::find_run::{self, Run, chosen_run};
use crate::here::{Here, RunningJob, log_folders};
use linux::deadline::spawn_detached;
use linux::{regular_file, users};
use logs::{LogLine, REPORT, RUN_JSON, RunFolder, Wanted};
use monitor::history::differences;
use monitor::socket;
use monitor::socket::Listener;
use report::closing;
use report::line_view::{LineStyle, log_line};
use report::page::{MOST_POINTS, differences_json, differences_text, page};
use report::ps_view::{self, EndedRun, ShownJob};
use report::runs::history;
use report::runs::history::Found;
use report::runs::lines::{Begin, RunLines, view};
use report::runs::view::{LinesAsk, View, ViewAsk};
use settings::cli::{Compare, LogsOf, Ps, Report, ReportFormat};
use text::lang::{Lang, Text, cause};
use text::order::Ordered;
use text::run_id::RunId;
use text::{pattern, text};
use verdict::{Id, Refusal};

/// Interval at which new lines are looked for.
const PACE: Duration = Duration::from_millis(300);
/// Maximum number of ranks that one list may name.
const MOST_RANKS: usize = 100_000;

pub(crate) fn logs(asked: &LogsOf, lang: Lang) -> Result<i32, Refusal> {
    let lines = lines_asked(asked)?;
    let wanted: Wanted = lines.wanted().map_err(|error| no_pattern(&lines.grep, &error))?;
    let run = chosen_run(asked.run.as_deref(), asked.log_dir.as_deref())?;
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
    let mut out =
        Out { lines: String::new(), timestamps: asked.timestamps, lang, is_closed: false };
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
                    return Ok(0);
                }
                std::thread::sleep(PACE);
                lines.look_again();
            }
            _ => return Ok(0),
        }
    }
}

/// The job whose folder was named, if it runs on this node.
fn of_live(run: &RunFolder) -> Result<RunningJob, Refusal> {
    find_run::of_run(&run.id).map_err(|_| elsewhere(&run.id))
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
    let table = socket::jobs(Path::new("/proc")).unwrap_or_default();
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
    let ranks = |words: String| ranks(&words).ok_or_else(|| no_ranks(&words));
    let ranks = text(&asked.rank).map(ranks).transpose()?.unwrap_or_default();
    let since = |words: String| since(&words).ok_or_else(|| no_time(&words));
    let since_ms = text(&asked.since).map(since).transpose()?;
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

/// Maximum bytes of a run.json.
const LARGEST_RUN_JSON: u64 = 64 << 20;

pub(crate) fn ps(asked: &Ps, lang: Lang) -> Result<i32, Refusal> {
    let jobs = running(lang)?;
    let ended = asked.all.then(|| ended(asked, &jobs));
    match asked.format {
        ReportFormat::Text => show(&ps_view::text(&jobs, ended.as_deref(), lang)),
        ReportFormat::Json => {
            let jobs: Vec<Value> = jobs.iter().map(|job| ps_view::json(job, lang)).collect();
            let ended = ended.as_deref().unwrap_or_default();
            let ended: Vec<Value> = ended.iter().map(ps_view::ended_json).collect();
            print(format!("{:#}\n", json!({ "schema": 1, "jobs": jobs, "ended": ended })));
        }
    }
    Ok(0)
}

/// The jobs that run here, with the status of all their nodes.
fn running(lang: Lang) -> Result<Vec<ShownJob>, Refusal> {
    let find_run::Found { jobs, refused, unheard, unasked } = find_run::all()?;
    for (uid, count) in unasked {
        let user = users::named(uid);
        let line = text!(
            "{count} further sockets of user {user} are named like those of jobs; they were not asked",
            "用户 {user} 另有 {count} 个与任务套接字同样命名的套接字，未予询问"
        );
        say(&closing::line(&line, lang));
    }
    // All jobs are asked in parallel, so that a silent one does not delay the others.
    let (tell, told) = mpsc::channel();
    let here = Here::look();
    for job in jobs {
        let (tell, is_here) = (tell.clone(), here.has(&job));
        spawn_detached(move || drop(tell.send(ShownJob { is_here, ..shown(job) })));
    }
    drop(tell);
    // An agent that does not answer is listed, and hides no other.
    let mut shown: Vec<ShownJob> = told.into_iter().collect();
    for (agent, problem) in refused.into_iter().chain(unheard) {
        let user = agent.stranger().map(users::named);
        shown.push(ShownJob { problem: Some(problem), user, ..of_agent(&agent) });
    }
    shown.order_by(|one, other| {
        let place = |job: &ShownJob| (!job.is_here, job.run_id.clone(), job.pid);
        place(one).cmp(&place(other))
    });
    Ok(shown)
}

/// A job of this agent, without what the agent says: its pid by the kernel, or else by its name. The name of a
/// stranger's socket proves nothing.
fn of_agent(agent: &Listener) -> ShownJob {
    let pid = agent.pid_here().and_then(|pid| u32::try_from(pid).ok());
    let is_by_name = pid.is_none() && agent.stranger().is_none();
    let pid_inside = if is_by_name { agent.pid().parse().ok() } else { None };
    ShownJob { pid, pid_inside, ..ShownJob::default() }
}

fn shown(job: RunningJob) -> ShownJob {
    let user = job.stranger.map(users::named);
    let first = job.agents.first().map(|(agent, _)| of_agent(agent)).unwrap_or_default();
    let (about, owner) = (job.about().cloned(), job.owner());
    let mut shown = ShownJob { run_id: job.run_id.into(), user, owner, about, ..first };
    for (agent, own) in job.agents {
        shown.all_nodes = shown.all_nodes.max(own.nodes);
        match view(&agent, &ViewAsk::Status) {
            Ok(View::Status(status)) => {
                let reaches_all = status.reaches_all;
                let (nodes, unanswered) = status.read();
                shown.nodes.extend(nodes);
                if reaches_all {
                    shown.unanswered =
                        unanswered.into_iter().map(|one| (one.who, one.why)).collect();
                    shown.problem = None;
                    break;
                }
            }
            Ok(_) => {}
            Err(error) => shown.problem = Some(cause(&error)),
        }
    }
    shown
}

/// The runs of the log folder that are not alive, the newest first.
fn ended(asked: &Ps, jobs: &[ShownJob]) -> Vec<EndedRun> {
    let folders = log_folders(asked.log_dir.as_deref());
    let runs = folders.iter().flat_map(|folder| logs::runs(folder).unwrap_or_default());
    // A stranger's job may use the id of any run.
    let own = jobs.iter().filter(|job| job.user.is_none());
    runs.filter(|run| own.clone().all(|job| job.run_id != run.id)).map(ended_run).collect()
}

fn ended_run(run: RunFolder) -> EndedRun {
    let records: Vec<Value> =
        run.launchers.iter().filter_map(|launcher| record(&launcher.join(RUN_JSON))).collect();
    // The nodes with seats are done together. A node that was lost before has left its mark, or a record of its own end.
    let is_done = |record: &&Value| record["verdict"]["id"] == "done" && record["seats"].is_array();
    let done = records.iter().find(is_done);
    let lives = done.is_none() && run.lives();
    // What one node says of its end is not the end of a run that goes on.
    let record = done.or(records.first()).filter(|_| !lives);
    let of = |name: &str| record.and_then(|record| record.get(name));
    let text = |value: Option<&Value>| Some(value?.as_str()?.to_owned());
    EndedRun {
        lives,
        bytes: run.bytes(),
        launchers: run.launchers.len(),
        started: text(of("started")),
        ended: text(of("ended")),
        code: of("exit_code").and_then(Value::as_i64),
        verdict: text(of("verdict").and_then(|it| it.get("id"))),
        cause: text(of("cause").and_then(|it| it.get("id"))),
        folder: run.path,
        run_id: run.id,
    }
}

fn record(path: &Path) -> Option<Value> {
    serde_json::from_slice(&regular_file::read(path, LARGEST_RUN_JSON).ok()?).ok()
}

pub(crate) fn report(asked: &Report, lang: Lang) -> Result<i32, Refusal> {
    let Found { job, folders, unread } = history::read_job(&asked.runs, MOST_POINTS)?;
    for one in &unread {
        say(&closing::line(one, lang));
    }
    let of_a_node = job.nodes().len() == 1 && job.lead().members > 1;
    let output = asked.output.clone().map(PathBuf::from);
    let run_id = job.lead().run_id.clone();
    let page = page(job, !of_a_node);
    let place = match output {
        Some(output) if output.as_os_str() == "-" => {
            print(page);
            return Ok(0);
        }
        Some(output) => {
            place(&output, page.as_bytes()).map_err(|error| unwritten_file(&output, &error))?;
            output
        }
        None => {
            let usual = beside(&folders, of_a_node);
            // Nobody wants the report in a pipe at this path.
            match regular_file::replace(&usual, page.as_bytes()) {
                Ok(()) => usual,
                // The logs may be on a read-only mount, or belong to somebody else.
                Err(_) => {
                    // A journal of somebody else may name any path.
                    let name = if RunId::is_sound(&run_id) { &run_id } else { "report" };
                    let here = PathBuf::from(format!("{name}.html"));
                    regular_file::replace(&here, page.as_bytes())
                        .map_err(|error| unwritten_file(&usual, &error))?;
                    here
                }
            }
        }
    };
    show(&format!("{}\n", place.display()));
    Ok(0)
}

/// The report goes into the run's folder, or for one node of several into the node's own; if the
/// folders lie apart, into the current one.
fn beside(folders: &[PathBuf], of_a_node: bool) -> PathBuf {
    let parent = |folder: &PathBuf| folder.parent().map(Path::to_owned);
    let first = folders.first().cloned().unwrap_or_default();
    if of_a_node {
        return first.join(REPORT);
    }
    match parent(&first).filter(|run| folders.iter().all(|one| parent(one).as_ref() == Some(run))) {
        Some(run) => run.join(REPORT),
        None => PathBuf::from(REPORT),
    }
}

/// A reader sees the old file or the new one; the named file may be a pipe.
fn place(path: &Path, page: &[u8]) -> io::Result<()> {
    let is_special = path.metadata().is_ok_and(|metadata| !metadata.is_file());
    if is_special {
        return File::options().write(true).open(path)?.write_all(page);
    }
    regular_file::replace(path, page)
}

pub(crate) fn compare(asked: &Compare, lang: Lang) -> Result<i32, Refusal> {
    let read = |run| history::read_job(std::slice::from_ref(run), MOST_POINTS);
    let (first, second) = (read(&asked.first)?, read(&asked.second)?);
    for one in first.unread.iter().chain(&second.unread) {
        say(&closing::line(one, lang));
    }
    let both = (&first.job, &second.job);
    for (job, which) in [(both.0, "A"), (both.1, "B")] {
        let missing = job.missing();
        if missing > 0 {
            let line = text!(
                "of run {which} the folders of {missing} nodes are not here",
                "运行 {which} 有 {missing} 个节点的目录不在此处"
            );
            say(&closing::line(&line, lang));
        }
    }
    let found = differences(both.0, both.1, lang);
    match asked.format {
        ReportFormat::Text => show(&differences_text(both, &found, lang)),
        ReportFormat::Json => print(format!("{:#}\n", differences_json(both, &found))),
    }
    Ok(0)
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

#[cfg(test)]
mod ps_tests {
    use super::*;
    use linux::sys::Peer;

    #[test]
    fn pid_is_that_of_the_readers_namespace() {
        let own = rustix::process::geteuid().as_raw();
        let shown = |peer: Option<(u32, i32)>| {
            let peer = peer.map(|(uid, pid)| Peer { uid, pid });
            let job = of_agent(&Listener { name: "ranklaunch-stacks-7-ab".to_owned(), peer });
            (job.pid, job.pid_inside)
        };
        assert_eq!(shown(Some((own, 4711))), (Some(4711), None));
        assert_eq!(shown(Some((own, 0))), (None, Some(7)), "it has no pid here");
        assert_eq!(shown(None), (None, Some(7)), "the kernel was not asked");
        assert_eq!(shown(Some((own + 1, 4711))), (Some(4711), None));
        assert_eq!(shown(Some((own + 1, 0))), (None, None), "anybody may choose a name");
    }

    /// The folders of two launchers: `lost` left its mark, or a record of its own end before it.
    #[test]
    fn run_lives_or_ended_and_never_both() {
        let record = |id: &str, code: u32, seats: &Value| {
            json!({ "verdict": { "id": id }, "exit_code": code, "seats": seats }).to_string()
        };
        let seats = json!([{ "seat": 0, "node": 1 }]);
        let (done, cut) = (record("done", 0, &seats), record("node.cut", 143, &seats));
        let alone = record("done", 0, &Value::Null);
        for (lost, other, lives, code) in [
            (None, Some(&done), false, Some(0)),
            (Some(&cut), Some(&done), false, Some(0)),
            (Some(&cut), None, true, None),
            // Without spares each node may have a verdict of its own.
            (None, Some(&alone), true, None),
            (Some(&alone), Some(&alone), false, Some(0)),
            (None, None, true, None),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            for (name, record) in [("node-0", lost), ("node-1", other)] {
                let launcher = folder.path().join(name);
                std::fs::create_dir_all(launcher.join("attempt-0")).expect("made");
                let file = |name: &str, text: &str| {
                    std::fs::write(launcher.join(name), text).expect("written");
                };
                file("agent.jsonl", "x");
                match record {
                    Some(record) => file(RUN_JSON, record),
                    None => file("running", "7"),
                }
            }
            let run = ended_run(RunFolder::read(folder.path()).expect("a run"));
            assert_eq!((run.lives, run.code), (lives, code), "{lost:?} {other:?}");
            assert_eq!(run.verdict.is_some(), !lives, "{lost:?} {other:?}");
            let shown = ps_view::text(&[], Some(&[run]), Lang::En);
            assert_eq!(shown.contains("lives elsewhere"), lives, "{shown}");
            assert_eq!(shown.contains("exit code 0  done"), !lives, "{shown}");
        }
    }
}
