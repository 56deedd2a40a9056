//! Finds configuration files in the arguments of the engine.
//!
//! Takes the engine's own arguments and the program's; gives the files with the argument that
//! names each. Does not access the files.

use super::Program;
use crate::launchers::{self, Launcher, LauncherKind};

/// Options of `accelerate launch` that name a file that must exist.
const OF_ENGINE: &[&str] = &["--config_file", "--deepspeed_config_file"];

/// Arguments that DeepSpeed adds to a script (`deepspeed.add_config_arguments`).
const OF_PROGRAM: &[&str] = &["--deepspeed_config"];

/// (argument, file), in the order of the command line. Placeholders stay as they are.
pub fn config_files(engine: &[String], program: Option<&Program>) -> Vec<(String, String)> {
    let engine: Vec<&str> = engine.iter().map(String::as_str).collect();
    let words = program.map_or(&[][..], Program::args);
    // A name that is not UTF-8 is skipped.
    let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let mut files = named(&engine, OF_ENGINE);
    if let Some(Program::Command { .. }) = program {
        files.extend(named(own_of_launcher(&words), OF_ENGINE));
    }
    files.extend(named(&words, OF_PROGRAM));
    files
}

/// The arguments that `accelerate launch` reads itself, where engine `command` runs it.
fn own_of_launcher<'a, 'b>(argv: &'a [&'b str]) -> &'a [&'b str] {
    let accelerate = Launcher::of_argv(argv)
        .filter(|(launcher, _)| launcher.kind == LauncherKind::Accelerate)
        .filter(|(_, at)| !argv.get(..*at).is_some_and(launchers::may_move));
    let Some((launcher, at)) = accelerate else { return &[] };
    let arguments = argv.get(at..).unwrap_or_default();
    let end = launcher.target(arguments).map_or(arguments.len(), |run| run.at);
    arguments.get(..end).unwrap_or_default()
}

fn named(words: &[&str], options: &[&str]) -> Vec<(String, String)> {
    let is_one =
        |word: &str| options.contains(&word.replace('-', "_").replacen("__", "--", 1).as_str());
    let mut files = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (*word, None),
        };
        if !is_one(name) {
            continue;
        }
        let value = value.or_else(|| rest.next().copied());
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            files.push((name.to_owned(), value.to_owned()));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn both_option_spellings_name_a_config_file() {
        let engine = [
            "--config_file",
            "a.yaml",
            "--deepspeed-config-file=b.json",
            "--mixed_precision",
            "no",
        ];
        let program = ["--deepspeed_config", "c.json", "--config_file", "mine.yaml"];
        let engine: Vec<String> = engine.iter().map(|&word| word.to_owned()).collect();
        let args = program.iter().map(OsString::from).collect();
        let program = Program::Script { path: "t.py".into(), args };
        let files: Vec<String> =
            config_files(&engine, Some(&program)).into_iter().map(|(_, file)| file).collect();
        assert_eq!(files, ["a.yaml", "b.json", "c.json"]);
        assert_eq!(config_files(&["--config_file".to_owned()], None), []);
    }

    /// Engine `command` runs accelerate as the user wrote it.
    #[test]
    fn launcher_in_a_command_names_only_its_files() {
        for (line, expected) in [
            ("accelerate launch --config_file a.yaml t.py --config_file b", &["a.yaml"][..]),
            ("env X=1 accelerate-launch --config-file=a.yaml -m x.y", &["a.yaml"]),
            ("python -m accelerate.commands.launch --config_file a.yaml t.py", &["a.yaml"]),
            ("chroot /x accelerate launch --config_file a.yaml t.py", &[]),
            ("accelerate config --config_file a.yaml", &[]),
            ("python t.py --config_file a.yaml", &[]),
            // DeepSpeed goes on without its host file.
            ("deepspeed --hostfile a t.py", &[]),
        ] {
            let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let args = argv.clone();
            let files_of = |program| {
                let files = config_files(&[], Some(&program)).into_iter();
                files.map(|(_, file)| file).collect::<Vec<_>>()
            };
            assert_eq!(files_of(Program::Command { argv }), expected, "{line}");
            let empty: [&str; 0] = [];
            assert_eq!(files_of(Program::Script { path: "t.py".into(), args }), empty, "{line}");
        }
    }
}
