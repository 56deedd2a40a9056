//! The agreement of nodes: the summary of a node, the plan for all nodes and the plan as agreed.

use muster::fuzz;
use muster::{Agreement, NodeSummary};
use node::observe::Facts;
use plan::{RunIdentity, Scope, layout};
use preflight::decide::{Stage, decide};
use settings::{LayoutRule, Nproc, Settings, Source, Sourced};
use text::fuzzing::Choices;

use super::super::shared_plan::{plan_as_agreed, plan_for_all, proposal};
use super::super::summary::summary;

fn by_flag<T>(value: T) -> Sourced<T> {
    Sourced::new(value, Source::Flag("--fuzz".to_owned()))
}

/// A node of the job: its settings and its facts.
fn node(choices: &mut Choices<'_>, rank: u32, nnodes: u32) -> (Settings, Facts) {
    const HEADS: &[Option<u32>] =
        &[None, Some(40), Some(24), Some(12), Some(7), Some(1), Some(0), Some(u32::MAX)];
    let rule = choices.of(&[LayoutRule::None, LayoutRule::UlyssesWorld, LayoutRule::UlyssesRing]);
    let arguments: &[&[&str]] = &[
        &[],
        &["--ulysses_size", "4"],
        &["--ring_size", "2"],
        &["--ulysses_size", "{ulysses_size}"],
    ];
    let mut settings = plan::fixtures::settings(choices.of(arguments));
    settings.nnodes = Some(by_flag(nnodes));
    settings.node_rank = Some(by_flag(rank));
    settings.master_addr = Some(by_flag("10.0.0.1".to_owned()));
    settings.master_port = Some(by_flag(29500));
    settings.layout.rule = by_flag(rule);
    settings.layout.heads = choices.of(HEADS).map(by_flag);
    if let count @ 1..=9 = choices.byte() {
        settings.nproc_per_node = by_flag(Nproc::Count(count.into()));
    }
    if let least @ 1..=9 = choices.byte() {
        settings.min_nproc = Some(by_flag(least.into()));
    }
    (settings, plan::fixtures::facts(u32::from(choices.byte() % 10)))
}

/// The node summary that a node sends: the true one or an invented one.
fn shown(choices: &mut Choices<'_>, honest: NodeSummary) -> Option<NodeSummary> {
    match choices.byte() {
        0x80.. => {
            let (most, heads, exact) = (choices.number(), choices.number(), choices.number());
            let clock_offset = i64::from(choices.number()) << (choices.byte() % 64);
            let some = |n: u32| (!n.is_multiple_of(3)).then_some(n);
            let (heads, exact) = (some(heads), some(exact));
            Some(NodeSummary { most, heads, exact, clock_offset, ..honest })
        }
        // The remaining bytes, unchanged.
        0x7f => fuzz::read_summary(choices.0),
        _ => Some(honest),
    }
}

/// Up to five nodes with arbitrary settings, GPUs and false summaries.
///
/// Either a node is refused before the start, or the agreed layout follows the layout rule and
/// stays within every node summary. A node that accepts it runs as many processes as all the
/// others, on GPUs that it has.
pub fn agreement(data: &[u8]) -> bool {
    let mut choices = Choices(data);
    let nnodes = u32::from(choices.byte() % 4) + 2;
    let common = choices.0;
    let mut nodes = Vec::new();
    let mut cards: Vec<NodeSummary> = Vec::new();
    for rank in 0..nnodes {
        // Most jobs have one image, so other nodes often repeat the choices of node 0.
        let alike = rank > 0 && choices.byte() < 0xc0;
        let mut shared = Choices(common);
        let theirs = if alike { &mut shared } else { &mut choices };
        let (mut settings, mut facts) = node(theirs, rank, nnodes);
        if alike {
            facts = plan::fixtures::facts(u32::from(choices.byte() % 10));
        }
        settings.node_rank = Some(by_flag(rank));
        let decided = decide(&settings, &facts, Scope::Alone);
        let Ok(plan) = decided.plan(Stage::BeforeStart) else { return false };
        let Ok(honest) = summary(&settings, &facts, &plan) else { return false };
        let shown =
            if rank == 0 { Some(honest.clone()) } else { shown(&mut choices, honest.clone()) };
        let Some(shown) = shown else { return false };
        // Node 0 parses it in the same way, and closes a connection whose summary it cannot parse.
        let Some(shown) = fuzz::read_summary(&fuzz::write_summary(shown)) else {
            return false;
        };
        let is_honest = shown == honest;
        cards.push(NodeSummary { node: rank, ..shown });
        nodes.push((settings, facts, is_honest));
    }
    let Ok((differences, fewest, heads)) = fuzz::compared(&cards) else { return false };
    let [(settings, facts, _), ..] = nodes.as_slice() else { return false };
    let Ok(plan) = plan_for_all(settings, facts, &differences, fewest, heads) else { return false };
    let identity = RunIdentity {
        run_id: "run-1".to_owned(),
        timestamp: "20250102-030405".to_owned(),
        master_port: 29500,
    };
    let proposed = proposal(&plan, &identity, 0);
    if !fuzz::fits(&cards, proposed.nproc) {
        return false;
    }
    let Some(agreed) = fuzz::sent(proposed.clone()) else {
        panic!("no node can read it: {proposed:?}");
    };
    assert_eq!(agreed, proposed);
    let Agreement { nproc, world, ulysses, ring, heads, .. } = agreed;
    assert_eq!((agreed.nnodes, nnodes * nproc), (nnodes, world));
    assert!(
        layout::is_legal(plan.layout.rule, world, heads, ulysses, ring),
        "{:?}: {agreed:?}",
        plan.layout.rule
    );
    for (card, (settings, facts, is_honest)) in cards.iter().zip(&nodes) {
        assert!(nproc <= card.exact.unwrap_or(card.most), "{agreed:?} {card:?}");
        let Ok(own) = plan_as_agreed(settings, facts, &agreed) else { continue };
        assert_eq!((own.nproc_per_node, own.world_size), (nproc, world), "{card:?}");
        let layout = &own.layout;
        assert_eq!((layout.ulysses_size, layout.ring_size), (ulysses, ring), "{card:?}");
        let gpus = u32::try_from(own.gpus.iter().filter(|gpu| gpu.selected).count());
        let gpus = gpus.unwrap_or(u32::MAX);
        assert!(!is_honest || gpus == 0 || gpus == nproc, "{gpus} GPUs for {nproc}: {card:?}");
    }
    true
}
