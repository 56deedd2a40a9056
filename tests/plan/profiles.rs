//! Profiles: listing, showing and adapting them, and the working folder of a job.

use std::path::Path;

use harness::{Ended, Launcher, run_args};

fn asked(args: &[&str], files: &[(&str, &str)]) -> Ended {
    let launcher = Launcher::new(args);
    for (name, text) in files {
        let path = launcher.folder().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    launcher.run()
}

#[test]
fn profiles_are_listed_with_their_place() {
    let mine = [
        ("ranklaunch.toml", "# My job.\n[job]\nscript = 'a.py'"),
        ("engine.toml", "[job]\nengine_args = ['--max-restarts', '3']"),
        ("pyproject.toml", "[project]\nname = 'x'"),
    ];
    let ended = asked(&["profile", "list"], &mine).expect_code(0);
    for words in [
        "wan22",
        "taehv",
        "zimdb",
        "inside the executable",
        "My job.",
        "ranklaunch.toml, used where",
        "engine.toml",
    ] {
        assert!(ended.out.contains(words), "{words}: {}", ended.out);
    }
    assert!(!ended.out.contains("pyproject"), "another program's file: {}", ended.out);
}

/// The workflow in the hints: copy an embedded profile, and change the copy.
#[test]
fn embedded_profile_is_shown_verbatim_for_copying() {
    for name in ["wan22", "taehv", "zimdb"] {
        let shown = asked(&["profile", "show", name], &[]).expect_code(0).out;
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("config/{name}.toml"));
        assert_eq!(shown, std::fs::read_to_string(file).expect("a file"));
        let ended = asked(&["profile", "check", "./copy.toml"], &[("copy.toml", &shown)]);
        assert!(ended.expect_code(0).out.starts_with("copy.toml can be used: "));
        for private in ["/mnt/", "/home/", "tiny-vae"] {
            assert!(!shown.contains(private), "{name} names a place of somebody's: {private}");
        }
    }
    let ended = asked(&["profile", "show", "wan2"], &[]).expect_code(64);
    assert!(ended.err.contains("did you mean --profile wan22?"), "{}", ended.err);
}

#[test]
fn new_profile_is_valid_and_errors_name_lines() {
    let new = asked(&["profile", "new"], &[]).expect_code(0).out;
    assert!(new.lines().count() < 16, "{new}");
    let ended = asked(&["profile", "check", "mine.toml"], &[("mine.toml", &new)]).expect_code(0);
    assert!(ended.out.contains("program train.py, engine torchrun, layout none"), "{}", ended.out);
    let wrong = [("mine.toml", "[job]\nscirpt = 'a.py'")];
    let ended = asked(&["profile", "check", "mine.toml"], &wrong)
        .expect_code(64)
        .expect_id("settings.profile");
    assert!(ended.err.contains("mine.toml:2:") && ended.err.contains("script"), "{}", ended.err);
    let ranked = [("mine.toml", "[job]\nscript = 'a.py'\nnode_rank = 1")];
    let ended = asked(&["profile", "check", "mine.toml"], &ranked).expect_code(0);
    assert!(ended.out.contains("mine.toml:3 sets node_rank = 1: every node"), "{}", ended.out);
}

/// taehv names neither a folder nor a Python, and its hints say how to set them. Also a size
/// without a row, variables with placeholders, and an invalid name.
#[test]
fn values_by_size_reach_arguments_and_variables() {
    let profile = "[job]\nscript = 'a.py'\nargs = ['--config', '{config}']\n\
        [[select]]\ntotal_gpus = 8\nvalues = { config = '8.py' }\n\
        [[select]]\ntotal_gpus = '*'\nvalues = { config = 'any.py' }\n\
        [env]\nOUT = '{config}/{node_rank}/{run_id}'\nTYPO = '{node_rnak}'\n";
    let files = [("a.toml", profile), ("a.py", "")];
    let checked = asked(&["profile", "check", "./a.toml"], &files).expect_code(0).out;
    assert!(checked.contains("did you mean {node_rank}?"), "{checked}");
    assert_eq!(checked.matches("is not a placeholder").count(), 1, "{checked}");
    let job = ["--engine", "direct", "--device", "cpu", "--nproc-per-node", "2"];
    let program = ["--", "sh", "-c", "echo \"$OUT\" {config}"];
    let line = [&["--profile", "./a.toml"][..], &job, &program].concat();
    let ended = asked(&line, &files).expect_code(0);
    assert_eq!(ended.out.matches(" any.py\n").count(), 2, "{}", ended.out);
    assert_eq!(ended.out.matches("any.py/0/").count(), 2, "{}", ended.out);
    assert!(!ended.out.contains("{run_id}") && !ended.out.contains("any.py/0/ "), "{}", ended.out);
}

#[test]
fn settings_taehv_leaves_open_are_named() {
    let plan = ["plan", "--profile", "taehv", "--device", "cpu", "--python", "/bin/sh"];
    let more = ["--nnodes", "1", "--nproc-per-node", "8"];
    let ended = asked(&[&plan[..], &more].concat(), &[]).expect_code(64);
    for words in
        ["train_taehv.py", "--chdir DIR", "ranklaunch profile show taehv > ranklaunch.toml"]
    {
        assert!(ended.out.contains(words), "{words}: {}", ended.out);
    }
}

/// All relative paths start at the named folder, also for the ranks.
#[test]
fn job_runs_in_the_named_folder() {
    let work = [
        ("work/train.sh", "#!/bin/sh\npwd; cat \"$1\""),
        ("work/data.txt", "the data\n"),
        (
            "profiles/job.toml",
            "[job]\ncommand = ['sh', 'train.sh', 'data.txt']\nworkdir = '../work'\n",
        ),
    ];
    let run = |more: &[&str], variable: Option<&str>, program: &[&str]| {
        let mut launcher = Launcher::new(run_args("direct", 1)).args(more).args(program);
        for (name, text) in work {
            let path = launcher.folder().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        if let Some(folder) = variable {
            launcher = launcher.env("RANKLAUNCH_CHDIR", folder);
        }
        launcher.run()
    };
    let program = ["--", "sh", "train.sh", "data.txt"];
    for ended in [
        run(&["--chdir", "work", "--log-dir", "logs"], None, &program),
        run(&["--log-dir", "logs"], Some("work"), &program),
        run(&["--profile", "profiles/job.toml", "--log-dir", "logs"], None, &[]),
        // The flag overrides the profile, and paths relative to the folder follow it.
        run(
            &["--profile", "profiles/job.toml", "--chdir", "work", "--log-dir", "logs"],
            Some("gone"),
            &[],
        ),
    ] {
        let ended = ended.expect_code(0).expect_nothing_left();
        assert!(ended.out.contains("/work\n") && ended.out.contains("the data"), "{}", ended.out);
        assert!(ended.folder().join("work/logs/latest").exists(), "{}", ended.err);
        assert!(!ended.folder().join("logs").exists());
    }
    let ended =
        run(&["--chdir", "gone"], None, &program).expect_code(64).expect_id("settings.chdir");
    assert!(ended.err.contains("/gone"), "{}", ended.err);

    // A pasted command line changes to the folder as well.
    let files = [("work/a.py", "")];
    let plan = ["plan", "--format", "shell", "--device", "cpu", "--chdir", "work", "--", "a.py"];
    let ended = asked(&plan, &files);
    assert!(ended.out.starts_with("cd /") && ended.out.contains("/work\n"), "{}", ended.out);
}

/// An executable of the working directory is a command; any other file there is for Python.
#[test]
fn programs_are_searched_in_the_named_folder() {
    let launcher = Launcher::new(run_args("direct", 1)).args(["--chdir", "work", "--", "./job"]);
    std::fs::create_dir(launcher.folder().join("work")).expect("made");
    harness::write_program(&launcher.folder().join("work/job"), "#!/bin/sh\necho started\n");
    let ended = launcher.run().expect_code(0);
    assert!(ended.out.contains("started"), "{}", ended.out);
}

/// The last of several options with one name counts, and `plan` says so.
#[test]
fn repeated_options_and_mistyped_placeholders_are_noted() {
    let args = ["plan", "--device", "cpu", "--engine", "direct", "--wait-timeout", "30m"];
    let more = ["--wait-timeout", "5m", "--", "sh", "{world_sise}", "{\"a\": {world_sise}}"];
    let ended = asked(&[&args[..], &more].concat(), &[]).expect_code(0);
    assert!(ended.out.contains("given 2 times: the last one counts"), "{}", ended.out);
    assert_eq!(ended.out.matches("is not a placeholder").count(), 1, "{}", ended.out);
    assert!(ended.out.contains("did you mean {world_size}?"), "{}", ended.out);
}
