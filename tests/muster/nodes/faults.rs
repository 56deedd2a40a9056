//! Faults that are noticed at once, and nodes of different sizes.

use std::ffi::OsString;

use harness::cluster::{Cluster, kill_rank, one_cause};
use harness::fake_nvml::FakeNvml;
use harness::{Ended, Launcher, Running, free_port, kill, python, run_args};

fn wait_all(nodes: Vec<Running>) -> Vec<Ended> {
    nodes.into_iter().map(|node| node.wait().expect_nothing_left()).collect()
}

#[test]
fn hosts_with_host_names_run_one_job() {
    let Some(cluster) = Cluster::new(3) else { return };
    let nodes = (0..3).map(|rank| cluster.direct(rank, 3, &[], "succeed").start());
    let ended = wait_all(nodes.collect());
    let mut runs = Vec::new();
    for (rank, ended) in (0..3).zip(ended) {
        let ended = ended.expect_code(0);
        let line = format!("rank {rank} of 3, local 0, node-0:29517");
        assert!(ended.out.contains(&line), "{}", ended.out);
        runs.push(ended.run_json(rank)["run_id"].clone());
    }
    assert!(runs.iter().all(|run| *run == runs[0]), "{runs:?}");
    cluster.expect_nothing_left();
}

#[test]
fn all_nodes_name_killed_rank_agent_or_host() {
    // The victim is a rank of node 2.
    let Some(cluster) = Cluster::new(3) else { return };
    let nodes = cluster.waiting(&[]);
    kill_rank(&nodes[2], "sleep 300");
    let ended = wait_all(nodes);
    let cause = one_cause(&[(0, &ended[0], 143), (1, &ended[1], 143), (2, &ended[2], 137)]);
    assert_eq!((cause.id, cause.node, cause.rank), ("rank.signal".into(), 2.into(), 2.into()));
    cluster.expect_nothing_left();

    // The victim is the agent of node 2, whose guard reports for itself.
    let nodes = cluster.waiting(&[]);
    kill(nodes[2].agent());
    let ended = wait_all(nodes);
    assert_eq!(ended[2].code, 137, "{}", ended[2].err);
    let cause = one_cause(&[(0, &ended[0], 143), (1, &ended[1], 143)]);
    assert_eq!((cause.id, cause.node), ("node.died".into(), 2.into()));
    assert!(cause.block.ends_with("the agent of node 2 (node-2) died"), "{}", cause.block);
    cluster.expect_nothing_left();

    // The victims are all processes of node 2, then of node 0; their kernels close the connections.
    for (victim, others) in [(2u32, [0u32, 1]), (0, [1, 2])] {
        let mut nodes = cluster.waiting(&[]);
        cluster.kill_all(victim);
        drop(nodes.remove(usize::try_from(victim).expect("small")));
        let ended = wait_all(nodes);
        let cause = one_cause(&[(others[0], &ended[0], 143), (others[1], &ended[1], 143)]);
        assert_eq!((cause.id, cause.node), ("node.died".into(), victim.into()));
        cluster.expect_nothing_left();
    }
}

/// Hosts with 7, 8 and 8 GPUs whose script counts attention heads.
fn of_different_sizes(cluster: &Cluster, heads: &str) -> Vec<Ended> {
    let fakes = ["8", "8", "7"].map(|count| FakeNvml::new(&[("GPUS", count)]));
    let node = |(rank, fake): (u32, &FakeNvml)| -> Launcher {
        let words = ["run", "--engine", "direct", "--stale", "off", "--layout", "ulysses-world"];
        let mut args: Vec<OsString> = words.map(Into::into).to_vec();
        args.extend(["--heads", heads, "--python"].map(Into::into));
        args.extend([python().into(), "--".into(), "sh".into(), "-c".into()]);
        args.push("echo ulysses={ulysses_size} of $WORLD_SIZE".into());
        let library = fake.library();
        cluster.launcher(rank, rank, 3, &args).env("RANKLAUNCH_NVML_LIBRARY", library)
    };
    let nodes: Vec<Running> = (0..).zip(&fakes).map(|one| node(one).start()).collect();
    wait_all(nodes)
}

#[test]
fn hosts_with_different_gpu_counts_share_one_layout() {
    let Some(cluster) = Cluster::new(3) else { return };
    // With 24 heads, nodes 0 and 1 alone would take 8 each; with node 2 it is 4.
    for (rank, ended) in (0..3).zip(of_different_sizes(&cluster, "24")) {
        let ended = ended.expect_code(0);
        assert_eq!(ended.out.matches("ulysses=12 of 12").count(), 4, "{}", ended.out);
        let plan = &ended.run_json(rank)["plan"];
        assert_eq!((&plan["nproc_per_node"], &plan["world_size"]), (&4.into(), &12.into()));
        assert_eq!(plan["layout"]["ulysses_size"], 12);
    }
    // 40 heads fit three nodes at no size; each node reports its own GPUs.
    for (ended, gpus) in of_different_sizes(&cluster, "40").into_iter().zip([8, 8, 7]) {
        let ended = ended.expect_code(66).expect_id("layout.unsolvable");
        assert!(ended.out.is_empty(), "nothing ran: {}", ended.out);
        let words = format!("from 1 to {gpus} on 3 nodes is legal for 40 attention heads");
        for words in [words.as_str(), "use 1, 2, 4 or 5 nodes"] {
            assert!(ended.err.contains(words), "{words}\n{}", ended.err);
        }
    }
    cluster.expect_nothing_left();
}

/// The rank that ends first only saw the loss of a peer. The peer has printed the reason, and has
/// not ended yet.
#[test]
fn all_nodes_name_culprit_despite_earlier_victim() {
    let raised = "ValueError: the batch is empty";
    for (said, node, id) in [(raised, 1, "user_exception"), ("all is well", 0, "")] {
        let port = free_port();
        let script = format!(
            "say() {{ printf 'Traceback (most recent call last):\\n  File \"train.py\", line 7, in <module>\\n    step()\\n%s\\n' \"$1\" >&2; }}
            if [ $RANK = 1 ]; then
                {}
                : > \"$GO\"; exec sleep 300
            fi
            until [ -e \"$GO\" ]; do sleep 0.1; done; sleep 0.5
            say 'RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:3456'
            exit 1",
            if said == raised { format!("say '{said}'") } else { format!("echo '{said}'") }
        );
        let mut args = run_args("direct", 1);
        args.extend(["--", "sh", "-c", &script].map(OsString::from));
        let folder = tempfile::tempdir().expect("a folder");
        let go = folder.path().join("go");
        let start = |rank| Launcher::new(&args).node(rank, 2, port).env("GO", &go).start();
        let [zero, one] = [0, 1].map(start).map(|node| node.wait().expect_nothing_left());
        let codes = if node == 1 { (143, 1) } else { (1, 143) };
        let cause = one_cause(&[(0, &zero, codes.0), (1, &one, codes.1)]);
        assert_eq!((cause.node, cause.rank), (node.into(), node.into()), "{}", zero.err);
        for (rank, ended) in [(0, &zero), (1, &one)] {
            let cause = &ended.run_json(rank)["cause"];
            assert_eq!(cause["id"].as_str().unwrap_or_default(), id, "{}", ended.err);
        }
    }
}
