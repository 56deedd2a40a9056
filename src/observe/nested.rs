//! What an earlier or outer torchrun left in the environment, and whether one
//! is above us.
//!
//! Takes the environment and /proc; gives the variables and the living
//! ancestor. Never decides what they mean for a launch.

use crate::host::Host;

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

/// More generations than any process tree has; ends the walk in a faked /proc.
const GENERATIONS: usize = 1024;

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

/// The nearest ancestor that is torchrun: pid and command line.
pub fn torchrun_above(host: &Host) -> Option<(i32, String)> {
    let mut pid = parent(host, "self")?;
    for _ in 0..GENERATIONS {
        if pid <= 0 {
            return None;
        }
        // An ancestor that cannot be read (hidepid, already gone) is passed over.
        let argv = host.read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let argv: Vec<&str> = argv.trim_end_matches('\0').split('\0').collect();
        if is_torchrun(&argv) {
            return Some((pid, argv.join(" ")));
        }
        pid = parent(host, &pid.to_string())?;
    }
    None
}

fn parent(host: &Host, pid: &str) -> Option<i32> {
    let status = host.read(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// Whether this command line runs torchrun itself, and does not merely name it
/// (`vim torchrun`, `bash -c "torchrun …"` whose child is the real one).
fn is_torchrun(argv: &[&str]) -> bool {
    let base = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let Some((program, rest)) = argv.split_first() else { return false };
    if base(program) == "torchrun" {
        return true;
    }
    if !base(program).starts_with("python") {
        return false;
    }
    let mut rest = rest.iter();
    while let Some(argument) = rest.next() {
        match *argument {
            "-m" => return rest.next().is_some_and(|module| is_launcher(module)),
            // Options of the interpreter with a value of their own.
            "-X" | "-W" | "--check-hash-based-pycs" => {
                rest.next();
            }
            option if option.starts_with("-m") => {
                return option.strip_prefix("-m").is_some_and(is_launcher);
            }
            "-c" | "-" => return false,
            option if option.starts_with('-') => {}
            script => return base(script) == "torchrun",
        }
    }
    false
}

fn is_launcher(module: &str) -> bool {
    matches!(module, "torch.distributed.run" | "torch.distributed.launch")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torchrun_is_known_by_what_runs_not_by_what_is_named() {
        let table: [(&str, bool); 11] = [
            ("/usr/bin/torchrun --nproc-per-node 2 a.py", true),
            ("/usr/bin/python3 /opt/venv/bin/torchrun a.py", true),
            ("python3.11 -u -m torch.distributed.run a.py", true),
            ("python -X faulthandler -m torch.distributed.launch a.py", true),
            ("python -mtorch.distributed.run a.py", true),
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
