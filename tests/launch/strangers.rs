//! Root beside another user: that user's sockets, folders, profiles and files decide nothing for root.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{Ended, Launcher, executable, program, run_args, skipped};

/// The user id of the stranger.
const NOBODY: u32 = 65534;

fn is_root() -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        skipped("only root can start programs of another user");
    }
    is_root
}

/// The output of `ranklaunch WORDS`, run by root in a network namespace with sockets of another user,
/// and its duration.
fn beside(mode: &[&str], words: &[&str]) -> (Ended, Duration) {
    // The time is that of the command alone.
    let script = "
        python3 \"$STRANGER\" $MODE > said &
        stranger=$!
        until grep -qs READY said; do kill -0 $stranger || exit 99; sleep 0.02; done
        date +%s%N > began; \"$@\"; code=$?; date +%s%N > ended
        kill $stranger; exit $code";
    let mut args: Vec<std::ffi::OsString> =
        ["--net", "sh", "-c", script, "sh"].map(Into::into).into();
    args.push(executable().into());
    args.extend(words.iter().map(Into::into));
    let ended = Launcher::of(Command::new("unshare"), args)
        .env("STRANGER", program("stranger.py"))
        .env("MODE", mode.join(" "))
        .env("RANKLAUNCH_LANG", "en")
        .run();
    let time = |name: &str| {
        let text = std::fs::read_to_string(ended.folder().join(name)).unwrap_or_default();
        Duration::from_nanos(text.trim().parse().unwrap_or_else(|_| panic!("{}", ended.err)))
    };
    let took = time("ended") - time("began");
    (ended, took)
}

fn has_namespaces() -> bool {
    let tried = Command::new("unshare").args(["--net", "true"]).output();
    let has = tried.is_ok_and(|output| output.status.success());
    if !has {
        skipped("no network namespace can be made");
    }
    has
}

#[test]
fn a_strangers_sockets_hold_no_command() {
    if !is_root() || !has_namespaces() {
        return;
    }
    for mode in ["silent", "drip", "many"] {
        for command in [&["ps"][..], &["stacks"], &["dump"], &["logs", "-f"]] {
            let (ended, took) = beside(&[mode], command);
            let said = format!("{mode} {command:?} {took:?}: {}{}", ended.out, ended.err);
            assert!(took < Duration::from_secs(6), "{said}");
            assert!(!said.contains("kill -CONT") && !said.contains("-p 1"), "{said}");
            if command == ["ps"] || command == ["stacks"] {
                assert!(said.contains("(65534)") || said.contains("user 65534"), "{said}");
            }
            assert!(said.lines().count() < 40, "{said}");
        }
    }
}

#[test]
fn a_strangers_run_id_names_no_path() {
    if !is_root() || !has_namespaces() {
        return;
    }
    let (ended, _) = beside(&["forged", "x/../../owned"], &["dump"]);
    assert_ne!(ended.code, 0, "{}", ended.out);
    let folder = ended.folder();
    assert!(!folder.join("owned").exists() && !folder.with_file_name("owned").exists());
    // The control: a plain id is accepted, and its owner is named.
    let (ended, _) = beside(&["forged", "job-1"], &["dump"]);
    let ended = ended.expect_code(0);
    assert!(ended.folder().join("ranklaunch-dump-job-1/dump.json").exists(), "{}", ended.err);
    assert!(ended.err.contains("is of user") && ended.err.contains("65534"), "{}", ended.err);
    assert!(!ended.out.contains('\x1b') && !ended.err.contains('\x1b'), "{}", ended.err);
}

/// A folder with a profile whose interpreter leaves a trace.
fn with_profile(launcher: Launcher, owner: u32) -> Launcher {
    let folder = launcher.folder().to_owned();
    std::fs::write(folder.join("ranklaunch.toml"), "[job]\npython = './evil'\nscript = 'a.py'\n")
        .expect("written");
    std::fs::write(folder.join("a.py"), "").expect("written");
    std::fs::write(folder.join("evil"), "#!/bin/sh\necho ran >> trace\nexit 1\n").expect("written");
    let evil = folder.join("evil");
    std::fs::set_permissions(&evil, PermissionsExt::from_mode(0o755)).expect("set");
    for path in [folder.join("ranklaunch.toml"), evil, folder] {
        chown(path, Some(owner), None).expect("changed");
    }
    launcher
}

#[test]
fn a_strangers_profile_is_named_and_executes_nothing() {
    if !is_root() {
        return;
    }
    let ran = |ended: &Ended| ended.folder().join("trace").exists();
    let common = ["--engine", "torchrun", "--device", "cpu"];
    for command in [&["plan"][..], &["check"], &["clean", "--dry-run"]] {
        let words = || command.iter().chain(&common).copied();
        let of = |owner| {
            let launcher = Launcher::new(words()).env("RANKLAUNCH_LANG", "en");
            with_profile(launcher, owner).run()
        };
        let ended = of(NOBODY);
        assert!(!ran(&ended), "{command:?}: {}", ended.err);
        let said = format!("{}{}", ended.out, ended.err);
        for words in ["is not used", "65534", "--profile"] {
            assert!(said.contains(words), "{command:?} {words}: {said}");
        }
        // The control: a profile of one's own is used. Only `clean` asks no interpreter.
        let ended = of(0);
        assert_eq!(ran(&ended), command != ["clean", "--dry-run"], "{command:?}: {}", ended.err);
        assert!(!ended.err.contains("is not used"), "{}", ended.err);
    }
    // An explicit `--profile` is used, whoever owns the file.
    let words = ["plan", "--profile", "./ranklaunch.toml"].iter().chain(&common).copied();
    assert!(ran(&with_profile(Launcher::new(words), NOBODY).run()));
}

/// A run whose rank wrote a line, for damaging.
fn run() -> Ended {
    let script = ["--", "sh", "-c", "echo plain; echo odd >&2"];
    let ended = Launcher::new(run_args("direct", 2)).args(script).run();
    ended.expect_code(0).expect_nothing_left()
}

fn mkfifo(path: &Path) {
    let _ = std::fs::remove_file(path);
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
}

#[test]
fn fifo_in_a_run_hangs_no_command() {
    for name in [
        "attempt-0/rank-00001.err",
        "attempt-0/rank-00001.out",
        "attempt-0/output.index",
        "running",
        "agent.jsonl",
        "run.json",
        "attempt-0/rank-00001.error.json",
    ] {
        let ended = run();
        mkfifo(&ended.node_folder(0).join(name));
        let folder = ended.node_folder(0).parent().expect("a run").display().to_string();
        for command in ["logs", "explain", "report"] {
            let began = Instant::now();
            let looked = Launcher::new([command, &folder]).env("RANKLAUNCH_LANG", "en").run();
            assert!(began.elapsed() < Duration::from_secs(20), "{command} {name}");
            if command == "logs" && name.ends_with(".err") {
                assert!(looked.out.contains("plain"), "{}", looked.err);
                assert!(looked.err.contains("rank-00001.err is a link or"), "{}", looked.err);
            }
        }
    }
}

#[test]
fn no_link_of_a_run_is_followed() {
    let elsewhere = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(elsewhere.path(), "RuntimeError: of-root\n").expect("written");
    for name in ["attempt-0/rank-00001.err", "attempt-0", "attempt-0/more.log"] {
        let ended = run();
        let path = ended.node_folder(0).join(name);
        if path.is_dir() {
            let moved = ended.folder().join("moved");
            std::fs::rename(&path, &moved).expect("moved");
            std::fs::write(moved.join("rank-00001.err"), "RuntimeError: of-root\n").expect("ok");
            symlink(&moved, &path).expect("a link");
        } else {
            let _ = std::fs::remove_file(&path);
            symlink(elsewhere.path(), &path).expect("a link");
        }
        let folder = ended.node_folder(0).parent().expect("a run").display().to_string();
        for command in ["logs", "explain", "report"] {
            let looked = Launcher::new([command, &folder]).run();
            let said = format!("{}{}", looked.out, looked.err);
            assert!(!said.contains("of-root"), "{command} {name}: {said}");
        }
        let page = std::fs::read_to_string(Path::new(&folder).join("report.html"));
        assert!(!page.unwrap_or_default().contains("of-root"), "{name}");
    }
}

/// Sparse files of 300 GB, and 1 GB of zeros packed to 1 MB.
#[test]
fn files_without_content_cost_nothing() {
    use std::io::Write;
    let ended = run();
    let log = ended.node_folder(0).join("attempt-0/rank-00001.err");
    let sparse = std::fs::File::options().write(true).open(&log).expect("a log");
    sparse.set_len(300 << 30).expect("longer");
    let journal = ended.node_folder(0).join("agent.jsonl");
    let journal = std::fs::File::options().append(true).open(journal).expect("a journal");
    journal.set_len(300 << 30).expect("longer");
    let folder = ended.node_folder(0).parent().expect("a run").display().to_string();
    for command in ["logs", "explain", "report"] {
        let began = Instant::now();
        let looked = Launcher::new([command, &folder]).run();
        assert!(began.elapsed() < Duration::from_secs(20), "{command} {:?}", began.elapsed());
        assert_eq!(looked.code, 0, "{command}: {}", looked.err);
    }
    let packed = tempfile::Builder::new().suffix(".log.gz").tempfile().expect("a file");
    let mut gzip = Command::new("gzip")
        .arg("-1c")
        .stdin(std::process::Stdio::piped())
        .stdout(packed.reopen().expect("a file"))
        .spawn()
        .expect("gzip runs");
    let mut into = gzip.stdin.take().expect("a pipe");
    (0..1024).for_each(|_| into.write_all(&vec![0; 1 << 20]).expect("written"));
    drop(into);
    assert!(gzip.wait().expect("waited for").success());
    let path = packed.path().display().to_string();
    let ended = Launcher::new(["explain", &path]).env("RANKLAUNCH_LANG", "en").run();
    let said = format!("{}{}", ended.out, ended.err);
    assert!(said.contains("more than 100 times its size"), "{said}");
}
