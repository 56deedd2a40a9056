//! Reads the folders of environments from conda's configuration files.
//!
//! Follows conda's `base/constants.py` (SEARCH_PATH) and `base/context.py` (`envs_dirs`, alias `envs_path`), and
//! mamba's `.mambarc`. A file that is not YAML is skipped, since conda itself reports it.

use std::path::{Path, PathBuf};

use super::files;
use linux::host::Host;
use text::yaml;

/// The folders of `envs_dirs` of all files, the strongest file first.
pub(super) fn envs_dirs(host: &Host, roots: &[PathBuf]) -> Vec<PathBuf> {
    let set = |name: &str| host.variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = set("HOME").unwrap_or_else(|| PathBuf::from("/root"));
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
        .map(|folder| match folder.strip_prefix("~/") {
            Some(below) => home.join(below),
            None => files::absolute(host, Path::new(&folder)),
        })
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
    let lists = root.iter().flat_map(|root| root.entries()).filter(|(key, ..)| is_key(key));
    let folders = lists.flat_map(|(_, _, value)| value.list()).filter_map(|folder| folder.text());
    folders.map(str::to_owned).collect()
}

fn is_key(name: &str) -> bool {
    matches!(name, "envs_dirs" | "envs_path")
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
