//! A refusal names the setting that was read, its place and value, the allowed values and a remedy,
//! in both languages; and nothing was started before it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use harness::{Launcher, executable};

/// One mistake: arguments, variables, the profile in the working folder.
#[derive(Default)]
struct Mistake {
    args: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    profile: &'static str,
    code: i32,
    /// Words of the refusal, and words of the hint.
    names: &'static [&'static str],
    hint: &'static [&'static str],
}

const SCRIPT: &[&str] = &["run", "--", "a.py"];
const PROFILE: &[&str] = &["run"];

/// Flags and profiles.
const USAGE: &[Mistake] = &[
    Mistake {
        args: &["run", "--nnodes", "zwei", "--", "a.py"],
        env: &[],
        profile: "",
        code: 64,
        names: &["--nnodes", "`zwei`"],
        hint: &["--nnodes 2"],
    },
    Mistake {
        args: &["run", "--engine", "torch", "--", "a.py"],
        env: &[],
        profile: "",
        code: 64,
        names: &["--engine", "`torch`", "torchrun", "accelerate", "deepspeed", "direct", "command"],
        hint: &["--engine torchrun"],
    },
    Mistake {
        args: &["run", "--master-port", "70000", "--", "a.py"],
        env: &[],
        profile: "",
        code: 64,
        names: &["--master-port", "`70000`", "1", "65535"],
        hint: &["--master-port 29500"],
    },
    Mistake {
        args: &["run", "--wait-timeout", "5x", "--", "a.py"],
        env: &[],
        profile: "",
        code: 64,
        names: &["--wait-timeout", "`5x`", "1h30m"],
        hint: &["30m"],
    },
    Mistake {
        args: &["run", "--severity", "shm=fail", "--", "a.py"],
        env: &[],
        profile: "",
        code: 64,
        names: &["--severity", "`shm=fail`"],
        hint: &["shm.size, shm.leftovers"],
    },
    Mistake {
        args: &["run", "--env", "HF_TOKEN abc", "--", "a.py"],
        env: &[],
        profile: "",
        code: 64,
        names: &["--env", "NAME=VALUE"],
        hint: &["--env"],
    },
    Mistake {
        args: &["run", "--profile", "wan23"],
        env: &[],
        profile: "",
        code: 64,
        names: &["--profile", "`wan23`", "wan22, taehv, zimdb"],
        hint: &["--profile wan22"],
    },
    Mistake {
        args: &["run", "--node-rnak", "1", "--", "a.py"],
        env: &[],
        profile: "",
        code: 64,
        names: &["--node-rnak"],
        hint: &["--node-rank"],
    },
    Mistake {
        args: &["run", "a.py"],
        env: &[],
        profile: "",
        code: 64,
        names: &["a.py"],
        hint: &["--"],
    },
    Mistake { args: &["run"], env: &[], profile: "", code: 64, names: &[], hint: &["--"] },
    Mistake {
        args: &["run", "--", ""],
        env: &[],
        profile: "",
        code: 64,
        names: &["--"],
        hint: &[],
    },
    Mistake {
        args: &["wait", "job-master-0"],
        env: &[],
        profile: "",
        code: 64,
        names: &["`job-master-0`", "HOST:PORT", "65535"],
        hint: &["job-master-0:29500"],
    },
    Mistake {
        args: SCRIPT,
        env: &[("RANKLAUNCH_NNODES", "0")],
        profile: "",
        code: 64,
        names: &["RANKLAUNCH_NNODES", "`0`"],
        hint: &["RANKLAUNCH_NNODES=2", "--nnodes 2"],
    },
    Mistake {
        args: SCRIPT,
        env: &[("RANKLAUNCH_MASTER_PORT", "tcp://10.0.0.1:29500")],
        profile: "",
        code: 64,
        names: &["RANKLAUNCH_MASTER_PORT", "tcp://10.0.0.1:29500"],
        hint: &["enableServiceLinks", "--master-port"],
    },
    Mistake {
        args: PROFILE,
        env: &[],
        profile: "[job]\nscript = \"a.py\"\nnnodes = \"two\"\n",
        code: 64,
        names: &["ranklaunch.toml:3", "nnodes", "`two`"],
        hint: &["reference.toml"],
    },
    Mistake {
        args: PROFILE,
        env: &[],
        profile: "[job]\nscirpt = \"a.py\"\n",
        code: 64,
        names: &["ranklaunch.toml:2", "scirpt"],
        hint: &["script"],
    },
    Mistake {
        args: PROFILE,
        env: &[],
        profile: "[job]\nscript = \"a.py\"\n[layout]\nrule = \"ring\"\n",
        code: 64,
        names: &["ranklaunch.toml:4", "`ring`", "ulysses-ring"],
        hint: &["--layout"],
    },
    Mistake {
        args: PROFILE,
        env: &[],
        profile: "[job]\nscript = \"a.py\"\n[exit]\n64 = 300\n",
        code: 64,
        names: &["ranklaunch.toml:4", "300", "255"],
        hint: &["reference.toml"],
    },
    // Letters that only look like those of TOML and of the shell.
    Mistake {
        args: PROFILE,
        env: &[],
        profile: "[job]\nscript = “a.py”\n",
        code: 64,
        names: &["ranklaunch.toml:2", "`“`", " 10"],
        hint: &["“ (U+201C)", " \""],
    },
    Mistake {
        args: PROFILE,
        env: &[],
        profile: "[job]\nscript = \"a.py\"\nargs = [\"—，：\"， \"b\"]\n",
        code: 64,
        names: &["ranklaunch.toml:3", "`，`", " 14"],
        hint: &["， (U+FF0C)", " ,"],
    },
    Mistake {
        args: PROFILE,
        env: &[],
        profile: "[job]\nscript： \"a.py\"\n",
        code: 64,
        names: &["ranklaunch.toml:2", "`：`", " 7"],
        hint: &["： (U+FF1A)", " :"],
    },
    Mistake {
        args: PROFILE,
        env: &[],
        profile: "[job]\nscript\u{a0}= \"a“b”.py\"\n",
        code: 64,
        names: &["ranklaunch.toml:2"],
        hint: &["U+00A0"],
    },
    Mistake {
        args: SCRIPT,
        env: &[("RANKLAUNCH_NNODES", "‘2’")],
        profile: "",
        code: 64,
        names: &["RANKLAUNCH_NNODES", "`‘2’`"],
        hint: &["RANKLAUNCH_NNODES=2", "‘ (U+2018)"],
    },
    Mistake {
        args: &["run", "--nnodes", "２", "--", "a.py"],
        env: &[],
        profile: "",
        code: 64,
        names: &["--nnodes", "`２`"],
        hint: &["--nnodes 2", "２ (U+FF12)", " 2"],
    },
    Mistake {
        args: SCRIPT,
        env: &[("WORLD_SIZE", "2"), ("RANK", "0"), ("MASTER_ADDR", "“10.0.0.1”")],
        profile: "",
        code: 65,
        names: &["MASTER_ADDR"],
        hint: &["“ (U+201C)"],
    },
    Mistake {
        args: PROFILE,
        env: &[],
        profile: "[job\n",
        code: 64,
        names: &["ranklaunch.toml:1", "TOML"],
        hint: &["reference.toml"],
    },
    Mistake {
        args: PROFILE,
        env: &[],
        profile: "[job]\nscript = \"a.py\"\ncommand = [\"b\"]\n",
        code: 64,
        names: &["ranklaunch.toml:3", "ranklaunch.toml:2", "command"],
        hint: &["script"],
    },
];

/// Variables of the platform, and states of the node.
const JOB: &[Mistake] = &[
    Mistake {
        args: SCRIPT,
        env: &[("WORLD_SIZE", "2"), ("RANK", "5"), ("MASTER_ADDR", "127.0.0.1")],
        profile: "",
        code: 65,
        names: &["RANK=5", "WORLD_SIZE=2", "0", "1"],
        hint: &["--nnodes", "--node-rank"],
    },
    Mistake {
        args: SCRIPT,
        env: &[("WORLD_SIZE", "two"), ("RANK", "0")],
        profile: "",
        code: 65,
        names: &["WORLD_SIZE=two"],
        hint: &["--nnodes"],
    },
    Mistake {
        args: SCRIPT,
        env: &[("WORLD_SIZE", "2"), ("RANK", "1"), ("MASTER_ADDR", "None")],
        profile: "",
        code: 65,
        names: &["MASTER_ADDR=None"],
        hint: &["--master-addr"],
    },
    Mistake {
        args: SCRIPT,
        env: &[("PET_NNODES", "1"), ("PET_NPROC_PER_NODE", "xpu")],
        profile: "",
        code: 65,
        names: &["PET_NPROC_PER_NODE=xpu", "auto", "gpu"],
        hint: &["--nproc-per-node"],
    },
    Mistake {
        args: &[
            "run",
            "--device",
            "cpu",
            "--nproc-per-node",
            "3",
            "--layout",
            "ulysses-world",
            "--heads",
            "40",
            "--",
            "a.py",
        ],
        env: &[],
        profile: "",
        code: 66,
        names: &["3", "40"],
        hint: &["--layout none"],
    },
    Mistake {
        args: &["run", "--device", "cpu", "--python", "/no/such", "--", "a.py"],
        env: &[],
        profile: "",
        code: 67,
        names: &["--python", "/no/such"],
        hint: &["--python ", "--conda-env NAME"],
    },
    Mistake {
        args: &["run", "--device", "cpu", "--conda-env", "nope", "--", "a.py"],
        env: &[],
        profile: "",
        code: 67,
        names: &["nope"],
        hint: &["--conda-env NAME"],
    },
    Mistake {
        args: &["run", "--probe", "off", "--", "a.py"],
        env: &[("GPU_COUNT", "8"), ("PATH", "/nowhere")],
        profile: "",
        code: 80,
        names: &["GPU_COUNT=8", "--probe"],
        hint: &["--device cpu"],
    },
];

/// The launcher with only these variables, so that the machine has no influence.
fn launcher(mistake: &Mistake, lang: &str) -> Launcher {
    let mut command = Command::new(executable());
    command.env_clear();
    let mut launcher = Launcher::of(command, mistake.args)
        .env("PATH", "/usr/bin:/bin")
        .env("RUST_BACKTRACE", "1")
        .with_torch()
        .env("LANG", lang);
    for (name, value) in mistake.env {
        launcher = launcher.env(name, value);
    }
    if !mistake.profile.is_empty() {
        let file = launcher.folder().join("ranklaunch.toml");
        std::fs::write(file, mistake.profile).expect("a profile");
    }
    launcher
}

fn check(mistakes: &[Mistake]) {
    for mistake in mistakes {
        let mut texts = Vec::new();
        for (lang, mark) in [("C.UTF-8", "hint: "), ("zh_CN.UTF-8", "提示：")] {
            let ended =
                launcher(mistake, lang).run().expect_code(mistake.code).expect_nothing_left();
            let what = format!("{:?} {:?}\n{}", mistake.args, mistake.env, ended.err);
            assert_eq!(ended.out, "", "a refusal is no output of the job: {what}");
            for bad in ["panicked", "backtrace", "── ranklaunch"] {
                assert!(!ended.err.contains(bad), "{bad}: {what}");
            }
            let (problem, hint) = ended.err.split_once(mark).expect(&what);
            for name in mistake.names {
                assert!(problem.contains(name), "{name} is not named: {what}");
            }
            for name in mistake.hint {
                assert!(hint.contains(name), "the hint does not say {name}: {what}");
            }
            let files = std::fs::read_dir(ended.folder()).expect("a folder").flatten();
            let made: Vec<OsString> = files
                .map(|file| file.file_name())
                .filter(|name| name != "ranklaunch.toml")
                .filter(|name| name != "console.out" && name != "console.err")
                .collect();
            assert!(made.is_empty(), "{made:?} was made: {what}");
            texts.push(ended.err);
        }
        assert_ne!(texts[0], texts[1], "one language only");
    }
}

#[test]
fn wrong_flags_variables_and_profiles_are_refused() {
    check(USAGE);
}

#[test]
fn wrong_platforms_layouts_and_nodes_are_refused() {
    check(JOB);
}

/// A secret on a wrong line is not repeated.
#[test]
fn refusal_keeps_secrets() {
    for args in [
        &["run", "--env", "HF_TOKEN hunter2", "--", "a.py"][..],
        &["run", "--env", "HF_TOKEN=hunter2", "--nnodes", "x", "--", "a.py"],
    ] {
        let ended = Launcher::new(args).run().expect_code(64);
        assert!(!ended.err.contains("hunter2"), "{}", ended.err);
    }
}

#[test]
fn bytes_outside_utf_8_are_refused() {
    let bytes = || OsString::from_vec(b"\xff\xfe".to_vec());
    let ended = Launcher::new([OsString::from("run"), "--nnodes".into(), bytes(), "--".into()])
        .run()
        .expect_code(64);
    assert!(ended.err.contains("--nnodes") && ended.err.contains(r"\xff\xfe"), "{}", ended.err);
    let ended = Launcher::new(["run", "--", "a.py"])
        .env("RANKLAUNCH_MASTER_ADDR", bytes())
        .run()
        .expect_code(64);
    assert!(ended.err.contains("RANKLAUNCH_MASTER_ADDR"), "{}", ended.err);
    let launcher = Launcher::new(["run"]);
    std::fs::write(launcher.folder().join("ranklaunch.toml"), b"[job]\n# \xff\n").expect("a file");
    let ended = launcher.run().expect_code(64);
    assert!(ended.err.contains("ranklaunch.toml: line 2 is not UTF-8"), "{}", ended.err);
}

/// The profile's `[exit]` turns a verdict's code into another, here for a refusal.
#[test]
fn refusal_ends_with_the_profiles_exit_code() {
    let launcher = Launcher::new(["run"])
        .env("WORLD_SIZE", "2")
        .env("RANK", "5")
        .env("MASTER_ADDR", "127.0.0.1");
    let profile = "[job]\nscript = \"a.py\"\n[exit]\n65 = 137\n";
    std::fs::write(launcher.folder().join("ranklaunch.toml"), profile).expect("a profile");
    launcher.run().expect_code(137).expect_id("membership.rank");
}

/// `plan` and `check` predict the refusal of `run`: the same words first, and its code.
#[test]
fn plan_and_check_report_runs_refusal_first() {
    let engine = ["--device", "cpu", "--engine", "direct", "--stale", "off"];
    let layout = ["--nproc-per-node", "3", "--layout", "ulysses-world", "--heads", "40"];
    let accelerate =
        "[job]\nscript = \"a.py\"\nengine_args = [\"--config_file\", \"fsdpp.yaml\"]\n";
    for (args, profile, code, id, checked) in [
        (&["--", "nope.py"][..], "", 64, "script.file", true),
        (&[], "", 64, "program.missing", false),
        (
            &["--nproc-per-node", "2", "--interactive", "--", "a.py"],
            "",
            64,
            "interactive.nproc",
            false,
        ),
        (&[&layout[..], &["--", "a.py"]].concat(), "", 66, "layout.nproc", true),
        (&["--python", "/no/such", "--", "a.py"], "", 67, "python.interpreter", true),
        (&[], accelerate, 64, "engine.file", true),
        (&["--", "nope.py"], "[exit]\n64 = 137\n", 137, "script.file", true),
    ] {
        let said = |subcommand: &str| {
            let launcher = Launcher::new([&[subcommand][..], &engine, args].concat())
                .env("RANKLAUNCH_PYTHON", "/bin/sh");
            std::fs::write(launcher.folder().join("a.py"), "").expect("a script");
            if !profile.is_empty() {
                std::fs::write(launcher.folder().join("ranklaunch.toml"), profile)
                    .expect("a profile");
            }
            launcher.run()
        };
        let run = said("run").expect_code(code).expect_nothing_left();
        let (_, why) = run.err.split_once("ranklaunch: refused: ").expect(&run.err);
        let mut asked = vec![said("plan")];
        if checked {
            asked.push(said("check"));
        }
        for told in asked {
            let told = told.expect_code(code);
            let (_, said) = told.out.split_once("run would be refused: ").expect(&told.out);
            assert!(told.out.starts_with("run would be refused: "), "{}", told.out);
            for (run, told) in why.lines().zip(said.lines()).take(3) {
                // The folder in which the launcher was started differs each time.
                let plain = |line: &str| line.split(" (/").next().unwrap_or(line).to_owned();
                assert_eq!(plain(run), plain(told));
            }
            assert!(said.contains(&format!("exit code {code} ({id})")), "{}", told.out);
        }
    }
}

/// A file that the ranks run is checked in every form of the command, as its interpreter reads it.
#[test]
fn unstartable_file_is_refused_before_the_launch() {
    let crlf = "line 1 of ./crlf.sh";
    for (words, code, said) in [
        (&["./crlf.sh"][..], 64, crlf),
        (&["env", "X=1", "./crlf.sh"], 64, crlf),
        (&["./lf.sh"], 0, "lf.sh"),
        (&["./gone.sh"], 64, "/no/such/shell, which does not exist"),
        (&["./nope.sh"], 64, "./nope.sh does not exist"),
        (&["python3", "nope.py"], 64, "nope.py does not exist"),
        (&["python3", "-u", "lf.sh"], 0, "lf.sh"),
        (&["python3", "crlf.sh"], 0, "crlf.sh"),
        (&["bash", "nope.sh"], 64, "nope.sh does not exist"),
        (&["bash", "crlf.sh"], 0, "bash takes it for a part of the last word"),
        (&["bash", "lf.sh"], 0, "lf.sh"),
        (
            &["accelerate", "launch", "--config_file", "nope.yaml", "lf.sh"],
            64,
            "--config_file names nope.yaml, which does not exist",
        ),
        (&["accelerate", "launch", "--config_file", "lf.sh", "lf.sh"], 0, "lf.sh"),
    ] {
        let launched = |subcommand: &str| {
            let options = [subcommand, "--engine", "command", "--device", "cpu", "--"];
            let launcher = Launcher::new([&options[..], words].concat());
            for (name, text) in [
                ("crlf.sh", "#!/bin/sh\r\necho hi\r\n"),
                ("lf.sh", "#!/bin/sh\necho hi\n"),
                ("gone.sh", "#!/no/such/shell\necho hi\n"),
            ] {
                let path = launcher.folder().join(name);
                std::fs::write(&path, text).expect("a script");
                let mode = std::fs::Permissions::from_mode(0o755);
                std::fs::set_permissions(path, mode).expect("executable");
            }
            launcher.run()
        };
        let planned = launched("plan").expect_code(code);
        assert!(planned.out.contains(said), "{words:?}\n{}", planned.out);
        if code != 0 {
            launched("run").expect_code(code).expect_nothing_left();
        }
    }
}

/// The form for programs has the refusal and the plan in one document.
#[test]
fn refused_plan_is_one_document_harmless_to_shells() {
    let args = ["--device", "cpu", "--engine", "direct", "--python", "/bin/sh", "--", "nope.py"];
    let of = |format| {
        let asked = ["plan", "--format", format].into_iter().chain(args);
        Launcher::new(asked).run().expect_code(64)
    };
    let json: serde_json::Value = serde_json::from_str(&of("json").out).expect("a document");
    assert_eq!(json["refused"]["id"], "script.file");
    assert_eq!(json["nproc_per_node"], 1);
    let shell = of("shell");
    assert!(shell.err.starts_with("run would be refused: "), "{}", shell.err);
    assert!(!shell.out.contains("refused"), "{}", shell.out);
    let report: serde_json::Value = serde_json::from_str(
        &Launcher::new(["check", "--format", "json"].into_iter().chain(args))
            .run()
            .expect_code(64)
            .out,
    )
    .expect("a report");
    assert_eq!(
        (&report["exit_code"], &report["refused"]["id"]),
        (&64.into(), &"script.file".into())
    );
    assert_eq!(report["summary"]["fail"], 1);
}

/// A wait that fails is no refusal, and its hint names only options of `wait`.
#[test]
fn wait_gives_up_in_its_own_words() {
    let target = format!("127.0.0.1:{}", harness::free_port());
    let ended = Launcher::new(["wait", &target, "--timeout", "1s"]).run().expect_code(86);
    assert!(ended.err.contains("ranklaunch: gave up: "), "{}", ended.err);
    assert!(ended.err.contains("--timeout 1h"), "{}", ended.err);
    for other in ["refused: ", "--master-addr", "--node-rank"] {
        assert!(!ended.err.contains(other), "{other}: {}", ended.err);
    }
}

#[test]
fn install_into_a_file_names_its_folder() {
    let launcher = Launcher::new(["install", "inst/ranklaunch"]);
    std::fs::create_dir(launcher.folder().join("inst")).expect("made");
    std::fs::write(launcher.folder().join("inst/ranklaunch"), "").expect("written");
    let ended = launcher.run().expect_code(64);
    assert!(ended.err.contains("is a file; name its folder"), "{}", ended.err);
    assert!(ended.err.contains("ranklaunch install inst\n"), "{}", ended.err);
}

#[test]
fn quoted_name_does_not_control_the_terminal() {
    let ended = Launcher::new(["lint", "a\x1b]0;owned\x07.yaml"]).run().expect_code(64);
    assert!(ended.err.contains(r"a\x1b]0;owned\x07.yaml: No such file"), "{:?}", ended.err);
    assert!(!ended.err.contains(['\x1b', '\x07']), "{:?}", ended.err);
}
