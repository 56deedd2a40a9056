//! Stale processes before a launch: finds them, decides whether they forbid it, and ends them.
//!
//! The survey comes before the nodes agree. It reports the processes that will be left alone, and a
//! launch that cannot run beside them is refused before anything is ended. One exception: a proven
//! leftover on the muster port is ended first. The clearing phase comes after all nodes have agreed,
//! so that a refused launch has ended nothing. [`preflight::clear`] decides which processes are stale,
//! and which may be ended.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::collect;
use super::context::Context;
use super::muster_config::is_wanted;
use linux::deadline::begun;
use linux::host::Host;
use node::observe::Facts;
use plan::{Plan, Scope};
use preflight::clear::{self, Fate, Request, StaleProcess, StaleRule};
use preflight::decide::{Decided, Stage, decide};
use preflight::prepare;
use settings::contract::{Claim, Field};
use settings::launchers::{Launcher, PythonProgram, PythonRun};
use settings::{Program, Settings, StaleMode};
use text::escape::printable;
use text::lang::Text;
use text::order::InOrder;
use text::text;
use verdict::{Id, Refusal, Severity, Warning};

/// The stale processes found before one launch.
#[derive(Debug)]
pub(super) struct StaleSurvey {
    pub(super) request: Request,
    pub(super) found: Vec<StaleProcess>,
    /// The nodes meet on the master port, so it must be free before the muster.
    meets_on_port: bool,
}

/// Finds stale processes; sends no signal.
#[tracing::instrument(name = "stale.look", skip_all)]
pub(super) async fn survey(
    host: &Arc<Host>,
    settings: &Settings,
    plan: &Plan,
    facts: &Facts,
) -> Result<StaleSurvey, Refusal> {
    let mut request = request(settings, plan, facts);
    let member = &plan.membership;
    let meets = is_wanted(settings, member)?;
    if request.mode == StaleMode::Force && member.members() > 1 && !meets {
        // Without a muster nothing shows whether the other nodes come.
        request.mode = StaleMode::Kill;
    }
    let port = settings.muster_port.as_ref().map(|port| port.value);
    let meets_on_port = meets && port.is_none_or(|port| port == member.master_port);
    let found = if request.mode == StaleMode::Off || !host.is_live() {
        Vec::new()
    } else {
        find(host, &request).await?
    };
    // What is said of them now holds when the others are ended.
    let unreadable = found.iter().filter(|one| one.rule == StaleRule::Unreadable);
    request.unreadable = unreadable.map(|one| one.pid).collect();
    Ok(StaleSurvey { request, found, meets_on_port })
}

/// State of the master port on node 0.
#[derive(Debug)]
pub(super) enum PortState {
    Free,
    /// A leftover holds it and will be ended in time.
    Freed(Text),
    Taken(Refusal),
}

impl StaleSurvey {
    /// Processes that this launch ends.
    pub(super) fn ended(&self) -> impl Iterator<Item = &StaleProcess> {
        self.found.iter().filter(|one| one.is_ended_by(self.request.mode))
    }

    fn left_alone(&self) -> impl Iterator<Item = &StaleProcess> {
        self.found.iter().filter(|one| !one.is_ended_by(self.request.mode))
    }

    fn port_holder(&self) -> Option<&StaleProcess> {
        self.found.iter().find(|one| one.holds_port())
    }

    /// Whether the port that this node must bind is free, or will be freed.
    pub(super) fn port(&self, host: &Host) -> PortState {
        let Some(port) = self.request.master_port else { return PortState::Free };
        let Err(refusal) = prepare::check_port(host, port) else { return PortState::Free };
        let Some(holder) = self.port_holder() else { return PortState::Taken(refusal) };
        let Text { en: who, zh: who_zh } = holder.identity();
        let ends = holder.is_ended_by(self.request.mode);
        if ends && (matches!(holder.fate, Fate::Leftover(_)) || !self.meets_on_port) {
            return PortState::Freed(text!(
                "master port {port} is held by {who}, which an earlier run left behind and this launch ends",
                "Master 端口 {port} 被 {who_zh} 占用，它是早先运行的残留，本次启动会终止它"
            ));
        }
        let Text { en: why, zh: why_zh } = holder.standing();
        let Text { en: end, zh: end_zh } = self.line_that_ends([holder].into_iter());
        PortState::Taken(Refusal::with(
            refusal.verdict,
            refusal.id,
            text!(
                "master port {port} is in use on this node, held by {who}: {why}",
                "本节点的 Master 端口 {port} 已被占用，占用者为 {who_zh}：{why_zh}"
            ),
            text!(
                "choose another port with --master-port, the same on every node; or, if it is not needed any more, end it: {end}",
                "请在所有节点上用 --master-port 指定同一个其他端口；若它已无用，可将其终止：{end_zh}"
            ),
        ))
    }

    /// The command by which the user can end these processes.
    fn line_that_ends<'a>(&self, which: impl Iterator<Item = &'a StaleProcess>) -> Text {
        let which: Vec<&StaleProcess> = which.collect();
        let pids: Vec<String> = which.iter().map(|one| one.pid.to_string()).collect();
        let kill = format!("kill {}", pids.join(" "));
        if which.iter().all(|one| one.is_ended_by(StaleMode::Force)) {
            return text!(
                "{kill}, or ranklaunch clean --stale force with the same arguments on this node",
                "{kill}，或在本节点用相同参数运行 ranklaunch clean --stale force"
            );
        }
        Text::same(kill)
    }

    /// Whether processes that will be ended hold GPUs, so that memory in use proves nothing yet.
    pub(super) fn frees_gpus(&self) -> bool {
        self.ended().any(StaleProcess::holds_gpu) && !self.left_alone().any(StaleProcess::holds_gpu)
    }

    /// A refusal for memory in use, with the processes that hold it and the command that would
    /// end them.
    pub(super) fn named(&self, refusal: Refusal) -> Refusal {
        let holders: Vec<&StaleProcess> = self.left_alone().filter(|one| one.holds_gpu()).collect();
        if refusal.id != Id::GpuBusy || holders.is_empty() {
            return refusal;
        }
        let (en, zh): (Vec<String>, Vec<String>) = holders
            .iter()
            .map(|one| {
                let (who, why) = (one.identity(), one.standing());
                (format!("{}: {}", who.en, why.en), format!("{}：{}", who.zh, why.zh))
            })
            .unzip();
        let (who, who_zh) = (en.join("; "), zh.join("；"));
        let Text { en: end, zh: end_zh } = self.line_that_ends(holders.into_iter());
        let Text { en, zh } = refusal.text.clone();
        Refusal::with(
            refusal.verdict,
            refusal.id,
            text!("{en}: {who}", "{zh}：{who_zh}"),
            text!(
                "choose other GPUs (CUDA_VISIBLE_DEVICES); or, if they are not needed any more, end them: {end}; --severity gpu.busy=warn starts beside them",
                "请改用其他 GPU（CUDA_VISIBLE_DEVICES）；若这些进程已无用，可将其终止：{end_zh}；--severity gpu.busy=warn 可在其存在时启动"
            ),
        )
    }

    /// For `plan`: the processes that `run` would end, and those that it would leave alone.
    pub(super) fn warnings(&self) -> Vec<Warning> {
        self.found
            .iter()
            .filter(|one| !one.inner)
            .map(|one| {
                if one.is_ended_by(self.request.mode) {
                    let (who, why) = (one.identity(), one.reason());
                    Warning::new(
                        Id::StaleEnded,
                        Text::new(
                            format!("run would end {} {}", who.en, why.en),
                            format!("run 会终止 {} {}", who.zh, why.zh),
                        ),
                        text!("--stale report leaves it", "--stale report 会保留它"),
                    )
                } else {
                    Warning::new(
                        Id::StaleBeside,
                        one.left_alone(self.request.mode),
                        text!(
                            "ranklaunch clean --dry-run shows what each mode would end",
                            "ranklaunch clean --dry-run 可查看各模式会终止什么"
                        ),
                    )
                }
            })
            .collect()
    }

    /// The refusal, before anything is ended, if a process that stays holds the port and the
    /// check of [`PortState`] has the severity fail.
    pub(super) fn obstacle(&self, host: &Host, settings: &Settings) -> Option<Refusal> {
        match self.port(host) {
            PortState::Taken(refusal)
                if plan::severity(settings, Id::PortFree, Severity::Fail) == Severity::Fail =>
            {
                Some(refusal)
            }
            _ => None,
        }
    }

    /// Prints the processes that are left alone, except those that a refusal names anyway.
    pub(super) fn say(&self, context: &Context, refused: Option<&Refusal>) {
        if context.settings.stale.value == StaleMode::Force && self.request.mode != StaleMode::Force
        {
            context.say(&text!(
                "--stale force ends nothing more than kill here: without a muster the nodes do not agree; ranklaunch clean --stale force does it on one node",
                "此处 --stale force 与 kill 相同：没有集结，各节点无法协商；可在单个节点上运行 ranklaunch clean --stale force"
            ));
        }
        let named = |one: &&StaleProcess| refused.is_none() || !one.holds_port();
        for one in self.left_alone().filter(|one| !one.inner).filter(named) {
            context.say(&one.left_alone(self.request.mode));
        }
        if refused.is_none() {
            context.warn(self.beside(&context.host).as_slice());
        }
    }

    /// The warning that the job's own script is at work here already.
    fn beside(&self, host: &Host) -> Option<Warning> {
        const SHOWN: usize = 3;
        let ours = |one: &&StaleProcess| {
            let is_script = matches!(one.rule, StaleRule::Program | StaleRule::Launcher);
            !one.inner && is_script && matches!(one.fate, Fate::Forced(_))
        };
        let running: Vec<&StaleProcess> = self.left_alone().filter(ours).collect();
        let since = |one: &&StaleProcess| {
            let (pid, age) = (one.pid, one.age.map(clear::shown_age)?);
            let (en, zh) = (age.en, age.zh);
            let folder = host.process(pid).cwd().map(|folder| folder.display().to_string());
            let folder = printable(folder.as_deref().unwrap_or("?")).into_owned();
            Some((
                format!("pid {pid}, for {en}, in {folder}"),
                format!("pid {pid}，已运行 {zh}，目录 {folder}"),
            ))
        };
        let (en, zh): (Vec<_>, Vec<_>) = running.iter().filter_map(since).take(SHOWN).unzip();
        if en.is_empty() {
            return None;
        }
        let (en, zh) = (en.join("; "), zh.join("；"));
        let Text { en: end, zh: end_zh } = self.line_that_ends(running.into_iter());
        Some(Warning::new(
            Id::StaleBeside,
            text!(
                "this job's script already runs on this node ({en}): both write the same files, if their folders are the same, and use the same GPUs",
                "本任务的脚本已在本节点运行（{zh}）：若目录相同，两者会写入相同的文件，并使用相同的 GPU"
            ),
            text!(
                "if it is not needed any more, end it: {end}; if both are meant, give each GPUs and output folders of its own",
                "若它已无用，可将其终止：{end_zh}；若两者都要运行，请为其分配各自的 GPU 和输出目录"
            ),
        ))
    }

    /// Ends a proven leftover that holds the port on which the nodes meet.
    pub(super) async fn free_port(&self, context: &Context) -> Result<(), Refusal> {
        if !self.meets_on_port {
            return Ok(());
        }
        let PortState::Freed(why) = self.port(&context.host) else { return Ok(()) };
        context.say(&why);
        let holder = self.port_holder().map(|holder| holder.pid);
        let request = Request { mode: StaleMode::Kill, only: holder, ..self.request.clone() };
        end(context, &request).await.map(drop)
    }
}

/// The stale processes to end after all nodes have agreed.
#[derive(Debug)]
pub(super) struct Duty {
    pub(super) request: Request,
    /// False for a task on a node where another task ends the processes. It only waits for that,
    /// since its rank needs the same GPUs.
    pub(super) acts: bool,
}

/// Ends the processes that the mode allows. True if there were any.
pub(super) async fn end(context: &Context, request: &Request) -> Result<bool, Refusal> {
    if matches!(request.mode, StaleMode::Off | StaleMode::Report) || !context.host.is_live() {
        return Ok(false);
    }
    let (host, say) = (Arc::clone(&context.host), context.speaker());
    let request = request.clone();
    let cleared = begun(move || clear::clear(&host, &request, &mut |line: Text| say(&line)));
    match cleared.await {
        Ok(report) => Ok(!report?.ended.is_empty()),
        Err(error) => Err(Refusal::internal(&error.to_string())),
    }
}

/// Finds the processes that the request describes; sends no signal.
pub(super) async fn find(
    host: &Arc<Host>,
    request: &Request,
) -> Result<Vec<StaleProcess>, Refusal> {
    let (host, request) = (Arc::clone(host), request.clone());
    let look = begun(move || clear::find(&host, &request));
    look.await.map_err(|error| Refusal::internal(&error.to_string()))
}

/// Time limit for the driver to free the GPU memory of ended processes.
const DRAIN: Duration = Duration::from_secs(30);
const DRAIN_PAUSE: Duration = Duration::from_millis(250);

/// Ends stale processes, now that `members` nodes or tasks have agreed. Gives the new plan of a single node
/// on which processes were ended. The plan of several nodes stays as agreed.
///
/// # Errors
/// As [`clear()`].
pub(super) async fn carry_out(
    context: &Context,
    duty: Option<&Duty>,
    members: u32,
) -> Result<Option<Plan>, Refusal> {
    let Some(duty) = duty else { return Ok(None) };
    if !duty.acts {
        wait_until_clear(context, &duty.request).await?;
        return Ok(None);
    }
    let decided = clear(context, &duty.request).await?.filter(|_| members == 1);
    decided.map(|decided| decided.plan(Stage::BeforeStart)).transpose()
}

/// Waits for the task that ends these processes. If it cannot end one, it stops all tasks.
async fn wait_until_clear(context: &Context, request: &Request) -> Result<(), Refusal> {
    let deadline = Instant::now() + request.term_wait + request.kill_wait + DRAIN;
    loop {
        let found = find(&context.host, request).await?;
        let over = Instant::now() >= deadline;
        if over || !found.iter().any(|one| one.is_ended_by(request.mode)) {
            return Ok(());
        }
        sleep(DRAIN_PAUSE).await;
    }
}

/// Ends the processes that the mode allows and waits until the driver has freed their memory.
/// Gives the decision for the node after that, or None if nothing was ended.
///
/// # Errors
/// When a process cannot be ended, or when memory of the chosen GPUs is still in use and the
/// check `gpu.busy` has the severity fail.
#[tracing::instrument(name = "stale.end", skip_all)]
async fn clear(context: &Context, request: &Request) -> Result<Option<Decided>, Refusal> {
    if !end(context, request).await? {
        return Ok(None);
    }
    let deadline = Instant::now() + DRAIN;
    loop {
        let facts = collect::observe(&context.host, &context.settings).await;
        let decided = decide(&context.settings, &facts, Scope::Alone);
        let (busy, refusal) = decided.memory_in_use();
        let late = Instant::now() >= deadline;
        if !busy || late {
            return refusal.map_or(Ok(Some(decided)), Err);
        }
        sleep(DRAIN_PAUSE).await;
    }
}

/// The [`Request`] that describes an earlier run of this job.
pub(super) fn request(settings: &Settings, plan: &Plan, facts: &Facts) -> Request {
    let mut request = Request::new(settings.stale.value);
    match &plan.program {
        Program::Script { path, .. } => request.script = std::path::absolute(path).ok(),
        Program::Module { name, .. } => request.module = Some(name.clone()),
        Program::Command { argv } => {
            let argv: Vec<&[u8]> = argv.iter().map(|word| word.as_encoded_bytes()).collect();
            match program_of(&argv) {
                Some(PythonProgram::Script(path)) => {
                    let path = linux::procfs::as_path(path);
                    request.script = std::path::absolute(path).ok();
                }
                Some(PythonProgram::Module(name)) => {
                    request.module = Some(String::from_utf8_lossy(name).into_owned());
                }
                None => {}
            }
        }
    }
    let chosen = || {
        let of = |index| facts.gpus.gpus.iter().find(move |seen| seen.index == index);
        plan.gpus.iter().filter(|gpu| gpu.selected).filter_map(move |gpu| of(gpu.index))
    };
    request.gpu_minors = chosen().filter_map(|gpu| gpu.minor).collect();
    request.gpu_users = chosen()
        .filter_map(|gpu| gpu.health.processes.as_ref())
        .flatten()
        .filter_map(|process| i32::try_from(process.pid).ok())
        .in_set()
        .into_iter()
        .collect();
    let member = &plan.membership;
    if member.task.is_some() {
        request.siblings = siblings(facts);
    }
    // In an elastic job c10d decides which node holds the port.
    let binds = member.is_master() && !member.master_port_free && member.elastic.is_none();
    request.master_port = binds.then_some(member.master_port);
    request
}

/// Variables that all tasks of this job have in common.
fn siblings(facts: &Facts) -> Vec<Claim> {
    let shared = [Field::Tasks, Field::JobId, Field::MasterAddr, Field::MasterPort];
    let evidence = facts.contract.evidence.iter().filter(|found| shared.contains(&found.field));
    evidence.flat_map(|found| std::iter::once(&found.claim).chain(&found.beside)).cloned().collect()
}

/// The script or module that a command starts: the one of python, or of a launcher's ranks.
fn program_of<'a>(argv: &'a [&[u8]]) -> Option<PythonProgram<'a>> {
    let run = match Launcher::of_argv(argv) {
        Some((launcher, at)) => launcher.target(argv.get(at..)?).filter(|_| launcher.is_read())?,
        None => PythonRun::of_command(argv)?,
    };
    Some(run.program)
}
