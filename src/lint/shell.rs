//! Parses the commands of a shell script, as far as possible without running it.
//!
//! Takes the text after `bash -c`; gives simple commands word by word, each word with its line.
//! `shlex` removes quotes; expansions stay marked in the word ([`Word::is_plain`]), and a
//! command that may not run (in a branch, a loop, a function, after `||`) is marked.

use super::word::{EXPANDED, SPACE, Word};

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
    let mut reader = Reader {
        chars: script.chars().collect(),
        at: 0,
        continued: false,
        line: 0,
        word: None,
        command: ShellCommand::default(),
        found: Vec::new(),
        open: Vec::new(),
        after_or: false,
        documents: Vec::new(),
    };
    reader.read()?;
    let mut found = reader.found;
    if let Some((_last, others)) = found.split_last_mut() {
        others.iter_mut().for_each(|command| command.shell_stays = true);
    }
    Ok(found)
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

struct Reader {
    chars: Vec<char>,
    at: usize,
    /// The previous line ended in a backslash, and only blanks follow it.
    continued: bool,
    line: usize,
    /// The raw word and its line.
    word: Option<(String, usize)>,
    command: ShellCommand,
    found: Vec<ShellCommand>,
    open: Vec<Open>,
    after_or: bool,
    /// Delimiters of here-documents that begin after this line.
    documents: Vec<String>,
}

impl Reader {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek(0)?;
        self.at += 1;
        self.line += usize::from(c == '\n');
        Some(c)
    }

    fn push(&mut self, c: char) {
        let line = self.line;
        self.word.get_or_insert_with(|| (String::new(), line)).0.push(match c {
            EXPANDED | SPACE | '\0' => '\u{FFFD}',
            c => c,
        });
    }

    /// Adds a mark, which `push` would treat as a character of the script.
    fn mark(&mut self, c: char) {
        let line = self.line;
        self.word.get_or_insert_with(|| (String::new(), line)).0.push(c);
    }

    fn read(&mut self) -> Result<(), Unclosed> {
        while let Some(c) = self.peek(0) {
            let continued = std::mem::take(&mut self.continued);
            match c {
                ' ' | '\t' if continued => {
                    self.continued = true;
                    self.end_word()?;
                    self.next();
                }
                '\\' => {
                    self.next();
                    match self.next() {
                        Some('\n') => self.continued = true,
                        None => {}
                        Some(c) => {
                            self.push('\\');
                            self.push(c);
                        }
                    }
                }
                '\'' => self.single_quoted()?,
                '"' => self.double_quoted()?,
                '$' | '`' => self.expansion(false)?,
                '#' if self.word.is_none() => {
                    if continued && !self.command.words.is_empty() {
                        self.command.cut_at = Some(self.line);
                    }
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                '<' if self.peek(1) == Some('<') && self.peek(2) != Some('<') => self.document(),
                '&' if self.peek(1) == Some('>') || self.ends_in_redirection() => {
                    self.next();
                    self.push('&');
                }
                '\n' => {
                    self.end_command()?;
                    self.next();
                    self.skip_documents();
                }
                '(' | ')' | ';' | '&' | '|' => {
                    let or = c == '|' && self.peek(1) == Some('|');
                    let function = c == '(' && self.peek(1) == Some(')') && self.word.is_some();
                    self.end_command()?;
                    if function {
                        self.open.push(Open::FunctionName);
                    }
                    self.after_or = or;
                    self.next();
                    if or {
                        self.next();
                    }
                }
                c if c.is_whitespace() => {
                    self.end_word()?;
                    self.next();
                }
                c => {
                    self.next();
                    self.push(c);
                }
            }
        }
        self.end_command()
    }

    fn ends_in_redirection(&self) -> bool {
        self.word.as_ref().is_some_and(|(word, _)| word.ends_with(['>', '<']))
    }

    fn single_quoted(&mut self) -> Result<(), Unclosed> {
        let line = self.line;
        let mut open = false;
        while let Some(c) = self.next() {
            self.push(c);
            if c == '\'' && open {
                return Ok(());
            }
            open = true;
        }
        Err(Unclosed { line })
    }

    fn double_quoted(&mut self) -> Result<(), Unclosed> {
        let line = self.line;
        self.next();
        self.push('"');
        while let Some(c) = self.peek(0) {
            match c {
                '"' => {
                    self.next();
                    self.push('"');
                    return Ok(());
                }
                '\\' => {
                    self.next();
                    match self.next() {
                        None => break,
                        Some('\n') => {}
                        Some(c) => {
                            self.push('\\');
                            self.push(c);
                        }
                    }
                }
                '$' | '`' => self.expansion(true)?,
                c => {
                    self.next();
                    self.push(c);
                }
            }
        }
        Err(Unclosed { line })
    }

    /// `$NAME`, `${…}`, `$(…)` or `` `…` ``: marked, with its words kept together.
    fn expansion(&mut self, quoted: bool) -> Result<(), Unclosed> {
        let line = self.line;
        let backtick = self.next() == Some('`');
        let (open, close) = match self.peek(0) {
            _ if backtick => ('`', '`'),
            Some('(') => ('(', ')'),
            Some('{') => ('{', '}'),
            Some(c) if is_name_char(c) || "@*#?$!-".contains(c) => {
                self.mark(EXPANDED);
                return Ok(());
            }
            // $'…' and $"…" are strings; a `$` before anything else is a plain `$`.
            Some('\'' | '"') if !quoted => return Ok(()),
            _ => {
                self.push('\\');
                self.push('$');
                return Ok(());
            }
        };
        self.mark(EXPANDED);
        self.push(if backtick { '(' } else { open });
        if !backtick {
            self.next();
        }
        let mut depth = 1;
        while let Some(c) = self.next() {
            if c == close {
                depth -= 1;
                if depth == 0 {
                    self.push(if backtick { ')' } else { close });
                    return Ok(());
                }
            } else if c == open {
                depth += 1;
            }
            match c {
                c if c.is_whitespace() => self.mark(SPACE),
                '\'' | '"' | '\\' => {}
                c => self.push(c),
            }
        }
        Err(Unclosed { line })
    }

    fn document(&mut self) {
        self.next();
        self.next();
        if self.peek(0) == Some('-') {
            self.next();
        }
        while self.peek(0).is_some_and(|c| c == ' ' || c == '\t') {
            self.next();
        }
        let mut end = String::new();
        while let Some(c) = self.peek(0)
            && !c.is_whitespace()
            && !";&|()<>".contains(c)
        {
            self.next();
            if !"'\"\\".contains(c) {
                end.push(c);
            }
        }
        if !end.is_empty() {
            self.documents.push(end);
        }
    }

    fn skip_documents(&mut self) {
        for end in std::mem::take(&mut self.documents) {
            while self.peek(0).is_some() {
                let mut line = String::new();
                while let Some(c) = self.next()
                    && c != '\n'
                {
                    line.push(c);
                }
                if line.trim() == end {
                    break;
                }
            }
        }
    }

    fn end_word(&mut self) -> Result<(), Unclosed> {
        let Some((raw, line)) = self.word.take() else { return Ok(()) };
        let words = shlex::split(&raw).ok_or(Unclosed { line })?;
        // A raw word has no blank outside quotes, so it is one word or a comment sign.
        for text in words {
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
            }
            if self.command.words.is_empty()
                && matches!(
                    text.as_str(),
                    "then" | "do" | "else" | "elif" | "!" | "{" | "}" | "time"
                )
            {
                continue;
            }
            self.command.words.push(Word::marked(text, line));
        }
        Ok(())
    }

    fn end_command(&mut self) -> Result<(), Unclosed> {
        self.end_word()?;
        let mut command = std::mem::take(&mut self.command);
        if !command.words.is_empty() {
            let certain = self.open.iter().all(|open| *open == Open::Group);
            command.may_not_run = !certain || self.after_or;
            // A pipe or the background; `&&` and `||` end in the last command.
            let next = self.peek(0).filter(|c| matches!(c, '|' | '&'));
            command.shell_stays = next.is_some() && self.peek(1) != next;
            self.found.push(command);
        }
        self.after_or = false;
        Ok(())
    }
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
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
