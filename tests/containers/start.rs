//! Images that start ranklaunch in different ways, with the Dockerfiles of packaging really built.
//! The tests are skipped without Docker.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use harness::docker::{self, Owned, Setup, tell};
use harness::{executable, run_tool};

use crate::run;

fn packaging(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
    folder.join(name).display().to_string()
}

/// The executable without debug information, a fifth of the size.
fn slim() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let folder = harness::built();
        let file = folder.join(format!("ranklaunch-slim-{}", std::process::id()));
        run_tool(Command::new("strip").arg("-o").arg(&file).arg(executable()));
        file
    })
}

/// `docker build` with `file` in a folder that holds `contents`.
fn build(name: &str, file: &str, contents: &[(&str, &Path)], args: &[String]) -> Owned {
    let context = tempfile::tempdir().expect("a folder");
    for (name, from) in contents {
        run_tool(Command::new("cp").arg(from).arg(context.path().join(name)));
    }
    let image = docker::image_named(docker::unique(name));
    let folder = context.path().display().to_string();
    let mut command = vec!["build", "-q", "-f", file, "-t", &image.name];
    for arg in args {
        command.extend(["--build-arg", arg]);
    }
    command.push(&folder);
    tell(&command);
    image
}

/// The image of packaging/Dockerfile.
fn scratch() -> Owned {
    build("scratch", &packaging("Dockerfile"), &[("ranklaunch", slim())], &[])
}

/// A Dockerfile of a test.
fn dockerfile(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("Dockerfile");
    std::fs::write(&file, text).expect("written");
    let path = file.display().to_string();
    (folder, path)
}

#[test]
fn scratch_image_holds_one_self_copying_executable() {
    if docker::missing().is_some() {
        return;
    }
    let image = scratch();
    let over =
        Setup::as_it_is(&image).options(&["--network", "none"]).run(&["--version"]).expect_code(0);
    assert!(over.out.starts_with("ranklaunch ") && over.out.contains("static"), "{}", over.out);
    let files = tell(&["create", "--name", &docker::unique("unused"), &image.name]);
    let list =
        Command::new("sh").args(["-c", "docker export \"$0\" | tar -t"]).arg(&files).output();
    tell(&["rm", &files]);
    let list = String::from_utf8_lossy(&list.expect("tar runs").stdout).into_owned();
    // Docker's own mount points do not count.
    let ours: Vec<&str> = list
        .lines()
        .filter(|name| {
            !["dev/", "etc/", "proc/", "sys/", ".dockerenv"].iter().any(|own| name.starts_with(own))
        })
        .collect();
    assert_eq!(ours, ["ranklaunch"], "{list}");

    // An init container makes the copy, and the job's container finds it.
    let (volume, base) = (docker::volume(), docker::host_like());
    let shared = format!("{}:/shared", volume.name);
    for _ in 0..2 {
        let init =
            Setup::as_it_is(&image).options(&["-v", &shared]).run(&["install", "/shared/bin"]);
        assert_eq!(init.expect_code(0).out, "/shared/bin/ranklaunch\n");
    }
    let job = Setup::as_it_is(&base)
        .programs()
        .options(&["-v", &format!("{shared}:ro"), "--entrypoint", "/shared/bin/ranklaunch"])
        .options(&["--user", "1000"])
        .run(&run("echo rank $RANK; ls -A /shared/bin"));
    let job = job.expect_code(0);
    assert!(
        job.out.contains("[r1] rank 1") && !job.out.contains("[r1] .ranklaunch"),
        "{}",
        job.out
    );

    // If `install` cannot write, it says so and leaves no partial file.
    let refused =
        Setup::as_it_is(&image).options(&["--read-only"]).run(&["install", "/shared/bin"]);
    refused.expect_code(64).expect_words(&[
        "cannot copy this executable into /shared/bin",
        "Read-only",
        "(install.write)",
    ]);
}

#[test]
fn training_image_starts_its_profile_from_environment_alone() {
    if docker::missing().is_some() {
        return;
    }
    let (scratch, base) = (scratch(), docker::host_like());
    // The image is a team's: it has its script in the working directory, in addition to the mounts
    // of the test.
    let (_folder, file) = dockerfile(
        "ARG BASE\nFROM ${BASE}\nCOPY generate.py /work/generate.py\nCOPY profile.toml /profile.toml\nWORKDIR /work\n",
    );
    let files = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| -> PathBuf {
        let path = files.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let script =
        put("generate.py", "import os, sys\nprint('rank', os.environ['RANK'], *sys.argv[1:])\n");
    let profile = put(
        "profile.toml",
        "[job]\nscript = \"generate.py\"\nengine = \"direct\"\ndevice = \"cpu\"\nargs = [\"--sizes\", \"{world_size}\"]\n",
    );
    let contents = [("generate.py", script.as_path()), ("profile.toml", profile.as_path())];
    let team = build("team", &file, &contents, &[format!("BASE={}", base.name)]);
    let args = [
        format!("BASE={}", team.name),
        format!("RANKLAUNCH={}", scratch.name),
        "PROFILE=/profile.toml".to_owned(),
    ];
    let image = build("training", &packaging("Dockerfile.training"), &[], &args);
    let over = Setup::as_it_is(&image).programs().run(&[]);
    let over = over.expect_code(0).expect_words(&["· /profile.toml", "[/profile.toml:3]"]);
    assert!(over.out.contains("rank 0 --sizes 1"), "{}", over.out);
    // Every option is also a variable, and words after the image's name are arguments.
    let over = Setup::as_it_is(&image)
        .programs()
        .env("RANKLAUNCH_NPROC_PER_NODE", "2")
        .run(&["--console-prefix", "none", "--", "--more", "x y"])
        .expect_code(0);
    assert!(over.out.contains("rank 1 --sizes 2 --more x y"), "{}", over.out);

    // The embedded profiles need no file, and refuse settings that do not fit this container.
    let wan22 = Setup::as_it_is(&image).programs().env("RANKLAUNCH_PROFILE", "wan22");
    let refused = wan22.run(&["--nproc-per-node", "2", "--device", "cpu", "--engine", "direct"]);
    refused.expect_code(84).expect_words(&["(shm.size)", "--shm-size"]);
}

#[test]
fn entry_point_and_arguments_join_as_in_docker() {
    if docker::missing().is_some() {
        return;
    }
    let base = docker::host_like();
    let image = |lines: &str| {
        let (_folder, file) = dockerfile(&format!(
            "ARG BASE\nFROM ${{BASE}}\nCOPY ranklaunch /ranklaunch\n{lines}\n"
        ));
        build("entry", &file, &[("ranklaunch", slim())], &[format!("BASE={}", base.name)])
    };
    let options = "ENV RANKLAUNCH_ENGINE=direct RANKLAUNCH_DEVICE=cpu RANKLAUNCH_NPROC_PER_NODE=2 RANKLAUNCH_STALE=off";
    let echo = "\"sh\", \"-c\", \"[ $RANK = 1 ] || exec sleep 300; echo rank $RANK by $0; exit 5\", \"cmd\"";

    // The entry point is the whole line up to `--`, and the command is the job.
    let whole =
        image(&format!("{options}\nENTRYPOINT [\"/ranklaunch\", \"run\", \"--\"]\nCMD [{echo}]"));
    let over = Setup::as_it_is(&whole).programs().run(&[]).expect_code(5);
    assert!(over.out.contains("rank 1 by cmd"), "{}", over.out);
    let over =
        Setup::as_it_is(&whole).programs().run(&["sh", "-c", "echo other $RANK"]).expect_code(0);
    assert!(over.out.contains("[r1] other 1"), "{}", over.out);

    // The entry point is the executable alone, so subcommands are arguments.
    let alone = image(&format!("{options}\nENTRYPOINT [\"/ranklaunch\"]"));
    let over = Setup::as_it_is(&alone)
        .programs()
        .run(&["plan", "--format", "json", "--", "sh"])
        .expect_code(0);
    assert!(over.out.contains("\"nproc_per_node\": 2"), "{}", over.out);
    Setup::as_it_is(&alone).programs().run(&["init", "--", "sh", "-c", "exit 9"]).expect_code(9);

    // In the shell form, a single command replaces the shell, and several commands do not.
    let shell = image(&format!(
        "{options}\nENTRYPOINT /ranklaunch run -- sh -c 'echo READY; exec sleep 300'; echo over"
    ));
    let mut job = Setup::as_it_is(&shell).programs().start(&[]);
    job.says("READY", 2).waits("the warning", |job| job.err().contains("PID 1 is sh ("));
}

/// The page on containers, in both languages.
const PAGES: [&str; 2] = [
    include_str!("../../docs/platforms/docker.md"),
    include_str!("../../docs/platforms/docker.zh-CN.md"),
];

/// The image that the page builds.
const IMAGE: &str = "your-training-image";

/// The fenced blocks of a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// The commands of all blocks that run that image with `docker run`, each in one line.
fn docker_runs(page: &str) -> Vec<String> {
    let joined = blocks(page, "sh").join("\n").replace("\\\n", " ");
    let lines = joined.lines();
    let lines = lines.filter(|line| line.starts_with("docker run ") && line.contains(IMAGE));
    lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

/// The image of the page is built as documented, and its commands work here, except for the GPUs
/// that this machine lacks.
#[test]
fn documented_image_and_commands_work() {
    if docker::missing().is_some() {
        return;
    }
    let [english, chinese] = PAGES.map(|page| (blocks(page, "dockerfile"), docker_runs(page)));
    assert_eq!(english, chinese, "both say the same");
    let (files, commands) = english;
    let (scratch, base) = (scratch(), docker::host_like());
    let [text] = files.as_slice() else { panic!("one Dockerfile: {files:?}") };
    let text = text
        .replace("FROM ranklaunch ", &format!("FROM {} ", scratch.name))
        .replace(&format!("FROM {IMAGE}"), &format!("FROM {}", base.name));
    let (_folder, file) = dockerfile(&text);
    let image = build("readme", &file, &[], &[]);

    let script = tempfile::tempdir().expect("a folder");
    let generate = script.path().join("generate.py");
    std::fs::write(&generate, "import sys\nprint('made', sys.argv[-1])\n").expect("written");
    let node = Setup::as_it_is(&image)
        .python()
        .mount(&generate, "/generate.py")
        .env("RANKLAUNCH_PYTHON", &harness::python().display().to_string())
        .env("RANKLAUNCH_ENGINE", "direct")
        .into_options();
    let expected = [
        ("plan", "nproc_per_node"),
        ("run", "made /workspace/output/"),
        // Only the other host is missing in this command.
        ("plan", "2 × 1 = 2"),
    ];
    assert_eq!(commands.len(), expected.len(), "{commands:?}");
    for (command, (what, shows)) in commands.iter().zip(expected) {
        let here: Vec<&str> =
            command.strip_prefix("docker run ").expect("a run").split(' ').collect();
        let here = here.join(" ").replace("--gpus all ", "").replace("-d --name wan22 ", "");
        let (options, arguments) = here.split_once(IMAGE).expect("the image");
        let arguments = arguments.trim().trim_start_matches("plan");
        let mut words: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
        // Mounts of host folders are removed.
        while let Some(at) = words.iter().position(|word| word == "-v") {
            words.drain(at..at + 2);
        }
        words.retain(|word| word != "--rm");
        words.extend(node.iter().cloned());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        // The page's addresses and GPUs are those of other machines.
        let place: &[&str] = if arguments.contains("--nodes") {
            &["--node-rank", "0", "--device", "cpu"]
        } else {
            &["--device", "cpu"]
        };
        let arguments: Vec<&str> = std::iter::once(what)
            .chain(arguments.split_whitespace())
            .chain(place.iter().copied())
            .collect();
        let over = Setup::as_it_is(&image).options(&words).run(&arguments).expect_code(0);
        assert!(over.out.contains(shows), "{command}: {}\n{}", over.out, over.err);
    }
}
