//! Files of the engine and the model: the flags that the installed engine knows, the configuration that accelerate will
//! read, and the attention heads of the checkpoint.
//!
//! Reads the source of the engine's command line without running anything, since importing torch takes seconds. The
//! engines use argparse, which ends the program at an unknown flag before any rank starts.
//!
//! The configuration follows accelerate's `commands/config/config_args.py` (0.20 to 1.15): the file in its arguments, else
//! in `$HF_HOME`, else `$XDG_CACHE_HOME/huggingface`, else `~/.cache/huggingface`, and below it
//! `accelerate/default_config.yaml`. accelerate intends to read `.json` too, but gives both files the same name.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::files;
use super::install::Install;
use crate::observe::{AccelerateConfig, EngineCli};
use linux::host::Host;
use settings::Settings;
use settings::arguments::GivenArgument;
use settings::engine::Engine;
use text::order::InOrder;
use text::yaml;

/// The engine's command line. None for an engine without one, or if no file shows it: an editable install, a zip file.
pub(super) fn command_line(host: &Host, engine: Engine, install: &Install) -> Option<EngineCli> {
    let source = engine.row().command_line?;
    let path = install.file(host, Path::new(source))?;
    let flags = flags(&files::read_small(host, &path)?);
    let name = source.split('/').next().unwrap_or(source);
    // A source without any flag has a form that is unknown here.
    (!flags.is_empty()).then(|| {
        let site = path.ancestors().nth(Path::new(source).components().count());
        let version = site.and_then(|site| installed_version(host, site, name));
        let package =
            version.map_or_else(|| name.to_owned(), |version| format!("{name} {version}"));
        EngineCli { path, package, flags }
    })
}

/// The names of all string literals that are flags.
fn flags(source: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_');
    let names = ["\"--", "'--"].into_iter().flat_map(|quote| {
        source.split(quote).skip(1).filter_map(move |rest| {
            let end = rest.find(|letter| !is_part(letter))?;
            let closed = rest.get(end..)?.starts_with(quote.get(..1)?);
            closed.then(|| rest.get(..end).unwrap_or_default().replace('-', "_"))
        })
    });
    names.filter(|name| !name.is_empty()).in_set()
}

/// The version in the name of the `.dist-info` folder that pip leaves beside a package.
fn installed_version(host: &Host, site: &Path, name: &str) -> Option<String> {
    host.list(site).into_iter().find_map(|entry| {
        let rest = entry.strip_prefix(name)?.strip_prefix('-')?;
        Some(rest.strip_suffix(".dist-info")?.to_owned())
    })
}

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
        let use_cpu = value.get("use_cpu").and_then(serde_json::Value::as_bool);
        (mode.map(str::to_owned), use_cpu.unwrap_or(false))
    } else {
        let use_cpu = top_level(&text, "use_cpu");
        let use_cpu = use_cpu.is_some_and(|value| value.eq_ignore_ascii_case("true"));
        (top_level(&text, "distributed_type"), use_cpu)
    };
    Some(AccelerateConfig { path, given, distributed_type, use_cpu })
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
    let set = |name: &str| files::set(host, name).map(|folder| files::written(host, &folder));
    let cache = set("HF_HOME").unwrap_or_else(|| {
        let caches = set("XDG_CACHE_HOME").unwrap_or_else(|| files::home(host).join(".cache"));
        caches.join("huggingface")
    });
    Some(cache.join("accelerate/default_config.yaml")).filter(|path| files::exists(host, path))
}

/// The scalar of a key in the outermost map.
fn top_level(text: &str, key: &str) -> Option<String> {
    yaml::document(text)?.get(key)?.text().map(str::to_owned)
}

/// Folders of a checkpoint that may have the config.json of the transformer: at the top, in a diffusers pipeline, in
/// Wan2.2's two experts.
const FOLDERS: [&str; 4] = ["", "transformer", "low_noise_model", "high_noise_model"];

const KEYS: [&str; 2] = ["num_heads", "num_attention_heads"];

/// The heads, and the file that has the number; None if no argument names a checkpoint or none of its files has a
/// positive number.
pub(in crate::observe) fn checkpoint_heads(
    host: &Host,
    settings: &Settings,
) -> Option<(u32, PathBuf)> {
    let argument = settings.layout.checkpoint_argument.as_deref()?;
    let words = settings.program.as_ref()?.value.words();
    let is_path = |value: &OsStr| !value.as_bytes().starts_with(b"-");
    let folder = GivenArgument::of(&words, &[argument], is_path)?.value;
    let folder = files::absolute(host, Path::new(&folder));
    FOLDERS.iter().find_map(|inner| {
        let file = folder.join(inner).join("config.json");
        let config: serde_json::Value =
            serde_json::from_str(&files::read_small(host, &file)?).ok()?;
        let heads = KEYS.iter().find_map(|key| config.get(key)?.as_u64())?;
        let heads = u32::try_from(heads).ok().filter(|heads| *heads > 0)?;
        Some((heads, file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_string_literals() {
        let source = "parser.add_argument(\n    \"--nproc-per-node\",\n    \"--nproc_per_node\",\n\
            p.add_argument('--tee', help=\"as --tee 3 does\")\n\"--\"\n\"--a b\"\n";
        let expected = ["nproc_per_node", "tee"].map(str::to_owned);
        assert_eq!(flags(source), BTreeSet::from(expected));
    }

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
