//! Finds and reads the platform's file, which lies below every profile: `/etc/ranklaunch/site.toml`, or the file that
//! `RANKLAUNCH_SITE` names.
//!
//! Gives a [`Profile`] of the keys of a profile without a program; refuses what changes a key that it locks. Locks are
//! guidance for honest tenants: whoever owns a container can also replace the file.

use std::path::PathBuf;

use super::extends;
use super::layer::{FileLayer, SITE_FILE, SITE_VARIABLE};
use super::locks;
use super::places::{self, Place};
use super::profile::Profile;
use super::refuse::{quoted, usage};
use super::stated::Candidate;
use super::variables::OwnVariables;
use super::{Source, Sourced, Stated};
use linux::host::Host;
use text::text;
use verdict::{Id, Refusal, Warning};

/// The value of the variable for no file.
const NONE: &str = "none";

/// The platform's file.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) name: String,
    pub(super) profile: Profile,
}

/// The file in use; None: there is none, or `RANKLAUNCH_SITE=none` turns it off.
///
/// A file with locked keys cannot be turned off or replaced by the variable. One that cannot be read can, so that a
/// mistake in it does not keep every job of the node from starting.
pub(super) fn load(
    host: &Host,
    variables: &OwnVariables,
    warnings: &mut Vec<Warning>,
) -> Result<Option<Site>, Refusal> {
    let mut usual = || read(host, host.path(SITE_FILE), Some(Place::System), warnings);
    let asked = variables.get(SITE_VARIABLE).filter(|asked| *asked != SITE_FILE);
    let Some(asked) = asked else { return usual() };
    let shown = quoted(asked);
    match usual() {
        Err(refusal) => warnings.push(refusal.into()),
        Ok(site) => refuse_to_leave(&site, &shown)?,
    }
    if asked == NONE {
        return Ok(None);
    }
    let path = match host.is_live() {
        true => PathBuf::from(asked),
        false => host.path(asked),
    };
    let named = read(host, path, None, warnings)?;
    // A replayed node lacks the files that its variables name.
    if named.is_none() && host.is_live() {
        return Err(usage(
            Id::SettingsSite,
            text!(
                "{SITE_VARIABLE} is {shown}, but there is no such file",
                "{SITE_VARIABLE} 的值为 {shown}，但没有这个文件"
            ),
            text!(
                "name the platform's file, or set {SITE_VARIABLE}={NONE} to start without one",
                "请指定平台配置文件；不使用平台配置时设为 {SITE_VARIABLE}={NONE}"
            ),
        ));
    }
    Ok(named)
}

fn refuse_to_leave(site: &Option<Site>, asked: &str) -> Result<(), Refusal> {
    let locked = site.as_ref().map_or(&[][..], |site| &site.profile.locked);
    let Some(first) = locked.first() else { return Ok(()) };
    let keys: Vec<&str> = locked.iter().map(|lock| lock.value.as_str()).collect();
    let (keys, source) = (keys.join(", "), &first.source);
    Err(usage(
        Id::SettingsLocked,
        text!(
            "{SITE_VARIABLE} is {asked}, but {source} locks {keys}, so that file cannot be left out",
            "{SITE_VARIABLE} 的值为 {asked}，但 {source} 锁定了 {keys}，因此该文件不能停用"
        ),
        text!(
            "unset {SITE_VARIABLE}, or ask the platform's team to unlock these keys",
            "请取消变量 {SITE_VARIABLE}，或请平台团队解锁这些键"
        ),
    ))
}

fn read(
    host: &Host,
    path: PathBuf,
    place: Option<Place>,
    warnings: &mut Vec<Warning>,
) -> Result<Option<Site>, Refusal> {
    let found = places::open(host, &path, FileLayer::Site, place, warnings)?;
    let Some(found) = found else { return Ok(None) };
    let mut profile = Profile::read(FileLayer::Site, &found.file, &found.text)?;
    extends::resolve(&mut profile, found.folder.as_deref());
    Ok(Some(Site { name: found.name, profile }))
}

/// Refuses the first of the tenant's values that changes a locked key.
pub(super) fn refuse_overrides(
    locked: &[Sourced<String>],
    of_site: &[Candidate],
    of_tenant: &[Candidate],
) -> Result<(), Refusal> {
    for lock in locked {
        let is_fixed = |own: &Candidate| {
            let mut fixed = of_site.iter().filter(|one| one.stated.key == own.stated.key);
            fixed.any(|fixed| fixed.means_the_same(own))
        };
        let is_override =
            |one: &&Candidate| locks::changes(&one.stated.key, &lock.value) && !is_fixed(one);
        if let Some(own) = of_tenant.iter().find(is_override) {
            let fixed = of_site.iter().map(|one| &one.stated);
            let fixed: Vec<&Stated> = fixed.filter(|one| one.key == lock.value).collect();
            return Err(override_refusal(&own.stated, &fixed, lock));
        }
    }
    Ok(())
}

fn override_refusal(own: &Stated, fixed: &[&Stated], lock: &Sourced<String>) -> Refusal {
    let Stated { key, source, .. } = own;
    let value = quoted(own.value.as_ref());
    let (fixed_key, locked) = (&lock.value, &lock.source);
    let text = match fixed.split_first() {
        None => text!(
            "{source} sets {key} to {value}, but {locked} locks {fixed_key} and leaves it at its default",
            "{source} 将 {key} 设为 {value}，但 {locked} 已锁定 {fixed_key}，只能使用默认值"
        ),
        Some((first, _)) if key != fixed_key => {
            let (place, fixed) = (&first.source, quoted(first.value.as_ref()));
            text!(
                "{source} sets {key} to {value}, but {place} sets {fixed_key} to {fixed}, and {locked} locks that",
                "{source} 将 {key} 设为 {value}，但 {place} 已将 {fixed_key} 设为 {fixed}，并由 {locked} 锁定"
            )
        }
        Some((first, more)) => {
            let place = &first.source;
            let values = more.iter().fold(quoted(first.value.as_ref()), |all, one| {
                format!("{all}, {}", quoted(one.value.as_ref()))
            });
            text!(
                "{source} sets {key} to {value}, but {place} sets it to {values}, and {locked} locks it",
                "{source} 将 {key} 设为 {value}，但 {place} 已将其设为 {values}，并由 {locked} 锁定"
            )
        }
    };
    let hint = match source {
        Source::Environment(variable) => text!(
            "unset {variable}, or ask the platform's team to unlock {fixed_key}",
            "请取消变量 {variable}，或请平台团队解锁 {fixed_key}"
        ),
        Source::Profile { .. } => text!(
            "remove the line, or ask the platform's team to unlock {fixed_key}",
            "请删除该行，或请平台团队解锁 {fixed_key}"
        ),
        flag => text!(
            "leave out {flag}, or ask the platform's team to unlock {fixed_key}",
            "请去掉 {flag}，或请平台团队解锁 {fixed_key}"
        ),
    };
    usage(Id::SettingsLocked, text, hint)
}
