//! Which script follows which layout rule, as the profiles say it.
//!
//! Takes the embedded profiles; gives their layouts by script name, so that a
//! script's assertion is written down in one place only.

use std::collections::BTreeMap;

use super::command::Launch;

/// The layout of one profile.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) profile: String,
    script: String,
    /// ulysses × ring is the number of processes.
    pub(super) fills_world: bool,
    pub(super) ulysses: String,
    argument: String,
    default: Option<String>,
    heads: BTreeMap<String, u64>,
}

impl Layout {
    /// Heads of the model that the arguments choose.
    pub(super) fn heads(&self, launch: &Launch) -> Option<u64> {
        let chosen = match launch.argument(&self.argument) {
            Some(word) => word.is_plain().then(|| word.text().to_owned()),
            None => self.default.clone(),
        };
        self.heads.get(&chosen?).copied()
    }
}

pub(super) fn layouts(profiles: &[(&str, &str)]) -> Vec<Layout> {
    profiles.iter().filter_map(|(name, text)| layout(name, text)).collect()
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

fn layout(name: &str, text: &str) -> Option<Layout> {
    let table: toml::Table = text.parse().ok()?;
    let string = |table: &toml::Table, key: &str| Some(table.get(key)?.as_str()?.to_owned());
    let layout = table.get("layout")?.as_table()?;
    let script = string(table.get("job")?.as_table()?, "script")?;
    let heads = layout.get("heads").and_then(toml::Value::as_table);
    let values = heads.and_then(|heads| heads.get("values")?.as_table());
    Some(Layout {
        profile: name.to_owned(),
        script,
        fills_world: string(layout, "rule")?.starts_with("ulysses-"),
        ulysses: string(layout, "ulysses_argument")?,
        argument: heads.and_then(|heads| string(heads, "argument")).unwrap_or_default(),
        default: heads.and_then(|heads| string(heads, "default")),
        heads: values
            .into_iter()
            .flatten()
            .filter_map(|(task, heads)| {
                Some((task.clone(), u64::try_from(heads.as_integer()?).ok()?))
            })
            .collect(),
    })
}
