//! Places in which a launcher runs: as child of the test, below a subreaper, as PID 1 of a
//! namespace or of a container.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::{docker, skipped};

/// The place in which the launcher runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A child of the test.
    Plain,
    /// Below another subreaper, which reports adopted processes.
    Subreaper,
    /// PID 1 of a PID namespace of its own.
    Namespace,
    /// PID 1 of a container with an empty root.
    Docker,
}

pub const PLACES: [Place; 4] = [Place::Plain, Place::Subreaper, Place::Namespace, Place::Docker];

impl Place {
    /// True if this machine supports the place; prints a skip if not.
    pub fn exists(self) -> bool {
        static NAMESPACE: OnceLock<bool> = OnceLock::new();
        let missing = match self {
            Place::Plain | Place::Subreaper => return true,
            Place::Namespace => {
                let found = *NAMESPACE.get_or_init(|| {
                    quiet(Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]))
                });
                (!found).then_some("unshare may not make a PID namespace here")
            }
            Place::Docker => docker::why_missing(),
        };
        if let Some(missing) = missing {
            skipped(format_args!("{self:?}: {missing}"));
        }
        missing.is_none()
    }

    pub fn is_init(self) -> bool {
        matches!(self, Place::Namespace | Place::Docker)
    }
}

fn quiet(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
