//! Activated environments, and the variables that the activation scripts of a conda environment set.
//!
//! conda's packages put scripts into `etc/conda/activate.d` (CUDA_HOME, compilers, GDAL_DATA…), which `conda activate`
//! sources. Their variables are known only after the scripts ran, so they run in the same way as conda runs them, but
//! in a shell that is neither a login shell nor interactive, and with a time limit.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::files;
use crate::probe::{ProbeError, run_shell};
use linux::host::Host;
use settings::Settings;
use text::lang::Text;
use text::text;
use verdict::{Id, Warning};

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

/// The variables of activated environments that are set, the strongest first.
pub(super) fn active(host: &Host) -> impl Iterator<Item = (&'static str, String)> {
    ["VIRTUAL_ENV", "CONDA_PREFIX"]
        .into_iter()
        .filter_map(|variable| Some((variable, host.variable(variable)?)))
        .filter(|(_, prefix)| !prefix.is_empty())
}

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
        match run_shell(Path::new(shell), &args, &variables, most) {
            Ok(answer) => return Ok(changed(host, &before, &answer)),
            Err(error @ ProbeError::NotStarted { .. }) => problem = error.text(),
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
    let folder = prefix.join("etc/conda/activate.d");
    let mut names = host.list(&folder);
    names.retain(|name| name.ends_with(".sh"));
    names.sort();
    names
        .into_iter()
        .map(|name| folder.join(name))
        .filter(|path| files::exists(host, path))
        .collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use settings::fixtures::undecided;

    #[test]
    fn failed_scripts_are_reported_in_both_languages() {
        let prefix = tempfile::tempdir().expect("a folder");
        let folder = prefix.path().join("etc/conda/activate.d");
        std::fs::create_dir_all(&folder).expect("folders");
        std::fs::write(folder.join("a.sh"), "exit 5\n").expect("a script");
        let found = scripts(&Host::live(), &undecided(), prefix.path(), &BTreeMap::new());
        let Text { en, zh } = found.expect_err("a script that ends the shell").text;
        assert!(en.contains("ended with code 5"), "{en}");
        assert!(zh.contains("以退出码 5 结束") && !zh.contains("ended with"), "{zh}");
    }
}
