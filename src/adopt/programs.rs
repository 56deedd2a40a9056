//! Programs in the text of a script: launchers by their names, shells with a script, substitutions.

use std::ops::Range;

use text::lang::Text;
use text::shell::{Part, PartKind, parts};
use text::text;

use crate::words::base;

/// Places of the scripts in `$(…)`.
pub(crate) fn commands_in(source: &str) -> Vec<Range<usize>> {
    let place = |at: usize, part: &Part<'_>| at + part.at..at + part.at + part.text.len();
    let mut found = Vec::new();
    for part in parts(source, false) {
        match part.kind {
            PartKind::Command => found.push(place(0, &part)),
            PartKind::Double => {
                let inner = parts(part.text, true);
                let inner = inner.iter().filter(|inner| inner.kind == PartKind::Command);
                found.extend(inner.map(|inner| place(part.at, inner)));
            }
            _ => {}
        }
    }
    found
}

#[rustfmt::skip]
const LAUNCHERS: &[&str] = &[
    "torchrun", "accelerate launch", "deepspeed", "torch.distributed.launch", "torch.distributed.run", "mpirun",
    "mpiexec", "srun", "accelerate-launch",
];

pub(crate) fn names_a_launcher(text: &str) -> bool {
    text.split(|c: char| c.is_whitespace() || "\"'();&|/".contains(c))
        .any(|word| LAUNCHERS.contains(&word))
        || text.contains("accelerate launch")
}

/// Whether a variable's text is a launch line, perhaps only its beginning.
pub(crate) fn begins_a_launch(text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().filter(|word| *word != "\\").collect();
    let at = settings::launchers::command_at(&words);
    let first = words.get(at).map(|word| base(word)).unwrap_or_default();
    names_a_launcher(first)
        || (first == "accelerate" && words.get(at + 1) == Some(&"launch"))
        || (settings::launchers::PythonRun::is_by(first) && names_a_launcher(text))
}

/// The script of `bash -c SCRIPT`, also behind srun: the word, and the place of the script in it.
pub(crate) fn shell_script<'a>(
    words: &[String],
    first: &str,
    source: &dyn Fn(usize) -> &'a str,
) -> Option<(usize, Range<usize>)> {
    if ["echo", "printf", "grep", "sed", "awk"].contains(&first) {
        return None;
    }
    let texts: Vec<&str> = words.iter().map(String::as_str).collect();
    let at = script_of_shell(&texts)?;
    match parts(source(at), false).as_slice() {
        [one] if matches!(one.kind, PartKind::Single | PartKind::Double) => {
            Some((at, one.at..one.at + one.text.len()))
        }
        _ => None,
    }
}

/// The place of the script behind the first shell with `-c`: letters in any order, such as `-lc`, `-euo pipefail -c`.
pub(crate) fn script_of_shell(words: &[&str]) -> Option<usize> {
    let is_shell = |word: &&str| ["bash", "sh", "zsh", "dash", "ash"].contains(&base(word));
    let mut at = 1 + words.iter().position(is_shell)?;
    loop {
        let word = *words.get(at)?;
        let letters = word.strip_prefix(['-', '+'])?;
        let is_long = letters.starts_with('-');
        // The word behind them is a setting's name, or the name of a file.
        let takes_word =
            !is_long && letters.contains(['o', 'O']) || matches!(word, "--rcfile" | "--init-file");
        at += 1 + usize::from(takes_word);
        if word.starts_with('-') && !is_long && letters.contains('c') {
            return words.get(at).map(|_| at);
        }
    }
}

pub(crate) fn starts_programs(first: &str) -> bool {
    ![
        "echo", "printf", "which", "pip", "pip3", "pkill", "killall", "ps", "grep", "pgrep",
        "type", "command", "[", "[[", "if", "case", "conda", "module", "export", "python",
        "python3", "cat", "sed", "while", "until",
    ]
    .contains(&first)
}

/// Why a text without a launch has nothing to adopt.
pub(crate) fn no_launch(text: &str) -> Text {
    let mut words = text.split(|c: char| c.is_whitespace() || "\"'[],;".contains(c));
    match words.any(settings::launchers::is_ranklaunch) {
        true => text!(
            "no line of it is a launch, but it starts ranklaunch already",
            "其中没有启动命令，但已在使用 ranklaunch"
        ),
        false => text!("no line of it is a launch", "其中没有启动命令"),
    }
}
