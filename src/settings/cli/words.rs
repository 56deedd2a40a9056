//! Rearranges the words of a command line before clap parses them.
//!
//! Takes the typed words; gives the line with the subcommand first, other launchers' names of
//! our options replaced, `--` before the program, and a count of repeated options. Refuses options
//! that only other launchers have. Never reads the words of the program.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{ArgAction, Command, CommandFactory};

use super::foreign::{self, Meaning};
use super::line::Line;
use super::mistake;
use super::parts::{self, Parts, TypedOption, option};
use super::topic::Topic;
use verdict::Refusal;

/// A line for clap.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) line: Vec<OsString>,
    /// Options with one value that were given more than once.
    pub(super) repeated: Vec<(String, usize)>,
    /// Options of other launchers that change nothing, with their values.
    pub(super) unused: Vec<(String, OsString)>,
}

/// Rearranges the words.
///
/// # Errors
/// An option of another launcher that has no counterpart here, or `help` about nothing that is known.
pub(super) fn ordered(args: Vec<OsString>) -> Result<Words, Refusal> {
    let root = Line::command();
    let (name, words) = args.split_at_checked(1).unwrap_or_default();
    let parts = Parts::of(words, &root);
    let ours = words.get(..parts.end).unwrap_or_default();
    if let Some(asked) = about_itself(ours, &root)? {
        let line = [name, &asked].concat();
        return Ok(Words { line, repeated: Vec::new(), unused: Vec::new() });
    }
    let own = parts.subcommand.and_then(|at| ours.get(at)).and_then(|word| word.to_str());
    let command = parts.command;
    let launches = parts::launches(command);

    let mut line = name.to_vec();
    line.extend(own.map(OsString::from));
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut unused = Vec::new();
    let is_moved = |at: usize| {
        let apart = parts.apart.is_some_and(|(switch, module)| at == switch || at == module);
        apart || parts.subcommand == Some(at)
    };
    let mut rest = ours.iter().enumerate().filter(|(at, _)| !is_moved(*at));
    while let Some((_, word)) = rest.next() {
        let Some(given) = TypedOption::of(word) else {
            line.push(word.clone());
            continue;
        };
        let mut given = given;
        if launches && option(command, &given.name).is_none() {
            match foreign::meaning(&given.name).or_else(|| foreign::attached(&given.typed)) {
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
                Some(Meaning::Unused) => {
                    let value = given.value.or_else(|| rest.next().map(|(_, word)| word.clone()));
                    let Some(value) = value else { return Err(mistake::no_value(&given.typed)) };
                    unused.push((given.typed, value));
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
    if let Some((_, module)) = parts.apart {
        let mut word = OsString::from("--module=");
        word.push(words.get(module).map(OsString::as_os_str).unwrap_or_default());
        line.push(word);
    }
    if let Some(program) = parts.program {
        line.push("--".into());
        line.extend(words.get(program..).unwrap_or_default().iter().cloned());
    }
    let repeated = counts.into_iter().filter(|(_, times)| *times > 1).collect();
    Ok(Words { line, repeated, unused })
}

/// `-1` is a value, which the setting may refuse, not an option.
fn is_negative(word: &OsStr) -> bool {
    let digits = word.as_bytes().strip_prefix(b"-").unwrap_or_default();
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// `help plan`, `version` and `plan --version`, as flags. None for `help` alone and for its topics.
///
/// # Errors
/// `help` about nothing that is known.
fn about_itself(ours: &[OsString], root: &Command) -> Result<Option<Vec<OsString>>, Refusal> {
    let Some((first, rest)) = ours.split_first() else { return Ok(None) };
    let is_version = |word: &OsString| word == "--version" || word == "-V";
    let of_command = || first.to_str().is_some_and(|name| root.find_subcommand(name).is_some());
    if first == "version" && rest.is_empty()
        || rest.iter().all(is_version) && of_command() && !rest.is_empty()
    {
        return Ok(Some(vec!["--version".into()]));
    }
    if first != "help" {
        return Ok(None);
    }
    let mut names: Vec<String> = Vec::new();
    let mut rest = rest.iter().map(|word| word.to_string_lossy().into_owned());
    while let Some(word) = rest.next() {
        match word.as_str() {
            "-h" | "--help" => {}
            "--lang" => _ = rest.next(),
            word if word.starts_with("--lang=") => {}
            _ => names.push(word),
        }
    }
    let Some(name) = names.first() else { return Ok(None) };
    if root.find_subcommand(name).is_some() {
        let asked = names.into_iter().chain(["--help".to_owned()]);
        return Ok(Some(asked.map(OsString::from).collect()));
    }
    Topic::named(name).map(|_| None).ok_or_else(|| mistake::no_help(name, root))
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
