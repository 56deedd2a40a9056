//! Merges a profile with the profiles that it extends.
//!
//! Takes the requested name; gives the merged [`Profile`], in which the values of the extending
//! profile win.

use std::path::Path;

use super::layer::FileLayer;
use super::places::{self, FoundProfile};
use super::profile::Profile;
use super::refuse::usage;
use super::{Sourced, table};
use linux::host::Host;
use text::text;
use verdict::{Id, Refusal, Warning};

/// Maximum number of profiles that extend each other.
const DEEPEST: usize = 8;

/// The requested profile, or the default one, with all that it extends, and its name for the start-up
/// block; None if there is none.
pub(super) fn load(
    asked: Option<&Sourced<String>>,
    host: &Host,
    embedded: &[(&str, &str)],
    warnings: &mut Vec<Warning>,
) -> Result<Option<(String, Profile)>, Refusal> {
    let Some(found) = places::find(asked, host, embedded, warnings)? else { return Ok(None) };
    let name = found.name.clone();
    let profile = whole(&found, &mut Vec::new(), host, warnings)?;
    Ok(Some((name, profile)))
}

fn whole(
    found: &FoundProfile,
    above: &mut Vec<String>,
    host: &Host,
    warnings: &mut Vec<Warning>,
) -> Result<Profile, Refusal> {
    let mut profile = Profile::read(FileLayer::Profile, &found.file, &found.text)?;
    resolve(&mut profile, found.folder.as_deref());
    let Some(asked) = profile.extends.clone() else { return Ok(profile) };
    above.push(found.identity());
    if above.len() >= DEEPEST {
        let source = &asked.source;
        return Err(usage(
            Id::SettingsProfile,
            text!(
                "{source}: more than {DEEPEST} profiles extend each other",
                "{source}：超过 {DEEPEST} 个配置文件层层扩展"
            ),
            text!("write the values into one of them", "请把这些值合并到其中一个配置文件"),
        ));
    }
    let base = places::find_base(&asked, found.folder.as_deref(), above, host, warnings)?;
    let base = whole(&base, above, host, warnings)?;
    Ok(profile.over(base))
}

/// Makes a relative working directory absolute by the folder of its profile.
pub(super) fn resolve(profile: &mut Profile, folder: Option<&Path>) {
    let named = table::row("chdir").and_then(|row| profile.values.get_mut(row.name));
    if let (Some(named), Some(folder)) = (named, folder) {
        named.value = folder.join(&named.value).to_string_lossy().into_owned();
    }
}
