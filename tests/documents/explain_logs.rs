//! `ranklaunch explain LOG…`: files, folders and standard input, plain and compressed, in every
//! format.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const LOG: &str = "\
[rank1]: Traceback (most recent call last):
[rank1]:   File \"/work/train.py\", line 9, in <module>
[rank1]:     main()
[rank1]:   File \"/opt/lib/python3.11/site-packages/torch/nn/linear.py\", line 1, in forward
[rank1]:     return f(x)
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB of which 1.00 GiB is free.
[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error, NCCL version 2.21.5
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n";

fn explain(args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ranklaunch"));
    command.arg("explain").args(args).env("LC_ALL", "C.UTF-8");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut pipe = child.stdin.take().expect("a pipe");
    // The program may refuse before it has read everything.
    let _ = pipe.write_all(input);
    drop(pipe);
    child.wait_with_output().expect("it ends")
}

pub(crate) fn text(args: &[&str], input: &[u8]) -> String {
    let output = explain(args, input);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.as_str()), (Some(0), ""), "{args:?}");
    String::from_utf8(output.stdout).expect("text")
}

pub(crate) fn json(args: &[&str], input: &[u8]) -> Value {
    let args = [&["--format", "json"], args].concat();
    serde_json::from_str(&text(&args, input)).expect("JSON")
}

pub(crate) fn refused(args: &[&str], input: &[u8]) -> String {
    let output = explain(args, input);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(64), "{args:?}: {said}");
    assert!(output.stdout.is_empty(), "{args:?}");
    said
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).expect("in memory");
    packed.finish().expect("in memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

pub(crate) fn written(folder: &Path, name: &str, bytes: &[u8]) -> String {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
    std::fs::write(&path, bytes).expect("written");
    path.to_str().expect("text").to_owned()
}

#[test]
fn cause_and_remedy_come_before_rank_and_place() {
    let said = text(&["-"], LOG.as_bytes());
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("cause ") && lines[0].contains("(cuda_oom, certain)"), "{said}");
    let remedy = lines.iter().position(|line| line.starts_with("remedy ")).expect("a remedy");
    let rank = lines.iter().position(|line| line.starts_with("rank ")).expect("a rank");
    assert!(remedy < rank && lines[rank].ends_with(" 1"), "{said}");
    for part in [
        "/work/train.py:9 <module>",
        "-:6",
        "rank 0 failed as a consequence",
        "lies in   the program",
        "Tried to allocate 2.00 GiB",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let chinese = text(&["--lang", "zh", "-"], LOG.as_bytes());
    assert!(chinese.starts_with("原因") && chinese.contains("（cuda_oom，确定）"), "{chinese}");
    assert!(!chinese.contains("remedy"), "{chinese}");
}

#[test]
fn programs_read_the_same_as_json() {
    let said = json(&["-"], LOG.as_bytes());
    let cause = &said["cause"];
    assert_eq!((&said["schema"], &said["failed"]), (&1.into(), &true.into()));
    for (key, value) in [
        ("id", Value::from("cuda_oom")),
        ("rank", 1.into()),
        ("node", Value::Null),
        ("confidence", "certain".into()),
        ("line", 6.into()),
        ("log", "-".into()),
        ("frame", "train.py:9".into()),
        ("owner", "code".into()),
    ] {
        assert_eq!(cause[key], value, "{key} of {said:#}");
    }
    let ids: Vec<&str> = said["findings"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["id"].as_str())
        .collect();
    assert!(ids.len() >= 3 && ids[0] == "cuda_oom", "{ids:?}");
    let nothing = json(&["-"], b"step 1 loss 0.5\nTraining completed\n");
    assert_eq!((&nothing["cause"], &nothing["failed"]), (&Value::Null, &false.into()));
    assert_eq!(nothing["confidence"], "unknown");
}

#[test]
fn a_workflow_shows_the_cause_beside_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = written(folder.path(), "a,b.log", LOG.as_bytes());
    let said = text(&["--format", "github", &path], b"");
    let file = path.replace(',', "%2C");
    assert!(said.starts_with(&format!("::error file={file},line=6,title=cuda_oom::")), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn compressed_logs_are_read_directly() {
    let folder = tempfile::tempdir().expect("a folder");
    let (first, second) = LOG.as_bytes().split_at(300);
    for (name, packed) in [
        ("one.gz", gzip(LOG.as_bytes())),
        ("two.gz", [gzip(first), gzip(second)].concat()),
        ("one.zst", zstd(LOG.as_bytes())),
        ("two.zst", [zstd(first), zstd(second)].concat()),
    ] {
        let path = written(folder.path(), name, &packed);
        let said = json(&[&path], b"");
        assert_eq!(
            (&said["cause"]["id"], &said["cause"]["line"]),
            (&"cuda_oom".into(), &6.into()),
            "{name}"
        );
        assert_eq!(said["logs"][0]["bytes"], LOG.len(), "{name}");
        assert_eq!(json(&["-"], &packed)["cause"]["id"], "cuda_oom", "{name} on standard input");
    }
}

#[test]
fn our_folder_tells_rank_node_and_last_attempt() {
    let folder = tempfile::tempdir().expect("a folder");
    let raised = "Traceback (most recent call last):\n  File \"/work/a.py\", line 2, in <module>\n    f()\nValueError: of the first attempt\n";
    let plain: String =
        LOG.replace("[rank1]: ", "").lines().take(6).map(|line| format!("{line}\n")).collect();
    for (name, text) in [
        ("node-0/attempt-1/rank-00000.err", raised),
        (
            "node-0/attempt-2/rank-00000.err",
            "[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error, NCCL version 2.21.5\n",
        ),
        ("node-0/attempt-2/rank-00000.out", "step 1\n"),
        ("node-1/attempt-2/rank-00003.err.00001", plain.as_str()),
        (
            "node-1/attempt-2/engine.log",
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n",
        ),
        ("run.json", "{}"),
    ] {
        written(folder.path(), name, text.as_bytes());
    }
    let said = json(&[folder.path().to_str().expect("text")], b"");
    let cause = &said["cause"];
    assert_eq!(
        (&cause["id"], &cause["rank"], &cause["node"]),
        (&"cuda_oom".into(), &3.into(), &1.into()),
        "{said:#}"
    );
    assert_eq!(said["logs"].as_array().map(Vec::len), Some(4));
    assert!(!said.to_string().contains("first attempt"));
}

#[test]
fn unreadable_input_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    assert!(refused(&[path], b"").contains("holds no log"));
    assert!(refused(&["-", "no/such.log"], b"").contains("there is no log"));
    assert!(refused(&["no/such.log"], b"").contains("(explain.unknown)"));
    let log = written(folder.path(), "a.log", b"");
    assert!(refused(&[&log, "gpu.count"], b"").contains("stands beside logs"));
    assert_eq!(json(&[&log], b"")["cause"], Value::Null);
}

#[test]
fn catalogued_failure_is_explained_by_its_id() {
    let english = text(&["cuda_oom"], b"");
    assert!(english.starts_with("cuda_oom: ") && english.contains("  mend "), "{english}");
    assert!(text(&["--lang", "zh", "cuda_oom"], b"").contains("  处理 "));
    assert_eq!(json(&["cuda_oom"], b"")["explained"][0]["role"], "root");
}

/// Lines that say nothing and compress badly, so that a cut file still holds the lines before them.
fn filler() -> String {
    let mut state = 1_u64;
    let line = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        format!("value {state:x}\n")
    };
    (0..20_000).map(line).collect()
}

#[test]
fn damaged_log_is_read_without_a_certain_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let whole = format!("{LOG}{}", filler());
    let cut = |packed: Vec<u8>| packed[..packed.len() / 2].to_vec();
    for (name, packed) in [
        ("cut.gz", cut(gzip(whole.as_bytes()))),
        ("cut.zst", cut(zstd(whole.as_bytes()))),
        ("behind.gz", [gzip(LOG.as_bytes()), b"garbage".to_vec()].concat()),
        ("behind.zst", [zstd(LOG.as_bytes()), b"garbage".to_vec()].concat()),
    ] {
        let path = written(folder.path(), name, &packed);
        let said = json(&[&path], b"");
        assert_eq!(said["cause"]["id"], "cuda_oom", "{name}: {said:#}");
        assert_eq!(said["cause"]["confidence"], "likely", "{name}");
        let error = said["logs"][0]["error"].as_str().expect("an error");
        assert!(error.contains("cut off or damaged"), "{name}: {error}");
        let words = text(&["--lang", "zh", &path], b"");
        assert!(words.contains("压缩数据不完整或已损坏"), "{name}: {words}");
    }
    let nothing = written(folder.path(), "nothing.gz", &gzip(LOG.as_bytes())[..12]);
    assert!(refused(&[&nothing], b"").contains("cut off or damaged"));
}

#[test]
fn frames_of_zstd_without_data_are_skipped() {
    let skipped = [0x5e, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 9, 9, 9];
    let (first, second) = LOG.as_bytes().split_at(300);
    let packed = [&skipped[..], &zstd(first), &skipped, &zstd(second), &skipped].concat();
    let said = json(&["-"], &packed);
    assert_eq!((&said["cause"]["id"], &said["cause"]["line"]), (&"cuda_oom".into(), &6.into()));
    assert_eq!(said["logs"][0]["error"], Value::Null);
    let cut = json(&["-"], &[&packed[..], &skipped[..9]].concat());
    assert!(cut["logs"][0]["error"].is_string(), "{cut:#}");
}

#[test]
fn pipe_with_one_early_byte_is_unpacked() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ranklaunch"));
    command.args(["explain", "--format", "json", "-"]).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut pipe = child.stdin.take().expect("a pipe");
    let packed = gzip(LOG.as_bytes());
    pipe.write_all(&packed[..1]).expect("written");
    let unread = || rustix::io::ioctl_fionread(&pipe).expect("a pipe");
    harness::wait_until("the first byte to be read", || (unread() == 0).then_some(()));
    pipe.write_all(&packed[1..]).expect("written");
    drop(pipe);
    let output = child.wait_with_output().expect("it ends");
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["cause"]["id"], "cuda_oom", "{said:#}");
}

#[test]
fn only_launcher_file_names_tell_rank_and_node() {
    let plain = LOG.replace("[rank1]: ", "").lines().take(6).collect::<Vec<_>>().join("\n");
    for (name, rank, node) in [
        ("lora/rank-8/train.log", Value::Null, Value::Null),
        ("rank-8.err", Value::Null, Value::Null),
        ("rank-00008.err.00001.gz", 8.into(), Value::Null),
        ("node-4/train.log", Value::Null, 4.into()),
        ("node-2-task-1/attempt-0/rank-00009.err", 9.into(), 2.into()),
        ("attempt_0/3/stderr.log", 3.into(), Value::Null),
        ("node-0/attempt_0/3/stderr.log", 3.into(), 0.into()),
        ("node-1/attempt_0/3/stderr.log", Value::Null, 1.into()),
        ("node_2/attempt_0/3/stderr.log", Value::Null, Value::Null),
    ] {
        // A name above the given folder says nothing.
        let folder = tempfile::Builder::new().prefix("x").tempdir().expect("a folder");
        let named = folder.path().join("node-0/rank-00007");
        written(&named, name, plain.as_bytes());
        let said = json(&[named.to_str().expect("text")], b"");
        let cause = &said["cause"];
        assert_eq!((&cause["rank"], &cause["node"]), (&rank, &node), "{name}: {said:#}");
    }
}

/// The names of the logs that were read, without the folder.
fn names(said: &Value, folder: &Path) -> Vec<String> {
    let logs = said["logs"].as_array().expect("a list").iter();
    let folder = format!("{}/", folder.display());
    logs.map(|log| log["name"].as_str().expect("text").replace(&folder, "")).collect()
}

#[test]
fn last_attempt_counts_on_all_nodes() {
    for (files, read) in [
        (
            &["node-0/attempt-2/rank-00000.err", "node-1/attempt-1/rank-00001.err"][..],
            &["node-0/attempt-2/rank-00000.err"][..],
        ),
        (
            &["node-0-task-0/attempt-2/rank-00000.err", "node-0-task-1/attempt-1/rank-00001.err"],
            &["node-0-task-0/attempt-2/rank-00000.err"],
        ),
        (
            &["r/attempt_0/0/stderr.log", "r/attempt_1/0/stderr.log", "r/attempt_10/0/stderr.log"],
            &["r/attempt_10/0/stderr.log"],
        ),
        (
            &["r/attempt_0/0/stderr.log", "s/attempt_1/0/stderr.log"],
            &["r/attempt_0/0/stderr.log", "s/attempt_1/0/stderr.log"],
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        for name in files {
            written(folder.path(), name, b"step 1\n");
        }
        let said = json(&[folder.path().to_str().expect("text")], b"");
        assert_eq!(names(&said, folder.path()), read);
    }
}

#[test]
fn newest_run_is_read_and_reported() {
    newest_of("node-0/attempt-0/rank-00000.err");
    newest_of("node-0-task-0/attempt-0/rank-00000.err");
}

fn newest_of(log: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    for (run, text) in [("old", LOG), ("new", "step 1\n")] {
        let file = written(folder.path(), &format!("{run}/{log}"), text.as_bytes());
        let age = if run == "old" { 3600 } else { 0 };
        let time = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
        let file = std::fs::File::options().append(true).open(file).expect("there");
        file.set_modified(time).expect("set");
    }
    let said = json(&[path], b"");
    assert_eq!((&said["cause"], &said["failed"]), (&Value::Null, &false.into()), "{said:#}");
    assert_eq!(names(&said, folder.path()), [format!("new/{log}")]);
    let words = text(&[path], b"");
    assert!(words.contains("holds 2 runs") && words.contains("new"), "{words}");
    std::os::unix::fs::symlink("old", folder.path().join("latest")).expect("made");
    assert_eq!(names(&json(&[path], b""), folder.path()), [format!("old/{log}")]);
}

#[test]
fn linked_files_are_read_only_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let real = written(folder.path(), "pods/0.log", LOG.as_bytes());
    let links = folder.path().join("containers");
    std::fs::create_dir(&links).expect("made");
    for name in ["a.log", "b.log"] {
        std::os::unix::fs::symlink(&real, links.join(name)).expect("made");
    }
    let links = links.to_str().expect("text");
    assert_eq!(json(&[links], b"")["cause"]["id"], "cuda_oom");
    assert_eq!(names(&json(&[links], b""), folder.path()), ["containers/a.log"]);
    let all = folder.path().to_str().expect("text");
    assert_eq!(names(&json(&[all, &real, links], b""), folder.path()), ["pods/0.log"]);
    assert_eq!(names(&json(&["-", "-"], LOG.as_bytes()), folder.path()), ["-"]);
}

#[test]
fn unreadable_file_in_folder_is_skipped_and_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    std::os::unix::fs::symlink("gone", folder.path().join("gone.log")).expect("made");
    assert!(refused(&[path], b"").contains("gone.log"));
    written(folder.path(), "z.log", LOG.as_bytes());
    let said = json(&[path], b"");
    assert_eq!(
        (&said["cause"]["id"], &said["confidence"], &said["cause"]["confidence"]),
        (&"cuda_oom".into(), &"likely".into(), &"likely".into()),
        "{said:#}"
    );
    assert_eq!(names(&said, folder.path()), ["z.log", "gone.log"]);
    assert!(said["logs"][1]["error"].as_str().is_some_and(|error| error.contains("os error 2")));
    let words = text(&[path], b"");
    assert!(words.contains("not read") && words.contains("gone.log"), "{words}");
}

#[test]
fn unreachable_log_is_refused_with_its_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let link = folder.path().join("round");
    std::os::unix::fs::symlink("round", &link).expect("made");
    for path in [link.clone(), link.join("a.log")] {
        let said = refused(&[path.to_str().expect("text")], b"");
        assert!(said.contains("(explain.log)") && said.contains("os error 40"), "{said}");
    }
}

#[test]
fn folder_with_too_many_logs_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = folder.path().join("0.log");
    std::fs::write(&first, b"").expect("written");
    for number in 1..=20_000 {
        std::fs::hard_link(&first, folder.path().join(format!("{number}.log"))).expect("linked");
    }
    let said = refused(&[folder.path().to_str().expect("text")], b"");
    assert!(said.contains("more than 20000 logs"), "{said}");
}

#[test]
fn cause_in_standard_input_is_annotated_without_place() {
    let said = text(&["--format", "github", "-"], LOG.as_bytes());
    assert!(said.starts_with("::error title=cuda_oom::"), "{said}");
}

#[test]
fn profile_adds_its_own_failures() {
    let folder = tempfile::tempdir().expect("a folder");
    let profile = folder.path().join("job.toml");
    let profile = profile.to_str().expect("a plain path");
    let row = "[[diagnose]]\nid = \"empty_shard\"\npatterns = ['no samples in (?P<shard>\\S+)']\n\
               cause = { en = \"The shard {shard} is empty.\", zh = \"分片 {shard} 为空。\" }\n\
               remedy = \"Build the shard again.\"\nretry = \"never\"\n";
    std::fs::write(profile, row).expect("a file");
    let log = "Traceback (most recent call last):\n  File \"/work/train.py\", line 9, in <module>\n    \
               main()\nRuntimeError: no samples in train-7.tar\n";
    let told = json(&["--profile", profile, "-"], log.as_bytes());
    assert_eq!(told["cause"]["id"], "empty_shard", "{told}");
    assert_eq!(told["cause"]["text"], "The shard train-7.tar is empty.", "{told}");
    assert!(text(&["--profile", profile, "empty_shard"], b"").contains("Build the shard again."));
    assert!(refused(&["empty_shard"], b"").contains("empty_shard"));

    std::fs::write(profile, row.replace("(?P", "(P")).expect("a file");
    let said = refused(&["--profile", profile, "-"], log.as_bytes());
    assert!(
        said.contains(&format!("{profile}:1: [[diagnose]] empty_shard: cause `{{shard}}`")),
        "{said}"
    );
}

#[test]
fn unknown_lines_are_no_all_clear() {
    for (log, en, zh) in [
        ("step 1 loss 0.5\nbye\n", "unknown: no line here is a failure", "未知：其中没有"),
        (
            "epoch 9 done\nTraining completed.\n",
            "none: a line says that the job ended well",
            "无：日志表明任务正常结束",
        ),
    ] {
        let said = text(&["-"], log.as_bytes());
        assert!(said.starts_with("cause") && said.contains(en), "{said}");
        let said = text(&["--lang", "zh", "-"], log.as_bytes());
        assert!(said.contains(zh), "{said}");
        let said = json(&["-"], log.as_bytes());
        assert_eq!((&said["cause"], &said["failed"]), (&Value::Null, &Value::Bool(false)));
    }
}

#[test]
fn the_middle_of_a_line_is_enough() {
    for (line, id) in [
        ("The IPv6 network addresses of (None, 29500) cannot be retrieved", "gai_error"),
        ("Address already in use", "port_in_use"),
        ("Connection refused to MASTER_ADDR:MASTER_PORT", "master_refused"),
    ] {
        assert_eq!(json(&["-"], line.as_bytes())["cause"]["id"], id, "{line}");
    }
    // Words inside another sentence are no cause.
    for line in [
        "INFO: port 80: address already in use, trying port 81",
        "proxy: Connection refused to a:1, retrying",
    ] {
        assert_eq!(json(&["-"], line.as_bytes())["cause"], Value::Null, "{line}");
    }
}

#[test]
fn shells_killed_line_explains_a_closed_connection() {
    let closed = "RuntimeError: [/b/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.2.0.4]:20311";
    let said = json(&["-"], format!("{closed}\nKilled\n").as_bytes());
    assert_eq!(said["cause"]["id"], "worker_sigkill", "{said:#}");
    assert_ne!(said["cause"]["confidence"], "certain", "{said:#}");
    let said = json(&["-"], format!("{closed}\n").as_bytes());
    assert_eq!((&said["cause"], &said["failed"]), (&Value::Null, &Value::Bool(true)));
}

/// A run's folder with the log and the record of one rank.
fn run_of(folder: &Path, run: &str, verdict: &str) -> String {
    let attempt = folder.join(run).join("node-0/attempt-0");
    std::fs::create_dir_all(&attempt).expect("a folder");
    written(&attempt, "rank-00000.err", LOG.as_bytes());
    let verdict =
        serde_json::json!({ "class": "failed", "code": 1, "id": "rank.code", "text": verdict });
    let run_json =
        serde_json::json!({ "schema": 1, "attempt": 0, "verdict": verdict, "outcome": {} });
    written(&folder.join(run).join("node-0"), "run.json", run_json.to_string().as_bytes());
    folder.join(run).display().to_string()
}

#[test]
fn verdict_of_a_run_comes_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = run_of(folder.path(), "run-a", "rank 3 (node 1) never entered all_reduce");
    let said = text(&[&run], b"");
    let first = "── ranklaunch: rank 3 (node 1) never entered all_reduce\n";
    assert!(said.starts_with(first) && said.contains("exit code 1 (rank.code)"), "{said}");
    assert!(said.contains("cuda_oom"), "{said}");
    let said = text(&["--lang", "zh", &run], b"");
    assert!(said.starts_with(first) && said.contains("退出码 1（rank.code）"), "{said}");
    let said = json(&[&run], b"");
    assert!(said["verdicts"][0].as_str().is_some_and(|one| one.contains("rank 3")), "{said:#}");
}

/// A FIFO that is named is read, and one in a folder is named as unread.
#[test]
fn fifo_is_read_or_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("rank.log");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let place = folder.path().to_str().expect("text");
    assert!(refused(&[place], b"").contains("rank.log: it is a FIFO"), "alone in its folder");
    written(folder.path(), "train.log", b"step 1\n");
    let said = text(&[place], b"");
    assert!(said.contains("not read") && said.contains("rank.log: it is a FIFO"), "{said}");
    let writer = {
        let fifo = fifo.clone();
        std::thread::spawn(move || std::fs::write(fifo, LOG).expect("written"))
    };
    assert_eq!(json(&[fifo.to_str().expect("text")], b"")["cause"]["id"], "cuda_oom");
    writer.join().expect("it ends");
}

#[test]
fn two_runs_are_not_explained_as_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let [one, other] = ["run-a", "run-b"].map(|name| run_of(folder.path(), name, "exit code 1"));
    let said = refused(&[&one, &other], b"");
    assert!(said.contains("run-a, run-b") && said.contains("ranklaunch compare"), "{said}");
    let logs = [&one, &other].map(|run| format!("{run}/node-0/attempt-0/rank-00000.err"));
    assert!(refused(&[&logs[0], &logs[1]], b"").contains("two runs"));
    // The nodes of one run, copied to two places.
    let copy = run_of(&folder.path().join("copy"), "run-a", "exit code 1");
    assert_eq!(json(&[&one, &copy], b"")["cause"]["id"], "cuda_oom");
}

#[test]
fn error_json_counts_only_in_torchruns_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    written(folder.path(), "train.log", b"step 1\n");
    let record = br#"{"message": {"message": "ValueError: no label", "extraInfo": {}}}"#;
    for (place, expected) in
        [("api/responses", "null"), ("3", "null"), ("attempt_0/3", "\"user_exception\"")]
    {
        let at = folder.path().join(place);
        std::fs::create_dir_all(&at).expect("a folder");
        written(&at, "error.json", record);
        let said = json(&[folder.path().to_str().expect("text")], b"");
        assert_eq!(said["cause"]["id"].to_string(), expected, "{place}: {said:#}");
        assert_eq!(
            said["logs"].as_array().map(Vec::len),
            Some(if expected == "null" { 1 } else { 2 }),
            "{said:#}"
        );
    }
}
