//! Finds the Python interpreter of the job, and its torch.
//!
//! Takes the settings, the environment and files; gives [`PythonFacts`]. Reads version files, symlinks and
//! `pyvenv.cfg`, since starting an interpreter costs tens of milliseconds and `import torch` seconds. The interpreter
//! itself is asked only if files show no module for the engine. Never decides whether the result is good enough.

mod accelerate;
mod activate;
mod checkpoint;
mod conda;
mod condarc;
mod engine_cli;
mod files;
mod install;
mod modules;
mod path_search;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::observe::PythonFacts;
use linux::host::Host;
use settings::Settings;
use text::lang::Text;
use text::text;
use verdict::Warning;

pub(super) use checkpoint::checkpoint_heads;
use install::Install;
use path_search::FoundInterpreter;

/// The interpreter, from a flag, conda environment, VIRTUAL_ENV, CONDA_PREFIX or PATH, and its torch.
pub(super) fn python(host: &Host, settings: &Settings) -> PythonFacts {
    let accelerate = accelerate::config(host, settings);
    match search(host, settings) {
        Ok(found) => {
            let install = Install::of(host, &settings.env, &found.interpreter);
            let interpreter = &found.interpreter;
            let absent = modules::absent(host, settings, interpreter, &install);
            let elsewhere = match absent.as_slice() {
                [] => Vec::new(),
                _ => modules::elsewhere(host, settings, Some(interpreter)),
            };
            let (activation, warnings) = activation(host, settings, &install, &found);
            PythonFacts {
                absent,
                elsewhere,
                found_by: found.by,
                problem: None,
                version: install.version.clone(),
                torch: install.torch(host),
                activation,
                engine_cli: engine_cli::command_line(host, settings.engine.value, &install),
                interpreter: Some(found.interpreter),
                accelerate,
                warnings,
            }
        }
        Err((by, problem)) => PythonFacts {
            found_by: by,
            problem: Some(problem),
            elsewhere: modules::elsewhere(host, settings, None),
            accelerate,
            ..PythonFacts::default()
        },
    }
}

/// The variables that activating the environment sets, and warnings about environments. The scripts of a conda
/// environment run only if `--conda-env` requests the complete environment.
fn activation(
    host: &Host,
    settings: &Settings,
    install: &Install,
    found: &FoundInterpreter,
) -> (BTreeMap<String, String>, Vec<Warning>) {
    let mut variables = install.activation(host);
    let mut warnings = Vec::new();
    if settings.python.is_none() && settings.conda_env.is_some() {
        match activate::scripts(host, settings, &install.prefix, &variables) {
            Ok(more) => variables.extend(more),
            Err(warning) => warnings.push(warning),
        }
    } else if settings.python.is_none() {
        let (path, by) = (found.interpreter.display(), &found.by);
        let used = text!("{path} [{by}]", "{path} [{by}]");
        for (variable, prefix) in activate::active(host) {
            // A conda environment need not have python, but a virtual environment without python is useless.
            let is_gone = variable == "VIRTUAL_ENV" || !files::is_folder(host, Path::new(&prefix));
            if is_gone && files::interpreter_in(host, Path::new(&prefix)).is_none() {
                warnings.push(activate::stale(variable, &prefix, &used));
            }
        }
    }
    (variables, warnings)
}

fn search(host: &Host, settings: &Settings) -> Result<FoundInterpreter, (String, Text)> {
    if let Some(wish) = &settings.python {
        let by = wish.source.to_string();
        return match wished(host, &wish.value) {
            Ok(interpreter) => Ok(FoundInterpreter { interpreter, by }),
            Err(why) => {
                let problem = why.about(&by);
                Err((by, problem))
            }
        };
    }
    if let Some(wish) = &settings.conda_env {
        let name = &wish.value;
        let by = format!("conda environment {name}");
        return match conda::interpreter(host, name, &settings.conda_roots) {
            Ok(interpreter) => Ok(FoundInterpreter { interpreter, by }),
            Err(problem) => Err((by, problem)),
        };
    }
    for (variable, prefix) in activate::active(host) {
        if let Some(interpreter) = files::interpreter_in(host, Path::new(&prefix)) {
            return Ok(FoundInterpreter { interpreter, by: variable.to_owned() });
        }
    }
    path_search::search(host, &settings.env).ok_or_else(|| {
        let path = files::path_variable(host);
        let problem = text!(
            "there is neither python3 nor python in PATH ({path})",
            "PATH（{path}）中既没有 python3 也没有 python"
        );
        ("PATH".to_owned(), problem)
    })
}

/// `--python`: a path, or a name to search in PATH.
fn wished(host: &Host, wish: &Path) -> Result<PathBuf, Text> {
    let shown = wish.display();
    if wish.components().count() == 1
        && !wish.has_root()
        && let Some(name) = wish.to_str()
    {
        return path_search::named(host, name).ok_or_else(|| {
            let path = files::path_variable(host);
            text!("there is no {shown} in PATH ({path})", "PATH（{path}）中没有 {shown}")
        });
    }
    let path = files::absolute(host, wish);
    if files::is_executable(host, &path) {
        return Ok(path);
    }
    if let Some(interpreter) = files::interpreter_in(host, &path) {
        let inner = interpreter.display();
        return Err(text!(
            "{shown} is a folder; its interpreter is {inner}",
            "{shown} 是文件夹；其中的解释器是 {inner}"
        ));
    }
    if files::exists(host, &path) {
        return Err(text!("{shown} is no executable file", "{shown} 不是可执行文件"));
    }
    Err(text!("{shown} does not exist", "{shown} 不存在"))
}
