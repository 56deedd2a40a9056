//! Finds profiles: a file, a name in the usual folders, or one embedded in the executable.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::owner::{Place, distrust};
use super::profile::Profile;
use super::refuse::{quoted, usage};
use super::{Source, Sourced};
use linux::host::Host;
use linux::regular_file;
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
            if let Some(found) = open(host, &folder.join(UNNAMED), Some(place), warnings)? {
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
        if let Some(found) = open(host, path, *place, warnings)? {
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
        if let Some(found) = open(host, path, *place, warnings)? {
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
                path.file_name().is_some_and(|name| name == UNNAMED)
                    || Profile::read("", text).is_ok_and(|profile| !profile.is_empty())
            };
            for path in names {
                // A file that somebody else can write is not found by its name.
                let found = open(host, &path, Some(place), &mut Vec::new());
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
fn open(
    host: &Host,
    path: &Path,
    place: Option<Place>,
    warnings: &mut Vec<Warning>,
) -> Result<Option<FoundProfile>, Refusal> {
    let shown = path.display().to_string();
    let shown = shown.strip_prefix("./").unwrap_or(&shown).to_owned();
    let unusable = |problem: Text| {
        usage(
            Id::SettingsProfile,
            problem.about(&shown),
            text!("name another profile with --profile", "请用 --profile 指定其他配置文件"),
        )
    };
    host.at(path);
    // A file that is named may be a pipe: `--profile <(envsubst < job.toml)`.
    let opened = match place {
        Some(_) => regular_file::open(path).map(|(file, _)| file),
        None => File::open(path),
    };
    let mut bytes = Vec::new();
    match opened {
        Ok(_) if path.is_dir() => return Ok(None),
        Ok(file) => {
            let doubt = place.filter(|_| host.is_live());
            if let Some(warning) = doubt.and_then(|place| distrust(path, &file, place)) {
                warnings.push(warning);
                return Ok(None);
            }
            let read = file.take(LARGEST + 1).read_to_end(&mut bytes);
            read.map_err(|error| unusable(cause(&error)))?;
        }
        Err(_) if path.is_dir() => return Ok(None),
        Err(error) if is_absent(&error) => return Ok(None),
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
