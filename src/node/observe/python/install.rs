//! Properties of an interpreter: version, site-packages, torch, activation.
//!
//! Follows CPython's own rules (`Modules/getpath.py`, `Lib/site.py`) as far as files allow.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::files::{self, path_variable};
use crate::observe::Torch;
use linux::host::Host;
use settings::EnvSetting;
use text::version::Version;

pub(super) struct Install {
    /// The folder above `bin`.
    pub(super) prefix: PathBuf,
    kind: InstallKind,
    /// `3.11`
    pub(super) version: Option<String>,
    /// `python3.11`, `python3.13t`: the folder below `lib`.
    library: Option<String>,
    /// Folders of PYTHONPATH, which come before all sites; their .pth files are not read.
    given: Vec<PathBuf>,
    /// Folders of packages, which come after `given`, in order.
    sites: Vec<PathBuf>,
}

/// A variable as the interpreter will see it: from `--env`, or else from the launcher's environment.
fn variable(host: &Host, env: &[EnvSetting], name: &str) -> Option<String> {
    let set = env.iter().rev().find(|setting| setting.name == name);
    let value = match set {
        Some(setting) => Some(setting.value.to_string_lossy().into_owned()),
        None => host.variable(name),
    };
    value.filter(|value| !value.is_empty())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InstallKind {
    Venv,
    Conda,
    Plain,
}

impl Install {
    pub(super) fn of(host: &Host, env: &[EnvSetting], interpreter: &Path) -> Install {
        // pyvenv.cfg is searched beside the path as given, without following symlinks.
        let bin = interpreter.parent().unwrap_or(Path::new("/"));
        let above = bin.parent().unwrap_or(Path::new("/"));
        let venv = [above, bin].into_iter().find_map(|folder| {
            Some((folder, files::read_small(host, &folder.join("pyvenv.cfg"))?))
        });
        let mut install = match venv {
            Some((prefix, config)) => Install::venv(host, env, prefix, &config, interpreter),
            None => Install::plain(host, env, interpreter),
        };
        let python_path = variable(host, env, "PYTHONPATH").unwrap_or_default();
        let given = python_path.split(':').filter(|folder| !folder.is_empty());
        install.given = given.map(|folder| files::absolute(host, Path::new(folder))).collect();
        install
    }

    fn venv(
        host: &Host,
        env: &[EnvSetting],
        prefix: &Path,
        config: &str,
        interpreter: &Path,
    ) -> Install {
        let value = |name: &str| {
            config.lines().find_map(|line| {
                let (key, value) = line.split_once('=')?;
                key.trim().eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            })
        };
        let base = Install::plain(host, env, interpreter);
        let version = value("version").or_else(|| value("version_info"));
        let named = version.as_deref().and_then(minor_version);
        let version = named.or_else(|| base.version.clone());
        let library = match (&base.library, &version) {
            (Some(library), _) => Some(library.clone()),
            (None, Some(version)) => Some(format!("python{version}")),
            (None, None) => library_in(host, prefix),
        };
        let version = version.or_else(|| library.as_deref().and_then(version_of_library));
        let mut sites = site_packages(prefix, library.as_deref());
        let shared = value("include-system-site-packages");
        if shared.is_some_and(|shared| shared.eq_ignore_ascii_case("true")) {
            sites.extend(base.sites);
        }
        let prefix = prefix.to_owned();
        Install { prefix, kind: InstallKind::Venv, version, library, given: Vec::new(), sites }
    }

    fn plain(host: &Host, env: &[EnvSetting], interpreter: &Path) -> Install {
        let real = host.resolve(interpreter);
        let prefix = real.parent().and_then(Path::parent).unwrap_or(Path::new("/")).to_owned();
        let conda = files::is_folder(host, &prefix.join("conda-meta"));
        let named = real
            .file_name()
            .and_then(|name| name.to_str())
            .filter(|name| version_of_library(name).is_some())
            .map(str::to_owned);
        let library = named.or_else(|| library_in(host, &prefix));
        let version = library.as_deref().and_then(version_of_library);
        let mut sites = Vec::new();
        if let Some(library) = &library {
            if variable(host, env, "PYTHONNOUSERSITE").is_none() {
                sites.push(user_base(host, env).join("lib").join(library).join("site-packages"));
            }
            // Debian's Python keeps pip's packages below /usr/local, separate from its own.
            if prefix == Path::new("/usr") {
                sites.push(PathBuf::from("/usr/local/lib").join(library).join("dist-packages"));
                sites.push(PathBuf::from("/usr/lib/python3/dist-packages"));
                sites.push(PathBuf::from("/usr/local/lib64").join(library).join("site-packages"));
                sites.push(PathBuf::from("/usr/local/lib").join(library).join("site-packages"));
            }
        }
        sites.extend(site_packages(&prefix, library.as_deref()));
        let kind = if conda { InstallKind::Conda } else { InstallKind::Plain };
        Install { prefix, kind, version, library, given: Vec::new(), sites }
    }

    /// Whether a site, or a folder in its .pth files, has a file or folder of this module. False proves nothing.
    pub(super) fn has(&self, host: &Host, module: &str) -> bool {
        let has = |site: &Path| {
            let names = [format!("{module}/__init__.py"), format!("{module}.py")];
            names.iter().any(|name| files::exists(host, &site.join(name))).then_some(())
        };
        self.find(host, has).is_some()
    }

    /// The path of this file in a package, if it exists.
    pub(super) fn file(&self, host: &Host, name: &Path) -> Option<PathBuf> {
        self.find(host, |site| Some(site.join(name)).filter(|path| files::exists(host, path)))
    }

    /// The first that a folder has, in the order of the search path, to which .pth files append folders.
    fn find<T>(&self, host: &Host, look: impl Fn(&Path) -> Option<T>) -> Option<T> {
        let direct = self.given.iter().chain(&self.sites).find_map(|site| look(site));
        let linked = || self.sites.iter().flat_map(|site| linked(host, site));
        direct.or_else(|| linked().find_map(|site| look(&site)))
    }

    /// torch from its version file; the first torch in the search path. A torch built in its checkout is found through
    /// a .pth file.
    pub(super) fn torch(&self, host: &Host) -> Option<Torch> {
        self.find(host, |site| torch_in(host, site))
    }

    /// Variables that activating the environment would change.
    pub(super) fn activation(&self, host: &Host) -> BTreeMap<String, String> {
        let prefix = self.prefix.to_string_lossy().into_owned();
        let mut wanted: BTreeMap<String, String> = BTreeMap::new();
        match self.kind {
            InstallKind::Plain => return wanted,
            InstallKind::Venv => {
                wanted.insert("VIRTUAL_ENV".to_owned(), prefix);
            }
            InstallKind::Conda => {
                wanted.extend(conda_variables(host, &self.prefix));
                wanted.insert("CONDA_DEFAULT_ENV".to_owned(), conda_name(host, &self.prefix));
                wanted.insert("CONDA_PREFIX".to_owned(), prefix);
            }
        }
        let bin = self.prefix.join("bin").to_string_lossy().into_owned();
        let path = path_variable(host);
        if path.split(':').next() != Some(bin.as_str()) {
            wanted.insert("PATH".to_owned(), format!("{bin}:{path}"));
        }
        wanted.retain(|name, value| host.variable(name).as_ref() != Some(value));
        wanted
    }
}

/// The value that conda and mamba write into CONDA_DEFAULT_ENV: `base` for their own folder, `<name>` for
/// `envs/<name>`, and otherwise the whole path (`conda create --prefix`).
fn conda_name(host: &Host, prefix: &Path) -> String {
    let is =
        |name: &str, path: &Path| host.variable(name).is_some_and(|set| Path::new(&set) == path);
    let base = is("MAMBA_ROOT_PREFIX", prefix)
        || is("CONDA_EXE", &prefix.join("bin/conda"))
        || files::is_folder(host, &prefix.join("condabin"));
    let named = prefix.parent().is_some_and(|parent| parent.ends_with("envs"));
    match prefix.file_name() {
        _ if base => "base".to_owned(),
        Some(name) if named => name.to_string_lossy().into_owned(),
        _ => prefix.to_string_lossy().into_owned(),
    }
}

/// The value that conda stores for a variable that is to be unset (its `base/constants.py`).
const UNSET: &str = "***unset***";

/// Variables of packages (`etc/conda/env_vars.d`), and variables stored by `conda env config vars set`, which take
/// precedence.
fn conda_variables(host: &Host, prefix: &Path) -> BTreeMap<String, String> {
    let json = |path: PathBuf| -> serde_json::Value {
        let text = files::read_small(host, &path).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    };
    let folder = prefix.join("etc/conda/env_vars.d");
    let of_packages = files::with_ending(host, &folder, ".json").into_iter().map(json);
    let stored = json(prefix.join("conda-meta/state")).get("env_vars").cloned();
    let mut variables = BTreeMap::new();
    for found in of_packages.chain(stored) {
        for (name, value) in found.as_object().into_iter().flatten() {
            if let Some(value) = value.as_str() {
                variables.insert(name.clone(), value.to_owned());
            }
        }
    }
    variables.retain(|_, value| value != UNSET);
    variables
}

fn user_base(host: &Host, env: &[EnvSetting]) -> PathBuf {
    let set = |name: &str| variable(host, env, name);
    set("PYTHONUSERBASE").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(set("HOME").unwrap_or_else(|| "/root".to_owned())).join(".local")
    })
}

fn site_packages(prefix: &Path, library: Option<&str>) -> Vec<PathBuf> {
    let Some(library) = library else { return Vec::new() };
    ["lib", "lib64"]
        .into_iter()
        .map(|lib| prefix.join(lib).join(library).join("site-packages"))
        .collect()
}

/// The newest `pythonX.Y` below `lib`.
fn library_in(host: &Host, prefix: &Path) -> Option<String> {
    host.list(prefix.join("lib"))
        .into_iter()
        .filter_map(|name| {
            let version: Version = version_of_library(&name)?.parse().ok()?;
            Some((version, name))
        })
        .max()
        .map(|(_, name)| name)
}

/// The version in a library name: `3.13t` for `python3.13t`; None for names such as `python3` and `python3.11-config`.
fn version_of_library(name: &str) -> Option<String> {
    let version = name.strip_prefix("python")?;
    let version = version.strip_suffix('t').unwrap_or(version);
    let (major, minor) = version.split_once('.')?;
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(major) && digits(minor)).then(|| version.to_owned())
}

/// `3.11.7` → `3.11`
fn minor_version(version: &str) -> Option<String> {
    let Version { major, minor, .. } = version.parse().ok().filter(|_| version.contains('.'))?;
    Some(format!("{major}.{minor}"))
}

/// Folders that are named by the .pth files of a site.
fn linked(host: &Host, site: &Path) -> Vec<PathBuf> {
    files::with_ending(host, site, ".pth")
        .iter()
        .filter_map(|file| files::read_small(host, file))
        .flat_map(|text| {
            text.lines()
                // A leading blank is a part of the name (Lib/site.py, addpackage).
                .map(str::trim_end)
                .filter(|line| {
                    let code = line.starts_with("import ") || line.starts_with("import\t");
                    !line.is_empty() && !line.starts_with('#') && !code
                })
                .map(|line| site.join(line))
                .collect::<Vec<_>>()
        })
        .collect()
}

fn torch_in(host: &Host, site: &Path) -> Option<Torch> {
    let path = site.join("torch");
    let text = files::read_small(host, &path.join("version.py"))?;
    let version = assigned(&text, "__version__").flatten()?;
    let cuda = assigned(&text, "cuda").flatten();
    let nccl = cuda.as_ref().and_then(|_| nccl_in(host, site));
    Some(Torch { version, cuda, nccl, path })
}

/// The version of the NCCL package that torch's wheels depend on.
fn nccl_in(host: &Host, site: &Path) -> Option<String> {
    host.list(site).iter().find_map(|name| nccl_version(name).map(str::to_owned))
}

/// `nvidia_nccl_cu12-2.26.2.dist-info` → `2.26.2`
fn nccl_version(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("nvidia_nccl_cu")?.strip_suffix(".dist-info")?;
    rest.split_once('-').map(|(_, version)| version)
}

/// The string that a top-level line `name = '…'` or `name: Optional[str] = '…'` assigns: `Some(None)` for None; None if
/// there is no such line.
fn assigned(text: &str, name: &str) -> Option<Option<String>> {
    text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?.trim_start();
        let value = match rest.strip_prefix(':') {
            Some(annotated) => annotated.split_once('=')?.1,
            None => rest.strip_prefix('=')?,
        };
        let value = value.trim();
        let quote = value.chars().next().filter(|quote| matches!(quote, '\'' | '"'));
        Some(quote.and_then(|quote| {
            let inner = value.strip_prefix(quote)?;
            inner.split_once(quote).map(|(inner, _)| inner.to_owned())
        }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_files_of_old_and_new_torch() {
        let new = "from typing import Optional\n__all__ = ['__version__', 'cuda']\n\
                   __version__ = '2.15.0+cu132'\ncuda: Optional[str] = '13.2'\n";
        assert_eq!(assigned(new, "__version__"), Some(Some("2.15.0+cu132".to_owned())));
        assert_eq!(assigned(new, "cuda"), Some(Some("13.2".to_owned())));
        let old = "__version__ = \"1.13.0\"\ncuda = None\n";
        assert_eq!(assigned(old, "__version__"), Some(Some("1.13.0".to_owned())));
        assert_eq!(assigned(old, "cuda"), Some(None));
        assert_eq!(assigned(old, "hip"), None);
        assert_eq!(assigned("cuda_x = '1'\n  cuda = '2'", "cuda"), None);
    }

    #[test]
    fn nccl_version_comes_from_its_package() {
        assert_eq!(nccl_version("nvidia_nccl_cu12-2.26.2.dist-info"), Some("2.26.2"));
        for name in ["nvidia_nccl_cu12", "nvidia_cublas_cu12-12.6.dist-info", "torch-2.6.dist-info"]
        {
            assert_eq!(nccl_version(name), None, "{name}");
        }
    }

    #[test]
    fn library_name_gives_the_version() {
        let table = [
            ("python3.11", Some("3.11")),
            ("python3.13t", Some("3.13")),
            ("python3", None),
            ("python3.11-config", None),
            ("python", None),
        ];
        for (name, version) in table {
            assert_eq!(version_of_library(name).as_deref(), version, "{name}");
        }
        assert_eq!(minor_version("3.11.7.final.0").as_deref(), Some("3.11"));
        assert_eq!(minor_version("3"), None);
    }
}
