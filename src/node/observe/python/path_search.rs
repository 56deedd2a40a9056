//! Finds the interpreter in PATH, without running anything.

use std::path::{Path, PathBuf};

use super::files::{self, path_variable};
use super::install::Install;
use linux::host::Host;
use settings::EnvSetting;

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
    path_variable(host)
        .split(':')
        .filter(|folder| !folder.is_empty())
        .map(|folder| files::absolute(host, Path::new(folder)))
        .flat_map(|folder| {
            let names = host.list(&folder);
            names.into_iter().filter(|name| is_python(name)).map(move |name| folder.join(name))
        })
        .filter(|path| files::is_executable(host, path))
        .collect()
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
    path_variable(host)
        .split(':')
        .filter(|folder| !folder.is_empty())
        .map(|folder| files::absolute(host, Path::new(folder)).join(name))
        .find(|path| files::is_executable(host, path) && fits(path))
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
    if let Some(text) = host.variable("PYENV_VERSION").filter(|text| !text.is_empty()) {
        return names(&text, &[':']);
    }
    let from = host
        .variable("PYENV_DIR")
        .filter(|folder| !folder.is_empty())
        .map_or_else(|| files::working_directory(host), PathBuf::from);
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
