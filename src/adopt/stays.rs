//! What ranklaunch would do by itself, but does something else as well: it stays.
//!
//! Takes the commands with the classes of the table; keeps redirections and pipes whose file another line names, traps
//! and kills of other programs, waits for something else than a node, and assignments that run a program.

use std::ops::Range;

use text::lang::Text;
use text::shell::{PartKind, parts};
use text::text;

use crate::classes::{Class, Note, NoteKind};
use crate::launch::is_redirection;
use crate::programs::{commands_in, names_a_launcher};
use crate::script::{Item, Part, Script};
use crate::shell::{self, ShellCommand};
use crate::words::base;

/// What became of a launch line's redirections.
#[derive(Default)]
pub(crate) struct Redirected {
    pub(crate) note: Option<Note>,
    /// A file of them is read later, so all of them stay.
    pub(crate) stay: bool,
}

impl Script {
    /// Output to files is no work of the launch line: each rank has its own. A file that another line names is.
    pub(crate) fn without_redirections(
        &mut self,
        part: Part<'_>,
        command: &ShellCommand,
    ) -> Redirected {
        let Part { text: inner, offset, whole, .. } = part;
        let mut places: Vec<Range<usize>> = Vec::new();
        let mut files: Vec<&str> = Vec::new();
        let mut spans = command.spans.iter().peekable();
        while let Some(span) = spans.next() {
            let source = inner.get(span.clone()).unwrap_or_default();
            if !is_redirection(source) || !source.contains('>') || source.starts_with('<') {
                continue;
            }
            let file = match source.ends_with('>') {
                true => spans.next(),
                false => None,
            };
            let end = file.map_or(span.end, |file| file.end);
            let name = file.and_then(|file| inner.get(file.clone()));
            files.push(
                name.unwrap_or(source)
                    .trim_start_matches(|c: char| c.is_ascii_digit() || matches!(c, '>' | '&')),
            );
            let before = inner.get(..span.start).unwrap_or_default();
            let mut lead = before.trim_end_matches([' ', '\t']);
            while let Some(line) = lead.strip_suffix("\\\n") {
                lead = line.trim_end_matches([' ', '\t']);
            }
            places.push(lead.len() + offset..end + offset);
        }
        files.retain(|file| !matches!(*file, "" | "1" | "2" | "-" | "/dev/null"));
        let (first, last) = (command.spans.first(), command.spans.last());
        let own = first.map_or(0, |it| it.start + offset)..last.map_or(0, |it| it.end + offset);
        if files.iter().any(|file| self.names_a_file(whole, &own, file)) {
            return Redirected { note: None, stay: true };
        }
        self.edits.extend(places.into_iter().map(|place| (place, String::new())));
        let shown = files.join(", ");
        let note = (!files.is_empty()).then(|| Note {
            kind: NoteKind::Changes,
            text: text!(
                "the output no longer goes to {shown}: each rank has its own file, and the console shows them",
                "输出不再写入 {shown}：每个 rank 各有文件，并显示在控制台"
            ),
        });
        Redirected { note, stay: false }
    }

    /// Whether a line outside of a place names a file, perhaps only by its last part.
    fn names_a_file(&self, whole: &str, own: &Range<usize>, file: &str) -> bool {
        if file.starts_with(['>', '<', '(']) {
            let inside = file.trim_matches(['>', '<', '(', ')']);
            let mut words = inside.split_whitespace();
            let tees = words.next() == Some("tee");
            let files = words.filter(|word| !word.starts_with(['-', '>', '&']));
            return !tees || files.into_iter().any(|file| self.names_a_file(whole, own, file));
        }
        let bare = |file: &str| base(file.trim_matches(['"', '\''])).replace(['{', '}'], "");
        let known = self.values.value(file).map(|file| bare(&file));
        let source = bare(file);
        let mut at = 0;
        whole.split_inclusive('\n').any(|line| {
            let place = at..at + line.len();
            at = place.end;
            let code = line.trim_start();
            let first = code.split([' ', '=']).next().unwrap_or_default();
            let assigns = code.get(first.len()..).is_some_and(|rest| rest.starts_with('='));
            let prints = matches!(first, "echo" | "printf") && !code.contains(['>', '|']);
            let inside = place.start < own.end && own.start < place.end;
            if code.starts_with('#') || prints {
                return false;
            }
            // A line of the launch itself may go on with another command.
            let line = match inside {
                true => whole.get(own.end.min(place.end)..place.end).unwrap_or_default(),
                false => line,
            };
            let line = line.replace(['{', '}'], "");
            let has = |name: &str| !name.is_empty() && line.contains(name);
            has(&source) && !(assigns && source.starts_with('$'))
                || (!assigns && known.as_deref().is_some_and(has))
        })
    }

    /// Keeps what its class says nothing about.
    pub(crate) fn keep(&mut self, text: &str) {
        let source = |item: &Item| text.get(item.span.clone()).unwrap_or_default();
        let launches: Vec<&str> =
            self.items.iter().filter(|it| !it.launches.is_empty()).map(source).collect();
        let launches = launches.join("\n");
        let mut kept = Vec::new();
        let (mut beside, mut last) = (false, "");
        let mut feeds_launch = false;
        for (at, item) in self.items.iter().enumerate() {
            let source = source(item);
            let first = base(source.split_whitespace().next().unwrap_or_default());
            let why = match first {
                _ if !item.assigns.is_empty() => (!prints_only(source)).then(|| {
                    text!(
                        "a command in it does more than print a value",
                        "其中的命令不只是输出一个值"
                    )
                }),
                "bash" | "sh" | "zsh" | "dash" if names_a_launcher(last) => Some(Text::same("")),
                _ if item.class != Class::Unnecessary => None,
                "tee" if !feeds_launch => {
                    Some(text!("it writes what another program says", "它写入的是其他程序的输出"))
                }
                "tee" => {
                    let files = source.split_whitespace().skip(1);
                    let mut files = files.filter(|word| !word.starts_with(['-', '>', '2']));
                    files
                        .any(|file| self.names_a_file(text, &item.span, file))
                        .then(|| text!("another line names its file", "另一行用到它的文件"))
                }
                "trap" => (!ends_only_ranks(source, &launches))
                    .then(|| text!("it does more than end the ranks", "它不只是结束各 rank")),
                "kill" | "pkill" | "killall" | "ps" | "pgrep" if !ends_ranks(source, &launches) => {
                    Some(text!("it ends another program", "它结束的是其他程序"))
                }
                "sleep" => (item.depth > 0 || beside || source.contains("inf"))
                    .then(|| text!("it waits for something else than a node", "它等待的不是节点")),
                _ if writes_a_file(source) => {
                    Some(text!("its output goes to a file", "其输出写入文件"))
                }
                _ if crate::commands::asks_for_a_peer(&[first.to_owned()])
                    && !is_about_node_0(source, &launches) =>
                {
                    Some(text!("it waits for something else than a node", "它等待的不是节点"))
                }
                _ => None,
            };
            feeds_launch = item.operator == "|" && (item.runs_launch || !item.launches.is_empty());
            beside |= item.operator == "&" && item.launches.is_empty();
            last = if item.operator == "|" && item.launches.is_empty() { source } else { "" };
            kept.extend(why.map(|why| (at, why, !item.assigns.is_empty())));
        }
        for (at, why, pinned) in kept {
            let Some(item) = self.items.get_mut(at) else { continue };
            item.pinned |= pinned;
            if why.en.is_empty() {
                (item.class, item.why) = crate::commands::composed();
            } else if item.class == Class::Unnecessary || pinned && item.launches.is_empty() {
                (item.class, item.why) = (Class::Kept, why);
            }
        }
    }
}

/// Programs that only print, whatever their words are.
#[rustfmt::skip]
const PRINTERS: &[&str] = &[
    "date", "hostname", "scontrol", "nvidia-smi", "rocm-smi", "pwd", "dirname", "basename", "readlink", "realpath",
    "cd", "wc", "head", "tail", "grep", "egrep", "awk", "sed", "cut", "tr", "sort", "uniq", "echo", "printf", "cat",
    "seq", "expr", "shuf", "nproc", "uname", "whoami", "id", "getent", "ip", "ifconfig", "ls", "which", "command",
    "jq", "test", "[", "[[", "bc", "rev", "lsof", "ss", "netstat", "if", "for", "in", "fi", "done", "true", "false",
    "ibdev2netdev", "nslookup", "host", "dig", "env", "printenv", "lscpu", "df", "du", "free", "ping", "nc",
];

/// Whether all commands in `$(…)` of a word only print.
fn prints_only(word: &str) -> bool {
    let in_parameters = |text: &str, quoted: bool| {
        parts(text, quoted).iter().filter(|part| part.kind == PartKind::Parameter).all(|part| {
            let inside = part.text.get(2..).unwrap_or_default();
            !inside.contains("$(") && !inside.contains('`')
        })
    };
    let doubles = parts(word, false).into_iter().filter(|part| part.kind == PartKind::Double);
    in_parameters(word, false)
        && doubles.into_iter().all(|part| in_parameters(part.text, true))
        && commands_in(word).into_iter().all(|place| {
            let inside = word.get(place).unwrap_or_default();
            // `$((…))`
            if inside.starts_with('(') && inside.ends_with(')') {
                return !inside.contains("++") && !inside.contains("--");
            }
            let Ok(commands) = shell::commands(inside) else { return false };
            commands.iter().all(|command| {
                let words: Vec<String> = command.words.iter().map(shell::Word::shown).collect();
                let sources = command.spans.iter().filter_map(|span| inside.get(span.clone()));
                prints(&words) && !writes_a_file(inside) && sources.into_iter().all(prints_only)
            })
        })
}

fn prints(words: &[String]) -> bool {
    let known = |word: &String| PRINTERS.contains(&base(word));
    let first = words.first().map(|word| base(word)).unwrap_or_default();
    let text = words.join(" ");
    match first {
        "sed" => !text.contains(" -i") && !text.contains("--in-place"),
        "awk" => !text.contains("system(") && !text.contains('>'),
        "srun" | "ssh" => words.iter().skip(1).any(known),
        "xargs" => words.len() == 1,
        "<" => true,
        _ if first.starts_with("python") => {
            words.get(1).is_some_and(|word| word == "-c")
                && (text.contains("device_count()") || text.contains("import socket"))
                && !text.contains("open(")
                && !text.contains("os.")
        }
        _ => words.first().is_some_and(known),
    }
}

/// `> file`, but not `2>&1` and `> /dev/null`.
fn writes_a_file(source: &str) -> bool {
    let Ok(commands) = shell::commands(source) else { return source.contains('>') };
    commands.iter().any(|command| {
        let words: Vec<&str> =
            command.spans.iter().filter_map(|span| source.get(span.clone())).collect();
        words.iter().enumerate().any(|(at, word)| {
            let file = match word.ends_with('>') {
                true => words.get(at + 1).copied().unwrap_or_default(),
                false => word.rsplit(['>', '&']).next().unwrap_or_default(),
            };
            is_redirection(word)
                && word.contains('>')
                && !matches!(file, "/dev/null" | "1" | "2" | "-" | "&1" | "&2")
        })
    })
}

/// Whether the command, with what reads its output, ends nothing but ranks, or ends nothing.
fn ends_ranks(source: &str, launches: &str) -> bool {
    let words = source.split(|c: char| c.is_whitespace() || "\"'|();`".contains(c));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    if !words.iter().any(|word| word.contains("kill")) {
        return true;
    }
    words.iter().any(|word| {
        let bare = base(word).replace(['[', ']', '^'], "");
        let is_name = bare.len() > 2
            && !bare.starts_with('-')
            && !bare.contains("kill")
            && !["awk", "grep", "xargs", "aux", "print", "sudo"].contains(&bare.as_str());
        (is_name && launches.contains(&bare))
            || ["torch", "python", "accelerate", "deepspeed", "ranklaunch", "lsof", "/dev/nvidia"]
                .iter()
                .any(|name| word.contains(name))
    })
}

/// Whether a trap ends the job and does nothing else.
fn ends_only_ranks(source: &str, launches: &str) -> bool {
    let read = shell::commands(source).unwrap_or_default();
    let body = read.first().and_then(|command| command.words.get(1));
    let body = body.map(shell::Word::shown).unwrap_or_default();
    let commands = shell::commands(&body).unwrap_or_default();
    !commands.is_empty()
        && commands.iter().all(|command| {
            let words: Vec<String> = command.words.iter().map(shell::Word::shown).collect();
            let text = words.join(" ");
            match words.first().map(|word| base(word)).unwrap_or_default() {
                "wait" | "exit" | "true" | ":" => true,
                "kill" | "pkill" | "killall" => {
                    let group = ["0", "-$$", "$$", "$(jobs -p)"];
                    words.iter().any(|word| group.contains(&word.as_str()))
                        || ends_ranks(&text, launches)
                }
                _ => false,
            }
        })
}

/// Whether a wait is for the address or the port that the launch lines name.
pub(crate) fn is_about_node_0(source: &str, launches: &str) -> bool {
    let words = source.split(|c: char| c.is_whitespace() || "\"':;{}".contains(c));
    words.into_iter().any(|word| {
        let name = word.trim_start_matches('$');
        ["MASTER", "RDZV", "HEAD", "head_node", "29500"].iter().any(|mark| word.contains(mark))
            || (name.len() > 2
                && (word.starts_with('$')
                    || name.contains(['.', '-'])
                    || name.parse::<u16>().is_ok())
                && !name.starts_with('-')
                && launches.contains(name))
    })
}
