//! Finds the interpreter in PATH, checks whether it has the engine's modules, and finds other interpreters that have them.
//!
//! A file proves that a module exists. A missing file proves nothing: import hooks of editable installs, zip files and
//! sitecustomize find modules without a file of that name. So the interpreter is asked before a module counts as missing,
//! and the module is not imported.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::conda;
use super::files;
use super::install::Install;
use crate::probe::run_tool;
use linux::host::Host;
use settings::{EnvSetting, Program, Settings};
use text::order::InOrder;

/// An interpreter and the way it was found.
pub(super) struct FoundInterpreter {
    pub(super) interpreter: PathBuf,
    pub(super) by: String,
}

/// The first of python3, python, and the interpreter of the torchrun in PATH that has torch, or otherwise the first of
/// them at all. A plain `torchrun` would use the last one.
pub(super) fn search(host: &Host, env: &[EnvSetting]) -> Option<FoundInterpreter> {
    let named_python = ["python3", "python"]
        .into_iter()
        .filter_map(|name| Some(("PATH".to_owned(), named(host, name)?)));
    let torchrun = [()].into_iter().filter_map(|()| {
        let torchrun = first_in_path(host, "torchrun", |_| true)?;
        let interpreter = interpreter_of_script(host, &torchrun)?;
        Some((format!("first line of {}", torchrun.display()), interpreter))
    });
    let mut first = None;
    let mut seen = Vec::new();
    for (by, interpreter) in named_python.chain(torchrun) {
        // python and python3 in one folder are one installation.
        let same = (interpreter.parent().map(Path::to_owned), host.resolve(&interpreter));
        if seen.contains(&same) {
            continue;
        }
        seen.push(same);
        let found = FoundInterpreter { interpreter, by };
        if Install::of(host, env, &found.interpreter).torch(host).is_some() {
            return Some(found);
        }
        first.get_or_insert(found);
    }
    first
}

/// Every `python`, `python3` and `python3.N` in PATH.
pub(super) fn interpreters(host: &Host) -> Vec<PathBuf> {
    let is_python = |name: &str| {
        let version = name.strip_prefix("python");
        version.is_some_and(|version| {
            version.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
        })
    };
    let below = |folder: PathBuf| {
        let names = host.list(&folder).into_iter().filter(|name| is_python(name));
        names.map(move |name| folder.join(name))
    };
    let all = files::path_folders(host).into_iter().flat_map(below);
    all.filter(|path| files::is_executable(host, path)).collect()
}

/// The interpreter `name` in PATH. A pyenv shim is resolved to the interpreter that the shim would run; a shim for the
/// system's own Python is skipped.
pub(super) fn named(host: &Host, name: &str) -> Option<PathBuf> {
    let path =
        first_in_path(host, name, |path| !matches!(shim(host, path), ShimTarget::PassedOver))?;
    Some(match shim(host, &path) {
        ShimTarget::Runs(target) => target,
        ShimTarget::PassedOver | ShimTarget::Unknown => path,
    })
}

fn first_in_path(host: &Host, name: &str, fits: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let mut files = files::path_folders(host).into_iter().map(|folder| folder.join(name));
    files.find(|path| files::is_executable(host, path) && fits(path))
}

/// The interpreter in a script's first line, if it is an absolute path.
fn interpreter_of_script(host: &Host, script: &Path) -> Option<PathBuf> {
    let text = files::read_small(host, script)?;
    let first = text.lines().next()?.strip_prefix("#!")?.trim();
    let path = Path::new(first.split_whitespace().next()?);
    let name = path.file_name()?.to_str()?;
    (name.starts_with("python") && files::is_executable(host, path)).then(|| path.to_owned())
}

enum ShimTarget {
    /// The shim runs this interpreter.
    Runs(PathBuf),
    /// The shim runs the next interpreter in PATH.
    PassedOver,
    /// The file is not a shim, or a shim that cannot be resolved.
    Unknown,
}

fn shim(host: &Host, path: &Path) -> ShimTarget {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return ShimTarget::Unknown;
    };
    let Some(root) = folder.parent().filter(|_| folder.ends_with("shims")) else {
        return ShimTarget::Unknown;
    };
    let versions = root.join("versions");
    if !files::is_folder(host, &versions) {
        return ShimTarget::Unknown;
    }
    let wanted = pyenv_versions(host, root);
    if wanted.is_empty() || wanted.iter().all(|version| version == "system") {
        return ShimTarget::PassedOver;
    }
    wanted
        .iter()
        .filter_map(|version| installed(host, &versions, version))
        .map(|folder| folder.join("bin").join(name))
        .find(|interpreter| files::is_executable(host, interpreter))
        .map_or(ShimTarget::Unknown, ShimTarget::Runs)
}

/// The versions from PYENV_VERSION, the nearest `.python-version`, or the root's `version`: the first source that
/// exists.
fn pyenv_versions(host: &Host, root: &Path) -> Vec<String> {
    let names = |text: &str, between: &[char]| -> Vec<String> {
        text.lines()
            .filter_map(|line| line.split('#').next())
            .flat_map(|line| line.split(between))
            .map(|name| name.trim().trim_start_matches("python-").to_owned())
            .filter(|name| !name.is_empty())
            .collect()
    };
    if let Some(text) = files::set(host, "PYENV_VERSION") {
        return names(&text, &[':']);
    }
    let from =
        files::set(host, "PYENV_DIR").map_or_else(|| files::working_directory(host), PathBuf::from);
    let local = from.ancestors().map(|folder| folder.join(".python-version"));
    local
        .chain([root.join("version")])
        .filter_map(|file| files::read_small(host, &file))
        .map(|text| names(&text, &[' ', '\t', ':']))
        .find(|names| !names.is_empty())
        .unwrap_or_default()
}

/// The folder of a version; `3.11` means the newest 3.11 that is installed.
fn installed(host: &Host, versions: &Path, wanted: &str) -> Option<PathBuf> {
    let exact = versions.join(wanted);
    if files::is_folder(host, &exact) {
        return Some(exact);
    }
    let prefix = format!("{wanted}.");
    let newest = host
        .list(versions)
        .into_iter()
        .filter_map(|name| Some((name.strip_prefix(&prefix)?.parse::<u32>().ok()?, name)))
        .max()?;
    Some(versions.join(newest.1))
}

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
        .chain(files::active(host).map(|(_, prefix)| PathBuf::from(prefix)))
        .chain(conda::environments(host, &settings.conda_roots));
    let mut seen: BTreeSet<PathBuf> = not.map(|not| host.resolve(not)).into_iter().in_set();
    // The link in an environment leads to the same program as the link in its base.
    let mut places: BTreeSet<Option<PathBuf>> =
        not.map(|not| not.parent().map(Path::to_owned)).into_iter().in_set();
    prefixes
        .filter_map(|prefix| files::interpreter_in(host, &prefix))
        .chain(interpreters(host))
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
