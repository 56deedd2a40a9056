//! WORLD_SIZE and RANK that count processes: all ranks of a job get one answer.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use settings::{Engine, WorldSizeCounts};

/// The variables by which a platform that starts its command once per process may describe it.
#[derive(Debug, Clone, Copy)]
struct Names {
    /// NODE_RANK, GROUP_RANK, PET_NODE_RANK or none.
    node: &'static str,
    /// LOCAL_RANK.
    local: bool,
    per_node: bool,
    nodes: bool,
}

/// The answer for one process, as far as it is about the whole job: the membership without the
/// place of this process in it, or the refusal.
fn answer(settings: &Settings, names: Names, size: (u32, u32), place: (u32, u32)) -> String {
    let ((nnodes, nproc), (node, local)) = (size, place);
    let common = format!(
        "MASTER_ADDR=n0 MASTER_PORT=6105 WORLD_SIZE={} RANK={}",
        nnodes * nproc,
        node * nproc + local
    );
    let own = (!names.node.is_empty()).then(|| format!("{}={node}", names.node));
    let on_node = names.local.then(|| format!("LOCAL_RANK={local}"));
    let per_node = names.per_node.then(|| format!("LOCAL_WORLD_SIZE={nproc}"));
    let nodes = names.nodes.then(|| format!("NNODES={nnodes}"));
    let pairs: Vec<String> =
        [Some(common), own, on_node, per_node, nodes].into_iter().flatten().collect();
    let pairs = pairs.join(" ");
    let told = tell(settings, &host(&pairs), &gpus(8));
    match &told.result {
        Ok(member) => {
            assert_eq!(member.node_rank, node, "{pairs}");
            let tasks = member.task.as_ref().map(|task| (task.world, task.of));
            format!("{} nodes, tasks {tasks:?}, {}", member.nnodes, member.master_addr)
        }
        Err(refusal) => {
            assert!(refusal.hint.en.contains("--nnodes"), "{}", refusal.hint.en);
            format!("refused {}", refusal.id)
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn all_ranks_of_a_job_agree(
        nnodes in 1u32..5,
        nproc in 1u32..9,
        node in prop::sample::select(vec!["NODE_RANK", "GROUP_RANK", "PET_NODE_RANK", ""]),
        local in any::<bool>(),
        per_node in any::<bool>(),
        nodes in any::<bool>(),
        engine in prop::sample::select(vec![Engine::Torchrun, Engine::Direct, Engine::Command]),
    ) {
        // Without LOCAL_RANK and a node rank, WORLD_SIZE and RANK are those of nodes by convention.
        prop_assume!(local || !node.is_empty());
        // A job with a given count of one node has one place, whatever RANK says.
        prop_assume!(local || node != "GROUP_RANK" || !nodes || nnodes > 1);
        let names = Names { node, local, per_node, nodes };
        let mut settings = undecided();
        settings.engine.value = engine;
        let places = (0..nnodes).flat_map(|node| (0..nproc).map(move |local| (node, local)));
        let answers: BTreeSet<String> =
            places.map(|place| answer(&settings, names, (nnodes, nproc), place)).collect();
        prop_assert_eq!(answers.len(), 1, "{:?}", answers);
        let answer = answers.into_iter().next().unwrap_or_default();
        // The answer never has more nodes than the job.
        let is_refused = answer.starts_with("refused");
        prop_assert!(is_refused || answer.starts_with(&format!("{nnodes} nodes")), "{}", answer);
    }
}

/// The control: a platform that starts one process per node and says so is never refused.
#[test]
fn stated_one_process_per_node_is_accepted() {
    let pairs = "WORLD_SIZE=16 RANK=3 NODE_RANK=3 LOCAL_RANK=0 MASTER_ADDR=n0";
    let mut settings = undecided();
    assert_eq!(tell(&settings, &host(pairs), &gpus(8)).line(), "refused membership.tasks");
    for said in ["LOCAL_WORLD_SIZE=1", "NNODES=16", "AZUREML_NODE_COUNT=16"] {
        let told = of(&format!("{pairs} {said}"));
        assert!(told.line().ends_with("16 3 n0:29500"), "{said}: {} {}", told.line(), told.text());
    }
    settings.world_size_counts.value = WorldSizeCounts::Nodes;
    assert!(tell(&settings, &host(pairs), &gpus(8)).line().ends_with("16 3 n0:29500"));
    let pairs = "WORLD_SIZE=16 RANK=3 NODE_RANK=3 MASTER_ADDR=n0";
    assert_eq!(of(pairs).line(), "refused membership.processes");
    assert!(tell(&settings, &host(pairs), &gpus(8)).line().ends_with("16 3 n0:29500"));
    assert!(of(&format!("{pairs} NNODES=16")).line().ends_with("16 3 n0:29500"));
    // Without RANK the variables are PyTorch Lightning's. A job of one process is a job of one node as well.
    let lightning = of("WORLD_SIZE=16 NODE_RANK=3 MASTER_ADDR=n0");
    assert!(lightning.line().ends_with("16 3 n0:29500"), "{}", lightning.line());
    assert!(of("WORLD_SIZE=1 RANK=0 NODE_RANK=0").line().ends_with("1 0 127.0.0.1:29500 free"));
}

#[test]
fn rank_beside_node_rank_may_count_processes() {
    for (pairs, rank, node) in [
        ("WORLD_SIZE=16 RANK=8 NODE_RANK=1 MASTER_ADDR=n0", "RANK=8", "NODE_RANK=1"),
        ("WORLD_SIZE=16 RANK=1 NODE_RANK=0 MASTER_ADDR=n0", "RANK=1", "NODE_RANK=0"),
        ("WORLD_SIZE=16 RANK=0 NODE_RANK=0 MASTER_ADDR=n0", "RANK=0", "NODE_RANK=0"),
        ("WORLD_SIZE=16 RANK=9 GROUP_RANK=1 MASTER_ADDR=n0", "RANK=9", "GROUP_RANK=1"),
        ("WORLD_SIZE=16 RANK=8 PET_NODE_RANK=1 MASTER_ADDR=n0", "RANK=8", "PET_NODE_RANK=1"),
    ] {
        let told = of(pairs);
        assert_eq!(told.line(), "refused membership.processes", "{pairs}");
        let refusal = told.result.expect_err("refused");
        for text in [&refusal.text.en, &refusal.text.zh] {
            assert!(text.contains(rank) && text.contains(node), "{text}");
            assert!(text.contains("WORLD_SIZE=16"), "{text}");
        }
        assert!(refusal.hint.en.contains("--world-size-counts processes"), "{}", refusal.hint.en);
    }
    // An index that counts within one of several Jobs of Kubernetes is no rank of a node.
    let told = of("WORLD_SIZE=4 RANK=3 JOB_COMPLETION_INDEX=1 MASTER_ADDR=j-0");
    assert_eq!(told.line(), "generic 4 3 j-0:29500");
    let mut settings = undecided();
    settings.world_size_counts.value = WorldSizeCounts::Processes;
    let told = tell(&settings, &host("WORLD_SIZE=16 RANK=8 NODE_RANK=1 MASTER_ADDR=n0"), &gpus(8));
    assert_eq!(told.line(), "node-variables 2 1 n0:29500");
}
