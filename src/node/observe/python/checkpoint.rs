//! Reads the attention heads from the checkpoint in the script's arguments.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::files;
use linux::host::Host;
use settings::Settings;
use settings::arguments::GivenArgument;

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
