//! `ranklaunch explain` with dumps of torch's flight recorder: recognition of the files and their
//! ranks, and the explanation beside logs. The dumps are real, from tests/records.

use std::path::Path;

use serde_json::{Value, json};

use super::explain_logs::{json as json_of, refused, text, written};

/// The dumps of a kind of hang, as pickles.
fn dumps(kind: &str) -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/records/torch-2.15.0-gloo");
    let paths = (0..4).map(|rank| root.join(kind).join(format!("comm_lib_trace_rank_{rank}")));
    let paths = paths.filter(|path| path.exists());
    paths.map(|path| path.to_str().expect("text").to_owned()).collect()
}

fn hang(files: &[&str]) -> Value {
    json_of(files, b"")["hang"][0].clone()
}

fn words(files: &[String]) -> Vec<&str> {
    files.iter().map(String::as_str).collect()
}

fn bytes(file: &str) -> Vec<u8> {
    std::fs::read(file).expect("a dump")
}

#[test]
fn each_kind_of_hang_has_both_languages() {
    for (kind, name, en, zh) in [
        ("never", "never_entered", "rank 1 has not entered all_reduce 7 of group", "没有进入"),
        (
            "collective",
            "other_collective",
            "rank 1 entered broadcast [4] Float as number 7",
            "其他 rank 进入的是 all_reduce",
        ),
        ("shape", "other_shape", "entered all_reduce [2] Float", "进入的是 all_reduce [2]"),
        ("inversion", "deadlock", "rank 0 waits in all_reduce 1 of group 1", "又在另一组中等待它"),
        ("chain", "never_entered", "rank 1 has not entered all_reduce 1 of group 1", "没有进入"),
        ("stopped", "unknown", "there is no dump of rank 1", "没有 rank 1 的转储"),
    ] {
        let files = dumps(kind);
        // The output is no terminal, so lines are not folded.
        let said = text(&words(&files), b"");
        let first = said.lines().next().unwrap_or_default();
        assert!(first.starts_with("hang ") && first.contains(en), "{kind}: {said}");
        assert!(first.contains(&format!("({name}, ")), "{kind}: {said}");
        assert!(said.lines().nth(1).is_some_and(|line| line.starts_with("remedy ")), "{said}");
        let said = text(&[&["--lang", "zh"], &*words(&files)].concat(), b"");
        assert!(said.starts_with("卡死") && said.contains(zh), "{kind}: {said}");
        assert_eq!(hang(&words(&files))["culprits"][0]["kind"], name, "{kind}");
        let said = text(&[&["--format", "github"], &*words(&files)].concat(), b"");
        assert!(said.starts_with(&format!("::error title={name}::")), "{kind}: {said}");
    }
}

#[test]
fn dumps_without_a_waiting_rank_name_nobody() {
    for kind in ["fine", "running", "slow"] {
        let files = dumps(kind);
        assert_eq!(hang(&words(&files))["culprits"], json!([]), "{kind}");
        assert!(text(&words(&files), b"").starts_with("hang"), "{kind}");
    }
    let slow = &hang(&words(&dumps("slow")))["slow"];
    assert_eq!((&slow[0]["rank"], slow.as_array().map(Vec::len)), (&json!(1), Some(1)), "{slow:#}");
    assert_eq!(hang(&words(&dumps("fine")))["slow"], json!([]));
}

#[test]
fn content_identifies_a_dump_name_its_rank() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut named = Vec::new();
    for (number, file) in dumps("never").iter().enumerate() {
        // The name is like that of a log.
        named.push(written(folder.path(), &format!("rank-{number}.log"), &bytes(file)));
    }
    assert_eq!(hang(&words(&named))["culprits"][0]["rank"], 1);
    let nameless = written(folder.path(), "dump", &bytes(&dumps("never")[0]));
    let said = refused(&[&nameless], b"");
    assert!(said.contains("neither this dump nor its name says whose it is"), "{said}");
    let with_others = json_of(&[&nameless, &named[0], &named[2], &named[3]], b"");
    assert_eq!(with_others["hang"][0]["silent"], json!([1]), "{with_others:#}");
    assert_eq!(with_others["logs"][0]["name"], nameless.as_str());
}

#[test]
fn pickle_with_code_is_refused_without_running_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = folder.path().join("made");
    let command = format!("touch {}", made.display());
    let length = u8::try_from(command.len()).expect("a short path");
    let attack = [b"\x80\x04cposix\nsystem\n\x8c", &[length][..], command.as_bytes(), b"\x85R."];
    let path = written(folder.path(), "nccl_trace_rank_0", &attack.concat());
    let said = refused(&[&path], b"");
    assert!(said.contains("GLOBAL (0x63) at byte 2"), "{said}");
    assert!(!made.exists());
}

#[test]
fn timeout_in_a_log_confirms_the_dumps_hang() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = b"[rank0]:[E721 02:11:09.104 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught \
        collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, \
        Timeout(ms)=600000) ran for 600021 milliseconds before timing out.\n";
    let log = written(folder.path(), "train.log", log);
    let dumps = dumps("never");
    let alone = json_of(&words(&dumps), b"");
    assert_eq!((&alone["hang"][0]["confidence"], &alone["logs"]), (&json!("likely"), &json!([])));
    let both = json_of(&[&[log.as_str()], &*words(&dumps)].concat(), b"");
    assert_eq!(both["hang"][0]["confidence"], "certain", "{both:#}");
    assert_eq!(both["logs"][0]["lines"], 1);
    // Lines of JSON that begin like a dump are a log.
    let lines = b"{\"version\":\"2.0\",\"message\":\"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\"}\n{\"version\":\"2.0\",\"message\":\"x\"}\n";
    let said = json_of(&["-"], lines);
    assert_eq!((&said["logs"][0]["lines"], &said["hang"]), (&json!(2), &json!([])), "{said:#}");
}
