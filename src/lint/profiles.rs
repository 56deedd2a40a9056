//! Which script follows which layout rule, as the profiles say it.
//!
//! Takes the profiles by name; gives their settings by script, so that a script's assertion is
//! written down in one place only.

use std::path::Path;

use super::command::{Launch, Profiles};
use crate::cli;
use crate::host::Host;
use crate::settings::{self, LayoutRule, Program, Settings};

/// A profile with a layout rule.
#[derive(Debug)]
pub(super) struct Layout {
    profile: String,
    script: String,
    pub(super) settings: Settings,
}

pub(super) fn layouts(profiles: Profiles) -> Vec<Layout> {
    profiles.iter().filter_map(|(name, _)| layout(name, profiles)).collect()
}

/// The layout of a launch's script.
pub(super) fn of<'a>(
    layouts: &'a [Layout],
    launch: &Launch,
    profile: Option<&str>,
) -> Option<&'a Layout> {
    let script = launch.script_name();
    layouts.iter().find(|layout| {
        script.map_or(profile == Some(layout.profile.as_str()), |script| script == layout.script)
    })
}

/// What the profile says where nothing else does.
fn layout(name: &str, profiles: Profiles) -> Option<Layout> {
    let options = cli::Options { profile: Some(name.into()), ..cli::Options::default() };
    let host = Host::replayed("/nonexistent", [].into());
    let settings = settings::read_with(&options, &host, profiles).ok()?;
    if settings.layout.rule.value == LayoutRule::None {
        return None;
    }
    let script = match &settings.program.as_ref()?.value {
        Program::Script { path, .. } => Path::new(path).file_name()?.to_str()?.to_owned(),
        _ => return None,
    };
    Some(Layout { profile: name.to_owned(), script, settings })
}
