//! The order of the planning steps.
//!
//! Takes settings, facts, the membership and what other nodes allow; calls the parts of the
//! planner once, in a fixed order, which is also the order of the printed decisions. Has no rule
//! of its own.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::devices::{Capacity, Chosen, Hardware};
use crate::environment::PlannedValues;
use crate::layout::{LayoutProblem, Sizes, solve};
use crate::left_out::leave_out;
use crate::recording::Recording;
use crate::sizes::{
    self, Axis, check_alone, check_least, check_undeclared, effective_rule, explain_sizes, literal,
    written_sizes,
};
use crate::variables::Variables;
use crate::{
    AskedNproc, Decision, Layout, Membership, Network, Notes, Plan, Resume, RunIdentity, Scope,
    Task, asked_nproc, binding, devices, engine, environment, hcas, interface, membership, nccl,
    offered_nproc, placeholders, python, recording, resume, torchrun,
};
use node::observe::{Facts, Gpu};
use settings::contract::{Contract, Field};
use settings::{
    LayoutRule, Placeholder, Program, Rendezvous, Repeated, Settings, Source, Sourced,
    WorldSizeCounts,
};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal, Verdict};

/// The plan of this node, whatever its checks find. The findings are in the notes, even if there
/// is no plan.
pub(super) fn plan_with(
    settings: &Settings,
    facts: &Facts,
    scope: Scope,
    notes: &mut Notes,
) -> Result<Plan, Refusal> {
    notes.warnings.extend(settings.warnings.iter().cloned());
    notes.warnings.extend(facts.contract.warnings.iter().cloned());
    note_command_line(settings, notes);
    if let Some(assumed) = &settings.assumed {
        notes.decide(
            "assumed",
            assumed,
            text!(
                "these GPUs are assumed; python, torch and limits of that node are unknown until run examines them there; variables are those of this machine",
                "这些 GPU 是假设的；该节点的 Python、torch 和资源限制未知，由 run 在该节点上检查；环境变量取自本机"
            ),
            "--assume",
        );
    }
    note_platform(settings, facts, notes);
    let contract = &facts.contract;
    let mut member = membership(settings, contract, &facts.gpus, notes)?;
    if let Scope::Agreed { seat, .. } | Scope::ForAll { seat, .. } = scope {
        member.seat = seat;
    }
    let mut asked = asked_nproc(settings, contract)?;
    if let Some(task) = &member.task {
        asked = of_tasks(&asked, task)?;
    }
    plan_for(settings, facts, member, &asked, scope, notes)
}

/// The refusal of a layout for a number of nodes that only WORLD_SIZE gives, which may count processes.
fn with_both_readings(refusal: Refusal, (nnodes, is_world_size): (u32, bool)) -> Refusal {
    if !is_world_size || refusal.verdict != Verdict::Layout {
        return refusal;
    }
    let Text { en, zh } = &refusal.hint;
    let hint = text!(
        "--world-size-counts processes if WORLD_SIZE={nnodes} counts processes, not nodes; if there are {nnodes} nodes: {en}",
        "若 WORLD_SIZE={nnodes} 表示进程数而非节点数，请加 --world-size-counts processes；若确有 {nnodes} 个节点：{zh}"
    );
    Refusal { hint, ..refusal }
}

/// The plan of a node with a known membership.
///
/// `notes` has the earlier decisions and findings.
pub(super) fn plan_for(
    settings: &Settings,
    facts: &Facts,
    membership: Membership,
    asked: &AskedNproc,
    scope: Scope,
    notes: &mut Notes,
) -> Result<Plan, Refusal> {
    let contract = &facts.contract;
    let program = settings.program.as_ref().map(|program| program.value.clone());
    let program = program.unwrap_or(Program::Command { argv: Vec::new() });
    let task = membership.task.as_ref();
    let mut capacity = devices::capacity(settings, facts, task, asked, notes)?;
    let offered = offered_nproc(&facts.contract).filter(|_| *asked == AskedNproc::Auto);
    // The platform that starts each task has fixed their number per node.
    let left = scope.most().filter(|_| task.is_none());
    for most in left.into_iter().chain(offered.map(|(offered, _)| offered)) {
        capacity.most = capacity.most.min(most).max(1);
    }
    let rule = effective_rule(settings, &membership, notes);
    let words = program.words();
    let heads = match rule {
        LayoutRule::None => None,
        _ => {
            let checkpoint = facts.checkpoint_heads.as_ref();
            sizes::heads(&settings.layout, &words, checkpoint, scope.heads(), notes)
        }
    };
    let problem = LayoutProblem {
        rule,
        nnodes: membership.nnodes.max(1),
        world: task.map(|task| task.world),
        most: capacity.most,
        exact: capacity.exact.clone(),
        heads,
        ulysses: literal(settings, Axis::Ulysses, rule, &words, notes),
        ring: literal(settings, Axis::Ring, rule, &words, notes),
    };
    // Nodes that have met are no processes.
    let have_met = matches!(scope, Scope::ForAll { .. });
    let is_read = settings.world_size_counts.value == WorldSizeCounts::Auto && !have_met;
    let nodes = (problem.nnodes, membership.nnodes_by_world_size && is_read && problem.nnodes > 1);
    let told = |refusal| with_both_readings(refusal, nodes);
    let (capacity, problem, sizes) =
        solved(settings, facts, scope, capacity, problem, notes).map_err(told)?;
    let nproc = sizes.nproc;
    let world = sizes.world;
    check_least(settings, &problem, nproc).map_err(told)?;
    explain_sizes(settings, &problem, sizes, capacity.hardware, &words, notes);
    check_undeclared(settings, world, &words, notes);
    let program = placeholders::with_conditional(settings, program, problem.nnodes, sizes, notes);
    check_alone(rule, world, &program)?;

    let chosen = match capacity.hardware {
        Hardware::Gpus => {
            let wish = devices::Wish { nproc, exact: capacity.exact.is_some(), rule, task };
            devices::choose(settings, facts, &wish, notes)
        }
        Hardware::Cpus => {
            let visible = facts.gpus.visible.iter();
            let gpus = visible.map(|token| devices::planned(&facts.gpus, token, None)).collect();
            Chosen { gpus, ..Chosen::default() }
        }
    };
    let layout = Layout { rule, heads, ulysses_size: sizes.ulysses, ring_size: sizes.ring };
    let mut arguments = program.args().to_vec();
    arguments.extend(settings.engine_args.iter().map(OsString::from));
    arguments.extend(settings.env.iter().map(|setting| setting.value.clone()));
    let resume = resume::choose(settings, facts, &membership, scope, notes)?;
    let selected =
        placeholders::select(&settings.selects, nodes, capacity.most, world, &arguments, notes)?;
    let placeholders = values(membership.seat(), problem.nnodes, sizes, selected);
    let names = placeholders.keys().map(String::as_str);
    notes.warnings.extend(placeholders::unknown_in(&arguments, names));
    let program = placeholders::replace_in_program(&program, &placeholders);
    let settings = &*with_values(settings, &placeholders);
    resume::check_names(settings, &program)?;
    let variables = Variables::new(settings, facts);
    let (ulysses_size, ring_size) = written_sizes(settings, &layout, world, &program)?;
    let layout = Layout { ulysses_size, ring_size, ..layout };

    // This machine's interfaces are not those of an assumed node.
    let nodes = if settings.assumed.is_some() { 1 } else { problem.nnodes };
    let socket = interface::choose(settings, &facts.network, variables, nodes, notes)?;
    let in_use: Vec<&Gpu> = chosen
        .gpus
        .iter()
        .zip(&facts.gpus.visible)
        .filter(|(gpu, _)| gpu.selected)
        .filter_map(|(_, token)| facts.gpus.gpus.get(token.gpu))
        .collect();
    let hcas = hcas::choose(settings, facts, variables, nodes, &in_use, notes);
    nccl::lint(settings, facts, variables, world, notes);
    python::check(settings, facts, &program, capacity.hardware, notes);

    let chosen_engine = settings.engine.value;
    if let Some(config) = &facts.python.accelerate {
        let has_mode = engine::names_a_mode(&settings.engine_args);
        engine::check_accelerate(config, world, has_mode, notes);
    }
    if let Some((variable, _)) = chosen_engine.row().on_cpus
        && capacity.hardware == Hardware::Cpus
        && world > 1
        && !variables.is_set(variable)
    {
        let config = facts.python.accelerate.as_ref();
        engine::check_on_cpus(config, &settings.engine_args, notes);
    }
    torchrun::check_restarts(settings, &membership, scope, notes);
    let rdzv = rendezvous(settings, contract, &membership, notes);
    let by_c10d = rdzv == Rendezvous::C10d && chosen_engine.row().has_c10d;
    let rdzv_id = shared_id(settings, contract, &membership, scope);
    if let Some((id, source)) = rdzv_id.as_ref().filter(|_| by_c10d) {
        let because = text!("all nodes meet under it", "各节点以此 ID 会合");
        notes.decide("rdzv_id", id, because, source);
    }
    let mut variables_chosen = chosen.env;
    variables_chosen.extend(socket.env);
    variables_chosen.extend(hcas.env);
    let ranks = binding::Ranks { nproc, own: task.map(|task| task.local.0) };
    let bound = binding::choose(settings, facts, capacity.hardware, &chosen.gpus, ranks, notes);
    let decided = PlannedValues {
        threads: bound.threads,
        membership: &membership,
        nproc,
        world,
        layout: &layout,
        engine: chosen_engine,
        hardware: capacity.hardware,
        chosen: variables_chosen,
    };
    let mut env = environment::added(settings, facts, decided, notes);
    let ranks = if task.is_some() { 1 } else { nproc };
    let inject = recording::injects(settings, &facts.limits, ranks, notes);
    let torch = facts.python.torch.as_ref().map(|torch| torch.version.clone());
    let recording = match torch.as_deref().filter(|_| inject) {
        Some(torch) => recording::choose(torch, variables, capacity.hardware, world, notes),
        None => Recording::default(),
    };
    env.extend(recording.env);
    let mut plan = Plan {
        inject,
        recorder_file: recording.file,
        recorder_pipe: recording.pipe,
        nproc_per_node: nproc,
        world_size: world,
        gpus: chosen.gpus,
        gpu_source: facts.gpus.source,
        layout,
        network: Network {
            socket_ifname: socket.interface,
            hcas: hcas.ports,
            local_addr: socket.address,
        },
        env,
        env_remove: environment::removed(facts, chosen_engine),
        engine: chosen_engine,
        rdzv,
        python: facts.python.interpreter.clone(),
        program,
        torchrun: torchrun::passed(settings, contract, by_c10d),
        engine_restarts: torchrun::restarts(settings, &membership),
        engine_args: settings.engine_args.iter().map(|arg| replaced(arg, &placeholders)).collect(),
        accelerate: facts.python.accelerate.clone(),
        engine_cli: facts.python.engine_cli.clone(),
        torch_version: torch,
        decisions: notes.decisions.clone(),
        warnings: Vec::new(),
        has_checkpoints: settings.checkpoint_dir.is_some(),
        expects: resume,
        identity: None,
        join_timeout: settings.wait_timeout.value,
        chdir: settings.chdir.as_ref().map(|chdir| chdir.value.clone()),
        device_tokens: facts.gpus.visible.iter().map(|gpu| gpu.token.clone()).collect(),
        rdzv_id: rdzv_id.map(|(id, _)| id),
        bindings: bound.cpus,
        device_rank: chosen.device_rank,
        placeholders,
        membership,
    };
    engine::check_flags(&plan, settings, notes);
    torchrun::check(settings, facts, &plan, notes);
    plan.warnings.clone_from(&notes.warnings);
    Ok(plan)
}

/// The sizes, and the problem that they solve. If this node would choose another number of
/// processes than the agreed one, the agreed number binds it as a requested one would.
fn solved(
    settings: &Settings,
    facts: &Facts,
    scope: Scope,
    capacity: Capacity,
    problem: LayoutProblem,
    notes: &mut Notes,
) -> Result<(Capacity, LayoutProblem, Sizes), Refusal> {
    let sizes = solve(&problem)?;
    let nproc = match scope {
        // The number of tasks on a node is not part of the agreement.
        Scope::Agreed { nproc, .. } if problem.world.is_none() && sizes.nproc != nproc => nproc,
        _ => return Ok((capacity, problem, sizes)),
    };
    let asked = AskedNproc::Count { n: nproc, source: Source::Agreement.to_string() };
    // The notes already have the findings about devices.
    let mut again = Notes::default();
    let capacity = devices::capacity(settings, facts, None, &asked, &mut again)?;
    notes.failures.extend(again.failures);
    let problem = LayoutProblem { most: capacity.most, exact: capacity.exact.clone(), ..problem };
    let sizes = solve(&problem)?;
    Ok((capacity, problem, sizes))
}

/// The request of a task is the number of its node's tasks, which no setting may contradict.
fn of_tasks(asked: &AskedNproc, task: &Task) -> Result<AskedNproc, Refusal> {
    let (of, by) = (task.of, &task.source);
    match asked {
        AskedNproc::Count { n, source } if *n != of => Err(Refusal::new(
            Id::NprocTasks,
            text!(
                "{source} is {n}, but the platform starts this command {of} times on this node ({by}), each time for one rank",
                "{source} 为 {n}，而平台在本节点启动该命令 {of} 次（{by}），每次对应一个 rank"
            ),
            text!(
                "leave --nproc-per-node out, or start {n} tasks on every node",
                "请去掉 --nproc-per-node，或在每个节点上启动 {n} 个 task"
            ),
        )),
        _ => Ok(AskedNproc::Count { n: of, source: by.clone() }),
    }
}

/// Records whether this is the platform that the profile describes.
fn note_platform(settings: &Settings, facts: &Facts, notes: &mut Notes) {
    let Some(Sourced { value: own, source }) = &settings.platform else { return };
    let contract = &facts.contract;
    let because = match contract
        .unread
        .iter()
        .find(|one| one.platform == own.id && !one.missing.is_empty())
    {
        Some(one) => {
            let (own, missing) = (own.id, one.missing.join(", "));
            text!("{own} is not proven: it needs {missing}", "{own} 未得到证实：需要 {missing}")
        }
        None if contract.platform == own.id => text!("its proofs hold", "其证据成立"),
        None => {
            let (own, inner) = (own.id, &contract.platform);
            text!(
                "the proofs of {own} hold too, but {inner} started this process inside it",
                "{own} 的证据也成立，但本进程由其中的 {inner} 启动"
            )
        }
    };
    notes.decide("platform", &contract.platform, because, source);
}

/// Records how the command line was interpreted.
fn note_command_line(settings: &Settings, notes: &mut Notes) {
    if let Some(Sourced { value, source }) = &settings.chdir {
        let because = text!("relative paths count from here", "相对路径从此目录算起");
        notes.decide("workdir", value.display(), because, source);
    }
    for Repeated { option, times, value } in &settings.repeated {
        let because =
            text!("given {times} times: the last one counts", "给出了 {times} 次：以最后一次为准");
        notes.decide(option, value.trim_matches('`'), because, option);
    }
}

/// The values of all placeholders that are known before the launch.
fn values(
    node_rank: u32,
    nnodes: u32,
    sizes: Sizes,
    selected: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut values = selected;
    for placeholder in Placeholder::all() {
        let value = match placeholder {
            Placeholder::Size(size) => placeholders::of_size(size, nnodes, sizes),
            Placeholder::NodeRank => node_rank,
            // Replaced in `finish`.
            Placeholder::RunId
            | Placeholder::Timestamp
            | Placeholder::Checkpoint
            | Placeholder::CheckpointStep => continue,
        };
        values.insert(placeholder.name().to_owned(), value.to_string());
    }
    values
}

/// The settings with the placeholders of their variables replaced.
fn with_values<'a>(settings: &'a Settings, values: &BTreeMap<String, String>) -> Cow<'a, Settings> {
    let mut settings = Cow::Borrowed(settings);
    if !settings.env.is_empty() {
        for setting in &mut settings.to_mut().env {
            setting.value = placeholders::replace(&setting.value, values);
        }
    }
    settings
}

fn replaced(argument: &str, values: &BTreeMap<String, String>) -> String {
    placeholders::replace(OsStr::new(argument), values).to_string_lossy().into_owned()
}

/// Static by default: c10d ignores the node rank, so rank 0, which saves the output, may be on
/// any node.
fn rendezvous(
    settings: &Settings,
    contract: &Contract,
    membership: &Membership,
    notes: &mut Notes,
) -> Rendezvous {
    if !settings.engine.value.row().has_c10d {
        return settings.rdzv.value;
    }
    if let Some((min, max)) = membership.elastic {
        let by = contract.first(Field::RdzvBackend).filter(|claim| claim.value.trim() == "c10d");
        notes.decide(
            "rdzv",
            "c10d",
            text!("an elastic job of {min} to {max} nodes", "弹性任务，节点数 {min} 到 {max}"),
            by.map_or_else(|| membership.platform.clone(), ToString::to_string),
        );
        return Rendezvous::C10d;
    }
    let (value, because) = match settings.rdzv.value {
        Rendezvous::Static => ("static", text!("rank 0 is on node 0", "rank 0 位于节点 0")),
        Rendezvous::C10d => (
            "c10d",
            text!("asked for; rank 0 may be on any node", "按要求；rank 0 可能位于任意节点"),
        ),
    };
    notes.decide("rdzv", value, because, &settings.rdzv.source);
    settings.rdzv.value
}

/// All nodes of a c10d rendezvous need the same id, but without a muster every node creates a
/// run id of its own. Gives the id and its source.
fn shared_id(
    settings: &Settings,
    contract: &Contract,
    membership: &Membership,
    scope: Scope,
) -> Option<(String, String)> {
    let has_muster = scope.has_muster(settings) && membership.elastic.is_none();
    let job = contract.first(Field::JobId).filter(|job| !job.is_blank());
    (!has_muster).then(|| match job {
        Some(job) => (job.value.clone(), job.to_string()),
        None => ("ranklaunch".to_owned(), "default".to_owned()),
    })
}

/// The variable that names the checkpoint to the ranks; absent without one.
const RESUME_FROM: &str = "RANKLAUNCH_RESUME_FROM";

impl Plan {
    /// The plan with the values that only the launch knows: run id, timestamp and the final
    /// port.
    pub fn finish(&self, identity: &RunIdentity) -> Plan {
        let late = BTreeMap::from([
            (Placeholder::RunId.name().to_owned(), identity.run_id.clone()),
            (Placeholder::Timestamp.name().to_owned(), identity.timestamp.clone()),
        ]);
        let mut plan = self.filled(identity.resume.as_ref(), late);
        plan.membership.master_port = identity.master_port;
        if let Some(port) = plan.env.get_mut("MASTER_PORT").filter(|_| self.engine.runs_a_command())
        {
            *port = identity.master_port.to_string().into();
        }
        plan.identity = Some(identity.clone());
        plan
    }

    /// The plan with the checkpoint that this node expects, as far as one node can tell; the launch may go on from
    /// another one.
    pub fn expected(&self) -> Plan {
        self.filled(self.expects.as_ref(), BTreeMap::new())
    }

    /// The plan with these values of placeholders and those of the checkpoint, and without what has no value.
    fn filled(&self, resume: Option<&Resume>, mut late: BTreeMap<String, String>) -> Plan {
        let mut plan = self.clone();
        let resume = resume.filter(|_| self.has_checkpoints);
        if self.has_checkpoints {
            let left = leave_out(&mut plan, &resume::absent(resume));
            resume::settle(&mut plan, resume, &left);
        }
        // Nothing names one without a value any more but literals such as `{{checkpoint}}`.
        let mut literals = BTreeMap::new();
        for (placeholder, value) in resume::values(resume) {
            let name = placeholder.name().to_owned();
            match value {
                Some(value) => late.insert(name, value),
                None => literals.insert(name.clone(), format!("{{{name}}}")),
            };
        }
        plan.placeholders.extend(late.clone());
        late.extend(literals);
        plan.program = placeholders::replace_in_program(&plan.program, &late);
        plan.engine_args = plan.engine_args.iter().map(|arg| replaced(arg, &late)).collect();
        for value in plan.env.values_mut() {
            *value = placeholders::replace(value, &late);
        }
        match resume {
            Some(resume) => {
                plan.env.insert(RESUME_FROM.to_owned(), resume.path.clone().into());
            }
            // One from outside would name another checkpoint.
            None if self.has_checkpoints => plan.env_remove.push(RESUME_FROM.to_owned()),
            None => {}
        }
        plan
    }

    /// Whether there is a program to start; `run` checks this before it changes anything on the
    /// node.
    pub fn runnable(&self) -> Result<(), Refusal> {
        self.has_program()?;
        if self.python.is_none() && python::is_needed(self.engine, &self.program) {
            return Err(Refusal::new(
                Id::PythonInterpreter,
                text!("no python interpreter was found", "未找到 Python 解释器"),
                text!(
                    "name one with --python PATH or --conda-env NAME",
                    "请用 --python PATH 或 --conda-env NAME 指定"
                ),
            ));
        }
        Ok(())
    }

    /// The part of [`Plan::runnable`] that also applies to a replayed node, which may lack the
    /// interpreter.
    pub fn has_program(&self) -> Result<(), Refusal> {
        if matches!(&self.program, Program::Command { argv } if argv.is_empty()) {
            return Err(Refusal::new(
                Id::ProgramMissing,
                text!("no program was given", "没有给出程序"),
                text!(
                    "write ranklaunch [options] SCRIPT.py ARGS…, -m MODULE, -- COMMAND, or name it in the profile",
                    "请写 ranklaunch [选项] SCRIPT.py ARGS…、-m MODULE 或 -- COMMAND，或在配置文件中给出"
                ),
            ));
        }
        Ok(())
    }

    /// The last decision about `what`.
    pub fn decision(&self, what: &str) -> Option<&Decision> {
        self.decisions.iter().rev().find(|decision| decision.what == what)
    }
}

/// The number of processes that this node can run, for the muster, which needs the smallest capacity.
pub fn node_capacity(
    settings: &Settings,
    facts: &Facts,
    asked: &AskedNproc,
) -> Result<Capacity, Refusal> {
    devices::capacity(settings, facts, None, asked, &mut Notes::default())
}
