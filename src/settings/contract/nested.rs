//! Finds variables of an earlier or outer torchrun, and a torchrun among our ancestors.
//!
//! Takes the environment and /proc; gives the variables and the living ancestor. `plan` decides
//! what they mean for a launch.

use std::ffi::{OsStr, OsString};

use crate::contract::{Claim, Contract};
use crate::launchers::{Launcher, LauncherKind};
use linux::host::Host;
use linux::own_executable;
use linux::procfs::Process;
use text::mask::mask_args;

impl Contract {
    /// Variables that torchrun sets for each worker, which are wrong in any other process. Its
    /// tunables (TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, TORCHELASTIC_ERROR_FILE…) belong to the
    /// user, RANK and WORLD_SIZE to the contracts.
    pub const RANK_VARIABLES: [&str; 11] = [
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

    /// The nearest ancestor that is torchrun or a similar launcher, including ranklaunch with the
    /// engine `direct`: pid and command line, without secrets.
    pub fn torchrun_above(host: &Host) -> Option<(i32, String)> {
        // Without these variables the shim is that of the engine `command`, whose program starts ranks itself.
        let in_rank = ["RANK", "LOCAL_RANK"].iter().all(|name| host.variable(name).is_some());
        host.ancestors().into_iter().find_map(|Process { pid, .. }| {
            // Skip a process that cannot be read (hidepid, or it has ended).
            let argv = host.read(format!("/proc/{pid}/cmdline")).ok()?;
            let argv: Vec<&str> = argv.trim_end_matches('\0').split('\0').collect();
            let starts_ranks = is_torchrun(&argv) || (in_rank && is_shim(&argv));
            starts_ranks.then(|| {
                // A refusal quotes the command line, so secrets are masked.
                let argv: Vec<OsString> = argv.iter().map(OsString::from).collect();
                let shown = mask_args(&argv).join(OsStr::new(" "));
                (pid, shown.to_string_lossy().into_owned())
            })
        })
    }
}

pub(super) fn rank_variables(host: &Host) -> Vec<String> {
    Contract::RANK_VARIABLES
        .into_iter()
        .filter(|name| host.variable(name).is_some())
        .map(str::to_owned)
        .collect()
}

/// PET_*: torchrun takes each as the default of a flag.
pub(super) fn pet_variables(host: &Host) -> Vec<Claim> {
    let set = host.environment().iter().filter_map(|(name, value)| {
        let variable = name.to_str().filter(|name| name.starts_with("PET_"))?.to_owned();
        Some(Claim { variable, value: value.to_string_lossy().into_owned() })
    });
    set.collect()
}

/// Whether a command line is that of a rank shim.
fn is_shim(argv: &[&str]) -> bool {
    matches!(argv, [first, "rank", ..] if own_executable::is_named(first.as_bytes()))
}

/// Whether a command line starts one process per GPU. General launchers (mpirun, srun) do not
/// count: they may have started one ranklaunch per node.
fn is_torchrun(argv: &[&str]) -> bool {
    Launcher::of_argv(argv).is_some_and(|(launcher, _)| match launcher.kind {
        LauncherKind::Torchrun
        | LauncherKind::Accelerate
        | LauncherKind::Deepspeed
        | LauncherKind::PerGpu => true,
        LauncherKind::Anywhere | LauncherKind::Daemon => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launcher_above_is_reported_without_secrets() {
        let stat = |pid: i32, parent: i32| {
            format!(
                "{pid} (x) S {parent} {pid} {pid} 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 0 0 \
                 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
            )
        };
        let argv = "torchrun\0--nproc-per-node\x002\0a.py\0--hf_token\0S3CR3T\0";
        let (own, above) = (stat(8, 7), stat(7, 1));
        let (_root, host) = Host::of_files(&[
            ("proc/self/stat", own.as_str()),
            ("proc/7/stat", above.as_str()),
            ("proc/7/cmdline", argv),
        ]);
        let shown = "torchrun --nproc-per-node 2 a.py --hf_token ***";
        assert_eq!(Contract::torchrun_above(&host), Some((7, shown.to_owned())));
    }

    #[test]
    fn torchrun_is_recognised_by_the_executed_program() {
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
