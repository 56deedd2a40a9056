//! The order in which a plan comes about.
//!
//! Takes settings, facts, the membership and what other nodes allow; walks the
//! parts of the planner once, in a fixed order, which is also the order of the
//! decisions that people read. Owns the glue and no rule of its own.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use crate::observe::Facts;
use crate::plan::arguments::value_of;
use crate::plan::devices::{Capacity, Chosen, Hardware};
use crate::plan::environment::Decided;
use crate::plan::layout::{Literal, Problem, Sizes, is_legal, rule_in_words, solve};
use crate::plan::variables::Variables;
use crate::plan::{
    AskedNproc, Decision, Layout, Membership, Network, Notes, Plan, PlannedGpu, RunIdentity,
    asked_nproc, devices, environment, hcas, heads, limits, membership, nccl, network,
    offered_nproc, placeholders, python, select,
};
use crate::settings::{Engine, LayoutRule, MusterMode, Program, Rendezvous, Settings};
use crate::text;
use crate::verdict::{Refusal, Verdict};

/// What `run` does on this node, as far as this node alone can know.
pub fn plan(settings: &Settings, facts: &Facts) -> Result<Plan, Refusal> {
    plan_with(settings, facts, None)
}

/// The same where the other nodes are known: `fewest` is the least that one of them can carry.
pub fn plan_with(settings: &Settings, facts: &Facts, fewest: Option<u32>) -> Result<Plan, Refusal> {
    let mut notes = Notes { decisions: Vec::new(), warnings: settings.warnings.clone() };
    notes.warnings.extend(facts.contract.warnings.iter().cloned());
    let contract = &facts.contract;
    let member =
        membership(settings, contract, &facts.gpus, &mut notes.decisions, &mut notes.warnings)?;
    let asked = asked_nproc(settings, contract)?;
    let offered = offered_nproc(contract).filter(|_| asked == AskedNproc::Auto);
    let least = match (fewest, offered) {
        (Some(fewest), Some((offered, _))) => Some(fewest.min(offered)),
        (fewest, offered) => fewest.or(offered.map(|(offered, _)| offered)),
    };
    plan_for(settings, facts, member, &asked, least, notes)
}

/// The plan of one node whose membership is decided.
///
/// `fewest` is the least that another node can carry, where that is known; `notes`
/// holds what was decided and noticed before.
pub fn plan_for(
    settings: &Settings,
    facts: &Facts,
    membership: Membership,
    asked: &AskedNproc,
    fewest: Option<u32>,
    mut notes: Notes,
) -> Result<Plan, Refusal> {
    let program = settings.program.as_ref().map(|program| program.value.clone());
    if program.is_none() {
        notes.warn(
            "program.missing",
            text!("no program was given, so nothing can be run", "没有给出程序，因此无法运行"),
            text!("put it after --, or into the profile", "请写在 -- 之后，或写入配置文件"),
        );
    }
    let program = program.unwrap_or(Program::Command { argv: Vec::new() });
    let variables = Variables::new(settings, facts);
    let mut capacity = devices::capacity(settings, facts, asked, &mut notes)?;
    if let Some(fewest) = fewest {
        capacity.most = capacity.most.min(fewest).max(1);
    }
    let rule = effective_rule(settings, &membership, &mut notes);
    let heads = match rule {
        LayoutRule::None => None,
        _ => heads::heads(
            &settings.layout,
            program.args(),
            facts.checkpoint_heads.as_ref(),
            &mut notes,
        ),
    };
    let problem = Problem {
        rule,
        nnodes: membership.nnodes.max(1),
        most: capacity.most,
        exact: capacity.exact.clone(),
        heads,
        ulysses: literal(settings.layout.ulysses_argument.as_deref(), rule, &program, &mut notes),
        ring: literal(settings.layout.ring_argument.as_deref(), rule, &program, &mut notes),
    };
    let sizes = solve(&problem)?;
    let nproc = sizes.nproc;
    let world = membership.nnodes.max(1).saturating_mul(nproc);
    check_least(settings, &problem, nproc)?;
    explain_sizes(settings, &problem, sizes, world, &mut notes);

    let chosen = match capacity.hardware {
        Hardware::Gpus => devices::choose(facts, nproc, capacity.exact.is_some(), rule, &mut notes),
        Hardware::Cpus => Chosen { gpus: none_selected(facts), env: Vec::new() },
    };
    let layout = Layout { rule, heads, ulysses_size: sizes.ulysses, ring_size: sizes.ring };
    let mut arguments = program.args().to_vec();
    arguments.extend(settings.engine_args.iter().map(OsString::from));
    let selected = select::select(
        &settings.selects,
        problem.nnodes,
        capacity.most,
        world,
        &arguments,
        &mut notes,
    )?;
    let placeholders = values(&membership, nproc, world, &layout, selected);
    let program = placeholders::replace_in_program(&program, &placeholders);
    let (ulysses_size, ring_size) = written_sizes(settings, &layout, world, &program)?;
    let layout = Layout { ulysses_size, ring_size, ..layout };

    let socket = network::choose(settings, &facts.network, variables, problem.nnodes, &mut notes)?;
    let gpus_in_use = chosen.gpus.iter().filter(|gpu| gpu.selected).count();
    let hcas =
        hcas::choose(settings, &facts.hcas, variables, problem.nnodes, gpus_in_use, &mut notes)?;
    nccl::lint(settings, facts, variables, &mut notes)?;
    let uses_rdma = problem.nnodes > 1 && !hcas.ports.is_empty();
    limits::check(settings, &facts.limits, nproc, uses_rdma, &mut notes)?;
    python::check(settings, facts, &program, capacity.hardware, &mut notes)?;

    let engine = settings.engine.value;
    let rdzv = rendezvous(settings, &membership, &mut notes);
    let mut variables_chosen = chosen.env;
    variables_chosen.extend(socket.env);
    variables_chosen.extend(hcas.env);
    let decided = Decided {
        membership: &membership,
        nproc,
        world,
        layout: &layout,
        engine,
        hardware: capacity.hardware,
        chosen: variables_chosen,
    };
    let env = environment::added(settings, facts, decided, &mut notes);
    Ok(Plan {
        nproc_per_node: nproc,
        world_size: world,
        gpus: chosen.gpus,
        layout,
        network: Network {
            socket_ifname: socket.interface,
            hcas: hcas.ports,
            local_addr: socket.address,
        },
        env,
        env_remove: environment::removed(facts, engine),
        engine,
        rdzv,
        python: facts.python.interpreter.clone(),
        program,
        engine_args: settings.engine_args.iter().map(|arg| replaced(arg, &placeholders)).collect(),
        torch_version: facts.python.torch.as_ref().map(|torch| torch.version.clone()),
        decisions: notes.decisions,
        warnings: notes.warnings,
        identity: None,
        join_timeout: settings.wait_timeout.value,
        device_tokens: facts.gpus.visible.iter().map(|gpu| gpu.token.clone()).collect(),
        rdzv_id: shared_id(settings, facts, &membership),
        placeholders,
        membership,
    })
}

/// An elastic job changes its world size, which no fixed layout survives.
fn effective_rule(settings: &Settings, membership: &Membership, notes: &mut Notes) -> LayoutRule {
    let rule = &settings.layout.rule;
    if membership.elastic.is_some_and(|(min, max)| min != max) && rule.value != LayoutRule::None {
        let source = &rule.source;
        notes.warn(
            "layout.elastic",
            text!(
                "the job is elastic, so its world size may change and the layout rule of {source} is not applied",
                "该任务为弹性任务，总进程数会变化，因此不应用 {source} 指定的布局规则"
            ),
            text!(
                "run it with a fixed number of nodes to have the layout solved",
                "如需求解布局，请使用固定节点数"
            ),
        );
        return LayoutRule::None;
    }
    let words = rule_in_words(rule.value);
    notes.decide("layout", rule_name(rule.value), words, &rule.source);
    rule.value
}

fn rule_name(rule: LayoutRule) -> &'static str {
    match rule {
        LayoutRule::None => "none",
        LayoutRule::UlyssesWorld => "ulysses-world",
        LayoutRule::UlyssesRing => "ulysses-ring",
    }
}

/// The number that the program's arguments fix, if they do. A placeholder fixes nothing.
fn literal(
    argument: Option<&str>,
    rule: LayoutRule,
    program: &Program,
    notes: &mut Notes,
) -> Option<Literal> {
    let argument = argument.filter(|_| rule != LayoutRule::None)?;
    let value = value_of(program.args(), argument)?;
    let text = value.to_string_lossy();
    if let Ok(value) = text.trim().parse() {
        return Some(Literal { argument: argument.to_owned(), value });
    }
    if !text.starts_with('{') {
        notes.warn(
            "layout.unreadable",
            text!(
                "{argument} {text} is not a number, so it is not checked",
                "{argument} {text} 不是数字，未作检查"
            ),
            text!("write a number or {{ulysses_size}}", "请写数字或 {{ulysses_size}}"),
        );
    }
    None
}

fn check_least(settings: &Settings, problem: &Problem, nproc: u32) -> Result<(), Refusal> {
    let Some(least) = settings.min_nproc.as_ref().filter(|least| nproc < least.value) else {
        return Ok(());
    };
    let (value, source) = (least.value, &least.source);
    let Problem { nnodes, most, .. } = problem;
    let rule = rule_in_words(problem.rule);
    let (en, zh) = (rule.en, rule.zh);
    Err(Refusal::new(
        Verdict::Layout,
        "layout.min-nproc",
        text!(
            "{nproc} processes per node is the most that is legal on {nnodes} nodes × {most} (rule {en}), and {source} asks for {value} or more",
            "在 {nnodes} 个节点 × {most} 上每节点最多合法 {nproc} 个进程（规则 {zh}），而 {source} 要求至少 {value} 个"
        ),
        text!(
            "lower --min-nproc to {nproc}, or change the number of nodes",
            "请将 --min-nproc 降到 {nproc}，或调整节点数"
        ),
    ))
}

/// Says why the sizes are as they are.
fn explain_sizes(
    settings: &Settings,
    problem: &Problem,
    sizes: Sizes,
    world: u32,
    notes: &mut Notes,
) {
    let Sizes { nproc, ulysses, ring } = sizes;
    let Problem { nnodes, most, heads, .. } = problem;
    let fixed = problem.ulysses.as_ref().or(problem.ring.as_ref());
    let (because, source) = match (&problem.exact, fixed, heads) {
        (Some((_, source)), ..) => (text!("asked for", "按要求"), source.clone()),
        (None, Some(Literal { argument, value }), _) => (
            text!(
                "the most of {most} that fits {argument} {value}",
                "在 {most} 以内满足 {argument} {value} 的最大值"
            ),
            "solved".to_owned(),
        ),
        (None, None, Some(heads)) if nproc < *most => (
            text!(
                "the most of {most} that is legal for {heads} heads on {nnodes} nodes",
                "在 {most} 以内、{nnodes} 个节点上适合 {heads} 个注意力头的最大值"
            ),
            "solved".to_owned(),
        ),
        _ => (text!("all that this node can carry", "本节点可承载的全部"), "solved".to_owned()),
    };
    notes.decide("nproc_per_node", nproc, because, source);
    notes.decide(
        "world_size",
        world,
        text!("{nnodes} nodes × {nproc} processes", "{nnodes} 个节点 × {nproc} 个进程"),
        "solved",
    );
    if problem.rule == LayoutRule::None {
        return;
    }
    if heads.is_none() && world > 1 {
        notes.warn(
            "layout.heads-unknown",
            text!(
                "the number of attention heads is unknown, so only the world size was matched",
                "注意力头数未知，因此只核对了总进程数"
            ),
            text!("state it with --heads N", "请用 --heads N 指定"),
        );
    }
    let source_of = |literal: &Option<Literal>| match literal {
        Some(literal) => literal.argument.clone(),
        None => "solved".to_owned(),
    };
    let why_ulysses = match problem.rule {
        LayoutRule::UlyssesRing => {
            text!(
                "the largest that divides heads and processes per node",
                "能同时整除注意力头数与每节点进程数的最大值"
            )
        }
        _ if ulysses == world => text!("the world size", "等于总进程数"),
        _ => text!("sequence parallelism is off", "未启用序列并行"),
    };
    let because =
        if problem.ulysses.is_some() { text!("given", "由参数给定") } else { why_ulysses };
    notes.decide("ulysses_size", ulysses, because, source_of(&problem.ulysses));
    if problem.rule == LayoutRule::UlyssesRing {
        notes.decide(
            "ring_size",
            ring,
            text!("world size / ulysses_size", "总进程数 / ulysses_size"),
            source_of(&problem.ring),
        );
    }
    let told = settings.layout.ulysses_argument.as_deref();
    let program = settings.program.as_ref();
    if let (Some(argument), Some(program)) = (told, program)
        && world > 1
        && value_of(program.value.args(), argument).is_none()
    {
        notes.warn(
            "layout.argument",
            text!(
                "the program is not told its ulysses_size ({ulysses}): {argument} is missing",
                "程序未获得 ulysses_size（{ulysses}）：缺少 {argument}"
            ),
            text!("add {argument} {{ulysses_size}}", "请加上 {argument} {{ulysses_size}}"),
        );
    }
}

fn none_selected(facts: &Facts) -> Vec<PlannedGpu> {
    facts
        .gpus
        .visible
        .iter()
        .filter_map(|token| facts.gpus.gpus.get(token.gpu))
        .map(|gpu| PlannedGpu {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            pci: gpu.pci.clone(),
            selected: false,
            local_rank: None,
        })
        .collect()
}

/// Every placeholder that is known before the launch has its name.
fn values(
    membership: &Membership,
    nproc: u32,
    world: u32,
    layout: &Layout,
    selected: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut values = selected;
    for (name, value) in [
        ("ulysses_size", layout.ulysses_size),
        ("ring_size", layout.ring_size),
        ("world_size", world),
        ("nproc_per_node", nproc),
        ("nnodes", membership.nnodes),
        ("node_rank", membership.node_rank),
    ] {
        values.insert(name.to_owned(), value.to_string());
    }
    values
}

fn replaced(argument: &str, values: &BTreeMap<String, String>) -> String {
    placeholders::replace(OsStr::new(argument), values).to_string_lossy().into_owned()
}

/// What the program will read must pass its own assertions, however it was written
/// (`--ulysses_size {nproc_per_node}`).
fn written_sizes(
    settings: &Settings,
    layout: &Layout,
    world: u32,
    program: &Program,
) -> Result<(u32, u32), Refusal> {
    let solved = (layout.ulysses_size, layout.ring_size);
    if layout.rule == LayoutRule::None {
        return Ok(solved);
    }
    let read = |argument: &Option<String>, solved: u32| {
        literal(argument.as_deref(), layout.rule, program, &mut Notes::default())
            .map_or(solved, |literal| literal.value)
    };
    let ulysses = read(&settings.layout.ulysses_argument, layout.ulysses_size);
    let ring = read(&settings.layout.ring_argument, layout.ring_size);
    if is_legal(layout.rule, world, layout.heads, ulysses, ring) {
        return Ok((ulysses, ring));
    }
    let words = rule_in_words(layout.rule);
    let (en, zh) = (words.en, words.zh);
    let (u, r) = solved;
    let heads = layout.heads.map_or_else(|| "?".to_owned(), |heads| heads.to_string());
    Err(Refusal::new(
        Verdict::Layout,
        "layout.literal",
        text!(
            "the program's arguments give ulysses_size {ulysses} and ring_size {ring} for {world} ranks and {heads} heads (rule {en})",
            "程序参数给出 ulysses_size {ulysses}、ring_size {ring}，而总进程数为 {world}、注意力头数为 {heads}（规则 {zh}）"
        ),
        text!(
            "use {{ulysses_size}} and {{ring_size}}, here {u} and {r}; --layout none skips this check",
            "请使用 {{ulysses_size}} 与 {{ring_size}}，此处为 {u} 与 {r}；--layout none 可跳过该检查"
        ),
    ))
}

/// Static unless asked otherwise: c10d ignores the node rank, and rank 0, which
/// saves the output, then lands on any node.
fn rendezvous(settings: &Settings, membership: &Membership, notes: &mut Notes) -> Rendezvous {
    if settings.engine.value != Engine::Torchrun {
        return settings.rdzv.value;
    }
    if let Some((min, max)) = membership.elastic {
        notes.decide(
            "rdzv",
            "c10d",
            text!("an elastic job of {min} to {max} nodes", "弹性任务，节点数 {min} 到 {max}"),
            &membership.platform,
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

/// All nodes of a c10d rendezvous must name the same id, and without a muster
/// every node would make up a run id of its own.
fn shared_id(settings: &Settings, facts: &Facts, membership: &Membership) -> Option<String> {
    let has_muster = settings.muster.value != MusterMode::Off && membership.elastic.is_none();
    let job = facts.contract.job_id.as_ref().filter(|job| !job.is_blank());
    (!has_muster).then(|| job.map_or_else(|| "ranklaunch".to_owned(), |job| job.value.clone()))
}

impl Plan {
    /// The plan with what only the launch knows: run id, timestamp and the final port.
    pub fn finish(&self, identity: &RunIdentity) -> Plan {
        let late: BTreeMap<String, String> = placeholders::LATE
            .into_iter()
            .zip([&identity.run_id, &identity.timestamp])
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect();
        let mut plan = self.clone();
        plan.program = placeholders::replace_in_program(&self.program, &late);
        plan.engine_args = self.engine_args.iter().map(|arg| replaced(arg, &late)).collect();
        plan.placeholders.extend(late);
        plan.membership.master_port = identity.master_port;
        if let Some(port) =
            plan.env.get_mut("MASTER_PORT").filter(|_| self.engine == Engine::Command)
        {
            *port = identity.master_port.to_string().into();
        }
        plan.identity = Some(identity.clone());
        plan
    }

    /// Whether there is anything to start; `run` asks before it touches the node.
    pub fn runnable(&self) -> Result<(), Refusal> {
        if matches!(&self.program, Program::Command { argv } if argv.is_empty()) {
            return Err(Refusal::new(
                Verdict::Usage,
                "program.missing",
                text!("no program was given", "没有给出程序"),
                text!("put it after --, or into the profile", "请写在 -- 之后，或写入配置文件"),
            ));
        }
        if self.python.is_none() && python::is_needed(self.engine, &self.program) {
            return Err(Refusal::new(
                Verdict::Python,
                "python.interpreter",
                text!("no python interpreter was found", "未找到 Python 解释器"),
                text!(
                    "name one with --python PATH or --conda-env NAME",
                    "请用 --python PATH 或 --conda-env NAME 指定"
                ),
            ));
        }
        Ok(())
    }

    /// The decision about `what`, the last one where there are several.
    pub fn decision(&self, what: &str) -> Option<&Decision> {
        self.decisions.iter().rev().find(|decision| decision.what == what)
    }
}

/// How many processes this node could carry, for a muster that looks for the worst node.
pub fn node_capacity(
    settings: &Settings,
    facts: &Facts,
    asked: &AskedNproc,
) -> Result<Capacity, Refusal> {
    devices::capacity(settings, facts, asked, &mut Notes::default())
}
