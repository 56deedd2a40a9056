//! The table of launchers, and the parsing of their and Python's command lines.
//!
//! A row has the names, the modules, and the flags for sizes. Takes command lines; gives the
//! launcher that they run and the program that it starts. A launcher is recognised by what runs,
//! not by a name: `vim torchrun` is an editor, and `nohup torchrun` a launcher. Never reads a
//! file and decides nothing.

mod prefixes;

pub use prefixes::command_at;
pub(crate) use prefixes::{PrefixScope, is_assignment, may_move, prefixes};

use linux::procfs::basename;

/// The kind of a launcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LauncherKind {
    Torchrun,
    Accelerate,
    Deepspeed,
    /// Other launchers that start one process per GPU of a node, mostly by torchrun.
    PerGpu,
    /// Starts any program on any number of nodes, perhaps one process per node.
    Anywhere,
    /// The daemon by which [`LauncherKind::Anywhere`] starts the ranks on a node; users never start it.
    Daemon,
}

/// The meaning of a launcher's flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlagField {
    Nproc,
    Nnodes,
    /// Nodes beside those of [`FlagField::Nnodes`].
    Spares,
    NodeRank,
    MasterAddr,
    MasterPort,
    Endpoint,
    /// The way in which the nodes find each other: static, c10d, etcd.
    Backend,
    /// Processes of the whole job.
    Processes,
    Standalone,
    /// A file with further settings.
    ConfigFile,
    Grace,
    Heads,
    Profile,
}

/// One launcher.
#[derive(Debug)]
pub struct Launcher {
    pub kind: LauncherKind,
    /// Its installed commands, by file name.
    pub names: &'static [&'static str],
    /// The word that follows the name, as in `accelerate launch`.
    pub verb: Option<&'static str>,
    /// Its modules for `python -m`.
    pub modules: &'static [&'static str],
    /// Flags with a meaning, spelled with dashes.
    pub flags: &'static [(&'static str, FlagField)],
    /// Flags without a value. A flag in no list has a value unless a script or a flag follows.
    pub switches: &'static [&'static str],
}

const NOTHING: Launcher = Launcher {
    kind: LauncherKind::PerGpu,
    names: &[],
    verb: None,
    modules: &[],
    flags: &[],
    switches: &["-m", "--module"],
};

const TORCHRUN: Launcher = Launcher {
    kind: LauncherKind::Torchrun,
    names: &["torchrun"],
    modules: &[
        "torch.distributed.run",
        "torch.distributed.launch",
        "torch.distributed.launcher",
        "torchrun",
    ],
    flags: &[
        ("--nproc-per-node", FlagField::Nproc),
        ("--nnodes", FlagField::Nnodes),
        ("--node-rank", FlagField::NodeRank),
        ("--master-addr", FlagField::MasterAddr),
        ("--master-port", FlagField::MasterPort),
        ("--rdzv-endpoint", FlagField::Endpoint),
        ("--rdzv-backend", FlagField::Backend),
        ("--standalone", FlagField::Standalone),
    ],
    switches: &["--standalone", "-m", "--module", "--no-python", "--run-path", "--use-env"],
    ..NOTHING
};

#[rustfmt::skip]
const ACCELERATE: Launcher = Launcher {
    kind: LauncherKind::Accelerate,
    names: &["accelerate"],
    verb: Some("launch"),
    modules: &["accelerate.commands.accelerate_cli"],
    flags: &[
        ("--num-processes", FlagField::Processes),
        ("--num-machines", FlagField::Nnodes),
        ("--machine-rank", FlagField::NodeRank),
        ("--main-process-ip", FlagField::MasterAddr),
        ("--main-process-port", FlagField::MasterPort),
        ("--config-file", FlagField::ConfigFile),
        ("--rdzv-backend", FlagField::Backend),
    ],
    switches: &[
        "--multi-gpu", "--cpu", "--use-deepspeed", "--use-fsdp", "--use-megatron-lm",
        "--same-network", "--no-python", "-m", "--module", "--debug", "-q", "--quiet",
    ],
};

/// All known launchers.
#[rustfmt::skip]
pub(crate) const LAUNCHERS: &[Launcher] = &[
    TORCHRUN,
    ACCELERATE,
    Launcher {
        names: &["accelerate-launch"],
        verb: None,
        modules: &["accelerate.commands.launch"],
        ..ACCELERATE
    },
    Launcher {
        kind: LauncherKind::Deepspeed,
        names: &["deepspeed", "deepspeed.pt", "ds"],
        modules: &["deepspeed.launcher.runner", "deepspeed.launcher.launch"],
        flags: &[
            ("--num-gpus", FlagField::Nproc),
            ("--num-nodes", FlagField::Nnodes),
            ("--node-rank", FlagField::NodeRank),
            ("--master-addr", FlagField::MasterAddr),
            ("--master-port", FlagField::MasterPort),
            ("--hostfile", FlagField::ConfigFile),
        ],
        switches: &[
            "--no-python", "--no-local-rank", "--module", "-m", "--no-ssh", "--force-multi",
        ],
        ..NOTHING
    },
    Launcher { names: &["hyperpodrun"], modules: &[], ..TORCHRUN },
    Launcher { names: &["xtorchrun"], ..NOTHING },
    Launcher {
        names: &["dlrover-run"],
        modules: &["dlrover.trainer.torch.main", "dlrover.trainer.torch.elastic_run"],
        ..NOTHING
    },
    Launcher {
        names: &["ft_launcher"],
        modules: &["nvidia_resiliency_ext.fault_tolerance.launcher"],
        ..NOTHING
    },
    Launcher { names: &["composer"], modules: &["composer.cli.launcher"], ..NOTHING },
    Launcher { names: &["colossalai"], verb: Some("run"), ..NOTHING },
    Launcher {
        kind: LauncherKind::Anywhere,
        names: &[
            "mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich",
            "mpiexec.mpich", "mpiexec.hydra", "mpiexec.slurm", "mpirun_rsh", "orterun", "prterun",
            "prun",
        ],
        ..NOTHING
    },
    Launcher { kind: LauncherKind::Anywhere, names: &["srun"], ..NOTHING },
    Launcher {
        kind: LauncherKind::Anywhere,
        names: &["horovodrun"],
        modules: &["horovod.runner.launch"],
        ..NOTHING
    },
    Launcher {
        kind: LauncherKind::Anywhere,
        names: &["ray"],
        modules: &["ray.scripts.scripts"],
        ..NOTHING
    },
    Launcher {
        kind: LauncherKind::Daemon,
        names: &["orted", "prted", "hydra_pmi_proxy", "slurmstepd", "raylet"],
        ..NOTHING
    },
];

/// The launcher that installs a command of this name, with or without a folder.
pub(crate) fn of_name(word: impl AsRef<[u8]>) -> Option<&'static Launcher> {
    let name = basename(word.as_ref());
    LAUNCHERS.iter().find(|row| row.names.iter().any(|known| known.as_bytes() == name))
}

/// Whether a word is the name of this program, or a path to it.
pub fn is_ranklaunch(word: impl AsRef<[u8]>) -> bool {
    linux::own_executable::has_usual_name(word.as_ref())
}

/// The launcher that `python -m NAME` runs.
pub(crate) fn of_module(name: impl AsRef<[u8]>) -> Option<&'static Launcher> {
    let name = name.as_ref();
    LAUNCHERS.iter().find(|row| row.modules.iter().any(|known| known.as_bytes() == name))
}

impl Launcher {
    /// The launcher that a whole command line runs, after any [`prefixes`](fn@prefixes), and the
    /// position of its first argument. `accelerate config` launches nothing.
    pub fn of_argv<W: AsRef<[u8]>>(argv: &[W]) -> Option<(&'static Launcher, usize)> {
        let (launcher, at) = if let Some(run) = PythonRun::of_command(argv) {
            let launcher = match run.program {
                PythonProgram::Module(name) => of_module(name),
                PythonProgram::Script(path) => of_name(path),
            };
            (launcher?, run.arguments)
        } else {
            let at = command_at(argv);
            (of_name(argv.get(at)?)?, at + 1)
        };
        match launcher.verb {
            None => Some((launcher, at)),
            Some(verb) => {
                let next = argv.get(at)?.as_ref();
                (next == verb.as_bytes()).then_some((launcher, at + 1))
            }
        }
    }

    /// Whether its flags are known well enough to find the program after them.
    pub fn is_read(&self) -> bool {
        !self.flags.is_empty()
    }

    /// The program that it starts in every rank, among its own arguments. Flags of another version
    /// may be in no list, so an unknown flag has a value unless a `.py` or a flag follows.
    pub fn target<'a, W: AsRef<[u8]>>(&self, arguments: &'a [W]) -> Option<PythonRun<'a>> {
        let mut module = false;
        let mut at = 0;
        loop {
            let word = arguments.get(at)?.as_ref();
            at += 1;
            if word == b"--" {
                continue;
            }
            if !word.starts_with(b"-") || word == b"-" {
                let program =
                    if module { PythonProgram::Module(word) } else { PythonProgram::Script(word) };
                return Some(PythonRun { program, at: at - 1, arguments: at });
            }
            let flag = dashed(word);
            module |= flag == "-m" || flag == "--module";
            if word.contains(&b'=') || self.switches.contains(&flag.as_str()) {
                continue;
            }
            let value = arguments.get(at).map(AsRef::as_ref);
            if value.is_some_and(|next| !next.starts_with(b"-") && !next.ends_with(b".py")) {
                at += 1;
            }
        }
    }
}

/// Underscores and dashes are the same in a launcher's flags.
fn dashed(word: &[u8]) -> String {
    String::from_utf8_lossy(word).replace('_', "-")
}

/// The program that Python or a launcher runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PythonProgram<'a> {
    /// The name after `-m`.
    Module(&'a [u8]),
    /// The file as written.
    Script(&'a [u8]),
}

/// [`PythonProgram`] and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PythonRun<'a> {
    pub program: PythonProgram<'a>,
    /// Position of the word with the program's name; for `-mNAME` the whole word.
    pub at: usize,
    /// Position of the program's first own argument.
    pub arguments: usize,
}

impl<'a> PythonRun<'a> {
    /// `python`, `python3`, `python3.13t`, `pypy3`, with or without a folder.
    pub fn is_by(word: impl AsRef<[u8]>) -> bool {
        let name = basename(word.as_ref());
        let version = name.strip_prefix(b"python").or_else(|| name.strip_prefix(b"pypy"));
        // PEP 3149 and 703: d for debug, m and u of old versions, t for free threading.
        version.is_some_and(|version| {
            let number = version.trim_ascii_end();
            let number = number.strip_suffix(b"-dbg").unwrap_or(number);
            let end = number.iter().rposition(|letter| !b"dmtu".contains(letter));
            let number = number.get(..end.map_or(0, |end| end + 1)).unwrap_or_default();
            number.iter().all(|letter| letter.is_ascii_digit() || *letter == b'.')
        })
    }

    /// The program of a command line that runs Python: after the interpreter, or at the `-m` or .py of
    /// `uv run` and similar.
    pub fn of_command<W: AsRef<[u8]>>(argv: &'a [W]) -> Option<PythonRun<'a>> {
        let at = command_at(argv);
        let first = argv.get(at)?.as_ref();
        let from = match PythonRun::is_by(first) {
            true => at + 1,
            false if first == b"-m" || first.ends_with(b".py") => at,
            false => return None,
        };
        let run = PythonRun::of(argv.get(from..)?)?;
        Some(PythonRun { program: run.program, at: from + run.at, arguments: from + run.arguments })
    }

    /// The program that `python ARGUMENTS…` runs: a script or a module. `arguments` are without the
    /// interpreter. None for `-c`, standard input, or a bare interpreter. Options follow python(1): one
    /// letter each, bundled or not; the rest of a word or the next word is the value of `-m`, `-c`,
    /// `-W` and `-X`.
    pub fn of<W: AsRef<[u8]>>(arguments: &'a [W]) -> Option<PythonRun<'a>> {
        let script = |at: usize| {
            let program = PythonProgram::Script(arguments.get(at)?.as_ref());
            Some(PythonRun { program, at, arguments: at + 1 })
        };
        let mut at = 0;
        'words: loop {
            let word = arguments.get(at)?.as_ref();
            at += 1;
            match word {
                b"-" => return None,
                b"--" => return script(at),
                b"--check-hash-based-pycs" => {
                    at += 1;
                    continue;
                }
                long if long.starts_with(b"--") => continue,
                [b'-', letters @ ..] => {
                    for (position, letter) in letters.iter().enumerate() {
                        let rest = letters.get(position + 1..).unwrap_or_default();
                        match letter {
                            b'c' => return None,
                            b'm' if rest.is_empty() => {
                                let program = PythonProgram::Module(arguments.get(at)?.as_ref());
                                return Some(PythonRun { program, at, arguments: at + 1 });
                            }
                            b'm' => {
                                let program = PythonProgram::Module(rest);
                                return Some(PythonRun { program, at: at - 1, arguments: at });
                            }
                            b'W' | b'X' | b'Q' => {
                                at += usize::from(rest.is_empty());
                                continue 'words;
                            }
                            _ => {}
                        }
                    }
                }
                _ => return script(at - 1),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<&str> {
        line.split_ascii_whitespace().collect()
    }

    /// Every form of argument that the readers of command lines use.
    #[test]
    fn python_command_line_runs_one_program() {
        let module = PythonProgram::Module(b"a.b");
        let script = PythonProgram::Script(b"t.py");
        for (line, expected, rest) in [
            ("t.py --x", Some(script), "--x"),
            ("-u t.py", Some(script), ""),
            ("-uBs -O t.py -m a.b", Some(script), "-m a.b"),
            ("-m a.b --x", Some(module), "--x"),
            ("-um a.b --x", Some(module), "--x"),
            ("-u -m a.b t.py", Some(module), "t.py"),
            ("-ma.b t.py", Some(module), "t.py"),
            ("-uma.b", Some(module), ""),
            ("-W ignore t.py", Some(script), ""),
            ("-Wignore t.py", Some(script), ""),
            ("-Wm -m a.b", Some(module), ""),
            ("-uW ignore -m a.b", Some(module), ""),
            ("-X faulthandler -m a.b", Some(module), ""),
            ("-Xmem t.py", Some(script), ""),
            ("-X dev -X m -um a.b 1", Some(module), "1"),
            ("--check-hash-based-pycs always t.py", Some(script), ""),
            ("-- t.py -m a.b", Some(script), "-m a.b"),
            ("-c import(x) t.py", None, ""),
            ("-uc import(x) -m a.b", None, ""),
            ("- t.py", None, ""),
            ("-m", None, ""),
            ("-V", None, ""),
            ("", None, ""),
        ] {
            let arguments = words(line);
            let run = PythonRun::of(&arguments);
            assert_eq!(run.map(|run| run.program), expected, "{line}");
            let after = run.and_then(|run| arguments.get(run.arguments..)).unwrap_or_default();
            assert_eq!(after, words(rest), "{line}");
            if let Some(run) = run {
                let word = arguments.get(run.at).expect("the word");
                assert!(word.ends_with("a.b") || word.ends_with("t.py"), "{line}: {word}");
            }
        }
    }

    #[test]
    fn an_interpreter_is_known_by_its_name() {
        for name in
            ["python", "/usr/bin/python3", "python3.11", "python3.13t", "pypy3", "python3-dbg"]
        {
            assert!(PythonRun::is_by(name), "{name}");
        }
        for name in ["pythonic", "python-distributed", "ipython", "python3.11-config", "", "py"] {
            assert!(!PythonRun::is_by(name), "{name}");
        }
    }

    #[test]
    fn launcher_is_recognised_by_the_executed_program() {
        use LauncherKind::{Accelerate, Anywhere, Deepspeed, PerGpu, Torchrun};
        for (line, kind, rest) in [
            ("/usr/bin/torchrun --nproc-per-node 2 a.py", Some(Torchrun), 1),
            ("/usr/bin/python3 /opt/venv/bin/torchrun a.py", Some(Torchrun), 2),
            ("python3.11 -u -m torch.distributed.run a.py", Some(Torchrun), 4),
            ("python -um torch.distributed.run a.py", Some(Torchrun), 3),
            ("python -X faulthandler -m torch.distributed.launch a.py", Some(Torchrun), 5),
            ("python -mtorch.distributed.run a.py", Some(Torchrun), 2),
            ("accelerate launch a.py", Some(Accelerate), 2),
            ("accelerate-launch a.py", Some(Accelerate), 1),
            ("python -m accelerate.commands.launch a.py", Some(Accelerate), 3),
            ("python -um accelerate.commands.accelerate_cli launch a.py", Some(Accelerate), 4),
            ("accelerate config", None, 0),
            ("accelerate", None, 0),
            ("python /opt/bin/deepspeed a.py", Some(Deepspeed), 2),
            ("python -u -m deepspeed.launcher.launch a.py", Some(Deepspeed), 4),
            ("ft_launcher a.py", Some(PerGpu), 1),
            ("mpirun -np 2 python a.py", Some(Anywhere), 1),
            ("srun python a.py", Some(Anywhere), 1),
            ("nohup torchrun a.py", Some(Torchrun), 2),
            ("env X=1 python -m torch.distributed.run a.py", Some(Torchrun), 5),
            ("uv run -m torch.distributed.run a.py", Some(Torchrun), 4),
            ("timeout 1h accelerate launch a.py", Some(Accelerate), 4),
            ("conda run -n x deepspeed a.py", Some(Deepspeed), 5),
            ("uv run a.py torchrun", None, 0),
            ("env.py torchrun", None, 0),
            ("command -v torchrun", None, 0),
            ("timeout 1h", None, 0),
            ("python -m pdb -m torch.distributed.run a.py", None, 0),
            ("python train.py torchrun", None, 0),
            ("python -c torchrun", None, 0),
            ("vim torchrun", None, 0),
            ("bash torchrun", None, 0),
            ("bash -c torchrun", None, 0),
            ("", None, 0),
        ] {
            let argv = words(line);
            let found = Launcher::of_argv(&argv);
            assert_eq!(found.map(|(row, _)| row.kind), kind, "{line}");
            assert_eq!(found.map_or(0, |(_, rest)| rest), rest, "{line}");
        }
    }

    #[test]
    fn launcher_program_is_found_after_its_flags() {
        let (script, module) = (PythonProgram::Script(b"t.py"), PythonProgram::Module(b"a.b"));
        for (line, expected) in [
            ("torchrun --nproc-per-node 8 t.py x.py", Some((script, 2))),
            ("torchrun --nproc_per_node=8 --standalone t.py", Some((script, 2))),
            ("torchrun --nproc-per-node 8 -m a.b", Some((module, 3))),
            ("torchrun --new-switch t.py", Some((script, 1))),
            ("torchrun --no-python -- bash t.sh", Some((PythonProgram::Script(b"bash"), 2))),
            ("accelerate launch --config_file a.yaml t.py", Some((script, 2))),
            ("deepspeed --module a.b", Some((module, 1))),
            ("torchrun --nnodes 2", None),
        ] {
            let argv = words(line);
            let (launcher, rest) = Launcher::of_argv(&argv).expect(line);
            let run = launcher.target(argv.get(rest..).unwrap_or_default());
            assert_eq!(run.map(|run| (run.program, run.at)), expected, "{line}");
        }
    }

    #[test]
    fn launcher_names_are_unique() {
        let mut names: Vec<&str> =
            LAUNCHERS.iter().flat_map(|row| row.names.iter().chain(row.modules)).copied().collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        // `torchrun` is a command and a module.
        assert_eq!(names.len() + 1, count);
    }
}
