//! `check` of the real executable: its output, its exit code, and that no hanging source delays
//! it.

use std::path::Path;
use std::process::Command;

use harness::fake_nvml::FakeNvml;
use harness::report::{Checked, check_of};
use harness::{Ended, Launcher, free_port, python, run_args};
use serde_json::Value;

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).expect("a report")
}

fn check<'a>(args: impl IntoIterator<Item = &'a str>) -> Launcher {
    Launcher::new(["check", "--lang", "en"].into_iter().chain(args)).with_torch()
}

#[test]
fn report_is_table_file_and_exit_code() {
    // The GPUs of this machine are irrelevant here.
    let ended = check(["--report", "report.json", "--device", "cpu", "--probe", "off"])
        .env("HF_TOKEN", "hunter2")
        .env("NCCL_TIMEOUT", "1")
        .run()
        .expect_code(0);
    assert!(
        ended.out.contains("! env.nccl") && ended.out.contains("NCCL_TIMEOUT=1"),
        "{}",
        ended.out
    );
    assert!(!ended.out.contains('\x1b'), "no colour off a terminal");
    let report = std::fs::read_to_string(ended.folder().join("report.json")).expect("a file");
    assert!(!report.contains("hunter2"));
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(check_of(&report, "gpu.fault").severity, "ok");
    assert!(report["facts"]["hostname"].is_string() && report["plan"]["argv"].is_array());
    let zh = Launcher::new(["check", "--lang", "zh", "--device", "cpu", "--probe", "off"]);
    let zh = zh.with_torch().run().expect_code(0);
    assert!(zh.out.contains("项正常"), "{}", zh.out);
}

#[test]
fn first_failing_check_sets_check_and_run_codes() {
    // No check fails by itself here, and the clock or the files of this machine may be in order.
    let gone = ["--severity", "python.torch=fail", "--python", "/bin/sh"];
    let ended = check(gone.into_iter().chain(["--format", "json"])).run().expect_code(67);
    assert_eq!(check_of(&json(&ended), "python.torch").severity, "fail");
    let mut args = vec!["run", "--stale", "off"];
    args.extend(gone);
    args.extend(["--", "x.py"]);
    Launcher::new(args).run().expect_code(67).expect_id("python.torch");
}

#[test]
fn refused_plan_is_verdict_without_a_failing_check() {
    let ended = check(["--format", "json", "--layout", "ulysses-world", "--heads", "40"])
        .env("WORLD_SIZE", "3")
        .env("RANK", "0")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("NCCL_TIMEOUT", "1")
        .run()
        .expect_code(66);
    let report = json(&ended);
    assert_eq!(report["plan"]["refused"]["id"], "layout.unsolvable");
    assert_eq!(check_of(&report, "env.nccl").severity, "warn");
}

#[test]
fn node_0_needs_its_port_worker_tries_master() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let port = listener.local_addr().expect("address").port();
    let master =
        check(["--format", "json", "--device", "cpu", "--muster", "off"]).node(0, 2, port).run();
    let Checked { severity, text, .. } = check_of(&json(&master), "port.free");
    assert_eq!(severity, "fail");
    assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
    master.expect_code(87);
    let worker =
        check(["--format", "json", "--device", "cpu", "--muster", "off"]).node(1, 2, port).run();
    assert_eq!(check_of(&json(&worker), "master.reach").severity, "ok");
    let worker = check(["--format", "json", "--device", "cpu", "--muster", "off"])
        .node(1, 2, free_port())
        .run();
    let Checked { severity, text, .. } = check_of(&json(&worker.expect_code(0)), "master.reach");
    assert_eq!(severity, "warn");
    assert!(text.contains("refused"), "{text}");
}

#[test]
fn hung_file_costs_only_its_deadline() {
    let launcher = check(["--format", "json", "--device", "cpu", "--deadline", "1s"]);
    // A pipe without a writer acts like a file on a server that is gone.
    let pipe = launcher.folder().join("nccl.conf");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    let ended = launcher.env("NCCL_CONF_FILE", &pipe).env("NCCL_TIMEOUT", "1").run();
    let ended = ended.expect_code(0);
    let report = json(&ended);
    let Checked { severity, text, .. } = check_of(&report, "storage.alive");
    assert_eq!(severity, "warn");
    assert!(text.contains("NCCL's configuration files"), "{text}");
    assert_eq!(
        check_of(&report, "env.nccl").severity,
        "warn",
        "what the environment says is known"
    );
    ended.expect_nothing_left();
}

#[test]
fn hung_driver_is_a_fault_after_the_deadline() {
    let fake = FakeNvml::new(&[("MODE", "hang")]);
    let ended = check(["--format", "json", "--deadline", "1s"])
        .env("RANKLAUNCH_NVML_LIBRARY", fake.library())
        .run()
        .expect_code(81);
    let Checked { severity, text, .. } = check_of(&json(&ended), "gpu.fault");
    assert_eq!(severity, "fail");
    assert!(text.contains("hangs"), "{text}");
    ended.expect_nothing_left();
}

#[test]
fn gpus_faults_and_fabric_are_judged() {
    for (settings, code, id, words) in [
        ([("GPUS", "8"), ("MODE", "ok")], 0, "gpu.count", "8 GPUs"),
        ([("MODE", "lost"), ("BAD", "3")], 81, "gpu.fault", "GPU 3"),
        ([("MODE", "fabric"), ("BAD", "5")], 82, "gpu.fabric", "GPU 5"),
        ([("MODE", "mismatch"), ("GPUS", "8")], 81, "gpu.fault", "570.86.15"),
    ] {
        let fake = FakeNvml::new(&settings);
        let ended =
            check(["--format", "json", "--python"]).env("RANKLAUNCH_NVML_LIBRARY", fake.library());
        let ended = ended.args([python()]).run().expect_code(code);
        let Checked { severity, text, .. } = check_of(&json(&ended), id);
        assert_eq!(severity == "fail", code != 0, "{id}: {text}");
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn torch_option_lets_ranks_sum_over_gloo() {
    let ended =
        check(["--torch", "--format", "json", "--device", "cpu", "--muster", "off", "--python"])
            .args([python()])
            // Only this node of a job of several is tried.
            .node(1, 2, free_port())
            .run()
            .expect_code(0);
    let Checked { severity, text, .. } = check_of(&json(&ended), "torch.allreduce");
    assert_eq!(severity, "ok", "{text}");
    assert!(text.starts_with("2 ranks, gloo: "), "{text}");
    ended.expect_nothing_left();

    let ended = check(["--torch", "--format", "json", "--device", "cpu", "--python", "/bin/sh"])
        .run()
        .expect_code(67);
    let Checked { severity, text, .. } = check_of(&json(&ended), "torch.allreduce");
    assert_eq!(severity, "fail", "{text}");
}

#[test]
fn capture_refuses_an_existing_folder() {
    let ended = check(["--capture", "copy", "--device", "cpu"]).run().expect_code(0);
    let copy = ended.folder().join("copy");
    assert!(copy.join("check.json").exists());
    let again = check(["--capture"]).args([copy.as_os_str()]).run().expect_code(64);
    again.expect_id("capture.folder");
}

#[test]
fn ranks_inherit_the_hard_limit_of_open_files() {
    let script = Path::new("limits.sh");
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -Sn 256; exec \"$0\" \"$@\""]).arg(harness::executable());
    let mut args = run_args("direct", 1);
    args.extend(["--console-prefix".into(), "none".into(), "--".into()]);
    args.extend(["sh".into(), script.into()]);
    let launcher = Launcher::of(shell, args);
    std::fs::write(launcher.folder().join(script), "echo files $(ulimit -Sn) $(ulimit -Hn)\n")
        .expect("a script");
    let ended = launcher.run().expect_code(0);
    let words: Vec<&str> = ended.out.split_whitespace().collect();
    let [_, soft, hard] = words.as_slice() else { panic!("{}", ended.out) };
    let hard = hard.parse().unwrap_or(u64::MAX);
    assert_eq!(soft.parse(), Ok(hard.min(1 << 20)), "{}", ended.out);
}
