//! The observing and the planning phase: the facts of this node, after its NVSwitch fabric is up or its wait
//! timed out, and this node's own plan, before the muster.
//!
//! The first attempt also prints the plan and looks for stale processes. The only process that
//! this phase ends is a proven leftover on the muster port, since the nodes could not meet
//! otherwise.

use std::path::PathBuf;
use std::time::Duration;

use super::context::Context;
use super::muster_config::is_wanted;
use super::stale::Duty;
use super::{collect, stale};
use linux::own_executable;
use node::observe::Facts;
use plan::{Plan, Scope};
use preflight::decide::{Stage, decide};
use preflight::{check, prepare};
use report::{files, start};
use settings::{Settings, Sourced};
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal, Severity, Warning};

/// The plan of this node alone.
pub(super) struct OwnPlan {
    pub(super) plan: Plan,
    /// The single rank inherits stdin, stdout and stderr.
    pub(super) interactive: bool,
    /// Path of this executable, with which engines start the shim.
    pub(super) executable: PathBuf,
    /// The stale processes to end after the nodes have agreed.
    pub(super) duty: Option<Duty>,
    /// The refusal because a process that will not be ended holds the master port.
    pub(super) port_taken: Option<Refusal>,
    /// Warnings that this node prints only if node 0 does not: after the agreement, or without one.
    pub(super) unsaid: Vec<Warning>,
}

/// `first`: this is the first attempt.
///
/// # Errors
/// The refusal of the planner, of a check, or because of a stale process.
pub(super) async fn plan(
    context: &Context,
    facts: &Facts,
    first: bool,
) -> Result<OwnPlan, Refusal> {
    let settings = &context.settings;
    let executable = executable()?;
    let decided = decide(settings, facts, Scope::Alone);
    // Recorded also before a refusal. No decision needs the kernel's release, so it is not a fact.
    let kernel = context.host.read("/proc/sys/kernel/osrelease").ok();
    let kernel = kernel.as_deref().map(str::trim);
    context.journal.keeper()(files::checked(facts, kernel, decided.checks()));
    let plan = decided.plan(Stage::BeforeClearing)?;
    plan.runnable()?;
    let interactive = interactive(settings, &plan)?;
    let unsaid = Vec::new();
    let mut own = OwnPlan { plan, interactive, executable, duty: None, port_taken: None, unsaid };
    let (plan, acts) = (&own.plan, own.plan.membership.acts_for_node());
    if !first {
        decided.plan(Stage::BeforeStart)?;
        has_room(context, plan)?;
        return Ok(own);
    }
    let shown = without_log_folder(plan, context, facts);
    context.console.say(&match acts {
        true => start::block(&shown, settings, context.console.look().width),
        false => start::line(&shown, settings),
    });
    let waits = !plan.membership.is_master() && is_wanted(settings, &plan.membership)?;
    match (acts, waits) {
        (false, _) => {}
        (true, true) => own.unsaid = shown.warnings,
        (true, false) => context.warn_of_plan(&shown.warnings),
    }
    let plan = &own.plan;
    if let Some(root) = &settings.host_root {
        let root = root.display();
        context.say(&text!(
            "what is known of the node is read below {root} (--host-root): the ranks start on this machine anyway, and no other node is met",
            "节点信息取自 {root}（--host-root）：各 rank 仍在本机启动，且不与其他节点集结"
        ));
    }
    if interactive {
        context.say(&text!(
            "the rank owns the terminal, so its output is not captured (redirect standard input from /dev/null to turn this off)",
            "该 rank 直接使用终端，其输出不会写入日志（将标准输入重定向到 /dev/null 可关闭此模式）"
        ));
    }
    // The one waits for /proc while the other starts threads.
    let survey = stale::survey(&context.host, settings, plan, facts);
    let (survey, room) = tokio::join!(survey, async { has_room(context, plan) });
    let survey = survey?;
    own.port_taken = survey.obstacle(&context.host, settings);
    if acts {
        survey.say(context, own.port_taken.as_ref());
    }
    if !survey.frees_gpus()
        && let Some(refusal) = decided.refusal(Stage::BeforeStart)
    {
        return Err(survey.named(refusal));
    }
    room?;
    if plan.membership.members() > 1 {
        survey.free_port(context).await?;
    }
    if survey.ended().next().is_some() {
        own.duty = Some(Duty { request: survey.request, acts });
    }
    Ok(own)
}

/// The plan without the warning of a log folder that cannot be written: the choice of the folder
/// reports that, with the folder that replaces it. The warning stays if the user set a severity
/// for the check.
fn without_log_folder(plan: &Plan, context: &Context, facts: &Facts) -> Plan {
    const ID: Id = Id::DiskLogs;
    let mut plan = plan.clone();
    let unusable = facts.state.logs.as_ref().is_some_and(|folder| folder.problem.is_some());
    if unusable && !context.settings.severities.contains_key(&ID) {
        plan.warnings.retain(|warning| warning.id != ID);
    }
    plan
}

/// Raises the limits on files and threads for this many ranks, as far as possible.
fn has_room(context: &Context, plan: &Plan) -> Result<(), Refusal> {
    prepare::has_room(plan.programs_here()).or_else(|refusal| context.weigh(refusal.id, refusal))
}

/// Whether the rank gets the terminal: on request, or because the job has one rank and stdin is
/// a terminal.
pub(super) fn interactive(settings: &Settings, plan: &Plan) -> Result<bool, Refusal> {
    let nproc = plan.programs_here();
    let Sourced { value: is_asked, source: asked } = &settings.interactive;
    if *is_asked && nproc > 1 {
        let source = plan.decision("nproc_per_node").map(|decision| decision.source.clone());
        let source = source.unwrap_or_default();
        return Err(Refusal::new(
            Id::InteractiveNproc,
            text!(
                "interactive [{asked}] leaves the terminal to one rank, but nproc_per_node is {nproc} \
                 [{source}]",
                "interactive [{asked}] 只能把终端交给一个 rank，但 nproc_per_node 为 {nproc} [{source}]"
            ),
            text!("add --nproc-per-node 1", "请加上 --nproc-per-node 1"),
        ));
    }
    let alone = plan.membership.members() == 1 && plan.nproc_per_node == 1;
    Ok(*is_asked || (alone && supervise::at_terminal()))
}

fn executable() -> Result<PathBuf, Refusal> {
    own_executable::path().map_err(|error| {
        let Text { en, zh } = cause(&error);
        Refusal::new(
            Id::SelfPath,
            text!(
                "cannot find the path of this executable (/proc/self/exe): {en}",
                "无法确定本程序的路径（/proc/self/exe）：{zh}"
            ),
            text!("mount /proc in the container", "请在容器中挂载 /proc"),
        )
    })
}

/// Time limit of the wait for a fabric that is being set up, and the interval between two queries.
const FABRIC: Duration = Duration::from_secs(30);
const FABRIC_PAUSE: Duration = Duration::from_secs(1);

/// Reads all facts, after the fabric is up or its wait timed out.
pub(super) async fn observe(context: &Context) -> Facts {
    let mut facts = collect::observe(&context.host, &context.settings).await;
    wait_for_fabric(context, &mut facts).await;
    facts
}

/// The fabric manager registers GPUs for some seconds after a node's start. This wait counts
/// against --wait-timeout as any other.
async fn wait_for_fabric(context: &Context, facts: &mut Facts) {
    if plan::severity(&context.settings, Id::GpuFabric, Severity::Fail) != Severity::Fail {
        return;
    }
    let most = FABRIC.min(context.settings.wait_timeout.value);
    let deadline = tokio::time::Instant::now() + most;
    let mut said = false;
    while check::fabric_is_pending(facts) && tokio::time::Instant::now() < deadline {
        if !said {
            said = true;
            let seconds = most.as_secs();
            context.say(&text!(
                "the NVSwitch fabric is not ready yet: waiting for it, at most {seconds} s",
                "NVSwitch Fabric 尚未就绪：等待中，最多 {seconds} 秒"
            ));
        }
        tokio::time::sleep(FABRIC_PAUSE).await;
        facts.gpus = collect::gpus(&context.host, &context.settings).await;
    }
}
