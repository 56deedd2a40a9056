//! `ranklaunch explain`: prints the meaning of an id or an exit code, or the cause of a failure.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::Path;

use super::explain_logs;
use super::output::{print, refuse, show, terminal_width};
use crate::causes::catalogue_with;
use diagnose::{Catalogue, catalogue};
use linux::host::Host;
use report::findings::{self, ExitCode, Id, Subject};
use settings::cli;
use text::lang::{Lang, Text};
use text::nearest::nearest;
use text::text;
use verdict::Refusal;

/// Prints the explanations, and returns the exit code.
pub(crate) fn explain(asked: &cli::Explain, lang: Lang) -> i32 {
    let options = cli::Options {
        color: asked.color.clone(),
        profile: asked.profile.clone(),
        ..cli::Options::default()
    };
    if let Err(refusal) = options.checked_color(&Host::live()) {
        return refuse(&refusal, lang);
    }
    let catalogue = match catalogue_of(&options) {
        Ok(catalogue) => catalogue,
        Err(refusal) => return refuse(&refusal, lang),
    };
    let known: Vec<Option<Subject>> =
        asked.ids.iter().map(|word| subject(word, catalogue)).collect();
    let is_log = |(word, known): (&OsString, &Option<Subject>)| known.is_none() && names_log(word);
    if asked.ids.iter().zip(&known).any(is_log) {
        return match all_logs(&asked.ids, &known) {
            Ok(()) => explain_logs::explain(&asked.ids, catalogue, asked.format, lang),
            Err(refusal) => refuse(&refusal, lang),
        };
    }
    let both = asked.ids.iter().zip(known);
    let subjects: Result<Vec<Subject>, Refusal> =
        both.map(|(word, known)| known.ok_or_else(|| unknown(word, catalogue))).collect();
    let subjects = match subjects {
        Ok(subjects) => subjects,
        Err(refusal) => return refuse(&refusal, lang),
    };
    match (asked.format, subjects.is_empty()) {
        (cli::AnnotatedFormat::Json, true) => {
            let all: Vec<Subject> = Id::ALL.iter().copied().map(Subject::Id).collect();
            print(format!("{:#}\n", findings::explained_json(&all, lang)));
        }
        (cli::AnnotatedFormat::Json, false) => {
            print(format!("{:#}\n", findings::explained_json(&subjects, lang)));
        }
        // Explanations do not belong to a line of a file, so they are not annotations.
        (cli::AnnotatedFormat::Text | cli::AnnotatedFormat::Github, true) => {
            show(&findings::list(lang, terminal_width()));
        }
        (cli::AnnotatedFormat::Text | cli::AnnotatedFormat::Github, false) => {
            show(&findings::explained_text(&subjects, lang, terminal_width()));
        }
    }
    0
}

/// The failures that are known by name, with the rows of `--profile`.
fn catalogue_of(options: &cli::Options) -> Result<&'static Catalogue, Refusal> {
    if options.profile.is_none() {
        return Ok(catalogue());
    }
    let extended = catalogue_with(&options.diagnose_rows(&Host::live())?)?;
    Ok(extended.unwrap_or_else(|| catalogue()))
}

/// Meaning of a word that is not a log. An id wins over a file of the same name: `./86` is the
/// file.
fn subject<'c>(word: &OsStr, catalogue: &'c Catalogue) -> Option<Subject<'c>> {
    let word = word.to_str()?;
    let id = word.parse().ok().map(Subject::Id);
    let code = || word.parse::<ExitCode>().ok().map(Subject::Code);
    let failure =
        || catalogue.by_id(word).and_then(|index| catalogue.row(index)).map(Subject::Failure);
    id.or_else(code).or_else(failure)
}

/// Whether a log is meant. An existing log that cannot be reached counts: its own error says more.
fn names_log(word: &OsStr) -> bool {
    use ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    const ABSENT: &[ErrorKind] = &[NotFound, NotADirectory, InvalidFilename, InvalidInput];
    word == "-"
        || match Path::new(word).symlink_metadata() {
            Ok(_) => true,
            Err(error) => !ABSENT.contains(&error.kind()),
        }
}

fn all_logs(words: &[OsString], known: &[Option<Subject>]) -> Result<(), Refusal> {
    for (word, known) in words.iter().zip(known) {
        let shown = word.to_string_lossy();
        let shown = shown.escape_debug();
        let text = if known.is_some() {
            text!(
                "`{shown}` is not a log, and it stands beside logs",
                "`{shown}` 不是日志，却与日志写在了一起"
            )
        } else if !names_log(word) {
            text!("there is no log `{shown}`", "没有日志 `{shown}`")
        } else {
            continue;
        };
        let hint = text!(
            "name the logs of one job, or ids and exit codes, in one call",
            "一次调用请只写同一任务的日志，或只写 ID 与退出码"
        );
        return Err(Refusal::new(Id::ExplainUnknown, text, hint));
    }
    Ok(())
}

fn unknown(word: &OsStr, catalogue: &Catalogue) -> Refusal {
    let shown = word.to_string_lossy();
    let shown = shown.escape_debug();
    let text = text!(
        "`{shown}` is not an id, not an exit code from 0 to 255 and not a log",
        "`{shown}` 既不是 ID，也不是 0 到 255 的退出码，也不是日志文件"
    );
    Refusal::new(Id::ExplainUnknown, text, meant(&word.to_string_lossy(), catalogue))
}

/// A suggestion: the id behind a typing error, or the ids of the named family.
fn meant(word: &str, catalogue: &Catalogue) -> Text {
    let all = || {
        let failures = catalogue.rows().iter().map(|row| row.id.as_str());
        Id::ALL.iter().map(|id| id.as_str()).chain(failures)
    };
    if let Some(near) = nearest(word, all()) {
        return text!("did you mean {near}?", "是否想写 {near}？");
    }
    let word = word.trim_end_matches('.');
    let family: Vec<&str> = all()
        .filter(|id| id.strip_prefix(word).is_some_and(|rest| rest.starts_with('.')))
        .collect();
    if word.is_empty() || family.is_empty() {
        return list_hint();
    }
    let family = family.join(", ");
    text!("there are {family}", "可用的有 {family}")
}

fn list_hint() -> Text {
    text!(
        "ranklaunch explain lists all ids; the id is in brackets after the exit code of a message",
        "ranklaunch explain 列出全部 ID；ID 写在消息中退出码之后的括号里"
    )
}
