//! One file without dependencies: the executable needs no loader and no library, and works in a
//! root that contains nothing else.

use std::path::Path;
use std::process::{Command, Output};

use harness::fake_nvml::FakeNvml;
use harness::{Launcher, executable, skipped};
use serde_json::Value;

/// A 64-bit little-endian number of `size` bytes at `at`.
fn number(bytes: &[u8], at: usize, size: usize) -> usize {
    let part = bytes[at..at + size].iter().rev();
    part.fold(0, |sum, byte| sum << 8 | usize::from(*byte))
}

/// Types of the program headers (elf(5)).
fn program_headers(bytes: &[u8]) -> Vec<usize> {
    assert_eq!(&bytes[..6], b"\x7fELF\x02\x01", "64 bits, little endian");
    let (table, size, count) = (number(bytes, 32, 8), number(bytes, 54, 2), number(bytes, 56, 2));
    (0..count).map(|index| number(bytes, table + index * size, 4)).collect()
}

#[test]
fn executable_needs_no_loader_and_no_library() {
    const LOAD: usize = 1;
    const DYNAMIC: usize = 2;
    const INTERPRETER: usize = 3;
    let bytes = std::fs::read(executable()).expect("the executable");
    let headers = program_headers(&bytes);
    assert!(headers.contains(&LOAD), "{headers:?}");
    // Without a dynamic section there is no place for DT_NEEDED.
    for absent in [DYNAMIC, INTERPRETER] {
        assert!(!headers.contains(&absent), "{headers:?}");
    }
    // The control: the same function finds the loader of a program that needs one.
    let asking = tempfile::tempdir().expect("a folder");
    let program = asking.path().join("program");
    let source = asking.path().join("program.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a file");
    harness::run_tool(Command::new("cc").arg("-o").arg(&program).arg(&source));
    let headers = program_headers(&std::fs::read(program).expect("a program"));
    assert!(headers.contains(&DYNAMIC) && headers.contains(&INTERPRETER), "{headers:?}");
}

/// `ranklaunch ARGS…` in a root that holds only the executable; `None` if chroot is not allowed.
fn in_an_empty_root(args: &[&str]) -> Option<(Output, Vec<String>)> {
    if !nix::unistd::geteuid().is_root() {
        skipped("only root may change its root");
        return None;
    }
    let root = tempfile::tempdir().expect("a folder");
    let inside = root.path().join("ranklaunch");
    harness::run_tool(Command::new("cp").arg(executable()).arg(&inside));
    let output = Command::new("chroot")
        .arg(root.path())
        .arg("/ranklaunch")
        .args(args)
        .env_clear()
        .env("RUST_BACKTRACE", "1")
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .output()
        .expect("chroot runs");
    if output.status.code() == Some(125) {
        skipped(format_args!("this machine does not allow chroot: {output:?}"));
        return None;
    }
    let files = std::fs::read_dir(root.path()).expect("a folder").flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned()).collect();
    Some((output, names))
}

#[test]
fn an_empty_root_gets_plans_and_refusals() {
    let table: &[(&[&str], i32, &str)] = &[
        (&["--version"], 0, "static)"),
        (&["plan", "--format", "json", "--", "a.py"], 67, "python.interpreter"),
        (&["plan", "--engine", "command", "--", "job"], 0, "gpu.none"),
        (&["plan", "--profile", "wan22", "--format", "json"], 80, "device gpu (wan22.toml"),
        (&["plan", "--device", "gpu", "--", "a.py"], 80, "--device"),
        (&["plan", "--nnodes", "x", "--", "a.py"], 64, "`x`"),
        // Names are resolved without a file of the root.
        (&["wait", "localhost:1", "--timeout", "0"], 86, "localhost:1"),
        (&["wait", "nobody.invalid:1", "--timeout", "1"], 85, "/etc/hosts"),
        // Without /proc, ranks could not be identified or ended, so the message names the missing
        // mount.
        (&["run", "--", "a.py"], 70, "mount /proc"),
    ];
    for (args, code, words) in table {
        let Some((output, files)) = in_an_empty_root(args) else { return };
        let said = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
        let said = String::from_utf8_lossy(&said);
        assert_eq!(output.status.code(), Some(*code), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {words}: {said}");
        assert!(!said.contains("panicked") && !said.contains("backtrace"), "{args:?}: {said}");
        assert_eq!(files, ["ranklaunch"], "{args:?} left files");
    }
}

/// `plan --format json` on this node with a fake NVML, probed in the given way.
fn plan(how: &str, launcher: impl Fn(Launcher) -> Launcher) -> (i32, Value) {
    let args = ["plan", "--format", "json", "--engine", "command", "--probe", how, "--", "job"];
    let ended = launcher(Launcher::new(args).env("CUDA_VISIBLE_DEVICES", "")).run();
    let json = serde_json::from_str(&ended.out).unwrap_or_else(|_| panic!("{}", ended.err));
    (ended.code, json)
}

#[test]
fn driver_probe_runs_from_file_memory_or_not() {
    let nvml = FakeNvml::new(&[("GPUS", "4")]);
    let with = |how: &str| {
        plan(how, |launcher| {
            launcher
                .env("RANKLAUNCH_NVML_LIBRARY", nvml.library())
                .env("CUDA_VISIBLE_DEVICES", "0,1,2,3")
        })
    };
    for how in ["auto", "file", "memfd"] {
        let (code, json) = with(how);
        let device = &json["decisions"][device_of(&json)]["because"];
        let gpus = json["gpus"].as_array().map(Vec::len);
        assert_eq!((code, gpus, device.as_str()), (0, Some(4), Some(NVML)), "{how}: {json:#}");
    }
    if Path::new("/dev/nvidiactl").exists() {
        skipped("this node has GPUs of its own");
        return;
    }
    let (code, json) = with("off");
    let text = json["refused"]["text"].to_string();
    assert!(code == 80 && text.contains("CUDA_VISIBLE_DEVICES=0,1,2,3"), "{json:#}");
    assert!(text.contains("switched off by --probe"), "{text}");
}

const NVML: &str = "4 GPUs visible, as NVML says";

/// The index of the decision about the device.
fn device_of(json: &Value) -> usize {
    let decisions = json["decisions"].as_array().expect("a list");
    decisions.iter().position(|one| one["what"] == "device").expect("decided")
}

#[test]
fn nvidia_smi_is_asked_on_request() {
    let folder = tempfile::tempdir().expect("a folder");
    let rows = "0, GPU-a, Tesla T4, 00000000:18:00.0, 15360, 0, Disabled, 570.86.15\n\
                1, GPU-b, Tesla T4, 00000000:28:00.0, 15360, 0, Disabled, 570.86.15\n";
    let file = folder.path().join("nvidia-smi");
    harness::write_program(&file, &format!("#!/bin/sh\nprintf '%s' '{rows}'\n"));
    let (code, json) = plan("nvidia-smi", |launcher| {
        launcher.env("PATH", folder.path()).env("CUDA_VISIBLE_DEVICES", "0,1")
    });
    assert_eq!(code, 0, "{json:#}");
    let because = json["decisions"][device_of(&json)]["because"].as_str();
    assert_eq!(because, Some("2 GPUs visible, as nvidia-smi says"), "{json:#}");
}
