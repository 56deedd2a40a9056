//! The objects of all manifests, and layered maps.

use text::yaml::Node;

/// Every object of the input, by file.
#[derive(Debug, Default)]
pub(super) struct Objects<'a> {
    pub(super) all: Vec<(usize, &'a Node)>,
}

/// Layers of maps: the first one with a key wins.
#[derive(Debug, Clone, Default)]
pub(super) struct Layers<'a> {
    pub(super) layers: Vec<&'a Node>,
}

impl<'a> Layers<'a> {
    pub(super) fn of(node: &'a Node) -> Layers<'a> {
        Layers { layers: vec![node] }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a Node> {
        self.at(&[key])
    }

    pub(super) fn at(&self, path: &[&str]) -> Option<&'a Node> {
        self.layers.iter().find_map(|layer| layer.at(path))
    }

    /// The items of a list in all layers.
    pub(super) fn items(&self, key: &str) -> impl Iterator<Item = &'a Node> {
        let lists: Vec<&'a Node> = self.layers.iter().filter_map(|layer| layer.get(key)).collect();
        lists.into_iter().flat_map(|list| list.list().iter().map(|item| &**item))
    }

    pub(super) fn line(&self) -> usize {
        self.layers.first().map_or(1, |layer| layer.line)
    }
}

pub(super) fn name_of(object: &Node) -> String {
    let name =
        ["name", "generateName"].iter().find_map(|key| object.at(&["metadata", key])?.text());
    name.unwrap_or("?").to_owned()
}

pub(super) fn namespace_of(object: &Node) -> String {
    object.at(&["metadata", "namespace"]).and_then(Node::text).unwrap_or_default().to_owned()
}

pub(super) fn is_kind(object: &Node, kind: &str) -> bool {
    object.get("kind").and_then(Node::text) == Some(kind)
}
