//! Nodes that failed: remembered beside the logs, so that later launches prefer a spare to them.
//!
//! A node is lost, or its failure calls for another node: the leader writes a line of it, and the node itself too, since
//! the logs may lie on a disk of each node. A node with a line of the last days says so in the muster. Lines are only
//! ever appended; an admin who has repaired a node appends that it is to be forgotten.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::collect::log_candidates;
use linux::deadline::with_deadline_async;
use linux::host::Host;
use linux::regular_file;
use muster::{Gathered, NodeSummary};
use settings::Settings;
use text::lang::Text;
use text::order::Ordered;
use text::text;

/// Beside the folders of all runs; readers of runs pass over hidden files.
pub(super) const FILE: &str = ".nodes.jsonl";
/// Bytes of the end of the file that are read.
const READ: u64 = 256 << 10;
/// A node that did not fail for so long is as good as any other.
const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 3600);
/// Milliseconds by which the clock of another node may be ahead.
const AHEAD: i64 = 3_600_000;
/// Time limit for a mount that does not answer.
const LOOK: Duration = Duration::from_secs(1);
/// Milliseconds within which a second line of the same failure says nothing new.
const SAME: i64 = 60_000;
/// Variables with the name by which the admin of a cluster knows the node.
pub(super) const NAMES: &[&str] =
    &["SLURMD_NODENAME", "NODE_NAME", "K8S_NODE_NAME", "KUBE_NODE_NAME", "MY_NODE_NAME"];

/// What an incident says of a node that was repaired.
const FORGOTTEN: &str = "forgotten";

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Incident {
    /// Milliseconds since 1970.
    pub(super) at: i64,
    /// The name of the node, or the id of its board, as [`identity`] gives it.
    pub(super) node: String,
    /// Its host name at that time.
    #[serde(default)]
    pub(super) host: String,
    /// Of the cause, else of the verdict.
    pub(super) id: String,
    #[serde(default = "nothing")]
    pub(super) text: Text,
    /// The id of the run.
    #[serde(default)]
    pub(super) run: String,
}

fn nothing() -> Text {
    Text::same(String::new())
}

/// What stays the same of this node from one launch to the next: the name that the cluster gives it, else its host name,
/// else the id of its board. None: its names belong to a container, and the board has no id that this user may read.
pub(super) fn identity(host: &Host, hostname: &str) -> Option<String> {
    let named = NAMES.iter().find_map(|name| host.variable(name));
    // Lines for a shell have it.
    let is_name = |name: &String| {
        let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"._-:".contains(&it);
        !name.is_empty() && name.bytes().all(is_plain)
    };
    let named = named.map(|name| name.trim().to_owned()).filter(is_name);
    let is_pod = host.variable("KUBERNETES_SERVICE_HOST").is_some();
    // Docker calls a container by twelve digits of its id.
    let is_container = hostname.len() == 12 && hostname.bytes().all(|it| it.is_ascii_hexdigit());
    let own = Some(hostname.to_owned()).filter(|own| !is_pod && !is_container && is_name(own));
    let board = || {
        let id = host.read("/sys/class/dmi/id/product_uuid").ok()?;
        Some(id.trim().to_owned()).filter(|id| !id.is_empty())
    };
    named.or(own).or_else(board)
}

/// The incidents at the end of the file, oldest first. Lines that are none are passed over.
pub(super) fn read(folder: &Path) -> io::Result<Vec<Incident>> {
    let (mut file, size) = regular_file::open(&folder.join(FILE))?;
    file.seek(SeekFrom::Start(size.saturating_sub(READ)))?;
    let mut bytes = Vec::new();
    file.take(READ).read_to_end(&mut bytes)?;
    let lines = bytes.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

/// Appends an incident; one write, so that no line of another node is torn.
pub(super) fn append(folder: &Path, incident: &Incident) -> io::Result<()> {
    // A full disk may have torn the line before.
    let line = format!("\n{}\n", serde_json::to_string(incident)?);
    let path = folder.join(FILE);
    let file = match regular_file::open_to_lock(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            File::options().append(true).create(true).open(&path)
        }
        opened => opened,
    };
    file?.write_all(line.as_bytes())
}

/// An admin has repaired this node.
pub(super) fn forgotten(node: &str) -> Incident {
    let (host, text, run) = (String::new(), nothing(), String::new());
    Incident { at: muster::now(), node: node.to_owned(), host, id: FORGOTTEN.to_owned(), text, run }
}

/// The nodes that failed in the last days and were not repaired since, each with its incidents, oldest first.
pub(super) fn remembered(
    mut incidents: Vec<Incident>,
    now: i64,
) -> BTreeMap<String, Vec<Incident>> {
    let days = i64::try_from(REMEMBERED.as_millis()).unwrap_or(i64::MAX);
    // A line of a clock that is far ahead would never age.
    let of_last_days = now.saturating_sub(days)..now.saturating_add(AHEAD);
    let mut nodes: BTreeMap<String, Vec<Incident>> = BTreeMap::new();
    // They may be of several folders.
    incidents.order_by_key(|one| one.at);
    for one in incidents.into_iter().filter(|one| of_last_days.contains(&one.at)) {
        if one.id == FORGOTTEN {
            nodes.remove(&one.node);
            continue;
        }
        let all = nodes.entry(one.node.clone()).or_default();
        // The leader and the node itself write of the same failure.
        let is_same = |last: &&Incident| {
            (&last.run, &last.id) == (&one.run, &one.id) && one.at - last.at < SAME
        };
        if all.last().filter(is_same).is_none() {
            all.push(one);
        }
    }
    nodes
}

/// The remembered nodes as this launch knows them.
#[derive(Default)]
pub(super) struct BadNodes {
    /// Those of earlier launches, with the id of the last failure.
    known: OnceLock<BTreeMap<String, String>>,
    /// Those of which an admin was told, and for which failure.
    told: Mutex<BTreeSet<(String, String)>>,
}

impl BadNodes {
    pub(super) fn known(&self) -> BTreeMap<String, String> {
        self.known.get().cloned().unwrap_or_default()
    }

    /// Reads what earlier launches wrote. A file that cannot be read remembers nothing.
    pub(super) async fn look(&self, host: &Host, settings: &Settings) {
        let candidates = log_candidates(host, settings);
        let read = with_deadline_async(LOOK, move || {
            candidates.iter().filter_map(|one| read(&one.path).ok()).flatten().collect()
        });
        let nodes = remembered(read.await.unwrap_or_default(), muster::now());
        let last = |(node, all): (String, Vec<Incident>)| Some((node, all.into_iter().last()?.id));
        let _ = self.known.set(nodes.into_iter().filter_map(last).collect());
    }

    /// Whether this was not told yet.
    pub(super) fn is_new(&self, node: &str, id: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.insert((node.to_owned(), id.to_owned()))
    }
}

/// What the nodes that come say of those that failed before.
pub(super) fn said(gathered: &Gathered) -> Vec<Text> {
    let line = |(one, is_parked): (&NodeSummary, bool)| {
        let (node, host, id) = (one.node, &one.hostname, one.remembered.as_ref()?);
        Some(match is_parked {
            true => text!(
                "node {node} ({host}) failed in the last days ({id}): another one has its seat",
                "节点 {node}（{host}）近日发生过故障（{id}）：由其他节点占用其席位"
            ),
            false => text!(
                "node {node} ({host}) failed in the last days ({id}), and has a seat: it leads, or no other node is as large; ranklaunch nodes shows more",
                "节点 {node}（{host}）近日发生过故障（{id}），但仍占有席位：它主持任务，或没有同样大小的其他节点；详见 ranklaunch nodes"
            ),
        })
    };
    let seated = gathered.summaries.iter().map(|one| (one, false));
    let parked = gathered.parked.iter().map(|one| (one, true));
    seated.chain(parked).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn incident(node: &str, at: i64, id: &str) -> Incident {
        Incident { at, id: id.to_owned(), ..forgotten(node) }
    }

    #[test]
    fn failures_of_the_last_days_are_remembered_until_the_node_is_repaired() {
        let day = 24 * 3600 * 1000;
        let all = vec![
            incident("old", 0, "gpu.lost"),
            incident("b", 3 * day, "node.died"),
            incident("a", 4 * day, "xid.79"),
            incident("b", 5 * day, FORGOTTEN),
            incident("a", 6 * day, "node.cut"),
            incident("c", 6 * day, FORGOTTEN),
            incident("c", 8 * day, "gpu.lost"),
            incident("ahead", 90 * day, "gpu.lost"),
        ];
        let found = remembered(all, 8 * day);
        let ids: Vec<(&str, Vec<&str>)> = found
            .iter()
            .map(|(node, all)| (node.as_str(), all.iter().map(|one| one.id.as_str()).collect()))
            .collect();
        assert_eq!(ids, [("a", vec!["xid.79", "node.cut"]), ("c", vec!["gpu.lost"])]);
    }

    #[test]
    fn lines_survive_what_else_the_file_holds() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(read(folder.path()).is_err());
        append(folder.path(), &incident("a", 7, "xid.79")).expect("it is written");
        let mut bytes = std::fs::read(folder.path().join(FILE)).expect("the file");
        bytes.extend_from_slice(
            b"{\"at\": 1, \"node\": \n\xff\n[]\n{\"at\":2,\"node\":\"b\",\"id\":\"x\",\"new\":1}\n{\"at\":3,\"nod",
        );
        std::fs::write(folder.path().join(FILE), &bytes).expect("written");
        append(folder.path(), &incident("c", 8, "gpu.lost")).expect("it is written");
        let nodes: Vec<String> =
            read(folder.path()).expect("read").into_iter().map(|one| one.node).collect();
        assert_eq!(nodes, ["a", "b", "c"]);
    }

    #[test]
    fn node_is_known_by_what_outlives_its_launcher() {
        let board = ("/sys/class/dmi/id/product_uuid", "4c4c4544\n");
        let of = |variables: &[(&str, &str)], hostname: &str, files: &[(&str, &str)]| {
            let root = tempfile::tempdir().expect("a folder");
            for (path, text) in files {
                let path = root.path().join(path.trim_start_matches('/'));
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                std::fs::write(path, text).expect("written");
            }
            let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            identity(&Host::replayed(root.path(), variables.collect()), hostname)
        };
        let pod = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");
        let named = |one: &str| Some(one.to_owned());
        assert_eq!(of(&[], "gpu-17", &[board]), named("gpu-17"));
        assert_eq!(of(&[("SLURMD_NODENAME", "n7")], "gpu-17", &[board]), named("n7"));
        assert_eq!(of(&[pod, ("NODE_NAME", "n7")], "worker-3", &[board]), named("n7"));
        assert_eq!(of(&[pod, ("NODE_NAME", "a;b")], "worker-3", &[board]), named("4c4c4544"));
        assert_eq!(of(&[pod], "worker-3", &[board]), named("4c4c4544"));
        assert_eq!(of(&[pod], "worker-3", &[]), None, "the next pod of this name is elsewhere");
        assert_eq!(of(&[], "0a1b2c3d4e5f", &[board]), named("4c4c4544"));
        assert_eq!(of(&[], "0a1b2c3d4e5f", &[]), None);
    }
}
