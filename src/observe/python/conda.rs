//! Finds conda environments by name, without running conda.

use std::path::{Path, PathBuf};

use super::files;
use crate::host::Host;
use crate::lang::Text;
use crate::text;

/// Below HOME and below /root, which differ if the container runs as another user.
const BELOW_HOME: [&str; 7] = [
    "miniconda3",
    "anaconda3",
    "miniforge3",
    "mambaforge",
    "micromamba",
    ".conda",
    ".local/share/mamba",
];

const ANYWHERE: [&str; 8] = [
    "/opt/conda",
    "/opt/miniconda3",
    "/opt/anaconda3",
    "/opt/miniforge3",
    "/usr/local/conda",
    "/usr/local/miniconda3",
    "/usr/local/anaconda3",
    "/opt/mamba",
];

/// The interpreter of the environment `name`, which may also be a folder.
pub(super) fn interpreter(host: &Host, name: &str, given: &[PathBuf]) -> Result<PathBuf, Text> {
    if name.contains('/') {
        let folder = files::absolute(host, Path::new(name));
        return files::interpreter_in(host, &folder)
            .ok_or_else(|| text!("there is no bin/python in {name}", "{name} 中没有 bin/python"));
    }
    let roots = roots(host, given);
    let given_folders = folders_of_environments(host).into_iter().map(|folder| folder.join(name));
    let folders = roots.iter().map(|root| folder(root, name));
    let folders: Vec<PathBuf> =
        given_folders.chain(folders).chain(registered(host, name)).collect();
    if let Some(found) = folders.iter().find_map(|folder| files::interpreter_in(host, folder)) {
        return Ok(found);
    }
    Err(match folders.iter().find(|folder| files::is_folder(host, folder)) {
        Some(folder) => {
            let folder = folder.display();
            text!(
                "the conda environment {name} is {folder}, which has no bin/python",
                "conda 环境 {name} 位于 {folder}，但其中没有 bin/python"
            )
        }
        None => missing(host, name, given, &roots),
    })
}

/// Folders of environments in CONDA_ENVS_PATH and its alias CONDA_ENVS_DIRS, first in conda's
/// search.
fn folders_of_environments(host: &Host) -> Vec<PathBuf> {
    ["CONDA_ENVS_PATH", "CONDA_ENVS_DIRS"]
        .into_iter()
        .filter_map(|name| host.variable(name))
        .flat_map(|value| {
            value
                .split(':')
                .filter(|folder| !folder.is_empty())
                .map(PathBuf::from)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The folder of every environment that can be found, base ones included.
pub(super) fn environments(host: &Host, given: &[PathBuf]) -> Vec<PathBuf> {
    let below = |folder: PathBuf| {
        let names = host.list(&folder);
        names.into_iter().map(move |name| folder.join(name))
    };
    let mut found: Vec<PathBuf> =
        folders_of_environments(host).into_iter().flat_map(below).collect();
    for root in roots(host, given) {
        found.push(root.clone());
        found.extend(below(root.join("envs")));
    }
    found.extend(noted(host));
    found
}

fn folder(root: &Path, name: &str) -> PathBuf {
    if name == "base" { root.to_owned() } else { root.join("envs").join(name) }
}

/// Folders that may hold `envs/<name>`, in order, each once.
fn roots(host: &Host, given: &[PathBuf]) -> Vec<PathBuf> {
    let set = |name: &str| host.variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut roots: Vec<PathBuf> = given.to_vec();
    // CONDA_EXE is <root>/bin/conda.
    roots.extend(set("CONDA_EXE").and_then(|exe| Some(exe.parent()?.parent()?.to_owned())));
    roots.extend(set("CONDA_PREFIX").map(|prefix| match prefix.parent() {
        Some(envs) if envs.ends_with("envs") => envs.parent().unwrap_or(envs).to_owned(),
        _ => prefix,
    }));
    roots.extend(set("MAMBA_ROOT_PREFIX"));
    let homes = set("HOME").into_iter().chain([PathBuf::from("/root")]);
    for home in homes {
        roots.extend(BELOW_HOME.iter().map(|name| home.join(name)));
    }
    roots.extend(ANYWHERE.iter().map(PathBuf::from));
    let mut once = Vec::new();
    for root in roots {
        if !once.contains(&root) {
            once.push(root);
        }
    }
    once
}

/// Environments that conda recorded in ~/.conda/environments.txt.
fn registered(host: &Host, name: &str) -> Vec<PathBuf> {
    let named = |folder: &PathBuf| folder.file_name().is_some_and(|last| last == name);
    noted(host).into_iter().filter(named).collect()
}

fn noted(host: &Host) -> Vec<PathBuf> {
    let home = host.variable("HOME").unwrap_or_else(|| "/root".to_owned());
    files::read_small(host, &Path::new(&home).join(".conda/environments.txt"))
        .unwrap_or_default()
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(PathBuf::from)
        .collect()
}

/// The error with the environments that exist.
fn missing(host: &Host, name: &str, given: &[PathBuf], roots: &[PathBuf]) -> Text {
    let (mut seen, mut seen_zh) = (Vec::new(), Vec::new());
    for root in roots {
        let environments: Vec<String> = host
            .list(root.join("envs"))
            .into_iter()
            .filter(|entry| files::interpreter_in(host, &root.join("envs").join(entry)).is_some())
            .collect();
        let shown = root.display();
        let Text { en, zh } = if !environments.is_empty() {
            let environments = environments.join(", ");
            text!("{environments} in {shown}", "{shown} 中的 {environments}")
        } else if files::is_folder(host, root) {
            text!("none in {shown}", "{shown} 中没有环境")
        } else if given.contains(root) {
            text!("no folder {shown}", "{shown} 不存在")
        } else {
            continue;
        };
        seen.push(en);
        seen_zh.push(zh);
    }
    if seen.is_empty() {
        return text!(
            "there is no conda environment {name}, and no conda installation in the usual places",
            "没有 conda 环境 {name}，常用位置也没有安装 conda"
        );
    }
    let (seen, seen_zh) = (seen.join("; "), seen_zh.join("；"));
    text!(
        "there is no conda environment {name}; there is {seen}",
        "没有 conda 环境 {name}；现有：{seen_zh}"
    )
}
