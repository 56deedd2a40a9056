//! A replayed node for `ranklaunch plan`: files below a temporary root, a fake NVML, an
//! interpreter with torch, and only the variables that a test sets.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::fake_nvml::FakeNvml;
use crate::{Ended, Launcher, executable};

/// The path of the node's interpreter.
pub const PYTHON: &str = "/opt/env/bin/python";

#[derive(Debug)]
pub struct Node {
    root: tempfile::TempDir,
    nvml: Option<FakeNvml>,
    environment: Vec<(OsString, OsString)>,
}

/// The output of `plan --format json`, and its exit code.
#[derive(Debug)]
pub struct Planned {
    pub code: i32,
    pub json: Value,
}

impl Node {
    /// `gpus` H100s and a torch that was built for them.
    pub fn with_gpus(gpus: u32) -> Node {
        Node::of(Some(FakeNvml::new(&[("GPUS", &gpus.to_string())]))).file("/dev/nvidiactl", "")
    }

    /// A node without driver, device and NVML.
    pub fn without_gpus() -> Node {
        Node::of(None)
    }

    pub fn of(nvml: Option<FakeNvml>) -> Node {
        let root = tempfile::tempdir().expect("a folder");
        let node = Node { root, nvml, environment: Vec::new() };
        // Unknown names would each cost a DNS timeout.
        let hosts = "10.0.0.1 h j-master-0 j-node-0-0.j j-worker-0 wan22-master-0 n03 a-1 \
            jo-dbxfe2k2l635222i-worker-0\n127.0.0.1 localhost\n";
        node.interpreter("/opt/env").file("/etc/hosts", hosts)
    }

    /// An interpreter in `prefix`/bin with torch 2.6 beside it.
    pub fn interpreter(self, prefix: &str) -> Node {
        let node = self.file(&format!("{prefix}/bin/python"), "#!/bin/sh\n").file(
            &format!("{prefix}/lib/python3.11/site-packages/torch/version.py"),
            "__version__ = '2.6.0+cu124'\ncuda: Optional[str] = '12.4'\n",
        );
        let python = node.inside(&format!("{prefix}/bin/python"));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&python, mode).expect("a mode");
        std::os::unix::fs::symlink("python", python.with_file_name("python3")).expect("a link");
        node
    }

    pub fn file(self, path: &str, text: &str) -> Node {
        let file = self.inside(path);
        std::fs::create_dir_all(file.parent().expect("below the root")).expect("a folder");
        std::fs::write(file, text).expect("a file");
        self
    }

    pub fn inside(&self, path: &str) -> std::path::PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn env(mut self, name: &str, value: &str) -> Node {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Sets `NAME=value NAME=value`, the form of a platform's variables in the tables.
    pub fn platform(mut self, pairs: &str) -> Node {
        for (name, value) in pairs.split_whitespace().filter_map(|pair| pair.split_once('=')) {
            self = self.env(name, value);
        }
        self
    }

    /// `ranklaunch SUBCOMMAND --host-root ROOT ARGS…` with the node's variables and no others.
    pub fn launcher(&self, subcommand: &str, args: &[&str]) -> Launcher {
        let mut command = Command::new(executable());
        command.env_clear();
        let mut words: Vec<OsString> = vec![subcommand.into(), "--host-root".into()];
        words.push(self.root.path().into());
        words.extend(args.iter().map(OsString::from));
        let mut launcher = Launcher::of(command, words).env("PATH", "/opt/env/bin");
        if let Some(nvml) = &self.nvml {
            launcher = launcher.env("RANKLAUNCH_NVML_LIBRARY", nvml.library());
        }
        for (name, value) in &self.environment {
            launcher = launcher.env(&name.to_string_lossy(), value);
        }
        launcher
    }

    pub fn plan(&self, args: &[&str]) -> Ended {
        self.launcher("plan", args).run()
    }

    pub fn json(&self, args: &[&str]) -> Planned {
        let args = [&["--format", "json"], args].concat();
        let ended = self.plan(&args);
        assert_eq!(ended.err, "", "JSON says everything, a refusal too");
        let json = serde_json::from_str(&ended.out)
            .unwrap_or_else(|error| panic!("{error}: {}", ended.out));
        Planned { code: ended.code, json }
    }
}

impl Planned {
    /// The value at a JSON pointer as text: `5`, `eth0`, `null`.
    pub fn at(&self, pointer: &str) -> String {
        match self.json.pointer(pointer) {
            None => "absent".to_owned(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        }
    }

    /// The words of an array.
    pub fn words(&self, pointer: &str) -> Vec<String> {
        let array = self.json.pointer(pointer).and_then(Value::as_array);
        let array = array.unwrap_or_else(|| panic!("no {pointer} in {:#}", self.json));
        array.iter().map(|word| word.as_str().unwrap_or_default().to_owned()).collect()
    }

    pub fn warning_ids(&self) -> Vec<String> {
        let warnings = self.json.pointer("/warnings").and_then(Value::as_array);
        let warnings = warnings.map(Vec::as_slice).unwrap_or_default();
        warnings.iter().map(|one| one["id"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// `code id` of a refusal.
    pub fn refusal(&self) -> String {
        format!("{} {}", self.code, self.at("/refused/id"))
    }
}
