//! Determines the program of the ranks: from the arguments after `--`, a module name or the
//! profile.
//!
//! Takes words; gives a [`Program`]. Reads the file system only to tell a command from a script,
//! through [`Host`].

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::profile::{Profile, ProfileProgram};
use super::refuse::{quoted, usage};
use super::torchrun_options::ProgramStart;
use super::{ConditionalArguments, Engine, Program, Source, Sourced};
use crate::launchers::{self, Launcher, PrefixScope, PythonProgram, PythonRun};
use linux::host::Host;
use linux::regular_file;
use text::mask;
use text::text;
use verdict::{Id, Refusal};

/// The source shown for arguments after `--`.
const COMMAND_LINE: &str = "command line";

/// The inputs that may name the program.
#[derive(Debug)]
pub(super) struct ProgramInputs<'a> {
    /// The arguments after `--`.
    pub(super) words: &'a [OsString],
    /// `--module` or RANKLAUNCH_MODULE.
    pub(super) module: Option<Sourced<String>>,
    pub(super) profile: Option<&'a Profile>,
    pub(super) engine: Engine,
    pub(super) start: ProgramStart,
}

/// The program, if one is named.
pub(super) fn program(
    given: ProgramInputs<'_>,
    host: &Host,
) -> Result<Option<Sourced<Program>>, Refusal> {
    let typed = Source::Flag(COMMAND_LINE.to_owned());
    let of_torchrun = |variable: &str| Source::Environment(variable.to_owned());
    let chosen = match (given.words.split_first(), given.module) {
        (_, Some(Sourced { value: name, source: source @ Source::Flag(_) })) => {
            Some(Sourced::new(Program::Module { name, args: given.words.to_vec() }, source))
        }
        (Some((first, _)), _) if first.is_empty() => {
            return Err(usage(
                Id::SettingsProgram,
                text!(
                    "the word after -- is empty, not a script",
                    "-- 之后的第一个词为空，没有给出脚本"
                ),
                text!(
                    "name it: -- SCRIPT ARGS…; an unset variable in its place is the usual cause",
                    "请给出脚本：-- SCRIPT ARGS…；常见原因是此处引用的变量未设置"
                ),
            ));
        }
        (Some((first, args)), module) if first.as_bytes().starts_with(b"-") => {
            if first == "-m" {
                Some(Sourced::new(module_after(args)?, typed))
            } else {
                Some(more_arguments(given.words, module, given.profile)?)
            }
        }
        (Some((first, args)), _) => {
            let argv = || Program::Command { argv: given.words.to_vec() };
            let script = || Program::Script { path: first.clone(), args: args.to_vec() };
            Some(match given.start {
                ProgramStart::Module => {
                    Sourced::new(module_after(given.words)?, of_torchrun("PET_MODULE"))
                }
                ProgramStart::AsItIs => Sourced::new(argv(), of_torchrun("PET_NO_PYTHON")),
                ProgramStart::Guessed => {
                    let is_command = given.engine.runs_a_command() || is_command(first, host);
                    Sourced::new(if is_command { argv() } else { script() }, typed)
                }
            })
        }
        (None, Some(Sourced { value: name, source })) => {
            Some(Sourced::new(Program::Module { name, args: Vec::new() }, source))
        }
        (None, None) => given.profile.and_then(of_profile),
    };
    chosen.map(|program| for_engine(program, given.engine)).transpose()
}

fn module_after(args: &[OsString]) -> Result<Program, Refusal> {
    let missing = || {
        usage(
            Id::SettingsModule,
            text!("-m without a module's name", "-m 之后缺少模块名"),
            text!(
                "for example -- -m package.train --epochs 3",
                "例如 -- -m package.train --epochs 3"
            ),
        )
    };
    let (name, args) = args.split_first().ok_or_else(missing)?;
    let name = name.to_str().filter(|name| !name.is_empty()).ok_or_else(missing)?;
    Ok(Program::Module { name: name.to_owned(), args: args.to_vec() })
}

/// Words that begin with a flag name no program. They are appended to the arguments of the program
/// that is named elsewhere; in argparse the later one wins.
fn more_arguments(
    words: &[OsString],
    module: Option<Sourced<String>>,
    profile: Option<&Profile>,
) -> Result<Sourced<Program>, Refusal> {
    let module = module.map(|module| {
        let Sourced { value: name, source } = module;
        Sourced::new(Program::Module { name, args: Vec::new() }, source)
    });
    let Some(mut program) = module.or_else(|| profile.and_then(of_profile)) else {
        let first = quoted(words.first().map_or(OsStr::new(""), OsString::as_os_str));
        return Err(usage(
            Id::SettingsProgram,
            text!(
                "the words after -- begin with {first}, but no script is given",
                "-- 之后的第一个词是 {first}，但没有给出脚本"
            ),
            text!(
                "name it: ranklaunch [options] SCRIPT.py ARGS…, -m MODULE, or a profile with [job] script",
                "请给出脚本：ranklaunch [选项] SCRIPT.py ARGS…、-m MODULE，或在配置文件的 [job] 中写 script"
            ),
        ));
    };
    match &mut program.value {
        Program::Script { args, .. } | Program::Module { args, .. } => args,
        Program::Command { argv } => argv,
    }
    .extend(words.iter().cloned());
    Ok(program)
}

fn of_profile(profile: &Profile) -> Option<Sourced<Program>> {
    let Sourced { value, source } = profile.program.as_ref()?;
    let args = profile.args.clone();
    let program = match value {
        ProfileProgram::Script(path) => Program::Script { path: path.into(), args },
        ProfileProgram::Module(name) => Program::Module { name: name.clone(), args },
        ProfileProgram::Command(words) => {
            Program::Command { argv: words.iter().map(OsString::from).chain(args).collect() }
        }
    };
    Some(Sourced::new(program, source.clone()))
}

/// The profile's conditional arguments, if the program is the profile's.
pub(super) fn conditional(
    program: Option<&Sourced<Program>>,
    profile: Option<&Profile>,
) -> ConditionalArguments {
    let (Some(program), Some(profile)) = (program, profile) else {
        return ConditionalArguments::default();
    };
    if !program.source.is_file() {
        return ConditionalArguments::default();
    }
    let named = match (&program.value, profile.program.as_ref().map(|named| &named.value)) {
        (_, Some(ProfileProgram::Command(words))) => words.len(),
        // Engine `command` has converted a script to a command.
        (Program::Command { .. }, _) => 1,
        _ => 0,
    };
    let at = profile.args.len().saturating_add(named);
    ConditionalArguments { rows: profile.args_if.clone(), at }
}

/// Engine `command` runs a program directly: a script by its first line. It cannot run a module.
fn for_engine(program: Sourced<Program>, engine: Engine) -> Result<Sourced<Program>, Refusal> {
    let Sourced { value, source } = program;
    let value = match value {
        Program::Script { path, args } if engine.runs_a_command() => {
            Program::Command { argv: std::iter::once(path).chain(args).collect() }
        }
        Program::Module { name, .. } if engine.runs_a_command() => {
            let name = quoted(name.as_ref());
            return Err(usage(
                Id::SettingsModule,
                text!(
                    "{source}: module {name} cannot be used with --engine command, which runs a command unchanged",
                    "{source}：--engine command 只能原样运行命令，不能运行模块 {name}"
                ),
                text!(
                    "write -- python -m NAME ARGS…, or choose another --engine",
                    "请写 -- python -m NAME ARGS…，或改用其他 --engine"
                ),
            ));
        }
        other => other,
    };
    Ok(Sourced::new(value, source))
}

/// Whether a word is a command rather than a Python file: the name of an interpreter, or an
/// executable file that is not a .py.
fn is_command(word: &OsStr, host: &Host) -> bool {
    if word.as_bytes().ends_with(b".py") {
        return false;
    }
    PythonRun::is_by(word.as_bytes()) || is_executable(word, host)
}

fn is_executable(word: &OsStr, host: &Host) -> bool {
    let executable = |path: &Path| {
        std::fs::metadata(host.argument(path))
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    if word.as_bytes().contains(&b'/') {
        return executable(Path::new(word));
    }
    let path = host.environment().get(OsStr::new("PATH"));
    path.is_some_and(|path| {
        std::env::split_paths(path)
            .filter(|folder| folder.is_absolute())
            .any(|folder| executable(&folder.join(word)))
    })
}

/// Refuses programs that cannot be a rank: a launcher, which would be started once per rank, and
/// a shell script that would be run by python.
///
/// # Errors
/// The program is a launcher or a shell script, unless the engine runs it directly.
pub(super) fn refuse_unfit(
    program: &Sourced<Program>,
    engine: Engine,
    host: &Host,
) -> Result<(), Refusal> {
    if engine.runs_a_command() {
        return Ok(());
    }
    match launcher_of(&program.value) {
        Some(nested) => Err(launcher_as_script(&nested, &program.source)),
        None => match &program.value {
            Program::Script { path, args } => refuse_shell_script(path, args, host),
            Program::Module { .. } | Program::Command { .. } => Ok(()),
        },
    }
}

/// A launcher in place of the script.
struct Nested {
    /// Its name as a user types it.
    name: String,
    /// The whole command line, as engine `command` can start it.
    line: Vec<OsString>,
    /// The script that it would start with its arguments, after prefixes that each rank needs
    /// (`env X=1`).
    program: Vec<OsString>,
}

fn launcher_of(program: &Program) -> Option<Nested> {
    let line: Vec<OsString> = match program {
        Program::Module { name, args } => {
            ["python", "-m", name].iter().map(OsString::from).chain(args.iter().cloned()).collect()
        }
        Program::Script { path, args } => {
            std::iter::once(path.clone()).chain(args.iter().cloned()).collect()
        }
        Program::Command { argv } => argv.clone(),
    };
    let bytes: Vec<&[u8]> = line.iter().map(|word| word.as_bytes()).collect();
    let (launcher, at) = Launcher::of_argv(&bytes)?;
    let name = match (program, launcher.names.first()) {
        (Program::Module { name, .. }, _) => name.clone(),
        (_, name) => (*name?).to_owned(),
    };
    let own = bytes.get(at..).unwrap_or_default();
    let words = |from: usize| line.get(at + from..).unwrap_or_default().iter().cloned();
    let program: Vec<OsString> = match launcher.target(own) {
        // The program of mpirun and srun comes after flags that are in no table.
        _ if !launcher.is_read() => Vec::new(),
        Some(run) => {
            let module = matches!(run.program, PythonProgram::Module(_));
            module.then(|| OsString::from("-m")).into_iter().chain(words(run.at)).collect()
        }
        None => Vec::new(),
    };
    let before = launchers::prefixes(&bytes);
    let of = |is_wanted: fn(PrefixScope) -> bool| {
        let wanted = before.iter().filter(move |(scope, _)| is_wanted(*scope));
        runnable(wanted.flat_map(|(_, at)| line.get(at.clone()).unwrap_or_default()).cloned())
    };
    let (kept, rank) =
        (of(|scope| scope != PrefixScope::Shell), of(|scope| scope == PrefixScope::Rank));
    let program = match (rank.is_empty(), program.first()) {
        (true, _) | (_, None) => program,
        // After another word the program is not taken for a script, so `python` is added.
        (false, Some(first)) => {
            let is_script = first == "-m" || first.as_bytes().ends_with(b".py");
            let python = is_script.then(|| OsString::from("python"));
            rank.into_iter().chain(python).chain(program).collect()
        }
    };
    let command = line.get(launchers::command_at(&bytes)..).unwrap_or_default();
    let line = kept.into_iter().chain(command.iter().cloned()).collect();
    Some(Nested { name, line, program })
}

/// Words before a command; an assignment needs `env`.
fn runnable(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let words: Vec<OsString> = words.collect();
    let makes = words.first().filter(|word| launchers::is_assignment(word.as_bytes()));
    makes.map(|_| OsString::from("env")).into_iter().chain(words).collect()
}

fn launcher_as_script(nested: &Nested, source: &Source) -> Refusal {
    let name = &nested.name;
    let kept = shown(&nested.line);
    let hint = if nested.program.is_empty() {
        text!(
            "give the script itself: -- SCRIPT ARGS…; or keep the launcher: --engine command -- {kept}",
            "请直接给出脚本：-- SCRIPT ARGS…；或保留该启动器：--engine command -- {kept}"
        )
    } else {
        let bare = shown(&nested.program);
        text!(
            "give the script itself: -- {bare}; or keep the launcher: --engine command -- {kept}",
            "请直接给出脚本：-- {bare}；或保留该启动器：--engine command -- {kept}"
        )
    };
    usage(
        Id::SettingsLauncherAsScript,
        text!(
            "{source}: {name} is a launcher itself; every rank would start it again, which makes several jobs of one",
            "{source}：{name} 本身就是启动器，每个 rank 都会再启动它一次，结果是多个任务而不是一个"
        ),
        hint,
    )
}

/// A command line, shortened for a hint.
fn shown(words: &[OsString]) -> String {
    const WORDS: usize = 8;
    let masked = mask::mask_args(words);
    let mut line: Vec<String> = masked
        .iter()
        .take(WORDS)
        .map(|word| word.to_string_lossy().escape_debug().to_string())
        .collect();
    if words.len() > WORDS {
        line.push("…".to_owned());
    }
    line.join(" ")
}

/// `-- tr.sh` without the x bit would run `python tr.sh`, a SyntaxError in every rank.
fn refuse_shell_script(path: &OsStr, args: &[OsString], host: &Host) -> Result<(), Refusal> {
    let Some(shell) = shell_of(path, host) else { return Ok(()) };
    let name = quoted(path);
    let line = shown(&[&[path.to_owned()][..], args].concat());
    // Commands without a folder are looked for in PATH, as a shell does.
    if is_executable(Path::new(".").join(path).as_os_str(), host) {
        return Err(usage(
            Id::SettingsShellScript,
            text!(
                "{name} is a shell script that is in no folder of PATH, so it would be run with python",
                "{name} 是 shell 脚本且不在 PATH 中，会被交给 python 运行"
            ),
            text!(
                "write -- ./{line}, or -- {shell} {line}",
                "请写 -- ./{line} 或 -- {shell} {line}"
            ),
        ));
    }
    Err(usage(
        Id::SettingsShellScript,
        text!(
            "{name} is a shell script that is not executable, so it would be run with python",
            "{name} 是 shell 脚本且没有执行权限，会被交给 python 运行"
        ),
        text!(
            "write -- {shell} {line}, or chmod +x it",
            "请写 -- {shell} {line}，或用 chmod +x 赋予执行权限"
        ),
    ))
}

/// The shell of a script, by its suffix or its first line.
fn shell_of(path: &OsStr, host: &Host) -> Option<&'static str> {
    const SHELLS: [&str; 5] = ["bash", "sh", "zsh", "dash", "ksh"];
    let path = Path::new(path);
    let suffix = path.extension().map(OsStr::as_bytes);
    let of = |name: &[u8]| SHELLS.into_iter().find(|shell| shell.as_bytes() == name);
    match suffix {
        Some(b"sh") => return Some("bash"),
        // A file with another suffix, such as .py, is no shell script.
        Some(suffix) => return of(suffix),
        None => {}
    }
    let path = host.argument(path);
    let first = regular_file::read(&path, 128).ok()?;
    let line = first.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let base = |word: &[u8]| word.rsplit(|byte| *byte == b'/').next().map(<[u8]>::to_vec);
    let mut program = base(words.next()?)?;
    if program == b"env" {
        program = base(words.find(|word| !word.starts_with(b"-"))?)?;
    }
    of(&program)
}
