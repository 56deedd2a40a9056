//! Code that the launcher injects into the ranks' Python, with real torch.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use harness::fake_nvml::FakeNvml;
use harness::{Ended, Launcher, executable, program, python, root, run_args, skipped, wait_until};
use serde_json::{Value, json};

fn job(engine: &str, more: &[&str], command: Vec<OsString>) -> Launcher {
    let mut args = run_args(engine, 2);
    args.extend(more.iter().map(Into::into));
    args.push("--".into());
    args.extend(command);
    let launcher = Launcher::new(args).with_torch();
    let users = launcher.folder().join("users");
    std::fs::create_dir(&users).expect("a folder");
    let file = users.join("sitecustomize.py");
    std::fs::write(file, "import sys\nsys.users_sitecustomize = True\n").expect("written");
    launcher.env("PYTHONPATH", users)
}

fn controlled() -> OsString {
    program("controlled.py").into_os_string()
}

/// The report of each rank about itself.
fn said(ended: &Ended) -> BTreeMap<u64, Value> {
    let of = |line: &str| {
        let (_, text) = line.split_once("{\"rank\"")?;
        let said: Value = serde_json::from_str(&format!("{{\"rank\"{text}")).expect("JSON");
        Some((said["rank"].as_u64()?, said))
    };
    let said: BTreeMap<u64, Value> = ended.out.lines().filter_map(of).collect();
    assert_eq!(said.len(), 2, "{}\n{}", ended.out, ended.err);
    said
}

/// Expects a socket in each rank, and no trace of the injection in its Python.
#[track_caller]
fn expect_controlled(what: &str, ended: &Ended) {
    for (rank, said) in said(ended) {
        assert_eq!(said["sockets"], json!([format!("{rank}-PID")]), "{what} {said}");
        assert_eq!(said["folder_mode"], json!(["0o700"]), "{what} {said}");
        assert_eq!(said["pong"], json!(["pong"]), "{what} {said}");
        assert_eq!(said["stacks"], json!(["PID.stacks"]), "{what} {said}");
        expect_nothing_of_ours(what, &said);
        if rank == 0 {
            assert_eq!(said["child"], json!(["False", 0]), "{what} {said}");
            assert_eq!(said["spawned"], json!([false, 0]), "{what} {said}");
            assert_eq!(said["after_the_fork"], 1, "{what} {said}");
        }
    }
    assert!(!ended.err.contains("WorkerServer"), "{what}\n{}", ended.err);
}

#[track_caller]
fn expect_nothing_of_ours(what: &str, said: &Value) {
    assert_eq!(said["users_sitecustomize"], true, "{what} {said}");
    assert_eq!(said["path"], json!([]), "{what} {said}");
    let variables = said["variables"].to_string();
    for ours in ["CONTROL", "INJECTED"] {
        assert!(!variables.contains(ours), "{what} {variables}");
    }
}

#[track_caller]
fn expect_untouched(what: &str, ended: &Ended) {
    for (_, said) in said(ended) {
        let found = (&said["sockets"], &said["pong"], &said["stacks"]);
        assert_eq!(found, (&json!([]), &json!([]), &json!([])), "{what} {said}");
    }
}

#[test]
fn torch_worker_server_answers_in_every_rank() {
    for engine in ["direct", "torchrun", "accelerate"] {
        let ended = job(engine, &[], vec![controlled()]).run();
        let ended = ended.expect_code(0).expect_nothing_left();
        expect_controlled(engine, &ended);
        for (_, said) in said(&ended) {
            // The count includes three all-reduces, besides torch's own calls at the start.
            assert!(said["enqueued"][0].as_u64() >= Some(3), "{engine} {said}");
        }
    }
}

#[test]
fn users_launcher_is_skipped_its_ranks_are_injected() {
    for launcher in [
        ["torch.distributed.run", "--nproc-per-node=2", "--standalone"],
        ["accelerate.commands.launch", "--num_processes=2", "--multi_gpu"],
    ] {
        let mut command = vec![python().into_os_string(), "-m".into()];
        command.extend(launcher.iter().map(OsString::from));
        command.push(controlled());
        let job = job("command", &[], command).env("ACCELERATE_USE_CPU", "true");
        let ended = job.run().expect_code(0).expect_nothing_left();
        expect_controlled(launcher[0], &ended);
    }
}

#[test]
fn inject_off_leaves_the_rank_untouched() {
    let ended = job("direct", &["--inject", "off"], vec![controlled()]).run();
    let ended = ended.expect_code(0).expect_nothing_left();
    expect_untouched("--inject off", &ended);
    for (_, said) in said(&ended) {
        expect_nothing_of_ours("--inject off", &said);
    }
}

#[test]
fn isolated_python_runs_untouched() {
    for flag in ["-I", "-E"] {
        let command = vec![python().into_os_string(), flag.into(), controlled()];
        let ended = job("direct", &[], command).run().expect_code(0).expect_nothing_left();
        expect_untouched(flag, &ended);
    }
    let alone = "import sys; sys.exit('sitecustomize' in sys.modules)";
    let command = [python().into_os_string(), "-S".into(), "-c".into(), alone.into()];
    job("direct", &[], command.to_vec()).run().expect_code(0).expect_nothing_left();
}

/// A virtual environment of the Python with torch. It has its own `sitecustomize`, as distributions put
/// one into theirs.
fn environment(folder: &Path) -> PathBuf {
    let made = Command::new(python()).args(["-m", "venv", "--without-pip"]).arg(folder).status();
    assert!(made.expect("venv runs").success());
    let packages = |python: &Path| {
        let print = "import site; print(site.getsitepackages()[0])";
        let output = Command::new(python).args(["-c", print]).output().expect("it runs");
        PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim())
    };
    let inside = folder.join("bin/python");
    let own = packages(&inside);
    let shared = packages(&python()).display().to_string();
    std::fs::write(own.join("shared.pth"), shared).expect("written");
    std::fs::write(own.join("sitecustomize.py"), "import sys\nsys.users_sitecustomize = True\n")
        .expect("written");
    inside
}

#[test]
fn sitecustomize_of_the_environment_still_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let inside = environment(folder.path()).into_os_string();
    let mut args = run_args("direct", 2);
    args.extend(["--".into(), inside, controlled()]);
    let ended = Launcher::new(args).with_torch().run().expect_code(0).expect_nothing_left();
    expect_controlled("a virtual environment", &ended);
}

/// The versions are those of tests/platforms/engines: 2.6 has the server without some handlers, 2.3 has
/// no server.
#[test]
fn an_older_torch_has_what_it_has() {
    let cache =
        std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default().join(".cache/ranklaunch");
    for (version, has_server) in [("2.6.0", true), ("2.3.1", false)] {
        let python = cache.join(format!("engines-torch-{version}/bin/python"));
        if !python.exists() {
            skipped(format!("torch {version} is not installed: tests/python/older_torch.sh does"));
            continue;
        }
        let ended = job("direct", &[], vec![python.into_os_string(), controlled()]).run();
        let ended = ended.expect_code(0).expect_nothing_left();
        if has_server {
            expect_controlled(version, &ended);
        }
        for (_, said) in said(&ended) {
            expect_nothing_of_ours(version, &said);
            assert_eq!(said["stacks"], json!(["PID.stacks"]), "{version} {said}");
            assert_eq!(said["sockets"].as_array().map(Vec::len), Some(usize::from(has_server)));
        }
    }
}

/// Three ranks on GPUs, the second of which never enters a collective. The ranks write torch's records,
/// as torch does when a collective times out, and fail.
fn recorded(more: &[&str]) -> Ended {
    const RANK: &str = r#"
        [ -n "$TORCH_FR_DUMP_TEMP_FILE" ] || { echo "no folder"; exit 8; }
        "$0" "$1" never "$(dirname "$TORCH_FR_DUMP_TEMP_FILE")" && exit 7"#;
    let fake = FakeNvml::new(&[("GPUS", "4")]);
    let script = root().join("tests/python/records.py");
    let words = ["run", "--engine", "direct", "--stale", "off", "--nproc-per-node", "3"];
    let launcher = Launcher::new(words.iter().chain(more)).args(["--python"]).args([python()]);
    let launcher = launcher.args(["--", "sh", "-c", RANK]).args([python(), script]);
    launcher.env("RANKLAUNCH_NVML_LIBRARY", fake.library()).run()
}

#[test]
fn torch_timeout_records_name_the_absent_rank() {
    let ended = recorded(&[]).expect_code(7).expect_nothing_left();
    let words = "rank 1 has not entered all_reduce 7";
    assert!(ended.err.contains(words), "{}", ended.err);
    // The files outlive the job, for `explain`.
    let mut explain = Command::new(executable());
    let attempt = ended.node_folder(0).join("attempt-0");
    let output = explain.arg("explain").arg(&attempt).env("LC_ALL", "C.UTF-8").output();
    let said = String::from_utf8(output.expect("it runs").stdout).expect("text");
    assert!(said.contains(words), "{said}");
    recorded(&["--inject", "off"]).expect_code(8);
}

/// A rank that has imported torch.distributed and ends with its input, and a connection on which no
/// question is asked.
fn asked_at_its_end() -> (Child, UnixStream, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "import torch.distributed; print('imported', flush=True); input()";
    let mut rank = Command::new(python())
        .args(["-c", script])
        .env("PYTHONPATH", root().join("src/supervise/inject"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("RANKLAUNCH_CONTROL", folder.path())
        .env("RANK", "0")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python");
    let mut said = String::new();
    let output = rank.stdout.as_mut().expect("a pipe");
    BufReader::new(output).read_line(&mut said).expect("a line");
    assert_eq!(said, "imported\n");
    let socket = folder.path().join(format!("0-{}", rank.id()));
    let asker = UnixStream::connect(&socket).expect("its socket");
    rank.stdin.take().expect("a pipe").write_all(b"\n").expect("written");
    wait_until("the socket is gone", || (!socket.exists()).then_some(()));
    (rank, asker, folder)
}

#[test]
fn ending_rank_waits_briefly_for_its_answers() {
    let (mut rank, asker, _folder) = asked_at_its_end();
    assert!(rank.try_wait().expect("a child").is_none(), "an answer may be under way");
    drop(asker);
    assert!(rank.wait().expect("a child").success());
    // The rank waits only briefly for a question that never comes.
    let (mut rank, _asker, _folder) = asked_at_its_end();
    assert!(rank.wait().expect("a child").success());
}

/// Interpreters older than any torch with a worker server, if this machine has them.
#[test]
fn an_old_python_runs_as_without_it() {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let versions = std::fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    let installed = versions.map(|version| version.path().join("bin/python"));
    let found: Vec<PathBuf> = installed
        .chain(["/usr/bin/python2.7", "/usr/bin/python3.5"].map(PathBuf::from))
        .filter(|python| {
            let older = "import sys; sys.exit(sys.version_info >= (3, 6))";
            Command::new(python).args(["-c", older]).status().is_ok_and(|status| status.success())
        })
        .collect();
    if found.is_empty() {
        return skipped("no Python before 3.6 is here");
    }
    let text = "import sys, os, json\nprint('%s %d' % (os.environ['RANK'], len(sys.meta_path)))\n";
    for python in found {
        let said = ["auto", "off"].map(|inject| {
            let launcher = Launcher::new(run_args("direct", 2)).args(["--inject", inject]);
            let script = launcher.folder().join("old.py");
            std::fs::write(&script, text).expect("written");
            let launcher =
                launcher.args([Path::new("--python"), &python, Path::new("--"), &script]);
            let ended = launcher.run().expect_code(0);
            let mut lines: Vec<String> = ended.out.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        });
        assert_eq!(said[0], said[1], "{}", python.display());
        assert_eq!(said[0].len(), 2, "{said:?}");
    }
}

/// A helper survives SIGTERM from a stranger, and everything else stays as before.
#[test]
fn helpers_outlive_only_the_term_of_a_stranger() {
    for inject in ["auto", "off"] {
        let mut args = run_args("direct", 1);
        args.extend(["--inject".into(), inject.into(), "--".into()]);
        args.push(program("helpers.py").into_os_string());
        let ended = Launcher::new(args).run().expect_code(0).expect_nothing_left();
        let lines = ended.out.lines().filter_map(|line| line.find('{').map(|at| &line[at..]));
        let said: Vec<Value> = lines.filter_map(|line| serde_json::from_str(line).ok()).collect();
        let spared = inject == "auto";
        let expected = |method: &str| {
            json!({
                "method": method,
                "a stranger's TERM": if spared { json!(2) } else { json!("killed") },
                "terminate": -15,
                "os.kill": -15,
                // The library runs no Python handler, so the helper is killed after two seconds.
                "in a library": if spared { -9 } else { -15 },
                "a handler of its own": 7,
                "a program of its own": -15,
            })
        };
        assert_eq!(said, ["fork", "spawn", "forkserver"].map(expected), "{inject}");
    }
}
