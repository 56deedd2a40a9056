//! Variables that a script exports, in whatever way.

use std::collections::BTreeSet;

/// Which variables the programs of the script see.
#[derive(Debug, Default)]
pub(crate) struct Exports {
    /// `set -a`
    all: bool,
    names: BTreeSet<String>,
}

impl Exports {
    /// Whether these words export what they name, which counts from here on.
    pub(crate) fn declared(&mut self, first: &str, words: &[String]) -> bool {
        let has = |letter: char| {
            let mut options = words.iter().filter(|word| word.starts_with('-'));
            options.any(|word| !word.starts_with("--") && word.contains(letter))
        };
        let declares = match first {
            "export" => !has('n') && !has('f') && !has('p'),
            "declare" | "typeset" | "local" | "readonly" => has('x'),
            _ => false,
        };
        if declares {
            let names = words.iter().skip(1).map(|word| word.split('=').next().unwrap_or(word));
            self.names.extend(names.map(|name| name.trim_end_matches('+').to_owned()));
        }
        declares
    }

    pub(crate) fn has(&self, names: &[String]) -> bool {
        self.all || names.iter().any(|name| name == "PATH" || self.names.contains(name))
    }

    /// `set -a`, `set +a`, `set -o allexport`
    pub(crate) fn set(&mut self, words: &[String]) {
        for pair in words.windows(2) {
            let [before, word] = pair else { continue };
            let long = word == "allexport";
            let (sign, letters) = match long {
                true => before.split_at(before.len().min(1)),
                false => word.split_at_checked(1).unwrap_or_default(),
            };
            let sets = if long { letters == "o" } else { letters.contains('a') };
            if sets && matches!(sign, "-" | "+") && !letters.starts_with('-') {
                self.all = sign == "-";
            }
        }
    }
}
