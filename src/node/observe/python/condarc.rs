//! Reads the folders of environments from conda's configuration files.
//!
//! Follows conda's `base/constants.py` (SEARCH_PATH) and `base/context.py` (`envs_dirs`, alias `envs_path`), and
//! mamba's `.mambarc`. A file that is not YAML is skipped, since conda itself reports it.

use std::path::{Path, PathBuf};

use saphyr_parser::{Event, Parser};

use super::files;
use linux::host::Host;

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
    let (mut depth, mut key, mut inside) = (0u32, None, false);
    let mut found = Vec::new();
    for event in Parser::new_from_str(text) {
        let Ok((event, _)) = event else { break };
        match event {
            Event::MappingStart(..) | Event::SequenceStart(..) => {
                depth += 1;
                let is_list = matches!(event, Event::SequenceStart(..));
                let named: Option<String> = if depth == 2 { key.take() } else { None };
                inside = is_list && named.is_some_and(|name| is_key(&name));
            }
            Event::MappingEnd | Event::SequenceEnd => {
                depth = depth.saturating_sub(1);
                inside = false;
            }
            Event::Scalar(value, ..) if inside => found.push(value.into_owned()),
            Event::Scalar(value, ..) if depth == 1 => {
                // A value ends its key; the next scalar is a key again.
                key = match key {
                    None => Some(value.into_owned()),
                    Some(_) => None,
                };
            }
            Event::Alias(_) if depth == 1 => key = None,
            _ => {}
        }
    }
    found
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
        for nothing in
            ["", "[", "envs_dirs: /one", "a: &x [/b]\nenvs_dirs: *x\n", "- envs_dirs\n- /a\n"]
        {
            assert_eq!(listed(nothing), [""; 0], "{nothing}");
        }
    }
}
