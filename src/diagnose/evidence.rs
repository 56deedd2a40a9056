//! What a log says, one piece each: which row, where, of whom and when.

use std::fmt;

use serde::Serialize;

use super::prefixes::{Level, Time};
use super::rows::RowIndex;
use text::rank::GlobalRank;

/// A node, by what the log calls it.
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
    /// Empty where the log names none.
    pub function: String,
}

impl Frame {
    /// Whether the file is the user's own: no installed package, no part of Python.
    pub fn is_own(&self) -> bool {
        // The last one: a PyTorch that was built from source.
        const INSTALLED: &[&str] = &[
            "site-packages/",
            "dist-packages/",
            "/lib/python",
            "/lib64/python",
            "/pytorch/torch/",
        ];
        // `torchrun` and other commands that a package installs.
        let is_command = self.path.contains("/bin/") && !self.path.ends_with(".py");
        let is_installed = INSTALLED.iter().any(|part| self.path.contains(part));
        !self.path.starts_with('<') && !is_command && !is_installed
    }
}

/// `generate.py:363`
impl fmt::Display for Frame {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        write!(out, "{name}:{}", self.line)
    }
}

/// Where a line stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Counts the logs that were read, from 0.
    pub log: usize,
    /// Counts line feeds, from 1.
    pub line: u64,
    /// Bytes before the line.
    pub offset: u64,
}

/// What came after a piece of evidence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fate {
    /// The program went on.
    pub(super) survived: bool,
    /// It says that something came to a bad end, and nothing below contradicts.
    pub(super) failure: bool,
    /// Nothing went on between it and the next failure, or the end.
    pub(super) last_word: bool,
    /// The log ends with it, or soon after without any work.
    pub(super) at_end: bool,
}

/// One row seen of one rank, with the lines that say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evidence {
    pub row: RowIndex,
    pub first: Place,
    /// Lines that say the same of the same rank.
    pub count: u64,
    pub rank: Option<GlobalRank>,
    pub node: Option<Node>,
    /// The line, without its prefix; at most 2000 characters around what the row found.
    pub text: String,
    /// The last frame of the user's own code above the line.
    pub frame: Option<Frame>,
    /// The last of these lines, counted as pieces of lines are.
    pub(super) last_seen: u64,
    /// The line was not written before this time,
    pub(super) time: Option<Time>,
    /// and not after this one.
    pub(super) until: Option<Time>,
    pub(super) level: Level,
    /// The line belongs to an exception, not only to the words of a program.
    pub(super) raised: bool,
    /// It has the form of an exception, and no traceback stands above it.
    pub(super) alone: bool,
    /// The line ends a traceback that began where a program begins: nobody caught it, or only
    /// code at the top of a module did. So does what C++ prints when it ends a process.
    pub(super) uncaught: bool,
    /// The line has the form of an error, and does not merely hold its words.
    pub(super) stated: bool,
    pub(super) captures: Vec<(String, String)>,
    /// A shell says that it did not find a command: it goes on with the next one.
    pub(super) by_shell: bool,
    /// The line has the number of a task before it, as `srun --label` writes it.
    pub(super) of_task: bool,
    /// The pod that an event is about.
    pub(super) object: Option<String>,
    /// Of the last of these lines.
    pub(super) writer: u64,
    /// Lines of progress in the log before the last of these lines.
    pub(super) progress: u64,
    /// The same of its writer.
    pub(super) own_progress: u64,
    pub(super) fate: Fate,
}

/// The characters of a line that are kept.
pub(super) const LONGEST_TEXT: usize = 2000;

/// What people read of a line.
pub(super) fn shown(line: &[u8]) -> String {
    shown_around(line, 0)
}

/// The same where what matters stands at `at`.
pub(super) fn shown_around(line: &[u8], at: usize) -> String {
    // What stands before it tells whose it is; more of what follows says what it is.
    let from = if line.len() <= LONGEST_TEXT { 0 } else { at.saturating_sub(LONGEST_TEXT / 4) };
    let part = line.get(from..).unwrap_or_default();
    let part = part.get(..LONGEST_TEXT * 4).unwrap_or(part);
    String::from_utf8_lossy(part).trim().chars().take(LONGEST_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::Frame;

    #[test]
    fn a_frame_is_the_users_own_unless_its_file_is_installed() {
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
        ] {
            let frame = Frame { path: path.to_owned(), line: 1, function: String::new() };
            assert_eq!(frame.is_own(), own, "{path}");
        }
    }
}
