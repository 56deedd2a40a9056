//! A profile and the one that it extends, as one.
//!
//! Takes what was asked for; gives the whole [`Profile`], in which the upper one's values count
//! before the lower one's. Single values, variables, severities and exit codes go one by one;
//! lists and tables (`engine_args`, `conda_roots`, `[[select]]`, `[layout.heads]`) as a whole.
//! `args` and `args_if` without a program of their own are appended, as words after `--` are.

use std::path::Path;

use super::places::{self, Found};
use super::profile::Profile;
use super::refuse::usage;
use super::{Sourced, table};
use crate::host::Host;
use crate::text;
use crate::verdict::{Id, Refusal};

/// More profiles on top of each other than anybody can oversee.
const DEEPEST: usize = 8;

/// A whole profile, and its name for the start-up block.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) name: String,
    pub(super) profile: Profile,
}

/// The profile that was asked for, or the one that is used where none is; None: there is none.
pub(super) fn load(
    asked: Option<&Sourced<String>>,
    host: &Host,
    embedded: &[(&str, &str)],
) -> Result<Option<Whole>, Refusal> {
    let Some(found) = places::find(asked, host, embedded)? else { return Ok(None) };
    let name = found.name.clone();
    let profile = whole(&found, &mut Vec::new(), host)?;
    Ok(Some(Whole { name, profile }))
}

fn whole(found: &Found, above: &mut Vec<String>, host: &Host) -> Result<Profile, Refusal> {
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
                "{source}: 超过 {DEEPEST} 个配置文件层层扩展"
            ),
            text!("write the values into one of them", "请把这些值合并到其中一个配置文件"),
        ));
    }
    let base = places::find_base(&asked, found.folder.as_deref(), above, host)?;
    let base = whole(&base, above, host)?;
    Ok(profile.over(base))
}

/// A working directory counts from the folder of the profile that names it.
fn resolve(profile: &mut Profile, folder: Option<&Path>) {
    let named = table::row("chdir").and_then(|row| profile.values.get_mut(row.name));
    if let (Some(named), Some(folder)) = (named, folder) {
        named.value = folder.join(&named.value).to_string_lossy().into_owned();
    }
}

impl Profile {
    /// This profile's values, and those of `base` where it is silent.
    fn over(self, base: Profile) -> Profile {
        // Every field by name: one that is new must be thought of here.
        let Profile {
            extends,
            values,
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
        } = self;
        let mut whole = Profile { extends, ..base };
        if heads_table.is_some() {
            whole.values.remove("heads");
            whole.heads_table = heads_table;
        } else if values.contains_key("heads") {
            whole.heads_table = None;
        }
        whole.values.extend(values);
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
        whole
    }

    /// Whether it says nothing at all.
    pub(super) fn is_empty(&self) -> bool {
        self.extends.is_none()
            && self.values.is_empty()
            && self.program.is_none()
            && self.env.is_empty()
            && self.selects.is_empty()
            && self.severities.is_empty()
            && self.exit_codes.is_empty()
    }
}
