//! One attempt: folders, logs, engine, supervision, closing block.
//!
//! Takes an [`Agreed`] launch. Gives how the attempt ended, and the files that remain to be written.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tokio::sync::mpsc;

use super::agree::Agreed;
use super::agree_lines::{goes_on_from, only_here};
use super::collect::log_candidates;
use super::companions::{Companions, node_sources, nodes, ras_source, sampler, watched_gpus};
use super::conductor::Ended;
use super::context::{ANSWER, Clock, Context, GuardChannel};
use super::end::{Recorded, Rest};
use super::job_session::{JobEnd, Pipes, last_lines};
use super::job_verdict::JudgedEnding;
use super::live_diagnosis::{LiveDiagnosis, explained, known_end};
use super::narrate::Narrator;
use super::node_evidence::NodeEvidence;
use super::node_questions::Nodes;
use super::scratch::Scratch;
use super::start_engine::{launch, local_ranks, not_started, planned_ranks, shown_world};
use super::status_feed::run_status;
use super::{companions, end, failed_node, last_places, node_questions, status_feed, warm};
use linux::deadline::{in_thread, with_deadline_async};
use linux::host::Host;
use linux::sys::Dispositions;
use logs::{FolderLevel, LauncherFolder, LogFolder, Logs, LogsConfig};
use monitor::hang::{HangWatch, Surroundings, Watched};
use monitor::socket::{About, Job, RunningRanks};
use monitor::status::Phase;
use monitor::watch::Sampling;
use monitor::witnesses::Witnesses;
use node::observe::{AccelerateConfig, Counters, GpuSource, Growth, OomWatch};
use plan::{Plan, Resume, RunIdentity};
use preflight::prepare;
use report::closing::{self, Closing};
use report::files::{self, RunRecord};
use report::saved::Saved;
use report::standstill_view::StandstillReporter;
use report::{Ending, ending};
use settings::Source;
use supervise::{AgentReport, EndStep, Patience, WARM};
use text::run_id::RunId;
use verdict::outcome::{KillReason, Notice, Outcome, Owner, Planned, RankUnit, StopReason};
use verdict::{Class, Id, Refusal};

/// Time limit of the search for a cause after the last line was read.
const DIAGNOSIS: Duration = Duration::from_secs(4);
/// Time limit of the last post of a TrainJob's progress.
const LAST_POST: Duration = Duration::from_secs(2);
/// Interval at which the guard hears that the agent runs, and the time after which it ends all if it does not: as the
/// others lose a node that is silent, and before they go on.
const RUNS: Duration = Duration::from_secs(1);
const STILL: Duration = Duration::from_secs(18);
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
    /// The counters before the job.
    counters: Option<Counters>,
    oom: OomWatch,
    /// The scratch folder, which is removed when the attempt is over.
    scratch: Scratch,
}

/// What a job that did not end by itself has saved.
async fn saved(context: &Context, ending: &Ending, limit: Duration) -> Option<Saved> {
    let saves = context.saves.clone().filter(|_| ending.class != Class::Done)?;
    let noticed = context.notices.since().filter(|_| ending.id == Id::StoppedNotice);
    let saved = in_thread(move || saves.saved(limit, noticed)).await?;
    Some(Saved { lost_steps: context.board.steps_since(saved.age), ..saved })
}

/// The end of the ranks on this node.
struct FinishedAttempt {
    /// None if nothing was started.
    outcome: Option<Outcome>,
    planned: Planned,
    clock: Clock,
    ending: Ending,
    sampling: Sampling,
    /// The ranks of other nodes may still run.
    hang: HangWatch,
}

/// Runs one attempt up to and including the closing block.
#[tracing::instrument(name = "attempt", skip_all, fields(attempt = ready.attempt))]
pub(super) async fn run(
    context: &Context,
    ready: &mut Agreed,
    guard: GuardChannel<'_>,
    dispositions: Dispositions,
) -> Ended {
    let began = Instant::now();
    context.board.set_attempt(ready.attempt);
    context.enter(Phase::Launching);
    let attempt = match Attempt::open(context, ready).await {
        Ok(attempt) => attempt,
        Err(refusal) => {
            let ending = Ending::refused(&refusal);
            let code = context.exit_code(&ending);
            context.console.say(&closing::refusal(&refusal, code, context.lang()));
            let clock = Clock::of(context.settings.grace.value, None);
            // A single node has no session, so it decides by itself.
            let alone = ready.session.is_none();
            let again = alone.then(|| ready.restarts.after(&ending, began.elapsed()));
            let again = again.and_then(Result::ok).flatten();
            let why_not = ready.restarts.why_not();
            return Ended { ending, again, why_not, told: false, clock, rest: None };
        }
    };
    let over = attempt.watch(context, ready, guard, dispositions).await;
    let lines = last_lines(&attempt.logs, over.planned, &over.ending);
    let told = over.outcome.as_ref().is_some_and(|outcome| outcome.told);
    let noticed = over.outcome.as_ref().is_some_and(|outcome| outcome.stop_within.is_some());
    let judged = match &mut ready.session {
        Some(session) => {
            let (ending, lines) = (over.ending.clone(), lines.clone());
            let time_left = over.clock.left(EndStep::LastWords);
            let judged =
                session.judge(&context.speaker(), guard.commands, ending, lines, time_left).await;
            let cause = session.cause().cloned();
            if let Some(cause) = cause {
                ready.failed(&cause);
            }
            if judged.again.is_some() {
                ready.avoid_slow_nodes(context);
            }
            judged
        }
        // With a muster the nodes decide; a single node decides here.
        None => {
            let (ending, lasted) = (over.ending.clone(), began.elapsed());
            let restarts = ready.restarts.clone();
            // The folder of checkpoints may be on a mount that does not answer at once.
            let ends = told || noticed;
            let decide = move || match (!ends).then(|| restarts.after(&ending, lasted)) {
                Some(Err(stuck)) => (stuck.ending(ending), None),
                Some(Ok(again)) => (ending, again),
                None => (ending, None),
            };
            let (ending, again) = in_thread(decide).await;
            JudgedEnding { ending, lines: None, again }
        }
    };
    let JudgedEnding { ending, lines: of_job, again } = judged;
    context.show_verdict(&ending);
    failed_node::remember(context, ready, &ending, attempt.folder.as_deref(), again.is_some());
    let (clock, why_not) = (over.clock, ready.restarts.why_not());
    let rest = attempt.close(context, ready, over, &ending, of_job.unwrap_or(lines)).await;
    let leaves = match again {
        Some(_) => context.notices.go_on(&mut ready.seating),
        None => noticed,
    };
    let told = told || leaves;
    Ended { ending, again, why_not, told, clock, rest: Some(rest) }
}

impl Attempt {
    async fn open(context: &Context, ready: &Agreed) -> Result<Attempt, Refusal> {
        let started = SystemTime::now();
        let mut identity =
            RunIdentity { master_port: ready.master_port()?, ..ready.identity.clone() };
        let member = &ready.plan.membership;
        let mut only_own = None;
        if let Some(saves) = &context.saves {
            let is_alone = member.members() == 1;
            let ranks = ready.plan.ranks_of(member.place()).filter(|_| !is_alone);
            let newest = saves.begin(ranks).await;
            // Several nodes have agreed on it.
            if ready.session.is_none() {
                identity.resume = newest.clone()?.as_ref().map(Resume::from);
            }
            if let (None, Ok(Some(own))) = (&identity.resume, &newest) {
                only_own = Some(only_here(&own.name()));
            }
        }
        let plan = ready.plan.finish(&identity);
        if context.saves.is_some() && member.acts_for_node() {
            context.say(&goes_on_from(&plan));
            only_own.iter().for_each(|line| context.say(line));
        }
        let scratch = context.scratch.make(plan.inject);
        // Each candidate may be on a mount that does not answer; heartbeats go on.
        let candidates = log_candidates(&context.host, &context.settings);
        let run_id = identity.run_id.clone();
        // With tasks, several launchers share a node.
        let task = plan.membership.task.as_ref().map(|task| task.local);
        let launcher = LauncherFolder { node_rank: plan.membership.node_rank, task };
        let number = ready.attempt;
        let choosing =
            in_thread(move || logs::choose_folder(&candidates, &run_id, launcher, number));
        let (mode, planned) = (context.settings.probe.value, planned_ranks(&plan));
        let (gpus, asks_driver) =
            (watched_gpus(&plan, planned), plan.gpu_source == GpuSource::Nvml);
        let witnesses = Witnesses::start(&context.host, mode, gpus, asks_driver);
        let ((folder, warnings), witnesses, counters) =
            tokio::join!(choosing, witnesses, link_counters(context, &plan));
        context.warn(&warnings);
        if let Some(folder) = &folder {
            context.run.begin(folder, context.settings.log_keep.value, context.speaker()).await;
        }
        if let (Some(folder), Some(saves), 0) = (&folder, &context.saves, number) {
            let (saves, path) = (saves.clone(), folder.node_path());
            // Beside the folders of all runs.
            let logs = path.parent().and_then(Path::parent).map(Path::to_owned);
            let earlier = in_thread(move || saves.earlier(&logs?)).await;
            if let Some(earlier) = earlier {
                ready.restarts.without_progress(earlier);
            }
        }
        // agent.jsonl and run.json cover all attempts.
        if let Some(folder) = &folder {
            let folder = Arc::clone(folder);
            // If its thread cannot start, the job runs without the journal.
            let _ =
                context.journal.write_to(move || folder.append(FolderLevel::Node, logs::JOURNAL));
        }
        context.run.goes_to(folder.as_ref());
        let lang = context.lang();
        let (run_id, shim) = (&identity.run_id, &ready.executable);
        let mut event = files::planned(&plan, (run_id, ready.attempt, &ready.seats), lang, shim);
        if let Some(fields) = event.as_object_mut() {
            fields.insert("program".to_owned(), status_feed::program_name(&plan.program).into());
            fields.insert("profile".to_owned(), status_feed::profile_name(context).into());
        }
        context.journal.keeper()(event);
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
        let run = run_status(context, &plan, Some(&identity), ready.attempt, folder.as_deref());
        status_feed::begin(&context.board, &plan, run, &logs);
        for warning in &plan.warnings {
            context.board.finding(warning.id.as_str());
        }
        let scratch = scratch.await;
        let oom = OomWatch::begin(&context.host);
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

    /// Runs the ranks until all have ended, and returns their end.
    async fn watch(
        &self,
        context: &Context,
        ready: &mut Agreed,
        guard: GuardChannel<'_>,
        dispositions: Dispositions,
    ) -> FinishedAttempt {
        let Attempt { identity, plan, folder, logs, oom, scratch, .. } = self;
        let witnesses = self.diagnosis.witnesses();
        let (companion, live_gpus) = (witnesses.companion(), witnesses.live_gpus());
        let mut launch =
            launch(&context.host, &context.settings, ready, plan, identity, dispositions, scratch);
        launch.companion = companion;
        let notices = context.notices.clone();
        launch.patience = Patience(Arc::new(move || notices.patience()));
        if let Some(offer) = warm::offer(context, plan).await {
            launch.env.insert(WARM.into(), offer.value);
            launch.forks_engine = offer.forks_engine;
        }
        let planned = launch.planned;
        let say = context.speaker();
        let mut pipes = Pipes { logs, diagnosis: &self.diagnosis, say: &say };
        let sampler = sampler(context, folder.as_deref(), scratch, plan, live_gpus);
        context.board.wakes(sampler.waker());
        let nodes = nodes(ready, plan);
        let sources = node_sources(context, plan);
        let slow =
            node_questions::watch_slow_ranks(context, scratch, plan, sources, &nodes, &ready.slow);
        let running = RunningRanks::of(Job {
            run_id: RunId::try_from(identity.run_id.clone()).unwrap_or_default(),
            attempt: self.number,
            node: plan.membership.node_rank,
            nodes: plan.membership.nnodes,
            ranks: Vec::new(),
            about: About::default(),
        });
        let hang = HangWatch::start(self.watched(context, planned, &nodes));
        let stands_still = hang.take_end();
        let evidence = NodeEvidence {
            ranks: running.clone(),
            logs: Arc::clone(logs),
            plan: report::plan_forms::json(plan, context.lang(), &ready.executable),
            folder: folder.as_ref().map(|folder| folder.node_path()),
            history: context.run.history.clone(),
            control: scratch.control(),
            sources: node_sources(context, plan),
            ras: ras_source(plan),
        };
        let notices = &context.notices;
        let everywhere =
            node_questions::serve(&nodes, evidence, &context.board, &hang, &slow, notices);
        let asked = nodes.clone();
        let tell = move |told: &_, limit| asked.tell_notice(told, limit);
        notices.begin(nodes.member, tell, scratch.notice_file());
        let _serving = context.socket.serve(running.clone(), everywhere);
        let sources = node_sources(context, plan);
        let rules = companions::watch_rules(context, plan, sources, &self.diagnosis);
        let breaks_rule = rules.take_end();
        let posts = status_feed::read_steps(context, &self.diagnosis)
            .and_then(|steps| status_feed::post_progress(context, plan, &self.diagnosis, steps));
        let mut narrator = Narrator::new(context.speaker(), context.settings.grace.value, planned);
        let companions = Companions {
            rules: &rules,
            sampler: &sampler,
            slow: &slow,
            running: &running,
            hang: &hang,
            witnesses,
            diagnosis: &self.diagnosis,
        };
        let mut notice = |notice: Notice| {
            match &notice {
                Notice::RankStarted { pid, .. } => oom.began(*pid),
                Notice::EngineStarted { pid } => oom.began_engine(*pid),
                Notice::KilledIn { pid, group } => oom.killed_in(*pid, group),
                Notice::Killing { why: KillReason::Grace } => last_places::say(context, &running),
                Notice::Stopping { .. } => oom.note(&context.host),
                _ => {}
            }
            companions.hear(&notice);
            if let Some(phase) = context.board.notice(&notice) {
                context.record_phase(phase);
            }
            narrator.hear(&notice);
        };
        let mode = plan.accelerate.as_ref().filter(|config| config.starts_one_process());
        let judge = |seen: &Outcome| {
            let ending = Ending::of(seen).with_cure(seen, mode.map(AccelerateConfig::cure));
            let ending = ending.of_standstill(hang.culprit()).of_breach(rules.fatal());
            let ending = ending.of_notice(notices.announced().as_ref());
            ending.attributed(seen, &oom.account(&context.host, witnesses.oom_kills()))
        };
        if ready.interactive {
            guard.link.say(&AgentReport::Interactive);
            // Our own lines must not appear between a prompt and its answer.
            context.console.flush(PROMPT);
        }
        if !ready.interactive
            && let Some(text) = supervise::stdin_remark(self.number > 0)
        {
            context.say(&text);
        }
        let shown = status_feed::show_status_line(context, ready.interactive);
        let of_notice = &context.settings.notice_signal;
        let signal = (of_notice.value.number(), of_notice.source != Source::Default);
        let (halt, halts) = mpsc::unbounded_channel();
        let say = halt.clone();
        let standing = async {
            stands_still.await;
            let _ = say.send(StopReason::StoodStill);
            std::future::pending::<Infallible>().await
        };
        let breaking = async {
            breaks_rule.await;
            let _ = say.send(StopReason::RuleBroken);
            std::future::pending::<Infallible>().await
        };
        let noticing = notices.watch(&running, planned.what, signal, |stop| {
            let _ = say.send(StopReason::Noticed(stop));
        });
        let commands = guard.commands;
        let running_ranks = async {
            let Some(session) = &mut ready.session else {
                return supervise::run(&launch, commands, &mut pipes, &mut notice, halts).await;
            };
            let of_wait = |ending: Ending| ending.of_given_up_wait(hang.culprit());
            let others_go_on = context.settings.restarts() > 0;
            let end = JobEnd { ending: &judge, cause: &of_wait, halts, halt, others_go_on };
            session.accompany(&launch, commands, &mut pipes, &mut notice, end).await
        };
        let outcome = tokio::select! {
            outcome = running_ranks => outcome,
            never = standing => match never {},
            never = breaking => match never {},
            never = noticing => match never {},
            never = watch_kills(oom, &context.host, guard) => match never {},
            never = says_that_it_runs(context, guard) => match never {},
        };
        guard.link.say(&AgentReport::Runs(None));
        narrator.end();
        notices.end();
        drop((slow, shown));
        context.enter(Phase::Judging);
        let sampling = sampler.end();
        let clock = Clock::of(context.settings.grace.value, outcome.as_ref().ok());
        // The logs are read in a thread, since the session with the other nodes must go on meanwhile.
        let reading = Arc::clone(logs);
        let time_left = clock.left(EndStep::LastWords) / 2;
        in_thread(move || reading.read_out(time_left)).await;
        if let Some(posts) = posts {
            posts.end(clock.left(EndStep::LastWords).min(LAST_POST)).await;
        }
        let ending = match &outcome {
            Ok(outcome) => {
                let ending = read_engine(context, judge(outcome), logs, identity.master_port);
                let end = known_end(&ending, outcome);
                let time_left = clock.left(EndStep::LastWords).min(DIAGNOSIS);
                let ending = explained(ending, end, &self.diagnosis, time_left).await;
                ending.of_given_up_wait(hang.culprit())
            }
            Err((program, error)) => Ending::refused(&not_started(program, error)),
        };
        // The search for the cause has read all output.
        status_feed::keep_steps(context);
        FinishedAttempt { outcome: outcome.ok(), planned, clock, ending, sampling, hang }
    }

    /// None if a person works with the job, or its ranks are not known.
    fn watched(&self, context: &Context, planned: Planned, nodes: &Nodes) -> Option<Watched> {
        let after = context.settings.hang_after.value?;
        if context.settings.interactive.value || planned.what == RankUnit::Command {
            return None;
        }
        Some(Watched {
            after,
            on_hang: context.settings.on_hang.value,
            node: self.plan.membership.node_rank,
            planned,
            control: self.scratch.control(),
            surroundings: Surroundings::new(
                node_sources(context, &self.plan),
                ras_source(&self.plan),
                planned.world,
            ),
            logs: Arc::clone(&self.logs),
            reporter: Box::new(StandstillReporter {
                console: context.console.clone(),
                lang: context.lang(),
                keep: Box::new(context.journal.keeper()),
            }),
            ask: nodes.about_hang(),
            board: context.board.clone(),
            only_answers: nodes.reaches_all && !nodes.leads,
        })
    }

    /// Prints the verdict, and returns what remains to be written.
    async fn close(
        self,
        context: &Context,
        ready: &Agreed,
        over: FinishedAttempt,
        ending: &Ending,
        last_lines: Vec<String>,
    ) -> Rest {
        let FinishedAttempt { outcome, clock, sampling, hang, .. } = over;
        let account = self.oom.account(&context.host, self.diagnosis.witnesses().oom_kills());
        let oom = ending.kills(outcome.as_ref(), &account);
        let (lang, exit_code) = (context.lang(), context.exit_code(ending));
        let link_errors =
            grown(context, self.counters, clock.left_for_answer(EndStep::LastWords)).await;
        let time_left = clock.left_for_answer(EndStep::LastWords);
        let recorded = recorded_files(&self.scratch, &self.plan, ending, time_left).await;
        recorded.say(context, self.folder.as_deref().map(LogFolder::path).as_deref());
        let saved = saved(context, ending, clock.left_for_answer(EndStep::LastWords)).await;
        let engine = self.plan.engine.row().name;
        // The stop that a failure begins, and the files written after it, may take the whole grace
        // period.
        let ended =
            outcome.as_ref().and_then(|outcome| outcome.stopped_at).unwrap_or_else(Instant::now);
        let (folder, warnings) = (self.folder.as_deref().map(LogFolder::path), context.warned());
        let shown = Closing {
            ending,
            exit_code,
            elapsed: ended.saturating_duration_since(context.started),
            world_size: self.plan.world_size,
            node_rank: self.plan.membership.node_rank,
            last_lines: last_lines.clone(),
            engine,
            engine_lines: self.logs.engine_lines(),
            link_errors: &link_errors,
            folder: folder.as_deref(),
            saved: saved.as_ref(),
            warnings: &warnings,
            lang,
        };
        context.console.say(&closing::block(&shown));
        let closing = closing::verdict(&shown);
        let record = RunRecord {
            saved,
            notice: context.notices.status(),
            run_id: self.identity.run_id,
            attempt: self.number,
            node: self.plan.membership.node_rank,
            seats: ready.seats.clone(),
            started: self.started,
            ended: SystemTime::now(),
            plan: report::plan_forms::json(&self.plan, lang, &ready.executable),
            outcome,
            ending: ending.clone(),
            closing,
            oom,
            exit_code,
            logs: Value::Null,
            link_errors,
            survived: self.diagnosis.survived(),
            hangs: hang.found(),
            lang,
        };
        context.journal.keeper()(files::ended(&record, &last_lines));
        let error_files = self.diagnosis.error_files();
        let error_files = error_files.into_iter().map(|(name, bytes)| (name.to_string(), bytes));
        let evidence = error_files.chain(recorded.files).collect();
        Rest { clock, logs: self.logs, folder: self.folder, record, evidence, sampling }
    }
}

/// Watches the kernel's count of kills for memory while the ranks run. The guard learns the count that
/// this process has outlived, in case this process is killed itself.
async fn watch_kills(oom: &OomWatch, host: &Host, guard: GuardChannel<'_>) -> Infallible {
    let mut told = None;
    while let Some(look) = oom.look(host) {
        if told != Some(look.outlived) {
            guard.link.say(&AgentReport::Outlived(look.outlived));
            told = Some(look.outlived);
        }
        tokio::time::sleep(look.next).await;
    }
    std::future::pending().await
}

/// Tells the guard that this process runs, where other nodes would go on without this one if it did not.
async fn says_that_it_runs(context: &Context, guard: GuardChannel<'_>) -> Infallible {
    let longest = context.succession.get().filter(|one| one.can_go_on()).map(|_| STILL);
    while let Some(longest) = longest {
        guard.link.say(&AgentReport::Runs(Some(longest)));
        tokio::time::sleep(RUNS).await;
    }
    std::future::pending().await
}

/// The records of torch after a failure.
async fn recorded_files(
    scratch: &Scratch,
    plan: &Plan,
    ending: &Ending,
    time_left: Duration,
) -> Recorded {
    let asked = plan.recorder_file.filter(|_| ending.code != 0);
    let Some(injection) = scratch.injection().filter(|_| asked.is_some()) else {
        return Recorded::default();
    };
    let (folder, plan) = (injection.records(), plan.clone());
    let reading = with_deadline_async(time_left, move || end::read_recorded(&folder, &plan));
    reading.await.unwrap_or_default()
}

/// Reads the cause from the engine's log: the port that was free when the nodes agreed may be
/// taken when the engine binds it.
fn read_engine(context: &Context, ending: Ending, logs: &Logs, port: u16) -> Ending {
    if ending.id != Id::EngineStart {
        return ending;
    }
    let tail = logs.tail(Owner::Engine, usize::MAX);
    let lines: Vec<_> = tail.iter().map(logs::TailLine::text).collect();
    if !ending::lost_port(lines.iter().map(AsRef::as_ref), port) {
        return ending;
    }
    let taken = prepare::check_port(&context.host, port).err();
    Ending::port_lost(port, taken.as_ref().map(|refusal| &refusal.text))
}

/// The error counters of the job's HCAs before the start.
async fn link_counters(context: &Context, plan: &Plan) -> Option<Counters> {
    if plan.network.hcas.is_empty() {
        return None;
    }
    let (host, ports) = (Arc::clone(&context.host), plan.network.hcas.clone());
    with_deadline_async(ANSWER, move || Counters::read(&host, &ports)).await
}

/// Growth of the counters during the job; empty if they cannot be read any more.
async fn grown(context: &Context, before: Option<Counters>, time_left: Duration) -> Vec<Growth> {
    let Some(before) = before else { return Vec::new() };
    let host = Arc::clone(&context.host);
    with_deadline_async(time_left, move || before.growth(&host)).await.unwrap_or_default()
}
