//! The launchers that lint distinguishes.

pub(super) use settings::launchers::FlagField;
use settings::launchers::LauncherKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launcher {
    Torchrun,
    Accelerate,
    Deepspeed,
    Ranklaunch,
    /// A Python script without any launcher.
    Python,
}

impl Launcher {
    /// None for launchers whose flags are not read.
    pub(super) fn of(kind: LauncherKind) -> Option<Launcher> {
        match kind {
            LauncherKind::Torchrun => Some(Launcher::Torchrun),
            LauncherKind::Accelerate => Some(Launcher::Accelerate),
            LauncherKind::Deepspeed => Some(Launcher::Deepspeed),
            LauncherKind::PerGpu | LauncherKind::Anywhere | LauncherKind::Daemon => None,
        }
    }
}
