//! Compares the nodes: differences that are refused, and differences that are only warnings.
//!
//! Pure functions on the summaries of all nodes.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::foreign::understand;
use crate::protocol::{Difference, LISTED, NodeSummary, Property};
use plan::Hardware;
use text::lang::{Text, spaced};
use text::text;
use verdict::{Id, Refusal, Verdict, Warning};

/// Milliseconds; clocks further apart make the order of log lines unreliable.
const CLOCK: u64 = 2_000;

/// Checks the properties that must be equal, or the job is refused.
pub(crate) fn check(own: &NodeSummary, other: &NodeSummary) -> Result<(), Refusal> {
    let (host, first_host) = (&other.hostname, &own.hostname);
    let Text { en: who, zh: who_zh } = other.unit().named(other.node);
    let Text { en: first, zh: first_zh } = own.unit().named(own.node);
    let first_zh = spaced(&first_zh);
    let refuse = |id: Id, text: Text, hint: Text| Err(Refusal::new(id, text, hint));
    if own.unit() != other.unit() {
        return refuse(
            Id::MusterTasks,
            text!(
                "{who} ({host}) and {first} are not of one kind: one is a whole node, the other a single rank",
                "{who_zh}（{host}）与{first_zh} 的含义不一致：一个代表整个节点，另一个只代表一个 rank"
            ),
            text!(
                "start the command once per node, or as many tasks on every node; srun also tells nodes of one task that others have more",
                "请每节点只启动一次，或在每个节点上启动相同数量的 task；srun 会让只有一个 task 的节点得知其他节点有多个"
            ),
        );
    }
    if let (Some(ours), Some(theirs)) = (own.seat, other.seat)
        && ours.nnodes != theirs.nnodes
    {
        let (ours, theirs) = (ours.nnodes, theirs.nnodes);
        return refuse(
            Id::MusterTasks,
            text!(
                "{who} ({host}) counts {theirs} nodes and {first} {ours}, each by the number of tasks on its own node",
                "{who_zh}（{host}）认为共有 {theirs} 个节点，而{first_zh} 认为有 {ours} 个，两者都按各自节点上的 task 数推算"
            ),
            text!(
                "start as many tasks on every node (--map-by ppr:N:node, -ppn N), or start them with srun, which numbers the nodes",
                "请在每个节点上启动相同数量的 task（--map-by ppr:N:node、-ppn N），或改用会给出节点编号的 srun"
            ),
        );
    }
    if own.spares != other.spares {
        let (ours, theirs) = (own.spares, other.spares);
        return refuse(
            Id::MusterNnodes,
            text!(
                "{who} ({host}) counts {theirs} spares, but {first} counts {ours}",
                "{who_zh}（{host}）认为有 {theirs} 个备用节点，而{first_zh} 认为有 {ours} 个"
            ),
            text!(
                "give all nodes the same --spares and --nnodes",
                "请为所有节点指定相同的 --spares 和 --nnodes"
            ),
        );
    }
    if own.engine != other.engine {
        let (ours, theirs) = (name(&own.engine), name(&other.engine));
        return refuse(
            Id::MusterEngine,
            text!(
                "{who} ({host}) would start engine {theirs}, but {first} would start {ours}",
                "{who_zh}（{host}）使用启动引擎 {theirs}，而{first_zh} 使用 {ours}"
            ),
            text!(
                "give all nodes the same --engine and profile",
                "请为所有节点指定相同的 --engine 和配置文件"
            ),
        );
    }
    if own.rule != other.rule {
        let (ours, theirs) = (name(&own.rule), name(&other.rule));
        return refuse(
            Id::MusterRule,
            text!(
                "{who} ({host}) has layout rule {theirs}, but {first} has {ours}",
                "{who_zh}（{host}）的布局规则为 {theirs}，而{first_zh} 为 {ours}"
            ),
            text!(
                "give all nodes the same --layout and profile",
                "请为所有节点指定相同的 --layout 和配置文件"
            ),
        );
    }
    if let (Some(ours), Some(theirs)) = (own.device, other.device)
        && ours != theirs
    {
        let (Text { en: ours, zh: ours_zh }, Text { en: theirs, zh: theirs_zh }) =
            (device(own, ours), device(other, theirs));
        return refuse(
            Id::MusterDevice,
            text!(
                "{who} ({host}) would run its ranks on {theirs}, but {first} ({first_host}) on {ours}",
                "{who_zh}（{host}）的 rank 将在 {theirs_zh} 上运行，而{first_zh}（{first_host}）的在 {ours_zh} 上"
            ),
            text!(
                "run ranklaunch check on the node without GPUs (its GPU request, driver and CUDA_VISIBLE_DEVICES); --device cpu on all nodes uses none, --muster off starts each node by itself",
                "请在没有 GPU 的节点上运行 ranklaunch check（检查其 GPU 申请、驱动与 CUDA_VISIBLE_DEVICES）；在所有节点使用 --device cpu 则都不用 GPU，--muster off 可让各节点自行启动"
            ),
        );
    }
    if let (Some(ours), Some(theirs)) = (own.heads, other.heads)
        && ours != theirs
    {
        return refuse(
            Id::MusterHeads,
            text!(
                "{who} ({host}) counts {theirs} attention heads, but {first} counts {ours}",
                "{who_zh}（{host}）的注意力头数为 {theirs}，而{first_zh} 为 {ours}"
            ),
            text!(
                "give all nodes the same checkpoint, --task and profile, or --heads N",
                "请为所有节点指定相同的检查点、--task 和配置文件，或 --heads N"
            ),
        );
    }
    Ok(())
}

/// Refuses a node whose torch cannot use the store of node 0. Engines without their own torch may start ranks that need
/// no torch.
pub(crate) fn check_store(zero: &NodeSummary, other: &NodeSummary) -> Result<(), Refusal> {
    let version = |torch: &str| torch.parse().ok();
    let (Some(ours), Some(theirs)) = (&zero.torch, &other.torch) else { return Ok(()) };
    let (Some(server), Some(client)) = (version(ours), version(theirs)) else { return Ok(()) };
    let row = other.engine.row();
    if row.modules.is_empty() || understand(server, client, row.launchers_meet) {
        return Ok(());
    }
    let host = &other.hostname;
    let Text { en: who, zh: who_zh } = other.unit().named(other.node);
    let Text { en: first, zh: first_zh } = zero.unit().named(zero.node);
    let first_zh = spaced(&first_zh);
    Err(Refusal::new(
        Id::MusterTorchVersions,
        text!(
            "{who} ({host}) has torch {theirs}, which cannot meet {first}'s torch {ours} in its store: they would wait for each other until a time-out",
            "{who_zh}（{host}）的 torch {theirs} 无法与{first_zh} 的 torch {ours} 在其 store 中会合：双方会一直互相等待，直到超时"
        ),
        text!(
            "use one image on all nodes; --muster off starts anyway",
            "请在所有节点使用同一镜像；--muster off 可强制启动"
        ),
    ))
}

/// Checks a node against node 0.
pub(crate) fn check_node(zero: &NodeSummary, other: &NodeSummary) -> Result<(), Refusal> {
    check(zero, other)?;
    check_store(zero, other)
}

/// Runs [`check`] for all nodes together, since node 0 itself may not know the heads.
pub(crate) fn check_all(summaries: &[NodeSummary]) -> Result<(), Refusal> {
    let knows = summaries.iter().find(|summary| summary.heads.is_some()).or(summaries.first());
    let (Some(zero), Some(knows)) = (summaries.first(), knows) else { return Ok(()) };
    summaries.iter().try_for_each(|summary| {
        check(knows, summary)?;
        check_store(zero, summary)
    })
}

/// The smallest number of processes that a node can run; a fixed number counts as the node's maximum.
pub(crate) fn fewest(summaries: &[NodeSummary]) -> u32 {
    let most = |summary: &NodeSummary| summary.exact.unwrap_or(summary.most);
    summaries.iter().map(most).min().unwrap_or(1).max(1)
}

/// The heads, if at least one node knows them.
pub(crate) fn heads(summaries: &[NodeSummary]) -> Option<u32> {
    summaries.iter().find_map(|summary| summary.heads)
}

/// Refuses nodes that request different numbers of processes, or that cannot run `nproc`.
pub(crate) fn check_exact(summaries: &[NodeSummary], nproc: u32) -> Result<(), Refusal> {
    let misfit =
        |summary: &&NodeSummary| summary.exact.map_or(summary.most < nproc, |exact| exact != nproc);
    let Some(summary) = summaries.iter().find(misfit) else { return Ok(()) };
    let (node, host) = (summary.node, &summary.hostname);
    let Text { en, zh } = match (summary.exact, summary.most) {
        (Some(exact), _) => text!("asks for {exact} processes", "要求 {exact} 个进程"),
        (None, most) => text!("can carry {most} processes", "最多只能运行 {most} 个进程"),
    };
    Err(Refusal::new(
        Id::MusterLayout,
        text!(
            "node {node} ({host}) {en} per node, but {nproc} is the number that fits all nodes",
            "节点 {node}（{host}）{zh}，而适合所有节点的是 {nproc} 个"
        ),
        text!(
            "give all nodes the same --nproc-per-node, or auto",
            "请为所有节点指定相同的 --nproc-per-node，或使用 auto"
        ),
    ))
}

/// `the CPU`, `4 GPUs`
fn device(summary: &NodeSummary, device: Hardware) -> Text {
    let gpus = summary.gpus;
    match device {
        Hardware::Cpus => text!("the CPU", "CPU"),
        Hardware::Gpus => text!("{gpus} GPUs", "{gpus} 个 GPU"),
    }
}

fn name(value: &impl Serialize) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// All other differences: the value of most nodes, and the nodes with another value.
pub(crate) fn differences(summaries: &[NodeSummary]) -> Vec<Difference> {
    let unknown = || "unknown".to_owned();
    let text = |value: &Option<String>| value.clone().unwrap_or_else(unknown);
    let mut found = Vec::new();
    let mut look = |property: Property, value: &dyn Fn(&NodeSummary) -> String| {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for summary in summaries {
            *counts.entry(value(summary)).or_default() += 1;
        }
        // On a tie node 0's side counts as the common one.
        let first = summaries.first().map(value);
        let Some((common, _)) =
            counts.iter().max_by_key(|(value, count)| (**count, Some(*value) == first.as_ref()))
        else {
            return;
        };
        let mut odd: Vec<(u32, String)> = summaries
            .iter()
            .map(|summary| (summary.seat.map_or(summary.node, |seat| seat.node), value(summary)))
            .filter(|(_, value)| value != common)
            .collect();
        // The tasks of one node have the same value.
        odd.dedup();
        if !odd.is_empty() {
            let count = u32::try_from(odd.len()).unwrap_or(u32::MAX);
            let odd = odd.into_iter().take(LISTED).collect();
            found.push(Difference { property, common: common.clone(), odd, count });
        }
    };
    look(Property::Version, &|summary| summary.version.clone());
    look(Property::Command, &|summary| text(&summary.command));
    look(Property::Script, &|summary| text(&summary.script));
    look(Property::Torch, &|summary| text(&summary.torch));
    look(Property::Driver, &|summary| text(&summary.driver));
    look(Property::Gpus, &|summary| summary.gpus.to_string());
    look(Property::Nccl, &|summary| text(&summary.nccl));
    look(Property::Rails, &|summary| summary.rails.to_string());
    look(Property::LinkLayer, &|summary| text(&summary.link_layer));
    look(Property::Mtu, &|summary| summary.mtu.map_or_else(unknown, |mtu| mtu.to_string()));
    look(Property::Rates, &|summary| text(&summary.rates));
    look(Property::Clock, &|summary| {
        if summary.clock_offset.unsigned_abs() < CLOCK {
            "within 2 s".to_owned()
        } else {
            let seconds = summary.clock_offset / 1000;
            if seconds > 0 {
                format!("{seconds} s behind")
            } else {
                format!("{} s ahead", -seconds)
            }
        }
    });
    found
}

/// Refuses differences that would otherwise be warnings (`--muster required`).
pub fn refuse_differences(differences: &[Difference]) -> Result<(), Refusal> {
    let Some(first) = differences.iter().find(|one| one.property != Property::Gpus) else {
        return Ok(());
    };
    let Warning { id, text, .. } = first.warning();
    Err(Refusal::with(
        Verdict::Muster,
        id,
        text,
        text!(
            "make the nodes alike, or use --muster auto, which only warns",
            "请使各节点一致，或使用 --muster auto（仅警告）"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Seat;
    use crate::tests::summary;
    use settings::{Engine, LayoutRule};

    #[test]
    fn differing_required_property_is_refused_by_name() {
        let own = NodeSummary { heads: Some(40), ..summary(0, 3) };
        let other = NodeSummary { heads: Some(40), ..summary(2, 3) };
        assert_eq!(check(&own, &other), Ok(()));
        assert_eq!(
            check(&own, &summary(2, 3)),
            Ok(()),
            "unknown heads are not held against a node"
        );
        for (other, id) in [
            (NodeSummary { engine: Engine::Torchrun, ..other.clone() }, Id::MusterEngine),
            (NodeSummary { rule: LayoutRule::UlyssesWorld, ..other.clone() }, Id::MusterRule),
            (NodeSummary { device: Some(Hardware::Cpus), ..other.clone() }, Id::MusterDevice),
            (NodeSummary { heads: Some(24), ..other.clone() }, Id::MusterHeads),
        ] {
            let refusal = check(&own, &other).expect_err(id.as_str());
            assert_eq!((refusal.id, refusal.verdict.code()), (id, 88));
            assert!(refusal.text.en.contains("node 2 (host-2)"), "{}", refusal.text.en);
        }
    }

    #[test]
    fn incompatible_stores_are_refused_with_both_versions() {
        let of = |node, torch: &str| NodeSummary {
            torch: (!torch.is_empty()).then(|| torch.to_owned()),
            engine: Engine::Torchrun,
            ..summary(node, 2)
        };
        for (engine, server, client, fits) in [
            (Engine::Torchrun, "2.0.1+cu117", "2.0.0", true),
            (Engine::Torchrun, "2.0.1", "2.6.0", false),
            (Engine::Torchrun, "2.6.0", "2.0.1", false),
            (Engine::Torchrun, "2.3.1", "2.1.0", true),
            (Engine::Accelerate, "2.3.1", "2.4.1", false),
            (Engine::Deepspeed, "2.3.1", "2.4.1", true),
            (Engine::Torchrun, "2.4.1", "2.6.0", false),
            (Engine::Torchrun, "2.6.0", "2.4.1", true),
            (Engine::Torchrun, "2.6.0", "2.3.1", false),
            (Engine::Deepspeed, "2.6.0", "2.3.1", true),
            (Engine::Torchrun, "2.5.1", "2.15.0", true),
            (Engine::Torchrun, "", "2.6.0", true),
            (Engine::Torchrun, "odd", "2.6.0", true),
        ] {
            let both = [of(0, server), of(1, client)];
            let found = check_all(&both.map(|one| NodeSummary { engine, ..one }));
            assert_eq!(found.is_ok(), fits, "{engine} {server} {client}");
            if let Err(refusal) = found {
                assert_eq!(refusal.id, Id::MusterTorchVersions);
                let words = format!(
                    "node 1 (host-1) has torch {client}, which cannot meet node 0's torch {server} in its store"
                );
                assert!(refusal.text.en.starts_with(&words), "{}", refusal.text.en);
            }
        }
        let direct = [of(0, "2.0.1"), of(1, "2.6.0")]
            .map(|one| NodeSummary { engine: Engine::Direct, ..one });
        assert_eq!(check_all(&direct), Ok(()), "whether its ranks use torch is not known");
    }

    #[test]
    fn tasks_that_count_other_nodes_are_refused() {
        let task = |rank, node, nnodes| NodeSummary {
            seat: Some(Seat { node, nnodes }),
            ..summary(rank, 8)
        };
        assert_eq!(check(&task(0, 0, 2), &task(5, 1, 2)), Ok(()));
        for (other, said) in [
            (task(5, 3, 4), "task 5 (host-5) counts 4 nodes and task 0 2"),
            (summary(5, 8), "node 5 (host-5) and task 0 are not of one kind"),
        ] {
            let refusal = check(&task(0, 0, 2), &other).expect_err("they do not fit");
            assert_eq!(refusal.id, Id::MusterTasks);
            assert!(refusal.text.en.starts_with(said), "{}", refusal.text.en);
        }
        // A value that all tasks of one node share is listed once.
        let torch = |summary: NodeSummary, torch: &str| NodeSummary {
            torch: Some(torch.to_owned()),
            ..summary
        };
        let summaries = [
            torch(task(0, 0, 2), "2.5"),
            torch(task(1, 0, 2), "2.5"),
            torch(task(2, 0, 2), "2.5"),
            torch(task(3, 1, 2), "2.4"),
            torch(task(4, 1, 2), "2.4"),
        ];
        let text = differences(&summaries)[0].warning().text.en;
        assert_eq!(text, "torch is not the same on all nodes: node 1: 2.4; the others: 2.5");
    }

    #[test]
    fn the_odd_node_is_named() {
        let torch = |version: &str| Some(version.to_owned());
        let summaries = [
            NodeSummary { torch: torch("2.5.1"), ..summary(0, 3) },
            NodeSummary { torch: torch("2.4.0"), ..summary(1, 3) },
            NodeSummary { torch: torch("2.5.1"), clock_offset: -9_500, ..summary(2, 3) },
        ];
        let found = differences(&summaries);
        assert_eq!(found.len(), 2, "{found:?}");
        let text = found[0].warning().text.en;
        assert_eq!(text, "torch is not the same on all nodes: node 1: 2.4.0; the others: 2.5.1");
        assert!(found[1].warning().text.en.contains("node 2: 9 s ahead"), "{:?}", found[1]);
        assert_eq!(differences(&[summary(0, 2), summary(1, 2)]), []);
        assert_eq!(refuse_differences(&found).expect_err("required").verdict.code(), 88);
    }

    #[test]
    fn tie_favours_node_0_long_lists_are_cut() {
        let summaries = [
            NodeSummary { driver: Some("550".to_owned()), ..summary(0, 2) },
            NodeSummary { driver: Some("535".to_owned()), ..summary(1, 2) },
        ];
        assert_eq!(differences(&summaries)[0].common, "550");
        let many: Vec<NodeSummary> = (0..40)
            .map(|node| NodeSummary { gpus: if node < 25 { 8 } else { 7 }, ..summary(node, 40) })
            .collect();
        let found = differences(&many);
        assert_eq!((found[0].odd.len(), found[0].count), (LISTED, 15));
        assert!(found[0].warning().text.en.contains("and 7 more"));
    }

    #[test]
    fn node_with_unfit_process_count_is_named() {
        let summaries = [summary(0, 2), NodeSummary { exact: Some(4), ..summary(1, 2) }];
        assert_eq!(check_exact(&summaries, 4), Ok(()));
        let refusal = check_exact(&summaries, 8).expect_err("4 is not 8");
        assert!(refusal.text.en.contains("node 1 (host-1) asks for 4"));
        let few = [summary(0, 2), NodeSummary { most: 6, ..summary(1, 2) }];
        assert_eq!((fewest(&few), check_exact(&few, 6)), (6, Ok(())));
        let refusal = check_exact(&few, 7).expect_err("6 is fewer than 7");
        assert!(refusal.text.en.contains("node 1 (host-1) can carry 6"));
    }

    /// Node 0 itself may not know the heads.
    #[test]
    fn differing_heads_of_two_nodes_are_refused() {
        let of = |node, heads| NodeSummary { heads, ..summary(node, 4) };
        let mut summaries = vec![of(0, None), of(1, Some(40)), of(2, None), of(3, Some(40))];
        assert_eq!((check_all(&summaries), heads(&summaries)), (Ok(()), Some(40)));
        summaries.push(of(4, Some(24)));
        let text = check_all(&summaries).expect_err("40 is not 24").text.en;
        assert_eq!(text, "node 4 (host-4) counts 24 attention heads, but node 1 counts 40");
    }
}
