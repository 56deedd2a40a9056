//! Finds the layout rule of a script in the embedded profiles.
//!
//! Takes the profiles by name; gives their settings by script, so that a script's assertion is
//! written in only one place.

use std::path::Path;

use super::command::{LaunchCommand, Profiles};
use linux::host::Host;
use settings::cli;
use settings::{LayoutRule, Program, Settings};

/// A profile with a layout rule.
#[derive(Debug)]
pub(super) struct ProfileLayout {
    profile: String,
    script: String,
    pub(super) settings: Settings,
}

pub(super) fn layouts(profiles: Profiles) -> Vec<ProfileLayout> {
    profiles.iter().filter_map(|(name, _)| layout(name, profiles)).collect()
}

/// The layout of a launch's script.
pub(super) fn of<'a>(
    layouts: &'a [ProfileLayout],
    launch: &LaunchCommand,
    profile: Option<&str>,
) -> Option<&'a ProfileLayout> {
    let script = launch.script_name();
    layouts.iter().find(|layout| {
        script.map_or(profile == Some(layout.profile.as_str()), |script| script == layout.script)
    })
}

/// The layout of a profile alone.
fn layout(name: &str, profiles: Profiles) -> Option<ProfileLayout> {
    let options = cli::Options { profile: Some(name.into()), ..cli::Options::default() };
    let host = Host::replayed("/nonexistent", [].into());
    let settings = Settings::read_with(&options, &host, profiles).ok()?;
    if settings.layout.rule.value == LayoutRule::None {
        return None;
    }
    let script = match &settings.program.as_ref()?.value {
        Program::Script { path, .. } => Path::new(path).file_name()?.to_str()?.to_owned(),
        _ => return None,
    };
    Some(ProfileLayout { profile: name.to_owned(), script, settings })
}
