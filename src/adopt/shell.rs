//! Parses the commands of a shell script, as far as possible without running it.
//!
//! Takes the text after `bash -c`; gives simple commands word by word, each word with its line and place.
//! Expansions stay marked in the word ([`Word::is_plain`]), and a command that may not run (in a branch, a loop, a
//! function, after `||`) is marked.

use std::ops::Range;

use text::shell::{self, Part, PartKind, TokenKind};

/// One simple command.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ShellCommand {
    pub words: Vec<Word>,
    /// Places of the words in the script, in bytes.
    pub spans: Vec<Range<usize>>,
    /// Places of the items of `NAME=(…)`, which is the first word.
    pub items: Option<Vec<Range<usize>>>,
    /// Body of its here-document.
    pub document: Option<Range<usize>>,
    /// The operator after it, perhaps empty.
    pub operator: String,
    /// Constructs (`if`, `{`, a function) that are open around it.
    pub depth: usize,
    /// The command may run never or several times.
    pub may_not_run: bool,
    /// The shell continues beside the command or after it, so it cannot exec the command.
    pub shell_stays: bool,
    /// Line of a comment that ends the command although a backslash should continue it.
    pub cut_at: Option<usize>,
}

/// An unclosed quote or expansion, at this line of the script (from 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unclosed {
    pub line: usize,
    /// How it begins: `'`, `$(`.
    pub open: &'static str,
    /// Place in bytes of the word with it.
    pub(crate) at: usize,
}

/// The commands of a script, in order; lines count from 0.
pub fn commands(script: &str) -> Result<Vec<ShellCommand>, Unclosed> {
    match commands_before(script) {
        (commands, None) => Ok(commands),
        (_, Some(unclosed)) => Err(unclosed),
    }
}

/// The commands before the first quote or expansion that is never closed, and that one.
pub(crate) fn commands_before(script: &str) -> (Vec<ShellCommand>, Option<Unclosed>) {
    // No mark is from the script.
    let script = script.replace([EXPANDED, SPACE, '\0'], "\u{FFFD}");
    let mut reader = Reader::default();
    let (mut at, mut line) = (0, 0);
    let mut array = false;
    for token in shell::tokens(&script) {
        let before = script.get(at..token.at).unwrap_or_default();
        at = token.at + token.text.len();
        line += before.matches('\n').count();
        if let Some(open) = token.unclosed {
            return (reader.found, Some(Unclosed { line, open, at: token.at }));
        }
        match token.kind {
            TokenKind::Word if array => {
                reader.command.items.get_or_insert_default().push(token.at..at);
            }
            TokenKind::Control if array => {
                if token.text.starts_with(')') {
                    array = false;
                    reader.close_array(at);
                }
            }
            // `2>&1` is one word.
            TokenKind::Word | TokenKind::Redirection => {
                if !before.is_empty() {
                    reader.end_word();
                }
                let (word, _, span) =
                    reader.word.get_or_insert((String::new(), line, token.at..at));
                word.push_str(&shell::unquoted(token.text, EXPANDED, &marked));
                span.end = at;
            }
            TokenKind::Control if before.is_empty() && reader.begins_array(token.text) => {
                reader.command.items = Some(Vec::new());
                array = token.text == "(";
                if !array {
                    reader.close_array(at);
                }
            }
            TokenKind::Control => reader.end_command(token.text),
            TokenKind::Comment if array => {}
            TokenKind::Comment => {
                reader.end_word();
                let before = script.get(..token.at).unwrap_or_default();
                let is_continued = before.trim_end_matches([' ', '\t']).ends_with("\\\n");
                let rest = script.get(at..).unwrap_or_default().lines().skip(1).map(str::trim);
                let next = rest.into_iter().find(|line| !line.is_empty() && !line.starts_with('#'));
                let goes_on = next.is_some_and(|line| line.starts_with('-'));
                if is_continued && goes_on && !reader.command.words.is_empty() {
                    reader.command.cut_at = Some(line);
                }
            }
            TokenKind::Document => {
                if let Some(command) = reader.found.last_mut() {
                    command.document = Some(token.at..at);
                }
            }
        }
        line += token.text.matches('\n').count();
    }
    reader.end_command("");
    let mut found = reader.found;
    if let Some((_last, others)) = found.split_last_mut() {
        others.iter_mut().for_each(|command| command.shell_stays = true);
    }
    (found, None)
}

/// `${…}` or `$(…)` with its words kept together.
fn marked(expansion: &Part<'_>) -> String {
    let text = match expansion.kind {
        PartKind::Command => format!("({})", expansion.text),
        _ => expansion.text.trim_start_matches('$').to_owned(),
    };
    format!(
        "{EXPANDED}{}",
        text.replace(['\'', '"', '\\'], "").replace(char::is_whitespace, &SPACE.to_string())
    )
}

/// A construct that a later word must close.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Branch,
    /// A function with a name, whose brace is still to come.
    FunctionName,
    Function,
    Group,
}

#[derive(Default)]
struct Reader {
    /// The word that is not complete, its line and its place.
    word: Option<(String, usize, Range<usize>)>,
    command: ShellCommand,
    found: Vec<ShellCommand>,
    open: Vec<Open>,
    /// Number of them that are not a group, so that what is in them may not run.
    uncertain: usize,
    after_or: bool,
}

impl Reader {
    fn opens(&mut self, open: Open) {
        self.uncertain += usize::from(open != Open::Group);
        self.open.push(open);
    }

    fn closes(&mut self) {
        let closed = self.open.pop();
        self.uncertain -= usize::from(closed.is_some_and(|open| open != Open::Group));
    }

    fn end_word(&mut self) {
        let Some((text, line, span)) = self.word.take() else { return };
        if self.command.words.is_empty() {
            match (text.as_str(), self.open.last()) {
                ("if" | "for" | "while" | "until" | "case" | "select", _) => {
                    self.opens(Open::Branch);
                }
                ("function", _) => self.opens(Open::FunctionName),
                ("{", Some(Open::FunctionName)) => {
                    self.closes();
                    self.opens(Open::Function);
                }
                ("{", _) => self.opens(Open::Group),
                ("fi" | "done" | "esac", Some(Open::Branch))
                | ("}", Some(Open::Function | Open::Group)) => {
                    self.closes();
                }
                _ => {}
            }
            if matches!(text.as_str(), "then" | "do" | "else" | "elif" | "!" | "{" | "}" | "time") {
                return;
            }
        }
        self.command.words.push(Word::marked(text, line));
        self.command.spans.push(span);
    }

    /// Whether a bracket after the word, which is not complete, begins the items of an array.
    fn begins_array(&self, operator: &str) -> bool {
        let name = self.word.as_ref().and_then(|(text, ..)| text.strip_suffix('='));
        operator.starts_with('(')
            && name.is_some_and(|name| is_name(name.strip_suffix('+').unwrap_or(name)))
    }

    fn close_array(&mut self, at: usize) {
        if let Some((.., span)) = &mut self.word {
            span.end = at;
        }
    }

    /// Ends the command before a control operator.
    fn end_command(&mut self, operator: &str) {
        self.end_word();
        let mut command = std::mem::take(&mut self.command);
        let is_function = operator == "()" && !command.words.is_empty();
        if !command.words.is_empty() {
            command.may_not_run = self.uncertain > 0 || self.after_or;
            // `&&` and `||` end in the last command.
            command.shell_stays = matches!(operator, "|" | "&");
            operator.clone_into(&mut command.operator);
            command.depth = self.open.len();
            self.found.push(command);
        }
        if is_function {
            self.opens(Open::FunctionName);
        }
        self.after_or = operator == "||";
    }
}

/// Stands for a `$` that the shell expands; from the private use area, so that no script has it.
pub const EXPANDED: char = '\u{E000}';
/// Stands for a space inside an expansion, which ends no word.
const SPACE: char = '\u{E001}';

/// One word after quotes are undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Word {
    text: String,
    pub line: usize,
}

impl Word {
    /// Text without expansions.
    pub fn literal(text: &str, line: usize) -> Word {
        Word { text: text.replace([EXPANDED, SPACE], "\u{FFFD}"), line }
    }

    /// A word of a script, with marked expansions.
    fn marked(text: String, line: usize) -> Word {
        Word { text, line }
    }

    /// An argument of a container, in which Kubernetes replaces only `$(NAME)`.
    pub fn of_container(text: &str, line: usize) -> Word {
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
    pub fn is_plain(&self) -> bool {
        !self.text.contains(EXPANDED)
    }

    /// The word similar to its source, for messages.
    pub fn shown(&self) -> String {
        self.text.replace(EXPANDED, "$").replace(SPACE, " ")
    }

    /// The word with the variables that `value` knows replaced; the others stay marked.
    pub fn filled(&self, value: impl Fn(&str) -> Option<String>) -> Word {
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
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn at(self, line: usize) -> Word {
        Word { line, ..self }
    }

    /// A word on the same line, with a part of the text.
    pub fn part(&self, text: &str) -> Word {
        Word { text: text.to_owned(), line: self.line }
    }
}

/// The name at the start of a text, perhaps empty, and the rest.
fn name_before(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    text.split_at(end)
}

/// Whether a template tool has something to fill in: `{{` or a `$NAME` that only it can read.
pub fn is_template(text: &str) -> bool {
    text.contains("{{") || !shell_names(text).is_empty()
}

/// The names in `$NAME` and `${NAME}` that a shell would expand; not `$(NAME)` and `$$`, nor `${NAME:-…}`,
/// which has a default of its own.
pub fn shell_names(text: &str) -> Vec<&str> {
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

pub fn is_name(text: &str) -> bool {
    text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(script: &str) -> Vec<Vec<String>> {
        let read = commands(script).expect("a script");
        read.iter().map(|c| c.words.iter().map(Word::shown).collect()).collect()
    }

    #[test]
    fn commands_are_split_as_a_shell_splits_them() {
        for (script, expected) in [
            (
                "a b; c && d | e & f",
                vec![vec!["a", "b"], vec!["c"], vec!["d"], vec!["e"], vec!["f"]],
            ),
            ("torchrun \\\n  --nnodes=2 \\\n x.py", vec![vec!["torchrun", "--nnodes=2", "x.py"]]),
            ("a 'x; y' \"p | $Q\" # c ; d\nb", vec![vec!["a", "x; y", "p | $Q"], vec!["b"]]),
            (
                "a --f $(date '+%Y %m') `hostname -I`",
                vec![vec!["a", "--f", "$(date +%Y %m)", "$(hostname -I)"]],
            ),
            (
                "a > x.log 2>&1 &\nb &> y",
                vec![vec!["a", ">", "x.log", "2>&1"], vec!["b", "&>", "y"]],
            ),
            ("cat <<EOF > f\ntorchrun x\nEOF\nb", vec![vec!["cat", ">", "f"], vec!["b"]]),
            ("a <<< $(b ')') 'c'\nd", vec![vec!["a", "<<<", "$(b ))", "c"], vec!["d"]]),
            ("(cd x; a)", vec![vec!["cd", "x"], vec!["a"]]),
            ("echo \\$X a\\ b \"\"", vec![vec!["echo", "$X", "a b", ""]]),
            ("--size 832*480 {u}", vec![vec!["--size", "832*480", "{u}"]]),
        ] {
            assert_eq!(shown(script), expected, "{script}");
        }
    }

    #[test]
    fn words_know_their_line_and_what_is_expanded() {
        let read =
            commands("export A=1\ntorchrun \\\n  --n $A \\\n  '$B' \"${C}\"").expect("a script");
        let words = &read.get(1).expect("torchrun").words;
        assert_eq!(words.iter().map(|w| w.line).collect::<Vec<_>>(), [1, 2, 2, 3, 3]);
        assert_eq!(
            words.iter().map(Word::is_plain).collect::<Vec<_>>(),
            [true, true, false, true, false]
        );
        let filled = |word: &Word| word.filled(|n| (n == "A" || n == "C").then(|| "7".to_owned()));
        assert_eq!(words.get(2).map(|w| filled(w).shown()).as_deref(), Some("7"));
        assert_eq!(words.get(4).map(|w| filled(w).shown()).as_deref(), Some("7"));
    }

    #[test]
    fn the_shell_can_only_become_the_last_command() {
        for (script, expected) in [
            ("a", vec![false]),
            ("a;\n", vec![false]),
            ("a; b", vec![true, false]),
            ("a && b", vec![true, false]),
            ("a || b", vec![true, false]),
            ("a &", vec![true]),
            ("a | b", vec![true, false]),
            ("a\nb # c\n", vec![true, false]),
        ] {
            let read = commands(script).expect("a script");
            let stays: Vec<bool> = read.iter().map(|command| command.shell_stays).collect();
            assert_eq!(stays, expected, "{script}");
        }
    }

    #[test]
    fn commands_that_may_not_run_are_marked() {
        let of = |script: &str| {
            let read = commands(script).expect("a script");
            read.iter()
                .find(|c| c.words.first().is_some_and(|w| w.text() == "torchrun"))
                .map(|c| c.may_not_run)
        };
        for (script, expected) in [
            ("cd /w && torchrun x.py", false),
            ("{ torchrun x.py; }", false),
            ("if [ $A = 1 ]; then torchrun x.py; else b; fi", true),
            ("for i in 1 2; do\n torchrun x.py\ndone", true),
            ("run() {\n torchrun x.py\n}\nrun", true),
            ("run () {\n torchrun x.py\n}\nrun", true),
            ("if a; then b; fi\ntorchrun x.py", false),
            ("a || torchrun x.py", true),
        ] {
            assert_eq!(of(script), Some(expected), "{script}");
        }
    }

    #[test]
    fn comments_cut_what_goes_on_below() {
        for (script, cut) in [
            ("torchrun a.py \\\n  # --x \\\n  --y 1\n", Some(1)),
            ("torchrun a.py \\\n  # --x\n", None),
            ("torchrun a.py \\\n  # --x\n\necho done\n", None),
        ] {
            let read = commands(script).expect("a script");
            assert_eq!(read.first().and_then(|command| command.cut_at), cut, "{script}");
        }
    }

    #[test]
    fn unclosed_quotes_are_named() {
        for (script, open) in [("a 'b", "'"), ("a \"b", "\""), ("\n a $(b", "$("), ("a `b", "`")] {
            assert_eq!(commands(script).map_err(|unclosed| unclosed.open), Err(open), "{script}");
        }
        assert_eq!(commands("a\nb 'c\n"), Err(Unclosed { line: 1, open: "'", at: 4 }));
    }

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
