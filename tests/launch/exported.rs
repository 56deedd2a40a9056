//! Interfaces of a running job for other systems: metrics for a real Prometheus, and probes.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::{Launcher, Running, free_port, run_args, skipped, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

const SOON: Duration = Duration::from_secs(20);

/// Code and body of a page; `None` if nothing listens.
pub(super) fn page(port: u16, path: &str) -> Option<(u32, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(SOON)).expect("a limit");
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let code = head.split(' ').nth(1)?.parse().ok()?;
    Some((code, body.to_owned()))
}

/// A job of two ranks that write and wait.
fn job(options: &[&str]) -> Running {
    let mut running = Launcher::new(run_args("direct", 2))
        .args(options)
        .args([
            "--",
            "sh",
            "-c",
            "echo step $RANK; echo step 1/9; sleep 0.3; echo step 2/9; echo READY; sleep 600",
        ])
        .start();
    running.says("READY", 2);
    running
}

fn end(running: Running) {
    running.signal(Signal::SIGTERM);
    running.wait().expect_code(143).expect_nothing_left();
}

#[test]
fn a_running_job_serves_its_state() {
    let port = free_port();
    let running = job(&["--http", &port.to_string()]);
    let ready =
        wait_until("all ranks run", || page(port, "/readyz").filter(|(code, _)| *code == 200));
    assert_eq!(ready.1, "running\n");
    assert_eq!(page(port, "/healthz"), Some((200, "ok\n".to_owned())));
    let status = wait_until("a sample", || {
        let (_, body) = page(port, "/status")?;
        let status: Value = serde_json::from_str(&body).expect("JSON");
        let is_whole = status["ranks"][1]["memory"].is_u64() && status["goodput"].is_number();
        is_whole.then_some(status)
    });
    assert_eq!(status["ranks"][1]["last_line"], "READY", "{status:#}");
    assert_eq!(
        (&status["run"]["world_size"], &status["run"]["engine"]),
        (&2.into(), &"direct".into())
    );
    let (_, metrics) = page(port, "/metrics").expect("metrics");
    for sample in [
        "ranklaunch_rank_up{rank=\"1\",local_rank=\"1\"} 1\n",
        "ranklaunch_ranks{state=\"running\"} 2\n",
        "ranklaunch_phase{ranklaunch_phase=\"running\"} 1\n",
    ] {
        assert!(metrics.contains(sample), "{sample} is not in\n{metrics}");
    }
    // No part of the job waits for a client that sends nothing.
    let _silent: Vec<TcpStream> =
        (0..64).filter_map(|_| TcpStream::connect(("127.0.0.1", port)).ok()).collect();
    end(running);
    assert_eq!(page(port, "/healthz"), None, "it ends with the job");
}

#[test]
fn occupied_port_costs_only_the_metrics() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let args = [run_args("direct", 1), ["--http", &port, "--", "true"].map(Into::into).into()];
    let ended = Launcher::new(args.concat()).run().expect_code(0);
    assert!(
        ended.err.contains(&format!("127.0.0.1:{port} (--http) cannot be bound")),
        "{}",
        ended.err
    );
}

#[test]
fn without_the_option_nothing_listens() {
    let running = job(&[]);
    let own: BTreeSet<u32> =
        running.processes().iter().filter_map(|one| u32::try_from(one.pid).ok()).collect();
    let inodes: BTreeSet<String> = own
        .iter()
        .flat_map(|pid| {
            std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten()
        })
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter_map(|link| {
            let link = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(link.to_owned())
        })
        .collect();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = std::fs::read_to_string(table).unwrap_or_default();
        let listens =
            text.lines().skip(1).filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        let mut inode = listens.filter_map(|line| line.split_whitespace().nth(9));
        assert!(!inode.any(|inode| inodes.contains(inode)), "a socket of the job listens");
    }
    end(running);
}

/// A Prometheus server, ended on drop.
struct Prometheus {
    child: Child,
    port: u16,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    fn start(folder: &Path, target: u16) -> Prometheus {
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 1s, scrape_timeout: 1s }}\n\
             scrape_configs:\n- job_name: train\n  static_configs: [{{ targets: ['localhost:{target}'] }}]\n"
        );
        std::fs::write(&config, text).expect("a file");
        let port = free_port();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus starts");
        Prometheus { child, port }
    }

    /// The answer to a query, once there is one.
    fn query(&self, query: &str) -> Option<Value> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let (_, body) = page(self.port, &format!("/api/v1/query?query={encoded}"))?;
        serde_json::from_str(&body).ok()
    }

    /// The value of the first sample of a query.
    fn value(&self, query: &str) -> Option<f64> {
        let answer = self.query(query)?;
        answer["data"]["result"][0]["value"][1].as_str()?.parse().ok()
    }
}

#[test]
fn prometheus_reads_metrics_and_every_dashboard_query() {
    if Command::new("prometheus").arg("--version").output().is_err() {
        return skipped("prometheus is not installed");
    }
    let port = free_port();
    let running = job(&["--http", &port.to_string()]);
    let folder = tempfile::tempdir().expect("a folder");
    let prometheus = Prometheus::start(folder.path(), port);
    let reaches = |query: &str, value: f64| {
        wait_until(query, || prometheus.value(query).filter(|found| (found - value).abs() < 1e-9))
    };
    reaches("up{job=\"train\"}", 1.0);
    reaches("ranklaunch_ranks{state=\"running\"}", 2.0);
    reaches("sum(ranklaunch_phase == 1)", 1.0);
    reaches("count(ranklaunch_rank_resident_memory_bytes > 0)", 2.0);
    // Each panel of the dashboard has a query that Prometheus understands, over metrics that exist.
    let dashboard = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/grafana/ranklaunch.json");
    let dashboard: Value =
        serde_json::from_str(&std::fs::read_to_string(dashboard).expect("a file")).expect("JSON");
    let run = prometheus.query("ranklaunch_run_info").expect("an answer");
    let run = run["data"]["result"][0]["metric"]["run_id"].as_str().expect("a run").to_owned();
    let of_gpus = |expr: &str| expr.contains("ranklaunch_gpu_");
    let mut asked = 0;
    for target in dashboard["panels"]
        .as_array()
        .expect("panels")
        .iter()
        .flat_map(|panel| panel["targets"].as_array().cloned().unwrap_or_default())
    {
        let expr = target["expr"].as_str().expect("a query");
        let query = expr.replace("$run", &run).replace("$__rate_interval", "10s");
        // This machine has no GPU, and the job has no finding yet.
        let may_be_empty = of_gpus(expr) || expr.contains("_findings_") || expr.contains("network");
        wait_until(&query, || {
            let answer = prometheus.query(&query)?;
            assert_eq!(answer["status"], "success", "{query}: {answer}");
            let some = answer["data"]["result"].as_array().is_some_and(|found| !found.is_empty());
            (some || may_be_empty).then_some(())
        });
        asked += 1;
    }
    assert!(asked >= 18, "{asked} queries");
    // The linter of Prometheus checks the text format.
    let (_, metrics) = page(port, "/metrics").expect("metrics");
    let mut lint = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool");
    lint.stdin.take().expect("a pipe").write_all(metrics.as_bytes()).expect("written");
    let lint = lint.wait_with_output().expect("it ends");
    let said = [lint.stdout, lint.stderr].concat();
    assert!(lint.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
    end(running);
    // The control: the loss of the job is noticed.
    reaches("up{job=\"train\"}", 0.0);
}
