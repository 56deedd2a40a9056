//! Tracebacks and dumps of stacks, read line by line for one writer.
//!
//! Several ranks may write into one file without a prefix, so that their tracebacks interleave:
//! nothing here needs a complete block. A log may also begin in the middle of a block.
//! Beside them, the record that torch's `@record` makes of the exception that ended a process:
//! `{"message": {"message": "ValueError: words", "extraInfo": {"py_callstack": "Traceback …",
//! "timestamp": "1763848800"}}}` (`torch/distributed/elastic/multiprocessing/errors`), where
//! handlers of users and older releases write a text in place of the inner object.

use memchr::memmem;
use serde_json::Value;

use super::evidence::{Frame, Package};
use super::lines::{LONGEST_PART, Pattern, kept};

/// Lines after the last frame within which a block may still end.
const PATIENCE: u32 = 12;
/// Lines after the last frame within which an interleaved exception counts as the end of a block.
const INTERLEAVED: u32 = 200;

/// The role of a line within a block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Any other line.
    Other,
    /// The head of a block, or a frame of it.
    Inside,
    /// The line that names the exception.
    Exception(Exception),
}

/// The end of a traceback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Exception {
    pub(super) kind: String,
    pub(super) message: String,
    /// The exception was raised while the exception above it was handled.
    pub(super) chained: bool,
}

/// The block of one writer.
#[derive(Debug, Default, Clone)]
pub(super) struct Blocks {
    /// Lines since the last frame or head; None: no block is near.
    since: Option<u32>,
    /// The exception has not been named yet.
    open: bool,
    /// The next traceback belongs to the exception above.
    chained: bool,
    own_frame: Option<Frame>,
    /// The file of the innermost frame, own or installed.
    innermost: Option<String>,
    /// The package that the frames lie in, if no frame is the user's own.
    package: Option<Package>,
    /// The line of source code below the last frame.
    source: Option<String>,
    /// The last own frame of the block that waited for the worker. The worker wrote this block.
    waited_in: Option<Frame>,
    first_function: Option<String>,
    ignored: bool,
    dump: bool,
    /// Spaces before the head of the block: the tables of launchers indent quoted text.
    indent: usize,
    /// Spaces before the last frame of the block.
    frame_indent: Option<usize>,
}

// A frame that is glued to another rank's line does not begin its line.
static FRAME: Pattern =
    Pattern::new(r#"File "(?P<path>[^"\n]+)", line (?P<line>\d+)(?:,? in (?P<function>[^\n]+))?"#);
static RICH_FRAME: Pattern = Pattern::new(
    r"^[|\xe2\x94\x82 ]*\xe2\x94\x82 (?P<path>[^ :]+):(?P<line>\d+) in (?P<function>[^ ]+)",
);
static EXCEPTION: Pattern = Pattern::new(
    r"^(?:[ |+-]*\| )?(?P<kind>[A-Za-z_][\w.]*(?:\([\w.]+\))?)(?:: (?P<message>.*)|:?\s*)$",
);
static EXCEPTION_NAME: Pattern = Pattern::new(
    r"(?:Error|Exception|Interrupt|Exit|Expired|Failure|Timeout|Empty|Full|Stop(?:Async)?Iteration)(?:\([\w.]+\))?$",
);

impl Blocks {
    /// Whether the next line may belong to a block and therefore has to be read.
    pub(super) fn is_open(&self) -> bool {
        self.open || self.dump
    }

    /// Whether a line is source code that a frame quotes.
    pub(super) fn is_source(&self, body: &[u8]) -> bool {
        let in_group = body.trim_ascii_start().starts_with(b"|");
        let deepest = self.frame_indent.unwrap_or(self.indent + 3);
        self.is_open() && indent(body) > deepest && !in_group
    }

    /// Whether a block ends or ended here.
    pub(super) fn is_near(&self) -> bool {
        self.since.is_some_and(|since| since <= PATIENCE)
    }

    /// The last frame of the user's own code in the block that ends or ended here.
    pub(super) fn own_frame(&self) -> Option<&Frame> {
        self.own_frame.as_ref().or(self.waited_in.as_ref()).filter(|_| self.is_near())
    }

    /// The package whose code raised the exception that ends here; None if a frame is the user's own, or if there is
    /// no frame.
    pub(super) fn package(&self) -> Option<&Package> {
        let near = self.is_near() && !self.dump && self.own_frame().is_none();
        self.package.as_ref().filter(|_| near)
    }

    /// The line of source code that raised the exception that ends here.
    pub(super) fn source(&self) -> Option<&str> {
        self.source.as_deref().filter(|_| self.is_near() && !self.dump)
    }

    /// Whether a traceback that ends here was raised in one of the files, by the ends of paths.
    pub(super) fn is_raised_in(&self, files: &[String]) -> bool {
        let innermost = self.innermost.as_deref().filter(|_| self.is_near() && !self.dump);
        innermost.is_some_and(|path| files.iter().any(|file| path.ends_with(file)))
    }

    /// Whether the frames belong to a dump, which is printed below the failure.
    pub(super) fn is_dump(&self) -> bool {
        self.dump
    }

    /// Whether the block began at the start of a program or of a thread.
    pub(super) fn is_uncaught(&self) -> bool {
        const BEGINNINGS: &[&str] =
            &["<module>", "_bootstrap", "_run_code", "_run_module_as_main", "_wrap", "spawn_main"];
        self.is_near()
            && self.first_function.as_deref().is_some_and(|first| BEGINNINGS.contains(&first))
    }

    /// Whether Python went on after the exception: a destructor or a callback raised it.
    pub(super) fn is_ignored(&self) -> bool {
        self.ignored && self.is_near()
    }

    /// Takes one line of the writer, without prefix and header.
    pub(super) fn read(&mut self, body: &[u8]) -> Part {
        let holds = |words: &[u8]| memmem::find(body, words).is_some();
        let begun = || Blocks { since: Some(0), ..Blocks::default() };
        if holds(b"Traceback (most recent call last)") {
            let chained = std::mem::take(&mut self.chained);
            let ignored = self.ignored && self.since == Some(0);
            let indent = indent(body);
            let new = Blocks { open: true, chained, ignored, indent, ..begun() };
            // The exception above passes on an exception that a worker of torch raised. If nobody
            // caught the exception above, nobody caught the worker's exception.
            let passed_on = holds(b"Original Traceback") && self.is_near();
            let outer = std::mem::replace(self, new);
            if passed_on {
                self.waited_in = outer.own_frame;
                self.first_function = outer.first_function;
            }
            return Part::Inside;
        }
        if holds(b"During handling of the above exception") || holds(b"The above exception was") {
            *self = Blocks { chained: true, ..begun() };
            return Part::Inside;
        }
        if holds(b"Exception ignored in") {
            *self = Blocks { ignored: true, ..begun() };
            return Part::Inside;
        }
        if holds(b"(most recent call first)") && !holds(b"Exception raised from") {
            *self = Blocks { dump: true, ..begun() };
            return Part::Inside;
        }
        if let Some(frame) = frame(body) {
            self.frame_indent = Some(indent(body));
            return self.on_frame(frame);
        }
        if self.since == Some(0) && self.is_source(body) {
            self.source = Some(kept(body).trim().to_owned()).filter(|source| !source.is_empty());
        }
        let Some(since) = &mut self.since else { return Part::Other };
        *since += 1;
        let (near, around) = (*since <= PATIENCE, *since <= INTERLEAVED);
        if !near {
            self.open = false;
            self.dump = false;
        }
        if !around {
            *self = Blocks::default();
            return Part::Other;
        }
        // The name of the exception is never deeper than the frames.
        let deepest = self.frame_indent.filter(|_| self.open && near).unwrap_or(self.indent);
        let named = if indent(body) <= deepest { body.trim_ascii_start() } else { body };
        match exception(named, self.open && near) {
            // The exceptions of the group follow, each with a traceback of its own.
            Some((kind, _)) if kind.ends_with("ExceptionGroup") => Part::Inside,
            Some((kind, message)) => {
                self.open = false;
                Part::Exception(Exception {
                    kind,
                    message,
                    chained: std::mem::take(&mut self.chained),
                })
            }
            None => Part::Other,
        }
    }

    fn on_frame(&mut self, frame: Frame) -> Part {
        if self.dump {
            // Most recent call first.
            if self.own_frame.is_none() && frame.is_own() {
                self.own_frame = Some(frame);
            }
            self.since = Some(0);
            return Part::Inside;
        }
        if !self.open {
            // A log that begins in the middle of a block, or a frame of another rank.
            self.own_frame = None;
            self.waited_in = None;
            self.package = None;
            self.first_function = None;
        } else if self.first_function.is_none() {
            self.first_function = Some(frame.function.clone());
        }
        self.open = true;
        self.since = Some(0);
        self.innermost = Some(frame.path.clone());
        self.source = None;
        if frame.is_own() {
            self.own_frame = Some(frame);
        } else {
            self.package = Package::called_by(self.package.take(), &frame.path);
        }
        Part::Inside
    }
}

/// The spaces before the words of a line.
fn indent(body: &[u8]) -> usize {
    body.iter().take_while(|byte| **byte == b' ').count()
}

fn frame(body: &[u8]) -> Option<Frame> {
    let groups = FRAME.captures(body).or_else(|| RICH_FRAME.captures(body))?;
    let text = |name: &str| groups.name(name).map(|part| kept(part.as_bytes()).trim().to_owned());
    Some(Frame {
        path: path(groups.name("path")?.as_bytes()),
        line: text("line")?.parse().ok()?,
        function: text("function").unwrap_or_default(),
    })
}

/// The end of a path identifies the file.
fn path(path: &[u8]) -> String {
    kept(path.get(path.len().saturating_sub(LONGEST_PART)..).unwrap_or(path)).trim().to_owned()
}

/// Whether a line has the form in which exceptions are printed: `RuntimeError: words`.
pub(super) fn is_exception(body: &[u8]) -> bool {
    exception(body, false).is_some()
}

/// An exception by its form alone.
pub(super) fn lone_exception(body: &[u8]) -> Option<Exception> {
    let (kind, message) = exception(body, false)?;
    Some(Exception { kind, message, chained: false })
}

/// `RuntimeError: words`. `open`: a block waits for its end, so that any name may be an exception.
fn exception(body: &[u8], open: bool) -> Option<(String, String)> {
    let groups = EXCEPTION.captures(body)?;
    let kind = groups.name("kind")?.as_bytes();
    let named = EXCEPTION_NAME.is_match(kind);
    let message = groups.name("message");
    // A single word may be a line that the program printed.
    let dotted = kind.contains(&b'.') || kind.first().is_some_and(u8::is_ascii_uppercase);
    if !(named || (open && dotted && (message.is_some() || kind.contains(&b'.')))) {
        return None;
    }
    let text = |bytes: &[u8]| kept(bytes).trim().to_owned();
    Some((text(kind), text(message.map_or(b"".as_slice(), |message| message.as_bytes()))))
}

/// Content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedException {
    /// The exception as Python prints it.
    pub text: String,
    /// Time of the record, in seconds since the epoch; the fraction is cut off.
    pub seconds: Option<u64>,
}

/// Reads a record. None if the record is cut, or the bytes are something else.
pub fn recorded_exception(bytes: &[u8]) -> Option<RecordedException> {
    let record: Value = serde_json::from_slice(bytes).ok()?;
    let message = &record["message"];
    let more = &message["extraInfo"];
    let words = message.as_str().or_else(|| message["message"].as_str());
    let stack = more["py_callstack"].as_str().filter(|stack| !stack.trim().is_empty());
    let text = match (stack, words) {
        (Some(stack), _) => stack.to_owned(),
        // Without a head, the line would count as words of a program, not as an exception.
        (None, Some(words)) if !words.trim().is_empty() => {
            format!("Traceback (most recent call last):\n{words}")
        }
        (None, _) => return None,
    };
    let stamp = [&more["timestamp"], &record["timestamp"]].into_iter().find(|one| !one.is_null());
    let seconds =
        stamp.and_then(|stamp| stamp.as_u64().or_else(|| stamp.as_str()?.trim().parse().ok()));
    Some(RecordedException { text, seconds })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn read(record: &Value) -> Option<RecordedException> {
        recorded_exception(record.to_string().as_bytes())
    }

    #[test]
    fn records_of_torch_and_of_handlers_are_read() {
        let stack =
            "Traceback (most recent call last):\n  File \"a.py\", line 2, in main\nValueError: no";
        let torch = json!({ "message": {
            "message": "ValueError: no",
            "extraInfo": { "py_callstack": stack, "timestamp": "1763848800" },
        }});
        let seconds = Some(1_763_848_800);
        assert_eq!(read(&torch), Some(RecordedException { text: stack.to_owned(), seconds }));
        let headed = "Traceback (most recent call last):\nValueError: no".to_owned();
        for (other, seconds) in [
            (json!({ "message": "ValueError: no", "timestamp": 7 }), Some(7)),
            (json!({ "message": { "message": "ValueError: no", "errorCode": 1 } }), None),
            (
                json!({ "message": { "message": "ValueError: no", "extraInfo": { "py_callstack": " " } } }),
                None,
            ),
        ] {
            assert_eq!(read(&other), Some(RecordedException { text: headed.clone(), seconds }));
        }
        for nothing in [json!(null), json!([1]), json!({ "message": 3 }), json!({ "message": {} })]
        {
            assert_eq!(read(&nothing), None, "{nothing}");
        }
        let whole = torch.to_string();
        for cut in 0..whole.len() {
            assert_eq!(recorded_exception(&whole.as_bytes()[..cut]), None, "{cut}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = recorded_exception(&bytes);
        }
    }
}
