//! Output of the subcommands: results on standard output, messages and refusals on standard
//! error, and the runtime that they work in.

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use linux::terminal::{self, Look};
use preflight::prepare;
use report::{Ending, closing};
use settings::Settings;
use text::escape::printable;
use text::lang::{Lang, Text, cause};
use text::style::Color;
use text::text;
use verdict::{Id, Refusal, Warning};

/// The first error of a write to standard output.
static UNPRINTED: OnceLock<std::io::Error> = OnceLock::new();

/// Whether this process prints colours.
static COLOR: Mutex<Color> = Mutex::new(Color::Auto);

/// From here on, texts for people have colours according to this setting.
pub(crate) fn choose(color: Color) {
    *COLOR.lock().unwrap_or_else(PoisonError::into_inner) = color;
}

fn chosen() -> Color {
    *COLOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints to standard output. A reader that closed its end early is not an error; [`complete`]
/// reports any other error.
pub(crate) fn print(text: impl AsRef<[u8]>) {
    print_more(text);
}

/// The same, for output without an end: false if nobody reads it any more.
pub(crate) fn print_more(text: impl AsRef<[u8]>) -> bool {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => false,
        Err(error) => {
            let _ = UNPRINTED.set(error);
            false
        }
        Ok(()) => true,
    }
}

/// The exit code of a command that ended with `code`, after all its output was written. Reports
/// an earlier write error.
pub(crate) fn complete(code: i32, lang: Lang) -> i32 {
    let Some(error) = UNPRINTED.get() else { return code };
    let failure = unwritten(text!("standard output", "标准输出"), error);
    let code = if code == 0 { failure.verdict.code() } else { code };
    fail(&failure, code, lang)
}

/// Says that a profile was found and is not used, where no plan says so.
pub(crate) fn say_unused_profile(settings: &Settings, lang: Lang) {
    let unused = settings.warnings.iter().filter(|it| it.id == Id::SettingsProfileOwner);
    unused.for_each(|warning| warn(warning, lang));
}

/// Says a warning of a command without a plan.
pub(crate) fn warn(warning: &Warning, lang: Lang) {
    let (Text { en, zh }, hint) = (&warning.text, &warning.hint);
    let (hint, hint_zh) = (&hint.en, &hint.zh);
    let line = text!("{en}\n  hint: {hint}", "{zh}\n  提示：{hint_zh}");
    say(&closing::line(&line, lang));
}

/// Reports a failure of a command that was not refused, and returns `code`.
pub(crate) fn fail(failure: &Refusal, code: i32, lang: Lang) -> i32 {
    say(&closing::ended_early(&Ending::refused(failure), code, lang));
    code
}

/// Reports a file that could not be written.
pub(crate) fn unwritten_file(path: &Path, error: &std::io::Error) -> Refusal {
    unwritten(Text::same(path.display().to_string()), error)
}

fn unwritten(place: Text, error: &std::io::Error) -> Refusal {
    let Text { en, zh } = place;
    let Text { en: why, zh: why_zh } = cause(error);
    let hint = match error.kind() {
        std::io::ErrorKind::FileTooLarge => text!(
            "files may not grow any further here: raise `ulimit -f`, or print to a pipe",
            "此处的文件大小已达上限：请提高 `ulimit -f`，或输出到管道"
        ),
        _ => text!("name a place that can be written", "请指定可写的位置"),
    };
    Refusal::new(
        Id::ReportWrite,
        text!("cannot write {en}: {why}", "无法写入 {zh}：{why_zh}"),
        hint,
    )
}

/// Columns of the terminal on standard output; None if it is not a terminal.
pub(crate) fn terminal_width() -> Option<usize> {
    terminal::width(std::io::stdout())
}

/// Prints to standard error with control characters made harmless, since quoted names come from
/// manifests, other nodes and other users' processes.
pub(crate) fn say(text: &str) {
    let look = Look::of(std::io::stderr(), chosen());
    let _ = std::io::stderr().lock().write_all(look.shown(&printable(text)).as_bytes());
}

/// The same on standard output, for people. Output for programs goes through
/// [`print`](fn@print).
pub(crate) fn show(text: &str) {
    let look = Look::of(std::io::stdout(), chosen());
    print(look.shown(&printable(text)).as_bytes());
}

/// A refusal, and the language to print it in if the settings were read.
pub(crate) struct Refused {
    pub(crate) refusal: Refusal,
    pub(crate) lang: Option<Lang>,
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Refused {
        Refused { refusal, lang: None }
    }
}

pub(crate) fn refuse(refusal: &Refusal, lang: Lang) -> i32 {
    let code = refusal.verdict.code();
    say(&closing::refusal(refusal, code, lang));
    code
}

/// Runs `work` in a runtime of one thread.
pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Refusal> {
    prepare::can_start_threads()?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
            let Text { en, zh } = cause(&error);
            Refusal::new(
                Id::Internal,
                text!("cannot start the runtime: {en}", "无法启动运行时：{zh}"),
                text!(
                    "raise the limits on threads and open files",
                    "请提高线程数和打开文件数的限制"
                ),
            )
        })?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(done)
}
