//! Other listeners on the port of node 0: another job in each of its states, another program, this
//! job's own earlier attempt. Also nodes with a wrong master address.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use harness::cluster::{Cluster, PORT};
use harness::{Launcher, python, run_args, wait_until};

/// Rank 0 holds torch's store on the master port, as torchrun and rank 0 of a group do, and is slow
/// to end. `GO` is a file that ends all ranks well.
const STORE: &str = r#"
import datetime, os, signal, sys, time
def term(*_):
    time.sleep(4)
    sys.exit(1)
signal.signal(signal.SIGTERM, term)
if os.environ["RANK"] == "0":
    from torch.distributed import TCPStore
    port = int(os.environ["MASTER_PORT"])
    patience = datetime.timedelta(seconds=60)
    store = TCPStore("0.0.0.0", port, None, True, patience, wait_for_workers=False)
print("READY", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
print("again", os.environ["RANK"], flush=True)
"#;

fn args(more: &[&str], program: &[&str]) -> Vec<OsString> {
    let mut args = run_args("direct", 1);
    args.extend(more.iter().map(Into::into));
    args.push("--".into());
    args.extend(program.iter().map(Into::into));
    args
}

fn with_store(more: &[&str]) -> Vec<OsString> {
    let python = python().to_string_lossy().into_owned();
    args(more, &["sh", "-c", "exec \"$0\" -c \"$1\"", &python, STORE])
}

/// Variables that srun sets for a step of two nodes; the job's script set MASTER_PORT.
fn slurm(cluster: &Cluster, job: &str, rank: u32, args: &[OsString]) -> Launcher {
    let id = rank.to_string();
    let step = [
        ("SLURM_JOB_ID", job),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_NODELIST", "node-[0-1]"),
        ("SLURM_NODEID", &id),
        ("GO", &cluster.folder().join("go").to_string_lossy()),
    ]
    .map(|(name, value)| (name, value.to_owned()));
    let launcher = cluster.launcher(rank, rank, 2, args);
    step.into_iter().fold(launcher, |launcher, (name, value)| launcher.env(name, value))
}

/// Both nodes of job 8 end with 87 at once, instead of waiting for half an hour, and none of its
/// ranks ran.
#[track_caller]
fn second_job_is_refused(cluster: &Cluster) {
    let args = args(&[], &["sh", "-c", "echo it runs"]);
    let nodes = [0, 1].map(|rank| slurm(cluster, "8", rank, &args).start());
    for ended in nodes.map(|node| node.wait().expect_code(87)) {
        let port = format!(" {PORT} ");
        assert!(ended.err.contains(&port) && ended.out.is_empty(), "{}", ended.err);
        ended.expect_id("port.free");
    }
}

/// Node 0 of job 8 is not there to report it.
#[track_caller]
fn lonely_node_is_refused(cluster: &Cluster) {
    let lonely = slurm(cluster, "8", 1, &args(&[], &["sh", "-c", "echo it runs"])).run();
    let lonely = lonely.expect_code(87).expect_id("muster.job");
    assert!(lonely.err.contains("7.0") && lonely.err.contains("8.0"), "{}", lonely.err);
    assert!(lonely.out.is_empty(), "{}", lonely.out);
}

#[test]
fn second_job_on_same_nodes_ends_with_87() {
    let Some(cluster) = Cluster::new(2) else { return };
    // The first job is gathering.
    let first = with_store(&[]);
    let mut zero = slurm(&cluster, "7", 0, &first).start();
    let waits = format!("waiting on port {PORT} for node 1");
    wait_until("it gathers", || zero.err().contains(&waits).then_some(()));
    lonely_node_is_refused(&cluster);
    second_job_is_refused(&cluster);
    assert!(zero.err().contains("belongs to job 8.0: rejected"), "{}", zero.err());
    // The first job is running.
    let mut one = slurm(&cluster, "7", 1, &first).start();
    zero.says("READY", 1);
    one.says("READY", 1);
    lonely_node_is_refused(&cluster);
    second_job_is_refused(&cluster);
    std::fs::write(cluster.folder().join("go"), "").expect("a file");
    for (rank, node) in [zero, one].into_iter().enumerate() {
        let ended = node.wait().expect_code(0);
        assert!(ended.out.contains(&format!("again {rank}")), "{}\n{}", ended.out, ended.err);
    }
    cluster.expect_nothing_left();
}

#[test]
fn program_at_master_port_ends_all_with_87() {
    let Some(cluster) = Cluster::new(2) else { return };
    let mut server = Command::new("ip");
    server.args(["netns", "exec", &cluster.namespace(0), "python3", "-m", "http.server"]);
    server.arg(PORT.to_string()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = server.spawn().expect("a server");
    let listens = || {
        let mut dial = Command::new("ip");
        let words = format!("exec 3<>/dev/tcp/10.99.0.1/{PORT}");
        dial.args(["netns", "exec", &cluster.namespace(1), "bash", "-c", &words]);
        let done = dial.stderr(Stdio::null()).status().expect("bash runs");
        done.success().then_some(())
    };
    wait_until("it listens", listens);
    second_job_is_refused(&cluster);
    server.kill().expect("killed");
    server.wait().expect("it ends");
}

#[test]
fn replaced_node_waits_for_the_old_stores_end() {
    let Some(cluster) = Cluster::new(2) else { return };
    let args = with_store(&["--max-restarts", "2"]);
    let go = cluster.folder().join("go");
    let start = |rank| cluster.launcher(rank, rank, 2, &args).env("GO", &go).start();
    let (mut zero, mut one) = (start(0), start(1));
    zero.says("READY", 1);
    one.says("READY", 1);
    std::fs::write(&go, "").expect("a file");
    std::fs::remove_file(&go).expect("it was there");
    cluster.kill_all(1);
    drop(one);
    let one = start(1);
    let words = "is the store of this job's running attempt: this node joins the next one";
    wait_until("it sees the store", || one.err().contains(words).then_some(()));
    std::fs::write(&go, "").expect("a file");
    for (rank, node) in [zero, one].into_iter().enumerate() {
        let ended = node.wait().expect_code(0);
        assert!(ended.out.contains(&format!("again {rank}")), "{}\n{}", ended.out, ended.err);
        let rank = u32::try_from(rank).expect("small");
        assert!(ended.node_folder(rank).join("attempt-1").is_dir(), "{}", ended.err);
    }
    cluster.expect_nothing_left();
}

/// Swapped ranks are reported at once, and a wrong port after 3 s.
#[test]
fn misconfigured_master_address_is_reported() {
    let Some(cluster) = Cluster::new(2) else { return };
    let args = args(&["--wait-timeout", "4s"], &["true"]);
    let zero = cluster.launcher(1, 0, 2, &args).start();
    let one = cluster.launcher(0, 1, 2, &args).start();
    let (zero, one) = (zero.wait().expect_code(88), one.wait().expect_code(86));
    let words = "this is node 0, but the master node-0 (10.99.0.1) is not an address of this host (10.99.0.2)";
    assert!(zero.err.contains(words), "{}", zero.err);
    let words = "node 1 looks for node 0 at node-0 (10.99.0.1), which is this node itself";
    assert!(one.err.contains(words), "{}", one.err);
    let words =
        format!("1 of 2 nodes have arrived; waiting on port {PORT} for node 1 (0:03 of 0:04)");
    assert!(zero.err.contains(&words), "{}", zero.err);

    let zero = cluster.launcher(0, 0, 2, &args).start();
    let wrong = (PORT + 1).to_string();
    let one = cluster.launcher(1, 1, 2, &args).env("MASTER_PORT", &wrong).start();
    let (zero, one) = (zero.wait().expect_code(88), one.wait().expect_code(86));
    let refused = "refuses connections: the host is up, but nothing listens on that port";
    let line =
        format!("waiting for node 0 at node-0:{wrong} (0:03 of 0:04): 10.99.0.1:{wrong} {refused}");
    let verdict = format!(
        "refused: node 0 at node-0:{wrong} was not reached in 4s: 10.99.0.1:{wrong} {refused}"
    );
    for words in [&line, &verdict] {
        assert!(one.err.contains(words), "{words}\n{}", one.err);
    }
    // No variable of a platform counts these nodes.
    let hint = "look at that node's own log";
    assert!(zero.err.contains(hint) || zero.err.contains("WORLD_SIZE"), "{}", zero.err);
}
