//! Reads a pickle of plain values into a [`Tree`], and executes nothing.
//!
//! A pickle is a program for a machine with a stack, and some of its instructions import and call
//! any function. Such instructions are refused by name. The remaining ones make None, bool, int,
//! float, str, bytes, list, tuple and dict, in protocols 2 to 5 (Python's `pickletools.py`
//! documents each opcode). torch writes its records with protocol 2.
//!
//! [`read_hollow`] reads pickles of objects as well: an object is the map of its fields, without a class, a class is its
//! name, and what a function would give is its arguments. Nothing is executed there either.

mod tree;

use std::borrow::Cow;
use std::collections::HashMap;

use crate::lang::Text;
use crate::text;
use tree::{Node, NodeId, Nodes, TooMany};
pub use tree::{Tree, Value};

/// The first byte of a pickle of protocol 2 and later; the second is the protocol.
pub const PROTO: u8 = 0x80;

/// The reason why a pickle was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PickleFlaw {
    /// The pickle ends, or its stack is too short, before the instruction at this offset is done.
    Cut {
        offset: usize,
    },
    /// The instruction would call code, or would make a value that no record holds.
    Refused {
        opcode: u8,
        name: &'static str,
        offset: usize,
    },
    /// A protocol other than 2 to 5.
    Protocol {
        protocol: u8,
    },
    /// A text that is not UTF-8.
    NotText {
        offset: usize,
    },
    /// Bytes after the end.
    More {
        offset: usize,
    },
    TooMany,
    /// Values that are nested deeper than [`DEEPEST`].
    TooDeep {
        offset: usize,
    },
}

impl PickleFlaw {
    pub fn text(&self) -> Text {
        match self {
            PickleFlaw::Cut { offset } => text!(
                "the pickle is cut off or damaged at byte {offset}; torch may still have been writing it",
                "pickle 在第 {offset} 字节处被截断或损坏；torch 可能尚未写完"
            ),
            PickleFlaw::Refused { opcode, name, offset } => {
                let shown = if name.is_empty() {
                    format!("0x{opcode:02x}")
                } else {
                    format!("{name} (0x{opcode:02x})")
                };
                text!(
                    "the pickle holds the opcode {shown} at byte {offset}; only plain values are read and nothing is executed, and a flight recorder dump holds nothing else",
                    "pickle 在第 {offset} 字节处含有操作码 {shown}；这里只读取普通值，不执行任何代码，而 flight recorder 转储只含普通值"
                )
            }
            PickleFlaw::Protocol { protocol } => text!(
                "the pickle has protocol {protocol}; 2 to 5 are read",
                "pickle 协议为 {protocol}；支持 2 到 5"
            ),
            PickleFlaw::NotText { offset } => text!(
                "the pickle holds a text at byte {offset} that is not UTF-8",
                "pickle 在第 {offset} 字节处的文本不是 UTF-8"
            ),
            PickleFlaw::More { offset } => text!(
                "the pickle ends at byte {offset}, and more bytes follow",
                "pickle 在第 {offset} 字节处结束，但其后还有内容"
            ),
            PickleFlaw::TooMany => {
                text!("the dump holds more than 8 million values", "转储中的值超过 800 万个")
            }
            PickleFlaw::TooDeep { offset } => text!(
                "the pickle is nested deeper than 256 levels at byte {offset}",
                "pickle 在第 {offset} 字节处的嵌套超过 256 层"
            ),
        }
    }
}

/// Maximum number of open marks. A record needs 8.
const DEEPEST: usize = 256;

impl From<TooMany> for PickleFlaw {
    fn from(TooMany: TooMany) -> PickleFlaw {
        PickleFlaw::TooMany
    }
}

/// Instructions that are refused. Each one runs code, asks its reader for an object, or makes a set
/// or a buffer out of band. Opcodes of the text protocols 0 and 1 that no newer pickle needs have
/// no row.
const REFUSED: &[(u8, &str)] = &[
    (b'c', "GLOBAL"),
    (0x93, "STACK_GLOBAL"),
    (b'R', "REDUCE"),
    (b'b', "BUILD"),
    (b'i', "INST"),
    (b'o', "OBJ"),
    (0x81, "NEWOBJ"),
    (0x92, "NEWOBJ_EX"),
    (0x82, "EXT1"),
    (0x83, "EXT2"),
    (0x84, "EXT4"),
    (b'P', "PERSID"),
    (b'Q', "BINPERSID"),
    (0x97, "NEXT_BUFFER"),
    (0x98, "READONLY_BUFFER"),
    (0x8f, "EMPTY_SET"),
    (0x90, "ADDITEMS"),
    (0x91, "FROZENSET"),
];

/// # Errors
/// The flaw that comes first.
pub fn read(bytes: &[u8]) -> Result<Tree<'_>, PickleFlaw> {
    run(bytes, false)
}

/// Reads objects as maps of their fields.
///
/// # Errors
/// The flaw that comes first.
pub fn read_hollow(bytes: &[u8]) -> Result<Tree<'_>, PickleFlaw> {
    run(bytes, true)
}

/// The first of several pickles that follow each other, and the number of its bytes. Reads objects as maps of their
/// fields. None: the bytes end before it does.
///
/// # Errors
/// The flaw that comes first.
pub fn read_first(bytes: &[u8]) -> Result<Option<(Tree<'_>, usize)>, PickleFlaw> {
    let mut machine = Machine::new(bytes, true);
    match machine.run() {
        Ok(root) => {
            let end = machine.at;
            Ok(Some((machine.tree(root), end)))
        }
        Err(PickleFlaw::Cut { .. }) if machine.is_at_end => Ok(None),
        Err(flaw) => Err(flaw),
    }
}

/// The values of these keys in each map that has them all, as a list of lists, if some map has the key `holder`. Keeps
/// texts and numbers only: the metadata of a large checkpoint has many millions of values, of which these are few. None:
/// the bytes end before the pickle does, or no map has that key.
///
/// # Errors
/// The flaw that comes first.
pub fn read_rows<'a>(
    bytes: &'a [u8],
    holder: &'static str,
    keys: &'static [&'static str],
) -> Result<Option<Tree<'a>>, PickleFlaw> {
    let mut machine = Machine::new(bytes, true);
    let other = machine.nodes.add(Node::Other)?;
    let (numbers, found) = (HashMap::new(), Vec::new());
    machine.rows = Some(Rows { holder, keys, has_holder: false, other, numbers, found });
    match machine.run() {
        Ok(_) => {
            let rows = machine.rows.take().filter(|rows| rows.has_holder);
            let root = rows.map(|rows| machine.nodes.add(Node::List(rows.found))).transpose()?;
            Ok(root.map(|root| machine.tree(root)))
        }
        Err(PickleFlaw::Cut { .. }) if machine.is_at_end => Ok(None),
        Err(flaw) => Err(flaw),
    }
}

/// What [`read_rows`] keeps.
struct Rows {
    holder: &'static str,
    keys: &'static [&'static str],
    has_holder: bool,
    /// All values that are neither a text nor a number.
    other: NodeId,
    /// One node for each number.
    numbers: HashMap<i64, NodeId>,
    found: Vec<NodeId>,
}

impl Rows {
    /// The node of a value; None of one that is stored.
    fn known(&self, node: &Node<'_>) -> Option<NodeId> {
        match node {
            Node::Text(_) => None,
            Node::Int(number) => self.numbers.get(number).copied(),
            _ => Some(self.other),
        }
    }

    fn take(&mut self, pairs: &[(NodeId, NodeId)], nodes: &mut Nodes<'_>) -> Result<(), TooMany> {
        let find = |name: &str| {
            let is_it = |(key, _): &&(NodeId, NodeId)| nodes.text(*key) == Some(name);
            pairs.iter().find(is_it).map(|(_, value)| *value)
        };
        self.has_holder = self.has_holder || find(self.holder).is_some();
        if let Some(row) = self.keys.iter().map(|key| find(key)).collect() {
            self.found.push(nodes.add(Node::List(row))?);
        }
        Ok(())
    }
}

fn run(bytes: &[u8], is_hollow: bool) -> Result<Tree<'_>, PickleFlaw> {
    let mut machine = Machine::new(bytes, is_hollow);
    let root = machine.run()?;
    let end = machine.at;
    if end < bytes.len() {
        return Err(PickleFlaw::More { offset: end });
    }
    Ok(machine.tree(root))
}

struct Machine<'a> {
    /// Objects are maps of their fields.
    is_hollow: bool,
    bytes: &'a [u8],
    at: usize,
    nodes: Nodes<'a>,
    stack: Vec<NodeId>,
    /// Lengths of the stack where marks were set.
    marks: Vec<usize>,
    memo: HashMap<u32, NodeId>,
    /// The number that MEMOIZE assigns next.
    memoized: u32,
    /// What the pickle names instead of holding it.
    persistent: Vec<NodeId>,
    /// Only these are kept.
    rows: Option<Rows>,
    /// The bytes ended within an instruction.
    is_at_end: bool,
}

type Step<T> = Result<T, PickleFlaw>;

impl<'a> Machine<'a> {
    fn new(bytes: &'a [u8], is_hollow: bool) -> Machine<'a> {
        Machine {
            is_hollow,
            bytes,
            at: 0,
            nodes: Nodes::default(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
            memoized: 0,
            persistent: Vec::new(),
            rows: None,
            is_at_end: false,
        }
    }

    fn tree(self, root: NodeId) -> Tree<'a> {
        Tree::new(self.nodes, root).with_persistent(self.persistent)
    }

    fn run(&mut self) -> Step<NodeId> {
        loop {
            if let Some(root) = self.step(self.at)? {
                return Ok(root);
            }
        }
    }

    /// Executes one instruction. Gives the root after STOP.
    fn step(&mut self, start: usize) -> Step<Option<NodeId>> {
        let opcode = self.byte()?;
        let node = match opcode {
            PROTO => {
                let protocol = self.byte()?;
                if !(2..=5).contains(&protocol) {
                    return Err(PickleFlaw::Protocol { protocol });
                }
                return Ok(None);
            }
            // FRAME: the length of the following bytes, which a reader of a whole file does not
            // need.
            0x95 => {
                self.take(8)?;
                return Ok(None);
            }
            b'.' => return self.pop().map(Some),
            b'(' => {
                if self.marks.len() >= DEEPEST {
                    return Err(PickleFlaw::TooDeep { offset: start });
                }
                self.marks.push(self.stack.len());
                return Ok(None);
            }
            // POP, which also removes a mark.
            b'0' => {
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
                return Ok(None);
            }
            // POP_MARK
            b'1' => {
                self.above_mark()?;
                return Ok(None);
            }
            // DUP
            b'2' => {
                let top = self.top()?;
                self.stack.push(top);
                return Ok(None);
            }
            b'N' => Node::None,
            0x88 => Node::Bool(true),
            0x89 => Node::Bool(false),
            b'J' => Node::Int(i64::from(i32::from_le_bytes(self.array()?))),
            b'K' => Node::Int(i64::from(self.byte()?)),
            b'M' => Node::Int(i64::from(u16::from_le_bytes(self.array()?))),
            // LONG1, LONG4
            0x8a => long(self.prefixed(1)?),
            0x8b => long(self.prefixed(4)?),
            // BINFLOAT is big-endian.
            b'G' => Node::Float(f64::from_be_bytes(self.array()?)),
            // SHORT_BINUNICODE, BINUNICODE, BINUNICODE8
            0x8c => self.text(1)?,
            b'X' => self.text(4)?,
            0x8d => self.text(8)?,
            // SHORT_BINSTRING, BINSTRING: str of Python 2; SHORT_BINBYTES, BINBYTES, BINBYTES8,
            // BYTEARRAY8
            b'U' | b'C' => bytes(self.prefixed(1)?),
            b'T' | b'B' => bytes(self.prefixed(4)?),
            0x8e | 0x96 => bytes(self.prefixed(8)?),
            b']' | b')' => Node::List(Vec::new()),
            b'}' => Node::Map(Vec::new()),
            // LIST, TUPLE, DICT: made of the values above the mark.
            b'l' | b't' => Node::List(self.above_mark()?),
            b'd' => Node::Map(self.pairs()?),
            0x85..=0x87 => {
                let from = self.floor_above(usize::from(opcode - 0x84))?;
                Node::List(self.stack.split_off(from))
            }
            b'a' | b'e' | b's' | b'u' => {
                self.extend(opcode)?;
                return Ok(None);
            }
            b'q' | b'r' | 0x94 => {
                let number = match opcode {
                    b'q' => u32::from(self.byte()?),
                    b'r' => u32::from_le_bytes(self.array()?),
                    _ => self.memoized,
                };
                let top = self.top()?;
                if self.rows.as_ref().is_none_or(|rows| rows.other != top) {
                    self.memo.insert(number, top);
                }
                self.memoized = self.memoized.saturating_add(1);
                return Ok(None);
            }
            b'h' | b'j' => {
                let number = match opcode {
                    b'h' => u32::from(self.byte()?),
                    _ => u32::from_le_bytes(self.array()?),
                };
                let other = self.rows.as_ref().filter(|_| number < self.memoized);
                let known = self.memo.get(&number).copied().or(other.map(|rows| rows.other));
                self.stack.push(known.ok_or(PickleFlaw::Cut { offset: start })?);
                return Ok(None);
            }
            _ if self.is_hollow && REFUSED.iter().any(|(one, _)| *one == opcode) => {
                return self.object(opcode, start).map(|()| None);
            }
            _ => {
                let name = REFUSED.iter().find(|(one, _)| *one == opcode);
                let name = name.map_or("", |(_, name)| name);
                return Err(PickleFlaw::Refused { opcode, name, offset: start });
            }
        };
        self.add(node)?;
        Ok(None)
    }

    fn add(&mut self, node: Node<'a>) -> Step<()> {
        let number = if let Node::Int(number) = node { Some(number) } else { None };
        let id = match self.rows.as_ref().and_then(|rows| rows.known(&node)) {
            Some(known) => known,
            None => {
                let id = self.nodes.add(node)?;
                if let Some((rows, number)) = self.rows.as_mut().zip(number) {
                    rows.numbers.insert(number, id);
                }
                id
            }
        };
        self.stack.push(id);
        Ok(())
    }

    /// An instruction that makes or fills an object.
    fn object(&mut self, opcode: u8, start: usize) -> Step<()> {
        let made = match opcode {
            // GLOBAL and INST name a class by two lines.
            b'c' | b'i' => {
                self.line()?;
                let name = self.line()?;
                if opcode == b'i' {
                    self.above_mark()?;
                    Node::Map(Vec::new())
                } else {
                    bytes(name)
                }
            }
            b'P' => {
                self.line()?;
                Node::None
            }
            // EXT1, EXT2, EXT4
            0x82..=0x84 => {
                self.take(1 << (opcode - 0x82))?;
                Node::None
            }
            // A class is its name, without that of its module.
            0x93 => {
                let name = self.pop()?;
                self.pop()?;
                self.stack.push(name);
                return Ok(());
            }
            b'Q' => {
                let named = self.pop()?;
                self.persistent.push(named);
                Node::None
            }
            // The arguments of a call stay: `torch.Size((2, 3))` is the list of them.
            b'R' => {
                let arguments = self.pop()?;
                self.pop()?;
                self.stack.push(arguments);
                return Ok(());
            }
            0x81 => {
                let from = self.floor_above(2)?;
                self.stack.truncate(from);
                Node::Map(Vec::new())
            }
            0x92 => {
                let from = self.floor_above(3)?;
                self.stack.truncate(from);
                Node::Map(Vec::new())
            }
            b'o' => {
                self.above_mark()?;
                Node::Map(Vec::new())
            }
            b'b' => {
                let state = self.pop()?;
                let target = self.top()?;
                self.nodes.fill(target, state)?;
                return Ok(());
            }
            0x8f => Node::List(Vec::new()),
            0x90 => return self.extend(b'e'),
            0x91 => Node::List(self.above_mark()?),
            0x97 => Node::Other,
            // READONLY_BUFFER
            0x98 => return Ok(()),
            _ => return Err(PickleFlaw::Cut { offset: start }),
        };
        self.add(made)
    }

    /// APPEND, APPENDS, SETITEM and SETITEMS: add the top values to the list or map below.
    fn extend(&mut self, opcode: u8) -> Step<()> {
        let offset = self.at - 1;
        if matches!(opcode, b'a' | b'e') {
            let items = if opcode == b'a' { vec![self.pop()?] } else { self.above_mark()? };
            let target = self.top()?;
            let is_hollow = self.is_hollow;
            match self.nodes.get_mut(target) {
                Some(Node::List(list)) => list.extend(items),
                Some(_) if is_hollow => {}
                _ => return Err(PickleFlaw::Cut { offset }),
            }
        } else {
            let pairs = match opcode {
                b's' => paired(self.stack.split_off(self.floor_above(2)?)),
                _ => self.pairs()?,
            };
            let target = self.top()?;
            if let Some(rows) = &mut self.rows {
                return Ok(rows.take(&pairs, &mut self.nodes)?);
            }
            let is_hollow = self.is_hollow;
            match self.nodes.get_mut(target) {
                Some(Node::Map(map)) => map.extend(pairs),
                // An ordered dict is the result of a call.
                Some(node) if is_hollow => *node = Node::Map(pairs),
                _ => return Err(PickleFlaw::Cut { offset }),
            }
        }
        Ok(())
    }

    fn cut<T>(&self) -> Step<T> {
        Err(PickleFlaw::Cut { offset: self.at.saturating_sub(1) })
    }

    fn byte(&mut self) -> Step<u8> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Step<[u8; N]> {
        let taken = self.take(N)?;
        taken.try_into().or_else(|_| self.cut())
    }

    fn take(&mut self, count: usize) -> Step<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        match end.and_then(|end| self.bytes.get(self.at..end)) {
            Some(taken) => {
                self.at += count;
                Ok(taken)
            }
            None => {
                self.is_at_end = true;
                Err(PickleFlaw::Cut { offset: self.at })
            }
        }
    }

    /// The bytes up to the end of the line, without it.
    fn line(&mut self) -> Step<&'a [u8]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
        let line = self.take(length)?;
        self.byte()?;
        Ok(line)
    }

    /// Bytes behind their length, which takes 1, 4 or 8 bytes.
    fn prefixed(&mut self, size: usize) -> Step<&'a [u8]> {
        let length =
            self.take(size)?.iter().rev().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
        match usize::try_from(length) {
            Ok(length) => self.take(length),
            Err(_) => self.cut(),
        }
    }

    fn text(&mut self, size: usize) -> Step<Node<'a>> {
        let offset = self.at;
        let text = std::str::from_utf8(self.prefixed(size)?);
        text.map(|text| Node::Text(Cow::Borrowed(text))).map_err(|_| PickleFlaw::NotText { offset })
    }

    /// Start of the stack that belongs to the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    /// The place of the last `items` values, all of which must be above the last mark.
    fn floor_above(&self, items: usize) -> Step<usize> {
        match self.stack.len().checked_sub(items).filter(|from| *from >= self.floor()) {
            Some(from) => Ok(from),
            None => self.cut(),
        }
    }

    fn top(&self) -> Step<NodeId> {
        let from = self.floor_above(1)?;
        self.stack.get(from).copied().map_or_else(|| self.cut(), Ok)
    }

    fn pop(&mut self) -> Step<NodeId> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn above_mark(&mut self) -> Step<Vec<NodeId>> {
        match self.marks.pop() {
            Some(mark) if mark <= self.stack.len() => Ok(self.stack.split_off(mark)),
            _ => self.cut(),
        }
    }

    fn pairs(&mut self) -> Step<Vec<(NodeId, NodeId)>> {
        let items = self.above_mark()?;
        if items.len() % 2 == 1 { self.cut() } else { Ok(paired(items)) }
    }
}

fn paired(items: Vec<NodeId>) -> Vec<(NodeId, NodeId)> {
    items.as_chunks::<2>().0.iter().map(|[key, value]| (*key, *value)).collect()
}

/// Two's complement, little-endian, as short as possible.
fn long<'a>(bytes: &[u8]) -> Node<'a> {
    if bytes.len() > 8 {
        return Node::Other;
    }
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut whole = [if negative { 0xff } else { 0 }; 8];
    for (to, from) in whole.iter_mut().zip(bytes) {
        *to = *from;
    }
    Node::Int(i64::from_le_bytes(whole))
}

fn bytes(bytes: &[u8]) -> Node<'_> {
    std::str::from_utf8(bytes).map_or(Node::Other, |text| Node::Text(Cow::Borrowed(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_those_of_the_tree_without_its_bound() {
        let text = |text: &str| {
            let length = u32::try_from(text.len()).expect("short").to_le_bytes();
            [b"X".as_slice(), &length, text.as_bytes()].concat()
        };
        let pair = |key: &str, value: &[u8]| [text(key).as_slice(), value].concat();
        // In any order, with others between them; one of these has no offset.
        let maps = [
            [pair("file", &text("a")), pair("at", b"K\x01"), pair("other", b"N")],
            [pair("at", b"K\x02"), pair("other", b"]"), pair("file", &text("b"))],
            [pair("file", &text("c")), pair("other", b"K\x01"), pair("more", b"}")],
        ];
        let maps: Vec<Vec<u8>> =
            maps.iter().map(|map| [b"}q\x07(".as_slice(), &map.concat(), b"u"].concat()).collect();
        let of = |before: &[u8]| {
            let held = pair("held", &[b"](".as_slice(), &maps.concat(), b"e"].concat());
            [b"\x80\x02".as_slice(), before, b"}(", &held, b"u."].concat()
        };
        let rows = |bytes: &[u8], holder| {
            let tree = read_rows(bytes, holder, &["file", "at"]).expect("it is read")?;
            let row = |row: Value<'_, '_>| {
                let fields: Vec<Value<'_, '_>> = row.list().into_iter().flatten().collect();
                Some((fields.first()?.text()?.to_owned(), fields.get(1)?.int()?))
            };
            tree.root().list()?.map(row).collect::<Option<Vec<_>>>()
        };
        let expected = Some(vec![("a".to_owned(), 1), ("b".to_owned(), 2)]);
        let few = of(b"");
        assert_eq!(rows(&few, "held"), expected);
        assert_eq!(rows(&few, "none"), None);
        for end in 0..few.len() {
            let cut = few.get(..end).expect("it is shorter");
            assert!(!matches!(read_rows(cut, "held", &["file"]), Ok(Some(_))), "{end}");
        }
        let many = of(&b"N0".repeat(9 << 20));
        assert_eq!(read_hollow(&many).err(), Some(PickleFlaw::TooMany));
        assert_eq!(rows(&many, "held"), expected);
    }

    /// A map with one pair for each of these numbers of two bytes, memoized as 0.
    fn large(pairs: u16) -> Vec<u8> {
        let pair = |number| [b"M".as_slice(), &u16::to_le_bytes(number), b"N"].concat();
        let pairs: Vec<u8> = (0..pairs).flat_map(pair).collect();
        [b"\x80\x02}q\0(".as_slice(), &pairs, b"u"].concat()
    }

    #[test]
    fn maps_that_take_pairs_from_each_other_are_bounded() {
        let begun = b"\x80\x02}X\x01\0\0\0aNs";
        let itself = [begun.as_slice(), &b"2b".repeat(70), b"."].concat();
        let tree = read_hollow(&itself).expect("it adds nothing");
        assert_eq!(tree.root().map().map(Iterator::count), Some(1));
        // Two maps, each of which takes from the other: 0, 1 and their sums.
        let taken = b"h\0h\x01b0h\x01h\0b0".repeat(40);
        let both = [begun.as_slice(), b"q\0}q\x01", &taken, b"."].concat();
        assert_eq!(read_hollow(&both).err(), Some(PickleFlaw::TooMany));
        // One map that many take.
        let many = |count| [large(60_000), b"}h\0b0".repeat(count), b".".to_vec()].concat();
        assert_eq!(read_hollow(&many(1_000)).err(), Some(PickleFlaw::TooMany));
        assert!(read_hollow(&many(10)).is_ok());
    }
}
