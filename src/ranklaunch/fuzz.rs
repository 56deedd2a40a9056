//! Fuzz entry points for decisions that involve several crates: the agreement of nodes, and the variables of a
//! platform, of NCCL and of our own settings. Not part of the program.
//!
//! They are in this crate because it alone calls the others. Compiled only for tests and for a
//! fuzzer.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use super::muster_config::summary;
use super::shared_plan::{plan_as_agreed, plan_for_all, proposal};
use linux::host::Host;
use muster::{Agreement, NodeSummary, fuzz};
use node::observe;
use node::observe::Facts;
use plan::{Plan, RunIdentity, Scope, layout};
use preflight::decide::{Stage, decide};
use report::{closing, plan_forms, plan_view};
use settings::cli::Options;
use settings::contract::Contract;
use settings::{LayoutRule, Nproc, Settings, Source, Sourced};
use text::escape::printable;
use text::fuzzing::{Choices, assert_printable};
use text::lang::{Lang, Text};
use verdict::{Refusal, Verdict};

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
    let scope = Scope::ForAll { fewest, heads, seat: None };
    let Ok(plan) = plan_for_all(settings, facts, &differences, scope) else { return false };
    let identity = RunIdentity {
        run_id: "run-1".to_owned(),
        timestamp: "20250102-030405".to_owned(),
        master_port: 29500,
        resume: None,
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
        let Ok(own) = plan_as_agreed(settings, facts, &agreed, card.node) else { continue };
        assert_eq!((own.nproc_per_node, own.world_size), (nproc, world), "{card:?}");
        let layout = &own.layout;
        assert_eq!((layout.ulysses_size, layout.ring_size), (ulysses, ring), "{card:?}");
        let gpus = u32::try_from(own.gpus.iter().filter(|gpu| gpu.selected).count());
        let gpus = gpus.unwrap_or(u32::MAX);
        assert!(!is_honest || gpus == 0 || gpus == nproc, "{gpus} GPUs for {nproc}: {card:?}");
    }
    true
}

/// A line of the input that is not a variable: the number of GPUs of the node.
const GPUS: &str = "gpus:";

/// Lines of `NAME=value`, the variables of a container.
///
/// They give a plan that keeps its own rules, or a refusal in both languages. A refusal about the membership names one
/// of the variables or values. The same variables give the same result.
pub fn environment(data: &[u8]) -> bool {
    let mut environment: BTreeMap<OsString, OsString> = BTreeMap::new();
    let mut gpus = 8;
    for line in data.split(|byte| *byte == b'\n') {
        if let Some(count) = line.strip_prefix(GPUS.as_bytes()) {
            gpus = u32::from(count.first().copied().unwrap_or_default() % 17);
            continue;
        }
        let Some(at) = line.iter().position(|byte| *byte == b'=').filter(|at| *at > 0) else {
            continue;
        };
        // No variable holds a zero byte.
        let of =
            |part: &[u8]| OsString::from_vec(part.iter().copied().filter(|b| *b != 0).collect());
        environment.insert(of(&line[..at]), of(&line[at + 1..]));
    }
    let host = Host::replayed("/nonexistent", environment.clone());
    let (first, again) = (planned(&host, gpus), planned(&host, gpus));
    assert_eq!(format!("{first:?}"), format!("{again:?}"));
    match first {
        Ok(plan) => {
            check(&plan);
            true
        }
        Err(refusal) => {
            refused(&refusal, &environment);
            refusal.verdict == Verdict::Membership
        }
    }
}

fn planned(host: &Host, gpus: u32) -> Result<Plan, Refusal> {
    let program = vec!["generate.py".into(), "--ulysses_size".into(), "{ulysses_size}".into()];
    let options = Options { program, ..Options::default() };
    let settings = Settings::read(&options, host)?;
    let mut facts = plan::fixtures::facts(gpus);
    facts.contract = Contract::read(host, None, settings.own_platform());
    facts.environment = observe::environment(host);
    facts.network.nccl = observe::network::nccl_settings(host);
    if let Some(value) = host.variable("CUDA_VISIBLE_DEVICES") {
        facts.gpus.visible = observe::gpu::visible(Some(&value), &facts.gpus.gpus);
        facts.gpus.cuda_visible_devices = Some(value);
    }
    decide(&settings, &facts, Scope::Alone).plan(Stage::BeforeStart)
}

fn said(texts: &[&Text]) {
    for text in texts {
        assert!(!text.en.trim().is_empty() && !text.zh.trim().is_empty(), "{text:?}");
    }
}

fn check(plan: &Plan) {
    let member = &plan.membership;
    assert!(member.node_rank < member.nnodes && member.master_port > 0, "{member:?}");
    assert!(!member.master_addr.trim().is_empty(), "{member:?}");
    let world = u64::from(member.nnodes) * u64::from(plan.nproc_per_node);
    assert_eq!(u64::from(plan.world_size), world, "{member:?}");
    let own = &plan.layout;
    let legal =
        layout::is_legal(own.rule, plan.world_size, own.heads, own.ulysses_size, own.ring_size);
    assert!(legal, "{own:?} on {} ranks", plan.world_size);
    let gpus = plan.gpus.iter().filter(|gpu| gpu.selected).count();
    assert!(gpus == 0 || gpus == plan.nproc_per_node as usize, "{gpus} GPUs: {member:?}");
    for one in &plan.decisions {
        said(&[&one.because]);
        assert!(!one.source.is_empty(), "{one:?}");
    }
    plan.warnings.iter().for_each(|one| said(&[&one.text, &one.hint]));
    for lang in [Lang::En, Lang::Zh] {
        let text = plan_view::text(plan, lang, plan_view::Shown { verbose: true, width: Some(80) });
        assert_printable(&printable(&text));
        let json = plan_forms::json(plan, lang, Path::new("/bin/ranklaunch"));
        assert_eq!(json["schema"], 1);
    }
    // A shell that reads the text finds an end to every quote.
    let shell = plan_forms::shell(plan);
    assert!(shlex::split(&shell).is_some_and(|words| !words.is_empty()), "{shell}");
}

fn refused(refusal: &Refusal, environment: &BTreeMap<OsString, OsString>) {
    let code = refusal.verdict.code();
    assert!((64..128).contains(&code), "{refusal:?}");
    said(&[&refusal.text, &refusal.hint]);
    for lang in [Lang::En, Lang::Zh] {
        assert_printable(&printable(&closing::refusal(refusal, code, lang)));
    }
    if refusal.verdict == Verdict::Membership {
        let words = format!("{} {}", refusal.text.en, refusal.hint.en);
        let names = environment.keys().any(|name| words.contains(&*name.to_string_lossy()));
        assert!(names || words.contains("--"), "no variable is named: {words}");
    }
}
