//! What starts a container's ranks, as far as its command line is read here.

pub(super) use crate::launchers::Field;
use crate::launchers::Kind;

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
    /// None for those whose flags are not read.
    pub(super) fn of(kind: Kind) -> Option<Launcher> {
        match kind {
            Kind::Torchrun => Some(Launcher::Torchrun),
            Kind::Accelerate => Some(Launcher::Accelerate),
            Kind::Deepspeed => Some(Launcher::Deepspeed),
            Kind::PerGpu | Kind::Anywhere | Kind::Daemon => None,
        }
    }
}
