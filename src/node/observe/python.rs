//! Finds the Python interpreter of the job, and its torch.
//!
//! Takes the settings, the environment and files; gives [`PythonFacts`]. Reads version files, symlinks and
//! `pyvenv.cfg`, since starting an interpreter costs tens of milliseconds and `import torch` seconds. The interpreter
//! itself is asked only if files show no module for the engine. Never decides whether the result is good enough.
//!
//!
//! conda's packages put scripts into `etc/conda/activate.d` (CUDA_HOME, compilers, GDAL_DATA…), which `conda activate`
//! sources. Their variables are known only after the scripts ran, so they run in the same way as conda runs them, but in a
//! shell that is neither a login shell nor interactive, and with a time limit.

mod conda;
mod engine;
mod files;
mod install;
mod interpreters;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(super) use engine::checkpoint_heads;
use install::Install;
use interpreters::FoundInterpreter;

use crate::observe::PythonFacts;
use crate::probe::{Ends, ProbeError, run_program};
use linux::host::Host;
use settings::Settings;
use text::lang::Text;
use text::text;
use verdict::{Id, Warning};

/// The interpreter, from a flag, conda environment, VIRTUAL_ENV, CONDA_PREFIX or PATH, and its torch.
pub(super) fn python(host: &Host, settings: &Settings) -> PythonFacts {
    let accelerate = engine::config(host, settings);
    match search(host, settings) {
        Ok(found) => {
            let install = Install::of(host, &settings.env, &found.interpreter);
            let interpreter = &found.interpreter;
            let absent = interpreters::absent(host, settings, interpreter, &install);
            let elsewhere = match absent.as_slice() {
                [] => Vec::new(),
                _ => interpreters::elsewhere(host, settings, Some(interpreter)),
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
                engine_cli: engine::command_line(host, settings.engine.value, &install),
                interpreter: Some(found.interpreter),
                accelerate,
                warnings,
            }
        }
        Err((by, problem)) => PythonFacts {
            found_by: by,
            problem: Some(problem),
            elsewhere: interpreters::elsewhere(host, settings, None),
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
        match scripts(host, settings, &install.prefix, &variables) {
            Ok(more) => variables.extend(more),
            Err(warning) => warnings.push(warning),
        }
    } else if settings.python.is_none() {
        let (path, by) = (found.interpreter.display(), &found.by);
        let used = text!("{path} [{by}]", "{path} [{by}]");
        for (variable, prefix) in files::active(host) {
            // A conda environment need not have python, but a virtual environment without python is useless.
            let is_gone = variable == "VIRTUAL_ENV" || !files::is_folder(host, Path::new(&prefix));
            if is_gone && files::interpreter_in(host, Path::new(&prefix)).is_none() {
                warnings.push(stale(variable, &prefix, &used));
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
    for (variable, prefix) in files::active(host) {
        if let Some(interpreter) = files::interpreter_in(host, Path::new(&prefix)) {
            return Ok(FoundInterpreter { interpreter, by: variable.to_owned() });
        }
    }
    interpreters::search(host, &settings.env).ok_or_else(|| {
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
        return interpreters::named(host, name).ok_or_else(|| {
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

/// Time limit for all scripts together; it is shorter if the user gives less time for all facts.
const ANSWER: Duration = Duration::from_secs(10);
/// Bash comes first, since packages test their scripts with bash.
const SHELLS: [&str; 2] = ["bash", "sh"];
/// Sources the scripts and prints the variables. The output of the scripts is discarded; `env` is found in the PATH
/// before the scripts run.
const SOURCE: &str = r#"tool=$(command -v env) || exit 3
{ for script in "$@"; do . "$script"; done; } >/dev/null 2>&1 </dev/null
unset script; exec "$tool" -0"#;
/// Variables of the shell itself.
const OF_THE_SHELL: [&str; 7] = ["_", "SHLVL", "PWD", "OLDPWD", "BASH_ENV", "ENV", "tool"];

/// The variables that the scripts of the environment at `prefix` add to `activation`, which holds the other variables
/// of the activation. A warning if the scripts cannot be run.
pub(super) fn scripts(
    host: &Host,
    settings: &Settings,
    prefix: &Path,
    activation: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, Warning> {
    let scripts = scripts_in(host, prefix);
    let is_active =
        host.variable("CONDA_PREFIX").is_some_and(|active| Path::new(&active) == prefix);
    if scripts.is_empty() || is_active || !host.starts_interpreters() {
        return Ok(BTreeMap::new());
    }
    let mut before: BTreeMap<OsString, OsString> =
        settings.env.iter().map(|one| (OsString::from(&one.name), one.value.clone())).collect();
    before.extend(activation.iter().map(|(name, value)| (name.into(), value.into())));
    before.insert("CONDA_SHLVL".into(), "1".into());
    // BASH_ENV is emptied, because bash would read the file that it names before anything else.
    before.insert("BASH_ENV".into(), OsString::new());
    let variables: Vec<(OsString, OsString)> = before.clone().into_iter().collect();
    let names: Vec<String> = scripts.iter().map(|path| path.display().to_string()).collect();
    let mut args = vec!["-c", SOURCE, "activate"];
    args.extend(names.iter().map(String::as_str));
    let half = settings.deadline.as_ref().map(|deadline| deadline.value / 2);
    let most = half.map_or(ANSWER, |half| ANSWER.min(half));
    let mut problem = Text::same("");
    for shell in SHELLS {
        match run_program(Path::new(shell), &args, &variables, most, Ends::Group) {
            Ok(answer) => return Ok(changed(host, &before, &answer)),
            Err(error @ ProbeError::NotStarted(_)) => problem = error.text(),
            // This shell has run the scripts, so another shell would run them twice.
            Err(error) => {
                problem = error.text();
                break;
            }
        }
    }
    let (prefix, names) = (prefix.display(), names.join(", "));
    let Text { en: problem, zh: problem_zh } = problem;
    Err(Warning::new(
        Id::PythonEnvironment,
        text!(
            "the activation scripts of the conda environment {prefix} could not be run ({names}): {problem}; the ranks lack the variables that they set",
            "无法运行 conda 环境 {prefix} 的激活脚本（{names}）：{problem_zh}；rank 缺少这些脚本设置的变量"
        ),
        text!(
            "activate the environment before ranklaunch starts, or set the variables with --env NAME=VALUE",
            "请在启动 ranklaunch 之前激活该环境，或用 --env NAME=VALUE 设置这些变量"
        ),
    ))
}

/// The scripts in the order in which conda sources them.
fn scripts_in(host: &Host, prefix: &Path) -> Vec<PathBuf> {
    let mut scripts = files::with_ending(host, &prefix.join("etc/conda/activate.d"), ".sh");
    scripts.retain(|path| files::exists(host, path));
    scripts
}

/// The variables of `env -0` that differ from `before`.
fn changed(
    host: &Host,
    before: &BTreeMap<OsString, OsString>,
    answer: &[u8],
) -> BTreeMap<String, String> {
    answer
        .split(|byte| *byte == 0)
        .filter_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let (name, value) = (pair.get(..at)?, pair.get(at + 1..)?);
            let name = std::str::from_utf8(name).ok()?;
            let value = std::str::from_utf8(value).ok()?;
            let was = match before.get(OsStr::from_bytes(name.as_bytes())) {
                Some(value) => value.to_str().map(str::to_owned),
                None => host.variable(name),
            };
            let is_new = was.as_deref() != Some(value) && !OF_THE_SHELL.contains(&name);
            is_new.then(|| (name.to_owned(), value.to_owned()))
        })
        .collect()
}

/// The warning about a variable that names an environment which no longer exists.
pub(super) fn stale(variable: &str, prefix: &str, used: &Text) -> Warning {
    let Text { en, zh } = used;
    Warning::new(
        Id::PythonEnvironment,
        text!(
            "{variable}={prefix} has no bin/python that can be run, so {en} is used",
            "{variable}={prefix} 中没有可以运行的 bin/python，因此使用 {zh}"
        ),
        text!(
            "unset {variable}, or name the interpreter with --python PATH",
            "请取消 {variable}，或用 --python PATH 指定解释器"
        ),
    )
}
