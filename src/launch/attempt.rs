//! From a plan to a verdict: folders, engine, supervision, closing block; again
//! when a restart was asked for.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tokio::io::unix::AsyncFd;

use super::end::{ANSWER, Clock, Rest};
use super::node::Ready;
use super::restart::Restarts;
use super::scratch::Scratch;
use super::shared::{Together, last_lines};
use super::{Guard, Scene};
use crate::deadline::{in_thread, with_deadline_async};
use crate::engine::Starts;
use crate::lang;
use crate::lang::Text;
use crate::logs::{self, Level, Logs, LogsConfig};
use crate::muster::Again;
use crate::observe::counters::{self, Counters, Growth};
use crate::observe::{AccelerateConfig, OomWatch};
use crate::plan::{EngineOptions, Plan, RunIdentity, argv, exec_argv, rank_env};
use crate::prepare;
use crate::rank::{GlobalRank, LocalRank, RankId};
use crate::report::closing::{self, Closing};
use crate::report::ending::{self, describe, ending, signal_name};
use crate::report::files::RunRecord;
use crate::report::{self, Ending, engine_log, memory};
use crate::supervise::{
    self, End, EndBudget, EndStep, Halt, Launch, Notice, Outcome, Owner, Planned, RankStart, Start,
    Stream, Streams, Unit,
};
use crate::sys::{self, Dispositions};
use crate::text;
use crate::verdict::{Id, Refusal, Verdict};

/// How long a program may take to be executed, without a `--deadline`: a file server that
/// comes back within minutes costs no job.
const EXECUTED: Duration = Duration::from_secs(300);

/// How long the console may take for what was said before a prompt.
const PROMPT: Duration = Duration::from_secs(2);

/// Attempts until one ends well, is stopped, or no restart is left.
pub(super) async fn all(
    scene: &Scene,
    ready: Ready,
    guard: Guard<'_>,
    dispositions: Dispositions,
) -> Ending {
    let mut ready = ready;
    if let Some(request) = ready.stale.take()
        && let Err(ending) = clear_stale(scene, guard, &request).await
    {
        let clock = Clock::of(scene.settings.grace.value, None);
        let node = Some(ready.plan.membership.node_rank);
        scene.announce(guard.link, &ending, node, clock);
        // The others have agreed and wait for this node.
        let Some(mut together) = ready.together.take() else { return ending };
        let patience = clock.left(EndStep::LastWords);
        let judged =
            together.judge(scene, guard.guard_commands, ending, Vec::new(), patience).await;
        together.close().await;
        return judged.ending;
    }
    let mut attempt = ready.attempt;
    // With several nodes only the muster can start all of them again.
    let alone = Restarts::new(match ready.plan.membership.members() {
        1 => scene.settings.max_restarts.value,
        _ => 0,
    });
    let node = Some(ready.plan.membership.node_rank);
    let (ending, clock) = loop {
        let mut together = ready.together.take();
        let tie = together.as_deref_mut();
        let began = Instant::now();
        let Over { ending, again, told, clock, rest } =
            once(scene, &ready, attempt, guard, dispositions, tie).await;
        let next =
            together.as_ref().zip(again).map(|(tie, again)| tie.next(again, &ready.identity));
        if let Some(together) = together {
            if let Some(why) = together.why_not() {
                scene.say(&why);
            }
            // The nodes decided: all of them begin anew, or none. Whoever was told to
            // stop does not take part.
            let go_on = next.zip(again).filter(|_| !told);
            if go_on.is_none() {
                scene.announce(guard.link, &ending, node, clock);
            }
            tokio::join!(together.close(), finish(scene, rest));
            let Some((next, again)) = go_on else { break (ending, clock) };
            match anew(scene, guard.guard_commands, &next, again).await {
                Ok(prepared) => ready = prepared,
                Err(ending) => {
                    scene.announce(guard.link, &ending, node, clock);
                    break (ending, clock);
                }
            }
            attempt = ready.attempt.max(next.attempt);
            continue;
        }
        let again = if told { None } else { alone.after(&ending, began.elapsed()) };
        if again.is_none() {
            scene.announce(guard.link, &ending, node, clock);
        }
        finish(scene, rest).await;
        let Some(again) = again else {
            if let (false, Some(why)) = (told, alone.why_not()) {
                scene.say(&why);
            }
            break (ending, clock);
        };
        attempt = again.attempt;
        let seconds = again.pause.div_ceil(1000);
        scene.say(&text!(
            "starting again in {seconds} s: attempt {attempt}",
            "将在 {seconds} 秒后重新启动：第 {attempt} 次尝试"
        ));
        let pause = tokio::time::sleep(Duration::from_millis(again.pause));
        if let Err(halt) = super::until_stop(guard.guard_commands, pause).await {
            let ending = halted(scene, halt);
            scene.announce(guard.link, &ending, node, clock);
            break (ending, clock);
        }
    };
    scene.journal.close(clock.left_for_answer(EndStep::Record));
    ending
}

/// An attempt that is over, its verdict said.
struct Over {
    ending: Ending,
    again: Option<Again>,
    /// A stop was asked for meanwhile.
    told: bool,
    clock: Clock,
    /// None where nothing was started.
    rest: Option<Rest>,
}

async fn finish(scene: &Scene, rest: Option<Rest>) {
    if let Some(rest) = rest {
        rest.finish(scene).await;
    }
}

/// Ends what earlier runs left, now that the nodes have agreed.
async fn clear_stale(
    scene: &Scene,
    guard: Guard<'_>,
    request: &super::stale::Duty,
) -> Result<(), Ending> {
    match super::until_stop(guard.guard_commands, request.carry_out(scene)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(refusal)) => Err(refuse(scene, &refusal)),
        Err(halt) => Err(halted(scene, halt)),
    }
}

/// All nodes gather again after a pause.
async fn anew(
    scene: &Scene,
    guard_commands: &supervise::GuardCommands,
    next: &super::node::Next,
    again: Again,
) -> Result<Ready, Ending> {
    let attempt = next.attempt;
    let seconds = again.pause.div_ceil(1000);
    scene.say(&text!(
        "all nodes start again in {seconds} s: attempt {attempt}",
        "所有节点将在 {seconds} 秒后重新启动：第 {attempt} 次尝试"
    ));
    let prepared = async {
        tokio::time::sleep(Duration::from_millis(again.pause)).await;
        super::node::prepare(scene, Some(next)).await
    };
    match super::until_stop(guard_commands, prepared).await {
        Ok(Ok(ready)) => Ok(ready),
        Ok(Err(refusal)) => Err(refuse(scene, &refusal)),
        Err(halt) => Err(halted(scene, halt)),
    }
}

/// Between two attempts.
fn halted(scene: &Scene, halt: Halt) -> Ending {
    let ending = ending::halted(halt);
    let code = super::remap(&scene.settings.exit_codes, ending.code);
    scene.console.say(&closing::ended_early(&ending, code, scene.lang()));
    ending
}

/// One attempt, to the closing block.
#[tracing::instrument(name = "attempt", skip_all, fields(attempt = attempt))]
async fn once(
    scene: &Scene,
    ready: &Ready,
    attempt: u32,
    guard: Guard<'_>,
    dispositions: Dispositions,
    mut together: Option<&mut Together>,
) -> Over {
    let started = SystemTime::now();
    let master_port = match super::node::port_for_attempt(ready) {
        Ok(port) => port,
        Err(refusal) => {
            let clock = Clock::of(scene.settings.grace.value, None);
            let ending = refuse(scene, &refusal);
            return Over { ending, again: None, told: false, clock, rest: None };
        }
    };
    let identity = RunIdentity { master_port, ..ready.identity.clone() };
    let plan = ready.plan.finish(&identity);
    let (folder, warnings) = logs::choose_folder(
        &ready.log_candidates,
        &identity.run_id,
        &plan.membership.folder(),
        attempt,
    );
    for warning in &warnings {
        scene.console.say(&closing::warning(warning, scene.lang()));
    }
    // agent.jsonl and run.json are of all attempts.
    if let Some(folder) = &folder {
        let folder = Arc::clone(folder);
        // Without a thread for it the job runs all the same.
        let _ = scene.journal.write_to(move || folder.append(Level::Node, "agent.jsonl"));
    }
    let logs = Arc::new(Logs::start(
        LogsConfig {
            folder: folder.clone(),
            world_size: shown_world(&plan),
            local_ranks: local_ranks(&plan),
            console: scene.settings.console.value,
            prefix: scene.settings.console_prefix.value,
            cap_rank: scene.settings.log_cap_rank.value,
            cap_node: scene.settings.log_cap_node.value,
        },
        scene.console.clone(),
    ));
    let counters = link_counters(scene, &plan).await;
    let scratch = scene.scratch.make();
    let launch = launch(scene, ready, &plan, &identity, dispositions, &scratch);
    let say = |line: &Text| scene.say(line);
    let mut pipes = Pipes { logs: &logs, say: &say };
    let oom = OomWatch::begin(&scene.host);
    let mut notice = |notice: Notice| {
        if matches!(notice, Notice::Stopping { .. }) {
            oom.note(&scene.host);
        }
        narrate(scene, launch.planned, &notice);
    };
    let mode = plan.accelerate.as_ref().filter(|config| config.starts_one_process());
    let judge = |seen: &Outcome| {
        let ending = ending::with_cure(ending(seen), seen, mode.map(AccelerateConfig::cure));
        memory::attributed(ending, seen, oom.kills(&scene.host), oom.counts())
    };
    if ready.interactive {
        guard.link.announce_interactive();
        // What we say must not come between a prompt and its answer.
        scene.console.flush(PROMPT);
    }
    let outcome = match &mut together {
        None => {
            let nowhere = std::future::pending();
            supervise::run(&launch, guard.guard_commands, &mut pipes, &mut notice, nowhere).await
        }
        Some(together) => {
            together
                .accompany(&launch, guard.guard_commands, &logs, &mut pipes, &mut notice, &judge)
                .await
        }
    };
    let clock = Clock::of(scene.settings.grace.value, outcome.as_ref().ok());
    // In a thread: the other nodes may wait for a word of this one meanwhile.
    let reading = Arc::clone(&logs);
    let patience = clock.left(EndStep::LastWords) / 2;
    in_thread(move || reading.read_out(patience)).await;

    let ending = match &outcome {
        Ok(outcome) => read_engine(scene, judge(outcome), &logs, identity.master_port),
        Err((program, error)) => report::refused(&not_started(program, error)),
    };
    let mut lines = last_lines(&logs, launch.planned, &ending);
    let (ending, again) = match together {
        None => (ending, None),
        Some(together) => {
            let patience = clock.left(EndStep::LastWords);
            let judged =
                together.judge(scene, guard.guard_commands, ending, lines.clone(), patience).await;
            lines = judged.lines.unwrap_or(lines);
            (judged.ending, judged.again)
        }
    };
    let exit_code = super::remap(&scene.settings.exit_codes, ending.code);
    let link_errors = grown(scene, counters, clock.left_for_answer(EndStep::LastWords)).await;
    let engine = plan.engine.row().name;
    scene.console.say(&closing::block(&Closing {
        ending: &ending,
        exit_code,
        elapsed: scene.started.elapsed(),
        world_size: plan.world_size,
        node_rank: plan.membership.node_rank,
        last_lines: lines,
        engine,
        engine_lines: logs.engine_lines(),
        link_errors: &link_errors,
        folder: folder.as_deref().map(logs::LogFolder::path).as_deref(),
        lang: scene.lang(),
    }));
    let told = outcome.as_ref().is_ok_and(|outcome| outcome.told);
    let record = RunRecord {
        run_id: identity.run_id.clone(),
        attempt,
        started,
        ended: SystemTime::now(),
        plan: report::plan_view::json(&plan, scene.lang(), &ready.executable),
        outcome: outcome.ok(),
        ending: ending.clone(),
        oom: oom.kills(&scene.host),
        exit_code,
        logs: Value::Null,
        link_errors,
        lang: scene.lang(),
    };
    let rest = Some(Rest { clock, logs, folder, record });
    Over { ending, again, told, clock, rest }
}

/// The port that was free when the nodes agreed may be gone when the engine listens on it.
fn read_engine(scene: &Scene, ending: Ending, logs: &Logs, port: u16) -> Ending {
    if ending.id != Id::EngineStart {
        return ending;
    }
    let tail = logs.tail(Owner::Engine, usize::MAX);
    let lines: Vec<_> = tail.iter().map(logs::TailLine::text).collect();
    if !engine_log::lost_port(lines.iter().map(AsRef::as_ref), port) {
        return ending;
    }
    let text = match prepare::check_port(&scene.host, port) {
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

/// The error counters of the HCAs that the job uses, as they are before it.
async fn link_counters(scene: &Scene, plan: &Plan) -> Option<Counters> {
    if plan.network.hcas.is_empty() {
        return None;
    }
    let (host, ports) = (Arc::clone(&scene.host), plan.network.hcas.clone());
    with_deadline_async(ANSWER, move || counters::counters(&host, &ports)).await
}

/// By how much they grew while the job ran; nothing where they cannot be read any more.
async fn grown(scene: &Scene, before: Option<Counters>, patience: Duration) -> Vec<Growth> {
    let Some(before) = before else { return Vec::new() };
    let host = Arc::clone(&scene.host);
    with_deadline_async(patience, move || counters::growth(&host, &before))
        .await
        .unwrap_or_default()
}

fn refuse(scene: &Scene, refusal: &Refusal) -> Ending {
    let code = super::remap(&scene.settings.exit_codes, refusal.verdict.code());
    scene.console.say(&closing::refusal(refusal, code, scene.lang()));
    report::refused(refusal)
}

/// Engine `command` starts one process per node, so its "ranks" are the nodes.
fn shown_world(plan: &Plan) -> u32 {
    if plan.engine.runs_a_command() { plan.membership.nnodes } else { plan.world_size }
}

fn local_ranks(plan: &Plan) -> u32 {
    // Tasks share the room of their node.
    if plan.engine.runs_a_command() { 1 } else { plan.nproc_per_node }
}

/// What the engine is asked for, for a comparison with what begins.
fn planned_ranks(plan: &Plan) -> Planned {
    let node_rank = plan.membership.node_rank;
    if plan.engine.runs_a_command() {
        return Planned {
            what: Unit::Command,
            first: GlobalRank(node_rank),
            local: 1,
            world: None,
        };
    }
    if let Some(task) = &plan.membership.task {
        let world = Some(task.world);
        return Planned { what: Unit::Rank, first: task.rank, local: 1, world };
    }
    let local = plan.nproc_per_node;
    let fixed = plan.membership.elastic.is_none();
    Planned {
        what: Unit::Rank,
        first: GlobalRank::first_of(node_rank, local),
        local,
        world: fixed.then_some(plan.world_size),
    }
}

/// The ranks that are started from here, where no engine does it.
fn ranks_here(plan: &Plan, planned: Planned) -> Vec<RankId> {
    match &plan.membership.task {
        Some(task) => vec![RankId { global: task.rank, local: task.local }],
        None => (0..plan.nproc_per_node).map(|local| planned.rank(LocalRank(local))).collect(),
    }
}

fn launch(
    scene: &Scene,
    ready: &Ready,
    plan: &Plan,
    identity: &RunIdentity,
    dispositions: Dispositions,
    scratch: &Scratch,
) -> Launch {
    let grace = scene.settings.grace.value;
    let mut env = scene.host.environment().clone();
    for name in &plan.env_remove {
        env.remove(&OsString::from(name));
    }
    // The secret of the muster is none of the ranks' business.
    for name in ["RANKLAUNCH_SECRET", "RANKLAUNCH_SECRET_FILE"] {
        env.remove(OsStr::new(name));
    }
    env.extend(plan.env.iter().map(|(name, value)| (OsString::from(name), value.clone())));
    let planned = planned_ranks(plan);
    let start = match plan.engine.row().starts {
        Starts::Ranks => Start::Ranks {
            shim: ready.executable.clone(),
            argv: argv(plan),
            ranks: ranks_here(plan, planned)
                .into_iter()
                .map(|id| RankStart {
                    id,
                    env: rank_env(plan, id)
                        .into_iter()
                        .map(|(name, value)| (name.into(), value))
                        .collect(),
                })
                .collect(),
        },
        Starts::Command => Start::Ranks {
            shim: ready.executable.clone(),
            argv: argv(plan),
            ranks: vec![RankStart { id: planned.rank(LocalRank(0)), env: BTreeMap::new() }],
        },
        Starts::Launcher => Start::Engine {
            argv: exec_argv(
                plan,
                &ready.executable,
                &EngineOptions {
                    log_dir: scratch.path(),
                    shutdown_timeout: Some(EndBudget::of(grace).engine_timeout()),
                },
            ),
        },
    };
    Launch {
        start,
        planned,
        env,
        dispositions,
        grace,
        exec_timeout: scene.settings.deadline.as_ref().map_or(EXECUTED, |deadline| deadline.value),
        interactive: ready.interactive,
        job: identity.run_id.clone(),
        bindings: plan.bindings.clone(),
    }
}

fn not_started(program: &Path, error: &std::io::Error) -> Refusal {
    let (program, Text { en, zh }) = (program.display(), lang::cause(error));
    Refusal::new(
        Id::EngineExec,
        text!("cannot start {program}: {en}", "无法启动 {program}：{zh}"),
        ending::not_executed_hint(error).unwrap_or_else(|| {
            if error.kind() == std::io::ErrorKind::TimedOut {
                return text!(
                    "it, its interpreter or a folder of its path lies on a mount that does not answer: `findmnt` lists the mounts, and --python names another interpreter",
                    "该文件、其解释器或路径中的某个目录所在的挂载没有应答：可用 `findmnt` 列出挂载，或用 --python 指定其他解释器"
                );
            }
            text!(
                "check that the file exists and may be executed; --python names another interpreter",
                "检查该文件是否存在且可执行；可用 --python 指定其他解释器"
            )
        }),
    )
}

/// Hands pipes on to the log room.
struct Pipes<'a> {
    logs: &'a Logs,
    say: &'a (dyn Fn(&Text) + Sync),
}

impl Streams for Pipes<'_> {
    fn attach(&mut self, owner: Owner, stream: Stream, pipe: OwnedFd) {
        let spare = pipe.try_clone();
        if let Err(error) = self.logs.attach(owner, stream, pipe) {
            tracing::error!(%owner, %error, "no reader for a stream");
            // A closed pipe would kill the rank at its next line.
            if let Ok(spare) = spare.and_then(sys::watch) {
                tokio::spawn(swallow(spare));
            }
            (self.say)(&text!(
                "the output of {owner} is lost: {error}",
                "{owner} 的输出将丢失：{error}"
            ));
        }
    }
}

/// Reads a pipe to its end and forgets what it carries.
async fn swallow(pipe: AsyncFd<OwnedFd>) {
    let mut buffer = vec![0; 16 << 10];
    if rustix::io::ioctl_fionbio(&pipe, true).is_err() {
        return;
    }
    loop {
        let Ok(mut ready) = pipe.readable().await else { return };
        match ready.try_io(|pipe| Ok(rustix::io::read(pipe, &mut buffer)?)) {
            Ok(Ok(0)) => return,
            Ok(Err(error)) if error.kind() != std::io::ErrorKind::Interrupted => return,
            _ => {}
        }
    }
}

/// What is worth a line at once; everything goes to the journal.
fn narrate(scene: &Scene, planned: Planned, notice: &Notice) {
    tracing::info!(?notice);
    let line = match notice {
        Notice::RankEnded { rank, end: Some(end) } if !end.success() => {
            let Text { en, zh } = describe(*end);
            let Text { en: who, zh: who_zh } = named(planned, rank.global);
            text!("{who} ended with {en}", "{who_zh} 结束：{zh}")
        }
        Notice::RankEnded { rank, end: None } => {
            let Text { en: who, zh: who_zh } = named(planned, rank.global);
            text!(
                "the rank shim of {who} was killed, so {who} was ended with it",
                "{who_zh} 的 rank shim 被杀死；{who_zh} 已随之终止"
            )
        }
        Notice::NotExecuted { rank, program, after, given_up } => {
            let seconds = after.as_secs();
            let (end, end_zh) = match given_up.map(|patience| patience.as_secs_f64()) {
                Some(most) => (format!(", given up after {most} s"), format!("，{most} 秒后放弃")),
                None => Default::default(),
            };
            let waits = text!(
                "{program} is not executed yet after {seconds} s: does the mount that it lies on answer?{end}",
                "{program} 在 {seconds} 秒后仍未开始执行：其所在的挂载是否有应答？{end_zh}"
            );
            match rank {
                None => waits,
                Some(rank) => {
                    let Text { en: who, zh: who_zh } = named(planned, rank.global);
                    let Text { en, zh } = waits;
                    text!("{who}: {en}", "{who_zh}：{zh}")
                }
            }
        }
        Notice::OtherWorld(other) => {
            let world = planned.world.unwrap_or_default();
            let Text { en, zh } = ending::other_world(*other, world);
            text!(
                "{en}: this is not the job that was asked for, and its end will not count as done",
                "{zh}：这不是所要求的任务，其结束不会被视为完成"
            )
        }
        Notice::Stopping { reason: supervise::StopReason::Signal(signal) } => {
            let name = signal_name(*signal);
            let grace = scene.settings.grace.value.as_secs_f64();
            text!(
                "{name} received: the ranks have {grace:.0} s to end",
                "收到 {name}：各 rank 有 {grace:.0} 秒时间结束"
            )
        }
        Notice::Leftovers { rank, names, count, grace_ms } => {
            let more = if *count > names.len() { ", …" } else { "" };
            let names = format!("{}{more}", names.join(", "));
            let (en, zh) = match grace_ms {
                0 => ("SIGKILL".to_owned(), "SIGKILL".to_owned()),
                ms => {
                    let seconds = Duration::from_millis(*ms).as_secs_f64();
                    (
                        format!("SIGTERM, and SIGKILL after at most {seconds:.0} s"),
                        format!("SIGTERM，最多 {seconds:.0} 秒后 SIGKILL"),
                    )
                }
            };
            match rank.map(|rank| rank.global) {
                Some(rank) => text!(
                    "rank {rank} ended with code 0 and left processes in the background ({count}): {names}; ending with {en} (a job must not end before its work: use wait, or no &)",
                    "rank {rank} 以 0 结束，但在后台留下了 {count} 个进程：{names}；将对其发送 {zh}（任务不应先于其工作结束：请使用 wait，或去掉 &）"
                ),
                None => text!(
                    "left running after the ranks ({count}): {names}; ending with {en}",
                    "各 rank 结束后仍有 {count} 个进程：{names}；将对其发送 {zh}"
                ),
            }
        }
        Notice::Unread { rank: RankId { global, .. } } => text!(
            "the output of rank {global} cannot be read: no more files may be open (ulimit -n)",
            "无法读取 rank {global} 的输出：可打开的文件数已用尽（ulimit -n）"
        ),
        Notice::Killing => {
            text!("the grace period is over: sending SIGKILL", "宽限期已过：发送 SIGKILL")
        }
        Notice::EngineEnded { end: End::Signal(signal) } => {
            let name = signal_name(*signal);
            text!("the engine was killed by {name}", "引擎被 {name} 杀死")
        }
        _ => return,
    };
    scene.say(&line);
}

fn named(planned: Planned, rank: GlobalRank) -> Text {
    match planned.what {
        Unit::Rank => text!("rank {rank}", "rank {rank}"),
        Unit::Command => text!("the command on node {rank}", "节点 {rank} 上的命令"),
    }
}
