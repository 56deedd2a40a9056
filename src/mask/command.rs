//! Secrets in the words of a command.
//!
//! Takes word after word, as a program gets them or as a script writes them;
//! marks values behind `--token`, in `--token=…` and `HF_TOKEN=…`, and follows
//! command lines inside of words (`bash -c "…"`, `ssh host "…"`).

use super::names::{self, Secrecy, hides, is_name};
use super::shell::{self, Part};
use super::spans::Spans;
use super::{code, plain, value};

/// What the next word is.
#[derive(Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Word,
    /// The value of a secret of this name; of a name in the plural there may be several.
    Secret {
        name: String,
        several: bool,
    },
    /// A secret whatever it looks like (`wandb login …`).
    Hidden,
    /// `user:password`
    User,
    Command(Language),
}

/// What is behind `-c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Shell,
    Code,
}

/// Reads the words of a command one by one.
#[derive(Debug, Default)]
pub(super) struct Reader {
    next: Next,
    /// A program was named that takes a command line, or code, behind an option.
    takes: Option<Language>,
    /// Words with spaces are command lines (`ssh host "…"`).
    runs_words: bool,
    /// The last two words that were no options.
    said: [String; 2],
    depth: usize,
}

impl Reader {
    pub(super) fn at_depth(depth: usize) -> Reader {
        Reader { depth, ..Reader::default() }
    }

    /// A new command begins.
    pub(super) fn end(&mut self) {
        *self = Reader::at_depth(self.depth);
    }

    /// A word as a program gets it.
    pub(super) fn word(&mut self, spans: &mut Spans, at: usize, word: &str) {
        if self.expected(spans, at, word, word) {
            return;
        }
        let split = word.split_once('=').filter(|(name, _)| is_name(name));
        if let Some((name, rest)) = split {
            let start = at + name.len() + 1;
            if hides(name, rest) {
                spans.hide(start, rest.len());
            } else if matches!(name, "--wrap" | "--command") {
                self.script(spans, start, rest);
            } else {
                value(spans, start, rest);
            }
            return;
        }
        self.note(word);
        if is_option(word) {
            self.attached(spans, at, word);
        } else if self.runs_words && word.contains(char::is_whitespace) {
            self.script(spans, at, word);
        } else {
            value(spans, at, word);
        }
    }

    /// A word as it stands in a script, with its quotes.
    pub(super) fn raw(&mut self, spans: &mut Spans, at: usize, word: &str) {
        let parts = shell::parts(word);
        if let [Part::Quoted(part)] = parts.as_slice() {
            let inside = word.get(part.clone()).unwrap_or_default();
            // A secret takes its quotes along, so that its length does not show.
            if self.takes_secret(inside) {
                spans.hide(at, word.len());
            } else {
                self.word(spans, at + part.start, inside);
            }
            return;
        }
        let bare = shell::unquoted(word);
        if self.expected(spans, at, word, &bare) {
            return;
        }
        let split = word.split_once('=').map(|(name, rest)| (shell::unquoted(name), rest));
        if let Some((name, rest)) = split.filter(|(name, _)| is_name(name)) {
            let start = at + word.len() - rest.len();
            if hides(&name, rest) && hides(&name, &shell::unquoted(rest)) {
                spans.hide(start, rest.len());
            } else {
                self.parts(spans, start, rest);
                pairs(spans, at, word);
            }
            return;
        }
        self.note(&bare);
        self.parts(spans, at, word);
        pairs(spans, at, word);
    }

    fn parts(&self, spans: &mut Spans, at: usize, word: &str) {
        for part in shell::parts(word) {
            let (Part::Plain(range) | Part::Quoted(range) | Part::Command(range)) = &part;
            let text = word.get(range.clone()).unwrap_or_default();
            match part {
                Part::Command(_) => self.script(spans, at + range.start, text),
                Part::Quoted(_) => value(spans, at + range.start, text),
                // May hold an escaped space, and is a word for all that.
                Part::Plain(_) => plain(spans, at + range.start, text),
            }
        }
    }

    fn script(&self, spans: &mut Spans, at: usize, text: &str) {
        shell::script(spans, at, text, self.depth + 1);
    }

    fn takes_secret(&self, word: &str) -> bool {
        match &self.next {
            // One dash begins a password as often as a flag.
            Next::Secret { name, several } => {
                hides(name, word) && !(is_option(word) && (*several || word.starts_with("--")))
            }
            Next::Hidden => !is_option(word),
            _ => false,
        }
    }

    /// Reads the word as what the words before it announced; false where they announced nothing.
    fn expected(&mut self, spans: &mut Spans, at: usize, word: &str, bare: &str) -> bool {
        if self.takes_secret(bare) {
            spans.hide(at, word.len());
            if !matches!(self.next, Next::Secret { several: true, .. }) {
                self.next = Next::Word;
            }
            return true;
        }
        match std::mem::take(&mut self.next) {
            Next::User => {
                let password = word.find(':').map_or(word.len(), |colon| colon + 1);
                spans.hide(at + password, word.len() - password);
                true
            }
            Next::Command(Language::Shell) => {
                self.script(spans, at, word);
                true
            }
            Next::Command(Language::Code) => {
                code::mark(spans, at, word);
                value(spans, at, word);
                true
            }
            // A flag after a flag: the first one was a switch (`--use-token --lr 3`).
            Next::Secret { .. } | Next::Hidden | Next::Word => false,
        }
    }

    /// Remembers what this word says about the next ones.
    fn note(&mut self, word: &str) {
        if is_option(word) {
            self.next = self.after_option(word);
            return;
        }
        let program = program(word);
        self.takes = language(program).or(self.takes);
        self.runs_words |= matches!(program, "ssh" | "pdsh" | "clush" | "eval" | "watch" | "xargs");
        let [_, last] = std::mem::take(&mut self.said);
        self.said = [last, program.to_owned()];
        let login = self.said == ["wandb".to_owned(), "login".to_owned()];
        if login {
            self.next = Next::Hidden;
        }
    }

    fn after_option(&self, word: &str) -> Next {
        let says = |program: &str| self.said.iter().any(|said| said == program);
        match word {
            "-u" | "--user" | "--proxy-user" if says("curl") => return Next::User,
            "-p" if says("sshpass") || says("docker") && says("login") => return Next::Hidden,
            "-S" | "--split-string" if says("env") => return Next::Command(Language::Shell),
            "--command" if self.takes.is_some() => return Next::Command(Language::Shell),
            "--wrap" => return Next::Command(Language::Shell),
            _ => {}
        }
        if is_name(word) && names::secrecy(word) != Secrecy::Open {
            return Next::Secret { name: word.to_owned(), several: is_plural(word) };
        }
        let flags = word.strip_prefix('-').unwrap_or_default();
        if !flags.chars().all(|flag| flag.is_ascii_alphabetic()) {
            return Next::Word;
        }
        match self.takes {
            // `-c` may stand among other flags: -lc, -cex.
            Some(Language::Shell) if flags.contains('c') => Next::Command(Language::Shell),
            Some(Language::Code) if flags.ends_with(['c', 'e']) => Next::Command(Language::Code),
            _ => Next::Word,
        }
    }

    /// A value that stands in the word of its option: `-H"Authorization: …"`, `-cCODE`.
    fn attached(&self, spans: &mut Spans, at: usize, word: &str) {
        if let Some(rest) = word.strip_prefix("-H").filter(|rest| !rest.is_empty()) {
            value(spans, at + 2, rest);
        } else if self.takes == Some(Language::Code) && word.contains(['"', '\'']) {
            code::mark(spans, at, word);
        }
        pairs(spans, at, word);
        value(spans, at, word);
    }
}

/// `--name`, `-n`, `--name=…`; not a negative number, nor a PEM block.
pub(super) fn is_option(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    let dashes = word.len() - name.len();
    let name = name.split('=').next().unwrap_or(name);
    (1..=2).contains(&dashes)
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        // `--token --S3CR3T`: options are not written like this.
        && !(dashes == 2 && name.chars().all(|c| !c.is_ascii_lowercase()) && name.len() > 2)
}

fn is_plural(option: &str) -> bool {
    let name = option.to_ascii_lowercase();
    name.contains("keys") || name.contains("tokens") || name.ends_with("secrets")
}

/// A program's name: `/usr/bin/python3.11` → python
fn program(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or(word);
    name.trim_start_matches('-').trim_end_matches(|c: char| c.is_ascii_digit() || c == '.')
}

/// Programs that take a command line, or code, behind `-c` or `-e`.
fn language(program: &str) -> Option<Language> {
    match program {
        "sh" | "bash" | "dash" | "ash" | "zsh" | "ksh" | "mksh" | "fish" | "csh" | "tcsh"
        | "busybox" | "su" | "runuser" | "script" | "flock" => Some(Language::Shell),
        "python" | "pypy" | "perl" | "ruby" | "node" => Some(Language::Code),
        _ => None,
    }
}

/// Marks `NAME=value` in a word that may hold several: `ALL,HF_TOKEN=x`, `Server=h;Password=x`.
pub(super) fn pairs(spans: &mut Spans, at: usize, word: &str) {
    const BETWEEN: &[char] = &[',', ';', '&'];
    let is_part = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    let mut from = 0;
    while let Some(found) = word.get(from..).and_then(|rest| rest.find('=')) {
        let equals = from + found;
        from = equals + 1;
        let before = word.get(..equals).unwrap_or_default();
        let name = before.get(before.trim_end_matches(is_part).len()..).unwrap_or_default();
        let rest = word.get(from..).unwrap_or_default();
        if name.is_empty() || !names::is_secret_name(name) {
            continue;
        }
        // The value goes on to the next pair.
        let ends = rest.match_indices(BETWEEN).find(|(end, _)| {
            let after = rest.get(end + 1..).unwrap_or_default();
            let next = after.get(..after.len() - after.trim_start_matches(is_part).len());
            next.is_some_and(|next| {
                next.is_empty() && after.is_empty()
                    || after.get(next.len()..).is_some_and(|after| after.starts_with('='))
            })
        });
        let end = ends.map_or(rest.len(), |(end, _)| end);
        let value = rest.get(..end).unwrap_or_default();
        if hides(name, value) {
            // `{HF_TOKEN=x,}`, `"A_KEY=x"`
            let closed = value.trim_end_matches(['}', ')', ']', ',']);
            let inside = if closed.is_empty() { value } else { closed };
            spans.hide(at + from, inside.len());
            from += end;
        }
    }
}

/// Whether a text with spaces is a command line and no sentence: by its first word.
pub(super) fn is_command_line(text: &str) -> bool {
    const PROGRAMS: &[&str] = &[
        "env",
        "export",
        "cd",
        "source",
        "set",
        "sudo",
        "exec",
        "curl",
        "wget",
        "git",
        "pip",
        "wandb",
        "huggingface-cli",
        "hf",
        "aws",
        "gsutil",
        "ssh",
        "srun",
        "sbatch",
        "mpirun",
        "docker",
        "kubectl",
        "nohup",
        "timeout",
        "time",
        "echo",
        "cat",
        "ray",
        "conda",
        "torchrun",
        "accelerate",
        "deepspeed",
        "ranklaunch",
        "uv",
        "numactl",
        "nice",
        "test",
    ];
    let first = text.split_whitespace().next().unwrap_or_default();
    let assigns = first.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    });
    let name = program(first);
    is_option(first)
        || assigns
        || PROGRAMS.contains(&name)
        || language(name).is_some_and(|_| text.contains(" -"))
        || [".py", ".sh"].iter().any(|end| first.ends_with(end))
        || first.contains('/') && first.starts_with(['/', '.', '~'])
        || ["&&", "||", ";HF_", "$("].iter().any(|operator| text.contains(operator))
}
