//! Feeds those who watch the job: the [`StatusBoard`] with the data of the other crates in their own types, the last
//! line of the terminal with the board, and the TrainJob with the progress of the job, if the variables of Kubeflow's
//! Trainer ask for it.
//!
//! Takes the plan, the logs and the sampler of an attempt, and the phases of the conductor; decides
//! nothing. Only the node of rank 0 sees that rank's lines, so only this node posts. A thread of its own asks and
//! posts. If a server does not answer, one line reports it, and the job goes on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use serde_json::json;
use tokio::task::JoinHandle;

use super::context::Context;
use super::live_diagnosis::LiveDiagnosis;
use super::start_engine::{planned_ranks, shown_world};
use linux::deadline::with_deadline_async;
use logs::{Console, LogFolder, Logs, OwnerNow};
use monitor::export::{TrainJobTarget, is_taken, trainer_status};
use monitor::status::{EndStatus, GpuStatus, OwnerLog, Phase, RunStatus, StatusBoard};
use monitor::watch::{JobProgress, ProgressLines, SampleSinks};
use node::probe;
use plan::{Plan, RunIdentity};
use report::Ending;
use report::line_view::status_line;
use settings::{Program, TellsProgress};
use text::lang::Text;
use text::letters::is_hidden;
use text::rank::LocalRank;
use text::{mask, text};
use verdict::outcome::RankUnit;

/// Characters of a line that are shown.
const SHOWN: usize = 200;

impl Context {
    /// A phase begins.
    pub(super) fn enter(&self, phase: Phase) {
        if self.board.enter(phase) {
            self.record_phase(phase);
        }
    }

    /// Writes a phase that has begun to the journal.
    pub(super) fn record_phase(&self, phase: Phase) {
        let attempt = self.board.attempt_number();
        self.journal.keeper()(json!({
            "message": "phase", "phase": phase.name(), "attempt": attempt,
        }));
    }

    /// The launch or the attempt has its verdict.
    pub(super) fn show_verdict(&self, ending: &Ending) {
        self.board.judged(end_status(ending, self.exit_code(ending)));
    }
}

/// A verdict for the viewers.
pub(super) fn end_status(ending: &Ending, code: i32) -> EndStatus {
    EndStatus {
        code,
        id: ending.id.as_str().to_owned(),
        cause: ending.why.as_ref().map(|why| why.id.clone()),
        rank: ending.rank,
        node: ending.node,
        text: ending.text.clone(),
    }
}

/// Status of the run of this plan. `identity`: the agreed one, once the nodes have agreed.
pub(super) fn run_status(
    plan: &Plan,
    identity: Option<&RunIdentity>,
    attempt: u32,
    folder: Option<&LogFolder>,
) -> RunStatus {
    let member = &plan.membership;
    RunStatus {
        run_id: identity.map(|identity| identity.run_id.clone()),
        attempt,
        node: member.node_rank,
        nodes: member.nnodes,
        task: member.task.as_ref().map(|task| task.rank.0),
        world_size: shown_world(plan),
        engine: plan.engine.to_string(),
        program: program_name(&plan.program),
        log_folder: folder.map(|folder| folder.node_path().display().to_string()),
    }
}

/// The file or module of the program, without arguments, which may hold secrets.
pub(super) fn program_name(program: &Program) -> String {
    let name = |path: &std::ffi::OsString| {
        let name = Path::new(path).file_name().unwrap_or(path.as_os_str());
        name.to_string_lossy().into_owned()
    };
    match program {
        Program::Script { path, .. } => name(path),
        Program::Module { name, .. } => name.clone(),
        Program::Command { argv } => argv.first().map(name).unwrap_or_default(),
    }
}

/// The board of an attempt: its ranks, its GPUs and its logs.
pub(super) fn begin(board: &StatusBoard, plan: &Plan, run: RunStatus, logs: &Arc<Logs>) {
    let planned = planned_ranks(plan);
    // The ranks of an elastic job, and of engine `command`, are known when they begin.
    let known = planned.world.is_some() || planned.what == RankUnit::Command;
    let locals = if known { planned.local } else { 0 };
    let mut ranks: Vec<_> = (0..locals).map(|local| planned.rank(LocalRank(local))).collect();
    if let (Some(task), Some(rank)) = (&plan.membership.task, ranks.first_mut()) {
        rank.local = task.local;
    }
    let gpus = plan.gpus.iter().filter(|gpu| gpu.selected).map(|gpu| GpuStatus {
        gpu: gpu.index,
        name: gpu.name.clone(),
        uuid: gpu.uuid.clone(),
        local_rank: gpu.local_rank.map(LocalRank),
        ..GpuStatus::default()
    });
    board.attempt(run, &ranks, gpus.collect());
    let logs = Arc::downgrade(logs);
    board.logs_from(Box::new(move || logs.upgrade().map(|logs| owners(&logs)).unwrap_or_default()));
}

fn owners(logs: &Logs) -> Vec<OwnerLog> {
    let shown = |now: OwnerNow| OwnerLog {
        owner: now.owner,
        bytes: now.summary.bytes,
        lines: now.summary.lines,
        dropped_bytes: now.summary.dropped_file_bytes,
        dropped_lines: now.summary.dropped_console_lines,
        last_line: now.last_line.map(|line| last_line(&line.text())),
        last_at: now.last_at,
    };
    logs.now().into_iter().map(shown).collect()
}

/// The line without secrets and control characters. A progress bar shows its last state.
fn last_line(line: &str) -> String {
    let line = line.rsplit('\r').find(|part| !part.trim().is_empty()).unwrap_or_default();
    let cut = line.trim_end().chars().take(SHOWN).collect::<String>();
    mask::mask_file(&cut).replace(is_hidden, " ")
}

/// Receivers of the samples: all samples go to the board, the full ones to agent.jsonl as well.
pub(super) fn sinks(context: &Context) -> SampleSinks {
    let (keep, shown, asked) =
        (context.journal.keeper(), context.board.clone(), context.board.clone());
    SampleSinks {
        keep: Box::new(move |sample| keep(sample.event())),
        show: Box::new(move |sample| shown.sample(sample)),
        is_watched: Box::new(move || asked.is_watched()),
    }
}

/// Interval of the looks. The line is drawn only if it changed.
const LINE_PACE: Duration = Duration::from_millis(500);

/// The line, which is removed when this is dropped.
pub(super) struct StatusLine(JoinHandle<()>, Console);

/// None if there is no line. `interactive`: the only rank has the terminal, and no line of ours may appear there.
pub(super) fn show_status_line(context: &Context, interactive: bool) -> Option<StatusLine> {
    if interactive || !context.console.has_status() {
        return None;
    }
    let (console, lang, board) = (context.console.clone(), context.lang(), context.board.clone());
    let to = console.clone();
    let task = tokio::spawn(async move {
        loop {
            // This does not count as a viewer's look: the samples of each second contain nothing about the
            // GPUs that the line shows.
            let line = status_line(&board.snapshot());
            to.status(Some(line.get(lang)));
            tokio::time::sleep(LINE_PACE).await;
        }
    });
    Some(StatusLine(task, console))
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.0.abort();
        self.1.status(None);
    }
}

/// Time between two posts: each post starts Python, so a shorter interval would cost more than 1 % of a
/// core.
const POST_PACE: Duration = Duration::from_secs(15);
/// Maximum delay until the first progress is seen.
const TICK: Duration = Duration::from_secs(1);
/// Time limit of one post.
const POST: Duration = Duration::from_secs(5);

/// Posts until this is ended or dropped.
#[derive(Debug)]
pub(super) struct TrainJobPosts {
    end: Sender<()>,
    ended: Receiver<()>,
}

/// State of the thread that posts.
struct Poster {
    target: TrainJobTarget,
    python: PathBuf,
    say: Box<dyn Fn(&Text) + Send>,
    /// The last progress that was accepted.
    posted: Option<JobProgress>,
    tried: Option<Instant>,
    failed: bool,
}

/// None if no variable asks for posts.
pub(super) fn post_progress(
    context: &Context,
    plan: &Plan,
    diagnosis: &LiveDiagnosis,
) -> Option<TrainJobPosts> {
    let pattern = match &context.settings.progress.value {
        TellsProgress::Off => return None,
        TellsProgress::Auto => None,
        TellsProgress::Lines(pattern) => Some(pattern.clone()),
    };
    let target = match TrainJobTarget::of(|name| context.host.variable(name)) {
        Ok(target) => target?,
        Err(why) => {
            context.say(&why);
            return None;
        }
    };
    let Some(python) = plan.python.clone() else {
        context.say(&text!(
            "no progress is posted to the TrainJob: it goes through Python, and no interpreter is known",
            "不向 TrainJob 上报进度：上报需要 Python，而未找到解释器"
        ));
        return None;
    };
    let progress = diagnosis.read_progress(ProgressLines::new(pattern));
    let say = Box::new(context.speaker());
    let poster = Poster { target, python, say, posted: None, tried: None, failed: false };
    let ((end, asked), (done, ended)) = (channel(), channel());
    let thread = std::thread::Builder::new().name("trainjob".to_owned());
    match thread.spawn(move || poster.run(&asked, &done, progress)) {
        Ok(_) => Some(TrainJobPosts { end, ended }),
        Err(error) => {
            tracing::warn!(%error, "no thread for the progress of the TrainJob");
            None
        }
    }
}

impl TrainJobPosts {
    /// Posts the progress that is not posted yet, and ends.
    pub(super) async fn end(self, within: Duration) {
        let TrainJobPosts { end, ended } = self;
        let _ = end.send(());
        with_deadline_async(within, move || ended.recv()).await;
    }
}

impl Poster {
    fn run(
        mut self,
        asked: &Receiver<()>,
        done: &Sender<()>,
        progress: impl Fn(bool) -> Option<JobProgress>,
    ) {
        loop {
            let ends = match asked.recv_timeout(TICK) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let is_due = ends || self.tried.is_none_or(|tried| tried.elapsed() >= POST_PACE);
            // While ranks run, the search for causes reads at the lowest priority.
            let news = if is_due { progress(ends) } else { None };
            if let Some(news) = news.filter(|news| self.posted.as_ref() != Some(news)) {
                self.post(news);
            }
            if ends {
                let _ = done.send(());
                return;
            }
        }
    }

    fn post(&mut self, news: JobProgress) {
        self.tried = Some(Instant::now());
        let (args, variables) = self.target.post(&trainer_status(&news, SystemTime::now()));
        let why = match probe::run_tool(&self.python, &args, &variables, POST) {
            Ok(answer) => {
                let answer = String::from_utf8_lossy(&answer).trim().replace(is_hidden, " ");
                if is_taken(&answer) {
                    self.posted = Some(news);
                    return;
                }
                answer
            }
            Err(error) => error.to_string(),
        };
        if !std::mem::replace(&mut self.failed, true) {
            (self.say)(&text!(
                "the progress of the job was not posted to its TrainJob: {why}; the job goes on, and so do the attempts to post it",
                "任务进度未能上报到 TrainJob：{why}；任务照常运行，并将继续尝试上报"
            ));
        }
    }
}
