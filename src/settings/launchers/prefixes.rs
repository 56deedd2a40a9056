//! The table of prefixes, which only run the command after them: `nohup`, `env X=1`, `timeout
//! 1h`, `uv run`.
//!
//! Takes a command line; gives the position of the command itself. A word in no row is the
//! command.

use std::ops::Range;

use linux::procfs::basename;

/// The scope of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PrefixScope {
    /// A shell keyword, which cannot be executed.
    Shell,
    /// The whole job: its duration, its terminal.
    Job,
    /// The process that it runs, and so each rank: variables, environment, CPUs.
    Rank,
}

/// One prefix.
#[derive(Debug)]
struct Prefix {
    names: &'static [&'static str],
    /// The word that follows the name, as in `conda run`.
    verb: Option<&'static str>,
    scope: PrefixScope,
    /// Flags whose value is the next word; all others are one word.
    valued: &'static [&'static str],
    /// Number of its own arguments between flags and command.
    own: usize,
    /// Flags after which no command follows: `command -v torchrun` prints a path.
    ends: &'static [&'static str],
}

const NONE: Prefix =
    Prefix { names: &[], verb: None, scope: PrefixScope::Job, valued: &[], own: 0, ends: &[] };

const ENVIRONMENT: Prefix = Prefix { verb: Some("run"), scope: PrefixScope::Rank, ..NONE };

#[rustfmt::skip]
const PREFIXES: &[Prefix] = &[
    Prefix { names: &["exec"], scope: PrefixScope::Shell, valued: &["-a"], ..NONE },
    Prefix { names: &["command"], scope: PrefixScope::Shell, ends: &["-v", "-V"], ..NONE },
    Prefix {
        names: &["time"],
        scope: PrefixScope::Shell,
        valued: &["-f", "--format", "-o", "--output"],
        ..NONE
    },
    Prefix { names: &["nohup", "setsid", "unbuffer", "catatonit"], ..NONE },
    Prefix { names: &["tini", "tini-static"], valued: &["-p", "-e"], ..NONE },
    Prefix { names: &["dumb-init"], valued: &["-r", "--rewrite"], ..NONE },
    Prefix {
        names: &["timeout"],
        valued: &["-s", "--signal", "-k", "--kill-after"],
        own: 1,
        ..NONE
    },
    Prefix {
        names: &["sudo"],
        valued: &["-u", "--user", "-g", "--group", "-h", "--host", "-p", "-C", "-D", "-R", "-T"],
        ends: &["-l", "-e", "-v"],
        ..NONE
    },
    Prefix { names: &["gosu", "su-exec", "chroot"], own: 1, ..NONE },
    Prefix {
        names: &["nsys"],
        verb: Some("profile"),
        valued: &[
            "-o", "--output", "-t", "--trace", "-s", "--sample", "-w", "--show-output", "-c",
            "--capture-range", "-d", "--duration", "-y", "--delay", "-f", "--force-overwrite", "-e",
            "--env-var", "-p", "--nvtx-capture", "-x", "--stop-on-exit", "-b", "--backtrace",
        ],
        ..NONE
    },
    Prefix {
        names: &["env"],
        scope: PrefixScope::Rank,
        valued: &["-u", "--unset", "-C", "--chdir"],
        ends: &["-S", "--split-string"],
        ..NONE
    },
    Prefix {
        names: &["stdbuf"],
        scope: PrefixScope::Rank,
        valued: &["-i", "--input", "-o", "--output", "-e", "--error"],
        ..NONE
    },
    Prefix { names: &["nice"], scope: PrefixScope::Rank, valued: &["-n", "--adjustment"], ..NONE },
    Prefix {
        names: &["ionice"],
        scope: PrefixScope::Rank,
        valued: &["-c", "--class", "-n", "--classdata"],
        ends: &["-p", "--pid"],
        ..NONE
    },
    Prefix { names: &["chrt"], scope: PrefixScope::Rank, own: 1, ends: &["-p", "--pid"], ..NONE },
    Prefix {
        names: &["taskset"],
        scope: PrefixScope::Rank,
        own: 1,
        ends: &["-p", "--pid"],
        ..NONE
    },
    Prefix {
        names: &["numactl"],
        scope: PrefixScope::Rank,
        valued: &[
            "-i", "--interleave", "-N", "--cpunodebind", "-C", "--physcpubind", "-m", "--membind",
            "-p", "--preferred", "-w", "--weighted-interleave",
        ],
        ends: &["-s", "--show", "-H", "--hardware"],
        ..NONE
    },
    Prefix {
        names: &["uv"],
        valued: &[
            "-p", "--python", "-w", "--with", "--with-editable", "--with-requirements", "--extra",
            "--no-extra", "--group", "--no-group", "--only-group", "--env-file", "--directory",
            "--project", "--package", "--index", "--default-index", "--index-url", "-i",
            "--extra-index-url", "-f", "--find-links", "--index-strategy", "--resolution",
            "--prerelease", "--link-mode", "-P", "--upgrade-package", "--reinstall-package",
            "--refresh-package", "--config-file", "--cache-dir", "-C", "--config-setting",
            "--python-platform", "--keyring-provider", "--allow-insecure-host", "--color",
        ],
        // These flags are Python's.
        ends: &["-m", "--module"],
        ..ENVIRONMENT
    },
    Prefix {
        names: &["conda", "mamba", "micromamba"],
        valued: &[
            "-n", "--name", "-p", "--prefix", "--cwd", "-r", "--root-prefix", "-e", "--env", "-a",
            "--attach",
        ],
        ..ENVIRONMENT
    },
    Prefix { names: &["pdm"], valued: &["-p", "--project"], ..ENVIRONMENT },
    Prefix { names: &["pixi"], valued: &["-e", "--environment", "--manifest-path"], ..ENVIRONMENT },
    Prefix { names: &["poetry", "pipenv", "rye", "hatch"], ..ENVIRONMENT },
];

/// Prefixes and flags after which a path may mean another file than here.
#[rustfmt::skip]
const ELSEWHERE: &[&str] = &[
    "chroot", "sudo", "hatch", "pdm", "pixi", "rye", "-C", "--chdir", "--cwd", "--directory",
    "--project",
];

/// Whether these words before a command may give it another working folder or root.
pub(crate) fn may_move<W: AsRef<[u8]>>(before: &[W]) -> bool {
    before.iter().any(|word| {
        let name = word.as_ref().split(|byte| *byte == b'=').next().unwrap_or_default();
        ELSEWHERE.iter().any(|known| known.as_bytes() == basename(name))
    })
}

/// Whether the word is an assignment `NAME=VALUE`.
pub(crate) fn is_assignment(word: &[u8]) -> bool {
    let name = word.iter().position(|byte| *byte == b'=').and_then(|at| word.get(..at));
    name.is_some_and(|name| {
        name.first().is_some_and(|byte| byte.is_ascii_alphabetic() || *byte == b'_')
            && name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    })
}

/// The prefixes of a command line in order, each with its words. Assignments apply to the ranks.
pub(crate) fn prefixes<W: AsRef<[u8]>>(argv: &[W]) -> Vec<(PrefixScope, Range<usize>)> {
    let mut found: Vec<(PrefixScope, Range<usize>)> = Vec::new();
    let mut at = 0;
    while let Some((scope, end)) = prefix(argv, at) {
        found.push((scope, at..end));
        at = end;
    }
    found
}

/// Position of the command itself.
pub fn command_at<W: AsRef<[u8]>>(argv: &[W]) -> usize {
    prefixes(argv).last().map_or(0, |(_, words)| words.end)
}

/// The prefix at position `at`, and its end.
fn prefix<W: AsRef<[u8]>>(argv: &[W], at: usize) -> Option<(PrefixScope, usize)> {
    let word = |at: usize| argv.get(at).map(AsRef::as_ref);
    let first = word(at)?;
    if is_assignment(first) {
        return Some((PrefixScope::Rank, at + 1));
    }
    let name = basename(first);
    let row = PREFIXES.iter().find(|row| row.names.iter().any(|known| known.as_bytes() == name))?;
    let mut at = at + 1;
    if let Some(verb) = row.verb {
        if word(at)? != verb.as_bytes() {
            return None;
        }
        at += 1;
    }
    let is_in = |list: &[&str], word: &[u8]| list.iter().any(|known| known.as_bytes() == word);
    while let Some(flag) = word(at).filter(|word| word.len() > 1 && word.starts_with(b"-")) {
        if is_in(row.ends, flag) {
            return Some((row.scope, at));
        }
        at += 1 + usize::from(is_in(row.valued, flag));
        if flag == b"--" {
            break;
        }
    }
    Some((row.scope, (at + row.own).min(argv.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_follows_its_prefixes() {
        for (line, command) in [
            ("nohup torchrun a.py", "torchrun a.py"),
            ("/usr/bin/nohup setsid -w torchrun a.py", "torchrun a.py"),
            ("env X=1 Y= torchrun a.py", "torchrun a.py"),
            ("env -i -u HOME X=1 torchrun a.py", "torchrun a.py"),
            ("env -S torchrun", "-S torchrun"),
            ("X=1 torchrun a.py", "torchrun a.py"),
            ("stdbuf -oL -e L torchrun a.py", "torchrun a.py"),
            ("numactl -N 0 --membind=0 torchrun a.py", "torchrun a.py"),
            ("numactl --cpunodebind 0 -m 0 torchrun a.py", "torchrun a.py"),
            ("numactl --hardware", "--hardware"),
            ("time -p torchrun a.py", "torchrun a.py"),
            ("exec -a job torchrun a.py", "torchrun a.py"),
            ("timeout 1h torchrun a.py", "torchrun a.py"),
            ("timeout -k 30 --signal=INT -- 1h torchrun a.py", "torchrun a.py"),
            ("taskset -c 0-7 torchrun a.py", "torchrun a.py"),
            ("nice -n 5 ionice -c2 chrt -f 5 torchrun a.py", "torchrun a.py"),
            ("tini -g -- torchrun a.py", "torchrun a.py"),
            ("sudo -E -u me torchrun a.py", "torchrun a.py"),
            ("gosu me torchrun a.py", "torchrun a.py"),
            ("uv run torchrun a.py", "torchrun a.py"),
            ("uv run --with deepspeed -p 3.12 --no-sync -- torchrun a.py", "torchrun a.py"),
            ("uv run -m torch.distributed.run a.py", "-m torch.distributed.run a.py"),
            ("uv pip install torchrun", "uv pip install torchrun"),
            ("conda run -n x --no-capture-output torchrun a.py", "torchrun a.py"),
            ("micromamba run -p /opt/env env X=1 torchrun a.py", "torchrun a.py"),
            ("conda activate x", "conda activate x"),
            ("nsys profile -o trace -t cuda,nvtx torchrun a.py", "torchrun a.py"),
            ("command -v torchrun", "-v torchrun"),
            ("env.py torchrun", "env.py torchrun"),
            ("./env.py X=1", "./env.py X=1"),
            ("which torchrun", "which torchrun"),
            ("vim torchrun", "vim torchrun"),
            ("1=2 torchrun", "1=2 torchrun"),
            ("timeout", ""),
            ("uv", "uv"),
            ("", ""),
        ] {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let rest = words.get(command_at(&words)..).unwrap_or_default();
            assert_eq!(rest.join(" "), command, "{line}");
        }
    }

    #[test]
    fn prefixes_are_unique_and_no_launchers() {
        let mut names: Vec<&str> = PREFIXES.iter().flat_map(|row| row.names).copied().collect();
        let count = names.len();
        assert!(names.iter().all(|name| crate::launchers::of_name(name).is_none()));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
