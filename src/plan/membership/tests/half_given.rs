//! Incomplete evidence, evidence that contradicts a profile, and launchers inside launchers: no
//! node runs alone by mistake.

use super::*;
use settings::contract::Field;
use settings::fixtures::undecided;
use settings::{Source, Sourced, WorldSizeCounts};
use verdict::Id;

/// Whatever variable is present: no node runs alone, and no message is false.
#[test]
fn incomplete_evidence_is_refused_and_quoted() {
    let half = Id::MembershipHalfGiven;
    let table = [
        // An index without a count, from the first node as from any other.
        ("RANK=0", half, "RANK=0 is the index of a node"),
        ("RANK=1", half, "RANK=1 is the index of a node"),
        ("NODE_RANK=1 MASTER_ADDR=n0", half, "NODE_RANK=1 and MASTER_ADDR=n0"),
        ("NODE_RANK=0", half, "NODE_RANK=0 is the index"),
        ("PET_NODE_RANK=1", half, "PET_NODE_RANK=1"),
        ("PMIX_RANK=0 PMIX_NAMESPACE=x", half, "PMIX_RANK=0"),
        ("MLP_ROLE_INDEX=1", half, "MLP_ROLE_INDEX=1"),
        ("SKYPILOT_NODE_RANK=1", half, "SKYPILOT_NODE_RANK=1"),
        ("LWS_WORKER_INDEX=1", half, "LWS_WORKER_INDEX=1"),
        ("AWS_BATCH_JOB_NODE_INDEX=1", half, "AWS_BATCH_JOB_NODE_INDEX=1"),
        ("OMPI_COMM_WORLD_RANK=1", half, "OMPI_COMM_WORLD_RANK=1"),
        // A count without an index.
        ("NNODES=2 MASTER_ADDR=n0", half, "there are 2 nodes (NNODES=2)"),
        ("NODE_COUNT=2 MASTER_ADDR=n0", half, "there are 2 nodes (NODE_COUNT=2)"),
        ("NUM_NODES=2 MASTER_ADDR=n0", half, "there are 2 nodes (NUM_NODES=2)"),
        ("MLP_WORKER_NUM=2", half, "MLP_WORKER_NUM=2"),
        ("SKYPILOT_NUM_NODES=2", half, "SKYPILOT_NUM_NODES=2"),
        ("DSTACK_NODES_NUM=2", half, "DSTACK_NODES_NUM=2"),
        ("PMI_SIZE=2 MASTER_ADDR=n0", half, "PMI_SIZE=2"),
        ("VC_TASK_INDEX=0 VC_MASTER_NUM=1 VC_WORKER_NUM=2", half, "there are 3 nodes"),
        ("PET_NNODES=2:8", Id::MembershipMasterAddr, "there are 8 nodes (PET_NNODES=2:8)"),
        // Another host, without index and count.
        ("MASTER_ADDR=n0 MASTER_PORT=29500", half, "MASTER_ADDR=n0 is another host"),
        ("JOB_COMPLETION_INDEX=1 MASTER_ADDR=j-0.svc", half, "JOB_COMPLETION_INDEX=1 and MASTER"),
        ("VC_TASK_INDEX=1 MASTER_ADDR=j-0.svc", half, "MASTER_ADDR=j-0.svc is another host"),
        // Processes, without proof that there is one per node.
        ("PMI_RANK=1 PMI_SIZE=2 MASTER_ADDR=n0", Id::MembershipTasks, "PMI_SIZE=2 is about"),
        (
            "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 MASTER_ADDR=n0",
            Id::MembershipTasks,
            "OMPI_COMM_WORLD_SIZE=2 is about processes",
        ),
        // One process per GPU.
        (
            "RANK=9 WORLD_SIZE=16 NODE_RANK=1 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 MASTER_ADDR=n0",
            Id::MembershipTasks,
            "LOCAL_WORLD_SIZE=8: the platform starts this command 8 times",
        ),
        (
            "RANK=0 WORLD_SIZE=8 LOCAL_RANK=0 LOCAL_WORLD_SIZE=8 MASTER_ADDR=127.0.0.1",
            Id::MembershipTasks,
            "8 times",
        ),
        (
            "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=127.0.0.1",
            Id::MembershipTasks,
            "LOCAL_RANK=1: the platform starts this command at least 2 times",
        ),
        (
            "MPI_LOCALNRANKS=8 PMI_RANK=9 PMI_SIZE=16 MASTER_ADDR=n0",
            Id::MembershipTasks,
            "MPI_LOCALNRANKS=8",
        ),
        (
            "MV2_COMM_WORLD_RANK=9 MV2_COMM_WORLD_SIZE=16 MV2_COMM_WORLD_LOCAL_SIZE=8",
            Id::MembershipTasks,
            "MV2_COMM_WORLD_LOCAL_SIZE=8",
        ),
    ];
    for (pairs, id, words) in table {
        let refusal = of(pairs).result.expect_err(pairs);
        assert_eq!((refusal.id, refusal.verdict.code()), (id, 65), "{pairs}");
        assert!(refusal.text.en.contains(words), "{pairs}: {}", refusal.text.en);
        assert!(refusal.hint.en.contains("--nnodes"), "{pairs}: {}", refusal.hint.en);
        assert!(refusal.hint.zh.contains("--nnodes"), "{pairs}: {}", refusal.hint.zh);
    }
}

#[test]
fn master_on_this_node_needs_no_count() {
    let alone = |names: &[&str], pairs: &str| {
        let mut contract = Contract::read(&host(pairs), None, None);
        contract.own_names = names.iter().map(|name| (*name).to_owned()).collect();
        let mut notes = Notes::default();
        membership(&undecided(), &contract, &gpus(8), &mut notes).is_ok()
    };
    let own = ["job-0", "10.0.0.7", "fd00::7"];
    for (pairs, is_alone) in [
        ("MASTER_ADDR=job-0", true),
        ("MASTER_ADDR=JOB-0.svc.ns", true),
        ("MASTER_ADDR=10.0.0.7", true),
        ("MASTER_ADDR=[fd00:0::7]", true),
        ("MASTER_ADDR=localhost", true),
        ("MASTER_ADDR=None", true),
        ("MASTER_ADDR=10.0.0.70", false),
        ("MASTER_ADDR=job-01", false),
    ] {
        assert_eq!(alone(&own, pairs), is_alone, "{pairs}");
    }
}

/// A launcher inside another one: the outer variables describe the inner launcher.
#[test]
fn the_innermost_launcher_wins() {
    let daemon = "SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=1 SLURM_NNODES=1 SLURM_NODEID=0 \
        SLURM_STEP_NODELIST=n4 SLURM_JOB_NODELIST=n[3-4] SLURM_STEP_TASKS_PER_NODE=1";
    let ompi = "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1";
    let hydra = "PMI_SIZE=2 PMI_RANK=1 MPI_LOCALNRANKS=1";
    let srun = "SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[3-4] \
        SLURM_STEP_TASKS_PER_NODE=8(x2) PMI_SIZE=16 PMI_RANK=9 PMIX_RANK=9 PMIX_NAMESPACE=s";
    check(&[
        (&format!("{daemon} {ompi}"), "open-mpi 2 1 n3:29500"),
        (&format!("{daemon} {ompi} MASTER_ADDR=n3-ib"), "open-mpi 2 1 n3-ib:29500"),
        (&format!("{daemon} {hydra}"), "pmi 2 1 n3:29500"),
        // srun also gives its tasks PMI variables; Slurm's own are better.
        (srun, "refused membership.tasks"),
        (&srun.replace("8(x2)", "1(x2)"), "slurm 2 1 n3:27446"),
    ]);
    // The remark on how mpirun ends a job appears until the setting is made.
    let remarks = |pairs: &str| Contract::read(&host(pairs), None, None).warnings.len();
    assert_eq!((remarks(ompi), remarks(hydra)), (1, 0));
    assert_eq!(remarks(&format!("{ompi} OMPI_MCA_odls_base_sigkill_timeout=30")), 0);
}

/// The components of a heterogeneous step are numbered in their own order, while its list is
/// sorted. All nodes must agree that rank 0 is on the master.
#[test]
fn heterogeneous_step_has_rank_0_on_its_master() {
    let step = "SLURM_JOB_ID=8 SLURM_HET_JOB_ID=7 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=n[1,3] SLURM_STEP_TASKS_PER_NODE=1(x2)";
    check(&[
        (&format!("{step} SLURM_NODEID=0 SLURMD_NODENAME=n3"), "slurm 2 1 n1:27446"),
        (&format!("{step} SLURM_NODEID=1 SLURMD_NODENAME=n1"), "slurm 2 0 n1:27446"),
        // A name that is not in the list proves nothing.
        (&format!("{step} SLURM_NODEID=1 SLURMD_NODENAME=gpu"), "slurm 2 1 n1:27446"),
    ]);
    let job =
        Contract::read(&host(step), None, None).first(Field::JobId).map(|claim| claim.to_string());
    assert_eq!(job.as_deref(), Some("SLURM_HET_JOB_ID=7"), "one id on all components");
}

#[test]
fn batch_script_is_told_to_use_srun() {
    for pairs in [
        "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=2 SLURM_NODEID=0 SLURM_JOB_NODELIST=n[1-2]",
        "SLURM_JOB_ID=7 SLURM_NNODES=2 SLURM_NODELIST=n[1-2]",
    ] {
        let refusal = of(pairs).result.expect_err(pairs);
        assert_eq!(refusal.id, Id::MembershipHalfGiven);
        assert!(refusal.hint.en.contains("srun --ntasks-per-node=1"), "{}", refusal.hint.en);
        assert!(refusal.hint.zh.contains("srun --ntasks-per-node=1"), "{}", refusal.hint.zh);
    }
}

/// zimdb's `nnodes = 1` in four pods made four jobs of one node.
#[test]
fn profile_count_contradicting_the_platform_is_refused() {
    let from = |source: Source, nnodes: u32, env: &str| {
        let settings = Settings { nnodes: Some(Sourced::new(nnodes, source)), ..undecided() };
        tell(&settings, &host(env), &gpus(1))
    };
    let profile = || Source::Profile { file: "zimdb.toml".into(), line: 9 };
    let pods = "WORLD_SIZE=4 RANK=3 MASTER_ADDR=m MASTER_PORT=1";
    let pet = "WORLD_SIZE=4 RANK=0 PET_NNODES=4 PET_NODE_RANK=0 MASTER_ADDR=m MASTER_PORT=1";
    for (nnodes, env, said) in [
        (1, pods, "4 (WORLD_SIZE=4)"),
        (1, pet, "4 (PET_NNODES=4)"),
        (2, pet, "4 (PET_NNODES=4)"),
        (4, "SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=0", "2 (SLURM_STEP_NUM_NODES=2)"),
    ] {
        let told = from(profile(), nnodes, env);
        assert_eq!(told.line(), "refused membership.contradiction", "{nnodes} {env}");
        let refusal = told.result.expect_err("refused");
        let ours =
            text::lang::singular(format!("zimdb.toml:9 says that the job has {nnodes} nodes"));
        assert!(refusal.text.en.contains(&ours), "{}", refusal.text.en);
        assert!(refusal.text.en.contains(said), "{}", refusal.text.en);
        for lang in [&refusal.hint.en, &refusal.hint.zh] {
            assert!(lang.contains(&format!("--nnodes {nnodes}")), "{lang}");
        }
    }
    // A flag or our own variable is deliberate, and an equal number is no contradiction.
    let flag = || Source::Flag("--nnodes".into());
    let variable = || Source::Environment("RANKLAUNCH_NNODES".into());
    let alone = "flags 1 0 127.0.0.1:29500 free membership.alone";
    assert_eq!(from(flag(), 1, pods).line(), alone);
    assert_eq!(from(variable(), 1, pods).line(), alone);
    assert_eq!(from(profile(), 4, pods).line(), "generic 4 3 m:1");
    let pod = "WORLD_SIZE=1 RANK=0 MASTER_ADDR=m MASTER_PORT=1";
    assert_eq!(from(profile(), 1, pod).line(), "flags 1 0 127.0.0.1:29500 free");
    // WORLD_SIZE=4 of a node with four processes, if the user declares that.
    let mut settings = Settings { nnodes: Some(Sourced::new(1, profile())), ..undecided() };
    settings.world_size_counts.value = WorldSizeCounts::Processes;
    let told = tell(&settings, &host("WORLD_SIZE=4 RANK=0"), &gpus(4));
    assert_eq!(told.line(), "flags 1 0 127.0.0.1:29500 free");
}
