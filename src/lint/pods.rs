//! The pods of a job: groups of equal pods, their containers and resources, and the quantities of
//! Kubernetes (`128Gi`, `500m`, `64k`, `1e9`).

use super::launches::{Launcher, StartedPrograms};
use std::collections::BTreeMap;
use text::yaml::Node;

/// Resources that are whole GPUs.
const GPUS: &[&str] = &["nvidia.com/gpu", "amd.com/gpu", "aliyun.com/gpu"];
/// Prefix of the resources for slices of a GPU, each one device.
const SLICES: &str = "nvidia.com/mig-";

/// Every object of the input, by file.
pub(super) type Objects<'a> = [(usize, &'a Node)];

/// A group of equal pods.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) role: String,
    /// None if it is not a plain number.
    pub(super) replicas: Option<u64>,
    /// Line of the number, or else of the group.
    pub(super) replicas_line: usize,
    pub(super) pod: Layers<'a>,
    /// The label and annotation map of the pod template.
    pub(super) metadata: Option<&'a Node>,
    /// The part of the object that makes the pods again when they fail: a JobSpec, a replica spec, a task.
    pub(super) controller: Layers<'a>,
    /// Copies of the group in the job, each with its own pod index from 0 (JobSet).
    pub(super) copies: u64,
    /// Whether the manifest has the complete pod.
    pub(super) whole: bool,
    /// Layers over the container of this name (a TrainJob's trainer).
    pub(super) over: Option<(&'static str, Vec<&'a Node>)>,
    pub(super) containers: Vec<Container<'a>>,
}

impl<'a> Group<'a> {
    pub(super) fn of(role: &str, pod: &'a Node) -> Group<'a> {
        Group {
            role: role.to_owned(),
            replicas: Some(1),
            replicas_line: pod.line,
            pod: Layers::of(pod),
            metadata: None,
            controller: Layers::default(),
            copies: 1,
            whole: true,
            over: None,
            containers: Vec::new(),
        }
    }

    /// Whether the manifest has the complete pod, and no container in it.
    pub(super) fn is_empty(&self) -> bool {
        self.whole && self.containers.is_empty()
    }

    /// Whether the group takes part in the training: it has GPUs or a launcher.
    pub(super) fn works(&self) -> bool {
        self.containers.iter().any(Container::works)
    }
}

/// A variable of a container.
#[derive(Debug)]
pub(super) struct ContainerVariable {
    /// None if it comes from elsewhere (valueFrom).
    pub(super) value: Option<String>,
    /// The field of the pod that the variable refers to.
    pub(super) field: Option<String>,
    pub(super) line: usize,
}

#[derive(Debug)]
pub(super) struct Container<'a> {
    pub(super) name: String,
    pub(super) node: Layers<'a>,
    pub(super) env: BTreeMap<String, ContainerVariable>,
    pub(super) started: StartedPrograms,
    /// Names in `$(NAME)` of its command, which Kubernetes replaces if the variable exists.
    pub(super) references: Vec<Reference>,
    /// Variables in its command and arguments that a shell expands: `$NAME`, `${NAME}`.
    pub(super) shell_references: Vec<ShellReference>,
    /// The container has a command or arguments of its own.
    pub(super) has_command: bool,
}

/// A `$(NAME)`.
#[derive(Debug)]
pub(super) struct Reference {
    pub(super) name: String,
    pub(super) line: usize,
    /// The reference is in a shell script, where an unreplaced one runs the command NAME.
    pub(super) in_script: bool,
}

/// A `$NAME` or `${NAME}` in a shell script.
#[derive(Debug)]
pub(super) struct ShellReference {
    pub(super) name: String,
    pub(super) line: usize,
}

/// A resource: its quantity and line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quantity<'a> {
    pub(super) text: &'a str,
    pub(super) line: usize,
}

impl<'a> Container<'a> {
    /// A resource's limit, or else its request, as Kubernetes does for devices.
    pub(super) fn resource(&self, name: &str) -> Option<Quantity<'a>> {
        self.in_resources("limits", name).or_else(|| self.in_resources("requests", name))
    }

    pub(super) fn in_resources(&self, part: &str, name: &str) -> Option<Quantity<'a>> {
        ["resources", "resourcesPerNode"].into_iter().find_map(|key| {
            let node = self.node.at(&[key, part, name])?;
            Some(Quantity { text: node.text()?, line: node.line })
        })
    }

    /// GPUs of this container and the line of their number; None without GPUs.
    pub(super) fn gpus(&self) -> Option<(u64, usize)> {
        let whole = GPUS.iter().find_map(|name| self.resource(name));
        if let Some(found) = whole {
            return Some((whole_units(found.text)?, found.line)).filter(|(n, _)| *n > 0);
        }
        let resources = ["resources", "resourcesPerNode"];
        let limits = resources.into_iter().find_map(|key| self.node.at(&[key, "limits"]))?;
        let slices: Vec<(u64, usize)> = limits
            .entries()
            .filter(|(name, ..)| name.starts_with(SLICES))
            .filter_map(|(_, _, value)| Some((whole_units(value.text()?)?, value.line)))
            .collect();
        let count = slices.iter().fold(0_u64, |sum, (n, _)| sum.saturating_add(*n));
        slices.first().map(|(_, line)| (count, *line)).filter(|(n, _)| *n > 0)
    }

    /// The resource names of GPUs.
    pub(super) fn gpu_names() -> &'static [&'static str] {
        GPUS
    }

    /// A GPU resource whose quantity is no number, as in templates.
    pub(super) fn unread_gpus(&self) -> Option<Quantity<'a>> {
        let found = GPUS.iter().find_map(|name| self.resource(name))?;
        whole_units(found.text).is_none().then_some(found)
    }

    pub(super) fn works(&self) -> bool {
        self.gpus().is_some()
            || self.started.launches.iter().any(|launch| launch.launcher != Launcher::Python)
    }

    /// A variable's literal value.
    pub(super) fn literal(&self, name: &str) -> Option<(&str, usize)> {
        let variable = self.env.get(name)?;
        Some((variable.value.as_deref()?, variable.line))
    }

    pub(super) fn line(&self) -> usize {
        self.node.line()
    }
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

/// Thousandths of a unit (bytes, CPUs, devices). Saturates far above any real size.
pub(super) fn milli(text: &str) -> Option<u128> {
    let (number, unit) = split_unit(text)?;
    let scale: u128 = match unit {
        "" => 1000,
        "n" | "u" => return milli(number).map(|_| 0),
        "m" => 1,
        "k" => 1000 * 1000,
        "M" => 1000 * 1000_u128.pow(2),
        "G" => 1000 * 1000_u128.pow(3),
        "T" => 1000 * 1000_u128.pow(4),
        "P" => 1000 * 1000_u128.pow(5),
        "E" => 1000 * 1000_u128.pow(6),
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        "Pi" => 1000 << 50,
        "Ei" => 1000 << 60,
        _ => {
            let power: u32 = unit.strip_prefix(['e', 'E'])?.parse().ok()?;
            1000_u128.checked_mul(10_u128.checked_pow(power.min(18))?)?
        }
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && part.is_empty() || whole.len() > 18 || part.len() > 18 {
        return None;
    }
    let digits = |text: &str| match text {
        "" => Some(0),
        text if text.bytes().all(|byte| byte.is_ascii_digit()) => text.parse::<u128>().ok(),
        _ => None,
    };
    let fraction =
        digits(part)?.saturating_mul(scale) / 10_u128.pow(u32::try_from(part.len()).ok()?);
    Some(digits(whole)?.saturating_mul(scale).saturating_add(fraction))
}

/// Whole units, rounded down: bytes of memory, numbers of devices.
pub(super) fn whole_units(text: &str) -> Option<u64> {
    u64::try_from(milli(text)? / 1000).ok()
}

/// The number and its unit: `64k` → 64, k.
pub(super) fn split_unit(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Bytes in a readable unit: 256Gi, 64Mi, 512Ki, 12.
pub(super) fn shown_bytes(bytes: u64) -> String {
    [(1_u64 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit))
        .map_or_else(|| bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_reads_them() {
        for (text, expected) in [
            ("128Gi", Some(128 << 30)),
            ("64k", Some(64_000)),
            ("1.5Gi", Some(3 << 29)),
            ("500m", Some(0)),
            ("2000m", Some(2)),
            ("1e3", Some(1000)),
            ("4", Some(4)),
            ("0.5", Some(0)),
            ("+4", Some(4)),
            ("", None),
            ("Gi", None),
            ("4GB", None),
            ("4 Gi", None),
            ("-1", None),
            ("1.2.3", None),
            (".", None),
            ("1e999999999999", None),
            ("99999999999999999999999999999999999999999999", None),
        ] {
            assert_eq!(whole_units(text), expected, "{text}");
        }
        assert_eq!(milli("500m"), Some(500));
        assert_eq!(
            (shown_bytes(64 << 20), shown_bytes(7), shown_bytes(3 << 29)),
            ("64Mi".into(), "7".into(), "1536Mi".into())
        );
    }
}
