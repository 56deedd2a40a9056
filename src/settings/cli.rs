//! The command line: options, help, and parsing.
//!
//! Takes arguments; gives a [`Command`], in which every option is still raw text, or a [`Stop`] with
//! the text to print instead. `settings` parses the values, since flag, variable and profile
//! share one parser. Never reads a file, the environment or a default.

mod chinese;
mod completions;
mod foreign;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod line;
mod mistake;
mod options;
#[cfg(test)]
mod tests;
mod words;

use std::ffi::OsString;
use std::io;

use clap::{CommandFactory, Parser};

use text::lang::Lang;

use line::Line;
pub use line::*;
pub use mistake::Stop;
pub use options::Options;

impl Command {
    /// Parses the arguments; the first is the program's own name.
    pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, Stop> {
        let words::Words { line, repeated } =
            words::ordered(args.collect()).map_err(Stop::Refused)?;
        let parsed = Line::try_parse_from(&line).map_err(|error| mistake::stop(&error, &line))?;
        let mut command = parsed.command.unwrap_or(Command::Run(parsed.options));
        if let Command::Run(options)
        | Command::Plan(Plan { options, .. })
        | Command::Check(Check { options, .. })
        | Command::Clean(Clean { options, .. }) = &mut command
        {
            options.repeated = repeated;
        }
        Ok(command)
    }

    /// The text of [`Stop::Shown`] in the user's language.
    pub fn shown(text: String, args: &[OsString], lang: Lang) -> String {
        /// Fits a terminal of 80 columns with clap's indentation.
        const WIDE: usize = 68;
        let Ok(words::Words { line, .. }) = words::ordered(args.to_vec()) else { return text };
        match lang {
            Lang::En => text,
            Lang::Zh => {
                match chinese::command(Line::command(), Some(WIDE)).try_get_matches_from(line) {
                    Err(error) if !error.use_stderr() => chinese::help(&error.render().to_string()),
                    _ => text,
                }
            }
        }
    }

    /// The manual page in troff.
    ///
    /// One page for all: the generator's references to pages of subcommands are replaced by the
    /// subcommands with their own arguments.
    pub fn man(lang: Lang) -> io::Result<Vec<u8>> {
        let mut page = Vec::new();
        let mut line = definition(lang);
        clap_mangen::Man::new(line.clone()).render(&mut page)?;
        line.build();
        let mut page = String::from_utf8_lossy(&page).into_owned();
        for subcommand in line.get_subcommands() {
            let name = subcommand.get_name();
            let mut usage = format!("ranklaunch {name}");
            for own in subcommand.get_arguments() {
                if line.get_arguments().all(|shared| shared.get_id() != own.get_id()) {
                    usage.push(' ');
                    usage.push_str(&own.to_string().replace('-', "\\-"));
                }
            }
            page = page.replace(&format!("ranklaunch\\-{name}(1)"), &usage);
        }
        Ok(match lang {
            Lang::En => page,
            Lang::Zh => chinese::man(&page),
        }
        .into_bytes())
    }

    /// A manual page of each command, with the name of its file.
    pub fn man_pages(lang: Lang) -> io::Result<Vec<(String, Vec<u8>)>> {
        fn pages(
            line: &clap::Command,
            lang: Lang,
            found: &mut Vec<(String, Vec<u8>)>,
        ) -> io::Result<()> {
            let source = concat!("ranklaunch ", env!("CARGO_PKG_VERSION"));
            let man = clap_mangen::Man::new(line.clone()).source(source);
            let mut page = Vec::new();
            man.render(&mut page)?;
            let page = match lang {
                Lang::En => page,
                Lang::Zh => chinese::man(&String::from_utf8_lossy(&page)).into_bytes(),
            };
            found.push((man.get_filename(), page));
            line.get_subcommands().try_for_each(|below| pages(below, lang, found))
        }
        let mut line =
            definition(lang).mut_subcommands(|below| below.disable_help_subcommand(true));
        line.build();
        let mut found = Vec::new();
        pages(&line, lang, &mut found)?;
        Ok(found)
    }
}

/// The completion script of a shell. `values` are the allowed values of options.
pub(crate) fn completions(
    shell: clap_complete::Shell,
    values: &[(&str, Vec<String>)],
    profiles: &[&str],
) -> Vec<u8> {
    completions::script(shell, Line::command(), values, profiles)
}

/// The value of `--lang`, even on a line that cannot be parsed.
pub(crate) fn language_of(args: &[OsString]) -> Option<OsString> {
    let ours = args.iter().take_while(|word| *word != "--");
    let mut rest = ours.skip_while(|word| !word.to_string_lossy().starts_with("--lang"));
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
    let described =
        |arg: &clap::Arg| Some((arg.get_long()?.to_owned(), arg.get_help()?.to_string()));
    line.get_arguments().filter_map(described).collect()
}

/// Every command and option with its texts.
pub fn definition(lang: Lang) -> clap::Command {
    match lang {
        Lang::En => Line::command(),
        Lang::Zh => chinese::command(Line::command(), None),
    }
}
