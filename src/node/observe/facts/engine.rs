//! Facts from the files of the engine: its configuration, and the flags that it knows.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use text::lang::Text;
use text::text;

/// The command line of the installed engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineCli {
    /// Path of the source file.
    pub path: PathBuf,
    /// Such as `accelerate 1.15.0`; only the name if the version is unknown.
    pub package: String,
    /// Flag names without leading hyphens and with underscores: `--num_machines` is `num_machines`.
    pub flags: BTreeSet<String>,
}

impl EngineCli {
    /// Whether argparse accepts this flag. argparse also accepts the beginning of a flag's name.
    pub fn knows(&self, flag: &str) -> bool {
        let name = flag.trim_start_matches('-').replace('-', "_");
        self.flags.iter().any(|known| known.starts_with(&name))
    }
}

/// A configuration file of accelerate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccelerateConfig {
    pub path: PathBuf,
    /// Whether the engine's arguments name the file; otherwise it is accelerate's default.
    pub given: bool,
    /// `NO`, `MULTI_GPU`, `FSDP`, `DEEPSPEED`…
    pub distributed_type: Option<String>,
    pub use_cpu: bool,
}

impl AccelerateConfig {
    /// `'NO'` in the spelling of the file; `(none)` if the file has no type.
    pub fn mode(&self) -> String {
        self.distributed_type
            .as_ref()
            .map_or_else(|| "(none)".to_owned(), |mode| format!("'{mode}'"))
    }

    /// Whether `accelerate launch` starts one process in this mode, regardless of
    /// --num_processes (its `simple_launcher`).
    pub fn starts_one_process(&self) -> bool {
        matches!(self.distributed_type.as_deref(), Some("NO" | "MULTI_CPU"))
    }

    /// The hint for a mode that starts one process.
    pub fn cure(&self) -> Text {
        let (path, mode) = (self.path.display(), self.mode());
        text!(
            "use MULTI_GPU (on CPUs as well), FSDP or DEEPSPEED in place of distributed_type: {mode} in {path}, or ask for one process with --nnodes 1 --nproc-per-node 1",
            "请将 {path} 中的 distributed_type: {mode} 改为 MULTI_GPU（CPU 上同样适用）、FSDP 或 DEEPSPEED，或用 --nnodes 1 --nproc-per-node 1 只要求一个进程"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_may_be_shortened_or_use_underscores() {
        let flags = ["num_machines", "no_python"].map(str::to_owned).into();
        let cli = EngineCli { path: PathBuf::new(), package: "accelerate".to_owned(), flags };
        for (flag, known) in [
            ("--num_machines", true),
            ("--num-mach", true),
            ("--no-python", true),
            ("--log_dir", false),
        ] {
            assert_eq!(cli.knows(flag), known, "{flag}");
        }
    }
}
