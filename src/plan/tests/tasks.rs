//! Plans of one task, where the platform starts its command once per rank.

use crate::fixtures::{facts, flag, plan, settings, wan, warned};
use crate::{Plan, rank_env};
use linux::host::Host;
use node::observe::{Facts, VisibleGpu};
use settings::contract::Contract;
use settings::{Bind, Device, Engine, Nproc, Settings};
use text::lang::Text;
use text::rank::{GlobalRank, LocalRank, RankId};
use verdict::{Id, Refusal, Severity};

/// Slurm's variables of rank 5 of 8, the second of four on node 1.
const SLURM: &str = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 \
    SLURM_STEP_NODELIST=n[1-2] SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=8 \
    SLURM_STEP_TASKS_PER_NODE=4(x2)";

fn direct(args: &[&str]) -> Settings {
    Settings { engine: flag(Engine::Direct, "--engine"), ..settings(args) }
}

/// A node of `gpus` GPUs with these variables.
fn node(gpus: u32, pairs: &str) -> Facts {
    let pairs: Vec<(&str, &str)> =
        pairs.split_whitespace().filter_map(|pair| pair.split_once('=')).collect();
    let environment = pairs.iter().map(|(name, value)| (name.into(), value.into())).collect();
    let host = Host::replayed("/nonexistent", environment);
    let mut facts = facts(gpus);
    facts.contract = Contract::read(&host, None, None);
    facts.environment =
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    facts
}

/// Like `node`, with a single GPU in CUDA_VISIBLE_DEVICES.
fn isolated(pairs: &str) -> Facts {
    let mut facts = node(4, &format!("{pairs} CUDA_VISIBLE_DEVICES=1"));
    facts.gpus.visible = vec![VisibleGpu { gpu: 1, token: "1".into() }];
    facts.gpus.cuda_visible_devices = Some("1".into());
    facts
}

fn planned(settings: &Settings, facts: &Facts) -> Plan {
    plan(settings, facts).expect("a plan")
}

fn refused(settings: &Settings, facts: &Facts) -> Refusal {
    plan(settings, facts).expect_err("a refusal")
}

fn own(plan: &Plan) -> RankId {
    let task = plan.membership.task.as_ref().expect("a task");
    RankId { global: task.rank, local: task.local }
}

/// The value of a variable of the rank.
fn env(plan: &Plan, name: &str) -> String {
    let env = rank_env(plan, own(plan));
    let value = env.get(name).or_else(|| plan.env.get(name));
    value.map(|value| value.to_string_lossy().into_owned()).unwrap_or_default()
}

#[test]
fn task_is_one_rank_of_its_nodes_plan() {
    let args = ["--n", "{nnodes}", "{node_rank}", "{nproc_per_node}", "{world_size}"];
    let plan = planned(&direct(&args), &node(4, SLURM));
    assert_eq!((plan.nproc_per_node, plan.world_size, plan.ranks_here()), (4, 8, 1));
    assert_eq!(own(&plan), RankId { global: GlobalRank(5), local: LocalRank(1) });
    let args: Vec<_> = plan.program.args().iter().map(|word| word.to_string_lossy()).collect();
    assert_eq!(args, ["--n", "2", "1", "4", "8"]);
    for (name, value) in [
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("GROUP_RANK", "1"),
        ("GROUP_WORLD_SIZE", "2"),
        ("NODE_RANK", "1"),
        ("MASTER_ADDR", "n1"),
        ("OMP_NUM_THREADS", "8"),
        // LOCAL_RANK selects the GPU, as below torchrun.
        ("CUDA_VISIBLE_DEVICES", ""),
    ] {
        assert_eq!(env(&plan, name), value, "{name}");
    }
    let ranks: Vec<_> = plan.gpus.iter().map(|gpu| gpu.local_rank).collect();
    assert_eq!(ranks, [Some(0), Some(1), Some(2), Some(3)]);
    for (what, source) in [("rank", "SLURM_PROCID=5"), ("local_rank", "SLURM_LOCALID=1")] {
        assert_eq!(plan.decision(what).map(|one| one.source.as_str()), Some(source));
    }
    assert_eq!(plan.decision("world_size").map(|one| one.value.as_str()), Some("8"));
    let decided = |what: &str| plan.decisions.iter().filter(|one| one.what == what).count();
    assert_eq!((decided("world_size"), decided("nproc_per_node")), (1, 1));
}

#[test]
fn nodes_may_have_other_numbers_of_tasks() {
    for (node_id, rank, local, of) in [("0", "2", "2", "3"), ("1", "3", "0", "1")] {
        let pairs = format!(
            "SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=n[1-2] SLURM_NODEID={node_id} SLURM_PROCID={rank} SLURM_LOCALID={local} SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=3,1"
        );
        let mut settings = direct(&["{world_size}"]);
        settings.device = flag(Device::Cpu, "--device");
        let plan = planned(&settings, &node(0, &pairs));
        assert_eq!((plan.world_size, plan.ranks_here()), (4, 1));
        assert_eq!((env(&plan, "RANK"), env(&plan, "LOCAL_WORLD_SIZE")), (rank.into(), of.into()));
        assert_eq!(plan.program.args(), ["4"]);
    }
    // The layout covers the whole world.
    let mut wan = wan(&["--ulysses_size", "{ulysses_size}"], Some(40));
    wan.engine = flag(Engine::Direct, "--engine");
    let plan = planned(&wan, &node(4, SLURM));
    assert_eq!((plan.layout.ulysses_size, plan.world_size), (8, 8));
    let twelve = SLURM.replace("NUM_TASKS=8", "NUM_TASKS=12").replace("4(x2)", "6(x2)");
    let refusal = refused(&wan, &node(8, &twelve));
    assert_eq!(refusal.id, Id::LayoutNproc);
    assert!(refusal.text.en.contains("makes 12 ranks"), "{}", refusal.text.en);
    assert!(refusal.hint.en.contains("start 1, 2, 4 or 5 tasks per node"), "{}", refusal.hint.en);
}

/// `srun --gpus-per-task=1`: the visible device is number 0.
#[test]
fn task_seeing_only_its_gpu_uses_device_0() {
    let plan = planned(&direct(&[]), &isolated(SLURM));
    assert_eq!(
        (env(&plan, "LOCAL_RANK"), env(&plan, "LOCAL_WORLD_SIZE")),
        ("0".into(), "4".into())
    );
    assert_eq!(
        (env(&plan, "RANK"), env(&plan, "CUDA_VISIBLE_DEVICES")),
        ("5".into(), String::new())
    );
    let said = plan.decision("LOCAL_RANK").expect("it is said");
    assert!(said.because.en.contains("--virtual-local-rank"), "{said:?}");
    let gpus: Vec<_> = plan.gpus.iter().map(|gpu| (gpu.index, gpu.local_rank)).collect();
    assert_eq!(gpus, [(1, Some(1))], "the GPU of its own place on the node");
    assert!(!warned(&plan, Id::GpuLocalRank));

    // A cgroup hides the other GPUs; Slurm's variable tells how many the node has.
    let mut hidden = node(1, &format!("{SLURM} SLURM_GPUS_ON_NODE=4"));
    hidden.gpus.visible.truncate(1);
    assert_eq!(env(&planned(&direct(&[]), &hidden), "LOCAL_RANK"), "0");

    // The first task sees device 0 anyway.
    let first = SLURM.replace("SLURM_LOCALID=1", "SLURM_LOCALID=0").replace("ID=5", "ID=4");
    let plan = planned(&direct(&[]), &isolated(&first));
    assert!(plan.decision("LOCAL_RANK").is_none() && env(&plan, "LOCAL_RANK") == "0");

    // A LOCAL_RANK that is already set is kept, with a warning that it is no device.
    let pyxis = format!("{SLURM} RANK=5 WORLD_SIZE=8 LOCAL_RANK=1");
    let plan = planned(&direct(&[]), &isolated(&pyxis));
    assert!(warned(&plan, Id::GpuLocalRank) && env(&plan, "LOCAL_RANK") == "1");
}

#[test]
fn fewer_shared_gpus_than_tasks_are_refused() {
    let refusal = refused(&direct(&[]), &node(2, &format!("{SLURM} SLURM_GPUS_ON_NODE=2")));
    assert_eq!((refusal.id, refusal.verdict.code()), (Id::GpuCount, 80));
    assert!(refusal.text.en.contains("SLURM_STEP_TASKS_PER_NODE=4(x2)"), "{}", refusal.text.en);
    let mut lenient = direct(&[]);
    lenient.severities.insert(Id::GpuCount, flag(Severity::Warn, "--severity"));
    let plan = planned(&lenient, &node(2, &format!("{SLURM} SLURM_GPUS_ON_NODE=2")));
    assert!(warned(&plan, Id::GpuCount));
}

/// Each task chooses for itself, so the choice must not depend on which GPUs are busy.
#[test]
fn gpus_beyond_the_tasks_only_give_a_warning() {
    let mut facts = node(8, SLURM);
    facts.gpus.gpus[0].memory_used = Some(40 << 30);
    let plan = planned(&direct(&[]), &facts);
    assert_eq!(env(&plan, "CUDA_VISIBLE_DEVICES"), "");
    let used: Vec<_> = plan.gpus.iter().filter(|gpu| gpu.selected).map(|gpu| gpu.index).collect();
    assert_eq!(used, [0, 1, 2, 3]);
    assert!(warned(&plan, Id::GpuUnused));
}

#[test]
fn process_count_contradicting_the_tasks_is_refused() {
    let with = |n| {
        let mut settings = direct(&[]);
        settings.nproc_per_node = flag(Nproc::Count(n), "--nproc-per-node");
        plan(&settings, &node(8, SLURM))
    };
    assert!(with(4).is_ok());
    let refusal = with(8).expect_err("8 is not 4");
    assert_eq!((refusal.id, refusal.verdict.code()), (Id::NprocTasks, 64));
    let Text { en, zh } = &refusal.text;
    for text in [en, zh] {
        assert!(text.contains("--nproc-per-node") && text.contains("4(x2)"), "{text}");
    }
}

#[test]
fn threads_are_those_of_one_task() {
    for (more, cpus, threads) in [
        ("", 32, "8"),
        // Bound by Slurm or not, they belong to this task.
        ("SLURM_CPUS_PER_TASK=6", 32, "6"),
        ("SLURM_CPUS_PER_TASK=6", 6, "6"),
        ("SLURM_CPUS_PER_TASK=16", 8, "8"),
        ("SLURM_CPUS_ON_NODE=16", 32, "4"),
    ] {
        let mut facts = node(4, &format!("{SLURM} {more}"));
        facts.limits.cpus = cpus;
        let plan = planned(&direct(&[]), &facts);
        assert_eq!(env(&plan, "OMP_NUM_THREADS"), threads, "{more} {cpus}");
    }
}

#[test]
fn task_is_bound_near_its_own_gpu() {
    let mut settings = direct(&[]);
    settings.bind = flag(Bind::Numa, "--bind");
    let two = |mut facts: Facts| {
        let list = linux::cpus::CpuList::read;
        facts.limits.allowed = list("0-31");
        facts.limits.numa = [(0, list("0-15")), (1, list("16-31"))].into_iter().collect();
        facts.gpus.gpus.iter_mut().for_each(|gpu| gpu.numa_node = Some(gpu.index % 2));
        facts
    };
    for facts in [two(node(4, SLURM)), two(isolated(SLURM))] {
        let plan = planned(&settings, &facts);
        let bound: Vec<_> =
            plan.bindings.iter().map(|cpus| cpus.as_ref().map(ToString::to_string)).collect();
        assert_eq!(bound, [None, Some("16-31".to_owned()), None, None]);
        assert!(!warned(&plan, Id::BindUnknown));
    }
}
