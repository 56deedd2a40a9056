//! Invariants of every end, whatever the fault.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::round::{Node, Round};
use crate::spec::{Fault, Kind, Spec};
use harness::Role;

/// All violations of this end.
pub(crate) fn complaints(round: &Round) -> Vec<String> {
    let mut found = Vec::new();
    for (number, node) in (0..).zip(&round.nodes) {
        if !node.left.is_empty() {
            found.push(format!("left: {}", node.left.join(", ")));
        }
        found.extend(Expected::of(&round.spec, number, round.victim).complaints(number, node));
        found.extend(bytes(&round.spec, number, node));
        found.extend(saved(&round.spec, number, node));
        found.extend(shown(&round.spec, number, node));
        if !round.missed {
            found.extend(stepped(&round.spec, number, node));
        }
        for complaint in &mut found {
            if !complaint.starts_with("node ") {
                *complaint = format!("node {number} {complaint}\n{}", node.console);
            }
        }
    }
    found
}

/// The report about the fault that is expected of a node.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Expected {
    code: i32,
    /// Accepted ids, each with words that name the fault.
    causes: Vec<(&'static str, String)>,
    /// Accepted nodes.
    nodes: Vec<u32>,
    rank: Option<u32>,
}

impl Expected {
    pub(crate) fn of(spec: &Spec, node: u32, victim: Option<u32>) -> Expected {
        let say = |id: &'static str, words: &str| (id, words.to_owned());
        let hit_by = |hit: u32, code: i32, other: i32, causes: Vec<(&'static str, String)>| {
            let code = if hit == node { code } else { other };
            Expected { code, causes, nodes: vec![hit], rank: None }
        };
        match spec.fault {
            Fault::Term { node: hit } => {
                hit_by(hit, 143, 143, vec![say("stopped.signal", "SIGTERM")])
            }
            Fault::Kill { node: hit, role } => {
                let killed = say("rank.signal", "was killed by SIGKILL");
                let died = say("node.died", &format!("the agent of node {hit} ("));
                // A connection with unread bytes is reset, which proves nothing.
                let cut = say("node.cut", &format!("the connection to node {hit} ("));
                let causes = match role {
                    // The guard's end reaches the other nodes as a message of its agent, or as its
                    // silence.
                    Role::Guard if hit == node => vec![say("guard.killed", "guard")],
                    Role::Guard => vec![say("guard.killed", "guard"), died, cut],
                    Role::Agent if hit == node => vec![say("agent.killed", "SIGKILL")],
                    Role::Agent => vec![died, cut],
                    Role::Engine => vec![say("engine.gone", "SIGKILL")],
                    // A shim that is killed takes its rank with it, and either end may be seen
                    // first.
                    Role::Shim => vec![say("shim.killed", "the shim of"), killed],
                    Role::Rank | Role::Grandchild => vec![killed],
                    Role::Probe => vec![],
                };
                let rank = if matches!(role, Role::Shim | Role::Rank) { victim } else { None };
                Expected { rank, ..hit_by(hit, 137, 143, causes) }
            }
            // A node that is cut off receives nothing from the others; node 0 is the centre.
            Fault::Cut { node: hit } => {
                let nodes: Vec<u32> = match (hit, node) {
                    (0, 0) => (1..spec.nodes).collect(),
                    (hit, node) if hit == node => vec![0],
                    (hit, _) => vec![hit],
                };
                let causes = vec![say("node.silent", "nothing was heard from node ")];
                Expected { code: 143, causes, nodes, rank: None }
            }
            _ => match spec.ends {
                (Some(rank), code) => {
                    let causes = vec![say("rank.exit", &format!("with code {code}"))];
                    // 2, 126 and 127 stay unchanged, whatever is retried.
                    let other = if matches!(code, 2 | 126 | 127) { 92 } else { 143 };
                    let hit = hit_by(rank / spec.local(), code, other, causes);
                    Expected { rank: Some(rank), ..hit }
                }
                (None, code) => {
                    let causes = vec![say("done", "all ranks ended with code 0")];
                    Expected { code, causes, nodes: vec![node], rank: None }
                }
            },
        }
        .of_engine(spec.engine)
    }

    /// Engine `command` has no ranks, so the report names the node.
    fn of_engine(mut self, engine: &str) -> Expected {
        if engine == "command" {
            self.rank = None;
        }
        self
    }

    pub(crate) fn complaints(&self, number: u32, node: &Node) -> Vec<String> {
        let mut found = Vec::new();
        if node.code != self.code {
            found.push(format!("exit code {} instead of {}", node.code, self.code));
        }
        match &node.message {
            Some(message) => {
                let own = message["node"].is_null().then_some(number);
                found.extend(self.verdict(&message["verdict"], message, own));
            }
            None => found.push("no termination message".to_owned()),
        }
        if let Some(run) = &node.run {
            let verdict = &run["verdict"];
            // A node that is alone is not named anywhere.
            let own = verdict["node"].is_null().then_some(number);
            found.extend(self.verdict(&verdict["id"], verdict, own));
        }
        found
    }

    fn verdict(&self, id: &Value, said: &Value, own: Option<u32>) -> Option<String> {
        let number = |name: &str| said[name].as_u64().and_then(|value| u32::try_from(value).ok());
        let text = said["text"].as_str().unwrap_or_default();
        let is = |(cause, words): &(&'static str, String)| id == cause && text.contains(words);
        let node = own.or(number("node"));
        let wrong = if !self.causes.iter().any(is) {
            "another cause"
        } else if !node.is_some_and(|node| self.nodes.contains(&node)) {
            "another node"
        } else if self.rank.is_some() && number("rank") != self.rank {
            "another rank"
        } else if said["code"] != self.code {
            "another code"
        } else {
            return None;
        };
        Some(format!("{wrong} in the verdict {said} than {self:?}"))
    }
}

pub(crate) fn log_of(folder: &Path, node: u32, rank: u32) -> PathBuf {
    folder.join(format!("ranklaunch-logs/latest/node-{node}/attempt-0/rank-{rank:05}.out"))
}

/// True if this node's launcher is killed before it can count.
fn dies(spec: &Spec, number: u32) -> bool {
    matches!(
        spec.fault,
        Fault::Kill { node: hit, role: Role::Guard | Role::Agent } if hit == number
    )
}

fn ranks(spec: &Spec, number: u32) -> std::ops::Range<u32> {
    number * spec.local()..(number + 1) * spec.local()
}

/// Every rank must save before a stop ends it.
fn saved(spec: &Spec, number: u32, node: &Node) -> Vec<String> {
    let saves = spec.helpers > 0;
    let lost = |rank: &u32| saves && !node.folder.join(format!("saved-{rank}")).exists();
    ranks(spec, number).filter(lost).map(|rank| format!("rank {rank} has not saved")).collect()
}

/// The output of the ranks is in their files, or counted as dropped in run.json.
fn bytes(spec: &Spec, number: u32, node: &Node) -> Vec<String> {
    let mut found = Vec::new();
    // A deleted log folder takes its files with it.
    if spec.fault.kind() == Kind::FolderDeleted || dies(spec, number) {
        return found;
    }
    let full = spec.fault.kind() == Kind::DiskFull && number == 0;
    if node.run.is_none() {
        let said = node.console.contains("cannot write run.json in ");
        if !full || !said {
            return vec!["there is no run.json, and nobody said why".to_owned()];
        }
    }
    for rank in ranks(spec, number) {
        let counted = std::fs::read(node.folder.join(format!("bytes-{rank}"))).unwrap_or_default();
        let counted = counted.try_into().map_or(0, u64::from_ne_bytes);
        let log = std::fs::read(log_of(&node.folder, number, rank)).unwrap_or_default();
        let wrong = match &node.run {
            Some(run) => account(counted, &log, &owner(run, rank)),
            // Without an account, the console must have named each incomplete file.
            None => {
                let name = format!("log file rank-{rank:05}.out cannot be written");
                let whole = log.len() as u64 >= counted || node.console.contains(&name);
                (!whole).then(|| format!("{counted} bytes written, {} in the file", log.len()))
            }
        };
        found.extend(wrong.map(|wrong| format!("rank {rank}: {wrong}")));
    }
    found
}

/// The lines of every rank are on the console in order; missing lines are reported at the gap.
fn shown(spec: &Spec, number: u32, node: &Node) -> Vec<String> {
    let Some(out) = &node.out else { return Vec::new() };
    ranks(spec, number)
        .filter_map(|rank| {
            let run = node.run.as_ref().filter(|_| !dies(spec, number));
            let lines = run.map_or(0, |run| owner(run, rank)["lines"].as_u64().unwrap_or_default());
            let wrong = gap_on_console(out, rank, lines)?;
            Some(format!("rank {rank}: {wrong}"))
        })
        .collect()
}

/// The first of `lines` lines that the console lacks without a message.
fn gap_on_console(out: &str, rank: u32, lines: u64) -> Option<String> {
    let mark = format!("rank {rank} line ");
    let (mut next, mut said_gap) = (0u64, false);
    // An incomplete line of a launcher that was killed does not count.
    for line in out.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        if line.ends_with(") dropped") && rank_of(line) == Some(rank) {
            said_gap = true;
            continue;
        }
        let rest = line.split_once(&mark).and_then(|(_, rest)| rest.split(' ').next());
        let said = rest.and_then(|word| word.parse::<u64>().ok());
        let Some(said) = said else { continue };
        if said != next && !said_gap {
            return Some(format!("the console has line {said} in place of {next}"));
        }
        (next, said_gap) = (said + 1, false);
    }
    (next < lines && !said_gap).then(|| format!("the console has {next} of {lines} lines"))
}

/// The rank in `[r03] …` or `[n1] …`, or in `rank 0: …` if there is only one.
fn rank_of(line: &str) -> Option<u32> {
    let named = ["[r", "[n", "rank ", "command of node "];
    let rest = named.iter().find_map(|prefix| line.strip_prefix(prefix))?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// A clock that had to be stepped has jumped, and no duration has jumped with it.
fn stepped(spec: &Spec, number: u32, node: &Node) -> Option<String> {
    let Fault::ClockStep { node: hit, seconds } = spec.fault else { return None };
    let run = node.run.as_ref().filter(|_| hit == number)?;
    let (started, ended) = (run["started"].as_str()?, run["ended"].as_str()?);
    // Times in RFC 3339 and UTC sort as text. All steps are hours, and no job lasts an hour.
    let hour = "2026-01-02T03".len();
    let jumped = if seconds < 0 { ended < started } else { ended[..hour] > started[..hour] };
    if !jumped {
        return Some(format!("no jump of the clock by {seconds} s from {started} to {ended}"));
    }
    let text = node.console.rsplit("── ranklaunch: ").next()?.lines().next()?;
    let said = text.trim_end_matches([')', ' ', 's']).rsplit(' ').next()?.parse::<f64>().ok();
    let sane = said.is_some_and(|said| (0.0..3_600.0).contains(&said));
    (!sane).then(|| format!("the time that the job took: {text:?}"))
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
        // This is the launcher's own line about a gap.
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
    // A line that is cut by a gap shares the line of the mark.
    let slack = gaps * LINE;
    let sum = kept + dropped + cut;
    if sum + slack < read || sum > read + slack {
        return Some(format!("{account}: lost uncounted"));
    }
    None
}
