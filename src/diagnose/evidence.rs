//! Pieces of evidence from logs: the row, the place, the writer and the time of each.

use std::fmt;

use serde::Serialize;

use super::prefixes::{Level, Time};
use super::rows::RowIndex;
use text::rank::GlobalRank;

/// A node, by its name in the log.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(untagged)]
pub enum Node {
    /// 0 to nodes − 1.
    Rank(u32),
    /// A host, a pod or an address.
    Name(String),
}

impl fmt::Display for Node {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Rank(rank) => rank.fmt(out),
            Node::Name(name) => name.fmt(out),
        }
    }
}

/// A place in the source of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Frame {
    pub path: String,
    pub line: u64,
    /// Empty if the log names no function.
    pub function: String,
}

impl Frame {
    /// Whether the file is the user's own: no installed package, no part of Python.
    pub fn is_own(&self) -> bool {
        Package::of(&self.path).is_none()
    }

    /// `generate.py:363 main`
    pub(super) fn with_function(&self) -> String {
        format!("{self} {}", self.function).trim_end().to_owned()
    }
}

/// `generate.py:363`
impl fmt::Display for Frame {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        write!(out, "{name}:{}", self.line)
    }
}

/// The installed code that a file belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Package {
    /// A command that a package installs, such as `torchrun`.
    Command(String),
    /// CPython's standard library, or code without a file.
    Python,
    /// A package, by the name that is imported.
    Named(String),
}

/// Folders in which pip and distributions install packages.
const INSTALLED_IN: &[&str] = &["site-packages/", "dist-packages/"];
/// Folders of packages that are installed from source, as in images of their makers, with the name of the package.
const FROM_SOURCE: &[(&str, &str)] = &[
    ("/pytorch/torch/", "torch"),
    // https://github.com/vllm-project/vllm/blob/main/docker/Dockerfile
    ("/vllm-workspace/", "vllm"),
    // https://github.com/sgl-project/sglang/blob/main/docker/Dockerfile
    ("/sgl-workspace/", "sglang"),
    // Code of a model that transformers has downloaded.
    ("/huggingface/modules/transformers_modules/", "transformers_modules"),
    // Code that torch has written.
    ("/torchinductor_", "torch"),
];
const STANDARD: &[&str] = &["/lib/python", "/lib64/python"];
/// Packages that raise what others have passed to them.
const BELOW: &[&str] = &["torch", "numpy"];

impl Package {
    /// The package of a file; None if the file is the user's own.
    pub(super) fn of(path: &str) -> Option<Package> {
        // A package may hold others.
        let installed = INSTALLED_IN.iter().filter_map(|folder| {
            let (_, rest) = path.rsplit_once(folder)?;
            rest.split(['/', '.', '-']).next().filter(|name| !name.is_empty())
        });
        let from_source = FROM_SOURCE.iter().filter(|(folder, _)| path.contains(folder));
        if let Some(name) = installed.chain(from_source.map(|(_, name)| *name)).next() {
            return Some(Package::Named(name.to_owned()));
        }
        // Files of the launcher that a rank imports.
        if path.contains("/ranklaunch-") && path.contains("/inject/python/") {
            return Some(Package::Named("ranklaunch".to_owned()));
        }
        let unnamed = INSTALLED_IN.iter().chain(STANDARD).any(|folder| path.contains(folder));
        if path.starts_with('<') || unnamed {
            return Some(Package::Python);
        }
        let (folder, name) = path.rsplit_once('/')?;
        let is_command = folder.ends_with("/bin") || folder.contains("/bin/");
        (is_command && !name.ends_with(".py")).then(|| Package::Command(name.to_owned()))
    }

    /// The package to name for a traceback, after a frame below those before it: the innermost one that is not only
    /// called by others.
    pub(super) fn called_by(before: Option<Package>, path: &str) -> Option<Package> {
        let found = Package::of(path);
        let worth = |package: &Option<Package>| match package {
            None => 0,
            Some(Package::Command(_)) => 1,
            Some(Package::Python) => 2,
            Some(Package::Named(name)) if BELOW.contains(&&**name) => 3,
            Some(Package::Named(_)) => 4,
        };
        if worth(&found) >= worth(&before) { found } else { before }
    }
}

/// `transformers`, `Python`
impl fmt::Display for Package {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Package::Python => out.write_str("Python"),
            Package::Command(name) | Package::Named(name) => out.write_str(name),
        }
    }
}

/// The place of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Counts the logs that were read, from 0.
    pub log: usize,
    /// Counts line feeds, from 1.
    pub line: u64,
    /// Bytes before the line.
    pub offset: u64,
}

/// The course of the program after a piece of evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fate {
    /// The program went on.
    pub(super) survived: bool,
    /// The evidence shows a failure, and nothing below contradicts.
    pub(super) failure: bool,
    /// No progress was made between the evidence and the next failure, or the end.
    pub(super) last_word: bool,
    /// The log ends with the evidence, or soon after without any work.
    pub(super) at_end: bool,
}

/// One row seen for one rank, with the lines that show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    pub row: RowIndex,
    pub first: Place,
    /// Number of lines with this row and this rank.
    pub count: u64,
    pub rank: Option<GlobalRank>,
    pub node: Option<Node>,
    /// The line, without its prefix; at most 2000 characters around the row's fragment.
    pub text: String,
    /// The last frame of the user's own code above the line.
    pub frame: Option<Frame>,
    /// The package that raised the exception of the line, if no frame above the line is the user's own.
    pub(super) package: Option<Package>,
    /// Number of the last of these lines. Pieces of lines count as lines.
    pub(super) last_seen: u64,
    /// The line was not written before this time.
    pub(super) time: Option<Time>,
    /// The line was not written after this time.
    pub(super) until: Option<Time>,
    pub(super) level: Level,
    /// The line belongs to an exception, not only to the words of a program.
    pub(super) raised: bool,
    /// The line has the form of an exception without a traceback above it.
    pub(super) alone: bool,
    /// The line ends a traceback that began at the start of a program: nobody caught the exception,
    /// or only code at the top of a module did. The line that C++ prints when it ends a process
    /// counts as well.
    pub(super) uncaught: bool,
    /// The line has the form of an error, not merely its words.
    pub(super) stated: bool,
    pub(super) captures: Vec<(String, String)>,
    /// A shell reports that it did not find a command. The shell goes on with the next command.
    pub(super) by_shell: bool,
    /// The line begins with the number of a task, as `srun --label` writes it.
    pub(super) of_task: bool,
    /// The pod that an event concerns.
    pub(super) object: Option<String>,
    /// Writer of the last of these lines.
    pub(super) writer: u64,
    /// Lines of progress in the log before the last of these lines.
    pub(super) progress: u64,
    /// Lines of the writer's progress before the last of these lines.
    pub(super) own_progress: u64,
    pub(super) fate: Fate,
}

/// Maximum number of characters that are kept of a line.
pub(super) const LONGEST_TEXT: usize = 2000;

/// The text of a line for people.
pub(super) fn shown(line: &[u8]) -> String {
    shown_around(line, 0)
}

/// Like [`shown`], for a line whose important part is at `at`.
pub(super) fn shown_around(line: &[u8], at: usize) -> String {
    // The text before the important part names its subject; the text after it explains more, so
    // more of it is kept.
    let from = if line.len() <= LONGEST_TEXT { 0 } else { at.saturating_sub(LONGEST_TEXT / 4) };
    let part = line.get(from..).unwrap_or_default();
    let part = part.get(..LONGEST_TEXT * 4).unwrap_or(part);
    String::from_utf8_lossy(part).trim().chars().take(LONGEST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::{Frame, Package};

    #[test]
    fn frame_is_own_unless_file_is_installed() {
        for (path, own) in [
            ("/home/me/torch/train.py", true),
            ("/home/me/bin/train.py", true),
            ("train.py", true),
            ("/opt/conda/bin/torchrun", false),
            ("/opt/lib/python3.11/site-packages/torch/nn/linear.py", false),
            ("/usr/lib/python3/dist-packages/torch/nn/linear.py", false),
            ("/opt/pytorch/pytorch/torch/nn/linear.py", false),
            ("/usr/lib/python3.12/runpy.py", false),
            ("<frozen runpy>", false),
            ("/vllm-workspace/vllm/v1/engine/core.py", false),
            ("/home/me/.cache/huggingface/modules/transformers_modules/m/modeling.py", false),
            ("/home/me/vllm/train.py", true),
            ("/tmp/ranklaunch-00aa11bb22cc33dd/inject/python/helpers.py", false),
            ("/home/me/ranklaunch-jobs/inject/train.py", true),
        ] {
            let frame = Frame { path: path.to_owned(), line: 1, function: String::new() };
            assert_eq!(frame.is_own(), own, "{path}");
        }
    }

    #[test]
    fn innermost_package_that_calls_others_is_named() {
        let site = |name: &str| format!("/opt/lib/python3.11/site-packages/{name}");
        let named = |paths: &[String]| {
            let all = paths.iter().fold(None, |known, path| Package::called_by(known, path));
            all.expect("a package").to_string()
        };
        let standard = || "/usr/lib/python3.11/subprocess.py".to_owned();
        assert_eq!(named(&[site("deepspeed/launcher/runner.py"), standard()]), "deepspeed");
        assert_eq!(named(&[site("transformers/x.py"), site("torch/nn.py")]), "transformers");
        assert_eq!(named(&["<frozen runpy>".to_owned(), site("torch/run.py")]), "torch");
        assert_eq!(named(&[site("vllm/a.py"), site("ray/b.py"), site("six.py")]), "six");
        assert_eq!(named(&[site("deepspeed-0.14.0-py3.10.egg/deepspeed/a.py")]), "deepspeed");
        assert_eq!(named(&[standard()]), "Python");
    }
}
