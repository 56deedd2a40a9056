//! Parses the commands of a shell script, as far as possible without running it.
//!
//! Takes the text after `bash -c`; gives simple commands word by word, each word with its line.
//! Expansions stay marked in the word ([`Word::is_plain`]), and a command that may not run (in a branch, a loop, a
//! function, after `||`) is marked.

use super::word::{EXPANDED, SPACE, Word};
use text::shell::{self, Part, PartKind, TokenKind};

/// One simple command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ShellCommand {
    pub(super) words: Vec<Word>,
    /// The command may run never or several times.
    pub(super) may_not_run: bool,
    /// The shell continues beside the command or after it, so it cannot exec the command.
    pub(super) shell_stays: bool,
    /// Line of a comment that ends the command although a backslash should continue it.
    pub(super) cut_at: Option<usize>,
}

/// An unclosed quote or expansion, at this line of the script (from 0).
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unclosed {
    pub(super) line: usize,
}

/// The commands of a script, in order; lines count from 0.
pub(super) fn commands(script: &str) -> Result<Vec<ShellCommand>, Unclosed> {
    // No mark is from the script.
    let script = script.replace([EXPANDED, SPACE, '\0'], "\u{FFFD}");
    let mut reader = Reader::default();
    let (mut at, mut line) = (0, 0);
    for token in shell::tokens(&script) {
        let before = script.get(at..token.at).unwrap_or_default();
        at = token.at + token.text.len();
        line += before.matches('\n').count();
        if token.unclosed {
            return Err(Unclosed { line });
        }
        match token.kind {
            // `2>&1` is one word.
            TokenKind::Word | TokenKind::Redirection => {
                if !before.is_empty() {
                    reader.end_word();
                }
                let (word, _) = reader.word.get_or_insert((String::new(), line));
                word.push_str(&shell::unquoted(token.text, EXPANDED, &marked));
            }
            TokenKind::Control => reader.end_command(token.text),
            TokenKind::Comment => {
                reader.end_word();
                let before = script.get(..token.at).unwrap_or_default();
                let is_continued = before.trim_end_matches([' ', '\t']).ends_with("\\\n");
                if is_continued && !reader.command.words.is_empty() {
                    reader.command.cut_at = Some(line);
                }
            }
            TokenKind::Document => {}
        }
        line += token.text.matches('\n').count();
    }
    reader.end_command("");
    let mut found = reader.found;
    if let Some((_last, others)) = found.split_last_mut() {
        others.iter_mut().for_each(|command| command.shell_stays = true);
    }
    Ok(found)
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
    /// The word that is not complete, and its line.
    word: Option<(String, usize)>,
    command: ShellCommand,
    found: Vec<ShellCommand>,
    open: Vec<Open>,
    after_or: bool,
}

impl Reader {
    fn end_word(&mut self) {
        let Some((text, line)) = self.word.take() else { return };
        if self.command.words.is_empty() {
            match (text.as_str(), self.open.last()) {
                ("if" | "for" | "while" | "until" | "case" | "select", _) => {
                    self.open.push(Open::Branch);
                }
                ("function", _) => self.open.push(Open::FunctionName),
                ("{", Some(Open::FunctionName)) => {
                    self.open.pop();
                    self.open.push(Open::Function);
                }
                ("{", _) => self.open.push(Open::Group),
                ("fi" | "done" | "esac", Some(Open::Branch))
                | ("}", Some(Open::Function | Open::Group)) => {
                    self.open.pop();
                }
                _ => {}
            }
            if matches!(text.as_str(), "then" | "do" | "else" | "elif" | "!" | "{" | "}" | "time") {
                return;
            }
        }
        self.command.words.push(Word::marked(text, line));
    }

    /// Ends the command before a control operator.
    fn end_command(&mut self, operator: &str) {
        self.end_word();
        let mut command = std::mem::take(&mut self.command);
        let is_function = operator == "()" && !command.words.is_empty();
        if !command.words.is_empty() {
            let certain = self.open.iter().all(|open| *open == Open::Group);
            command.may_not_run = !certain || self.after_or;
            // `&&` and `||` end in the last command.
            command.shell_stays = matches!(operator, "|" | "&");
            self.found.push(command);
        }
        if is_function {
            self.open.push(Open::FunctionName);
        }
        self.after_or = operator == "||";
    }
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
    fn unclosed_quotes_are_named() {
        for script in ["a 'b", "a \"b", "\n a $(b", "a `b"] {
            assert!(commands(script).is_err(), "{script}");
        }
        assert_eq!(commands("a\nb 'c\n"), Err(Unclosed { line: 1 }));
    }
}
