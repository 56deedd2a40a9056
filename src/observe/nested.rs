//! What an earlier or outer torchrun left in the environment, and whether one
//! is above us.
//!
//! Takes the environment and /proc; gives the variables and the living
//! ancestor. Never decides what they mean for a launch.

use crate::host::Host;
use crate::launchers::{self, Kind};
use crate::procfs::{self, Process};

/// What torchrun sets for each worker and what is wrong in any other process.
/// Its tunables (TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, TORCHELASTIC_ERROR_FILE…) are the
/// user's, and RANK and WORLD_SIZE belong to the contracts.
const RANK_VARIABLES: [&str; 11] = [
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "ROLE_NAME",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
];

pub(super) fn rank_variables(host: &Host) -> Vec<String> {
    RANK_VARIABLES
        .into_iter()
        .filter(|name| host.variable(name).is_some())
        .map(str::to_owned)
        .collect()
}

/// PET_*: torchrun takes each as the default of a flag.
pub(super) fn pet_variables(host: &Host) -> Vec<String> {
    host.environment()
        .keys()
        .filter_map(|name| name.to_str())
        .filter(|name| name.starts_with("PET_"))
        .map(str::to_owned)
        .collect()
}

/// The nearest ancestor that is torchrun, or a launcher like it: pid and command line.
pub fn torchrun_above(host: &Host) -> Option<(i32, String)> {
    procfs::above(host).into_iter().find_map(|Process { pid, .. }| {
        // One that cannot be read (hidepid, already gone) is passed over.
        let argv = host.read(format!("/proc/{pid}/cmdline")).ok()?;
        let argv: Vec<&str> = argv.trim_end_matches('\0').split('\0').collect();
        is_torchrun(&argv).then(|| (pid, argv.join(" ")))
    })
}

/// Whether a command line starts one process for every GPU; whoever starts any program
/// anywhere (mpirun, srun) may have started one of us on each node.
fn is_torchrun(argv: &[&str]) -> bool {
    launchers::of_argv(argv).is_some_and(|(launcher, _)| match launcher.kind {
        Kind::Torchrun | Kind::Accelerate | Kind::Deepspeed | Kind::PerGpu => true,
        Kind::Anywhere | Kind::Daemon => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torchrun_is_known_by_what_runs_not_by_what_is_named() {
        let table = [
            ("/usr/bin/torchrun --nproc-per-node 2 a.py", true),
            ("/usr/bin/python3 /opt/venv/bin/torchrun a.py", true),
            ("python3.11 -u -m torch.distributed.run a.py", true),
            ("python -X faulthandler -m torch.distributed.launch a.py", true),
            ("python -mtorch.distributed.run a.py", true),
            ("python -um torch.distributed.run a.py", true),
            ("python -uX dev -m torch.distributed.run a.py", true),
            ("accelerate launch a.py", true),
            ("python -m accelerate.commands.launch a.py", true),
            ("python /opt/venv/bin/deepspeed a.py", true),
            ("mpirun -np 2 ranklaunch", false),
            ("srun ranklaunch", false),
            ("timeout 1h torchrun a.py", true),
            ("uv run torchrun a.py", true),
            ("conda run -n x python -m torch.distributed.run a.py", true),
            ("timeout 1h ranklaunch -- a.py", false),
            ("uv run a.py torchrun", false),
            ("python -m pdb -m torch.distributed.run a.py", false),
            ("python train.py torchrun", false),
            ("python -c torchrun", false),
            ("vim torchrun", false),
            ("bash torchrun", false),
            ("", false),
        ];
        for (line, expected) in table {
            let argv: Vec<&str> = line.split(' ').collect();
            assert_eq!(is_torchrun(&argv), expected, "{line}");
        }
    }
}
