//! Where a profile is found: a file, a name in the usual folders, or the executable itself.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::Sourced;
use super::document::PROFILE;
use super::refuse::{quoted, usage};
use crate::host::Host;
use crate::lang::Text;
use crate::nearest::nearest;
use crate::text;
use crate::verdict::Refusal;

/// The profiles inside the executable, by name.
pub const EMBEDDED: &[(&str, &str)] = &[
    ("wan22", include_str!("../../config/wan22.toml")),
    ("taehv", include_str!("../../config/taehv.toml")),
    ("zimdb", include_str!("../../config/zimdb.toml")),
];

/// The file that is used where no profile is named.
const UNNAMED: &str = "ranklaunch.toml";

/// More than any profile needs; a log or a checkpoint named by mistake is not read to its end.
const LARGEST: u64 = 1 << 20;

/// A profile's text and what to call it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Name or path, as the start-up block says it.
    pub(super) name: String,
    /// What stands before the line number.
    pub(super) file: String,
    pub(super) text: String,
}

/// The profile that was asked for; without one, the first `ranklaunch.toml` of the usual folders.
pub(super) fn find(asked: Option<&Sourced<String>>, host: &Host) -> Result<Option<Found>, Refusal> {
    let Some(asked) = asked else {
        for path in folders(host).into_iter().map(|folder| folder.join(UNNAMED)) {
            if let Some(found) = open(host, &path)? {
                return Ok(Some(found));
            }
        }
        return Ok(None);
    };
    let name = asked.value.as_str();
    let looked: Vec<PathBuf> = if name.contains('/') {
        vec![PathBuf::from(name)]
    } else {
        let file = if name.ends_with(".toml") { name.to_owned() } else { format!("{name}.toml") };
        folders(host).into_iter().map(|folder| folder.join(&file)).collect()
    };
    for path in &looked {
        if let Some(found) = open(host, path)? {
            return Ok(Some(found));
        }
    }
    let stem = name.strip_suffix(".toml").unwrap_or(name);
    match EMBEDDED.iter().find(|(known, _)| *known == stem) {
        Some((name, text)) => Ok(Some(Found {
            name: (*name).to_owned(),
            file: format!("{name}.toml"),
            text: (*text).to_owned(),
        })),
        None => Err(not_found(asked, stem, &looked)),
    }
}

/// Beside the executable, the working directory, /etc/ranklaunch. A replayed node has the last only.
fn folders(host: &Host) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if host.is_live() {
        if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
            folders.push(folder.to_owned());
        }
        folders.push(PathBuf::from("."));
    }
    folders.push(host.path("/etc/ranklaunch"));
    folders
}

fn not_found(asked: &Sourced<String>, stem: &str, looked: &[PathBuf]) -> Refusal {
    let (source, name) = (&asked.source, quoted(asked.value.as_ref()));
    let looked: Vec<String> = looked.iter().map(|path| path.display().to_string()).collect();
    let looked = looked.join(", ");
    let names: Vec<&str> = EMBEDDED.iter().map(|(name, _)| *name).collect();
    let known = names.join(", ");
    let hint = match nearest(stem, names) {
        Some(near) => text!("did you mean --profile {near}?", "是否想写 --profile {near}？"),
        None => text!(
            "give one of these names or a TOML file with --profile",
            "请用 --profile 指定其中一个名称或一个 TOML 文件"
        ),
    };
    usage(
        PROFILE,
        text!(
            "{source} is {name}, but there is no such profile; embedded: {known}; looked at: {looked}",
            "{source} 的值为 {name}，但没有这个配置；内置配置: {known}；查找过: {looked}"
        ),
        hint,
    )
}

/// None: there is no such file.
fn open(host: &Host, path: &Path) -> Result<Option<Found>, Refusal> {
    let shown = path.display().to_string();
    let shown = shown.strip_prefix("./").unwrap_or(&shown).to_owned();
    let unusable = |problem: Text| {
        let (en, zh) = (problem.en, problem.zh);
        usage(
            PROFILE,
            text!("{shown}: {en}", "{shown}: {zh}"),
            text!("name another profile with --profile", "请用 --profile 指定其他配置"),
        )
    };
    let mut bytes = Vec::new();
    host.at(path);
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes).map(|_| ()));
    match read {
        Ok(()) => {}
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(unusable(Text::same(error.to_string()))),
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
    Ok(Some(Found { name: shown.clone(), file: shown.clone(), text }))
}

/// Nothing of this name: also where a folder on the way is a file, or the name is a folder's.
fn is_absent(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{IsADirectory, NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory | IsADirectory)
}
