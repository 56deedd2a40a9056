//! Feeds the [`StatusBoard`] with the data of the other crates in their own types, and the last line of the
//! terminal with the board.
//!
//! Takes the plan, the logs and the sampler of an attempt, and the phases of the conductor; decides
//! nothing.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinHandle;

use super::context::Context;
use super::start_engine::{planned_ranks, shown_world};
use logs::{Console, LogFolder, Logs, OwnerNow};
use monitor::status::{EndStatus, GpuStatus, OwnerLog, Phase, RunStatus, StatusBoard};
use monitor::watch::SampleSinks;
use plan::{Plan, RunIdentity};
use report::{Ending, status_line};
use settings::Program;
use text::letters::is_hidden;
use text::mask;
use text::rank::LocalRank;
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
fn program_name(program: &Program) -> String {
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
            let line = status_line::line(&board.snapshot());
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
