//! One launch line: the launcher in a command, what its options say, and the line that replaces it.
//!
//! Takes a command's words with their places, and the values of the script's variables; gives the options of ranklaunch
//! as a script writes them, and where the program of the ranks begins, whose words stay as they are.

use std::ops::Range;

use settings::launchers::{FlagField, Launcher, LauncherKind, PythonRun, command_at};
use text::text;

use crate::accelerate::add_config;
use crate::classes::{Note, NoteKind};
use crate::options::{ACCELERATE_NEEDLESS, needless, torchrun_option};
use crate::sizes::{self, Around, Said, Sizes};
use crate::values::{Expanded, Values, origin};
use crate::words::{base, quoted};

/// Stands for what only a running shell knows; equals no name.
const UNKNOWN: char = '\u{E000}';

/// A launch, read.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) launcher: &'static str,
    /// The line in place of the launcher and its options, up to the program.
    pub(crate) line: String,
    /// Place of what `line` replaces.
    pub(crate) replaces: Range<usize>,
    pub(crate) sizes: Sizes,
    /// Words of ranklaunch, if all are known: options, then `--` and the program.
    pub(crate) argv: Option<Vec<String>>,
    /// Arguments of the engine accelerate.
    pub(crate) engine_args: Vec<String>,
    /// The program is no Python script, by a switch of the launcher.
    pub(crate) is_command: bool,
    pub(crate) notes: Vec<Note>,
    /// srun or mpirun starts it on each node.
    pub(crate) is_carried: bool,
    /// Each of its tasks is one rank.
    pub(crate) is_tasks: bool,
}

/// A word after expansion, with the word that it is of.
struct Piece {
    expanded: Expanded,
    word: usize,
    first: bool,
}

/// Programs that start the command behind their own options, perhaps elsewhere.
#[rustfmt::skip]
const CARRIERS: &[&str] = &[
    "ssh", "pdsh", "docker", "podman", "singularity", "apptainer", "kubectl", "enroot", "flock", "uv",
    "sbatch", "salloc", "bsub", "qsub", "ray", "numactl", "watch", "script", "accelerate",
];

/// The launch of a command, if it is one.
pub(crate) fn read(script: &str, spans: &[Range<usize>], around: Around<'_>) -> Option<Launch> {
    let values = around.values;
    let mut pieces = Vec::new();
    for (word, span) in spans.iter().enumerate() {
        let source = script.get(span.clone())?;
        let expanded = values.words(source).into_iter().enumerate();
        pieces.extend(expanded.map(|(at, expanded)| Piece { expanded, word, first: at == 0 }));
    }
    let argv: Vec<String> = pieces.iter().map(|piece| seen(piece, values)).collect();
    let known = |piece: &Piece| piece.expanded.value.is_some() || !piece.expanded.several;
    let unknown = pieces.iter().take_while(|piece| !known(piece)).count();
    // What is before a launcher and only a running shell knows may be nothing, or a prefix.
    let behind = || {
        let (kind, at, from) = found(argv.get(unknown..)?)?;
        (at == 0 && unknown > 0).then_some((kind, unknown, from + unknown))
    };
    let (kind, at, from) = found(&argv).or_else(behind)?;
    let start = spans.get(pieces.get(at)?.word)?.start;
    let end = spans.last()?.end;
    let is_prefixed = pieces.iter().take(at).any(|piece| !known(piece));
    match kind {
        Found::Launcher(row) => {
            let (mut said, program) = said(row, &pieces, &argv, from);
            let mut notes = Vec::new();
            if row.kind == LauncherKind::Accelerate {
                add_config(&mut said, around.files, &mut notes);
            }
            let program = program.filter(|at| *at < pieces.len());
            // A launcher at the end of a variable's text goes on elsewhere.
            if program.is_none() && !around.quoted {
                return None;
            }
            let range = start..end;
            let launch =
                written(script, spans, &pieces, &argv, row, &said, range, program, around, notes)?;
            // A profile has no place for the prefix.
            Some(Launch { argv: launch.argv.filter(|_| !is_prefixed), ..launch })
        }
        Found::Tasks(run) => {
            let program = from + run;
            let words = argv.get(at..).unwrap_or_default();
            let module = words.iter().take(run + 1).any(|word| word == "-m");
            let said = Said { module, ..Said::default() };
            let sizes = Sizes::default();
            let (line, replaces) = line_of(
                script,
                spans,
                &pieces,
                &["--engine direct".into()],
                start..end,
                program,
                &said,
            )?;
            let launcher =
                if argv.iter().any(|word| base(word) == "srun") { "srun" } else { "mpirun" };
            let notes = Vec::new();
            Some(Launch {
                launcher,
                line,
                replaces,
                sizes,
                argv: None,
                engine_args: Vec::new(),
                is_command: false,
                notes,
                is_carried: true,
                is_tasks: true,
            })
        }
    }
}

/// A word as a program gets it, approximately: a default counts for an unset variable.
fn seen(piece: &Piece, values: &Values) -> String {
    if let Some(value) = &piece.expanded.value {
        return value.clone();
    }
    let source = &piece.expanded.source;
    let origin = origin(source, values);
    let inside = origin.trim_matches('"').strip_prefix("${").and_then(|it| it.strip_suffix('}'));
    let default = inside.and_then(|it| Some(it.split_once(":-").or(it.split_once('-'))?.1));
    match default.and_then(|default| values.value(default)).filter(|it| !it.is_empty()) {
        Some(default) => default,
        // The name of an option or a variable is known, though not its value.
        None if !source.trim_start_matches('"').starts_with(['$', '`']) => {
            let quoted = source.strip_prefix('"').and_then(|inside| inside.strip_suffix('"'));
            quoted.unwrap_or(source).to_owned()
        }
        None => format!("{UNKNOWN}{source}"),
    }
}

enum Found {
    Launcher(&'static Launcher),
    /// One task per process, by srun or mpirun; the number of words from python to its program.
    Tasks(usize),
}

/// The launcher in a command line: its row, its own position, and that of its first argument.
fn found(argv: &[String]) -> Option<(Found, usize, usize)> {
    let at = command_at(argv);
    let rest = argv.get(at..)?;
    let is_read = |row: &Launcher| {
        matches!(
            row.kind,
            LauncherKind::Torchrun | LauncherKind::Accelerate | LauncherKind::Deepspeed
        )
    };
    let own = |from: usize| {
        let words = argv.get(from..)?;
        let first = base(words.first()?);
        let (row, next) = Launcher::of_argv(words)?;
        let here = row.names.contains(&first) || PythonRun::is_by(first) || first == "-m";
        (here && is_read(row)).then_some((Found::Launcher(row), from, from + next))
    };
    if let Some(found) = own(at) {
        return Some(found);
    }
    let first = base(rest.first()?);
    let outer = Launcher::of_argv(rest).map(|(row, _)| row.kind);
    let starts_tasks = outer == Some(LauncherKind::Anywhere) && first != "ray";
    let behind = rest.iter().position(|word| word == "--").map(|dashes| at + dashes + 1);
    let carried = starts_tasks || CARRIERS.contains(&first);
    let inner =
        (at + 1..argv.len()).filter(|inner| carried || behind.is_some_and(|from| *inner >= from));
    if let Some(found) =
        inner.filter(|at| argv.get(*at).is_some_and(|w| !w.starts_with('-'))).find_map(own)
    {
        return Some(found);
    }
    if !starts_tasks {
        return None;
    }
    (at + 1..argv.len()).find_map(|python| {
        if !PythonRun::is_by(base(argv.get(python)?)) {
            return None;
        }
        let run = PythonRun::of(argv.get(python + 1..)?)?;
        Some((Found::Tasks(run.at), python, python + 1))
    })
}

/// Reads the launcher's own words; gives also the position of its program.
fn said(row: &Launcher, pieces: &[Piece], argv: &[String], from: usize) -> (Said, Option<usize>) {
    let mut said = Said::default();
    let mut at = from;
    while let (Some(piece), Some(word)) = (pieces.get(at), argv.get(at)) {
        let source = &piece.expanded.source;
        if word.starts_with(UNKNOWN) && piece.expanded.several {
            let later = argv.get(at + 1..).unwrap_or_default();
            let options = later.iter().take_while(|word| !word.starts_with("--") || word.len() > 2);
            let program_follows = options
                .into_iter()
                .any(|word| word.ends_with(".py") || word == "-m" || word == "--module");
            if program_follows {
                said.unread.push(piece.expanded.clone());
                at += 1;
                continue;
            }
        }
        at += 1;
        if word == "--" {
            continue;
        }
        if !word.starts_with('-') || word == "-" {
            return (said, Some(at - 1));
        }
        let (flag, attached) = match (word.split_once('='), source.split_once('=')) {
            (Some((flag, value)), Some((_, source))) => {
                let value = piece.expanded.value.is_some().then(|| value.to_owned());
                let several = piece.expanded.several;
                // The quote around all of the word is around its value.
                let quote = if piece.expanded.source.starts_with('"') { "\"" } else { "" };
                (flag, Some(Expanded { source: format!("{quote}{source}"), value, several }))
            }
            // The option is the text of a quoted variable.
            (Some((flag, value)), None) if !word.starts_with(UNKNOWN) => {
                let (source, value) = (quoted(value), Some(value.to_owned()));
                (flag, Some(Expanded { source, value, several: false }))
            }
            _ => (word.as_str(), None),
        };
        let flag = flag.replace('_', "-");
        if flag == "-m" || flag == "--module" {
            said.module = true;
            continue;
        }
        let next = argv.get(at).filter(|next| !next.starts_with('-') && !next.ends_with(".py"));
        let value = match attached {
            Some(value) => Some(value),
            None if row.switches.contains(&flag.as_str()) => None,
            None => next.and_then(|_| pieces.get(at)).map(|piece| {
                at += 1;
                piece.expanded.clone()
            }),
        };
        match row.flags.iter().find(|(known, _)| *known == flag) {
            Some((_, field)) if *field != FlagField::ConfigFile => {
                let empty = Expanded { source: String::new(), value: None, several: false };
                said.fields.insert(*field, value.unwrap_or(empty));
            }
            _ => said.others.push((flag, value)),
        }
    }
    (said, None)
}

/// The place of the launcher's words and the text for it.
fn line_of(
    script: &str,
    spans: &[Range<usize>],
    pieces: &[Piece],
    options: &[String],
    all: Range<usize>,
    program: usize,
    said: &Said,
) -> Option<(String, Range<usize>)> {
    let mut line = String::from("ranklaunch");
    for option in options {
        line.push(' ');
        line.push_str(option);
    }
    line.push_str(if said.module { " -- -m" } else { " --" });
    let Some(piece) = pieces.get(program) else { return Some((line, all)) };
    line.push(' ');
    if piece.first {
        return Some((line, all.start..spans.get(piece.word)?.start));
    }
    // The program is inside a variable that also holds options.
    let rest = pieces.iter().skip(program).take_while(|one| one.word == piece.word);
    let rest: Vec<&str> = rest.map(|one| one.expanded.source.as_str()).collect();
    line.push_str(&rest.join(" "));
    let end = spans.get(piece.word)?.end;
    debug_assert!(script.is_char_boundary(end));
    Some((line, all.start..end))
}

#[expect(clippy::too_many_arguments, reason = "the parts of one line, read by its only caller")]
fn written(
    script: &str,
    spans: &[Range<usize>],
    pieces: &[Piece],
    argv: &[String],
    row: &'static Launcher,
    said: &Said,
    all: Range<usize>,
    program: Option<usize>,
    around: Around<'_>,
    mut notes: Vec<Note>,
) -> Option<Launch> {
    let is_carried =
        argv.iter().any(|word| ["srun", "mpirun", "mpiexec", "pdsh"].contains(&base(word)));
    let sizes = sizes::of(row.kind, said, around, is_carried, &mut notes);
    let mut options = sizes.options.clone();
    let mut engine_args = Vec::new();
    let mut lost = false;
    options.extend(interpreter(script, spans, pieces, argv, &all));
    for (flag, value) in &said.others {
        let known = value.as_ref().is_none_or(|value| value.value.is_some());
        match row.kind {
            LauncherKind::Accelerate if !ACCELERATE_NEEDLESS.contains(&flag.as_str()) => {
                lost |= !known;
                engine_args
                    .push(flag.replacen("--", "\u{0}", 1).replace('-', "_").replace('\u{0}', "--"));
                engine_args.extend(value.as_ref().and_then(|value| value.value.clone()));
            }
            LauncherKind::Torchrun => {
                torchrun_option(flag, value.as_ref(), &mut options, &mut notes)
            }
            // The hosts have a note of their own.
            _ if value.as_ref().is_some_and(|value| value.source.contains('@')) => {}
            _ => notes.push(needless(flag, value.as_ref(), row.kind)),
        }
    }
    let passes_rank = match row.kind {
        LauncherKind::Deepspeed => true,
        _ => argv.iter().any(|word| word == "torch.distributed.launch") && !used_env(said),
    };
    if passes_rank {
        notes.push(Note {
            kind: NoteKind::Changes,
            text: text!(
                "no rank gets --local_rank; a script that reads it from its arguments takes LOCAL_RANK",
                "rank 不会再收到 --local_rank；从参数读取它的脚本应改读 LOCAL_RANK"
            ),
        });
    }
    for word in &said.unread {
        let source = &word.source;
        options.push(source.clone());
        notes.push(Note {
            kind: NoteKind::NotUnderstood,
            text: text!(
                "only the running shell knows the options in {source}; they are passed on",
                "{source} 中的选项只有运行时的 shell 才知道，已原样传递"
            ),
        });
    }
    let other = !engine_args.is_empty()
        && !around.engine_args.is_empty()
        && engine_args != around.engine_args;
    if other {
        notes.push(Note {
            kind: NoteKind::NotUnderstood,
            text: text!(
                "its options of accelerate are not those of the profile, so accelerate launch stays; adopt this line alone",
                "其 accelerate 选项与配置文件中的不同，因此保留 accelerate launch；请单独 adopt 该行"
            ),
        });
    }
    if row.kind == LauncherKind::Accelerate {
        let profile = around.profile;
        let engine = match engine_args.is_empty() {
            true => "--engine accelerate".to_owned(),
            false => format!("--profile {profile}"),
        };
        options.insert(0, engine);
    }
    let start = all.start;
    let (mut line, mut replaces) =
        line_of(script, spans, pieces, &options, all, program.unwrap_or(pieces.len()), said)?;
    if !sizes.visible.is_empty() {
        let env = if start == spans.first()?.start { "" } else { "env " };
        line = format!("{env}CUDA_VISIBLE_DEVICES={} {line}", sizes.visible);
    }
    if lost || other {
        line = "ranklaunch --engine command -- ".to_owned();
        replaces = start..start;
        engine_args.clear();
    }
    if lost {
        notes.push(Note {
            kind: NoteKind::NotUnderstood,
            text: text!(
                "options of accelerate hold values that only the running shell knows, so accelerate launch stays",
                "accelerate 的选项含有只有运行时的 shell 才知道的值，因此保留 accelerate launch"
            ),
        });
    }
    // A profile has no place for the GPUs that the launcher sees.
    let is_known = !lost && !other && sizes.visible.is_empty();
    let argv = is_known.then(|| known_words(&options, pieces, program?, said, around)).flatten();
    let launcher = row.names.first().copied().unwrap_or_default();
    Some(Launch {
        launcher,
        line,
        replaces,
        sizes,
        argv,
        engine_args,
        is_command: said.others.iter().any(|(flag, _)| flag == "--no-python"),
        notes,
        is_carried,
        is_tasks: false,
    })
}

/// `--python` for a launcher or a Python that is named by its folder.
fn interpreter(
    script: &str,
    spans: &[Range<usize>],
    pieces: &[Piece],
    argv: &[String],
    all: &Range<usize>,
) -> Option<String> {
    let is_first = |piece: &Piece| spans.get(piece.word).is_some_and(|it| it.start == all.start);
    let at = pieces.iter().position(is_first)?;
    let (piece, word) = (pieces.get(at)?, argv.get(at)?);
    let source = script.get(spans.get(piece.word)?.clone())?;
    let folder = word.strip_suffix(base(word)).filter(|folder| !folder.is_empty())?;
    if PythonRun::is_by(base(word)) {
        let source = if word.starts_with(UNKNOWN) { source } else { &piece.expanded.source };
        return Some(format!("--python {source}"));
    }
    let folder = match piece.expanded.value {
        Some(_) => quoted(&format!("{folder}python")),
        None => format!("{}python", source.strip_suffix(base(word))?),
    };
    Some(format!("--python {folder}"))
}

fn used_env(said: &Said) -> bool {
    said.others.iter().any(|(flag, _)| flag == "--use-env")
}

/// The words of ranklaunch, if all are known.
fn known_words(
    options: &[String],
    pieces: &[Piece],
    program: usize,
    said: &Said,
    around: Around<'_>,
) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for option in options {
        for word in option.split(' ') {
            words.push(around.values.value(word)?);
        }
    }
    words.push("--".to_owned());
    words.extend(said.module.then(|| "-m".to_owned()));
    let mut skip = false;
    for piece in pieces.get(program..)? {
        let source = piece.expanded.source.as_str();
        if std::mem::take(&mut skip) {
            continue;
        }
        if is_redirection(source) {
            if source.contains('<') {
                return None;
            }
            skip = source.ends_with(['>', '<']);
            continue;
        }
        if has_pattern(source) {
            return None;
        }
        words.push(piece.expanded.value.clone()?);
    }
    Some(words)
}

/// `>`, `2>&1`, `&>file`
pub(crate) fn is_redirection(source: &str) -> bool {
    let bare = source.trim_start_matches(|c: char| c.is_ascii_digit());
    let passes_a_pipe = bare.starts_with(">(") || bare.starts_with("<(");
    !passes_a_pipe && (bare.starts_with(['>', '<']) || bare.starts_with("&>"))
}

/// Whether a shell would replace the word by names of files, or by several words.
fn has_pattern(source: &str) -> bool {
    let bare: String = text::shell::parts(source, false)
        .iter()
        .filter(|part| part.kind == text::shell::PartKind::Literal)
        .map(|part| part.text)
        .collect();
    let counts = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    // `832*480` is a size.
    let star = bare.split_once('*').is_some_and(|(before, after)| {
        !(counts(before.chars().last()) && counts(after.chars().next()))
    });
    bare.starts_with('~')
        || bare.contains(['?', '['])
        || star
        || (bare.contains('{') && bare.contains([',', '.']))
}
