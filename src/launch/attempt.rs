//! One attempt: folders, logs, engine, supervision, closing block.
//!
//! Takes a [`Ready`] node. Gives how the attempt ended, and the files that remain to be written.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use super::clock::{ANSWER, Clock};
use super::conductor::Ended;
use super::context::{Context, GuardChannel};
use super::end::Rest;
use super::job_session::JobOutput;
use super::job_verdict::JudgedEnding;
use super::live_diagnosis::{LiveDiagnosis, explained, known_end};
use super::narrate::narrate;
use super::pipes::{Pipes, last_lines};
use super::ready::Ready;
use super::scratch::Scratch;
use super::start_engine::{launch, local_ranks, not_started, planned_ranks, shown_world};
use super::witnesses::Witnesses;
use crate::deadline::{in_thread, with_deadline_async};
use crate::lang::Text;
use crate::logs::{self, FolderLevel, LauncherFolder, LogFolder, Logs, LogsConfig};
use crate::observe::counters::{self, Counters, Growth};
use crate::observe::{AccelerateConfig, OomWatch, limits};
use crate::plan::{Membership, Plan, RunIdentity};
use crate::prepare;
use crate::report::closing::{self, Closing};
use crate::report::ending::{self, ending, memory};
use crate::report::files::RunRecord;
use crate::report::{self, Ending, engine_log};
use crate::supervise::{self, EndStep, Notice, Outcome, Owner, Planned};
use crate::sys::Dispositions;
use crate::verdict::{Id, Refusal};
use crate::watch::{self, Sampler, Sampling, SamplingPace};

/// Time limit of the search for a cause after the last line was read.
const DIAGNOSIS: Duration = Duration::from_secs(2);
/// Time limit to flush the console before a prompt.
const PROMPT: Duration = Duration::from_secs(2);

/// An attempt whose folder and logs are open.
struct Attempt {
    number: u32,
    started: SystemTime,
    identity: RunIdentity,
    plan: Plan,
    folder: Option<Arc<LogFolder>>,
    logs: Arc<Logs>,
    diagnosis: Arc<LiveDiagnosis>,
    /// As they were before the job.
    counters: Option<Counters>,
    oom: OomWatch,
    /// Removed when the attempt is over.
    scratch: Scratch,
}

/// How the ranks ended on this node.
struct FinishedAttempt {
    /// None if nothing was started.
    outcome: Option<Outcome>,
    planned: Planned,
    clock: Clock,
    ending: Ending,
    sampling: Sampling,
}

/// Runs one attempt up to and including the closing block.
#[tracing::instrument(name = "attempt", skip_all, fields(attempt = ready.attempt))]
pub(super) async fn run(
    context: &Context,
    ready: &mut Ready,
    guard: GuardChannel<'_>,
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
            // A single node has no session, so it decides by itself.
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
            let time_left = over.clock.left(EndStep::LastWords);
            session.judge(context, guard.commands, ending, lines, time_left).await
        }
        None => JudgedEnding { ending: over.ending.clone(), lines: None, again: None },
    };
    let lines = judged.lines.unwrap_or(lines);
    let told = over.outcome.as_ref().is_some_and(|outcome| outcome.told);
    // With a muster the nodes have decided already; a single node decides here.
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
            launcher_folder(&plan.membership),
            ready.attempt,
        );
        for warning in &warnings {
            context.console.say(&closing::warning(warning, context.lang()));
        }
        // agent.jsonl and run.json cover all attempts.
        if let Some(folder) = &folder {
            let folder = Arc::clone(folder);
            // If its thread cannot start, the job runs without the journal.
            let _ =
                context.journal.write_to(move || folder.append(FolderLevel::Node, logs::JOURNAL));
        }
        let (mode, planned) = (context.settings.probe.value, planned_ranks(&plan));
        let witnesses = Witnesses::start(&context.host, mode, &plan, planned).await;
        let node = plan.membership.node_rank;
        let diagnosis = Arc::new(LiveDiagnosis::start(context.catalogue, node, witnesses));
        let logs = Arc::new(Logs::start(
            LogsConfig {
                folder: folder.clone(),
                world_size: shown_world(&plan),
                local_ranks: local_ranks(&plan),
                console: context.settings.console.value,
                prefix: context.settings.console_prefix.value,
                cap_rank: context.settings.log_cap_rank.value,
                cap_node: context.settings.log_cap_node.value,
                backlog: Some(diagnosis.backlog()),
            },
            context.console.clone(),
        ));
        let counters = link_counters(context, &plan).await;
        let scratch = context.scratch.make();
        let (number, oom) = (ready.attempt, OomWatch::begin(&context.host));
        Ok(Attempt {
            number,
            started,
            identity,
            plan,
            folder,
            logs,
            diagnosis,
            counters,
            oom,
            scratch,
        })
    }

    /// Runs the ranks until all have ended, and returns how.
    async fn watch(
        &self,
        context: &Context,
        ready: &mut Ready,
        guard: GuardChannel<'_>,
        dispositions: Dispositions,
    ) -> FinishedAttempt {
        let Attempt { identity, plan, folder, logs, oom, scratch, .. } = self;
        let companion = self.diagnosis.witnesses().companion();
        let launch = launch(context, ready, plan, identity, dispositions, scratch, companion);
        let planned = launch.planned;
        let say = |line: &Text| context.say(line);
        let mut pipes = Pipes { logs, diagnosis: &self.diagnosis, say: &say };
        let sampler = sampler(context, folder.as_deref());
        let mut notice = |notice: Notice| {
            match &notice {
                Notice::RankStarted { rank, pid } => {
                    sampler.began(rank.global, *pid);
                    self.diagnosis.witnesses().began(rank.global, *pid);
                }
                Notice::RankEnded { rank, .. } => sampler.ended(rank.global),
                _ => {}
            }
            if matches!(notice, Notice::Stopping { .. }) {
                oom.note(&context.host);
                self.diagnosis.stopping();
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
            // Our own lines must not appear between a prompt and its answer.
            context.console.flush(PROMPT);
        }
        let outcome = match &mut ready.session {
            None => {
                let nowhere = std::future::pending();
                supervise::run(&launch, guard.commands, &mut pipes, &mut notice, nowhere).await
            }
            Some(session) => {
                let judged = |seen: &Outcome| {
                    let ending = judge(seen);
                    let end = known_end(&ending, seen);
                    (ending, end)
                };
                let output = JobOutput { logs, diagnosis: &self.diagnosis };
                session
                    .accompany(&launch, guard.commands, output, &mut pipes, &mut notice, &judged)
                    .await
            }
        };
        let sampling = sampler.end();
        let clock = Clock::of(context.settings.grace.value, outcome.as_ref().ok());
        // In a thread, since the session with the other nodes must go on meanwhile.
        let reading = Arc::clone(logs);
        let time_left = clock.left(EndStep::LastWords) / 2;
        in_thread(move || reading.read_out(time_left)).await;
        let ending = match &outcome {
            Ok(outcome) => {
                let ending = read_engine(context, judge(outcome), logs, identity.master_port);
                let end = known_end(&ending, outcome);
                let time_left = clock.left(EndStep::LastWords).min(DIAGNOSIS);
                explained(ending, end, &self.diagnosis, time_left).await
            }
            Err((program, error)) => report::refused(&not_started(program, error)),
        };
        FinishedAttempt { outcome: outcome.ok(), planned, clock, ending, sampling }
    }

    /// Prints the verdict, and returns what remains to be written.
    async fn close(
        self,
        context: &Context,
        ready: &Ready,
        over: FinishedAttempt,
        ending: &Ending,
        last_lines: Vec<String>,
    ) -> Rest {
        let Attempt {
            number, started, identity, plan, folder, logs, counters, oom, diagnosis, ..
        } = self;
        let FinishedAttempt { outcome, clock, sampling, .. } = over;
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
            node: plan.membership.node_rank,
            started,
            ended: SystemTime::now(),
            plan: report::plan_json::json(&plan, lang, &ready.executable),
            outcome,
            ending: ending.clone(),
            oom: oom.kills(&context.host),
            exit_code,
            logs: Value::Null,
            link_errors,
            survived: diagnosis.survived(),
            lang,
        };
        let error_files = diagnosis.error_files();
        Rest { clock, logs, folder, record, error_files, sampling }
    }
}

/// Reads the cause from the engine's log: the port that was free when the nodes agreed may be
/// taken when the engine binds it.
fn read_engine(context: &Context, ending: Ending, logs: &Logs, port: u16) -> Ending {
    if ending.id != Id::EngineStart {
        return ending;
    }
    let tail = logs.tail(Owner::Engine, usize::MAX);
    let lines: Vec<_> = tail.iter().map(logs::TailLine::text).collect();
    if !engine_log::lost_port(lines.iter().map(AsRef::as_ref), port) {
        return ending;
    }
    let taken = prepare::check_port(&context.host, port).err();
    ending::port_lost(port, taken.as_ref().map(|refusal| &refusal.text))
}

/// The folder of this launcher: with tasks, several launchers share a node.
fn launcher_folder(membership: &Membership) -> LauncherFolder {
    let task = membership.task.as_ref().map(|task| task.local);
    LauncherFolder { node_rank: membership.node_rank, task }
}

/// The task that samples the node and its ranks into the journal.
fn sampler(context: &Context, folder: Option<&LogFolder>) -> Sampler {
    let host = Arc::clone(&context.host);
    let node = watch::WatchedNode {
        log_folder: folder.map(LogFolder::path),
        group_memory: Box::new(move || limits::memory_in_use(&host)),
    };
    Sampler::start(node, SamplingPace::STANDARD, context.journal.keeper())
}

/// The error counters of the job's HCAs before the start.
async fn link_counters(context: &Context, plan: &Plan) -> Option<Counters> {
    if plan.network.hcas.is_empty() {
        return None;
    }
    let (host, ports) = (Arc::clone(&context.host), plan.network.hcas.clone());
    with_deadline_async(ANSWER, move || counters::counters(&host, &ports)).await
}

/// By how much the counters grew during the job; empty if they cannot be read any more.
async fn grown(context: &Context, before: Option<Counters>, time_left: Duration) -> Vec<Growth> {
    let Some(before) = before else { return Vec::new() };
    let host = Arc::clone(&context.host);
    with_deadline_async(time_left, move || counters::growth(&host, &before))
        .await
        .unwrap_or_default()
}
