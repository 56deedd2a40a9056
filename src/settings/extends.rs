//! Merges a profile with the profiles that it extends.
//!
//! Takes the requested name; gives the merged [`Profile`], in which the values of the extending
//! profile win. Single values, variables, severities, exit codes and rows of `[[diagnose]]` and `[[watch]]` are
//! merged one by one; lists and tables (`engine_args`, `conda_roots`, `[[select]]`,
//! `[layout.heads]`, `[platform]`) as a whole. `args` and `args_if` of a profile without a program are appended,
//! as arguments after `--` are.

use std::path::Path;

use super::places::{self, FoundProfile};
use super::profile::Profile;
use super::refuse::usage;
use super::{Sourced, table};
use linux::host::Host;
use text::text;
use verdict::{Id, Refusal, Warning};

/// Maximum number of profiles that extend each other.
const DEEPEST: usize = 8;

/// A merged profile, and its name for the start-up block.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) name: String,
    pub(super) profile: Profile,
}

/// The requested profile, or the default one; None if there is none.
pub(super) fn load(
    asked: Option<&Sourced<String>>,
    host: &Host,
    embedded: &[(&str, &str)],
    warnings: &mut Vec<Warning>,
) -> Result<Option<Whole>, Refusal> {
    let Some(found) = places::find(asked, host, embedded, warnings)? else { return Ok(None) };
    let name = found.name.clone();
    let profile = whole(&found, &mut Vec::new(), host, warnings)?;
    Ok(Some(Whole { name, profile }))
}

fn whole(
    found: &FoundProfile,
    above: &mut Vec<String>,
    host: &Host,
    warnings: &mut Vec<Warning>,
) -> Result<Profile, Refusal> {
    let mut profile = Profile::read(&found.file, &found.text)?;
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
fn resolve(profile: &mut Profile, folder: Option<&Path>) {
    let named = table::row("chdir").and_then(|row| profile.values.get_mut(row.name));
    if let (Some(named), Some(folder)) = (named, folder) {
        named.value = folder.join(&named.value).to_string_lossy().into_owned();
    }
}

impl Profile {
    /// This profile's values, and those of `base` for all that this profile does not set.
    fn over(self, base: Profile) -> Profile {
        // Every field by name, so that a new one does not compile without a decision here.
        let Profile {
            extends,
            values,
            lists,
            program,
            args,
            args_if,
            engine_args,
            conda_roots,
            heads_table,
            selects,
            env,
            severities,
            exit_codes,
            diagnose,
            watch,
            platform,
        } = self;
        let mut whole = Profile { extends, ..base };
        if heads_table.is_some() {
            whole.values.remove("heads");
            whole.heads_table = heads_table;
        } else if values.contains_key("heads") {
            whole.heads_table = None;
        }
        whole.values.extend(values);
        // An id moves from one list to the other.
        let named =
            |id: &Sourced<String>| lists.values().flatten().any(|own| own.value == id.value);
        for list in whole.lists.values_mut() {
            list.retain(|id| !named(id));
        }
        for (name, own) in lists {
            whole.lists.entry(name).or_default().extend(own);
        }
        match program {
            Some(program) => {
                whole.program = Some(program);
                whole.args = args;
                whole.args_if = args_if;
            }
            None => {
                whole.args.extend(args);
                whole.args_if.extend(args_if);
            }
        }
        whole.engine_args = engine_args.or(whole.engine_args);
        whole.conda_roots = conda_roots.or(whole.conda_roots);
        if !selects.is_empty() {
            whole.selects = selects;
        }
        whole.env.retain(|old| env.iter().all(|new| new.name != old.name));
        whole.env.extend(env);
        whole.severities.extend(severities);
        whole.exit_codes.extend(exit_codes);
        whole.diagnose.retain(|old| diagnose.iter().all(|new| new.value.id != old.value.id));
        whole.diagnose.extend(diagnose);
        whole.watch.retain(|old| watch.iter().all(|new| new.value.id != old.value.id));
        whole.watch.extend(watch);
        whole.platform = platform.or(whole.platform);
        whole
    }

    /// Whether the profile has no value at all.
    pub(super) fn is_empty(&self) -> bool {
        // Every field by name here as well.
        let Profile {
            extends,
            values,
            lists,
            program,
            args,
            args_if,
            engine_args,
            conda_roots,
            heads_table,
            selects,
            env,
            severities,
            exit_codes,
            diagnose,
            watch,
            platform,
        } = self;
        extends.is_none()
            && values.is_empty()
            && lists.is_empty()
            && program.is_none()
            && args.is_empty()
            && args_if.is_empty()
            && engine_args.is_none()
            && conda_roots.is_none()
            && heads_table.is_none()
            && selects.is_empty()
            && env.is_empty()
            && severities.is_empty()
            && exit_codes.is_empty()
            && diagnose.is_empty()
            && watch.is_empty()
            && platform.is_none()
    }
}
