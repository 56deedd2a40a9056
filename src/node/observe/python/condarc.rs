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
    let in_folder = |folder: PathBuf| [folder.join(".condarc"), folder.join("condarc")];
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
        .map(|folder| match folder.strip_prefix("~/") {
            Some(below) => home.join(below),
            None => files::absolute(host, Path::new(&folder)),
        })
        .collect()
}

/// The texts of the list `envs_dirs` in the outermost map.
fn listed(text: &str) -> Vec<String> {
    let documents = yaml::documents(text);
    let root = documents.roots.first().filter(|_| documents.unreadable.is_empty());
    let lists = root.into_iter().flat_map(|root| root.entries()).filter(|(key, ..)| is_key(key));
    let folders = lists.flat_map(|(_, _, value)| value.list()).filter_map(|folder| folder.text());
    folders.map(str::to_owned).collect()
}

fn is_key(name: &str) -> bool {
    matches!(name, "envs_dirs" | "envs_path")
}

#[cfg(test)]
mod tests {
    use super::listed;

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
