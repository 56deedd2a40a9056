//! One attempt: folders, logs, engine, supervision, closing block.
//!
//! Takes a node that is ready; gives how the attempt ended, with the files that are still to be
//! written.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::clock::{ANSWER, Clock};
use super::conductor::Ended;
use super::context::{Context, Guard};
use super::end::Rest;
use super::job_verdict::Judged;
use super::narrate::narrate;
use super::pipes::{Pipes, last_lines};
use super::ready::Ready;
use super::scratch::Scratch;
use super::start_engine::{launch, local_ranks, not_started, shown_world};
use crate::deadline::{in_thread, with_deadline_async};
use crate::lang::Text;
use crate::logs::{self, Level, LogFolder, Logs, LogsConfig};
use crate::observe::counters::{self, Counters, Growth};
use crate::observe::{AccelerateConfig, OomWatch, limits};
use crate::plan::{Plan, RunIdentity};
use crate::prepare;
use crate::report::closing::{self, Closing};
use crate::report::ending::{self, ending};
use crate::report::files::RunRecord;
use crate::report::{self, Ending, engine_log, memory};
use crate::supervise::{self, EndStep, Notice, Outcome, Owner, Planned};
use crate::sys::Dispositions;
use crate::text;
use crate::verdict::{Id, Refusal, Verdict};
use crate::watch::{self, Pace, Sampler, Sampling};

/// How long the console may take for what was said before a prompt.
const PROMPT: Duration = Duration::from_secs(2);

/// An attempt whose folder and logs are open.
struct Attempt {
    number: u32,
    started: SystemTime,
    identity: RunIdentity,
    plan: Plan,
    folder: Option<Arc<LogFolder>>,
    logs: Arc<Logs>,
    /// Before the job.
    counters: Option<Counters>,
    oom: OomWatch,
    /// Removed when the attempt is over.
    scratch: Scratch,
}

/// How the ranks ended on this node.
struct Over {
    /// None where nothing was started.
    outcome: Option<Outcome>,
    planned: Planned,
    clock: Clock,
    ending: Ending,
    sampling: Sampling,
}

/// One attempt, to the closing block.
#[tracing::instrument(name = "attempt", skip_all, fields(attempt = ready.attempt))]
pub(super) async fn run(
    context: &Context,
    ready: &mut Ready,
    guard: Guard<'_>,
    dispositions: Dispositions,
) -> Ended {
    let began = Instant::now();
    let attempt = match Attempt::open(context, ready).await {
        Ok(attempt) => attempt,
        Err(refusal) => {
            let ending = report::refused(&refusal);
            let code = context.exit_code(&ending);
            context.console.say(&closing::refusal(&refusal, code, context.lang()));
            let clock = Clock::of(context.settings.grace.value, None);
            // A node alone has no session that decides.
            let again = match &ready.session {
                None => ready.restarts.after(&ending, began.elapsed()),
                Some(_) => None,
            };
            let why_not = ready.restarts.why_not();
            return Ended { ending, again, why_not, told: false, clock, rest: None };
        }
    };
    let over = attempt.watch(context, ready, guard, dispositions).await;
    let lines = last_lines(&attempt.logs, over.planned, &over.ending);
    let judged = match &mut ready.session {
        Some(session) => {
            let (ending, lines) = (over.ending.clone(), lines.clone());
            let patience = over.clock.left(EndStep::LastWords);
            session.judge(context, guard.commands, ending, lines, patience).await
        }
        None => Judged { ending: over.ending.clone(), lines: None, again: None },
    };
    let lines = judged.lines.unwrap_or(lines);
    let told = over.outcome.as_ref().is_some_and(|outcome| outcome.told);
    // The nodes of a muster have decided; a node alone does so by itself.
    let again = match &ready.session {
        None if !told => ready.restarts.after(&judged.ending, began.elapsed()),
        _ => judged.again,
    };
    let (ending, clock, why_not) = (judged.ending, over.clock, ready.restarts.why_not());
    let rest = attempt.close(context, ready, over, &ending, lines).await;
    Ended { ending, again, why_not, told, clock, rest: Some(rest) }
}

impl Attempt {
    async fn open(context: &Context, ready: &Ready) -> Result<Attempt, Refusal> {
        let started = SystemTime::now();
        let identity = RunIdentity { master_port: ready.master_port()?, ..ready.identity.clone() };
        let plan = ready.plan.finish(&identity);
        let (folder, warnings) = logs::choose_folder(
            &ready.log_candidates,
            &identity.run_id,
            &plan.membership.folder(),
            ready.attempt,
        );
        for warning in &warnings {
            context.console.say(&closing::warning(warning, context.lang()));
        }
        // agent.jsonl and run.json are of all attempts.
        if let Some(folder) = &folder {
            let folder = Arc::clone(folder);
            // Without a thread for it the job runs anyway.
            let _ = context.journal.write_to(move || folder.append(Level::Node, "agent.jsonl"));
        }
        let logs = Arc::new(Logs::start(
            LogsConfig {
                folder: folder.clone(),
                world_size: shown_world(&plan),
                local_ranks: local_ranks(&plan),
                console: context.settings.console.value,
                prefix: context.settings.console_prefix.value,
                cap_rank: context.settings.log_cap_rank.value,
                cap_node: context.settings.log_cap_node.value,
            },
            context.console.clone(),
        ));
        let counters = link_counters(context, &plan).await;
        let scratch = context.scratch.make();
        let (number, oom) = (ready.attempt, OomWatch::begin(&context.host));
        Ok(Attempt { number, started, identity, plan, folder, logs, counters, oom, scratch })
    }

    /// Runs the ranks until none is left, and says how that ended.
    async fn watch(
        &self,
        context: &Context,
        ready: &mut Ready,
        guard: Guard<'_>,
        dispositions: Dispositions,
    ) -> Over {
        let Attempt { identity, plan, folder, logs, oom, scratch, .. } = self;
        let launch = launch(context, ready, plan, identity, dispositions, scratch);
        let planned = launch.planned;
        let say = |line: &Text| context.say(line);
        let mut pipes = Pipes { logs, say: &say };
        let sampler = sampler(context, folder.as_deref());
        let mut notice = |notice: Notice| {
            match &notice {
                Notice::RankStarted { rank, pid } => sampler.began(rank.global, *pid),
                Notice::RankEnded { rank, .. } => sampler.ended(rank.global),
                _ => {}
            }
            if matches!(notice, Notice::Stopping { .. }) {
                oom.note(&context.host);
            }
            narrate(context, planned, &notice);
        };
        let mode = plan.accelerate.as_ref().filter(|config| config.starts_one_process());
        let judge = |seen: &Outcome| {
            let ending = ending::with_cure(ending(seen), seen, mode.map(AccelerateConfig::cure));
            memory::attributed(ending, seen, oom.kills(&context.host), oom.counts())
        };
        if ready.interactive {
            guard.link.announce_interactive();
            // What we say must not come between a prompt and its answer.
            context.console.flush(PROMPT);
        }
        let outcome = match &mut ready.session {
            None => {
                let nowhere = std::future::pending();
                supervise::run(&launch, guard.commands, &mut pipes, &mut notice, nowhere).await
            }
            Some(session) => {
                session
                    .accompany(&launch, guard.commands, logs, &mut pipes, &mut notice, &judge)
                    .await
            }
        };
        let sampling = sampler.end();
        let clock = Clock::of(context.settings.grace.value, outcome.as_ref().ok());
        // In a thread: the other nodes may wait for a word of this one meanwhile.
        let reading = Arc::clone(logs);
        let patience = clock.left(EndStep::LastWords) / 2;
        in_thread(move || reading.read_out(patience)).await;
        let ending = match &outcome {
            Ok(outcome) => read_engine(context, judge(outcome), logs, identity.master_port),
            Err((program, error)) => report::refused(&not_started(program, error)),
        };
        Over { outcome: outcome.ok(), planned, clock, ending, sampling }
    }

    /// Says the verdict; what is still to be written.
    async fn close(
        self,
        context: &Context,
        ready: &Ready,
        over: Over,
        ending: &Ending,
        last_lines: Vec<String>,
    ) -> Rest {
        let Attempt { number, started, identity, plan, folder, logs, counters, oom, .. } = self;
        let Over { outcome, clock, sampling, .. } = over;
        let (lang, exit_code) = (context.lang(), context.exit_code(ending));
        let link_errors = grown(context, counters, clock.left_for_answer(EndStep::LastWords)).await;
        let engine = plan.engine.row().name;
        context.console.say(&closing::block(&Closing {
            ending,
            exit_code,
            elapsed: context.started.elapsed(),
            world_size: plan.world_size,
            node_rank: plan.membership.node_rank,
            last_lines,
            engine,
            engine_lines: logs.engine_lines(),
            link_errors: &link_errors,
            folder: folder.as_deref().map(LogFolder::path).as_deref(),
            lang,
        }));
        let record = RunRecord {
            run_id: identity.run_id,
            attempt: number,
            started,
            ended: SystemTime::now(),
            plan: report::plan_view::json(&plan, lang, &ready.executable),
            outcome,
            ending: ending.clone(),
            oom: oom.kills(&context.host),
            exit_code,
            logs: Value::Null,
            link_errors,
            lang,
        };
        Rest { clock, logs, folder, record, sampling }
    }
}

/// The port that was free when the nodes agreed may be gone when the engine listens on it.
fn read_engine(context: &Context, ending: Ending, logs: &Logs, port: u16) -> Ending {
    if ending.id != Id::EngineStart {
        return ending;
    }
    let tail = logs.tail(Owner::Engine, usize::MAX);
    let lines: Vec<_> = tail.iter().map(logs::TailLine::text).collect();
    if !engine_log::lost_port(lines.iter().map(AsRef::as_ref), port) {
        return ending;
    }
    let text = match prepare::check_port(&context.host, port) {
        Err(refusal) => {
            let Text { en, zh } = refusal.text;
            text!("the engine could not listen: {en}", "引擎无法监听：{zh}")
        }
        Ok(()) => text!(
            "the engine could not listen on port {port}: another process had it between the agreement and the start",
            "引擎无法监听端口 {port}：协商完成到启动之间被其他进程占用"
        ),
    };
    Ending {
        code: Verdict::PortInUse.code(),
        id: Id::PortLost,
        text,
        hint: text!(
            "choose another --master-port on all nodes, outside of ip_local_port_range; --max-restarts tries again",
            "请为所有节点选择 ip_local_port_range 之外的其他 --master-port；--max-restarts 会重试"
        ),
        ..ending
    }
}

/// Samples of the node and its ranks, in the journal.
fn sampler(context: &Context, folder: Option<&LogFolder>) -> Sampler {
    let host = Arc::clone(&context.host);
    let node = watch::Node {
        log_folder: folder.map(LogFolder::path),
        group_memory: Box::new(move || limits::memory_in_use(&host)),
    };
    Sampler::start(node, Pace::STANDARD, context.journal.keeper())
}

/// The error counters of the HCAs that the job uses, as they are before it.
async fn link_counters(context: &Context, plan: &Plan) -> Option<Counters> {
    if plan.network.hcas.is_empty() {
        return None;
    }
    let (host, ports) = (Arc::clone(&context.host), plan.network.hcas.clone());
    with_deadline_async(ANSWER, move || counters::counters(&host, &ports)).await
}

/// By how much they grew while the job ran; nothing where they cannot be read any more.
async fn grown(context: &Context, before: Option<Counters>, patience: Duration) -> Vec<Growth> {
    let Some(before) = before else { return Vec::new() };
    let host = Arc::clone(&context.host);
    with_deadline_async(patience, move || counters::growth(&host, &before))
        .await
        .unwrap_or_default()
}
