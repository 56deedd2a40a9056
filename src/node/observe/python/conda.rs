//! Finds conda environments by name, without running conda.
//!
//! Folders of environments are also in conda's configuration files, by its `base/constants.py` (SEARCH_PATH) and
//! `base/context.py` (`envs_dirs`, alias `envs_path`), and in mamba's `.mambarc`. A file that is not YAML is skipped, since
//! conda itself reports it.

use std::path::{Path, PathBuf};

use super::files;
use linux::host::Host;
use text::lang::Text;
use text::{text, yaml};

/// Folders below HOME and below /root, which differ if the container runs as another user.
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

/// Maximum number of environments of a folder that a message names.
const SHOWN: usize = 12;

/// The interpreter of the environment `name`, which may also be a folder.
pub(super) fn interpreter(host: &Host, name: &str, given: &[PathBuf]) -> Result<PathBuf, Text> {
    let roots = roots(host, given);
    if name.contains('/') {
        let folder = files::written(host, name);
        return files::interpreter_in(host, &folder).ok_or_else(|| {
            let problem = match files::is_folder(host, &folder) {
                true => text!("there is no bin/python in {name}", "{name} 中没有 bin/python"),
                false => text!("there is no folder {name}", "目录 {name} 不存在"),
            };
            with_existing(host, problem, given, &roots)
        });
    }
    let of_dirs = folders_of_environments(host, &roots).into_iter().map(|folder| folder.join(name));
    let folders = roots.iter().map(|root| folder(root, name));
    let folders: Vec<PathBuf> = of_dirs.chain(folders).chain(registered(host, name)).collect();
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
        None => {
            let problem = text!("there is no conda environment {name}", "没有 conda 环境 {name}");
            with_existing(host, problem, given, &roots)
        }
    })
}

/// Folders of environments, in conda's order: CONDA_ENVS_PATH and its alias CONDA_ENVS_DIRS, then
/// `envs_dirs` of its configuration files.
fn folders_of_environments(host: &Host, roots: &[PathBuf]) -> Vec<PathBuf> {
    let of_variables = ["CONDA_ENVS_PATH", "CONDA_ENVS_DIRS"]
        .into_iter()
        .filter_map(|name| host.variable(name))
        .flat_map(|value| {
            let folders = value.split(':').filter(|folder| !folder.is_empty());
            folders.map(PathBuf::from).collect::<Vec<_>>()
        });
    files::once(of_variables.chain(envs_dirs(host, roots)))
}

/// The folder of every environment that can be found, including base environments.
pub(super) fn environments(host: &Host, given: &[PathBuf]) -> Vec<PathBuf> {
    let below = |folder: PathBuf| {
        let names = host.list(&folder);
        names.into_iter().map(move |name| folder.join(name))
    };
    let roots = roots(host, given);
    let mut found: Vec<PathBuf> =
        folders_of_environments(host, &roots).into_iter().flat_map(below).collect();
    for root in roots {
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
    let set = |name: &str| files::set(host, name).map(PathBuf::from);
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
    files::once(roots)
}

/// Environments that conda recorded in ~/.conda/environments.txt.
fn registered(host: &Host, name: &str) -> Vec<PathBuf> {
    let named = |folder: &PathBuf| folder.file_name().is_some_and(|last| last == name);
    noted(host).into_iter().filter(named).collect()
}

fn noted(host: &Host) -> Vec<PathBuf> {
    let file = files::home(host).join(".conda/environments.txt");
    let text = files::read_small(host, &file).unwrap_or_default();
    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(PathBuf::from).collect()
}

/// `problem`, and the environments that exist.
fn with_existing(host: &Host, problem: Text, given: &[PathBuf], roots: &[PathBuf]) -> Text {
    let (mut seen, mut seen_zh) = (Vec::new(), Vec::new());
    let mut add = |Text { en, zh }| {
        seen.push(en);
        seen_zh.push(zh);
    };
    let names_in = |folder: &Path| -> Vec<String> {
        let mut names = host.list(folder);
        names.retain(|name| files::interpreter_in(host, &folder.join(name)).is_some());
        names
    };
    let mut shown: Vec<PathBuf> = Vec::new();
    let of_dirs = folders_of_environments(host, roots).into_iter();
    let of_dirs = of_dirs.map(|folder| (folder.clone(), folder));
    let of_roots = roots.iter().map(|root| (root.clone(), root.join("envs")));
    for (place, folder) in of_dirs.chain(of_roots) {
        let names = names_in(&folder);
        shown.extend(names.iter().map(|name| folder.join(name)));
        let at = place.display();
        if !names.is_empty() {
            let names = some_of(&names);
            add(text!("{names} in {at}", "{at} 中的 {names}"));
        } else if files::is_folder(host, &place) {
            add(text!("none in {at}", "{at} 中没有环境"));
        } else if given.contains(&place) {
            add(text!("no folder {at}", "{at} 不存在"));
        }
    }
    // conda records every environment that it creates, wherever it is.
    let mut others = noted(host);
    others.retain(|folder| {
        files::interpreter_in(host, folder).is_some()
            && !shown.contains(folder)
            && !roots.contains(folder)
    });
    if !others.is_empty() {
        let others: Vec<String> =
            others.iter().map(|folder| folder.display().to_string()).collect();
        add(Text::same(some_of(&others)));
    }
    let Text { en, zh } = problem;
    if seen.is_empty() {
        return text!(
            "{en}, and no conda installation in the usual places",
            "{zh}，常用位置也没有安装 conda"
        );
    }
    let (seen, seen_zh) = (seen.join("; "), seen_zh.join("；"));
    text!("{en}; there is {seen}", "{zh}；现有：{seen_zh}")
}

fn some_of(names: &[String]) -> String {
    let count = names.len();
    match names.get(..SHOWN) {
        Some(first) if count > SHOWN => format!("{}, … ({count})", first.join(", ")),
        _ => names.join(", "),
    }
}

/// The folders of `envs_dirs` of all files, the strongest file first.
pub(super) fn envs_dirs(host: &Host, roots: &[PathBuf]) -> Vec<PathBuf> {
    let set = |name: &str| files::set(host, name).map(PathBuf::from);
    let home = files::home(host);
    let configuration = set("XDG_CONFIG_HOME").unwrap_or_else(|| home.join(".config"));
    let in_folder = |folder: PathBuf| files_in(host, &folder);
    let own = [home.clone(), home.join(".conda"), configuration.join("conda")];
    let files = set("CONDARC")
        .into_iter()
        .chain(set("CONDA_PREFIX").into_iter().flat_map(in_folder))
        .chain(own.into_iter().flat_map(in_folder))
        .chain([home.join(".mambarc")])
        .chain(roots.iter().cloned().flat_map(in_folder))
        .chain(["/etc/conda", "/var/lib/conda"].map(PathBuf::from).into_iter().flat_map(in_folder));
    files
        .filter_map(|file| files::read_small(host, &file))
        .flat_map(|text| listed(&text))
        .map(|folder| expanded(&folder, |name| host.variable(name)))
        .map(|folder| files::written(host, &folder))
        .collect()
}

/// The configuration files that conda reads in a folder, the strongest first.
fn files_in(host: &Host, folder: &Path) -> Vec<PathBuf> {
    let more = folder.join("condarc.d");
    let is_yaml = |name: &String| name.ends_with(".yml") || name.ends_with(".yaml");
    let mut names: Vec<String> = host.list(&more).into_iter().filter(is_yaml).collect();
    names.sort_unstable_by(|one, other| other.cmp(one));
    let more = names.into_iter().map(|name| more.join(name));
    more.chain([".condarc", "condarc"].map(|name| folder.join(name))).collect()
}

/// A text with the values of `$NAME` and `${NAME}`, as Python's `os.path.expandvars` gives it: a name without a value
/// stays.
fn expanded(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut parts = text.split('$');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let in_braces = part.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let (name, rest) = in_braces.unwrap_or_else(|| {
            let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            part.split_at(part.find(|c| !is_of_name(c)).unwrap_or(part.len()))
        });
        match value(name).filter(|_| !name.is_empty()) {
            Some(value) => whole.extend([&value, rest]),
            None => whole.extend(["$", part]),
        }
    }
    whole
}

/// The texts of the list `envs_dirs` in the outermost map.
fn listed(text: &str) -> Vec<String> {
    let root = yaml::document(text);
    let lists = root
        .iter()
        .flat_map(|root| root.entries())
        .filter(|(key, ..)| matches!(*key, "envs_dirs" | "envs_path"));
    let folders = lists.flat_map(|(_, _, value)| value.list()).filter_map(|folder| folder.text());
    folders.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_in_folders_are_expanded_like_python_does() {
        let value = |name: &str| (name == "SCRATCH").then(|| "/s".to_owned());
        for (text, expected) in [
            ("$SCRATCH/envs", "/s/envs"),
            ("${SCRATCH}envs", "/senvs"),
            ("a$SCRATCH$SCRATCH", "a/s/s"),
            ("$OTHER/${OTHER}/$", "$OTHER/${OTHER}/$"),
            ("${SCRATCH", "${SCRATCH"),
            ("plain", "plain"),
        ] {
            assert_eq!(expanded(text, value), expected, "{text}");
        }
    }

    #[test]
    fn files_of_the_drop_in_folder_count() {
        let home = [
            ("home/me/.conda/condarc.d/b.yml", "envs_dirs: [/b]\n"),
            ("home/me/.conda/condarc.d/a.yaml", "envs_dirs: [$HOME/a]\n"),
            ("home/me/.conda/condarc.d/notes.txt", "envs_dirs: [/no]\n"),
            ("home/me/.condarc", "envs_dirs: [/c]\n"),
        ];
        let (_root, host) = Host::of_files(&home);
        let host = host.with_variable("HOME", std::ffi::OsStr::new("/home/me"));
        let found = envs_dirs(&host, &[]);
        assert_eq!(found, ["/c", "/b", "/home/me/a"].map(PathBuf::from));
    }

    #[test]
    fn only_the_list_of_folders_counts() {
        let text = "channels:\n  - conda-forge\nauto_update: false\nenvs_dirs: # ours\n  - /data/envs\n  \
            - ~/more\nproxy_servers:\n  envs_dirs: [/no]\nenvs_path: ['/old']\n";
        assert_eq!(listed(text), ["/data/envs", "~/more", "/old"]);
        assert_eq!(listed("a: &x [/b]\nenvs_dirs: *x\n"), ["/b"]);
        for nothing in ["", "[", "envs_dirs: /one", "- envs_dirs\n- /a\n", "envs_dirs: [/a]\nb: ["]
        {
            assert_eq!(listed(nothing), [""; 0], "{nothing}");
        }
    }
}
