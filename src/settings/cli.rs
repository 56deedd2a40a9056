//! The command line: options, help, and parsing.
//!
//! Takes arguments; gives a [`Command`], in which every option is still raw text, or a [`Stop`] with
//! the text to print instead. `settings` parses the values, since flag, variable and profile
//! share one parser. Never reads a file, the environment or a default.
//!
//! Gives also help, manual pages, and what completes an unfinished line.

mod chinese;
mod complete;
mod foreign;
mod help;
mod line;
mod man;
mod mistake;
mod options;
mod parts;
#[cfg(test)]
mod tests;
mod topic;
mod words;

use std::ffi::OsString;
use std::io;

#[cfg(any(test, feature = "fixtures"))]
use clap::Arg;
use clap::{CommandFactory, Parser};

use text::lang::{Lang, Text};

pub(crate) use complete::offered;
pub use help::definition;
use line::Line;
pub use line::*;
pub use mistake::Stop;
pub use options::Options;
use parts::Parts;
pub use topic::Topic;

impl Command {
    /// Parses the arguments; the first is the program's own name.
    pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, Stop> {
        let words::Words { line, repeated, unused } =
            words::ordered(args.collect()).map_err(Stop::Refused)?;
        let parsed = Line::try_parse_from(&line).map_err(|error| mistake::stop(&error, &line))?;
        let mut command = parsed.command.unwrap_or(Command::Run(parsed.options));
        if let Command::Run(options)
        | Command::Plan(Plan { options, .. })
        | Command::Check(Check { options, .. })
        | Command::Clean(Clean { options, .. }) = &mut command
        {
            (options.repeated, options.unused) = (repeated, unused);
        }
        Ok(command)
    }

    /// The text of [`Stop::Shown`] in the user's language.
    pub fn shown(text: String, args: &[OsString], lang: Lang) -> String {
        let line = || Some(words::ordered(args.to_vec()).ok()?.line);
        match lang {
            Lang::En => text,
            Lang::Zh => line().and_then(|line| help::asked(&line, lang)).unwrap_or(text),
        }
    }

    /// The completion script of a shell.
    pub fn completions(shell: clap_complete::Shell) -> Vec<u8> {
        complete::script(shell)
    }

    /// The commands and the topics, which `help` shows.
    pub fn help_list(lang: Lang) -> String {
        help::list(lang)
    }

    /// The manual page in troff. `codes` are the exit codes with their meaning.
    pub fn man(lang: Lang, codes: &[(String, Text)]) -> io::Result<Vec<u8>> {
        man::page(lang, codes)
    }

    /// A manual page of each command, with the name of its file.
    pub fn man_pages(lang: Lang, codes: &[(String, Text)]) -> io::Result<Vec<(String, Vec<u8>)>> {
        man::pages(lang, codes)
    }
}

/// Where the program begins on a line without this program's name: behind `--`, at a script, or behind a
/// module's name. None if no word names one.
pub fn program_at(words: &[OsString]) -> Option<usize> {
    Parts::of(words, &Line::command()).program
}

/// The words of this program on a line without its name: not those of the program that it starts.
pub fn own_words(words: &[OsString]) -> &[OsString] {
    words.get(..Parts::of(words, &Line::command()).end).unwrap_or_default()
}

/// The value of `--lang`, even on a line that cannot be parsed.
pub(crate) fn language_of(args: &[OsString]) -> Option<OsString> {
    let mut rest = own_words(args.get(1..)?).iter();
    let mut rest = rest.by_ref().skip_while(|word| !word.to_string_lossy().starts_with("--lang"));
    let word = rest.next()?.to_string_lossy().into_owned();
    match word.strip_prefix("--lang=") {
        Some(value) => Some(value.into()),
        None => rest.next().filter(|_| word == "--lang").cloned(),
    }
}

/// The options of `ranklaunch run` by their long names, with their help texts.
#[cfg(any(test, feature = "fixtures"))]
pub fn descriptions() -> Vec<(String, String)> {
    let line = Line::command();
    let described = |arg: &Arg| Some((arg.get_long()?.to_owned(), arg.get_help()?.to_string()));
    line.get_arguments().filter_map(described).collect()
}
