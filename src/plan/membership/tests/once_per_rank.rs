//! Platforms that start their command once per rank: the result with `--engine direct`, and the
//! refusal of every other engine.

use super::*;
use settings::fixtures::undecided;
use settings::{Engine, Source, Sourced};

fn direct() -> Settings {
    Settings {
        engine: Sourced::new(Engine::Direct, Source::Flag("--engine".into())),
        ..undecided()
    }
}

fn direct_of(pairs: &str) -> Told {
    tell(&direct(), &host(pairs), &gpus(8))
}

const SLURM: &str = "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_JOB_NODELIST=gpu[003-004] \
    SLURM_STEP_NODELIST=gpu[003-004] SLURM_STEP_NUM_NODES=2";
const HETEROGENEOUS: &str = "SLURM_JOB_ID=77 SLURM_HET_SIZE=2 SLURM_STEP_ID=0 \
    SLURM_STEP_NODELIST=n[1,3] SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=3 \
    SLURM_STEP_TASKS_PER_NODE=1,2";
const OMPI: &str = "OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_LOCAL_SIZE=8 MASTER_ADDR=n0";

/// Environment, and `platform nnodes node addr:port task RANK/WORLD LOCAL/OF`.
fn table() -> Vec<(String, &'static str)> {
    let slurm = |more: &str| format!("{SLURM} {more}");
    let ompi = |more: &str| format!("{OMPI} {more}");
    vec![
        (
            slurm(
                "SLURM_NODEID=1 SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=16 SLURM_STEP_TASKS_PER_NODE=8(x2)",
            ),
            "slurm 2 1 gpu003:21232 task 9/16 1/8",
        ),
        // Uneven: each node has its own number, including one with a single task.
        (
            slurm(
                "SLURM_NODEID=0 SLURM_PROCID=2 SLURM_LOCALID=2 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=3,1",
            ),
            "slurm 2 0 gpu003:21232 task 2/4 2/3",
        ),
        (
            slurm(
                "SLURM_NODEID=1 SLURM_PROCID=3 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=3,1",
            ),
            "slurm 2 1 gpu003:21232 task 3/4 0/1",
        ),
        (
            slurm(
                "SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=1,3",
            ),
            "slurm 2 0 gpu003:21232 task 0/4 0/1",
        ),
        // Round-robin over the nodes.
        (
            slurm(
                "SLURM_NODEID=1 SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=2(x2)",
            ),
            "slurm 2 1 gpu003:21232 task 3/4 1/2",
        ),
        // A heterogeneous job whose first group is on the last host of the list.
        (
            format!("{HETEROGENEOUS} SLURMD_NODENAME=n3 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0"),
            "slurm 2 1 n1:21232 task 1/3 0/2",
        ),
        (
            format!("{HETEROGENEOUS} SLURMD_NODENAME=n3 SLURM_NODEID=0 SLURM_PROCID=1 SLURM_LOCALID=1"),
            "slurm 2 1 n1:21232 task 2/3 1/2",
        ),
        (
            format!("{HETEROGENEOUS} SLURMD_NODENAME=n1 SLURM_NODEID=1 SLURM_PROCID=2 SLURM_LOCALID=0"),
            "slurm 2 0 n1:21232 task 0/3 0/1",
        ),
        // One node: its tasks meet there, on a port that all derive.
        (
            "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=gpu003 SLURM_NODEID=0 SLURM_PROCID=3 SLURM_LOCALID=3 SLURM_NTASKS=8 SLURM_STEP_TASKS_PER_NODE=8".to_owned(),
            "slurm 1 0 127.0.0.1:21232 task 3/8 3/8",
        ),
        // pyxis writes torch's own names beside Slurm's.
        (
            slurm(
                "SLURM_NODEID=1 SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=16 SLURM_STEP_TASKS_PER_NODE=8(x2) MASTER_ADDR=gpu003 MASTER_PORT=49229 WORLD_SIZE=16 RANK=9 LOCAL_RANK=1",
            ),
            "slurm 2 1 gpu003:49229 task 9/16 1/8",
        ),
        // PMI together with Slurm: Slurm's variables are more complete.
        (
            slurm(
                "SLURM_NODEID=1 SLURM_PROCID=9 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=16 SLURM_STEP_TASKS_PER_NODE=8(x2) PMI_SIZE=16 PMI_RANK=9",
            ),
            "slurm 2 1 gpu003:21232 task 9/16 1/8",
        ),
        (ompi("OMPI_COMM_WORLD_RANK=9 OMPI_COMM_WORLD_LOCAL_RANK=1"), "open-mpi 2 1 n0:29500 task 9/16 1/8"),
        // mpirun inside a Slurm step: Slurm's variables describe its daemon.
        (
            format!(
                "{OMPI} OMPI_COMM_WORLD_RANK=9 OMPI_COMM_WORLD_LOCAL_RANK=1 SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=1 SLURM_NODEID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_STEP_NODELIST=n4"
            ),
            "open-mpi 2 1 n0:29500 task 9/16 1/8",
        ),
        (
            "OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_SIZE=8 OMPI_COMM_WORLD_RANK=7 OMPI_COMM_WORLD_LOCAL_RANK=7".to_owned(),
            "open-mpi 1 0 127.0.0.1:29500 task 7/8 7/8",
        ),
        (
            "AZ_BATCH_MASTER_NODE=10.0.0.4:6000 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1".to_owned(),
            "azure-ml 2 1 10.0.0.4:29500 task 3/4 1/2",
        ),
        (
            "PMI_RANK=9 PMI_SIZE=16 MPI_LOCALNRANKS=8 MPI_LOCALRANKID=1 MASTER_ADDR=n0".to_owned(),
            "pmi 2 1 n0:29500 task 9/16 1/8",
        ),
        (
            "PMI_RANK=3 PMI_SIZE=4 PMI_LOCAL_SIZE=2 PMI_LOCAL_RANK=1 MPI_LOCALNRANKS= MASTER_ADDR=n0".to_owned(),
            "pmi 2 1 n0:29500 task 3/4 1/2",
        ),
        (
            "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_LOCAL_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1 MASTER_ADDR=n0".to_owned(),
            "mvapich 2 0 n0:29500 task 1/4 1/2",
        ),
        (
            "MASTER_ADDR=10.0.0.4 MASTER_PORT=6105 WORLD_SIZE=16 RANK=9 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8".to_owned(),
            "generic 2 1 10.0.0.4:6105 task 9/16 1/8",
        ),
        // NNODES and NODE_RANK count nodes, RANK counts processes; here with uneven nodes.
        (
            "MASTER_ADDR=n0 WORLD_SIZE=5 RANK=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NNODES=2 NODE_RANK=1".to_owned(),
            "node-variables 2 1 n0:29500 task 4/5 1/2",
        ),
    ]
}

#[test]
fn each_start_gets_the_platforms_rank() {
    let mut wrong = Vec::new();
    for (pairs, expected) in table() {
        let told = direct_of(&pairs);
        if told.line() != expected {
            wrong.push(format!(
                "{pairs}\n  want {expected}\n  have {} {}",
                told.line(),
                told.text()
            ));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// torchrun, accelerate, deepspeed and the job's own launcher start ranks themselves.
#[test]
fn every_other_engine_refuses_the_same_start() {
    for (pairs, _) in table() {
        for engine in [Engine::Torchrun, Engine::Accelerate, Engine::Deepspeed, Engine::Command] {
            let mut settings = direct();
            settings.engine.value = engine;
            let told = tell(&settings, &host(&pairs), &gpus(8));
            assert_eq!(told.line(), "refused membership.tasks", "{engine:?} {pairs}");
            let hint = told.result.expect_err("refused").hint;
            assert!(hint.en.contains("--engine direct") && hint.zh.contains("--engine direct"));
        }
    }
    // A setting of one process per node wins, for any engine.
    let mut settings = direct();
    settings.nnodes = Some(Sourced::new(2, Source::Flag("--nnodes".into())));
    settings.node_rank = Some(Sourced::new(1, Source::Flag("--node-rank".into())));
    let told = tell(&settings, &host(&table()[0].0), &gpus(8));
    assert_eq!(told.line(), "flags 2 1 gpu003:29500");
}

#[test]
fn missing_task_number_is_named() {
    let half = "refused membership.half-given";
    for (pairs, id, named) in [
        ("WORLD_SIZE=4 RANK=1 LOCAL_RANK=1 MASTER_ADDR=n0", half, "LOCAL_WORLD_SIZE"),
        ("WORLD_SIZE=4 RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n0", half, ": LOCAL_RANK"),
        (
            "OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_LOCAL_SIZE=8 MASTER_ADDR=n0",
            half,
            "OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_LOCAL_RANK",
        ),
        ("PMI_RANK=9 MPI_LOCALNRANKS=8 MPI_LOCALRANKID=1", half, "PMI_SIZE"),
        ("PMI_RANK=1 PMI_SIZE=4 MPI_LOCALNRANKS=2", half, "MPI_LOCALRANKID"),
        (
            "MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1",
            half,
            "MV2_COMM_WORLD_SIZE",
        ),
        (
            "SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=8(x2)",
            half,
            "SLURM_STEP_NUM_TASKS, SLURM_PROCID, SLURM_LOCALID",
        ),
        (
            "SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=3 SLURM_LOCALID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=3,1",
            half,
            "SLURM_NODEID",
        ),
        // Contradicting numbers.
        (
            "WORLD_SIZE=4 RANK=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2",
            "refused membership.rank",
            "RANK=4 is beyond the last of 4 tasks (WORLD_SIZE=4)",
        ),
        (
            "WORLD_SIZE=4 RANK=1 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2",
            "refused membership.rank",
            "LOCAL_RANK=2 is beyond the last of 2 tasks (LOCAL_WORLD_SIZE=2)",
        ),
        (
            "WORLD_SIZE=2 RANK=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8",
            "refused membership.contradiction",
            "LOCAL_WORLD_SIZE=8 and WORLD_SIZE=2",
        ),
        (
            "WORLD_SIZE=x RANK=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8",
            "refused membership.number",
            "WORLD_SIZE=x",
        ),
        // No variable has the node of the task, and the ranks do not tell it.
        (
            "OMPI_COMM_WORLD_SIZE=5 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=3 MASTER_ADDR=n0",
            "refused membership.tasks",
            "task 1 of 5",
        ),
        (
            "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2 MASTER_ADDR=n0",
            "refused membership.tasks",
            "task 2 of 4",
        ),
    ] {
        let told = direct_of(pairs);
        assert_eq!(told.line(), id, "{pairs}: {}", told.text());
        assert!(told.text().contains(named), "{pairs}: {}", told.text());
        let refusal = told.result.expect_err("refused");
        assert_eq!(refusal.verdict.code(), 65);
        assert!(
            refusal.text.zh.contains(named.rsplit(": ").next().unwrap_or(named))
                || named.contains(" of ")
                || named.contains(" and "),
            "{}",
            refusal.text.zh
        );
    }
}

#[test]
fn every_number_of_a_task_has_its_source() {
    let told = direct_of(&table()[0].0);
    assert_eq!(
        told.sources(),
        [
            ("nnodes", "2", "SLURM_STEP_NUM_NODES=2"),
            ("node_rank", "1", "SLURM_NODEID=1"),
            ("rank", "9", "SLURM_PROCID=9"),
            ("world_size", "16", "SLURM_STEP_NUM_TASKS=16"),
            ("local_rank", "1", "SLURM_LOCALID=1"),
            ("nproc_per_node", "8", "SLURM_STEP_TASKS_PER_NODE=8(x2)"),
            ("master_addr", "gpu003", "SLURM_STEP_NODELIST=gpu[003-004]"),
            ("master_port", "21232", "SLURM_JOB_ID=77"),
        ]
    );
}

/// One task per node is a node, for the engine `direct` as for any other.
#[test]
fn one_task_per_node_is_a_node() {
    for pairs in [
        "SLURM_JOB_ID=77 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NODELIST=a[1-2] SLURM_STEP_TASKS_PER_NODE=1(x2)",
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 MASTER_ADDR=n0",
        "WORLD_SIZE=2 RANK=1 MASTER_ADDR=n0 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1",
        "",
    ] {
        let told = direct_of(pairs);
        assert_eq!(told.line(), of(pairs).line(), "{pairs}");
        assert!(told.result.expect("a membership").task.is_none(), "{pairs}");
    }
}

/// `--nested` in a rank of another launcher: the counts of its environment do not describe this
/// job.
#[test]
fn nested_job_is_a_separate_job() {
    let torchrun = "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 GROUP_WORLD_SIZE=2 \
        TORCHELASTIC_RUN_ID=x MASTER_ADDR=n0 MASTER_PORT=29500";
    let slurm = "SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[1-2] \
        SLURM_STEP_TASKS_PER_NODE=1(x2)";
    let ours = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 NODE_RANK=0 MASTER_ADDR=n0 MASTER_PORT=1";
    let line = |settings: &Settings, pairs: &str, above: bool| {
        let mut notes = Notes::default();
        let above = above.then(|| (41, "python -m torch.distributed.run a.py".to_owned()));
        let contract = Contract::read(&host(pairs), above, None);
        let result = membership(settings, &contract, &gpus(8), &mut notes);
        Told { result, notes }
    };
    let nested = |settings: Settings| Settings { nested: true, ..settings };
    for pairs in [torchrun, slurm, ours, &format!("{slurm} {torchrun}")] {
        for settings in [undecided(), direct()] {
            let told = line(&nested(settings.clone()), pairs, true);
            assert_eq!(told.line(), "nested 1 0 127.0.0.1:29500 free", "{pairs}");
            let because = &told.notes.decisions.first().expect("nnodes").because;
            assert!(
                because.en.contains("process 41") && because.en.contains("--nnodes"),
                "{because:?}"
            );
            // Without a launcher above, the option changes nothing.
            let alone = line(&nested(settings.clone()), pairs, false);
            assert_eq!(alone.line(), line(&settings, pairs, false).line(), "{pairs}");
        }
    }
    let mut two = nested(undecided());
    two.nnodes = Some(Sourced::new(2, Source::Flag("--nnodes".into())));
    two.node_rank = Some(Sourced::new(1, Source::Flag("--node-rank".into())));
    assert_eq!(line(&two, torchrun, true).line(), "refused membership.master-addr");
    two.master_addr = Some(Sourced::new("n3".into(), Source::Flag("--master-addr".into())));
    assert_eq!(line(&two, torchrun, true).line(), "flags 2 1 n3:29500");
}
