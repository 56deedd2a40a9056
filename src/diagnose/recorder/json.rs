//! Reads JSON into a [`Tree`].

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::tree::{Node, NodeId, Nodes, TooMany, Tree};

/// serde_json refuses values that are nested deeper than 128.
pub(super) fn read(bytes: &[u8]) -> Result<Tree<'_>, serde_json::Error> {
    let mut nodes = Nodes::default();
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let root = Into(&mut nodes).deserialize(&mut json)?;
    json.end()?;
    Ok(Tree::new(nodes, root))
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
