//! Rearranges the words of a command line before clap parses them.
//!
//! Takes the typed words; gives the line with the subcommand first, other launchers' names of
//! our options replaced, and a count of repeated options. Refuses options that only other
//! launchers have. Never reads after `--`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{ArgAction, Command, CommandFactory};

use super::line::Line;
use super::mistake::{self, Meaning};
use verdict::Refusal;

/// A line for clap.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) line: Vec<OsString>,
    /// Options with one value that were given more than once.
    pub(super) repeated: Vec<(String, usize)>,
}

/// Rearranges the words.
///
/// # Errors
/// An option of another launcher that has no counterpart here, or `help` about no subcommand.
pub(super) fn ordered(args: Vec<OsString>) -> Result<Words, Refusal> {
    let root = Line::command();
    let end = args.iter().position(|word| word == "--").unwrap_or(args.len());
    let (ours, program) = args.split_at(end);
    let (name, ours) = ours
        .split_first()
        .map_or((&[][..], ours), |(_, rest)| (ours.get(..1).unwrap_or_default(), rest));
    if let Some(asked) = about_itself(ours, &root) {
        return Ok(Words { line: [name, &asked].concat(), repeated: Vec::new() });
    }
    if let [help, word, ..] = ours
        && help == "help"
    {
        return Err(mistake::no_help(&word.to_string_lossy(), &root));
    }
    let at = subcommand(ours, &root);
    let own = at.and_then(|at| ours.get(at)).and_then(|word| word.to_str());
    let command = own.and_then(|own| root.find_subcommand(own)).unwrap_or(&root);
    let launches = own.is_none_or(|own| ["run", "plan", "check", "clean"].contains(&own));

    let mut line = name.to_vec();
    line.extend(at.and_then(|at| ours.get(at)).cloned());
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut rest = ours.iter().enumerate().filter(|(index, _)| Some(*index) != at);
    while let Some((_, word)) = rest.next() {
        let Some(given) = TypedOption::of(word) else {
            line.push(word.clone());
            continue;
        };
        let mut given = given;
        if launches && option(command, &given.name).is_none() {
            match mistake::meaning(&given.name) {
                Some(Meaning::Is(name)) => given.name = name.to_owned(),
                Some(Meaning::Means(words)) => {
                    line.extend(words.iter().map(OsString::from));
                    continue;
                }
                Some(Meaning::Endpoint) => {
                    let value = given.value.or_else(|| rest.next().map(|(_, word)| word.clone()));
                    line.extend(endpoint(&value.unwrap_or_default()));
                    continue;
                }
                Some(Meaning::Explained(of, hint)) => {
                    return Err(mistake::foreign(&given.typed, of, &hint));
                }
                None => {
                    line.push(word.clone());
                    continue;
                }
            }
        }
        let Some(known) = option(command, &given.name) else {
            line.push(word.clone());
            continue;
        };
        let takes_value = known.get_action().takes_values();
        if takes_value && matches!(known.get_action(), ArgAction::Set) {
            *counts.entry(known.get_long().unwrap_or_default().to_owned()).or_default() += 1;
        }
        let next = match takes_value && given.value.is_none() {
            true => rest.next().map(|(_, word)| word.clone()),
            false => None,
        };
        // clap would take the value for an option.
        let (value, next) = match next {
            Some(word) if is_negative(&word) => (Some(word), None),
            next => (None, next),
        };
        given.value = given.value.or(value);
        line.push(given.spelled());
        line.extend(next);
    }
    line.extend(program.iter().cloned());
    let repeated = counts.into_iter().filter(|(_, times)| *times > 1).collect();
    Ok(Words { line, repeated })
}

/// `-1` is a value, which the setting may refuse, not an option.
fn is_negative(word: &OsStr) -> bool {
    let digits = word.as_bytes().strip_prefix(b"-").unwrap_or_default();
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// `help`, `help plan` and `version`, as flags.
fn about_itself(ours: &[OsString], root: &Command) -> Option<Vec<OsString>> {
    let words: Vec<&str> = ours.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    match words.as_slice() {
        ["version"] => Some(vec!["--version".into()]),
        ["help"] => Some(vec!["--help".into()]),
        ["help", names @ ..] if root.find_subcommand(names.first()?).is_some() => {
            Some(names.iter().map(OsString::from).chain([OsString::from("--help")]).collect())
        }
        _ => None,
    }
}

/// Position of the subcommand: the first word that is neither an option nor its value.
fn subcommand(ours: &[OsString], root: &Command) -> Option<usize> {
    let mut rest = ours.iter().enumerate();
    while let Some((at, word)) = rest.next() {
        let Some(given) = TypedOption::of(word) else {
            let is_one = word.to_str().is_some_and(|word| root.find_subcommand(word).is_some());
            return is_one.then_some(at);
        };
        let name = match mistake::meaning(&given.name) {
            Some(Meaning::Is(name)) if option(root, &given.name).is_none() => name.to_owned(),
            Some(Meaning::Endpoint) => "master-addr".to_owned(),
            _ => given.name,
        };
        let takes_value = option(root, &name).is_some_and(|one| one.get_action().takes_values());
        if takes_value && given.value.is_none() {
            rest.next();
        }
    }
    None
}

/// An option as typed.
#[derive(Debug)]
struct TypedOption {
    /// With its dashes, without its value.
    typed: String,
    /// `nproc-per-node`, or the letter of a short one.
    name: String,
    /// After `=`.
    value: Option<OsString>,
}

impl TypedOption {
    fn of(word: &OsStr) -> Option<TypedOption> {
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

    /// The form for clap.
    fn spelled(&self) -> OsString {
        let dashes = if self.name.len() == 1 { "-" } else { "--" };
        let mut word = format!("{dashes}{}", self.name).into_bytes();
        if let Some(value) = &self.value {
            word.push(b'=');
            word.extend_from_slice(value.as_bytes());
        }
        OsString::from_vec(word)
    }
}

fn option<'a>(command: &'a Command, name: &str) -> Option<&'a clap::Arg> {
    let mut letters = name.chars();
    let short = letters.next().filter(|_| letters.next().is_none());
    command
        .get_arguments()
        .find(|one| one.get_long() == Some(name) || (short.is_some() && one.get_short() == short))
}

/// `HOST:PORT` as our two options; a host without port leaves our port unchanged, as does torchrun's `localhost:0`
/// for a port that is free.
fn endpoint(value: &OsStr) -> Vec<OsString> {
    let text = value.to_string_lossy();
    let split =
        text.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    match split {
        Some((host @ ("localhost" | "127.0.0.1" | "[::1]"), "0")) => {
            vec![format!("--master-addr={host}").into()]
        }
        Some((host, port)) => {
            vec![format!("--master-addr={host}").into(), format!("--master-port={port}").into()]
        }
        None => vec![format!("--master-addr={text}").into()],
    }
}
