//! The table of engines, which start the ranks of a node.
//!
//! One row per engine: its name, the modules that it needs, which processes it starts and its
//! other properties. The command lines are in `plan/engine/`. Independent of settings, facts and
//! plan.

use std::fmt::{self, Display, Formatter};

use serde::{Deserialize, Serialize};

/// An engine, which starts the ranks of this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    #[default]
    Torchrun,
    Accelerate,
    Deepspeed,
    /// ranklaunch itself, with torch's env:// variables.
    Direct,
    /// The user's own launcher, run once per node.
    Command,
}

/// The processes that ranklaunch itself starts on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    /// The engine's program, which starts the ranks through the rank shim.
    Launcher,
    /// Each rank, or the single rank of a task.
    Ranks,
    /// The user's command, once per node, with the platform's variables.
    Command,
}

/// One engine.
#[derive(Debug)]
pub struct EngineRow {
    /// The name in settings.
    pub name: &'static str,
    /// Top-level modules that its command line imports; empty if it runs without Python.
    pub modules: &'static [&'static str],
    /// The source of its command line in site-packages.
    pub command_line: Option<&'static str>,
    pub starts: Starts,
    /// The engine's processes on all nodes meet in torch's store, as the ranks do.
    pub launchers_meet: bool,
    /// The engine supports c10d as well as static rendezvous.
    pub has_c10d: bool,
    /// The engine reads accelerate's configuration file.
    pub reads_config: bool,
    /// The variable that the engine needs to start several ranks on CPUs.
    pub on_cpus: Option<(&'static str, &'static str)>,
}

const TORCHRUN: EngineRow = EngineRow {
    name: "torchrun",
    modules: &["torch"],
    command_line: Some("torch/distributed/run.py"),
    starts: Starts::Launcher,
    launchers_meet: true,
    has_c10d: true,
    reads_config: false,
    on_cpus: None,
};

const ACCELERATE: EngineRow = EngineRow {
    name: "accelerate",
    modules: &["torch", "accelerate"],
    command_line: Some("accelerate/commands/launch.py"),
    has_c10d: false,
    reads_config: true,
    // Its own --cpu would start a single process.
    on_cpus: Some(("ACCELERATE_USE_CPU", "true")),
    ..TORCHRUN
};

const DEEPSPEED: EngineRow = EngineRow {
    name: "deepspeed",
    modules: &["torch", "deepspeed"],
    command_line: Some("deepspeed/launcher/launch.py"),
    launchers_meet: false,
    has_c10d: false,
    ..TORCHRUN
};

const DIRECT: EngineRow = EngineRow {
    name: "direct",
    modules: &[],
    command_line: None,
    starts: Starts::Ranks,
    launchers_meet: false,
    has_c10d: false,
    ..TORCHRUN
};

const COMMAND: EngineRow = EngineRow { name: "command", starts: Starts::Command, ..DIRECT };

/// The names of all engines.
pub(crate) const NAMES: &[&str] = &["torchrun", "accelerate", "deepspeed", "direct", "command"];

impl Engine {
    pub const fn row(self) -> &'static EngineRow {
        match self {
            Self::Torchrun => &TORCHRUN,
            Self::Accelerate => &ACCELERATE,
            Self::Deepspeed => &DEEPSPEED,
            Self::Direct => &DIRECT,
            Self::Command => &COMMAND,
        }
    }

    /// Whether the engine runs the user's command unchanged, once per node.
    pub fn runs_a_command(self) -> bool {
        self.row().starts == Starts::Command
    }
}

impl Display for Engine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;
    use crate::value::named;

    #[test]
    fn an_engine_is_called_the_same_everywhere() {
        for name in NAMES {
            let engine: Engine = named(name).expect(name);
            let row = engine.row();
            assert_eq!(serde_json::json!(engine), *name);
            assert_eq!(engine.to_string(), *name);
            assert_eq!(row.starts == Starts::Launcher, !row.modules.is_empty(), "{name}");
        }
    }

    /// The files of an engine: the row here, its arm in `plan/engine/mod.rs` and a file in that folder.
    #[test]
    fn an_engine_costs_at_most_three_files() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let engines = NAMES.iter().filter_map(|name| named::<Engine>(name));
        let variants: Vec<String> = engines.map(|engine| format!("Engine::{engine:?}")).collect();
        let (mut found, mut folders) = (BTreeSet::new(), vec![root.join("src")]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                if stem.starts_with("tests") || stem == "once_per_rank" {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let text = std::fs::read_to_string(&path).unwrap_or_default();
                    // Unit tests may name an engine.
                    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                    if variants.iter().any(|variant| code.contains(variant)) {
                        found.insert(path.strip_prefix(&root).expect("below the root").to_owned());
                    }
                }
            }
        }
        assert_eq!(found, BTreeSet::from(["src/plan/engine/mod.rs".into()]));
    }
}
