//! Builds the launch for a plan: command line, environment and ranks of this node.
//!
//! Takes the finished plan; gives the [`Launch`] that `supervise` runs. Starts nothing.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::Duration;

use super::agree::Agreed;
use super::scratch::Scratch;
use linux::host::Host;
use linux::sys::Dispositions;
use logs::ErrorFile;
use plan::{EngineOptions, Plan, RunIdentity, argv, exec_argv, rank_env};
use report::ending;
use settings::Settings;
use settings::engine::Starts;
use supervise::inject::{self, Injection};
use supervise::{ERROR_FILE, EndBudget, EndStep, Launch, Patience, RankStart, Start};
use text::lang::{self, Text};
use text::rank::{GlobalRank, LocalRank, RankId};
use text::text;
use verdict::outcome::{Owner, Planned, RankUnit};
use verdict::{Id, Refusal};

/// Default time limit for execve of a program. A file server that recovers within minutes must
/// not fail the job.
const EXECUTED: Duration = Duration::from_secs(300);

/// The variable that names the file of a notice to the ranks. The file appears with the notice.
const NOTICE_FILE: &str = "RANKLAUNCH_NOTICE_FILE";

/// The world size to display. The engine `command` starts one process per node, so nodes count
/// as its ranks.
pub(super) fn shown_world(plan: &Plan) -> u32 {
    if plan.engine.runs_a_command() { plan.membership.nnodes } else { plan.world_size }
}

pub(super) fn local_ranks(plan: &Plan) -> u32 {
    // Tasks share the resources of their node.
    if plan.engine.runs_a_command() { 1 } else { plan.nproc_per_node }
}

/// The ranks that the engine is asked to start, to compare with the ranks that report.
pub(super) fn planned_ranks(plan: &Plan) -> Planned {
    let seat = plan.membership.seat();
    if plan.engine.runs_a_command() {
        return Planned { what: RankUnit::Command, first: GlobalRank(seat), local: 1, world: None };
    }
    if let Some(task) = &plan.membership.task {
        let world = Some(task.world);
        return Planned { what: RankUnit::Rank, first: task.rank, local: 1, world };
    }
    let local = plan.nproc_per_node;
    let fixed = plan.membership.elastic.is_none();
    Planned {
        what: RankUnit::Rank,
        first: GlobalRank::first_of(seat, local),
        local,
        world: fixed.then_some(plan.world_size),
    }
}

/// The ranks that ranklaunch itself starts; empty with an engine.
fn ranks_here(plan: &Plan, planned: Planned) -> Vec<RankId> {
    match &plan.membership.task {
        Some(task) => vec![RankId { global: task.rank, local: task.local }],
        None => (0..plan.nproc_per_node).map(|local| planned.rank(LocalRank(local))).collect(),
    }
}

/// The environment of the ranks, as far as the plan knows it.
pub(super) fn environment(host: &Host, plan: &Plan) -> BTreeMap<OsString, OsString> {
    let mut env = host.environment().clone();
    for name in &plan.env_remove {
        env.remove(&OsString::from(name));
    }
    // The ranks must not see the secret of the muster.
    for name in ["RANKLAUNCH_SECRET", "RANKLAUNCH_SECRET_FILE"] {
        env.remove(OsStr::new(name));
    }
    env.extend(plan.env.iter().map(|(name, value)| (OsString::from(name), value.clone())));
    env
}

pub(super) fn launch(
    host: &Host,
    settings: &Settings,
    ready: &Agreed,
    plan: &Plan,
    identity: &RunIdentity,
    dispositions: Dispositions,
    scratch: &Scratch,
) -> Launch {
    let grace = settings.grace.value;
    let mut env = environment(host, plan);
    env.extend(scratch.injection().map(Injection::variable));
    if let Some((name, injection)) = plan.recorder_file.zip(scratch.injection()) {
        env.insert(name.into(), injection.records().join(inject::RECORD).into());
    }
    env.extend(scratch.notice_file().map(|file| (NOTICE_FILE.into(), file.into())));
    let planned = planned_ranks(plan);
    if let Some((name, injection)) = plan.recorder_pipe.zip(scratch.injection()) {
        env.insert(name.into(), injection.records().join(inject::PIPE).into());
    }
    // The file in which torch's `@record` writes the exception that ends a rank, as below torchrun; none if the user
    // has named a file, or disabled it with an empty value. It is on the local disk, since a log folder whose mount
    // died would hold the rank.
    let records = scratch.path().filter(|_| !env.contains_key(OsStr::new(ERROR_FILE)));
    let record = |owner: Owner| -> Option<(OsString, OsString)> {
        let file = records.as_ref()?.join(ErrorFile::of(owner)?.to_string());
        Some((ERROR_FILE.into(), file.into()))
    };
    let start = match plan.engine.row().starts {
        starts @ (Starts::Ranks | Starts::Command) => {
            let of_rank = |id| match starts {
                Starts::Ranks => rank_env(plan, id),
                _ => BTreeMap::default(),
            };
            let ids = match starts {
                Starts::Ranks => ranks_here(plan, planned),
                _ => vec![planned.rank(LocalRank(0))],
            };
            let started = ids.into_iter().map(|id| {
                let env = of_rank(id).into_iter().map(|(name, value)| (name.into(), value));
                RankStart { id, env: env.chain(record(planned.owner(id.global))).collect() }
            });
            Start::Ranks {
                shim: ready.executable.clone(),
                argv: argv(plan),
                ranks: started.collect(),
            }
        }
        Starts::Launcher => Start::Engine {
            argv: exec_argv(
                plan,
                &ready.executable,
                &EngineOptions {
                    log_dir: scratch.path(),
                    shutdown_timeout: Some(EndBudget::of(grace).until(EndStep::Ranks)),
                },
            ),
        },
    };
    Launch {
        start,
        planned,
        env,
        attempt: ready.attempt,
        restarts: match ready.session.is_some() || plan.membership.members() == 1 {
            true => settings.restarts(),
            // Nothing could notify the other nodes of a restart.
            false => 0,
        },
        engine_restarts: plan.membership.elastic.is_some() && plan.engine.row().has_c10d,
        forks_engine: false,
        dispositions,
        grace,
        exec_timeout: settings.deadline.as_ref().map_or(EXECUTED, |deadline| deadline.value),
        interactive: ready.interactive,
        job: identity.run_id.clone(),
        bindings: plan.bindings.clone(),
        companion: None,
        patience: Patience::default(),
    }
}

pub(super) fn not_started(program: &Path, error: &std::io::Error) -> Refusal {
    let (program, Text { en, zh }) = (program.display(), lang::cause(error));
    Refusal::new(Id::EngineExec,
        text!("cannot start {program}: {en}", "无法启动 {program}：{zh}"),
        ending::not_executed_hint(error).unwrap_or_else(|| {
            if error.kind() == std::io::ErrorKind::TimedOut {
                return text!(
                    "the file, its interpreter or a folder of its path is on a mount that does not answer: `findmnt` lists the mounts, and --python names another interpreter",
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
