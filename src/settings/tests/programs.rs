//! The program: the words after `--`, and that of a profile.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;

use verdict::Id;

use super::*;

#[test]
fn the_words_after_the_dashes_become_a_program() {
    let root = tempfile::tempdir().expect("a folder");
    let bin = root.path().join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    for (name, mode) in [("bash", 0o755), ("notes", 0o644), ("tool.py", 0o755), ("torchrun", 0o755)]
    {
        std::fs::write(bin.join(name), "").expect("a file");
        std::fs::set_permissions(bin.join(name), std::fs::Permissions::from_mode(mode))
            .expect("a mode");
    }
    let node =
        Host::replayed(root.path(), BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]));
    let program = |line: &[&str]| {
        Settings::read(&options(line), &node)
            .map(|settings| settings.program.map(|program| program.value))
    };
    let script = |path: &str, args: &[&str]| {
        Ok(Some(Program::Script { path: path.into(), args: words(args) }))
    };
    let module = |name: &str, args: &[&str]| {
        Ok(Some(Program::Module { name: name.into(), args: words(args) }))
    };
    let command = |argv: &[&str]| Ok(Some(Program::Command { argv: words(argv) }));

    assert_eq!(
        program(&["--", "generate.py", "--a", "{x}"]),
        script("generate.py", &["--a", "{x}"])
    );
    assert_eq!(program(&["--", "tool.py"]), script("tool.py", &[]));
    assert_eq!(program(&["--", "notes"]), script("notes", &[]));
    assert_eq!(program(&["--", "-m", "a.b", "-x"]), module("a.b", &["-x"]));
    assert_eq!(program(&["-m", "a.b", "--", "-x"]), module("a.b", &["-x"]));
    assert_eq!(program(&["--", "bash", "-c", "x"]), command(&["bash", "-c", "x"]));
    assert_eq!(program(&["--", "/bin/bash"]), command(&["/bin/bash"]));
    assert_eq!(program(&["--", "python3.11", "a.py"]), command(&["python3.11", "a.py"]));
    assert_eq!(program(&["--", "pythonic"]), script("pythonic", &[]));
    assert_eq!(program(&["--engine", "command", "--", "run.py"]), command(&["run.py"]));
    assert_eq!(program(&[]), Ok(None));
    for (line, id) in [
        (&["--", "--lr", "1"][..], Id::SettingsProgram),
        (&["--", "-m"], Id::SettingsModule),
        (&["--engine", "command", "-m", "a"], Id::SettingsModule),
        (&["-m", ""], Id::SettingsModule),
    ] {
        assert_eq!(program(line).expect_err("no program").id, id, "{line:?}");
    }

    assert_eq!(program(&["--", "accelerate", "config"]), script("accelerate", &["config"]));
}

/// Each rank would start the launcher again: separate jobs that end with 0.
#[test]
fn launcher_as_script_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    let bin = root.path().join("bin");
    std::fs::create_dir(&bin).expect("a folder");
    std::fs::write(bin.join("torchrun"), "").expect("a file");
    std::fs::set_permissions(bin.join("torchrun"), std::fs::Permissions::from_mode(0o755))
        .expect("a mode");
    let node = Host::replayed(root.path(), BTreeMap::from([("PATH".into(), "/bin".into())]));
    for (line, name, way) in [
        ("-- torchrun --nproc-per-node 2 a.py --lr 1", "torchrun", "-- a.py --lr 1"),
        ("-- /opt/bin/torchrun -m a.b 1", "torchrun", "-- -m a.b 1"),
        ("-- python /opt/bin/torchrun a.py", "torchrun", "-- a.py"),
        ("-- python -um torch.distributed.run a.py", "torchrun", "-- a.py"),
        ("-- python3 -u -m torch.distributed.launch a.py", "torchrun", "-- a.py"),
        ("-- -m torch.distributed.run a.py", "torch.distributed.run", "-- a.py"),
        ("-m torch.distributed.run -- a.py", "torch.distributed.run", "-- a.py"),
        ("-- -m accelerate.commands.launch a.py", "accelerate.commands.launch", "-- a.py"),
        ("-- accelerate launch --num_processes 2 a.py", "accelerate", "-- a.py"),
        ("-- deepspeed a.py --deepspeed", "deepspeed", "-- a.py --deepspeed"),
        ("-- mpirun -np 2 python a.py", "mpirun", "-- SCRIPT ARGS"),
        ("-- mpiexec python a.py", "mpirun", "-- SCRIPT ARGS"),
        ("-- srun python a.py", "srun", "-- SCRIPT ARGS"),
        ("-- horovodrun -np 2 python a.py", "horovodrun", "-- SCRIPT ARGS"),
        ("-- ray start --head", "ray", "-- SCRIPT ARGS"),
        ("-- nohup torchrun a.py", "torchrun", "-- a.py"),
        ("-- time torchrun a.py", "torchrun", "--engine command -- torchrun a.py"),
        ("-- exec torchrun -m a.b", "torchrun", "-- -m a.b"),
        ("-- timeout 1h torchrun a.py", "torchrun", "--engine command -- timeout 1h torchrun a.py"),
        ("-- env X=1 torchrun a.py", "torchrun", "-- env X=1 python a.py"),
        ("-- X=1 nohup torchrun a.py", "torchrun", "-- env X=1 python a.py"),
        ("-- numactl -N 0 torchrun -m a.b", "torchrun", "-- numactl -N 0 python -m a.b"),
        ("-- uv run torchrun a.py", "torchrun", "-- uv run python a.py"),
        ("-- uv run -m torch.distributed.run a.py", "torchrun", "-- uv run python a.py"),
        ("-- conda run -n x accelerate launch a.py", "accelerate", "-- conda run -n x python a.py"),
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let refusal = Settings::read(&options(&words), &node).expect_err(line);
        assert_eq!((refusal.id, refusal.verdict.code()), (Id::SettingsLauncherAsScript, 64));
        assert!(refusal.text.en.contains(&format!("{name} is a launcher")), "{}", refusal.text.en);
        assert!(refusal.text.zh.contains(name), "{}", refusal.text.zh);
        let hint = refusal.hint;
        assert!(hint.en.contains(way) && hint.en.contains("--engine command -- "), "{}", hint.en);
        assert!(hint.zh.contains(way), "{}", hint.zh);
        // A module needs an interpreter there; everything else runs directly.
        if !line.contains("-m torch.distributed.run") && !line.contains("-- -m") {
            let meant = [&["--engine", "command"], words.as_slice()].concat();
            assert_eq!(Settings::read(&options(&meant), &node).expect(line).warnings, [], "{line}");
        }
    }
    for line in
        ["-- env.py torchrun", "-- uv run a.py", "-- env X=1 a.py", "-- timeout 1h python a.py"]
    {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(Settings::read(&options(&words), &node).is_ok(), "{line}");
    }
    // A launcher in a profile is refused too, with its line.
    let (_folder, path) = file("[job]\nscript = 'torchrun'\nargs = ['a.py']");
    let refusal = Settings::read(&options(&["--profile", &path]), &node).expect_err("a launcher");
    assert!(refusal.text.en.contains(&format!("{path}:2")), "{}", refusal.text.en);
}

#[test]
fn shell_script_for_python_is_refused() {
    let root = tempfile::tempdir().expect("a folder");
    for (name, text, mode) in [
        ("tr.sh", "python a.py", 0o644),
        ("start", "#!/usr/bin/env -S bash -e\n", 0o644),
        ("ready.sh", "#!/bin/sh\n", 0o755),
        ("train", "import torch\n", 0o644),
        ("old", "#!/usr/bin/python\n", 0o644),
    ] {
        std::fs::write(root.path().join(name), text).expect("a file");
        std::fs::set_permissions(root.path().join(name), std::fs::Permissions::from_mode(mode))
            .expect("a mode");
    }
    let node = Host::replayed(root.path(), BTreeMap::new());
    for name in ["/tr.sh", "/start", "gone.sh"] {
        let refusal = Settings::read(&options(&["--", name, "--lr", "1"]), &node).expect_err(name);
        assert_eq!((refusal.id, refusal.verdict.code()), (Id::SettingsShellScript, 64));
        let way = format!("-- bash {name} --lr 1");
        assert!(refusal.hint.en.contains(&way) && refusal.hint.zh.contains(&way), "{refusal:?}");
    }
    let here = Host::live().working_in(root.path());
    let refusal =
        Settings::read(&options(&["--", "ready.sh", "--lr", "1"]), &here).expect_err("a script");
    assert!(refusal.text.en.contains("no folder of PATH"), "{refusal:?}");
    assert!(refusal.hint.en.contains("-- ./ready.sh --lr 1"), "{refusal:?}");
    assert!(Settings::read(&options(&["--", "./ready.sh"]), &here).is_ok());
    for name in ["/ready.sh", "/train", "/old", "/gone"] {
        assert!(Settings::read(&options(&["--", name]), &node).is_ok(), "{name}");
    }
}

#[test]
fn command_line_program_replaces_the_profiles_program() {
    let (_folder, path) = file("[job]\nscript = 'a.py'\nargs = ['--lr', '1']");
    let program = |line: &[&str], node: &Host| {
        let settings = Settings::read(&options(&[&["--profile", &path], line].concat()), node);
        let program = settings.expect("settings").program.expect("a program");
        (program.value, program.source.to_string())
    };
    let from_file = format!("{path}:2");
    let script =
        |path: &str, args: &[&str]| Program::Script { path: path.into(), args: words(args) };
    assert_eq!(program(&[], &host(&[])), (script("a.py", &["--lr", "1"]), from_file.clone()));
    assert_eq!(
        program(&["--", "b.py", "--x"], &host(&[])),
        (script("b.py", &["--x"]), "command line".into())
    );
    assert_eq!(
        program(&["--", "--lr", "2"], &host(&[])),
        (script("a.py", &["--lr", "1", "--lr", "2"]), from_file)
    );
    let module = host(&[("RANKLAUNCH_MODULE", "m.n")]);
    assert_eq!(
        program(&["--", "--lr", "2"], &module),
        (
            Program::Module { name: "m.n".into(), args: words(&["--lr", "2"]) },
            "RANKLAUNCH_MODULE".into()
        )
    );
    assert_eq!(program(&["--", "b.py"], &module).0, script("b.py", &[]));
}
