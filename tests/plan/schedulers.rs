//! Members of jobs of schedulers with few variables, with the real executable: a membership, or a
//! refusal with the way to start.

use harness::node::{Node, PYTHON, Planned};

fn planned(platform: &str) -> Planned {
    Node::with_gpus(8).platform(platform).json(&["--", "train.py"])
}

/// `nnodes rank host`, or `code id`.
fn answer(planned: &Planned) -> String {
    if planned.code != 0 {
        return planned.refusal();
    }
    let of = |name: &str| planned.at(&format!("/membership/{name}"));
    format!("{} {} {}", of("nnodes"), of("node_rank"), of("master_addr"))
}

/// Environments of members from the documentation of each scheduler, with the variables of one
/// start: none may be taken for a job of one node.
#[test]
fn no_member_of_a_larger_job_runs_alone() {
    let half = "65 membership.half-given";
    for (platform, expected) in [
        ("BEAKER_REPLICA_COUNT=2 BEAKER_REPLICA_RANK=1 BEAKER_LEADER_REPLICA_HOSTNAME=h", "2 1 h"),
        ("PBS_JOBID=4.pbs PBS_ENVIRONMENT=PBS_BATCH PBS_NODENUM=1 PBS_TASKNUM=2", half),
        ("LSB_JOBID=4 LSB_MCPU_HOSTS=h1~4~h2~4 LSB_DJOB_NUMPROC=8", half),
        ("VC_TASK_INDEX=1 VC_LEARNER_NUM=2 VC_LEARNER_HOSTS=h,j-learner-1.j", "2 1 h"),
        (
            "AZ_BATCH_MASTER_NODE=10.0.0.4:6105 NODE_RANK=0 MASTER_ADDR=h WORLD_SIZE=16 RANK=0 \
             LOCAL_RANK=0",
            "65 membership.tasks",
        ),
        (
            "AZ_BATCH_MASTER_NODE=10.0.0.4:6105 NODE_RANK=1 MASTER_ADDR=h WORLD_SIZE=16 RANK=8 \
             LOCAL_RANK=0",
            "65 membership.tasks",
        ),
        (
            "LEPTON_JOB_TOTAL_WORKERS=2 LEPTON_JOB_WORKER_INDEX=1 LEPTON_JOB_SERVICE_PREFIX=p \
             LEPTON_SUBDOMAIN=s",
            "2 1 p-0.s",
        ),
        (
            "FLUX_JOB_ID=f FLUX_JOB_NNODES=2 FLUX_JOB_SIZE=2 FLUX_TASK_RANK=1 PMI_RANK=1 \
             PMI_SIZE=2 MASTER_ADDR=h",
            "2 1 h",
        ),
        ("NHOSTS=2 NSLOTS=16 JOB_ID=4", half),
        ("_CONDOR_PROCNO=1 _CONDOR_NPROCS=2 MASTER_ADDR=h", "2 1 h"),
        ("ACME_NODE_INDEX=1 ACME_NUM_NODES=2", half),
    ] {
        // The harness splits at blanks, so `~` stands for one.
        let mut node = Node::with_gpus(8);
        for (name, value) in platform.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            node = node.env(name, &value.replace('~', " "));
        }
        let planned = node.json(&["--", "train.py"]);
        assert_eq!(answer(&planned), expected, "{platform}\n{:#}", planned.json);
    }
    // The control: a job of one node is recognised, and parallel jobs of a pipeline are
    // independent.
    for platform in
        ["BEAKER_REPLICA_COUNT=1 BEAKER_REPLICA_RANK=0", "CI_NODE_INDEX=2 CI_NODE_TOTAL=4"]
    {
        assert_eq!(answer(&planned(platform)), "1 0 127.0.0.1", "{platform}");
    }
}

/// Host files are read on the node, and a file that lists slots of one host does not mean several
/// hosts.
#[test]
fn host_files_are_read() {
    for (variable, platform, word) in [
        ("PBS_NODEFILE", "PBS_JOBID=4.pbs PBS_NODENUM=0", "pbsdsh"),
        ("LSB_DJOB_HOSTFILE", "LSB_JOBID=4", "blaunch"),
        ("PE_HOSTFILE", "NSLOTS=16", "qrsh -inherit"),
        ("ACME_NODEFILE", "ACME_JOB_ID=4", "--nodes"),
    ] {
        let path = "/var/spool/jobs/4.hosts";
        let node =
            |text: &str| Node::with_gpus(8).platform(platform).env(variable, path).file(path, text);
        let two = node("h1 8\nh2 8\n").json(&["--", "train.py"]);
        assert_eq!(answer(&two), "65 membership.half-given", "{variable} {:#}", two.json);
        let text = two.at("/refused/text");
        assert!(text.contains(variable) && text.contains("h1, h2"), "{text}");
        assert!(two.at("/refused/hint").contains(word), "{}", two.at("/refused/hint"));
        let one = node("h1\nh1\nh1\n").json(&["--", "train.py"]);
        assert_eq!(answer(&one), "1 0 127.0.0.1", "{variable} {:#}", one.json);
    }
}

/// The profile has no row for the value of WORLD_SIZE. The value may count processes, and another
/// number of processes per node would make the job wait for nodes that do not exist.
#[test]
fn select_without_row_asks_about_world_size() {
    let plan = |args: &[&str]| {
        let node = Node::with_gpus(8).platform("WORLD_SIZE=16 RANK=0 MASTER_ADDR=h");
        node.json(&[&["--profile", "taehv", "--python", PYTHON], args].concat())
    };
    let planned = plan(&[]);
    assert!(planned.refusal().ends_with(" select.no-match"), "{:#}", planned.json);
    let hint = planned.at("/refused/hint");
    assert!(hint.contains("--world-size-counts processes"), "{hint}");
    assert!(!hint.contains("--nproc-per-node 1"), "{hint}");
    // The hint's option works, and a user who has declared these as nodes is not asked again.
    let planned = plan(&["--world-size-counts", "processes"]);
    assert_eq!(planned.at("/membership/nnodes"), "2", "{:#}", planned.json);
    let planned = plan(&["--world-size-counts", "nodes"]);
    assert!(!planned.at("/refused/hint").contains("counts"), "{:#}", planned.json);
}

/// As many nodes as ranks have no legal layout.
#[test]
fn layout_without_solution_asks_about_world_size() {
    let plan = |args: &[&str]| {
        let node = Node::with_gpus(8).platform("WORLD_SIZE=16 RANK=0 MASTER_ADDR=h");
        let rule = ["--layout", "ulysses-world", "--heads", "40", "--python", PYTHON];
        node.json(&[&rule, args, &["--", "x.py"]].concat())
    };
    let planned = plan(&[]);
    assert_eq!(planned.refusal(), "66 layout.unsolvable", "{:#}", planned.json);
    let hint = planned.at("/refused/hint");
    assert!(hint.starts_with("--world-size-counts processes if WORLD_SIZE=16"), "{hint}");
    assert!(hint.contains("if there are 16 nodes: use 5, 8"), "{hint}");
    // The control: the count is declared.
    let planned = plan(&["--world-size-counts", "nodes"]);
    assert!(!planned.at("/refused/hint").contains("counts"), "{:#}", planned.json);
}

/// `auto` is shown where it was given, and as a default where it was not.
#[test]
fn given_auto_is_shown() {
    let source = |node: Node, args: &[&str]| {
        let planned = node.json(&[args, &["--device", "cpu", "--", "x.py"]].concat());
        let decisions = planned.json["decisions"].as_array().expect("a list").clone();
        let found = decisions.into_iter().find(|one| one["what"] == "nproc_per_node");
        found.expect("it is decided")["source"].as_str().expect("text").to_owned()
    };
    let node = Node::without_gpus;
    assert_eq!(source(node(), &[]), "no --nproc-per-node");
    assert_eq!(source(node(), &["--nproc-per-node", "auto"]), "--nproc-per-node auto");
    let by_variable = node().env("RANKLAUNCH_NPROC_PER_NODE", "auto");
    assert_eq!(source(by_variable, &[]), "RANKLAUNCH_NPROC_PER_NODE auto");
}
