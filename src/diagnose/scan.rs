//! Reads one log and keeps its statements about the end.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::blocks::{Blocks, Exception, Part, is_exception, lone_exception};
use super::catalogue::{Catalogue, Found};
use super::evidence::{Evidence, Fate, LONGEST_TEXT, Node, Place, shown, shown_around};
use super::excerpt::{self, whole_lines};
use super::lines::{Line, Lines};
use super::prefixes::{
    DATED_WITHIN, Level, Peeled, Time, inline_rank, is_by_shell, is_error, is_progress,
    is_variable, may_be_dated, object, parts, peel, peer_rank, terminates, time_of, writer,
};
use super::quoted::unquoted;
use super::rows::{ENDED_BY_SIGNAL, Role, Row, RowIndex, Stream};
use super::run::{Ended, Key, MOST_WRITERS, Run, hash, key};
use text::rank::GlobalRank;

/// Maximum number of overlapping runs of one stream that are kept.
const MOST_BESIDE: usize = 64;
/// Lines of any writer after a part of a block in which another part may come.
const NEAR_A_BLOCK: u64 = 400;
/// Lines of any writer between a failure and the dump of the stack that belongs to it.
const NEAR_A_DUMP: u64 = 40;
/// Bytes at the end of a log that are kept for display.
const TAIL: usize = 8 * 1024;

/// Facts that are known about a log before it is read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// Path of the log as it was given; `-` for standard input.
    pub name: String,
    /// The rank that wrote the log, if the log belongs to one rank.
    pub rank: Option<GlobalRank>,
    pub node: Option<Node>,
}

/// The result of reading a log.
#[derive(Debug)]
pub struct Scanned {
    pub origin: Origin,
    /// Several runs if one stream holds several logs.
    pub(super) runs: Vec<Ended>,
    /// The last bytes of the log.
    tail: Vec<u8>,
    /// Number of line feeds; a last line without a line feed counts as well.
    pub lines: u64,
    pub bytes: u64,
}

impl Scanned {
    /// Removes the statements of processes about their end if a stop of the job by its launcher caused them. `stop`:
    /// start of the stop, as for [`LogScan::feed_live`].
    pub fn leave_out_stop(&mut self, catalogue: &Catalogue, stop: Duration) {
        let stop = time(stop);
        let is_of_stop = |one: &Evidence| {
            let row = catalogue.row(one.row);
            let began = one.time.and_then(|time| stop.is_until(time));
            began == Some(true) && row.is_some_and(|row| ENDED_BY_SIGNAL.contains(&&*row.id))
        };
        for run in &mut self.runs {
            run.evidence.retain(|one| !is_of_stop(one));
        }
    }

    /// The last lines of the log, without empty ones.
    pub fn last_lines(&self, most: usize) -> Vec<String> {
        let mut tail = self.tail.as_slice();
        if tail.len() == TAIL
            && let Some(end) = tail.iter().position(|byte| matches!(byte, b'\n' | b'\r'))
            && end + 1 < tail.len()
        {
            // The first line is not whole. If it is the only line, its end is kept.
            tail = tail.get(end + 1..).unwrap_or_default();
        }
        let lines = tail.split(|byte| matches!(byte, b'\n' | b'\r'));
        let lines =
            lines.map(|line| line.get(line.len().saturating_sub(LONGEST_TEXT)..).unwrap_or(line));
        let lines: Vec<String> = lines.map(shown).filter(|line| !line.is_empty()).collect();
        let from = lines.len().saturating_sub(most);
        lines.into_iter().skip(from).collect()
    }
}

/// A writer of lines of the log, identified by the prefix.
#[derive(Debug, Default, Clone)]
struct Writer {
    blocks: Blocks,
    /// The chain of exceptions already has its evidence.
    explained: bool,
    /// The evidence of the first exception of the chain.
    chain: Option<Key>,
    /// The evidence whose dump of the stack may follow, and the last line until which it may.
    dumped: Option<(Key, u64)>,
    /// The rank of the row of torchrun's table that is being read.
    table_rank: Option<u32>,
    blames: bool,
}

/// A log that is being read: one stream, or the streams of one process.
#[derive(Debug, Clone)]
pub struct LogScan<'c> {
    /// The lines of each stream, by the number of its log.
    streams: BTreeMap<usize, Lines>,
    reader: Reader<'c>,
    tail: Vec<u8>,
    bytes: u64,
    /// The whole log while it may be an excerpt that somebody pasted.
    excerpt: Option<Vec<u8>>,
}

#[derive(Debug, Clone)]
struct Reader<'c> {
    catalogue: &'c Catalogue,
    /// Number of the log whose line is read.
    log: usize,
    /// Time at which the line was read from its process, if it is read while the process runs.
    arrived: Option<Time>,
    /// The line of the log that holds all lines being read: a record of an exception that ended its process.
    record: Option<u64>,
    origin: Origin,
    /// The writers, by the hash of their prefix.
    writers: HashMap<u64, Writer>,
    run: Run,
    /// Runs of other nodes, which overlap with this one in time.
    beside: Vec<Run>,
    /// The last run before this one, if it failed.
    earlier: Option<Run>,
    /// No times show whether the earlier run is a previous attempt or another node's run.
    untold: bool,
    seen: u64,
    near_a_block: u64,
    last_progress: u64,
    /// The head of the last line that holds a time; empty: no line does. Most heads are never parsed.
    dated: Vec<u8>,
}

impl<'c> LogScan<'c> {
    /// `log`: number of the log among the logs of one diagnosis.
    pub fn new(catalogue: &'c Catalogue, log: usize, origin: Origin) -> LogScan<'c> {
        LogScan {
            streams: BTreeMap::from([(log, Lines::new())]),
            reader: Reader::new(catalogue, log, origin),
            tail: Vec::new(),
            bytes: 0,
            excerpt: Some(Vec::new()),
        }
    }

    /// Takes the next bytes. The cuts between calls change nothing.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.feed_stream(self.reader.log, bytes);
    }

    /// Takes the next bytes of one stream of a running process. `log`: number of the log that holds the stream.
    /// `arrived`: time since a moment that all logs share.
    pub fn feed_live(&mut self, log: usize, arrived: Duration, bytes: &[u8]) {
        self.reader.arrived = Some(time(arrived));
        self.excerpt = None;
        self.feed_stream(log, bytes);
    }

    /// Takes the record of the exception that ended a process, in the form in which Python prints an exception.
    /// `line`: the line of the record in its log. `arrived`: as for [`LogScan::feed_live`].
    pub fn feed_record(&mut self, log: usize, line: u64, arrived: Option<Duration>, text: &str) {
        self.reader.arrived = arrived.map(time);
        self.reader.record = Some(line);
        self.excerpt = None;
        self.feed_stream(log, text.as_bytes());
        self.feed_stream(log, b"\n");
        self.reader.record = None;
    }

    /// Skips bytes of a stream that were not kept. `line_feeds` of them end lines.
    pub fn skip(&mut self, log: usize, bytes: u64, line_feeds: u64) {
        self.bytes += bytes;
        self.excerpt = None;
        let (reader, lines) = self.stream(log);
        lines.skip(bytes, line_feeds, |line| reader.line(line));
    }

    fn stream(&mut self, log: usize) -> (&mut Reader<'c>, &mut Lines) {
        self.reader.log = log;
        (&mut self.reader, self.streams.entry(log).or_insert_with(Lines::new))
    }

    fn feed_stream(&mut self, log: usize, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let (reader, lines) = self.stream(log);
        lines.feed(bytes, |line| reader.line(line));
        self.excerpt =
            self.excerpt.take().filter(|kept| kept.len() + bytes.len() <= excerpt::LONGEST);
        if let Some(excerpt) = &mut self.excerpt {
            excerpt.extend_from_slice(bytes);
        }
        self.tail.extend_from_slice(bytes.get(bytes.len().saturating_sub(TAIL)..).unwrap_or(bytes));
        self.tail.drain(..self.tail.len().saturating_sub(TAIL));
    }

    pub fn finish(mut self) -> Scanned {
        let reader = &mut self.reader;
        for (log, lines) in &mut self.streams {
            reader.log = *log;
            lines.finish(|line| reader.line(line));
        }
        if let Some(whole) =
            self.excerpt.take().and_then(|text| whole_lines(reader.catalogue, &text))
        {
            *reader = Reader::new(reader.catalogue, reader.log, std::mem::take(&mut reader.origin));
            whole.iter().for_each(|line| reader.line(line.line()));
        }
        let lines = self.streams.values().map(|lines| lines.count(&self.tail)).sum();
        let Reader { run, beside, earlier, untold, origin, seen, catalogue, .. } = self.reader;
        let failed = run.failed(catalogue, seen);
        let mut runs: Vec<Ended> = Vec::new();
        let mut close = |run: Run, doubtful: bool| {
            runs.push(Ended { doubtful, ..run.close(catalogue, seen) });
        };
        beside.into_iter().for_each(|run| close(run, false));
        match earlier {
            // A run that began after the failure and has made no progress yet shows nothing.
            Some(earlier) if !failed && run.progress == 0 => close(earlier, false),
            // Without times, a retry and the log of another node look the same.
            Some(earlier) if failed && untold && !run.has_root(catalogue, seen) => {
                close(earlier, true);
                close(run, true);
            }
            _ => close(run, false),
        }
        Scanned { origin, runs, tail: self.tail, lines, bytes: self.bytes }
    }
}

/// The words of an exception for the texts of its row.
fn captures(kind: &str, message: &str) -> Vec<(String, String)> {
    [("type", kind), ("message", message)]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
}

/// The expression of an assertion that says nothing else.
fn failed_assertion(exception: &Exception, blocks: &Blocks) -> Option<String> {
    let is_bare = exception.kind == "AssertionError" && exception.message.is_empty();
    let source = blocks.source().filter(|source| source.starts_with("assert "));
    source.filter(|_| is_bare).map(str::to_owned)
}

/// A moment of a running process.
fn time(arrived: Duration) -> Time {
    Time { utc: true, nanoseconds: u64::try_from(arrived.as_nanos()).unwrap_or(u64::MAX) }
}

impl<'c> Reader<'c> {
    fn new(catalogue: &'c Catalogue, log: usize, origin: Origin) -> Reader<'c> {
        Reader {
            catalogue,
            log,
            arrived: None,
            record: None,
            origin,
            writers: HashMap::new(),
            run: Run::new(log),
            beside: Vec::new(),
            earlier: None,
            untold: false,
            seen: 0,
            near_a_block: 0,
            last_progress: 0,
            dated: Vec::new(),
        }
    }
}

impl Reader<'_> {
    fn line(&mut self, line: Line<'_>) {
        self.seen += 1;
        let unquoted = unquoted(line.bytes);
        let line = Line { bytes: &unquoted, ..line };
        let interesting = self.catalogue.is_of_interest(line.bytes);
        if interesting && let Some(parts) = parts(line.bytes) {
            parts.iter().for_each(|part| self.read(Line { bytes: part, ..line }, true));
        } else if interesting || self.seen < self.near_a_block {
            self.read(line, interesting);
        } else {
            self.note_progress(line.bytes);
            self.note_time(line.bytes);
        }
    }

    /// Keeps the head of a line that may hold a time. The time is parsed only if evidence waits for it.
    fn note_time(&mut self, line: &[u8]) {
        if !may_be_dated(line) {
            return;
        }
        self.dated.clear();
        self.dated.extend_from_slice(line.get(..DATED_WITHIN).unwrap_or(line));
        if self.run.has_undated()
            && let Some(time) = time_of(&self.dated)
        {
            self.run.date(time);
        }
    }

    /// Another launcher begins. The lines above belong to a previous attempt, or to another node.
    fn start(&mut self, began: Option<Time>) {
        let latest = time_of(&self.dated);
        let beside = match (began, latest) {
            // Within the same second, both are possible.
            (Some(began), Some(latest)) if began != latest => began.is_until(latest),
            _ => None,
        };
        let (catalogue, seen) = (self.catalogue, self.seen);
        let failed = self.run.failed(catalogue, seen);
        let overlaps = beside == Some(true);
        if !(failed || overlaps && self.run.has_root(catalogue, seen)) {
            return;
        }
        let run = std::mem::replace(&mut self.run, Run::new(self.log));
        if overlaps && self.beside.len() < MOST_BESIDE {
            self.beside.push(run);
        } else {
            self.beside.clear();
            self.earlier = Some(run);
            self.untold = beside.is_none();
        }
        self.writers.clear();
        self.dated.clear();
    }

    /// Counts a line of progress, once there is evidence that could be survived.
    fn note_progress(&mut self, line: &[u8]) {
        if self.run.is_empty() && self.earlier.is_none() {
            return;
        }
        if is_progress(line) {
            let hash = hash(&line);
            if hash != self.last_progress {
                self.last_progress = hash;
                self.run.went_on(self::hash(&writer(line)));
            }
        }
    }

    fn read(&mut self, line: Line<'_>, interesting: bool) {
        let mut peeled = peel(line.bytes);
        let catalogue = self.catalogue;
        let mut found = if interesting { catalogue.find(&peeled.text) } else { Found::default() };
        let body = peeled.text.get(peeled.body..).unwrap_or_default();
        if found.start {
            self.start(peeled.time);
        }
        if found.done {
            self.run.done = Some(self.seen);
        }
        if found.version {
            self.run.versions.note(&peeled.text);
        }
        if found.end {
            let place = self.place(line);
            self.run.ended.get_or_insert(place);
        }
        if is_variable(body) {
            found.rows.clear();
        }
        self.note_time(line.bytes);
        let prefix = hash(&(self.log, &peeled.writer));
        // Writers beyond the limit share one entry.
        let known = self.writers.len() < MOST_WRITERS || self.writers.contains_key(&prefix);
        let key = if known { prefix } else { hash(&Vec::<u8>::new()) };
        let mut writer = self.writers.remove(&key).unwrap_or_default();
        let source = writer.blocks.is_source(body);
        let mut part = writer.blocks.read(body);
        self.note_table(&mut writer, body);
        if let Part::Exception(exception) = &mut part
            && let Some(expression) = failed_assertion(exception, &writer.blocks)
        {
            peeled = peeled.with_words(&expression);
            found.rows.extend(catalogue.find(&peeled.text).rows);
            found.rows.sort_unstable();
            found.rows.dedup();
            exception.message = expression;
        }
        let elsewhere =
            |row: &Row| !row.raised_in.is_empty() && !writer.blocks.is_raised_in(&row.raised_in);
        found.rows.retain(|index| !catalogue.row(*index).is_some_and(elsewhere));
        if part != Part::Other {
            self.near_a_block = self.seen + NEAR_A_BLOCK;
        }
        // Source lines in a traceback hold messages that were not printed.
        let quoted = part == Part::Inside || source;
        if !quoted {
            self.note_rows(&mut writer, &peeled, line, &found, &part);
            match &part {
                Part::Exception(exception) => {
                    self.note_exception(&mut writer, &peeled, line, &found.rows, exception);
                }
                Part::Other if found.rows.is_empty() => self.note_alone(&writer, &peeled, line),
                Part::Other | Part::Inside => {}
            }
        }
        self.note_dump(&mut writer, &part);
        if found.rows.is_empty() && part == Part::Other {
            self.note_progress(line.bytes);
        }
        self.writers.insert(key, writer);
    }

    /// torchrun's table: `rank      : 1 (local_rank: 1)` below `Root Cause (first observed failure)`.
    fn note_table(&mut self, writer: &mut Writer, body: &[u8]) {
        let trimmed = body.trim_ascii();
        if trimmed.starts_with(b"Root Cause (first") {
            writer.blames = true;
        }
        let Some(rest) = trimmed.strip_prefix(b"rank").map(<[u8]>::trim_ascii_start) else {
            return;
        };
        let Some(rest) = rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start) else { return };
        let digits: &[u8] = rest.split(|byte| !byte.is_ascii_digit()).next().unwrap_or_default();
        writer.table_rank = std::str::from_utf8(digits).ok().and_then(|rank| rank.parse().ok());
        if std::mem::take(&mut writer.blames) {
            self.run.blamed = writer.table_rank.map(GlobalRank);
        }
    }

    fn note_rows(
        &mut self,
        writer: &mut Writer,
        peeled: &Peeled<'_>,
        line: Line<'_>,
        found: &Found,
        part: &Part,
    ) {
        let catalogue = self.catalogue;
        for index in &found.rows {
            let Some(row) = catalogue.row(*index) else { continue };
            for cleared in row.clears.iter().filter_map(|id| catalogue.by_id(id)) {
                self.run.clear(cleared, object(row, &peeled.text).as_deref());
            }
            let captures = if row.role == Role::Root {
                catalogue.captures(*index, &peeled.text)
            } else {
                Vec::new()
            };
            if row.role == Role::Cascade && self.run.named.is_none() {
                self.run.named = peer_rank(&peeled.text).map(GlobalRank);
            }
            let text = shown_around(&peeled.text, found.at);
            let new = self.evidence(writer, peeled, line, (*index, row));
            let new = Evidence { text, captures, ..new };
            let key = key(*index, new.rank, new.object.as_deref().unwrap_or_default());
            let key = self.run.add(key, new);
            if row.role == Role::Root {
                writer.explained |= matches!(part, Part::Exception(_));
                writer.dumped = key.map(|key| (key, self.seen + NEAR_A_DUMP));
            }
        }
    }

    fn note_exception(
        &mut self,
        writer: &mut Writer,
        peeled: &Peeled<'_>,
        line: Line<'_>,
        rows: &[RowIndex],
        exception: &Exception,
    ) {
        // The first one of its chain.
        if !exception.chained {
            let mut rows = rows.iter().filter_map(|index| self.catalogue.row(*index));
            writer.explained = rows.any(|row| row.role == Role::Root);
            writer.chain = None;
        }
        // The traceback of the first exception begins where it was caught, those after it further out.
        if let Some(first) = writer.chain.and_then(|key| self.run.get_mut(key))
            && first.frame.is_none()
            && let Some(own) = writer.blocks.own_frame()
        {
            first.frame = Some(own.clone());
            first.package = None;
        }
        let Some((index, row)) = self.catalogue.user_exception() else { return };
        if !rows.is_empty() || writer.explained || writer.blocks.is_ignored() {
            return;
        }
        let Exception { kind, message, .. } = exception;
        // An exception that only passes on another one, which follows.
        if kind == "Exception" && message.is_empty() {
            return;
        }
        let captures = captures(kind, message);
        let new = Evidence { captures, ..self.evidence(writer, peeled, line, (index, row)) };
        let key = key(index, new.rank, &new.text);
        writer.chain = self.run.add(key, new);
        writer.explained = true;
    }

    /// `TypeError: words` in an excerpt that omits the traceback.
    fn note_alone(&mut self, writer: &Writer, peeled: &Peeled<'_>, line: Line<'_>) {
        let body = peeled.text.get(peeled.body..).unwrap_or_default();
        let Some(Exception { kind, message, .. }) = lone_exception(body) else { return };
        let Some((index, row)) = self.catalogue.user_exception() else { return };
        if peeled.level == Level::Warning {
            return;
        }
        let new = self.evidence(writer, peeled, line, (index, row));
        let key = key(index, new.rank, &new.text);
        let captures = captures(&kind, &message);
        self.run.add(key, Evidence { captures, alone: true, stated: false, ..new });
    }

    /// The frames of a dump follow the line that names the failure.
    fn note_dump(&mut self, writer: &mut Writer, part: &Part) {
        let Some((key, until)) = writer.dumped else { return };
        if !writer.blocks.is_dump() {
            writer.dumped = writer.dumped.filter(|_| self.seen < until);
            return;
        }
        if *part == Part::Inside {
            // The dumps of other threads may come first.
            writer.dumped = Some((key, self.seen + NEAR_A_DUMP));
        }
        if let Some(frame) = writer.blocks.own_frame()
            && let Some(evidence) = self.run.get_mut(key)
        {
            evidence.frame.get_or_insert_with(|| frame.clone());
            writer.dumped = None;
        }
    }

    fn place(&self, line: Line<'_>) -> Place {
        let place = Place { log: self.log, line: line.number, offset: line.offset };
        self.record.map_or(place, |line| Place { line, offset: 0, ..place })
    }

    fn evidence(
        &self,
        writer: &Writer,
        peeled: &Peeled<'_>,
        line: Line<'_>,
        (index, row): (RowIndex, &Row),
    ) -> Evidence {
        let inline = || inline_rank(&peeled.text);
        let tabled = || writer.table_rank.filter(|_| row.stream == Stream::Exit);
        let rank = peeled.rank.or_else(inline).or_else(tabled).map(GlobalRank);
        let ignored = writer.blocks.is_ignored();
        let raised = writer.blocks.is_near();
        let body = peeled.text.get(peeled.body..).unwrap_or_default();
        Evidence {
            row: index,
            first: self.place(line),
            count: 1,
            rank: self.origin.rank.or(rank),
            node: self.origin.node.clone().or_else(|| peeled.node.clone().map(Node::Name)),
            text: shown(&peeled.text),
            frame: writer.blocks.own_frame().cloned(),
            package: writer.blocks.package().cloned(),
            last_seen: self.seen,
            time: self.arrived.or(peeled.time).or_else(|| time_of(&self.dated)),
            until: self.arrived.or(peeled.time),
            level: if ignored { Level::Warning } else { peeled.level },
            raised,
            alone: false,
            uncaught: ((writer.blocks.is_uncaught() || self.record.is_some() && raised)
                && !ignored)
                || terminates(body),
            stated: raised
                || terminates(body)
                || peeled.level == Level::Error
                || is_exception(body)
                || is_error(&peeled.text),
            captures: Vec::new(),
            by_shell: is_by_shell(body),
            of_task: peeled.of_task,
            object: object(row, &peeled.text),
            writer: hash(&peeled.writer),
            progress: 0,
            own_progress: 0,
            fate: Fate::default(),
        }
    }
}
