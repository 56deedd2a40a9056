//! One word of a command line, with its expansions marked.

/// Stands for a `$` that the shell expands; from the private use area, so that no script has it.
pub(super) const EXPANDED: char = '\u{E000}';
/// Stands for a space inside an expansion, which ends no word.
pub(super) const SPACE: char = '\u{E001}';

/// One word after quotes are undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    text: String,
    pub(super) line: usize,
}

impl Word {
    /// Text without expansions.
    pub(super) fn literal(text: &str, line: usize) -> Word {
        Word { text: text.replace([EXPANDED, SPACE], "\u{FFFD}"), line }
    }

    /// A word of a script, with marked expansions.
    pub(super) fn marked(text: String, line: usize) -> Word {
        Word { text, line }
    }

    /// An argument of a container, in which Kubernetes replaces only `$(NAME)`.
    pub(super) fn of_container(text: &str, line: usize) -> Word {
        let mut word = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            let (before, after) = rest.split_at(at);
            word.push_str(before);
            if let Some(escaped) = after.strip_prefix("$$") {
                word.push('$');
                rest = escaped;
            } else if let Some((name, after)) = after.strip_prefix("$(").map(name_before)
                && let Some(after) = after.strip_prefix(')')
                && is_name(name)
            {
                word.push(EXPANDED);
                word.push('{');
                word.push_str(name);
                word.push('}');
                rest = after;
            } else {
                word.push('$');
                rest = after.strip_prefix('$').unwrap_or(after);
            }
        }
        word.push_str(rest);
        Word { text: word, line }
    }

    /// Whether it has no expansion.
    pub(super) fn is_plain(&self) -> bool {
        !self.text.contains(EXPANDED)
    }

    /// The word similar to its source, for messages.
    pub(super) fn shown(&self) -> String {
        self.text.replace(EXPANDED, "$").replace(SPACE, " ")
    }

    /// The word with the variables that `value` knows replaced; the others stay marked.
    pub(super) fn filled(&self, value: impl Fn(&str) -> Option<String>) -> Word {
        let mut text = String::new();
        let mut rest = self.text.as_str();
        while let Some(at) = rest.find(EXPANDED) {
            let (before, marked) = rest.split_at(at);
            text.push_str(before);
            let inside = marked.strip_prefix(EXPANDED).unwrap_or_default();
            let braced = inside.strip_prefix('{').map(name_before);
            let (name, after) = match braced {
                Some((name, after)) => match after.strip_prefix('}') {
                    Some(after) => (name, after),
                    None => ("", after),
                },
                None => name_before(inside),
            };
            match value(name).filter(|_| is_name(name)) {
                Some(known) => {
                    text.push_str(&Word::literal(&known, 0).text);
                    rest = after;
                }
                None => {
                    text.push(EXPANDED);
                    rest = inside;
                }
            }
        }
        text.push_str(rest);
        Word { text, line: self.line }
    }

    /// The text with marked expansions, so that it equals no name.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn at(self, line: usize) -> Word {
        Word { line, ..self }
    }

    /// A word on the same line, with a part of the text.
    pub(super) fn part(&self, text: &str) -> Word {
        Word { text: text.to_owned(), line: self.line }
    }
}

/// The name at the start of a text, perhaps empty, and the rest.
fn name_before(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    text.split_at(end)
}

/// Whether a template tool has something to fill in: `{{` or a `$NAME` that only it can read.
pub(super) fn is_template(text: &str) -> bool {
    text.contains("{{") || !shell_names(text).is_empty()
}

/// The names in `$NAME` and `${NAME}` that a shell would expand; not `$(NAME)` and `$$`, nor `${NAME:-…}`,
/// which has a default of its own.
pub(super) fn shell_names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        let after = rest.get(at + 1..).unwrap_or_default();
        if let Some(after) = after.strip_prefix('$') {
            rest = after;
            continue;
        }
        let (name, is_whole) = match after.strip_prefix('{') {
            Some(inside) => {
                let (name, end) = name_before(inside);
                // `${NAME:-…}`, `${NAME?…}` and similar forms define the meaning of an unset name themselves.
                (name, !end.trim_start_matches(':').starts_with(['-', '=', '+', '?']))
            }
            None => (name_before(after).0, true),
        };
        if is_whole && is_name(name) {
            names.push(name);
        }
        rest = after;
    }
    names
}

pub(super) fn is_name(text: &str) -> bool {
    text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_replace_only_their_own_form() {
        for (text, shown, plain) in [
            ("$(A)", "${A}", false),
            ("$$(A)", "$(A)", true),
            ("$A", "$A", true),
            ("$(a b)", "$(a b)", true),
            ("x$", "x$", true),
        ] {
            let word = Word::of_container(text, 1);
            assert_eq!((word.shown().as_str(), word.is_plain()), (shown, plain), "{text}");
        }
    }
}
