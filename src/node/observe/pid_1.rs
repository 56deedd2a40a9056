//! Detects a PID 1 that is a shell and does not forward SIGTERM.
//!
//! The kernel delivers to PID 1 only signals for which it has a handler (pid_namespaces(7)), and
//! a shell that runs a script has none for SIGTERM. So stopping the container takes the whole
//! grace period, and then everything in it is killed at once.

use std::path::Path;

use super::NonForwardingInit;
use linux::host::Host;
use linux::shells;

/// Bit of SIGTERM in the masks of proc_pid_status(5).
const TERM: u64 = 1 << 14;

/// The shell that runs as PID 1. None if PID 1 is anything else, handles SIGTERM itself (`trap`), is not our ancestor
/// (`docker exec`), or is an interactive shell.
pub(super) fn non_forwarding_init(host: &Host) -> Option<NonForwardingInit> {
    // The ancestors of a process that entered from outside (`docker exec`) end at 0, because proc_pid_stat(5) shows a
    // parent in another namespace as 0.
    if host.ancestors().last()?.pid != 1 {
        return None;
    }
    let cmdline = host.read("/proc/1/cmdline").ok()?;
    let (program, arguments) = cmdline.split_once('\0')?;
    let name = Path::new(program).file_name()?.to_str()?;
    let name = name.strip_prefix('-').unwrap_or(name);
    if !shells::is_shell(name.as_bytes()) {
        return None;
    }
    let mut flags = String::new();
    let script = arguments.split_terminator('\0').find(|word| {
        let is_flag = word.starts_with('-');
        if is_flag {
            flags.push(' ');
            flags.push_str(word);
        }
        !is_flag
    });
    // `bash` and `bash -l` are interactive. The text of a script is not shown, since it may hold
    // secrets.
    let script = if flags.ends_with('c') { script.map(|_| "…") } else { script }?;
    let status = host.read("/proc/1/status").ok()?;
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
    let caught = u64::from_str_radix(caught.trim(), 16).ok()?;
    (caught & TERM == 0).then(|| NonForwardingInit {
        name: name.to_owned(),
        command: format!("{program}{flags} {script}"),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn seen(cmdline: &str, caught: &str, parent_of_guard: i32) -> Option<NonForwardingInit> {
        let root = tempfile::tempdir().expect("a folder");
        let stat = |pid: i32, parent: i32| {
            format!(
                "{pid} (x) S {parent} {pid} {pid} 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 100 0 0 \
                 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
            )
        };
        for (file, text) in [
            ("proc/self/stat", stat(8, 7)),
            ("proc/7/stat", stat(7, parent_of_guard)),
            ("proc/1/stat", stat(1, 0)),
            ("proc/1/cmdline", cmdline.replace(' ', "\0") + "\0"),
            ("proc/1/status", format!("Name:\tx\nSigIgn:\t0000000000000004\nSigCgt:\t{caught}\n")),
        ] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        non_forwarding_init(&Host::replayed(root.path(), BTreeMap::new()))
    }

    #[test]
    fn only_a_script_shell_without_trap_is_deaf() {
        const NONE: &str = "0000000000010002";
        const TRAP: &str = "0000000000014002";
        let rows: [(&str, &str, i32, Option<&str>); 11] = [
            ("/bin/bash -c TOKEN=x;ranklaunch", NONE, 1, Some("/bin/bash -c …")),
            ("sh /start.sh arg", NONE, 1, Some("sh /start.sh")),
            ("/bin/bash -e -xc ranklaunch", NONE, 1, Some("/bin/bash -e -xc …")),
            ("-bash -c x", NONE, 1, Some("-bash -c …")),
            // The shell catches the signal, perhaps to forward it.
            ("/bin/bash -c trap", TRAP, 1, None),
            // The shells are interactive.
            ("bash", NONE, 1, None),
            ("-bash", NONE, 1, None),
            ("bash -l", NONE, 1, None),
            ("/usr/bin/tini -- bash -c x", NONE, 1, None),
            ("/pause", NONE, 1, None),
            // The process entered by docker exec.
            ("/bin/bash -c sleep", NONE, 0, None),
        ];
        for (cmdline, caught, above, expected) in rows {
            let found = seen(cmdline, caught, above);
            assert_eq!(found.map(|shell| shell.command).as_deref(), expected, "{cmdline}");
        }
    }
}
