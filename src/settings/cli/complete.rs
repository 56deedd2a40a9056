//! The words that may stand at the end of an unfinished line, for the completion of shells.
//!
//! A shell's script asks this program at each TAB (`completions SHELL -- WORDS…`), so that one reader of command lines
//! serves all shells, and an old script offers what a new program has. Takes the words, the last of which is being
//! typed; gives words and the kind of files that may stand there too.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command, CommandFactory};
use clap_complete::shells::{Elvish, PowerShell};
use clap_complete::{Generator, Shell, generate};

use super::help::definition;
use super::line::Line;
use super::parts::{Parts, TypedOption, launches, option};
use super::topic::Topic;
use text::lang::Lang;

/// Longest description that fits on one line of a menu.
const LONGEST: usize = 64;

const BASH: &str = include_str!("complete/ranklaunch.bash");
const FISH: &str = include_str!("complete/ranklaunch.fish");
const ZSH: &str = include_str!("complete/ranklaunch.zsh");

/// The script of a shell. Those of the generator do not ask this program, and know only its options.
pub(super) fn script(shell: Shell) -> Vec<u8> {
    match shell {
        Shell::Bash => BASH.into(),
        Shell::Fish => FISH.into(),
        Shell::Zsh => ZSH.into(),
        Shell::Elvish => generated(Elvish),
        _ => generated(PowerShell),
    }
}

fn generated(shell: impl Generator) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut brief(Line::command()), "ranklaunch", &mut script);
    script
}

/// The definition with short descriptions.
fn brief(command: Command) -> Command {
    let about = command.get_about().map(|about| short(&about.to_string()));
    command
        .about(about.unwrap_or_default())
        .mut_args(|arg| {
            let help = short(&arg.get_help().map(ToString::to_string).unwrap_or_default());
            arg.help(help)
        })
        .mut_subcommands(brief)
}

/// Files that may stand at the cursor, as the scripts name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    None,
    Any,
    Folders,
    Python,
}

/// Arguments whose values are files or folders, by id, those of options too.
#[rustfmt::skip]
const FILES: &[(Files, &[&str])] = &[
    (Files::Folders, &["chdir", "log_dir", "host_root", "capture", "folder"]),
    (Files::Any, &[
        "profile", "python", "report", "termination_log", "output", "manifests", "ids", "name", "run", "runs",
        "first", "second",
    ]),
];

/// What may stand at the end of `words`: a line for the script with the kind of files, and a line for each word with
/// its description. `values` are the allowed values of options and arguments by their names.
pub(crate) fn offered(words: &[OsString], values: &[(&str, Vec<String>)], lang: Lang) -> String {
    let mut root = definition(lang);
    root.build();
    let Some((typed, before)) = words.split_last() else { return String::new() };
    let parts = Parts::of(before, &root);
    let (rows, files) = at_cursor(typed, &parts, &root, values);
    let kind = match files {
        Files::None => "none",
        Files::Any => "files",
        Files::Folders => "folders",
        Files::Python => "python",
    };
    let line = |(word, about): (String, String)| match about.as_str() {
        "" => format!("{word}\n"),
        about => format!("{word}\t{}\n", short(about)),
    };
    format!("{kind}\n{}", rows.into_iter().map(line).collect::<String>())
}

type Rows = Vec<(String, String)>;

fn at_cursor(
    typed: &OsString,
    parts: &Parts<'_>,
    root: &Command,
    values: &[(&str, Vec<String>)],
) -> (Rows, Files) {
    if parts.program.is_some() {
        return (Vec::new(), Files::Any);
    }
    if let Some(name) = &parts.awaits {
        return option(parts.command, name)
            .map_or((Vec::new(), Files::None), |arg| of(arg, values));
    }
    if typed.as_bytes().starts_with(b"-") {
        // The shells' scripts put what stands before = in front again.
        if let Some(TypedOption { name, value: Some(_), .. }) = TypedOption::of(typed) {
            return option(parts.command, &name)
                .map_or((Vec::new(), Files::None), |arg| of(arg, values));
        }
        let options = parts.command.get_arguments().filter(|arg| !arg.is_hide_set());
        let row = |arg: &Arg| Some((format!("--{}", arg.get_long()?), about(arg.get_help())));
        return (options.filter_map(row).collect(), Files::None);
    }
    let below = || {
        parts
            .command
            .get_subcommands()
            .map(|one| (one.get_name().to_owned(), about(one.get_about())))
    };
    match parts.command.get_name() {
        "help" => {
            let commands = root
                .get_subcommands()
                .map(|one| (one.get_name().to_owned(), about(one.get_about())));
            let topics =
                Topic::ALL.map(|topic| (topic.name().to_owned(), topic.about().en.into_owned()));
            (commands.chain(topics).collect(), Files::None)
        }
        _ if launches(parts.command) => (below().collect(), Files::Python),
        _ if parts.command.has_subcommands() => (below().collect(), Files::None),
        _ => match parts.command.get_positionals().find(|arg| !arg.is_last_set()) {
            Some(arg) => of(arg, values),
            None => (Vec::new(), Files::None),
        },
    }
}

/// The values of an option or an argument.
fn of(arg: &Arg, values: &[(&str, Vec<String>)]) -> (Rows, Files) {
    let id = arg.get_id().as_str();
    let known = values.iter().find(|(name, _)| name.replace('-', "_") == id);
    let words = match known {
        Some((_, words)) => words.clone(),
        None => arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect(),
    };
    let files =
        FILES.iter().find(|(_, ids)| ids.contains(&id)).map_or(Files::None, |(files, _)| *files);
    (words.into_iter().map(|word| (word, String::new())).collect(), files)
}

fn about(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}

/// The first statement of a help text.
fn short(help: &str) -> String {
    const ENDS: &[&str] = &[
        " [default",
        " [默认",
        ": ",
        "：",
        " (",
        "（",
        "; ",
        "；",
        ", such as",
        "，例如",
        ". ",
        "。",
    ];
    let end = ENDS.iter().filter_map(|mark| help.find(mark)).min().unwrap_or(help.len());
    let mut text = help.get(..end).unwrap_or(help).to_owned();
    if text.chars().count() > LONGEST {
        let cut: String = text.chars().take(LONGEST).collect();
        text = cut.rsplit_once(' ').map_or(cut.clone(), |(before, _)| before.to_owned());
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::line;
    use super::*;

    /// The kind of files, and the words, that are offered at the end of a line.
    fn offers(line: &str) -> (String, Vec<String>) {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let text = line::Command::complete(&words, vec!["cuda_oom".to_owned()], Lang::En);
        let mut lines =
            text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned());
        (lines.next().unwrap_or_default(), lines.collect())
    }

    #[test]
    fn completion_knows_where_the_cursor_is() {
        for (line, files, has, not) in [
            ("", "python", &["plan", "help"][..], &["--nnodes"][..]),
            ("-", "none", &["--nnodes", "--help"], &["plan"]),
            ("--nnodes 2 ", "python", &["plan"], &[]),
            ("plan ", "python", &[], &["plan", "--format"]),
            ("plan --", "none", &["--format", "--nnodes"], &["--torch"]),
            ("--engine ", "none", &["torchrun", "direct"], &["plan"]),
            ("--engine=", "none", &["torchrun", "direct"], &["plan"]),
            ("--lang zh --log_dir ", "folders", &[], &["plan"]),
            ("check --report ", "files", &[], &[]),
            ("--nnodes ", "none", &[], &["plan"]),
            ("train.py --", "files", &[], &["--nnodes"]),
            ("plan -m a.b ", "files", &[], &["plan"]),
            ("-- ", "files", &[], &["plan"]),
            ("init -- --", "files", &[], &["--grace"]),
            ("explain cuda_o", "files", &["cuda_oom"], &[]),
            ("explain --format j", "none", &["json", "github"], &["cuda_oom"]),
            ("profile ", "none", &["show", "new"], &["plan"]),
            ("profile show ", "files", &["wan22"], &["show"]),
            ("help ", "none", &["layout", "plan"], &["--lang"]),
            ("completions ", "none", &["bash", "fish"], &[]),
            ("install ", "folders", &[], &[]),
            ("wait ", "none", &[], &[]),
        ] {
            let (kind, words) = offers(line);
            assert_eq!(kind, files, "{line}");
            for word in has {
                assert!(words.iter().any(|one| one == word), "{line}: {word} is not in {words:?}");
            }
            for word in not {
                assert!(words.iter().all(|one| one != word), "{line}: {word} is in {words:?}");
            }
        }
    }
}
