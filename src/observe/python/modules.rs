//! Checks whether the interpreter has the engine's modules, and finds other interpreters that
//! have.
//!
//! A file proves that a module exists. A missing file proves nothing: import hooks of editable
//! installs, zip files and sitecustomize find modules without a file of that name. So the
//! interpreter is asked before a module counts as missing, without importing the module.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::install::Install;
use super::{conda, files, path_search};
use crate::host::Host;
use crate::probe::run_tool;
use crate::settings::Settings;

/// Time limit for the interpreter, which may be on a slow disk; later answers do not count.
const ANSWER: Duration = Duration::from_secs(10);
/// Prefix of the answer's lines, since a sitecustomize may print as well.
const MARK: &str = "ranklaunch-module";
/// `find_spec` of a top-level name imports nothing; an exception proves nothing.
const QUESTION: &str = "\
import importlib.util, sys
for name in sys.argv[1:]:
    try:
        found = importlib.util.find_spec(name) is not None
    except BaseException:
        found = True
    print('ranklaunch-module', name, 'yes' if found else 'no')
";
/// Interpreters that a hint names.
const SHOWN: usize = 4;

/// The modules of the engine that the interpreter reports as missing.
pub(super) fn absent(
    host: &Host,
    settings: &Settings,
    interpreter: &Path,
    install: &Install,
) -> Vec<String> {
    let wanted = settings.engine.value.row().modules.iter().copied();
    let doubtful: Vec<&str> = wanted.filter(|module| !install.has(host, module)).collect();
    if doubtful.is_empty() || !host.is_live() {
        return Vec::new();
    }
    let mut args = vec!["-c", QUESTION];
    args.extend(&doubtful);
    let env: Vec<(OsString, OsString)> = settings
        .env
        .iter()
        .map(|setting| (OsString::from(&setting.name), setting.value.clone()))
        .collect();
    let Ok(answer) = run_tool(interpreter, &args, &env, ANSWER) else { return Vec::new() };
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let said_no = |module: &&str| {
        let line = format!("{MARK} {module} no");
        answer.lines().any(|said| said.trim() == line)
    };
    doubtful.into_iter().filter(said_no).map(str::to_owned).collect()
}

/// Other interpreters whose files have all modules of the engine: environments in the working
/// directory, active ones, those of conda, and those in PATH.
pub(super) fn elsewhere(host: &Host, settings: &Settings, not: &Path) -> Vec<PathBuf> {
    let wanted = settings.engine.value.row().modules;
    let here = files::working_directory(host);
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| host.variable(name));
    let prefixes = [here.join(".venv"), here.join("venv")]
        .into_iter()
        .chain(active.filter(|prefix| !prefix.is_empty()).map(PathBuf::from))
        .chain(conda::environments(host, &settings.conda_roots));
    let mut seen = BTreeSet::from([host.resolve(not)]);
    // The link of an environment leads to the same program as that of its base.
    let mut places = BTreeSet::from([not.parent().map(Path::to_owned)]);
    prefixes
        .filter_map(|prefix| files::interpreter_in(host, &prefix))
        .chain(path_search::interpreters(host))
        .filter(|interpreter| {
            let fresh = places.insert(interpreter.parent().map(Path::to_owned));
            seen.insert(host.resolve(interpreter)) || fresh
        })
        .filter(|interpreter| {
            let install = Install::of(host, &settings.env, interpreter);
            wanted.iter().all(|module| install.has(host, module))
        })
        .take(SHOWN)
        .collect()
}
