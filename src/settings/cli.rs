//! The command line: options, help, and parsing.
//!
//! Takes arguments; gives a [`Command`], in which every option is still raw text, or a [`Stop`] with
//! the text to print instead. `settings` parses the values, since flag, variable and profile
//! share one parser. Never reads a file, the environment or a default.
//!
//! Gives also the completion scripts: clap's, with values and short descriptions. A profile is a name or
//! a file, which clap cannot express, so its line is replaced here.

mod chinese;
mod line;
mod mistake;
mod options;
mod parts;
#[cfg(test)]
mod tests;
mod words;

use std::ffi::OsString;
use std::io;

use clap::builder::PossibleValuesParser;
use clap::{Arg, CommandFactory, Parser, ValueHint};
use clap_complete::Shell;

use text::lang::Lang;

use line::Line;
pub use line::*;
pub use mistake::Stop;
pub use options::Options;
use parts::Parts;

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

/// Every command and option with its texts.
pub fn definition(lang: Lang) -> clap::Command {
    match lang {
        Lang::En => Line::command(),
        Lang::Zh => chinese::command(Line::command(), None),
    }
}

/// Longest description that fits on one line of a menu.
const LONGEST: usize = 60;

/// The completion script of a shell. `values` are the allowed values of options.
pub(crate) fn completions(
    shell: Shell,
    values: &[(&str, Vec<String>)],
    profiles: &[&str],
) -> Vec<u8> {
    let mut line = described(Line::command(), values, profiles);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut line, "ranklaunch", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    with_files(shell, script, values, profiles).into_bytes()
}

/// The definition and its subcommands, with values and short descriptions.
fn described(
    command: clap::Command,
    values: &[(&str, Vec<String>)],
    profiles: &[&str],
) -> clap::Command {
    let about = command.get_about().map(|about| short(&about.to_string()));
    let command = match about {
        Some(about) => command.about(about),
        None => command,
    };
    command
        .mut_args(|arg| argument(arg, values, profiles))
        .mut_subcommands(|below| described(below, values, profiles))
}

fn argument(arg: Arg, values: &[(&str, Vec<String>)], profiles: &[&str]) -> Arg {
    let help = arg.get_help().map(|help| short(&help.to_string()));
    let arg = match help {
        Some(help) => arg.help(help),
        None => arg,
    };
    let name = arg.get_long().unwrap_or(arg.get_id().as_str()).to_owned();
    if name == "profile" || name == "name" {
        return arg
            .value_parser(PossibleValuesParser::new(profiles.iter().map(ToString::to_string)));
    }
    if let Some((_, values)) = values.iter().find(|(option, _)| *option == name) {
        return arg.value_parser(PossibleValuesParser::new(values.clone()));
    }
    match name.as_str() {
        "chdir" | "log-dir" | "host-root" | "capture" | "folder" => {
            arg.value_hint(ValueHint::DirPath)
        }
        "python" => arg.value_hint(ValueHint::ExecutablePath),
        "report" | "termination-log" | "manifests" => arg.value_hint(ValueHint::FilePath),
        "master-addr" => arg.value_hint(ValueHint::Hostname),
        _ => arg,
    }
}

/// The first statement of a help text.
fn short(help: &str) -> String {
    let end = [" [default", ": ", " (", "; ", ", such as", ". "]
        .iter()
        .filter_map(|mark| help.find(mark))
        .min()
        .unwrap_or(help.len());
    let mut text = help.get(..end).unwrap_or(help).to_owned();
    if text.chars().count() > LONGEST {
        let cut: String = text.chars().take(LONGEST).collect();
        text = cut.rsplit_once(' ').map_or(cut.clone(), |(before, _)| before.to_owned());
        text.push('…');
    }
    text
}

/// Completes profiles to names and to files.
fn with_files(
    shell: Shell,
    script: String,
    values: &[(&str, Vec<String>)],
    profiles: &[&str],
) -> String {
    let names = profiles.join(" ");
    match shell {
        Shell::Bash => script.replace(
            &format!("COMPREPLY=($(compgen -W \"{names}\" -- \"${{cur}}\"))"),
            &format!(
                "COMPREPLY=($(compgen -W \"{names}\" -- \"${{cur}}\") $(compgen -f -- \"${{cur}}\"))"
            ),
        ),
        Shell::Zsh => {
            let both = format!(
                "_ranklaunch_profiles() {{\n    _alternative 'profiles:profile:({names})' \
                 'files:file:_files'\n}}\n\n_ranklaunch() {{"
            );
            // clap's script treats words after -- as words before the subcommand.
            let is_program = |line: &&str| line.starts_with("'::program -- ");
            let program = script.lines().find(is_program).map(|line| format!("{line}\n"));
            let script = match program {
                Some(program) => script.replacen(&program, "", 1).replace("$line[2]", "$line[1]"),
                None => script,
            };
            script
                .replace(&format!(":({names})"), ":_ranklaunch_profiles")
                .replacen("_ranklaunch() {", &both, 1)
        }
        Shell::Fish => {
            // The option at the cursor still has no value, which fish's argparse refuses.
            let parse = "argparse -s (__fish_ranklaunch_global_optspecs) -- $cmd";
            let again = format!("{parse} 2>/dev/null\n    or {parse}[1..-2] 2>/dev/null\n");
            let script = script.replacen(&format!("{parse} 2>/dev/null\n"), &again, 1);
            // clap's generator for fish completes only options, no words.
            let below = "complete -c ranklaunch -n \"__fish_ranklaunch_using_subcommand";
            let ids = values.iter().find(|(name, _)| *name == EXPLAINED);
            let ids = ids.map_or_else(String::new, |(_, ids)| ids.join(" "));
            let ids = format!("{below} explain\" -f -a \"{ids}\"");
            let words = [
                format!("{below} profile; and __fish_seen_subcommand_from show check\" -a \"{names}\""),
                ids,
                format!("{below} completions\" -f -a \"bash elvish fish powershell zsh\""),
            ];
            script
                .lines()
                .chain(words.iter().map(String::as_str))
                .map(|line| {
                    let is_profile = line.contains("-l profile ");
                    let line =
                        if is_profile { line.replace(" -r -f ", " -r ") } else { line.to_owned() };
                    line + "\n"
                })
                .collect()
        }
        _ => script,
    }
}
