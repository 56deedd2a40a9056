//! Finds the configuration that accelerate will read: the file in its arguments, or else its default file.
//!
//! Follows accelerate's `commands/config/config_args.py` (0.20 to 1.15): `$HF_HOME`, else
//! `$XDG_CACHE_HOME/huggingface`, else `~/.cache/huggingface`, and below it `accelerate/default_config.yaml`.
//! accelerate intends to read `.json` too, but gives both files the same name.

use std::path::{Path, PathBuf};

use super::files;
use crate::observe::AccelerateConfig;
use linux::host::Host;
use settings::Settings;
use text::yaml;

/// The configuration. None for another engine, without a file, or if its name is known only with the plan.
pub(super) fn config(host: &Host, settings: &Settings) -> Option<AccelerateConfig> {
    if !settings.engine.value.row().reads_config {
        return None;
    }
    let named = config_file(&settings.engine_args);
    let given = named.is_some();
    let path = match named {
        Some(name) => files::absolute(host, Path::new(name)),
        None => default_file(host)?,
    };
    let text = files::read_small(host, &path)?;
    let (distributed_type, use_cpu) = if path.extension().is_some_and(|end| end == "json") {
        let value: serde_json::Value = serde_json::from_str(&text).ok()?;
        let mode = value.get("distributed_type").and_then(|mode| mode.as_str());
        (mode.map(str::to_owned), value.get("use_cpu").and_then(serde_json::Value::as_bool))
    } else {
        let use_cpu = top_level(&text, "use_cpu").map(|value| value.eq_ignore_ascii_case("true"));
        (top_level(&text, "distributed_type"), use_cpu)
    };
    Some(AccelerateConfig { path, given, distributed_type, use_cpu: use_cpu.unwrap_or(false) })
}

/// The value of the last `--config_file X` in the engine's arguments; None for a placeholder.
fn config_file(args: &[String]) -> Option<&str> {
    let mut found = None;
    let mut args = args.iter();
    while let Some(argument) = args.next() {
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (argument.as_str(), None),
        };
        if matches!(name, "--config_file" | "--config-file") {
            found = value.or_else(|| args.next().map(String::as_str));
        }
    }
    found.filter(|name| !name.contains('{'))
}

fn default_file(host: &Host) -> Option<PathBuf> {
    let set = |name: &str| host.variable(name).filter(|value| !value.is_empty());
    let home = || PathBuf::from(set("HOME").unwrap_or_else(|| "/root".to_owned()));
    let absolute = |text: String| match text.strip_prefix("~/") {
        Some(below) => home().join(below),
        None => files::absolute(host, Path::new(&text)),
    };
    let cache = set("HF_HOME").map(absolute).unwrap_or_else(|| {
        set("XDG_CACHE_HOME")
            .map(absolute)
            .unwrap_or_else(|| home().join(".cache"))
            .join("huggingface")
    });
    Some(cache.join("accelerate/default_config.yaml")).filter(|path| files::exists(host, path))
}

/// The scalar of a key in the outermost map.
fn top_level(text: &str, key: &str) -> Option<String> {
    yaml::document(text)?.get(key)?.text().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_keys_of_the_outermost_map_count() {
        let text = "compute_environment: LOCAL_MACHINE\nfsdp_config:\n  distributed_type: FSDP\n  \
            list: [a, {distributed_type: X}]\ndistributed_type: 'NO' # laptop\nuse_cpu: true\n";
        assert_eq!(top_level(text, "distributed_type").as_deref(), Some("NO"));
        assert_eq!(top_level(text, "use_cpu").as_deref(), Some("true"));
        assert_eq!(top_level(text, "list"), None);
        assert_eq!(top_level("a: [", "a"), None);
    }

    #[test]
    fn the_last_configuration_file_counts() {
        let args = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let both = args(&["--config_file", "a.yaml", "--config-file=b.yaml", "--fp16"]);
        assert_eq!(config_file(&both), Some("b.yaml"));
        assert_eq!(config_file(&args(&["--config_file", "{accelerate_config}"])), None);
        assert_eq!(config_file(&args(&["--config_file"])), None);
    }
}
