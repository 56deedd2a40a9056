//! What every rank runs: from the words after `--`, a module's name or the profile.
//!
//! Takes words; gives a [`Program`]. Looks at the file system only to tell a
//! command from a script, through [`Host`].

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::profile::{Profile, ProfileProgram};
use super::refuse::{quoted, usage};
use super::{Engine, Program, Source, Sourced};
use crate::host::Host;
use crate::text;
use crate::verdict::{Refusal, Warning};

/// What is said about words that stand after `--`.
const COMMAND_LINE: &str = "command line";

/// Everything from which the program is chosen.
#[derive(Debug)]
pub(super) struct Given<'a> {
    /// After `--`.
    pub(super) words: &'a [OsString],
    /// `--module` or RANKLAUNCH_MODULE.
    pub(super) module: Option<Sourced<String>>,
    pub(super) profile: Option<&'a Profile>,
    pub(super) engine: Engine,
}

/// The program, if anything names one.
pub(super) fn program(given: Given<'_>, host: &Host) -> Result<Option<Sourced<Program>>, Refusal> {
    let typed = Source::Flag(COMMAND_LINE.to_owned());
    let chosen = match (given.words.split_first(), given.module) {
        (_, Some(Sourced { value: name, source: source @ Source::Flag(_) })) => {
            Some(Sourced::new(Program::Module { name, args: given.words.to_vec() }, source))
        }
        (Some((first, _)), _) if first.is_empty() => {
            return Err(usage(
                "program",
                text!(
                    "the word after -- is empty, so it names no script",
                    "-- 之后的第一个词为空，没有给出脚本"
                ),
                text!(
                    "name it: -- SCRIPT ARGS…; an unset variable in its place is the usual cause",
                    "请给出脚本: -- SCRIPT ARGS…；常见原因是此处引用的变量未设置"
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
            let is_command = given.engine == Engine::Command || is_command(first, host);
            Some(Sourced::new(if is_command { argv() } else { script() }, typed))
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
            "module",
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

/// Words that begin with a flag name no program: they go to the one that is named elsewhere, after
/// its own arguments, where argparse lets the later one win.
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
            "program",
            text!(
                "the words after -- begin with {first}, and nothing names a script",
                "-- 之后的第一个词是 {first}，但没有给出脚本"
            ),
            text!(
                "name it: -- SCRIPT ARGS…, -m MODULE, or a profile with [job] script",
                "请给出脚本: -- SCRIPT ARGS…、-m MODULE，或在配置的 [job] 中写 script"
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

/// The command engine runs a program as it stands: a script by its first line, a module not at all.
fn for_engine(program: Sourced<Program>, engine: Engine) -> Result<Sourced<Program>, Refusal> {
    let Sourced { value, source } = program;
    let value = match value {
        Program::Script { path, args } if engine == Engine::Command => {
            Program::Command { argv: std::iter::once(path).chain(args).collect() }
        }
        Program::Module { name, .. } if engine == Engine::Command => {
            let name = quoted(name.as_ref());
            return Err(usage(
                "module",
                text!(
                    "{source}: module {name} with engine command, which runs a command as it stands",
                    "{source}: engine 为 command 时只能原样运行命令，不能运行模块 {name}"
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

/// Whether a word is a command rather than a file for python: an interpreter by its name, or an
/// executable file that is not a .py.
fn is_command(word: &OsStr, host: &Host) -> bool {
    if word.as_bytes().ends_with(b".py") {
        return false;
    }
    is_python(word) || is_executable(word, host)
}

/// `python`, `python3`, `python3.11`, with or without a folder.
fn is_python(word: &OsStr) -> bool {
    let name = Path::new(word).file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_prefix("python")
        .is_some_and(|version| version.chars().all(|c| c.is_ascii_digit() || c == '.'))
}

fn is_executable(word: &OsStr, host: &Host) -> bool {
    let executable = |path: &Path| {
        // A relative path is one of the working directory, which only a live node has.
        host.at(path);
        let path = if path.is_absolute() { host.path(path) } else { path.to_owned() };
        std::fs::metadata(path)
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

/// A program that starts ranks itself, under an engine that starts it once for every rank.
pub(super) fn nested_launcher(program: &Program, engine: Engine) -> Option<Warning> {
    const LAUNCHERS: &[&str] = &["torchrun", "accelerate", "deepspeed", "mpirun"];
    const MODULES: &[&str] = &["torch.distributed.run", "torch.distributed.launch"];
    if engine == Engine::Command {
        return None;
    }
    let name = match program {
        Program::Module { name, .. } => Some(name.as_str()).filter(|name| MODULES.contains(name)),
        Program::Script { path: first, .. } => launcher_name(first, LAUNCHERS),
        Program::Command { argv } => argv
            .first()
            .and_then(|first| launcher_name(first, LAUNCHERS))
            .or_else(|| argv.iter().find_map(|word| word.to_str().filter(|w| MODULES.contains(w)))),
    }?;
    Some(Warning::new(
        "settings.launcher_as_script",
        text!(
            "{name} is a launcher itself and would be started once for every rank",
            "{name} 本身就是启动器，将在每个 rank 上各启动一次"
        ),
        text!(
            "give the script alone, or keep the launcher with --engine command",
            "请只写脚本，或用 --engine command 保留原来的启动器"
        ),
    ))
}

fn launcher_name<'a>(word: &'a OsStr, launchers: &[&str]) -> Option<&'a str> {
    Path::new(word).file_name()?.to_str().filter(|name| launchers.contains(name))
}
