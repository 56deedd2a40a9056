//! A value of any shape that was read from JSON or from a pickle: nodes in one list, which refer to each other by
//! number. A pickle may refer to one node many times, so a tree of copies could be exponentially larger than the
//! file.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Maximum number of values in one dump, and of pairs that maps take from each other. A record of 2000 entries with
/// stacks has about 10⁵ values.
const MOST_NODES: usize = 8 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeId(u32);

#[derive(Debug, Clone, PartialEq)]
pub enum Node<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Cow<'a, str>),
    /// A tuple as well.
    List(Vec<NodeId>),
    Map(Vec<(NodeId, NodeId)>),
    /// Bytes that are no text, or a number beyond 64 bits.
    Other,
}

/// More than [`MOST_NODES`] values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooMany;

#[derive(Debug, Default)]
pub struct Nodes<'a> {
    all: Vec<Node<'a>>,
    /// Pairs that maps have taken from each other.
    taken: usize,
}

impl<'a> Nodes<'a> {
    pub fn add(&mut self, node: Node<'a>) -> Result<NodeId, TooMany> {
        let number = u32::try_from(self.all.len()).map_err(|_| TooMany)?;
        if self.all.len() >= MOST_NODES {
            return Err(TooMany);
        }
        self.all.push(node);
        Ok(NodeId(number))
    }

    pub fn get_mut(&mut self, id: NodeId) -> Option<&mut Node<'a>> {
        self.all.get_mut(id.0 as usize)
    }

    /// Adds the pairs of one map to another. Two that take them from each other double with each instruction.
    pub fn fill(&mut self, target: NodeId, from: NodeId) -> Result<(), TooMany> {
        let pairs = match self.all.get(from.0 as usize) {
            Some(Node::Map(pairs)) if target != from => pairs,
            _ => return Ok(()),
        };
        self.taken = self.taken.saturating_add(pairs.len());
        if self.taken > MOST_NODES {
            return Err(TooMany);
        }
        let pairs = pairs.clone();
        if let Some(Node::Map(known)) = self.get_mut(target) {
            known.extend(pairs);
        }
        Ok(())
    }

    /// A text.
    pub fn text(&self, id: NodeId) -> Option<&str> {
        match self.get(id) {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    fn get(&self, id: NodeId) -> &Node<'a> {
        self.all.get(id.0 as usize).unwrap_or(&Node::None)
    }

    /// Leaves each key of a map once, at its first place and with its last value, as Python does.
    fn leave_keys_once(&mut self) {
        let once = |(number, node): (usize, &Node<'a>)| {
            let Node::Map(pairs) = node else { return None };
            let mut places = BTreeMap::new();
            let mut once: Vec<(NodeId, NodeId)> = Vec::with_capacity(pairs.len());
            for (key, value) in pairs {
                if let Node::Text(text) = self.get(*key) {
                    match places.entry(text.as_ref()) {
                        Entry::Vacant(place) => _ = place.insert(once.len()),
                        Entry::Occupied(place) => {
                            if let Some(known) = once.get_mut(*place.get()) {
                                known.1 = *value;
                            }
                            continue;
                        }
                    }
                }
                once.push((*key, *value));
            }
            (once.len() < pairs.len()).then_some((number, once))
        };
        let changed: Vec<_> = self.all.iter().enumerate().filter_map(once).collect();
        for (number, pairs) in changed {
            if let Some(node) = self.all.get_mut(number) {
                *node = Node::Map(pairs);
            }
        }
    }
}

/// Maximum number of values that one tree gives.
const MOST_VISITS: u32 = 16 << 20;

#[derive(Debug)]
pub struct Tree<'a> {
    nodes: Nodes<'a>,
    root: NodeId,
    /// Number of values that may still be given. A list that holds itself, or that a thousand lists hold, is short in
    /// a file and endless for a reader that walks it.
    visits: Cell<u32>,
    /// What a pickle names instead of holding it, in its order.
    persistent: Vec<NodeId>,
}

impl<'a> Tree<'a> {
    pub fn new(mut nodes: Nodes<'a>, root: NodeId) -> Tree<'a> {
        nodes.leave_keys_once();
        Tree { nodes, root, visits: Cell::new(MOST_VISITS), persistent: Vec::new() }
    }

    pub(super) fn with_persistent(self, persistent: Vec<NodeId>) -> Tree<'a> {
        Tree { persistent, ..self }
    }

    /// What the pickle names instead of holding it, in its order: the storages of torch.save.
    pub fn persistent(&self) -> impl Iterator<Item = Value<'_, 'a>> {
        self.persistent.iter().map_while(move |id| self.root().at(*id))
    }

    /// Reads JSON. serde_json refuses values that are nested deeper than 128.
    pub fn of_json(bytes: &'a [u8]) -> Result<Tree<'a>, serde_json::Error> {
        let mut nodes = Nodes::default();
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let root = Into(&mut nodes).deserialize(&mut json)?;
        json.end()?;
        Ok(Tree::new(nodes, root))
    }

    pub fn root(&self) -> Value<'_, 'a> {
        Value { tree: self, id: self.root }
    }

    /// Whether no more values are given, so that the end of a list is not known.
    pub fn is_spent(&self) -> bool {
        self.visits.get() == 0
    }
}

/// A node in its tree.
#[derive(Debug, Clone, Copy)]
pub struct Value<'t, 'a> {
    tree: &'t Tree<'a>,
    id: NodeId,
}

impl<'t, 'a> Value<'t, 'a> {
    fn at(self, id: NodeId) -> Option<Value<'t, 'a>> {
        let visits = &self.tree.visits;
        visits.set(visits.get().checked_sub(1)?);
        Some(Value { id, ..self })
    }

    fn node(self) -> &'t Node<'a> {
        self.tree.nodes.get(self.id)
    }

    pub fn is_none(self) -> bool {
        matches!(self.node(), Node::None)
    }

    /// An integer, also one that is written as text, as in `pg_status` of JSON dumps.
    pub fn int(self) -> Option<i64> {
        match self.node() {
            Node::Int(int) => Some(*int),
            Node::Text(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    pub fn text(self) -> Option<&'t str> {
        match self.node() {
            Node::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn bool(self) -> Option<bool> {
        match self.node() {
            Node::Bool(bool) => Some(*bool),
            _ => None,
        }
    }

    /// The values of a list. None if the node is no list.
    pub fn list(self) -> Option<impl Iterator<Item = Value<'t, 'a>>> {
        match self.node() {
            Node::List(list) => Some(list.iter().map_while(move |id| self.at(*id))),
            _ => None,
        }
    }

    /// The pairs whose keys are text. None if the node is no map.
    pub fn map(self) -> Option<impl Iterator<Item = (&'t str, Value<'t, 'a>)>> {
        match self.node() {
            Node::Map(pairs) => Some(
                pairs
                    .iter()
                    .map_while(move |(key, value)| Some((self.at(*key)?, self.at(*value)?)))
                    .filter_map(|(key, value)| Some((key.text()?, value))),
            ),
            _ => None,
        }
    }

    /// The value of a key.
    pub fn get(self, name: &str) -> Option<Value<'t, 'a>> {
        self.map()?.find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// The value as JSON; maps keep only pairs with text keys. None if the value is nested deeper than any record.
    pub fn json(self, depth: u8) -> Option<serde_json::Value> {
        use serde_json::Value as Json;
        let depth = depth.checked_sub(1)?;
        Some(match self.node() {
            Node::None | Node::Other => Json::Null,
            Node::Bool(bool) => Json::from(*bool),
            Node::Int(int) => Json::from(*int),
            Node::Float(float) => Json::from(*float),
            Node::Text(text) => Json::from(text.as_ref()),
            Node::List(_) => {
                Json::Array(self.list()?.map(|one| one.json(depth)).collect::<Option<_>>()?)
            }
            Node::Map(_) => {
                let pair = |(key, value): (&str, Value<'_, '_>)| {
                    Some((key.to_owned(), value.json(depth)?))
                };
                Json::Object(self.map()?.map(pair).collect::<Option<_>>()?)
            }
        })
    }

    /// The value, for a message.
    pub fn shown(self) -> String {
        match self.node() {
            Node::None => "None".to_owned(),
            Node::Bool(bool) => bool.to_string(),
            Node::Int(int) => int.to_string(),
            Node::Float(float) => float.to_string(),
            Node::Text(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
            Node::List(list) => format!("list[{}]", list.len()),
            Node::Map(pairs) => format!("dict[{}]", pairs.len()),
            Node::Other => "bytes".to_owned(),
        }
    }
}

/// Destination of a value.
struct Into<'n, 'a>(&'n mut Nodes<'a>);

impl<'a> Into<'_, 'a> {
    fn add<E: Error>(self, node: Node<'a>) -> Result<NodeId, E> {
        self.0.add(node).map_err(|TooMany| E::custom("too many values"))
    }
}

impl<'de> DeserializeSeed<'de> for Into<'_, 'de> {
    type Value = NodeId;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<NodeId, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Into<'_, 'de> {
    type Value = NodeId;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<NodeId, E> {
        self.add(Node::None)
    }

    fn visit_bool<E: Error>(self, bool: bool) -> Result<NodeId, E> {
        self.add(Node::Bool(bool))
    }

    fn visit_i64<E: Error>(self, int: i64) -> Result<NodeId, E> {
        self.add(Node::Int(int))
    }

    fn visit_u64<E: Error>(self, int: u64) -> Result<NodeId, E> {
        self.add(i64::try_from(int).map_or(Node::Other, Node::Int))
    }

    fn visit_f64<E: Error>(self, float: f64) -> Result<NodeId, E> {
        self.add(Node::Float(float))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<NodeId, E> {
        self.add(Node::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<NodeId, E> {
        self.add(Node::Text(Cow::Borrowed(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<NodeId, A::Error> {
        let mut list = Vec::new();
        while let Some(id) = from.next_element_seed(Into(&mut *self.0))? {
            list.push(id);
        }
        self.add(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<NodeId, A::Error> {
        let mut pairs = Vec::new();
        while let Some(key) = from.next_key_seed(Into(&mut *self.0))? {
            pairs.push((key, from.next_value_seed(Into(&mut *self.0))?));
        }
        self.add(Node::Map(pairs))
    }
}
