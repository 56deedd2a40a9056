//! The keys of the documents for programs: `plan`, `check` and `lint` with `--format json`.
//!
//! Scripts read these keys, so a renamed or missing key must appear in the diff of a snapshot.
//! Values are not compared. Names of variables and numbers of NUMA nodes are values.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

use harness::Launcher;
use harness::node::{Node, PYTHON};
use harness::snapshot::compare;
use serde_json::Value;

/// A node of two in a job of four tasks, with GPUs, an RDMA device, NUMA and a script.
fn node() -> Node {
    let port = "/sys/class/infiniband/mlx5_0/ports/1";
    let route = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n\
                 eth0 00000000 0100000A 0003 0 0 100 00000000 0 0 0\n";
    let node = Node::with_gpus(2)
        .file("/sys/devices/pci0000:00/0000:00:01.0/numa_node", "0\n")
        .file("/sys/class/infiniband/mlx5_0/hca_type", "MT4129\n")
        .file(&format!("{port}/state"), "4: ACTIVE\n")
        .file(&format!("{port}/rate"), "400 Gb/sec (4X)\n")
        .file(&format!("{port}/link_layer"), "InfiniBand\n")
        .file("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0\n")
        .file("/dev/infiniband/uverbs0", "")
        .file("/sys/devices/system/node/node0/cpulist", "0-1\n")
        .file("/proc/net/route", &route.replace(' ', "\t"))
        .file("/work/train.py", "print(1)\n")
        .file("/root/.cache/huggingface/accelerate/default_config.yaml", "num_processes: 2\n")
        .platform("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=4")
        .platform("SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_NODEID=0")
        .platform("SLURM_PROCID=0 SLURM_LOCALID=0 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500")
        .platform("NCCL_DEBUG=INFO OMP_NUM_THREADS=2 HOME=/root");
    let device = node.inside("/sys/class/infiniband/mlx5_0/device");
    symlink("../../../devices/pci0000:00/0000:00:01.0", device).expect("a link");
    node
}

/// The output of `plan` or `check`, as JSON.
fn said(node: &Node, command: &str, more: &[&str]) -> Value {
    let args = ["--format", "json", "--lang", "en", "--python", PYTHON];
    let script = ["--", "/work/train.py"];
    let ended = node.launcher(command, &[&args[..], more, &script].concat()).run();
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.out))
}

fn linted(manifest: &str) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("job.yaml");
    std::fs::write(&file, manifest).expect("written");
    let ended = Launcher::new(["lint", "--format", "json", "--lang", "en"]).args([file]).run();
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.out))
}

/// The keys of all documents with their paths, one per line: `gpus[].index`.
fn keys<'a>(documents: impl IntoIterator<Item = &'a Value>) -> String {
    fn walk(value: &Value, at: &str, keys: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                for (key, field) in fields {
                    let is_value = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit();
                    let key = if key.starts_with(is_value) { "*" } else { key };
                    let at = if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") };
                    keys.insert(at.clone());
                    walk(field, &at, keys);
                }
            }
            Value::Array(all) => all.iter().for_each(|one| walk(one, &format!("{at}[]"), keys)),
            _ => {}
        }
    }
    let mut all = BTreeSet::new();
    documents.into_iter().for_each(|document| walk(document, "", &mut all));
    all.into_iter().map(|key| key + "\n").collect()
}

#[test]
fn json_keys_match_their_snapshot() {
    let node = node();
    let too_many = ["--nproc-per-node", "9"];
    let direct = ["--engine", "direct"];
    for command in ["plan", "check"] {
        let documents = [&[][..], &too_many, &direct].map(|more| said(&node, command, more));
        compare(&format!("keys.{command}"), &keys(&documents));
    }
    let broken = "kind: Job\nspec: {template: {spec: {containers: [{command: [torchrun, \
                  --nproc-per-node=5, a.py], resources: {limits: {nvidia.com/gpu: 4}}}]}}}\n";
    let documents = [linted(broken), linted("a: [\n")];
    compare("keys.lint", &keys(&documents));
}

/// The control: each key of a document counts.
#[test]
fn renamed_key_is_found() {
    let document = said(&node(), "check", &["--engine", "direct"]);
    let text = document.to_string();
    let listed = keys([&document]);
    let mut count = 0;
    for key in listed.lines().filter_map(|way| way.rsplit('.').next()).filter(|key| *key != "*") {
        let renamed = text.replace(&format!("\"{key}\":"), &format!("\"{key}_\":"));
        let renamed: Value = serde_json::from_str(&renamed).expect("JSON");
        assert_ne!(keys([&renamed]), listed, "{key}");
        count += 1;
    }
    assert!(count > 40, "{count}");
}
