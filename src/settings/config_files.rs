//! Finds configuration files in the arguments of the engine.
//!
//! Takes the engine's own arguments and the program's; gives the files with the argument that
//! names each. Does not access the files.

use std::ffi::OsString;

/// Options of `accelerate launch` that name a file that must exist.
const OF_ENGINE: &[&str] = &["--config_file", "--deepspeed_config_file"];

/// Arguments that DeepSpeed adds to a script (`deepspeed.add_config_arguments`).
const OF_PROGRAM: &[&str] = &["--deepspeed_config"];

/// (argument, file), in the order of the command line. Placeholders stay as they are.
pub(crate) fn config_files(engine: &[String], program: &[OsString]) -> Vec<(String, String)> {
    let engine: Vec<&str> = engine.iter().map(String::as_str).collect();
    // A name that is not UTF-8 is skipped.
    let program: Vec<&str> = program.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let mut files = named(&engine, OF_ENGINE);
    files.extend(named(&program, OF_PROGRAM));
    files
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
    use super::*;

    #[test]
    fn both_spellings_of_the_known_options_name_a_file() {
        let engine = [
            "--config_file",
            "a.yaml",
            "--deepspeed-config-file=b.json",
            "--mixed_precision",
            "no",
        ];
        let program = ["--deepspeed_config", "c.json", "--config_file", "mine.yaml"];
        let engine: Vec<String> = engine.iter().map(|&word| word.to_owned()).collect();
        let program: Vec<OsString> = program.iter().map(OsString::from).collect();
        let files: Vec<String> =
            config_files(&engine, &program).into_iter().map(|(_, file)| file).collect();
        assert_eq!(files, ["a.yaml", "b.json", "c.json"]);
        assert_eq!(config_files(&["--config_file".to_owned()], &[]), []);
    }
}
