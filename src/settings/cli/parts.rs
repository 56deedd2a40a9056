//! Tells the parts of a command line: the words of this program, and those of the program that it starts.
//!
//! As in torchrun the first word that is a `.py` file, or the module of `-m`, ends the options: what stands behind it
//! is the program's, whatever it looks like. `--` does the same for any program. Only an option's value may stand in
//! between. Reads no file: a name decides.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, Command};

use super::mistake::{self, Meaning};

/// The subcommands that take a program; the program without a subcommand does too.
const LAUNCHING: &[&str] = &["run", "plan", "check", "clean"];

/// The positions of the parts among the words behind the name of this program.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Parts {
    /// Where the options of this program end.
    pub(super) end: usize,
    /// Where the program begins: behind `--`, at a script, or behind a module's name. None if no word names one.
    pub(super) program: Option<usize>,
    pub(super) subcommand: Option<usize>,
    /// `-m`, as the switch that it is for torchrun, and the module's name behind other options.
    pub(super) apart: Option<(usize, usize)>,
}

impl Parts {
    pub(super) fn of(words: &[OsString], root: &Command) -> Parts {
        let dashes = words.iter().position(|word| word == "--");
        let end = dashes.unwrap_or(words.len());
        let mut parts =
            Parts { end, program: dashes.map(|at| at + 1), subcommand: None, apart: None };
        let mut command = root;
        let mut switch = None;
        let mut at = 0;
        while let Some(word) = words.get(at).filter(|_| at < end) {
            let Some(given) = TypedOption::of(word) else {
                let below = word.to_str().and_then(|word| root.find_subcommand(word));
                if let Some(switch) = switch {
                    parts.apart = Some((switch, at));
                    parts.module(words, at + 1);
                } else if let Some(below) = below.filter(|_| parts.subcommand.is_none()) {
                    (parts.subcommand, command) = (Some(at), below);
                    at += 1;
                    if launches(below) {
                        continue;
                    }
                } else if word.as_bytes().ends_with(b".py") {
                    (parts.end, parts.program) = (at, Some(at));
                }
                return parts;
            };
            if is_attached_module(word) {
                parts.module(words, at + 1);
                return parts;
            }
            let name = given.ours(root);
            at += 1;
            if !takes_value(command, root, &name) || given.value.is_some() {
                if is_module(&name) {
                    parts.module(words, at);
                    return parts;
                }
                continue;
            }
            let next = words.get(at).filter(|_| at < end);
            match next {
                Some(next) if is_module(&name) && next.as_bytes().starts_with(b"-") => {
                    switch = Some(at - 1);
                    continue;
                }
                Some(_) if is_module(&name) => {
                    parts.module(words, at + 1);
                    return parts;
                }
                _ => at += 1,
            }
        }
        parts
    }

    /// The options end here, behind a module's name. A `--` that follows only separates.
    fn module(&mut self, words: &[OsString], end: usize) {
        self.end = end;
        self.program = match words.get(end) {
            Some(word) if word == "--" => Some(end + 1),
            other => other.map(|_| end),
        };
    }
}

pub(super) fn launches(command: &Command) -> bool {
    LAUNCHING.contains(&command.get_name())
}

fn is_module(name: &str) -> bool {
    matches!(name, "m" | "module")
}

/// `-mpackage.train`
fn is_attached_module(word: &OsStr) -> bool {
    let name = word.as_bytes().strip_prefix(b"-m").and_then(<[u8]>::first);
    name.is_some_and(|first| *first != b'=')
}

fn takes_value(command: &Command, root: &Command, name: &str) -> bool {
    let known = option(command, name).or_else(|| option(root, name));
    known.is_some_and(|known| known.get_action().takes_values())
}

/// An option as typed.
#[derive(Debug)]
pub(super) struct TypedOption {
    /// With its dashes, without its value.
    pub(super) typed: String,
    /// `nproc-per-node`, or the letter of a short one.
    pub(super) name: String,
    /// After `=`.
    pub(super) value: Option<OsString>,
}

impl TypedOption {
    pub(super) fn of(word: &OsStr) -> Option<TypedOption> {
        let bytes = word.as_bytes();
        let name = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-"))?;
        let end = name.iter().position(|byte| *byte == b'=').unwrap_or(name.len());
        let (name, value) = name.split_at_checked(end)?;
        let typed = bytes.get(..bytes.len() - value.len())?;
        let value = value.strip_prefix(b"=").map(|value| OsStr::from_bytes(value).to_owned());
        let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
        let typed = String::from_utf8_lossy(typed).into_owned();
        Some(TypedOption { typed, name: name.replace('_', "-"), value })
    }

    /// The name of our option that it means.
    fn ours(&self, root: &Command) -> String {
        match mistake::meaning(&self.name) {
            Some(Meaning::Is(name)) if option(root, &self.name).is_none() => name.to_owned(),
            Some(Meaning::Endpoint) => "master-addr".to_owned(),
            _ => self.name.clone(),
        }
    }

    /// The form for clap.
    pub(super) fn spelled(&self) -> OsString {
        let dashes = if self.name.len() == 1 { "-" } else { "--" };
        let mut word = format!("{dashes}{}", self.name).into_bytes();
        if let Some(value) = &self.value {
            word.push(b'=');
            word.extend_from_slice(value.as_bytes());
        }
        OsString::from_vec(word)
    }
}

pub(super) fn option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let mut letters = name.chars();
    let short = letters.next().filter(|_| letters.next().is_none());
    command
        .get_arguments()
        .find(|one| one.get_long() == Some(name) || (short.is_some() && one.get_short() == short))
}
