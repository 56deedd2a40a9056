//! The completion scripts: clap's, with values and short descriptions.
//!
//! Takes the definition of the command line and the allowed values; gives a script. A profile is
//! a name or a file, which clap cannot express, so its line is replaced here.

use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

use super::line::EXPLAINED;

/// Longest description that fits on one line of a menu.
const LONGEST: usize = 60;

pub(super) fn script(
    shell: Shell,
    line: Command,
    values: &[(&str, Vec<String>)],
    profiles: &[&str],
) -> Vec<u8> {
    let mut line = described(line, values, profiles);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut line, "ranklaunch", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    with_files(shell, script, values, profiles).into_bytes()
}

/// The definition and its subcommands, with values and short descriptions.
fn described(command: Command, values: &[(&str, Vec<String>)], profiles: &[&str]) -> Command {
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
