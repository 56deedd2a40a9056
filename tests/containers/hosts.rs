//! Bare Docker hosts: one command replaces the steps of the guide for two machines (`docker run
//! --net=host … tail -f /dev/null`, `pkill -f generate.py` and two torchrun commands), and two jobs
//! run per host. A host is a container here; containers with `--net=host` and `--pid=host` join its
//! namespaces.

use std::path::Path;

use harness::docker::{self, Owned, Setup, docker, tell};
use harness::fake_nvml::FakeNvml;
use harness::{Running, wait_until};

use crate::direct;

/// Lives until it is removed, and reaps nothing, as in the guide.
const IDLE: &[&str] = &["tail", "-f", "/dev/null"];

/// Prints READY. Rank 0 listens on the master port until the other ranks have connected; they wait
/// for a file. Without a rank, the script only waits.
const GENERATE: &str = r#"
import os, runpy, sys, time
print("READY", " ".join(sys.argv[1:]), flush=True)
rank = os.environ.get("RANK")
while rank is None:
    time.sleep(1)
while rank != "0" and not os.path.exists("/tmp/go"):
    time.sleep(0.02)
runpy.run_path("/tests/meet.py")
"#;

struct Site {
    image: Owned,
    network: Owned,
    work: tempfile::TempDir,
    nvml: FakeNvml,
}

impl Site {
    fn new() -> Site {
        let work = tempfile::tempdir().expect("a folder");
        std::fs::write(work.path().join("generate.py"), GENERATE).expect("written");
        Site {
            image: docker::host_like(),
            network: docker::network(),
            work,
            nvml: FakeNvml::new(&[("GPUS", "8")]),
        }
    }

    /// The container of the guide's first chapter, or one that joins a host's namespaces.
    fn container(&self) -> Setup {
        let library = self.nvml.library();
        let folder = library.parent().expect("a folder");
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        Setup::of(&self.image)
            .programs()
            .mount(&programs, "/tests")
            .mount(self.work.path(), "/workspace")
            .mount(folder, &folder.display().to_string())
            .env("RANKLAUNCH_NVML_LIBRARY", &library.display().to_string())
            .options(&["--shm-size", "8g", "-w", "/workspace"])
    }

    /// A host, and the address by which others reach it.
    fn host(&self) -> (Running, String) {
        let setup =
            self.container().options(&["--network", &self.network.name, "--entrypoint", "tail"]);
        let host = setup.start(&IDLE[1..]);
        let address = wait_until("an address", || {
            let all = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}";
            let said = docker(&["inspect", "-f", all, host.container()]);
            let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
            (!said.is_empty()).then_some(said)
        });
        (host, address)
    }
}

/// Node `rank` of two.
fn node<'a>(nproc: &'a str, rank: &'a str, master: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let two = ["--nnodes", "2", "--node-rank", rank, "--master-addr", master];
    direct(nproc, &[&two, more].concat())
}

fn inside(container: &Running, script: &str) -> String {
    docker::shell(container.container(), script)
}

fn read(container: &Running, file: &str) -> String {
    let said = docker(&["exec", container.container(), "cat", file]);
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// Chapters 2 and 3, with eight GPUs on each machine: 10 processes, since 40 heads
/// cannot be shared by 16.
#[test]
fn one_line_per_host_replaces_the_manual_steps() {
    if docker::missing().is_some() {
        return;
    }
    let site = Site::new();
    let hosts = [site.host(), site.host()];
    let master = hosts[0].1.clone();
    for (host, _) in &hosts {
        // The host has leftovers of an earlier run, and an editor that only has the file open.
        inside(
            host,
            "TORCHELASTIC_RUN_ID=none LOCAL_RANK=0 python3 /workspace/generate.py & echo $! >/tmp/stale; (sleep 300; : generate.py) & echo $! >/tmp/editor; sleep 0",
        );
        wait_until("the leftover", || {
            let line = inside(host, "tr '\\0' ' ' </proc/$(cat /tmp/stale)/cmdline");
            line.contains("generate.py").then_some(())
        });
    }
    for (rank, (host, _)) in hosts.iter().enumerate() {
        let line = format!(
            "nohup {} --profile wan22 --engine direct --nnodes 2 --node-rank {rank} \
             --master-addr {master} >/tmp/log 2>&1; echo ended with $? >/tmp/code",
            docker::RANKLAUNCH
        );
        tell(&["exec", "-d", host.container(), "sh", "-c", &line]);
    }
    for (host, _) in &hosts {
        wait_until("five ranks", || {
            let log = read(host, "/tmp/log");
            assert!(!log.contains("exit code"), "{log}");
            (log.matches("] READY ").count() == 5).then_some(())
        });
        assert_eq!(inside(host, "kill -0 $(cat /tmp/editor) && echo lives"), "lives");
        let log = read(host, "/tmp/log");
        assert!(log.contains("--ulysses_size 10"), "{log}");
        // tail does not reap, so the process stays as a zombie.
        let state = inside(host, "grep State: /proc/$(cat /tmp/stale)/status || echo gone");
        assert!(state.contains("gone") || state.contains('Z'), "{state}\n{log}");
    }
    for (host, _) in &hosts {
        inside(host, "touch /tmp/go");
    }
    for (rank, (host, _)) in hosts.iter().enumerate() {
        let code =
            wait_until("the end", || Some(read(host, "/tmp/code")).filter(|code| !code.is_empty()));
        let log = read(host, "/tmp/log");
        assert_eq!(code.trim(), "ended with 0", "{log}");
        let last = format!("rank {} of 10 met", rank * 5 + 4);
        assert!(log.contains(&last), "{log}");
    }
}

/// A job of two nodes, each a container that joins the network and the processes of
/// its host, as `--net=host --pid=host` does.
fn job(site: &Site, hosts: &[(Running, String); 2], port: &str) -> [Running; 2] {
    [0, 1].map(|rank: usize| {
        let host = format!("container:{}", hosts[rank].0.container());
        site.container()
            .options(&["--network", &host, "--pid", &host])
            .env("MASTER_PORT", port)
            .start(&node("1", &rank.to_string(), &hosts[0].1, &["--", "generate.py", port]))
    })
}

#[test]
fn two_jobs_on_same_hosts_do_not_interfere() {
    if docker::missing().is_some() {
        return;
    }
    let site = Site::new();
    let hosts = [site.host(), site.host()];
    let mut first = job(&site, &hosts, "29500");
    for node in &mut first {
        node.says("READY 29500", 1);
    }
    // A second job runs the same script later, and kills stale processes.
    let mut second = job(&site, &hosts, "29600");
    for node in &mut second {
        node.says("READY 29600", 1);
    }
    // A third job uses the port of the first, which the first job's rank 0 holds by now.
    let listening = |port: u16| {
        let line = format!(":{port:04X} 00000000:0000 0A");
        move |node: &Running| read(node, "/proc/net/tcp").contains(&line)
    };
    first[0].waits("its port", listening(29500));
    let host = format!("container:{}", hosts[0].0.container());
    let third = site.container().options(&["--network", &host, "--pid", &host]).run(&node(
        "1",
        "0",
        &hosts[0].1,
        &["--master-port", "29500", "--", "generate.py"],
    ));
    third.expect_code(87).expect_words(&["29500", "(port."]);
    for node in second.iter().chain(&first) {
        tell(&["exec", node.container(), "touch", "/tmp/go"]);
    }
    for node in second.into_iter().chain(first) {
        let over = node.wait().expect_code(0);
        assert!(over.out.contains("of 2 met"), "{}", over.out);
        assert!(!over.err.contains("ended with signal"), "{}", over.err);
    }
}

#[test]
fn two_nodes_run_on_the_host_network() {
    if docker::missing().is_some() {
        return;
    }
    let (image, port) = (docker::host_like(), harness::free_port().to_string());
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
    let nodes = ["0", "1"].map(|rank| {
        Setup::of(&image)
            .programs()
            .mount(&programs, "/tests")
            .options(&["--network", "host"])
            .start(&node("2", rank, "127.0.0.1", &["--master-port", &port, "--", "/tests/meet.py"]))
    });
    for (node, rank) in nodes.map(Running::wait).into_iter().zip([1, 3]) {
        let node = node.expect_code(0);
        assert!(node.out.contains(&format!("rank {rank} of 4 met")), "{}", node.out);
    }
}
