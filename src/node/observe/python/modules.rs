//! Checks whether the interpreter has the engine's modules, and finds other interpreters that have them.
//!
//! A file proves that a module exists. A missing file proves nothing: import hooks of editable installs, zip files and
//! sitecustomize find modules without a file of that name. So the interpreter is asked before a module counts as
//! missing, and the module is not imported.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::install::Install;
use super::{activate, conda, files, path_search};
use crate::probe::run_tool;
use linux::host::Host;
use settings::{Program, Settings};

/// Time limit for the interpreter, which may be on a slow disk; a later answer does not count.
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
/// Maximum number of interpreters that a hint names.
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
    if doubtful.is_empty() || !host.starts_interpreters() {
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

/// Other interpreters whose files include all modules of the engine: those of project environments, active
/// environments, conda environments, and PATH.
pub(super) fn elsewhere(host: &Host, settings: &Settings, not: Option<&Path>) -> Vec<PathBuf> {
    let wanted = settings.engine.value.row().modules;
    let prefixes = of_project(host, settings)
        .into_iter()
        .chain(activate::active(host).map(|(_, prefix)| PathBuf::from(prefix)))
        .chain(conda::environments(host, &settings.conda_roots));
    let mut seen: BTreeSet<PathBuf> = not.map(|not| host.resolve(not)).into_iter().collect();
    // The link in an environment leads to the same program as the link in its base.
    let mut places: BTreeSet<Option<PathBuf>> =
        not.map(|not| not.parent().map(Path::to_owned)).into_iter().collect();
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

/// The environments of the project around the working directory and the script: `.venv`, which uv also takes from any
/// folder above, `venv`, and those of pixi.
fn of_project(host: &Host, settings: &Settings) -> Vec<PathBuf> {
    let here = files::working_directory(host);
    let script = match settings.program.as_ref().map(|program| &program.value) {
        Some(Program::Script { path, .. }) => here.join(path).parent().map(Path::to_owned),
        _ => None,
    };
    let mut found = Vec::new();
    for folder in [Some(here), script].into_iter().flatten() {
        let above = folder.ancestors().map(|folder| folder.join(".venv"));
        let pixi = folder.join(".pixi/envs");
        let of_pixi = host.list(&pixi).into_iter().map(|name| pixi.join(name));
        found.extend(above.chain([folder.join("venv")]).chain(of_pixi));
    }
    found
}
