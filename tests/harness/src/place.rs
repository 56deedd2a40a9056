//! Where a launcher runs: a child of the test, below a subreaper, PID 1 of a namespace or a container.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::skipped;

/// Where the launcher runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A child of the test.
    Plain,
    /// Below another subreaper, which tells what came to it.
    Subreaper,
    /// PID 1 of a PID namespace of its own.
    Namespace,
    /// PID 1 of a container whose root holds nothing.
    Docker,
}

pub const PLACES: [Place; 4] = [Place::Plain, Place::Subreaper, Place::Namespace, Place::Docker];

impl Place {
    /// Says why it skips a place that this machine does not have.
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
            Place::Docker => image().is_none().then_some("docker does not answer here"),
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

pub(crate) fn quiet(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// An image without a single program; None where docker does not work.
pub fn image() -> Option<&'static str> {
    static IMAGE: OnceLock<bool> = OnceLock::new();
    const NAME: &str = "ranklaunch-test-empty";
    IMAGE
        .get_or_init(|| {
            // Made once, since importing it again would leave the older one without a name.
            if quiet(Command::new("docker").args(["image", "inspect", NAME])) {
                return true;
            }
            let folder = tempfile::tempdir().unwrap();
            // docker makes the mount points, all but /tmp, which the launcher may want.
            std::fs::create_dir(folder.path().join("tmp")).unwrap();
            let tar = folder.path().join("root.tar");
            quiet(Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(folder.path()).arg("tmp"))
                && quiet(Command::new("docker").arg("import").arg(&tar).arg(NAME))
        })
        .then_some(NAME)
}
