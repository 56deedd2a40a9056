//! The logs of several ranks and nodes.

use std::collections::BTreeSet;

use crate::diagnosis_view::{self, View};
use diagnose::{
    Known, LogScan, Node, Origin, Recorded, Scanned, Survived, catalogue, diagnose_knowing,
};
use text::fuzzing::{Choices, assert_printable};
use text::lang::Lang;
use text::rank::GlobalRank;

const IDS: &[&str] = &["cuda_oom", "nccl_timeout", "heads_div", "user_exception", "no_such_row"];

/// Up to five logs, separated by NUL bytes, and the launcher's knowledge about the ranks' ends.
///
/// A cause is a row of the catalogue and a line of one of the logs, no culprit is a victim of itself, and every view is
/// well formed. The same logs give the same result, however they are cut.
pub fn folders(data: &[u8]) -> bool {
    let mut choices = Choices(data);
    let cut = choices.below(200) + 1;
    let known = known(&mut choices);
    let mut parts: Vec<(Origin, &[u8])> = Vec::new();
    while parts.len() < 5 && !choices.is_empty() {
        let number = parts.len();
        let (rank, node) = (choices.byte(), choices.byte());
        let origin = Origin {
            name: format!("rank-{number:05}.out"),
            rank: (rank < 200).then(|| GlobalRank(u32::from(rank % 8))),
            node: (node < 200).then(|| Node::Rank(u32::from(node % 3))),
        };
        parts.push((origin, choices.until_nul()));
    }
    let read = |cut: usize| -> Vec<Scanned> {
        let one = |(number, (origin, bytes)): (usize, &(Origin, &[u8]))| {
            let mut scan = LogScan::new(catalogue(), number, origin.clone());
            bytes.chunks(cut).for_each(|piece| scan.feed(piece));
            scan.finish()
        };
        parts.iter().enumerate().map(one).collect()
    };
    let (mut whole, mut pieces) = (read(usize::MAX), read(cut));
    let diagnosis = diagnose_knowing(catalogue(), &mut whole, &known);
    assert_eq!(diagnosis, diagnose_knowing(catalogue(), &mut pieces, &known));
    if let Some(cause) = &diagnosis.cause {
        let row = catalogue().row(cause.row).expect("a row");
        assert_eq!(row.id, cause.why.id);
        let place = cause.evidence.first;
        let lines = whole.get(place.log).map(|log| log.lines).expect("a log");
        assert!((1..=lines.max(1)).contains(&place.line), "line {} of {lines}", place.line);
        assert!(!cause.why.text.en.is_empty() && !cause.why.text.zh.is_empty());
        if let Some(rank) = cause.why.rank {
            let mut victims = cause.why.victims.iter().flat_map(|one| &one.ranks);
            assert!(!victims.any(|one| *one == rank), "{rank} is a victim of itself");
        }
    }
    let logs = &whole;
    let notes = [];
    let view = View {
        catalogue: catalogue(),
        diagnosis: &diagnosis,
        logs,
        unread: &[],
        notes: &notes,
        verdicts: &[],
    };
    for lang in [Lang::En, Lang::Zh] {
        let text = diagnosis_view::text(view, lang, Some(80));
        assert!(!text.trim().is_empty());
        assert_printable(&text::escape::printable(&text));
        let json = diagnosis_view::json(view, lang);
        assert!(json["schema"] == 1 && json["findings"].is_array(), "{json}");
        assert_eq!(json["cause"].is_null(), diagnosis.cause.is_none());
        let annotated = diagnosis_view::github(view, lang);
        assert!(annotated.lines().all(|line| line.starts_with("::")), "{annotated}");
    }
    !diagnosis.findings.is_empty()
}

fn known(choices: &mut Choices<'_>) -> Known {
    let flags = choices.byte();
    let is = |bit: u8| flags & (1 << bit) != 0;
    let mut ranks = |count: usize| -> Vec<GlobalRank> {
        (0..count).map(|_| GlobalRank(u32::from(choices.byte() % 8))).collect()
    };
    let failed = ranks(usize::from(is(0)) * 2);
    let ended_well: BTreeSet<GlobalRank> = ranks(usize::from(is(1))).into_iter().collect();
    let survived = |choices: &mut Choices<'_>| Survived {
        id: choices.of(IDS).to_owned(),
        rank: Some(u32::from(choices.byte() % 8)),
        text: "RuntimeError: CUDA out of memory".to_owned(),
    };
    let recorded = |choices: &mut Choices<'_>| Recorded {
        id: choices.of(IDS).to_owned(),
        rank: Some(GlobalRank(u32::from(choices.byte() % 8))),
        line: u64::from(choices.byte() % 16),
    };
    Known {
        has_failed: is(2),
        is_whole: is(3),
        unended: is(4),
        ended_well,
        failed,
        survived: if is(5) { vec![survived(choices)] } else { Vec::new() },
        recorded: is(6).then(|| recorded(choices)),
        unheard: if is(7) { BTreeSet::from([0]) } else { BTreeSet::new() },
        ..Known::default()
    }
}
