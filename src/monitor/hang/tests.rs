//! Ranks at a place, nodes of them, and their judgement, for the tests of both kinds of evidence.

use super::judge::{Judgement, judge};
use super::words::Kind;
use super::{DeadChild, NodeEvidence, RankEvidence};
use crate::watch::{Behind, GpuUse, RasVerdict, Reason, ReasonKind};
use diagnose::stacks::{
    Frame, KernelState, ProcessStacks, PythonStack, RankStacks, Syscall, ThreadStack, Unread,
};
use text::lang::Text;
use text::rank::{GlobalRank, LocalRank};
use verdict::Confidence;

mod gathered;
mod stacks;

fn frame(place: &str) -> Frame {
    let (file, rest) = place.rsplit_once(':').expect("FILE:LINE function");
    let (line, function) = rest.split_once(' ').expect("a function");
    let line = line.parse().expect("a line");
    Frame { function: function.to_owned(), file: file.to_owned(), line: Some(line), first_line: 1 }
}

fn thread(state: char, frames: &[&str]) -> ThreadStack {
    let kernel =
        KernelState { name: "python".to_owned(), state, wchan: None, cpu_ms: 0, syscall: None };
    let python = PythonStack {
        interpreter: 0,
        holds_gil: Some(false),
        frames: frames.iter().map(|place| frame(place)).collect(),
        cut: false,
        moving: false,
        unread: None,
    };
    ThreadStack { tid: Some(1), kernel: Some(kernel), python: Some(python) }
}

fn process(threads: Vec<ThreadStack>) -> ProcessStacks {
    ProcessStacks {
        pid: 100,
        name: "python".to_owned(),
        command: "python train.py".to_owned(),
        python: Some("3.11.7".to_owned()),
        unread: None,
        threads,
        threads_left_out: 0,
    }
}

fn rank(number: u32, threads: Vec<ThreadStack>, children: Vec<ProcessStacks>) -> RankEvidence {
    let stacks = RankStacks {
        rank: GlobalRank(number),
        local_rank: LocalRank(number),
        process: process(threads),
        children,
        children_left_out: 0,
    };
    RankEvidence { stacks: Some(stacks), ..RankEvidence::of(GlobalRank(number)) }
}

const REDUCE: &[&str] = &[
    "/v/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:3000 all_reduce",
    "/job/train.py:50 step",
];

fn waits(number: u32) -> RankEvidence {
    rank(number, vec![thread('S', REDUCE)], Vec::new())
}

fn judged(ranks: Vec<RankEvidence>) -> Judgement {
    let world = u32::try_from(ranks.len()).expect("few");
    judge(&[node(world, ranks)], &[], true)
}

fn node(world: u32, ranks: Vec<RankEvidence>) -> NodeEvidence {
    NodeEvidence {
        node: 0,
        world,
        ranks,
        traffic: false,
        is_cut: false,
        ras: None,
        reasons: Vec::new(),
        gpus: Vec::new(),
        moved_ms: None,
        took_ms: 0,
    }
}

/// The first culprit: rank, kind, line.
fn first(judgement: &Judgement) -> Option<(Option<u32>, Kind, String)> {
    let Judgement::Hangs(hang) = judgement else { return None };
    let first = hang.culprits.first()?;
    let frame = first.frame.as_ref().map(ToString::to_string);
    Some((first.rank, first.kind, frame.unwrap_or_default()))
}

const DATA: &str = "/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py:1200 _next_data";

/// A record of entries: group, name, whether it has completed.
fn record(entries: &[(&str, &str, bool)]) -> String {
    let entries = entries.iter().enumerate().map(|(number, (group, name, done))| {
        let before = &entries[..number];
        let seq = 1 + before.iter().filter(|(of, ..)| of == group).count();
        serde_json::json!({
            "record_id": number, "pg_id": 0, "process_group": [group, group], "op_id": number,
            "collective_seq_id": seq, "p2p_seq_id": 0, "is_p2p": false, "profiling_name": name,
            "time_created_ns": 1_700_000_000_000_000_000_i64 + i64::try_from(number).expect("few"),
            "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
            "state": "scheduled", "retired": done, "timeout_ms": 600_000,
        })
    });
    let entries: Vec<serde_json::Value> = entries.collect();
    let group = |name, ranks| serde_json::json!({ "name": name, "desc": name, "ranks": ranks });
    let config =
        serde_json::json!({ "a": group("a", "[0, 1, 2, 3]"), "b": group("b", "[0, 1, 2, 3]") });
    serde_json::json!({ "version": "2.10", "entries": entries, "pg_config": config, "pg_status": {} })
        .to_string()
}
