//! `check --capture DIR` and `--host-root DIR`: another machine reads the same node, without its
//! secrets.

use std::path::Path;
use std::process::Command;

use harness::fake_nvml::FakeNvml;
use harness::{Ended, Launcher, executable, skipped};
use serde_json::Value;

/// A secret that must not occur in a capture.
const SECRET: &str = "hunter2hunter2hunter2";

/// A separate network with odd interfaces, a route in a separate table, a name that only this
/// /etc/hosts knows, and a separate /dev/shm with a file of a dead process.
const NODE: &str = "set -e
mount -t tmpfs -o size=96m shm /dev/shm
head -c 4096 /dev/zero > /dev/shm/nccl-dead
touch -d '1 hour ago' /dev/shm/nccl-dead
printf '127.0.0.1 localhost\\n10.50.0.1 job-master-0\\n' > hosts
mount --bind hosts /etc/hosts
ip link set lo up
ip link add odd@name type veth peer name v1 && ip link set v1 up && ip link set odd@name up
ip addr add 10.9.0.2/24 dev odd@name
ip -6 addr add fd00::2/64 dev odd@name nodad
ip link add br-4f1a type bridge && ip addr add 172.18.0.1/16 dev br-4f1a && ip link set br-4f1a up
ip tuntap add tun0 mode tun && ip addr add 10.8.0.2/24 dev tun0
ip route add default via 10.9.0.1 table 100
ip rule add to 10.50.0.0/16 table 100
mkdir -p env/bin env/conda-meta env/lib/python3.11/site-packages/torch
printf '#!/bin/sh\\n' > env/bin/python && chmod 755 env/bin/python
printf '{\"env_vars\": {\"WANDB_API_KEY\": \"%s\", \"PLAIN\": \"seen\"}}' \"$SECRET\" > env/conda-meta/state
printf \"__version__ = '2.6.0+cu124'\\ncuda: Optional[str] = '12.4'\\n\" > env/lib/python3.11/site-packages/torch/version.py
printf 'NCCL_DEBUG=WARN\\nNCCL_API_KEY=%s\\n' \"$SECRET\" > nccl.conf
ulimit -s unlimited
echo the namespace is ready >&2
";

/// The report of `check` in that node, and the folder with the capture.
fn captured(fake: &FakeNvml) -> Option<(Value, Ended)> {
    let mut command = Command::new("unshare");
    // The secret is also in the command line of an ancestor.
    let script = format!("{NODE}\n\"$@\"; code=$?; : --token {SECRET}; exit $code");
    command.args(["--net", "--mount", "sh", "-c", &script, "sh"]).arg(executable());
    let launcher = Launcher::of(command, ["check", "--format", "json", "--lang", "en"]);
    let folder = launcher.folder().to_owned();
    let python = folder.join("env/bin/python");
    let ended = launcher
        .args(["--capture", "copy", "--report", "report.json"])
        .args(job(&python))
        .env("RANKLAUNCH_NVML_LIBRARY", fake.library())
        .env("RANKLAUNCH_SECRET", SECRET)
        .env("SECRET", SECRET)
        .env("HF_TOKEN", SECRET)
        .env("https_proxy", format!("http://user:{SECRET}@proxy:3128"))
        .env("NCCL_CONF_FILE", folder.join("nccl.conf"))
        .env("NCCL_SOCKET_IFNAME", "eth0,odd@n")
        .run();
    if !ended.err.contains("the namespace is ready") {
        skipped(format_args!("no such node can be built here: {}", ended.err));
        return None;
    }
    let ended = ended.expect_code(0);
    Some((serde_json::from_str(&ended.out).expect("a report"), ended))
}

fn job(python: &Path) -> Vec<String> {
    let python = python.display().to_string();
    let words = ["--nnodes", "2", "--node-rank", "1", "--master-port", "29500"];
    let words = words.into_iter().chain(["--master-addr", "job-master-0", "--python", &python]);
    words.map(str::to_owned).collect()
}

#[test]
fn capture_replays_the_same_node_without_secrets() {
    let fake = FakeNvml::new(&[("GPUS", "4"), ("USED", "0,50000,0,0")]);
    let Some((live, ended)) = captured(&fake) else { return };
    let folder = ended.folder();
    let copy = folder.join("copy");
    for file in [copy.as_path(), &folder.join("report.json")] {
        let found = Command::new("grep").args(["-rlF", SECRET]).arg(file).output().expect("grep");
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    }

    // The captured node was as odd as intended.
    let facts = &live["facts"];
    assert_eq!(facts["network"]["master"]["interface"], "odd@name", "{facts:#}");
    assert_eq!(facts["state"]["leftovers"][0]["name"], "nccl-dead");
    assert_eq!(facts["gpus"]["gpus"].as_array().map(Vec::len), Some(4));
    assert_eq!(facts["limits"]["stack_unlimited"], true);
    assert_eq!(facts["python"]["activation"]["PLAIN"], "seen");

    let replay = Launcher::new(["check", "--format", "json", "--lang", "en", "--host-root"])
        .args([copy.as_os_str()])
        .args(job(&folder.join("env/bin/python")))
        .run()
        .expect_code(0);
    let replayed: Value = serde_json::from_str(&replay.out).expect("a report");
    for part in ["facts", "checks", "plan"] {
        same(&live[part], &replayed[part], part);
    }
}

/// Fails at the first place where two documents differ.
#[track_caller]
fn same(one: &Value, other: &Value, at: &str) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let names: std::collections::BTreeSet<_> = one.keys().chain(other.keys()).collect();
            let nothing = Value::Null;
            for name in names {
                let get = |of: &serde_json::Map<String, Value>| of.get(name).cloned();
                let (one, other) = (get(one), get(other));
                let of = |value: Option<Value>| value.unwrap_or_else(|| nothing.clone());
                same(&of(one), &of(other), &format!("{at}.{name}"));
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                same(one, other, &format!("{at}[{index}]"));
            }
        }
        _ => assert_eq!(one, other, "{at}"),
    }
}
