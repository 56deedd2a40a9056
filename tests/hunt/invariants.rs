//! What must hold of every end, whatever was done.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::faults::Role;
use crate::round::{Fault, Node, Round, Spec};

/// Everything that is wrong with this end.
pub(crate) fn complaints(round: &Round) -> Vec<String> {
    let mut found = Vec::new();
    for (number, node) in (0..).zip(&round.nodes) {
        if !node.left.is_empty() {
            found.push(format!("node {number} left: {}", node.left.join(", ")));
        }
        let expected = codes(&round.spec, number);
        if !expected.contains(&node.code) {
            let code = node.code;
            found.push(format!(
                "node {number}: exit code {code} instead of {expected:?}\n{}",
                node.console
            ));
        }
        found.extend(verdict(round, number, node));
        found.extend(bytes(&round.spec, number, node));
    }
    found
}

/// The exit codes that are right for a node.
fn codes(spec: &Spec, node: u32) -> Vec<i32> {
    let own = |hit: u32, code: i32, others: i32| vec![if hit == node { code } else { others }];
    match spec.fault {
        Fault::Term { node: hit } => own(hit, 143, 143),
        Fault::Kill { node: hit, .. } => own(hit, 137, 143),
        // Both sides see the other go silent; node 0 is the hub, and one that loses it is alone.
        Fault::Cut { .. } => vec![137, 143],
        _ => match spec.ends {
            (Some(rank), code) => own(rank / spec.local(), code, 92),
            (None, code) => vec![code],
        },
    }
}

/// Whether run.json names what was done; None where there is no run.json to read.
fn verdict(round: &Round, number: u32, node: &Node) -> Option<String> {
    let spec = &round.spec;
    let verdict = &node.run.as_ref()?["verdict"];
    let id = verdict["id"].as_str().unwrap_or_default();
    let (ids, who): (&[&str], Option<u32>) = match spec.fault {
        Fault::Term { .. } => (&["stopped.signal"], None),
        Fault::Kill { role, .. } => match role {
            // The guard's end reaches the others as its agent's word, or as its silence.
            Role::Guard => (&["guard.killed", "node.died"], None),
            Role::Agent => (&["node.died", "agent.killed"], None),
            Role::Engine => (&["engine.gone"], None),
            // A shim that is killed takes its rank with it, and either may be seen first.
            Role::Shim => (&["shim.killed", "rank.signal"], round.victim),
            Role::Rank | Role::Grandchild => (&["rank.signal"], round.victim),
        },
        Fault::Cut { .. } => (&["node.silent", "node.died"], None),
        _ => match spec.ends {
            (Some(rank), code) if code != 0 => (&["rank.exit"], Some(rank)),
            _ => (&["done"], None),
        },
    };
    if !ids.contains(&id) {
        return Some(format!("node {number}: the verdict {verdict} is none of {ids:?}"));
    }
    let said = verdict["rank"].as_u64().and_then(|rank| u32::try_from(rank).ok());
    // Engine `command` has no ranks; there the node says it.
    if who.is_some() && spec.engine != "command" && said != who {
        return Some(format!(
            "node {number}: the verdict {verdict} names another rank than {who:?}"
        ));
    }
    None
}

pub(crate) fn log_of(folder: &Path, node: u32, rank: u32) -> PathBuf {
    folder.join(format!("ranklaunch-logs/latest/node-{node}/attempt-0/rank-{rank:05}.out"))
}

/// What the ranks wrote is in their files, or counted as dropped in run.json.
fn bytes(spec: &Spec, number: u32, node: &Node) -> Vec<String> {
    let mut found = Vec::new();
    // A log folder that somebody deletes takes its files with it, and a launcher that is
    // killed cannot count.
    let dies = matches!(
        spec.fault,
        Fault::Kill { node: hit, role: Role::Guard | Role::Agent } if hit == number
    );
    if spec.fault == Fault::FolderDeleted || dies {
        return found;
    }
    let Some(run) = &node.run else {
        // Where the disk is full there may be no room for it.
        if !matches!(spec.fault, Fault::DiskFull { .. }) {
            found.push(format!("node {number}: there is no run.json\n{}", node.console));
        }
        return found;
    };
    for local in 0..spec.local() {
        let rank = number * spec.local() + local;
        let counted = std::fs::read(node.folder.join(format!("bytes-{rank}"))).unwrap_or_default();
        let counted = counted.try_into().map_or(0, u64::from_ne_bytes);
        let log = std::fs::read(log_of(&node.folder, number, rank)).unwrap_or_default();
        if let Some(wrong) = account(counted, &log, &owner(run, rank)) {
            found.push(format!("node {number} rank {rank}: {wrong}"));
        }
    }
    found
}

fn owner(run: &Value, rank: u32) -> Value {
    let owners = &run["logs"]["owners"];
    let named = [format!("rank {rank}"), format!("command of node {rank}")];
    named.iter().map(|name| owners[name].clone()).find(|owner| !owner.is_null()).unwrap_or_default()
}

/// A line that a rank was writing when it was killed is in the pipe, but not yet in its count.
const LINE: u64 = 256;

fn account(counted: u64, log: &[u8], owner: &Value) -> Option<String> {
    let number = |name: &str| owner[name].as_u64().unwrap_or_default();
    let (read, dropped, cut) =
        (number("bytes"), number("dropped_file_bytes"), number("truncated_bytes"));
    let (mut kept, mut next, mut gaps) = (0u64, 0u64, 0u64);
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        // Our own words about a gap.
        if line.starts_with(b"[ranklaunch]") {
            gaps += 1;
            continue;
        }
        kept += line.len() as u64;
        let said = std::str::from_utf8(line)
            .ok()
            .and_then(|line| line.split(' ').nth(3)?.trim().parse::<u64>().ok());
        if said.is_some_and(|said| said != next) && dropped + cut == 0 && gaps == 0 {
            return Some(format!("line {next} is missing before {said:?}: lost uncounted"));
        }
        next = said.map_or(next, |said| said + 1);
    }
    let account = format!(
        "{counted} bytes written, {read} read, {kept} in the file, {dropped} dropped, {cut} cut"
    );
    if !(counted..=counted + LINE).contains(&read) {
        return Some(format!("{account}: lost uncounted before the file"));
    }
    // A line that a gap cuts in two shares the mark's line.
    let slack = gaps * LINE;
    let sum = kept + dropped + cut;
    if sum + slack < read || sum > read + slack {
        return Some(format!("{account}: lost uncounted"));
    }
    None
}
