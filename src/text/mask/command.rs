//! Finds secrets in the words of a command.
//!
//! Takes words as a program gets them or as a script has them. Gives the parts of each: secrets
//! after `--token` and `HF_TOKEN`, in `--token=…` and `HF_TOKEN=…`, and command lines inside words
//! (`bash -c "…"`, `ssh host "…"`), which [`super::read_on`] reads further.

use super::names::{
    self, Secrecy, has, hides, is_name, is_secret_in_pair, is_secret_name, is_variable, takes_pairs,
};
use super::spans::{Parts, ReadAs};
use crate::shell::{self, Part, PartKind};

/// Meaning of the next word.
#[derive(Debug, Default, PartialEq, Eq)]
enum NextWord {
    #[default]
    Plain,
    /// The value of a secret of this name; a name in the plural may have several.
    Secret {
        name: String,
        several: bool,
    },
    /// The value of a secret of this name, which stands alone; `=` may be between.
    Pair(String),
    /// Always a secret (`sshpass -p …`).
    Hidden,
    /// `user:password`
    User,
    Command(Language),
}

/// Reads the words of a command one by one.
#[derive(Debug, Default)]
pub(super) struct CommandReader {
    next: NextWord,
    /// The program takes a command line or code after an option.
    takes: Option<Language>,
    /// Words with spaces are command lines (`ssh host "…"`).
    runs_words: bool,
    /// The last two words that are no options.
    said: [String; 2],
    /// A command that logs in; whether the secret may be a word of its own.
    login: Option<bool>,
    /// The word before this one.
    before: Before,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Before {
    /// The command begins.
    #[default]
    Nothing,
    Word,
    Option,
    /// Names and values follow (`--opts NAME x NAME x`).
    Pairs,
}

/// Commands that log in with a secret as a word of its own.
const LOGINS_WITH_WORD: &str = "wandb swanlab";
/// Others: `helm registry login`, `apptainer remote login`, `hf auth login`.
const LOGINS: &str = "docker podman nerdctl skopeo oras oc az registry remote auth";

impl CommandReader {
    /// A new command begins.
    pub(super) fn end(&mut self) {
        *self = CommandReader::default();
    }

    /// A word as a program gets it.
    pub(super) fn word(&mut self, parts: &mut Parts, at: usize, word: &str) {
        if self.expected(parts, at, word, word) {
            return;
        }
        let split = word.split_once('=').filter(|(name, _)| is_name(name));
        if let Some((name, rest)) = split {
            self.note_assignment(name, rest);
            let start = at + name.len() + 1;
            if hides_argument(name, rest) {
                parts.push(start, rest.len(), ReadAs::Secret);
            } else if matches!(name, "--wrap" | "--command") {
                parts.push(start, rest.len(), ReadAs::Script);
            } else {
                parts.push(start, rest.len(), ReadAs::Value);
            }
            return;
        }
        self.note(word);
        if is_option(word) || word.starts_with("-H") {
            self.attached(parts, at, word);
        } else if self.runs_words && word.contains(char::is_whitespace) {
            parts.push(at, word.len(), ReadAs::Script);
        } else {
            parts.push(at, word.len(), ReadAs::Value);
        }
    }

    /// A word of a script, with its quotes.
    pub(super) fn raw(&mut self, parts: &mut Parts, at: usize, word: &str) {
        if let [Part { kind: PartKind::Single | PartKind::Double, at: from, text: inside }] =
            *shell::parts(word, false)
        {
            // The quotes of a secret are hidden too, so that its length does not show.
            if self.takes_secret(inside) {
                parts.push(at, word.len(), ReadAs::Secret);
            } else {
                self.word(parts, at + from, inside);
            }
            return;
        }
        let bare = bare_text(word);
        if self.expected(parts, at, word, &bare) {
            return;
        }
        let split = word.split_once('=').map(|(name, rest)| (bare_text(name), rest));
        if let Some((name, rest)) = split.filter(|(name, _)| is_name(name)) {
            self.note_assignment(&name, rest);
            let start = at + word.len() - rest.len();
            if hides_argument(&name, rest) && hides_argument(&name, &bare_text(rest)) {
                parts.push(start, rest.len(), ReadAs::Secret);
            } else {
                push_parts(parts, start, rest);
                parts.push(at, word.len(), ReadAs::Pairs);
            }
            return;
        }
        self.note(&bare);
        push_parts(parts, at, word);
        parts.push(at, word.len(), ReadAs::Pairs);
    }

    /// `--token= x`
    fn note_assignment(&mut self, name: &str, value: &str) {
        if value.is_empty() && is_option(name) && is_secret_name(name) {
            self.next = NextWord::Pair(name.to_owned());
        }
    }

    fn takes_secret(&self, word: &str) -> bool {
        // `wandb login --relogin x`; the host may be there too.
        if self.login == Some(true)
            && self.next == NextWord::Plain
            && !is_option(word)
            && !word.contains("://")
            && !names::holds_nothing(word)
        {
            return true;
        }
        match &self.next {
            // A password may also begin with one dash.
            NextWord::Secret { name, several } => {
                hides(name, word)
                    && !(is_clearly_option(word) && (*several || word.starts_with("--")))
            }
            NextWord::Pair(name) => {
                hides(name, word) && !is_option(word) && word.contains(char::is_alphanumeric)
                    // Another name, or a command: `unset A_KEY B_KEY`, `-u A_KEY python`.
                    && !is_variable(word)
                    && !is_command(word)
            }
            NextWord::Hidden => !is_clearly_option(word),
            _ => false,
        }
    }

    /// Reads the word as the previous words require; false if they require nothing.
    fn expected(&mut self, parts: &mut Parts, at: usize, word: &str, bare: &str) -> bool {
        // `hf_token = x`, `hf_token =x`
        if let NextWord::Pair(name) | NextWord::Secret { name, .. } = &self.next
            && let Some(value) = word.strip_prefix('=').filter(|_| !bare.starts_with("=="))
        {
            if hides(name, value) {
                parts.push(at + 1, value.len(), ReadAs::Secret);
                self.next = NextWord::Plain;
            }
            return true;
        }
        if self.takes_secret(bare) {
            parts.push(at, word.len(), ReadAs::Secret);
            // The secret may be an option as well: `--PASS --PASSWORD X`.
            if is_option(bare) && !bare.contains('=') {
                self.next = self.after_option(bare);
            } else if !matches!(self.next, NextWord::Secret { several: true, .. }) {
                self.next = NextWord::Plain;
            }
            return true;
        }
        match std::mem::take(&mut self.next) {
            NextWord::User => {
                let password = word.find(':').map_or(word.len(), |colon| colon + 1);
                parts.push(at + password, word.len() - password, ReadAs::Secret);
                true
            }
            NextWord::Command(Language::Shell) => {
                parts.push(at, word.len(), ReadAs::Script);
                true
            }
            NextWord::Command(Language::Code) => {
                parts.push(at, word.len(), ReadAs::Code);
                parts.push(at, word.len(), ReadAs::Value);
                true
            }
            // A flag after a flag: the first one was a switch (`--use-token --lr 3`).
            NextWord::Secret { .. } | NextWord::Pair(_) | NextWord::Hidden | NextWord::Plain => {
                false
            }
        }
    }

    /// Records what this word means for the next ones.
    fn note(&mut self, word: &str) {
        let before = self.before;
        if is_option(word) {
            self.next = self.after_option(word);
            self.before = if takes_pairs(word) { Before::Pairs } else { Before::Option };
            return;
        }
        let expected = before == Before::Pairs;
        self.before = if expected { Before::Pairs } else { Before::Word };
        // The first word is a program. A word after an option is its value, unless the word has a dot.
        let may_be_name = match before {
            Before::Nothing => false,
            Before::Option => word.contains('.'),
            Before::Word | Before::Pairs => true,
        };
        if may_be_name && is_secret_in_pair(word, expected) {
            self.next = NextWord::Pair(word.to_owned());
        }
        let program = program(word);
        self.takes = language(program).or(self.takes);
        self.runs_words |= matches!(program, "ssh" | "pdsh" | "clush" | "eval" | "watch" | "xargs");
        let [_, last] = std::mem::take(&mut self.said);
        self.said = [last, program.to_owned()];
        let [before, last] = &self.said;
        if last == "login" {
            let takes_word = has(LOGINS_WITH_WORD, before);
            self.login = (takes_word || has(LOGINS, before)).then_some(takes_word);
        }
    }

    fn after_option(&self, word: &str) -> NextWord {
        let says = |program: &str| self.said.iter().any(|said| said == program);
        match word {
            "-u" | "--user" | "--proxy-user" if says("curl") => return NextWord::User,
            "-p" if says("sshpass") => return NextWord::Hidden,
            "-p" | "-k" | "-t" if self.login.is_some() => return NextWord::Hidden,
            "-S" | "--split-string" if says("env") => return NextWord::Command(Language::Shell),
            "--command" if self.takes.is_some() => return NextWord::Command(Language::Shell),
            "--netrc" | "--netrc-optional" if says("curl") => return NextWord::Plain,
            "--wrap" => return NextWord::Command(Language::Shell),
            _ => {}
        }
        if is_name(word) && names::secrecy(word) != Secrecy::Open {
            return NextWord::Secret { name: word.to_owned(), several: is_plural(word) };
        }
        let flags = word.strip_prefix('-').unwrap_or_default();
        if !flags.chars().all(|flag| flag.is_ascii_alphabetic()) {
            return NextWord::Plain;
        }
        match self.takes {
            // `-c` may be combined with other flags: -lc, -cex.
            Some(Language::Shell) if flags.contains('c') => NextWord::Command(Language::Shell),
            Some(Language::Code) if flags.ends_with(['c', 'e']) => {
                NextWord::Command(Language::Code)
            }
            _ => NextWord::Plain,
        }
    }

    /// A value attached to its option: `-H"Authorization: …"`, `-cCODE`.
    fn attached(&self, parts: &mut Parts, at: usize, word: &str) {
        if let Some(rest) = word.strip_prefix("-H").filter(|rest| !rest.is_empty()) {
            parts.push(at + 2, rest.len(), ReadAs::Value);
            if rest.contains(':') {
                return;
            }
        } else if self.takes == Some(Language::Code) && word.contains(['"', '\'']) {
            parts.push(at, word.len(), ReadAs::Code);
        }
        parts.push(at, word.len(), ReadAs::Pairs);
        parts.push(at, word.len(), ReadAs::Value);
    }
}

/// Whether to hide the value of `NAME=value`. One dash may begin a name (`-token`), or a flag with a name behind it
/// (`-eTOKEN`). The value is shown if either reading gives a name that is known to be open.
fn hides_argument(name: &str, value: &str) -> bool {
    let one_dash = name.strip_prefix('-').filter(|flag| flag.starts_with(char::is_alphabetic));
    let Some(behind) = one_dash.and_then(|flag| flag.get(1..)).filter(|it| !it.is_empty()) else {
        return hides(name, value);
    };
    let readings = [name, behind];
    !readings.into_iter().any(names::is_known_open)
        && readings.into_iter().any(|name| hides(name, value))
}

pub(super) fn push_parts(parts: &mut Parts, at: usize, word: &str) {
    for part in shell::parts(word, false) {
        let read_as = match part.kind {
            PartKind::Command => ReadAs::Script,
            PartKind::Single | PartKind::Double => ReadAs::Value,
            // A literal may have an escaped space and is a single word anyway.
            PartKind::Literal | PartKind::Parameter => ReadAs::Word,
        };
        parts.push(at + part.at, part.text.len(), read_as);
    }
}

/// A word to recognise its name by, whose backslashes may be escaped themselves.
fn bare_text(word: &str) -> String {
    shell::bare(word).replace('\\', "")
}

fn is_plural(option: &str) -> bool {
    let name = option.to_ascii_lowercase();
    name.contains("keys") || name.contains("tokens") || name.ends_with("secrets")
}

/// Language of the text after `-c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    Shell,
    Code,
}

/// `--name`, `-n`, `--name=…`; not a negative number, nor a PEM block.
pub(super) fn is_option(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    let dashes = word.len() - name.len();
    let name = name.split('=').next().unwrap_or(name);
    (1..=2).contains(&dashes)
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// An option rather than the value of the secret before it: `--lr` and not `--S3CR3T`, which may be
/// either.
pub(super) fn is_clearly_option(word: &str) -> bool {
    let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
    is_option(word) && (name.len() <= 2 || name.chars().any(|c| c.is_ascii_lowercase()))
}

/// A program's name: `/usr/bin/python3.11` → python
fn program(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or(word);
    name.trim_start_matches('-').trim_end_matches(|c: char| c.is_ascii_digit() || c == '.')
}

/// Programs that take a command line or code after `-c` or `-e`.
fn language(program: &str) -> Option<Language> {
    match program {
        "sh" | "bash" | "dash" | "ash" | "zsh" | "ksh" | "mksh" | "fish" | "csh" | "tcsh"
        | "busybox" | "su" | "runuser" | "script" | "flock" => Some(Language::Shell),
        "python" | "pypy" | "perl" | "ruby" | "node" => Some(Language::Code),
        _ => None,
    }
}

const PROGRAMS: &str = "\
    env export cd source set sudo exec curl wget git pip wandb huggingface-cli hf aws gsutil ssh \
    srun sbatch mpirun docker kubectl nohup timeout time echo cat ray conda torchrun accelerate \
    deepspeed ranklaunch uv numactl nice test";

/// Whether a word is a program or a script.
fn is_command(word: &str) -> bool {
    let name = program(word);
    has(PROGRAMS, name)
        || language(name).is_some()
        || [".py", ".sh"].iter().any(|end| word.ends_with(end))
}

/// Whether a text with spaces is a command line rather than a sentence, by its first word.
pub(super) fn is_command_line(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    let assigns = first.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    });
    let name = program(first);
    is_option(first)
        || assigns
        || has(PROGRAMS, name)
        || language(name).is_some_and(|_| text.contains(" -"))
        || [".py", ".sh"].iter().any(|end| first.ends_with(end))
        || first.contains('/') && first.starts_with(['/', '.', '~'])
        || ["&&", "||", ";HF_", "$("].iter().any(|operator| text.contains(operator))
}
