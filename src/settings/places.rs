//! Finds profiles: a file, a name in the usual folders, or one embedded in the executable; and decides
//! whether a profile that was only found may be used.
//!
//! A profile names the interpreter, which `plan`, `check` and a launch execute. A user who names a
//! profile trusts it. A profile that lies in the working directory may be anybody's; git's
//! `safe.directory` and ssh's StrictModes guard against the same. So a profile that was only found counts
//! only if nobody but this user, root and the owner of this executable can write it.

use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use super::layer::{FileLayer, SITE_FILE, SITE_VARIABLE};
use super::profile::Profile;
use super::refuse::{quoted, usage};
use super::{Source, Sourced};
use linux::host::Host;
use linux::{regular_file, users};
use text::lang::{Text, cause};
use text::nearest::nearest;
use text::text;
use verdict::{Id, Refusal, Warning};

/// The embedded profiles, by name.
pub const EMBEDDED: &[(&str, &str)] = &[
    ("wan22", include_str!("../../config/wan22.toml")),
    ("taehv", include_str!("../../config/taehv.toml")),
    ("zimdb", include_str!("../../config/zimdb.toml")),
];

/// The default profile if none is named.
const UNNAMED: &str = "ranklaunch.toml";

/// Larger than any profile, so that a log or a checkpoint given by mistake is not read
/// completely.
const LARGEST: u64 = 1 << 20;

/// A profile's text and its name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FoundProfile {
    /// Name or path for the start-up block.
    pub(super) name: String,
    /// The text before the line number.
    pub(super) file: String,
    pub(super) text: String,
    /// The folder of the file, absolute; None for an embedded profile.
    pub(super) folder: Option<PathBuf>,
}

/// The requested profile; without one, the first `ranklaunch.toml` in the usual folders. A file that was
/// only found there, and may be somebody else's, is not used but named in `warnings`.
pub(super) fn find(
    asked: Option<&Sourced<String>>,
    host: &Host,
    embedded: &[(&str, &str)],
    warnings: &mut Vec<Warning>,
) -> Result<Option<FoundProfile>, Refusal> {
    let Some(asked) = asked else {
        for (folder, place) in folders(host) {
            if let Some(found) =
                open(host, &folder.join(UNNAMED), FileLayer::Profile, Some(place), warnings)?
            {
                return Ok(Some(found));
            }
        }
        return Ok(None);
    };
    let name = asked.value.as_str();
    // A bare name does not say which file is meant; a path and the name of a file do.
    let looked: Vec<(PathBuf, Option<Place>)> = if name.contains('/') {
        vec![(PathBuf::from(name), None)]
    } else if name.ends_with(".toml") {
        folders(host).into_iter().map(|(folder, _)| (folder.join(name), None)).collect()
    } else {
        in_folders(host, name).collect()
    };
    for (path, place) in &looked {
        if let Some(found) = open(host, path, FileLayer::Profile, *place, warnings)? {
            return Ok(Some(found));
        }
    }
    let looked: Vec<PathBuf> = looked.into_iter().map(|(path, _)| path).collect();
    match of_list(name, embedded) {
        Some(found) => Ok(Some(found)),
        None => Err(not_found(asked, &looked, warnings)),
    }
}

/// The files of this name in the usual folders.
fn in_folders(host: &Host, name: &str) -> impl Iterator<Item = (PathBuf, Option<Place>)> {
    let file = format!("{name}.toml");
    folders(host).into_iter().map(move |(folder, place)| (folder.join(&file), Some(place)))
}

/// The profile that another one extends. A path is relative to the extending profile's folder. A name is
/// searched in that folder, in the usual folders and among the embedded profiles, but never among the
/// files `above`, so that a wan22.toml may extend the embedded wan22.
pub(super) fn find_base(
    asked: &Sourced<String>,
    folder: Option<&Path>,
    above: &[String],
    host: &Host,
    warnings: &mut Vec<Warning>,
) -> Result<FoundProfile, Refusal> {
    let name = asked.value.as_str();
    let is_path = name.contains('/') || name.ends_with(".toml");
    let looked: Vec<(PathBuf, Option<Place>)> = if is_path {
        vec![(folder.unwrap_or(Path::new(".")).join(name), None)]
    } else {
        // Anybody who can write beside the extending profile could have written that profile.
        let beside = folder.map(|folder| (folder.join(format!("{name}.toml")), None));
        beside.into_iter().chain(in_folders(host, name)).collect()
    };
    for (path, place) in &looked {
        if let Some(found) = open(host, path, FileLayer::Profile, *place, warnings)? {
            let identity = found.identity();
            if !above.contains(&identity) {
                return Ok(found);
            }
            if is_path {
                let (source, name) = (&asked.source, quoted(name.as_ref()));
                return Err(usage(
                    Id::SettingsProfile,
                    text!(
                        "{source}: extends is {name}, which extends this profile itself",
                        "{source}：extends 的值为 {name}，而它又扩展了本配置文件"
                    ),
                    text!("remove one of the two extends", "请去掉其中一个 extends"),
                ));
            }
        }
    }
    let looked: Vec<PathBuf> = looked.into_iter().map(|(path, _)| path).collect();
    of_list(name, EMBEDDED).ok_or_else(|| not_found(asked, &looked, warnings))
}

impl FoundProfile {
    /// Identifies this profile.
    pub(super) fn identity(&self) -> String {
        match &self.folder {
            None => self.file.clone(),
            Some(_) => {
                let path = std::fs::canonicalize(&self.file);
                path.map_or_else(|_| self.file.clone(), |path| path.display().to_string())
            }
        }
    }
}

fn of_list(name: &str, embedded: &[(&str, &str)]) -> Option<FoundProfile> {
    let stem = name.strip_suffix(".toml").unwrap_or(name);
    let (name, text) = embedded.iter().find(|(known, _)| *known == stem)?;
    Some(FoundProfile {
        name: (*name).to_owned(),
        file: format!("{name}.toml"),
        text: (*text).to_owned(),
        folder: None,
    })
}

/// A profile that `--profile` accepts by name, and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownProfile {
    /// The name for `--profile`.
    pub name: String,
    /// None: embedded.
    pub path: Option<PathBuf>,
    /// The first line of its comment.
    pub summary: String,
    /// Used if no profile is named.
    pub is_default: bool,
}

impl KnownProfile {
    /// Every profile that can be named: files in the usual folders, then the embedded profiles. Only the
    /// first profile of each name.
    pub fn all(host: &Host) -> Vec<KnownProfile> {
        let mut all: Vec<KnownProfile> = Vec::new();
        for (folder, place) in folders(host) {
            let mut names: Vec<PathBuf> = std::fs::read_dir(&folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .filter(|path| path.extension().is_some_and(|suffix| suffix == "toml"))
                .collect();
            names.sort();
            // A working directory may have other TOML files, such as pyproject.toml.
            let is_ours = |path: &Path, text: &str| {
                path.file_name().is_some_and(|name| name == UNNAMED) || Profile::has_values(text)
            };
            for path in names.into_iter().filter(|path| *path != host.path(SITE_FILE)) {
                // A file that somebody else can write is not found by its name.
                let found = open(host, &path, FileLayer::Profile, Some(place), &mut Vec::new());
                let Ok(Some(found)) = found else { continue };
                let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
                let is_known = all.iter().any(|one| one.name == stem);
                if is_known || !is_ours(&path, &found.text) {
                    continue;
                }
                let is_default = path.file_name().is_some_and(|name| name == UNNAMED);
                let (name, summary) = (stem.to_owned(), summary(&found.text));
                all.push(KnownProfile { name, path: Some(path), summary, is_default });
            }
        }
        for (name, text) in EMBEDDED {
            if all.iter().all(|one| one.name != *name) {
                let (name, summary) = ((*name).to_owned(), summary(text));
                all.push(KnownProfile { name, path: None, summary, is_default: false });
            }
        }
        all
    }

    /// A profile's text: from a file, by a name, or from the usual places.
    ///
    /// # Errors
    /// The profile does not exist, or cannot be read.
    pub fn text_of(name: &str, host: &Host) -> Result<String, Refusal> {
        let asked = Sourced::new(name.to_owned(), Source::Flag("profile".to_owned()));
        let found = find(Some(&asked), host, EMBEDDED, &mut Vec::new())?;
        Ok(found.ok_or_else(|| not_found(&asked, &[], &[]))?.text)
    }
}

fn summary(text: &str) -> String {
    let first = text.lines().next().unwrap_or_default();
    first.strip_prefix('#').unwrap_or_default().trim().to_owned()
}

/// The folder of the executable, the working directory, /etc/ranklaunch. A replayed node has only
/// the last.
fn folders(host: &Host) -> Vec<(PathBuf, Place)> {
    let mut folders = Vec::new();
    if host.is_live() {
        if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
            folders.push((folder.to_owned(), Place::System));
        }
        folders.push((PathBuf::from("."), Place::WorkingDirectory));
    }
    folders.push((host.path("/etc/ranklaunch"), Place::System));
    folders
}

fn not_found(asked: &Sourced<String>, looked: &[PathBuf], warnings: &[Warning]) -> Refusal {
    // The file exists, but may be somebody else's.
    if let Some(Warning { id, text, hint, .. }) = warnings.last() {
        return usage(*id, text.clone(), hint.clone());
    }
    let stem = asked.value.strip_suffix(".toml").unwrap_or(&asked.value);
    let (source, name) = (&asked.source, quoted(asked.value.as_ref()));
    let looked: Vec<String> = looked.iter().map(|path| path.display().to_string()).collect();
    let looked = looked.join(", ");
    let names: Vec<&str> = EMBEDDED.iter().map(|(name, _)| *name).collect();
    let known = names.join(", ");
    let hint = match nearest(stem, names) {
        Some(near) if matches!(source, Source::Profile { .. }) => {
            text!("did you mean {near}?", "是否想写 {near}？")
        }
        Some(near) => text!("did you mean --profile {near}?", "是否想写 --profile {near}？"),
        None => text!(
            "give one of these names or a TOML file with --profile",
            "请用 --profile 指定其中一个名称或一个 TOML 文件"
        ),
    };
    usage(
        Id::SettingsProfile,
        text!(
            "{source} is {name}, but there is no such profile; embedded: {known}; searched: {looked}",
            "{source} 的值为 {name}，但没有这个配置文件；内置的有：{known}；查找过：{looked}"
        ),
        hint,
    )
}

/// None: there is no such file, or it may be somebody else's and was only found, as `place` shows.
pub(super) fn open(
    host: &Host,
    path: &Path,
    layer: FileLayer,
    place: Option<Place>,
    warnings: &mut Vec<Warning>,
) -> Result<Option<FoundProfile>, Refusal> {
    let shown = path.display().to_string();
    let shown = shown.strip_prefix("./").unwrap_or(&shown).to_owned();
    let unusable = |problem: Text| usage(layer.id(), problem.about(&shown), layer.instead());
    host.at(path);
    // A file that is named may be a pipe: `--profile <(envsubst < job.toml)`.
    let opened = match (layer, place) {
        (FileLayer::Profile, None) => File::open(path),
        _ => regular_file::open(path).map(|(file, _)| file),
    };
    let mut bytes = Vec::new();
    match opened {
        Ok(_) if path.is_dir() => return Ok(None),
        Ok(file) => {
            let doubt = place.filter(|_| host.is_live());
            if let Some(warning) = doubt.and_then(|place| distrust(path, &file, layer, place)) {
                warnings.push(warning);
                return Ok(None);
            }
            let read = file.take(LARGEST + 1).read_to_end(&mut bytes);
            read.map_err(|error| unusable(cause(&error)))?;
        }
        Err(error) if is_absent(&error) => match std::fs::read_link(path) {
            Ok(target) => {
                let target = target.display();
                return Err(unusable(text!(
                    "it is a link to {target}, which does not exist",
                    "它是指向 {target} 的链接，而该文件不存在"
                )));
            }
            Err(_) => return Ok(None),
        },
        Err(_) if path.is_dir() => match layer {
            FileLayer::Site => return Err(unusable(text!("it is a folder", "是一个目录"))),
            FileLayer::Profile => return Ok(None),
        },
        Err(error) => return Err(unusable(cause(&error))),
    }
    if bytes.len() as u64 > LARGEST {
        return Err(unusable(text!(
            "larger than 1 MiB, so not a profile",
            "大于 1 MiB，不是配置文件"
        )));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes().iter().take(good).filter(|byte| **byte == b'\n').count();
        unusable(text!("line {line} is not UTF-8", "第 {line} 行不是 UTF-8"))
    })?;
    let folder = std::path::absolute(path).ok().and_then(|path| Some(path.parent()?.to_owned()));
    Ok(Some(FoundProfile { name: shown.clone(), file: shown, text, folder }))
}

/// Whether the error means that there is no such file; also if a parent is a file, or the name
/// is a folder.
fn is_absent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory)
}

/// Folders in which a profile is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Beside the executable, and /etc/ranklaunch: the creator of the container or the node fills these.
    System,
    WorkingDirectory,
}

/// Owner, group and mode of a folder or a file, which say who may change it.
#[derive(Debug, Clone, Copy)]
struct Held {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl From<&Metadata> for Held {
    fn from(of: &Metadata) -> Held {
        Held { uid: of.uid(), gid: of.gid(), mode: of.mode() }
    }
}

/// The ids of this process, which decide whom it trusts.
#[derive(Debug, Clone)]
struct Us {
    uid: u32,
    groups: Vec<u32>,
    /// The owner of this executable, who decides what we run anyway.
    executable: Option<u32>,
    /// The uid by which the kernel shows users that this user namespace does not have.
    unmapped: Option<u32>,
}

/// The reason why somebody else may change a file or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doubt {
    Owner(u32),
    /// Its owner is outside of the container.
    Outside,
    Group(u32),
    Everybody,
}

impl Us {
    fn now() -> Us {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let own = rustix::process::getegid();
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let overflow = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
        Us {
            uid: rustix::process::geteuid().as_raw(),
            groups: groups.into_iter().chain([own]).map(|group| group.as_raw()).collect(),
            executable: std::fs::metadata("/proc/self/exe").ok().map(|of| of.uid()),
            unmapped: (!maps(&read("/proc/self/uid_map"), overflow)).then_some(overflow),
        }
    }

    fn doubt_of_owner(&self, held: Held, place: Place) -> Option<Doubt> {
        if self.unmapped == Some(held.uid) {
            return (place == Place::WorkingDirectory).then_some(Doubt::Outside);
        }
        let is_trusted = [Some(self.uid), Some(0), self.executable].contains(&Some(held.uid));
        (!is_trusted).then_some(Doubt::Owner(held.uid))
    }

    /// A colleague of our own group may change our scripts as well.
    fn doubt_of_mode(&self, held: Held) -> Option<Doubt> {
        let is_foreign = held.gid != 0 && !self.groups.contains(&held.gid);
        match held.mode {
            mode if mode & 0o002 != 0 => Some(Doubt::Everybody),
            mode if mode & 0o020 != 0 && is_foreign => Some(Doubt::Group(held.gid)),
            _ => None,
        }
    }

    /// `is_fixed`: the file system is mounted read-only, as a ConfigMap is, whose folder has mode 0777.
    fn doubt(
        &self,
        folder: Held,
        file: Held,
        is_fixed: bool,
        place: Place,
    ) -> Option<(Doubt, bool)> {
        let of = |doubt: Option<Doubt>, is_folder| doubt.map(|doubt| (doubt, is_folder));
        let owner = || {
            of(self.doubt_of_owner(folder, place), true)
                .or_else(|| of(self.doubt_of_owner(file, place), false))
        };
        // In a folder with the sticky bit, such as /tmp, nobody can replace the file of another.
        let is_sticky = folder.mode & 0o1000 != 0;
        let mode = || {
            let of_folder = self.doubt_of_mode(folder).filter(|_| !is_sticky);
            of(of_folder, true).or_else(|| of(self.doubt_of_mode(file), false))
        };
        owner().or_else(|| if is_fixed { None } else { mode() })
    }
}

/// Whether a user namespace has a user: `/proc/self/uid_map` has rows of inside, outside and count.
fn maps(uid_map: &str, uid: u32) -> bool {
    let mut rows = uid_map.lines().peekable();
    // Without user namespaces in the kernel there is no such file.
    rows.peek().is_none()
        || rows.any(|row| {
            let numbers: Vec<u64> =
                row.split_ascii_whitespace().filter_map(|number| number.parse().ok()).collect();
            matches!(numbers[..], [inside, _, count]
                if (inside..inside.saturating_add(count)).contains(&u64::from(uid)))
        })
}

/// The reason why this open file must not decide what is executed; None if it may.
fn distrust(path: &Path, file: &File, layer: FileLayer, place: Place) -> Option<Warning> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned());
    let of_folder = folder.metadata().ok()?;
    let of_file = file.metadata().ok()?;
    let mount = rustix::fs::fstatvfs(file).ok();
    let is_fixed = mount.is_some_and(|mount| mount.f_flag.contains(StatVfsMountFlags::RDONLY));
    let us = Us::now();
    let (doubt, is_folder) = us.doubt((&of_folder).into(), (&of_file).into(), is_fixed, place)?;
    let of = match is_folder {
        true => folder.as_path(),
        false => path,
    };
    Some(warning(path, of, layer, doubt, us.uid))
}

fn warning(path: &Path, of: &Path, layer: FileLayer, doubt: Doubt, us: u32) -> Warning {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (path, of, us) = (absolute.display(), of.display(), users::named(us));
    let Text { en, zh } = match doubt {
        Doubt::Owner(uid) => {
            let user = users::named(uid);
            text!("belongs to user {user}", "属于用户 {user}")
        }
        Doubt::Outside => {
            text!("belongs to a user outside of this container", "属于此容器之外的用户")
        }
        Doubt::Group(gid) => {
            text!("can be written by group {gid}", "可由组 {gid} 写入")
        }
        Doubt::Everybody => text!("can be written by everybody", "任何用户都可写入"),
    };
    let mend = match doubt {
        Doubt::Owner(_) | Doubt::Outside => "chown",
        Doubt::Group(_) => "chmod g-w",
        Doubt::Everybody => "chmod o-w",
    };
    let name = match layer {
        FileLayer::Site => format!("{}={path}", SITE_VARIABLE),
        FileLayer::Profile => format!("--profile {path}"),
    };
    let Text { en: what, zh: which } = layer.noun();
    Warning::new(
        Id::SettingsProfileOwner,
        text!(
            "{what} {path} was found but is not used: {of} {en}, and this is user {us}",
            "找到了{which} {path}，但没有使用：{of} {zh}，而当前用户为 {us}"
        ),
        text!(
            "use it with {name}, or let nobody else write it: {mend} {of}",
            "若要使用，请写 {name}；或使其他人无法写入：{mend} {of}"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_profile_writable_by_others_is_ignored() {
        use Doubt::{Everybody, Group, Outside, Owner};
        use Place::{System, WorkingDirectory as Here};
        let root = Us { uid: 0, groups: vec![0], executable: Some(0), unmapped: None };
        let bob = Us { uid: 1000, groups: vec![1000, 50], executable: Some(0), unmapped: None };
        let tool = Us { executable: Some(500), ..bob.clone() };
        // A rootless container: only its own users are mapped.
        let inside = Us { unmapped: Some(65534), ..root.clone() };
        let held = |uid, gid, mode| Held { uid, gid, mode };
        let file = |uid| held(uid, uid, 0o644);
        for (us, folder, file, is_fixed, place, expected) in [
            (&root, held(0, 0, 0o755), file(0), false, Here, None),
            (&root, held(1000, 1000, 0o755), file(1000), false, Here, Some((Owner(1000), true))),
            (&root, held(0, 0, 0o755), file(1000), false, Here, Some((Owner(1000), false))),
            (&root, held(1000, 1000, 0o755), file(0), false, System, Some((Owner(1000), true))),
            (&root, held(0, 0, 0o777), file(0), false, Here, Some((Everybody, true))),
            // A ConfigMap.
            (&root, held(0, 0, 0o777), file(0), true, System, None),
            (&root, held(0, 0, 0o1777), file(0), false, Here, None),
            (&root, held(0, 0, 0o1777), file(1000), false, Here, Some((Owner(1000), false))),
            (&root, held(0, 33, 0o775), file(0), false, Here, Some((Group(33), true))),
            (&root, held(0, 0, 0o775), file(0), false, Here, None),
            (&root, held(0, 0, 0o755), held(0, 0, 0o666), false, Here, Some((Everybody, false))),
            (&bob, held(1000, 1000, 0o775), held(1000, 1000, 0o664), false, Here, None),
            (&bob, held(1000, 50, 0o2775), file(1000), false, Here, None),
            (&bob, held(1000, 33, 0o2775), file(1000), false, Here, Some((Group(33), true))),
            (&bob, held(0, 0, 0o755), file(0), false, System, None),
            (&bob, held(500, 500, 0o755), file(500), false, System, Some((Owner(500), true))),
            (&tool, held(500, 500, 0o755), file(500), false, System, None),
            (
                &root,
                held(65534, 65534, 0o755),
                file(65534),
                false,
                Here,
                Some((Owner(65534), true)),
            ),
            (&inside, held(65534, 65534, 0o755), file(65534), false, Here, Some((Outside, true))),
            (&inside, held(65534, 65534, 0o755), file(65534), false, System, None),
        ] {
            let doubt = us.doubt(folder, file, is_fixed, place);
            assert_eq!(doubt, expected, "{us:?} {folder:?} {file:?} {place:?}");
        }
    }

    #[test]
    fn user_namespace_has_only_mapped_users() {
        for (map, has) in [
            ("         0          0 4294967295\n", true),
            ("0 1000 1\n", false),
            ("0 1000 1\n1 100000 65535\n", true),
            ("0 100000 65534\n", false),
            ("", true),
        ] {
            assert_eq!(maps(map, 65534), has, "{map}");
        }
    }
}
