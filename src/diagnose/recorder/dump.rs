//! The record of one rank, as torch's flight recorder writes it: JSON or a pickle of the same shape.
//!
//! Format: `torch/csrc/distributed/c10d/FlightRecorder.hpp` of 2.15, version 2.10. The minor version rises with each
//! new field, and the major version when a field changes. So unknown fields are ignored, and missing fields have a
//! meaning. A dump is no snapshot of its process: `pg_status` is read before the entries.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::op::Op;
use crate::Frame;
use text::lang::Text;
use text::pickle::{self, PickleFlaw, Tree, Value};
use text::text;

/// Maximum number of entries that are kept of one dump, the last ones. torch's own limit is 2000 by default.
const MOST_ENTRIES: usize = 20_000;
/// Maximum depth of nested lists and maps. A frame of an entry has depth five.
const MOST_DEPTH: u8 = 32;
/// Maximum number of tensors of one entry whose sizes are kept.
const MOST_TENSORS: usize = 4096;

/// Maximum number of members of the groups of one dump, and of letters of their names: a pickle may use one list in
/// any number of groups.
const MOST_MEMBERS: usize = 16 << 20;
/// The field in which `last_entries` stores the number of a send or a receive among entries of its kind.
pub(super) const NTH: &str = "nth_of_kind";

/// The reason why bytes are no record.
#[derive(Debug)]
pub enum Unreadable {
    Pickle(PickleFlaw),
    Json(serde_json::Error),
    /// Well formed, but something else. `field`: the field that is missing or has an unexpected value.
    Shape {
        field: &'static str,
        found: String,
        allowed: &'static str,
    },
}

impl Unreadable {
    /// The finding, its place, and the allowed values.
    pub fn text(&self) -> Text {
        match self {
            Unreadable::Pickle(flaw) => flaw.text(),
            Unreadable::Json(error) => text!(
                "as a flight recorder dump it is not valid JSON: {error}",
                "作为 flight recorder 转储，它不是有效的 JSON：{error}"
            ),
            Unreadable::Shape { field, found, allowed } if found.is_empty() => text!(
                "it is not a flight recorder dump: `{field}` is missing (expected: {allowed})",
                "不是 flight recorder 转储：缺少 `{field}`（应为 {allowed}）"
            ),
            Unreadable::Shape { field: "", found, allowed } => text!(
                "it is not a flight recorder dump: it is {found}, not {allowed}",
                "不是 flight recorder 转储：内容是 {found}，而不是 {allowed}"
            ),
            Unreadable::Shape { field, found, allowed } => text!(
                "it is not a flight recorder dump that is known here: `{field}` is {found}, allowed: {allowed}",
                "无法识别的 flight recorder 转储：`{field}` 为 {found}，允许的值：{allowed}"
            ),
        }
    }
}

/// A group as `pg_config` describes it. gloo of 2.15 gives the group no name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupConfig {
    pub name: String,
    pub desc: String,
    pub ranks: Vec<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Scheduled,
    Started,
    Completed,
}

/// The elements and the types of tensors.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Tensors {
    /// The sizes of each tensor.
    pub(super) sizes: Vec<Vec<i64>>,
    pub(super) dtypes: Vec<Rc<str>>,
}

impl Tensors {
    /// Number of elements of each tensor.
    pub(super) fn counts(&self) -> Vec<i64> {
        self.sizes.iter().map(|size| elements(size)).collect()
    }

    pub(super) fn total(&self) -> i64 {
        self.sizes.iter().fold(0, |sum, size| sum.saturating_add(elements(size)))
    }
}

fn elements(size: &[i64]) -> i64 {
    size.iter().fold(1, |product: i64, side| product.saturating_mul(*side))
}

/// A collective, a send or a receive that the rank entered.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    /// Number of the entry among the entries of the process.
    pub(super) record: i64,
    pub(super) pg_id: i64,
    pub(super) group: Rc<str>,
    pub(super) desc: Rc<str>,
    pub(super) collective_seq: i64,
    pub(super) p2p_seq: i64,
    pub(super) is_p2p: bool,
    pub(super) op: Rc<Op>,
    pub(super) inputs: Rc<Tensors>,
    pub(super) outputs: Rc<Tensors>,
    pub(super) state: State,
    pub(super) retired: bool,
    pub(super) created_ns: i64,
    /// Time limit after which torch gives up the entry; None: no limit, or the dump names none.
    pub(super) limit_ms: Option<i64>,
    /// The innermost frame of the user's own code, if the dump has stacks.
    pub(super) frame: Option<Rc<Frame>>,
    /// Number of a send or a receive among entries of its kind, from 0, if entries before it are left out.
    pub(super) nth: Option<usize>,
}

impl Entry {
    pub(super) fn is_done(&self) -> bool {
        is_done(self.state == State::Completed, self.retired, &self.op)
    }

    /// Whether the watchdog gave up the entry: it timed out, or the group was aborted.
    pub(super) fn is_given_up(&self) -> bool {
        self.retired && !self.is_done()
    }
}

/// Whether an entry is marked as done: some backends mark it only by retiring it.
pub(super) fn is_done(is_completed: bool, is_retired: bool, op: &Op) -> bool {
    is_completed || (is_retired && !op.retires_what_failed())
}

/// Content of one recorder of a rank. Each backend may have a recorder of its own.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Dump {
    /// `2.10`
    pub version: String,
    /// Entries in the order in which the rank entered them.
    pub(super) entries: Vec<Entry>,
    pub(super) groups: Vec<GroupConfig>,
    /// The last collective that was entered, by `pg_id`; −1: none.
    pub(super) enqueued: Vec<(i64, i64)>,
    /// Entries are missing: the ring was full, or only a part was requested.
    pub(super) lost: bool,
    /// The rank, if a writer added it.
    pub rank: Option<u32>,
}

impl Dump {
    /// Whether nothing was entered and there is no group.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.groups.is_empty()
    }

    fn backends(&self) -> HashSet<&str> {
        self.entries.iter().map(|entry| entry.op.backend.as_str()).collect()
    }

    /// Whether both dumps come from the same recorder, provided that they come from the same rank.
    pub fn is_of_same(&self, other: &Dump) -> bool {
        self.backends() == other.backends()
    }

    /// Whether this dump of the same recorder holds later entries, or stacks for the same entries.
    pub fn is_newer_than(&self, other: &Dump) -> bool {
        let last = |dump: &Dump| {
            let last = dump.entries.last();
            last.map(|entry| (entry.created_ns, dump.entries.len(), entry.frame.is_some()))
        };
        last(self) > last(other)
    }
}

/// Whether the first bytes may belong to a record, so that [`read`] is worth a try. A log may begin in the same way.
pub fn may_be_dump(head: &[u8]) -> bool {
    const KEYS: &[&[u8]] = &[
        b"comm_lib_version",
        b"entries",
        b"nccl_comm_state",
        b"nccl_version",
        b"pg_config",
        b"pg_status",
        b"rank",
        b"version",
    ];
    if let [pickle::PROTO, 2..=5, ..] = head {
        return true;
    }
    let inner = head.trim_ascii_start().strip_prefix(b"{");
    let key = inner.and_then(|inner| inner.trim_ascii_start().strip_prefix(b"\""));
    key.is_some_and(|key| {
        KEYS.iter().any(|one| key.strip_prefix(*one).is_some_and(|rest| rest.starts_with(b"\"")))
    })
}

/// Reads a record from the whole bytes of a file or of an answer.
///
/// # Errors
/// If the bytes are no record, or a record that cannot be read.
pub fn read(bytes: &[u8]) -> Result<Dump, Unreadable> {
    of_tree(&tree(bytes)?)
}

/// A record in JSON, converted from either form. None if the bytes are no whole record.
pub fn to_json(bytes: &[u8]) -> Option<String> {
    let tree = tree(bytes).ok()?;
    of_tree(&tree).ok()?;
    let json = tree.root().json(MOST_DEPTH)?;
    (!tree.is_spent()).then(|| json.to_string())
}

fn tree(bytes: &[u8]) -> Result<Tree<'_>, Unreadable> {
    if bytes.first() == Some(&pickle::PROTO) {
        pickle::read(bytes).map_err(Unreadable::Pickle)
    } else {
        Tree::of_json(bytes).map_err(Unreadable::Json)
    }
}

fn shape(field: &'static str, found: Option<Value<'_, '_>>, allowed: &'static str) -> Unreadable {
    let found = found.map_or_else(String::new, Value::shown);
    Unreadable::Shape { field, found, allowed }
}

fn of_tree(tree: &Tree<'_>) -> Result<Dump, Unreadable> {
    let root = tree.root();
    if root.map().is_none() {
        return Err(shape("", Some(root), "dict"));
    }
    let version = root.get("version");
    let text = version.and_then(Value::text).unwrap_or_default();
    let major = text.split('.').next().unwrap_or_default();
    if !["1", "2"].contains(&major) {
        return Err(shape("version", version, "\"1.…\", \"2.…\""));
    }
    let known = ["entries", "pg_config", "pg_status"];
    if known.iter().all(|key| root.get(key).is_none()) {
        return Err(shape("entries", None, "list"));
    }
    let mut dump = Dump {
        version: text.to_owned(),
        rank: root.get("rank").and_then(Value::int).and_then(|rank| u32::try_from(rank).ok()),
        ..Dump::default()
    };
    let mut names = Names::default();
    if let Some(entries) = root.get("entries").filter(|entries| !entries.is_none()) {
        let list = entries.list().ok_or_else(|| shape("entries", Some(entries), "list"))?;
        for entry in list {
            dump.entries.push(names.entry(entry)?);
        }
    }
    let mut members = 0_usize;
    for (_, config) in root.get("pg_config").into_iter().filter_map(Value::map).flatten() {
        let Some(group) = group(config) else { continue };
        members = members.saturating_add(group.ranks.len() + group.name.len() + group.desc.len());
        if members > MOST_MEMBERS {
            return Err(Unreadable::Pickle(PickleFlaw::TooMany));
        }
        dump.groups.push(group);
    }
    for (id, status) in root.get("pg_status").into_iter().filter_map(Value::map).flatten() {
        let last = status.get("last_enqueued_collective").and_then(Value::int);
        if let (Ok(id), Some(last)) = (id.parse(), last) {
            dump.enqueued.push((id, last));
        }
    }
    if tree.is_spent() {
        return Err(Unreadable::Pickle(PickleFlaw::TooMany));
    }
    let follow = |pair: &[Entry]| matches!(pair, [one, next] if one.record.checked_add(1) == Some(next.record));
    dump.lost = dump.entries.first().is_some_and(|first| first.record > 0)
        || !dump.entries.windows(2).all(follow)
        || (dump.entries.is_empty() && dump.enqueued.iter().any(|(_, last)| *last > 0));
    if let Some(more) = dump.entries.len().checked_sub(MOST_ENTRIES).filter(|more| *more > 0) {
        dump.entries.drain(..more);
        dump.lost = true;
    }
    Ok(dump)
}

/// None: a group without members gives no information.
fn group(config: Value<'_, '_>) -> Option<GroupConfig> {
    let text = |key| config.get(key).and_then(Value::text).unwrap_or_default().to_owned();
    let ranks = config.get("ranks")?;
    // `"[0, 1]"`: the list is written as text.
    let ranks: Option<Vec<u32>> = match (ranks.list(), ranks.text()) {
        (Some(list), _) => list.map(|rank| rank.int()?.try_into().ok()).collect(),
        (None, Some(text)) => {
            let inner = text.trim().strip_prefix('[')?.strip_suffix(']')?;
            let parts = inner.split(',').map(str::trim).filter(|part| !part.is_empty());
            parts.map(|part| part.parse().ok()).collect()
        }
        (None, None) => None,
    };
    let mut ranks = ranks.filter(|ranks| !ranks.is_empty())?;
    // The order is the order of the ranks in the group.
    let mut seen = HashSet::new();
    ranks.retain(|rank| seen.insert(*rank));
    Some(GroupConfig { name: text("name"), desc: text("desc"), ranks })
}

/// Keeps each text and each list of tensors once: thousands of entries share them.
#[derive(Default)]
struct Names {
    texts: HashMap<String, Rc<str>>,
    tensors: HashSet<Rc<Tensors>>,
    ops: HashMap<String, Rc<Op>>,
    frames: HashMap<(String, u64, String), Rc<Frame>>,
}

/// The known value of `key`, or a new one.
fn shared<T: ?Sized>(
    known: &mut HashMap<String, Rc<T>>,
    key: &str,
    new: impl FnOnce(&str) -> Rc<T>,
) -> Rc<T> {
    if let Some(known) = known.get(key) {
        return Rc::clone(known);
    }
    let new = new(key);
    known.insert(key.to_owned(), Rc::clone(&new));
    new
}

impl Names {
    fn text(&mut self, text: &str) -> Rc<str> {
        shared(&mut self.texts, text, |text| Rc::from(text))
    }

    fn op(&mut self, name: &str) -> Rc<Op> {
        shared(&mut self.ops, name, |name| Rc::new(Op::parse(name)))
    }

    fn tensors(&mut self, mut tensors: Tensors) -> Rc<Tensors> {
        if let Some(known) = self.tensors.get(&tensors) {
            return Rc::clone(known);
        }
        tensors.sizes.shrink_to_fit();
        let new = Rc::new(tensors);
        self.tensors.insert(Rc::clone(&new));
        new
    }

    fn entry(&mut self, from: Value<'_, '_>) -> Result<Entry, Unreadable> {
        let fields = from.map().ok_or_else(|| shape("entries[]", Some(from), "dict"))?;
        let (mut record, mut seq, mut p2p_seq, mut pg_id) = (None, None, 0, -1);
        let (mut name, mut is_p2p, mut frame) = (None, None, None);
        let (mut inputs, mut outputs) = (Tensors::default(), Tensors::default());
        let (mut state, mut retired, mut created_ns) = (State::Scheduled, false, 0);
        let (mut limit_ms, mut nth) = (None, None);
        let (mut group, mut desc) = (self.text(""), self.text(""));
        for (key, value) in fields {
            match key {
                "record_id" => record = value.int(),
                "pg_id" => pg_id = value.int().unwrap_or(-1),
                // (name, description); before version 2.0 only the name.
                "process_group" => {
                    let mut both = value.list().into_iter().flatten().map(|part| part.text());
                    group = self.text(both.next().flatten().or(value.text()).unwrap_or_default());
                    desc = self.text(both.next().flatten().unwrap_or_default());
                }
                // `seq_id` before version 2.0.
                "collective_seq_id" | "seq_id" => seq = value.int(),
                "p2p_seq_id" => p2p_seq = value.int().unwrap_or(0),
                "is_p2p" => is_p2p = value.bool(),
                "profiling_name" => name = value.text().map(|name| self.op(name)),
                "input_sizes" => inputs.sizes = sizes(value),
                "output_sizes" => outputs.sizes = sizes(value),
                "input_dtypes" => inputs.dtypes = self.dtypes(value),
                "output_dtypes" => outputs.dtypes = self.dtypes(value),
                "state" => {
                    state = match value.text() {
                        Some("completed") => State::Completed,
                        Some("started") => State::Started,
                        Some("scheduled") => State::Scheduled,
                        _ => {
                            let allowed = "scheduled, started, completed";
                            return Err(shape("state", Some(value), allowed));
                        }
                    };
                }
                "retired" => retired = value.bool().unwrap_or(false),
                "timeout_ms" => limit_ms = value.int().filter(|limit| *limit > 0),
                "time_created_ns" => created_ns = value.int().unwrap_or(0),
                "frames" => frame = self.frame(value),
                NTH => nth = value.int().and_then(|nth| usize::try_from(nth).ok()),
                _ => {}
            }
        }
        let op = name.ok_or_else(|| shape("profiling_name", None, "str"))?;
        Ok(Entry {
            record: record.ok_or_else(|| shape("record_id", None, "int"))?,
            pg_id,
            group,
            desc,
            collective_seq: seq.ok_or_else(|| shape("collective_seq_id", None, "int"))?,
            p2p_seq,
            is_p2p: is_p2p.unwrap_or_else(|| op.is_p2p()),
            op,
            inputs: self.tensors(inputs),
            outputs: self.tensors(outputs),
            state,
            retired,
            created_ns,
            limit_ms,
            frame,
            nth,
        })
    }

    fn dtypes(&mut self, value: Value<'_, '_>) -> Vec<Rc<str>> {
        let list = value.list().into_iter().flatten().take(MOST_TENSORS);
        list.map(|one| self.text(one.text().unwrap_or_default())).collect()
    }

    /// The innermost frame in the user's own code, else the innermost frame of all. torch writes the innermost frame
    /// first.
    fn frame(&mut self, stack: Value<'_, '_>) -> Option<Rc<Frame>> {
        let mut frames = stack.list()?.filter_map(|frame| {
            Some(Frame {
                path: frame.get("filename")?.text()?.to_owned(),
                line: frame.get("line")?.int()?.try_into().ok()?,
                function: frame.get("name").and_then(Value::text).unwrap_or_default().to_owned(),
            })
        });
        let innermost = frames.next()?;
        let chosen = if innermost.is_own() {
            innermost
        } else {
            frames.find(Frame::is_own).unwrap_or(innermost)
        };
        let key = (chosen.path.clone(), chosen.line, chosen.function.clone());
        Some(Rc::clone(self.frames.entry(key).or_insert_with(|| Rc::new(chosen))))
    }
}

fn sizes(value: Value<'_, '_>) -> Vec<Vec<i64>> {
    let list = value.list().into_iter().flatten().take(MOST_TENSORS);
    let size = |one: Value<'_, '_>| {
        one.list().into_iter().flatten().take(64).filter_map(Value::int).collect()
    };
    list.map(size).collect()
}
