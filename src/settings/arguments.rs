//! Reads the program's own arguments as argparse would.
//!
//! Takes a program; gives its words, including those of a script after `bash -c`, and the value
//! of a named argument in any spelling (`--task x`, `--task=x`, the abbreviation `--tas x`); the
//! last occurrence wins. Gives also the configuration files that the arguments of the engine name.
//! Never changes an argument, and does not access a file.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::Program;
use crate::launchers::{Launcher, LauncherKind, PythonProgram, PythonRun, command_at, may_move};
use linux::procfs::{self, basename};
use text::shell::{self, PartKind, TokenKind};

/// Nested scripts that are followed.
const DEPTH: u32 = 4;

/// argparse accepts any prefix that no other option shares. The other options are unknown here,
/// so two letters are required; one is mostly ambiguous (`--t` of `--task` and `--t5_fsdp`).
const SHORTEST: usize = "--ta".len();

/// An argument and its value as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenArgument<'a> {
    /// `--ulysses_size`, or an abbreviation.
    pub name: &'a str,
    pub value: &'a OsStr,
}

/// The program that reads the first line of a script.
#[derive(Debug, Clone, Copy)]
pub enum ScriptReader<'a> {
    Python,
    /// A shell, with its name.
    Shell(&'a OsStr),
    Kernel,
}

/// Position of an argument and its value among the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionPosition {
    pub name: usize,
    pub value: usize,
    /// Number of bytes before the value in its word: those of `--name=`.
    pub from: usize,
}

impl Program {
    /// The script file that it runs. None if it runs none, or one whose path may mean a different file for it than it
    /// means here.
    pub fn script(&self) -> Option<(&OsString, ScriptReader<'_>)> {
        match self {
            Program::Script { path, .. } => Some((path, ScriptReader::Python)),
            Program::Command { argv } => file_of(argv),
            Program::Module { .. } => None,
        }
    }

    /// All words that the program may read as arguments.
    pub fn words(&self) -> Vec<OsString> {
        match self {
            // A plan for another node may name a shell that is not in this node's PATH.
            Program::Script { path, args } if is_shell(path) => {
                unfolded(std::iter::once(path).chain(args).cloned().collect(), DEPTH)
            }
            // After a bare `--` there are no options.
            Program::Script { args, .. } | Program::Module { args, .. } => {
                args.iter().take_while(|word| *word != "--").cloned().collect()
            }
            Program::Command { argv } => unfolded(argv.clone(), DEPTH),
        }
    }
}

impl OptionPosition {
    /// The last value of any of the arguments `names`. An abbreviation counts only if `is_value`
    /// holds for its value, since another option may have been meant.
    pub fn of<W: AsRef<OsStr>>(
        words: &[W],
        names: &[&str],
        is_value: impl Fn(&OsStr) -> bool,
    ) -> Option<OptionPosition> {
        let mut found = None;
        let mut at = 0;
        while let Some(word) = words.get(at).map(AsRef::as_ref) {
            let name_at = at;
            at += 1;
            let (name, attached) = option(word);
            let is_exact = names.iter().any(|known| known.as_bytes() == name);
            if !is_exact && !names.iter().any(|known| abbreviates(name, known)) {
                continue;
            }
            // `--a --b`: argparse will report the missing value.
            let next = words.get(at).map(AsRef::as_ref);
            let next = next.filter(|next: &&OsStr| !next.as_bytes().starts_with(b"--"));
            let Some(value) = attached.or(next).filter(|value| is_exact || is_value(value)) else {
                continue;
            };
            let (value, from) = match attached {
                Some(_) => (name_at, word.len() - value.len()),
                None => (at, 0),
            };
            found = Some(OptionPosition { name: name_at, value, from });
            at = at.max(value + 1);
        }
        found
    }
}

impl<'a> GivenArgument<'a> {
    /// The value at the last [`OptionPosition`].
    pub fn of(
        words: &'a [OsString],
        names: &[&str],
        is_value: impl Fn(&OsStr) -> bool,
    ) -> Option<GivenArgument<'a>> {
        let OptionPosition { name, value, from } = OptionPosition::of(words, names, is_value)?;
        let name = std::str::from_utf8(option(words.get(name)?).0).ok()?;
        let value = OsStr::from_bytes(words.get(value)?.as_bytes().get(from..)?);
        Some(GivenArgument { name, value })
    }

    /// Position of the flag `name`, in full or abbreviated.
    pub fn of_flag<W: AsRef<OsStr>>(words: &[W], name: &str) -> Option<usize> {
        words
            .iter()
            .map(|word| word.as_ref().as_bytes())
            .position(|word| word == name.as_bytes() || abbreviates(word, name))
    }
}

/// Splits `--name=value` or `--name`.
fn option(word: &OsStr) -> (&[u8], Option<&OsStr>) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => {
            let (name, value) = bytes.split_at(at);
            (name, value.get(1..).map(OsStr::from_bytes))
        }
        None => (bytes, None),
    }
}

fn abbreviates(word: &[u8], name: &str) -> bool {
    word.len() >= SHORTEST && word.len() < name.len() && name.as_bytes().starts_with(word)
}

/// The file that a command runs: `python FILE`, `bash FILE` or the file itself. None if its path may mean a different
/// file for the command than it means here.
fn file_of(argv: &[OsString]) -> Option<(&OsString, ScriptReader<'_>)> {
    let words: Vec<&[u8]> = argv.iter().map(|word| word.as_bytes()).collect();
    let (before, command) = words.split_at_checked(command_at(&words))?;
    let argv = argv.get(before.len()..)?;
    let program = argv.first()?;
    let (path, reader) = if PythonRun::is_by(program.as_bytes()) {
        let run = PythonRun::of(command.get(1..)?)?;
        let PythonProgram::Script(_) = run.program else { return None };
        (argv.get(run.at + 1)?, ScriptReader::Python)
    } else if is_shell(program) {
        let name = Path::new(program).file_name()?;
        (argv.get(shell_file(argv)?)?, ScriptReader::Shell(name))
    } else if program.as_bytes().contains(&b'/') {
        (program, ScriptReader::Kernel)
    } else {
        return None;
    };
    let is_known = !may_move(before) && !path.as_bytes().contains(&b'{');
    is_known.then_some((path, reader))
}

/// The words of a command line, in which a shell script is replaced by its words.
fn unfolded(argv: Vec<OsString>, depth: u32) -> Vec<OsString> {
    let Some(depth) = depth.checked_sub(1) else { return argv };
    let Some(at) = script(&argv) else { return argv };
    let text = argv.get(at).map(|script| script.to_string_lossy().into_owned());
    let text = text.unwrap_or_default();
    let inside = commands(&text, DEPTH);
    let inside = inside.into_iter().flat_map(|command| unfolded(command, depth));
    let (before, from) = argv.split_at(at);
    before.iter().cloned().chain(inside).chain(from.iter().skip(1).cloned()).collect()
}

/// `bash`, `/bin/sh`
fn is_shell(word: &OsStr) -> bool {
    procfs::is_shell(basename(word.as_bytes()))
}

/// Position of the script in `bash -euo pipefail -c SCRIPT`.
fn script(argv: &[OsString]) -> Option<usize> {
    let shell = argv.iter().position(|word| is_shell(word))?;
    let (at, letters) = after_options(argv, shell.saturating_add(1));
    (letters.contains(&b'c') && at < argv.len()).then_some(at)
}

/// Position of the file that `bash -eu -o pipefail FILE ARGS…` runs, in a command line that begins
/// with the shell.
fn shell_file(argv: &[OsString]) -> Option<usize> {
    let (at, letters) = after_options(argv, 1);
    let at = at + usize::from(argv.get(at).is_some_and(|word| word == "--"));
    (!letters.iter().any(|letter| b"cs".contains(letter)) && at < argv.len()).then_some(at)
}

/// Position after a shell's options, which begin at `from`, and their letters.
fn after_options(argv: &[OsString], from: usize) -> (usize, Vec<u8>) {
    let mut letters = Vec::new();
    let mut at = from;
    while let Some(word) = argv.get(at) {
        let word = word.as_bytes();
        if !(word.starts_with(b"-") || word.starts_with(b"+")) || word == b"--" {
            break;
        }
        // These take the next word.
        let has_value = if word.starts_with(b"--") {
            [&b"--rcfile"[..], b"--init-file"].contains(&word)
        } else {
            letters.extend_from_slice(word);
            word.ends_with(b"o") || word.ends_with(b"O")
        };
        at += 1 + usize::from(has_value);
    }
    (at, letters)
}

/// The simple commands of a script, in words without their quotes; a command in `$(…)` is before its own.
fn commands(script: &str, depth: u32) -> Vec<Vec<OsString>> {
    let Some(depth) = depth.checked_sub(1) else { return Vec::new() };
    let (mut all, mut command) = (Vec::new(), Vec::new());
    for token in shell::tokens(script) {
        match token.kind {
            TokenKind::Word => {
                let parts = shell::parts(token.text, false).into_iter();
                let inner = parts.filter(|part| part.kind == PartKind::Command);
                all.extend(inner.flat_map(|part| commands(part.text, depth)));
                let word = shell::bare(token.text);
                // A quote without its end is no part of an argument.
                let unclosed = token.unclosed.is_some();
                let word = if unclosed { word.replace(['\'', '"'], "") } else { word };
                command.push(OsString::from(word));
            }
            TokenKind::Control | TokenKind::Redirection => all.push(std::mem::take(&mut command)),
            TokenKind::Comment | TokenKind::Document => {}
        }
    }
    all.push(command);
    all.retain(|command| !command.is_empty());
    all
}

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
        .filter(|(_, at)| !argv.get(..*at).is_some_and(may_move));
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
    use super::*;

    fn strings(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn every_spelling_is_read_and_the_last_wins() {
        type Expected = Option<(&'static str, &'static str)>;
        let cases: [(&[&str], Expected); 17] = [
            (&["--task", "a"], Some(("--task", "a"))),
            (&["--task=a"], Some(("--task", "a"))),
            (&["--task", "a", "--task=b"], Some(("--task", "b"))),
            (&["--task=b", "--task", "a"], Some(("--task", "a"))),
            (&["--task"], None),
            (&["--tasks=b", "x"], None),
            (&["--task="], Some(("--task", ""))),
            (&["--tas", "a"], Some(("--tas", "a"))),
            (&["--ta=a"], Some(("--ta", "a"))),
            // Ambiguous, or not a value of this argument.
            (&["--t", "a"], None),
            (&["--tas", "--other"], None),
            (&["--tas=x"], None),
            (&["--ta"], None),
            (&["--task", "a", "--tas", "b"], Some(("--tas", "b"))),
            (&["--other", "--task"], None),
            (&["--prompt", "--task", "--task", "b"], Some(("--task", "b"))),
            (&["-task", "a"], None),
        ];
        for (args, expected) in cases {
            let args = strings(args);
            let is_value = |value: &OsStr| value == "a" || value == "b";
            let found = GivenArgument::of(&args, &["--task"], is_value);
            let found = found.map(|given| (given.name, given.value));
            assert_eq!(found, expected.map(|(name, value)| (name, OsStr::new(value))), "{args:?}");
        }
        assert_eq!(GivenArgument::of_flag(&strings(&["-d", "--dit_f"]), "--dit_fsdp"), Some(1));
        assert_eq!(GivenArgument::of_flag(&strings(&["--dit_fsdpx", "-d"]), "--dit_fsdp"), None);
    }

    #[test]
    fn shell_script_words_count_as_arguments() {
        let cases: [(&[&str], &str); 10] = [
            (&["python", "g.py", "--n", "1"], "python|g.py|--n|1"),
            (&["bash", "-c", "python g.py --n 16"], "bash|-c|python|g.py|--n|16"),
            (
                &[
                    "/bin/bash",
                    "-euo",
                    "pipefail",
                    "-c",
                    "cd /x && exec python g.py \\\n --n='1 6'",
                ],
                "/bin/bash|-euo|pipefail|-c|cd|/x|exec|python|g.py|--n=1 6",
            ),
            (&["sh", "-lc", "a # --n 1\nb --n 2"], "sh|-lc|a|b|--n|2"),
            (&["env", "A=1", "sh", "-cex", "(a \"--n\" 2)"], "env|A=1|sh|-cex|a|--n|2"),
            (&["bash", "-c", "sh -c \"g.py --n 3\" x"], "bash|-c|sh|-c|g.py|--n|3|x"),
            (&["bash", "run.sh", "-c", "x --n 1"], "bash|run.sh|-c|x --n 1"),
            (&["sh", "-c", "a $(b --n 1) --n 2"], "sh|-c|b|--n|1|a|$(b --n 1)|--n|2"),
            (&["bash", "-c"], "bash|-c"),
            (&["bash", "-c", "a 'open"], "bash|-c|a|open"),
        ];
        for (argv, expected) in cases {
            let words = Program::Command { argv: strings(argv) }.words();
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(words.join("|"), expected, "{argv:?}");
        }
        let args = strings(&["--a", "--", "--n", "1"]);
        let script = Program::Script { path: "g.py".into(), args };
        assert_eq!(script.words(), strings(&["--a"]));
    }

    #[test]
    fn a_command_names_the_file_that_it_runs() {
        for (line, expected) in [
            ("python nope.py", Some("nope.py")),
            ("/usr/bin/python3 -u -W ignore a/b.py --x", Some("a/b.py")),
            ("env X=1 numactl -N 0 python3 nope.py", Some("nope.py")),
            ("bash -eu -o pipefail ./run.sh x", Some("./run.sh")),
            ("bash --rcfile a/b -- c/d", Some("c/d")),
            ("./run.sh --x", Some("./run.sh")),
            ("nohup ./run.sh", Some("./run.sh")),
            ("/bin/sh run.sh", Some("run.sh")),
            // The name is in PATH.
            ("run.sh", None),
            ("bash -c ./run.sh", None),
            ("bash -lc ./run.sh", None),
            ("bash -s a/b", None),
            ("bash", None),
            ("python -m a.b", None),
            ("python -c 1 a.py", None),
            ("python {config}.py", None),
            // The path is relative to another folder or root.
            ("env -C /x python nope.py", None),
            ("uv run --directory=x python nope.py", None),
            ("chroot /x python nope.py", None),
        ] {
            let argv: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let file = file_of(&argv).map(|(path, _)| path.to_string_lossy());
            assert_eq!(file.as_deref(), expected, "{line}");
        }
    }

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
