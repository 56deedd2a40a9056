//! `ranklaunch explain`: prints the meaning of an id or an exit code, or the cause of a job's failure, from its
//! logs.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::path::Path;

use serde_json::Value;

use super::output::{print, show, terminal_width, warn};
use crate::open::catalogue_with;
use diagnose::{
    Catalogue, Diagnosis, Evidence, LogScan, Scanned, catalogue, diagnose_knowing,
    recorded_exception,
};
use linux::host::Host;
use linux::regular_file;
use report::diagnosis_view::{Unread, View};
use report::findings::{self, ExitCode, Id, Subject};
use report::hang_view::HangView;
use report::runs::named::Named;
use report::runs::records::{OwnRecords, Stated};
use report::runs::streams::{LogFile, Opened, RecorderFiles, words};
use report::runs::{named, records, streams};
use settings::cli::AnnotatedFormat;
use settings::{Source, cli};
use supervise::LARGEST_RECORD;
use text::columns::{columns, end_within};
use text::lang::{Lang, Text, cause};
use text::nearest::nearest;
use text::text;
use verdict::{Confidence, Refusal};

/// Prints the explanations, and returns the exit code.
pub(crate) fn explain(asked: &cli::Explain, lang: Lang) -> Result<i32, Refusal> {
    let options = cli::Options {
        color: asked.color.clone(),
        profile: asked.profile.clone(),
        ..cli::Options::default()
    };
    options.checked_color(&Host::live())?;
    let catalogue = catalogue_of(&options, lang)?;
    let known: Vec<Option<Subject>> =
        asked.ids.iter().map(|word| subject(word, catalogue)).collect();
    let is_log = |(word, known): (&OsString, &Option<Subject>)| known.is_none() && names_log(word);
    if asked.ids.iter().zip(&known).any(is_log) {
        all_logs(&asked.ids, &known)?;
        return explain_logs(&asked.ids, catalogue, asked.format, lang);
    }
    let both = asked.ids.iter().zip(known);
    let subjects: Vec<Subject> = both
        .map(|(word, known)| known.ok_or_else(|| unknown(word, catalogue)))
        .collect::<Result<_, Refusal>>()?;
    match asked.format {
        AnnotatedFormat::Json => {
            let all = || Id::ALL.iter().copied().map(Subject::Id).collect();
            let subjects = if subjects.is_empty() { all() } else { subjects };
            print(format!("{:#}\n", findings::explained_json(&subjects, lang)));
        }
        // Explanations do not belong to a line of a file, so they are not annotations.
        _ if subjects.is_empty() => show(&findings::list(lang, terminal_width())),
        _ => show(&findings::explained_text(&subjects, lang, terminal_width())),
    }
    Ok(0)
}

/// The failures that are known by name, with the rows of the platform's file and of the profile. Only a flaw of
/// `--profile` is refused.
fn catalogue_of(options: &cli::Options, lang: Lang) -> Result<&'static Catalogue, Refusal> {
    let mut warnings = Vec::new();
    let mut rows = options.diagnose_rows(&Host::live(), &mut warnings)?;
    let extended = catalogue_with(&rows).or_else(|flaw| {
        let is_asked = |source: &Source| matches!(source, Source::Profile { .. });
        rows.retain(|row| options.profile.is_some() && is_asked(&row.source));
        let of_profile = catalogue_with(&rows)?;
        warnings.push(flaw.into());
        Ok::<_, Refusal>(of_profile)
    })?;
    warnings.iter().for_each(|warning| warn(warning, lang));
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
        return text!(
            "ranklaunch explain lists all ids; the id is in brackets after the exit code of a message",
            "ranklaunch explain 列出全部 ID；ID 写在消息中退出码之后的括号里"
        );
    }
    let family = family.join(", ");
    text!("there are {family}", "可用的有 {family}")
}

/// Number of bytes that are read at once.
const CHUNK: usize = 256 * 1024;
/// A smaller file is read before anybody could see a progress line.
const WORTH_PROGRESS: u64 = 64 * 1024 * 1024;

/// The row of a watchdog that waited for a collective until its time-out, so that the job stood
/// still for that long.
const WATCHDOG: &str = "watchdog_timeout";

/// Result of reading the named logs.
struct Input {
    logs: Vec<Scanned>,
    /// The dumps of torch's flight recorder among them.
    recorder: RecorderFiles,
    /// Logs that could not be read, or not to their ends.
    unread: Vec<Unread>,
    notes: Vec<Text>,
    /// Records of ranklaunch about the end.
    records: OwnRecords,
}

/// The exit code: 0 whatever the cause, since the question was answered.
fn explain_logs(
    words: &[OsString],
    catalogue: &Catalogue,
    format: AnnotatedFormat,
    lang: Lang,
) -> Result<i32, Refusal> {
    let mut input = read(words, catalogue)?;
    let mut diagnosis = diagnosis(catalogue, &mut input);
    let Input { logs, recorder, unread, mut notes, records } = input;
    notes.extend(recorder.notes.iter().cloned());
    let has_timed_out =
        |one: &Evidence| catalogue.row(one.row).is_some_and(|row| row.id == WATCHDOG);
    let stood_still = diagnosis.findings.iter().any(has_timed_out);
    let shown = (!recorder.is_empty()).then(|| recorder.show(stood_still));
    let hang = shown.as_ref().map(|(hang, late)| HangView { hang, late });
    // The cause may be in the unread part.
    if let Some(cause) = diagnosis.cause.as_mut().filter(|_| !unread.is_empty()) {
        cause.why.confidence = cause.why.confidence.min(Confidence::Likely);
    }
    let view = View {
        catalogue,
        diagnosis: &diagnosis,
        logs: &logs,
        unread: &unread,
        notes: &notes,
        verdicts: &records.verdicts,
        unended: &records.unended,
        standstills: &records.standstills,
    };
    match format {
        AnnotatedFormat::Text => {
            let verdicts = view.verdicts(lang, terminal_width());
            show(&(verdicts + &both(view, hang, lang, terminal_width())));
        }
        AnnotatedFormat::Json => {
            let mut json = view.json(lang);
            let hangs: Vec<Value> = hang.map(|hang| hang.json(lang)).into_iter().collect();
            if let Some(json) = json.as_object_mut() {
                json.insert("hang".to_owned(), Value::Array(hangs));
            }
            print(format!("{json:#}\n"));
        }
        AnnotatedFormat::Github => {
            let hang = hang.map_or_else(String::new, |hang| hang.github(lang));
            print(view.github(lang) + &hang);
        }
    }
    Ok(0)
}

/// Text about the logs and the dumps. The part that names a cause comes first.
fn both(view: View<'_>, hang: Option<HangView<'_>>, lang: Lang, width: Option<usize>) -> String {
    let Some(hang) = hang else { return view.text(lang, width) };
    let hang = hang.text(lang, width);
    if view.logs.is_empty() {
        return hang + &view.reading(lang, width);
    }
    let logs = view.text(lang, width);
    if view.diagnosis.cause.is_some() {
        format!("{logs}\n{hang}")
    } else {
        format!("{hang}\n{logs}")
    }
}

fn diagnosis(catalogue: &Catalogue, input: &mut Input) -> Diagnosis {
    let Input { logs, records, .. } = input;
    let mut diagnosis = diagnose_knowing(catalogue, logs, &records.known);
    let differs = |diagnosis: &Diagnosis| {
        let recorded = records.known.recorded.as_ref();
        recorded
            .is_some_and(|one| diagnosis.cause.as_ref().is_none_or(|cause| cause.why.id != one.id))
    };
    if differs(&diagnosis)
        && let Some(stated) = records.cause.take()
    {
        // The log of this statement is missing or cut.
        logs.push(scan_statement(catalogue, logs.len(), stated));
        diagnosis = diagnose_knowing(catalogue, logs, &records.known);
    }
    diagnosis.failed |= records.known.has_failed;
    diagnosis.done = !diagnosis.failed && (diagnosis.done || records.known.blameless);
    diagnosis
}

fn scan_statement(catalogue: &Catalogue, number: usize, stated: Stated) -> Scanned {
    let Stated { origin, line, text } = stated;
    let mut scan = LogScan::new(catalogue, number, origin);
    scan.feed_record(number, line, None, &text);
    scan.finish()
}

/// Scans the record of torch's `@record` about the exception that ended a rank.
fn scan_record(catalogue: &Catalogue, number: usize, file: &LogFile) -> Result<Scanned, Text> {
    let path = file.path.as_deref().unwrap_or(Path::new(""));
    let bytes = regular_file::read(path, LARGEST_RECORD).map_err(|error| cause(&error))?;
    let said = recorded_exception(&bytes).ok_or_else(|| {
        text!(
            "it is cut off, or no record of torch's @record",
            "内容不完整，或不是 torch @record 的记录"
        )
    })?;
    let text = said.text;
    Ok(scan_statement(catalogue, number, Stated { origin: file.origin.clone(), line: 1, text }))
}

fn read(asked: &[OsString], catalogue: &Catalogue) -> Result<Input, Refusal> {
    let mut named = Named::default();
    asked.iter().try_for_each(|word| named.add(word))?;
    named.is_of_one_run()?;
    let Named { logs: mut files, mut unread, mut notes, launchers, .. } = named;
    let mut records = records::read(&launchers);
    unread.append(&mut records.unread);
    notes.append(&mut records.notes);
    for file in files.iter_mut().filter(|file| file.own && records.runs_a_command) {
        file.origin.rank = None;
    }
    let mut logs: Vec<Scanned> = Vec::new();
    let mut recorder = RecorderFiles::default();
    for file in &files {
        let name = &file.origin.name;
        let damage = if file.is_record {
            scan_record(catalogue, logs.len(), file).map(|scanned| logs.push(scanned)).err()
        } else {
            let mut progress = Progress::new(file);
            let opened = match streams::open(file.path.as_deref(), file.asked) {
                Err(error) if file.asked => return Err(named::unreadable(name, &error)),
                opened => opened.and_then(|opened| recorder.take(file, opened)),
            };
            match opened {
                Ok(None) => None,
                Ok(Some(opened)) => {
                    if records.adds_nothing(file) {
                        records.known.unheard.insert(logs.len());
                    }
                    let (scanned, damage) =
                        scan(catalogue, logs.len(), file, opened, &mut progress);
                    logs.push(scanned);
                    damage.map(|error| words(&error))
                }
                Err(error) => Some(words(&error)),
            }
        };
        unread.extend(damage.map(|error| Unread { name: name.clone(), error }));
    }
    if let Some(stated) = records.end.take() {
        if records.known.blameless {
            records.known.unheard.insert(logs.len());
        }
        logs.push(scan_statement(catalogue, logs.len(), stated));
    }
    // The end is known, whatever the logs contain.
    let is_told = !records.verdicts.is_empty() || !recorder.is_empty();
    match unread.first() {
        Some(first) if !is_told && logs.iter().all(|log| log.bytes == 0) => Err(first.refusal()),
        _ => Ok(Input { logs, recorder, unread, notes, records }),
    }
}

/// Scans a log. Gives the result, and the error if the log was not read to its end.
fn scan(
    catalogue: &Catalogue,
    number: usize,
    file: &LogFile,
    opened: Opened,
    progress: &mut Progress<'_>,
) -> (Scanned, Option<io::Error>) {
    let Opened { mut bytes, taken } = opened;
    let mut scan = LogScan::new(catalogue, number, file.origin.clone());
    let mut chunk = vec![0; CHUNK];
    loop {
        match bytes.read(&mut chunk) {
            Ok(0) => return (scan.finish(), None),
            Ok(count) => {
                scan.feed(chunk.get(..count).unwrap_or_default());
                progress.add(count as u64, taken.get());
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return (scan.finish(), Some(error)),
        }
    }
}

/// One line on a terminal while a large log is read, or a log that may never come; removed at the
/// end.
struct Progress<'a> {
    file: &'a LogFile,
    /// Number of plain bytes.
    read: u64,
    /// Number of plain bytes when the line was last written.
    shown: u64,
    on: bool,
}

impl<'a> Progress<'a> {
    /// Number of bytes between two changes of the line.
    const STEP: u64 = 32 * 1024 * 1024;

    fn new(file: &'a LogFile) -> Progress<'a> {
        let large = file.size.is_none_or(|size| size >= WORTH_PROGRESS);
        let progress =
            Progress { file, read: 0, shown: 0, on: large && io::stderr().is_terminal() };
        if file.size.is_none() {
            progress.show(0);
        }
        progress
    }

    /// `count`: more plain bytes. `taken`: bytes of the file so far.
    fn add(&mut self, count: u64, taken: u64) {
        self.read += count;
        if self.read >= self.shown + Self::STEP {
            self.shown = self.read;
            self.show(taken);
        }
    }

    fn show(&self, taken: u64) {
        if self.on {
            let width = terminal_width().unwrap_or(80);
            let line = progress_line(self.file, self.read, taken, width);
            let _ = write!(io::stderr(), "\r{line}\x1b[K");
        }
    }
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        if self.on {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// `…/node-0/train.log: 41 %, 512 MiB`: shorter than the terminal is wide, so that it does not
/// wrap.
fn progress_line(file: &LogFile, read: u64, taken: u64, width: usize) -> String {
    let done = match file.size {
        Some(size) if size > 0 => format!(": {} %, {} MiB", taken * 100 / size, read >> 20),
        _ => format!(": {} MiB", read >> 20),
    };
    let mut name = file.origin.name.escape_debug().to_string();
    let room = width.saturating_sub(columns(&done) + 1);
    if columns(&name) > room {
        name = format!("…{}", end_within(&name, room.saturating_sub(1)));
    }
    format!("{name}{done}")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use diagnose::Origin;

    #[test]
    fn progress_line_shows_percentage_and_fits_the_width() {
        let file = |name: &str, size| LogFile {
            path: Some(PathBuf::from(name)),
            origin: Origin { name: name.to_owned(), ..Origin::default() },
            size,
            asked: true,
            own: false,
            is_record: false,
        };
        let read = 512 << 20;
        let packed = file("a.log.gz", Some(1000));
        assert_eq!(progress_line(&packed, read, 410, 80), "a.log.gz: 41 %, 512 MiB");
        assert_eq!(progress_line(&file("-", None), read, 410, 80), "-: 512 MiB");
        let long = file(&format!("{}/train.log", "folder/".repeat(40)), Some(1000));
        let line = progress_line(&long, read, 410, 40);
        assert!(line.starts_with('…') && line.ends_with("/train.log: 41 %, 512 MiB"), "{line}");
        assert_eq!(columns(&line), 39);
    }
}
