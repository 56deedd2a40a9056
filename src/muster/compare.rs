//! Do the nodes fit together: what is refused and what is only said.
//!
//! Pure functions on the cards of all nodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::types::{Card, Unit};
use super::wire::clean;
use crate::lang::Text;
use crate::text;
use crate::verdict::{Id, Refusal, Verdict, Warning};

/// Odd nodes that a difference lists.
const LISTED: usize = 8;
/// Clocks further apart than this spoil the order of log lines.
const CLOCK: u64 = 2_000;

/// In what nodes may differ and the job still run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Property {
    Version,
    Script,
    Torch,
    Driver,
    Gpus,
    Nccl,
    Rails,
    LinkLayer,
    Clock,
    // Since version 2 of the protocol.
    Mtu,
    Rates,
}

impl Property {
    fn words(self) -> Text {
        match self {
            Property::Version => text!("ranklaunch", "ranklaunch 版本"),
            Property::Script => text!("the script (its digest)", "脚本（摘要）"),
            Property::Torch => text!("torch", "torch 版本"),
            Property::Driver => text!("the GPU driver", "GPU 驱动"),
            Property::Gpus => text!("the number of GPUs", "GPU 数量"),
            Property::Nccl => text!("the NCCL settings (their digest)", "NCCL 设置（摘要）"),
            Property::Rails => text!("the number of RDMA ports", "RDMA 端口数"),
            Property::LinkLayer => text!("the RDMA link layer", "RDMA 链路层"),
            Property::Clock => text!("the clock", "时钟"),
            Property::Mtu => text!("the interface's MTU", "接口 MTU"),
            Property::Rates => text!("the speed of the RDMA ports (Gb/s)", "RDMA 端口速率（Gb/s）"),
        }
    }

    /// Id of the warning.
    fn id(self) -> Id {
        match self {
            Property::Version => Id::MusterVersion,
            Property::Script => Id::MusterScript,
            Property::Torch => Id::MusterTorch,
            Property::Driver => Id::MusterDriver,
            Property::Gpus => Id::MusterGpus,
            Property::Nccl => Id::MusterNccl,
            Property::Rails => Id::MusterRails,
            Property::LinkLayer => Id::MusterLinkLayer,
            Property::Clock => Id::ClockSync,
            Property::Mtu => Id::MusterMtu,
            Property::Rates => Id::MusterRates,
        }
    }
}

/// One property, what most nodes have, and the nodes that have something else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub property: Property,
    pub common: String,
    /// (node, its value); the first eight.
    pub odd: Vec<(u32, String)>,
    /// How many odd nodes there are in all.
    pub count: u32,
}

impl Difference {
    pub(super) fn clean(&mut self) {
        clean(&mut self.common);
        self.odd.truncate(LISTED);
        self.odd.iter_mut().for_each(|(_, value)| clean(value));
    }

    /// As a warning for people.
    pub fn warning(&self) -> Warning {
        let Text { en, zh } = self.property.words();
        let common = &self.common;
        let list = |word: &str, between: &str| {
            let one = |(node, value): &(u32, String)| format!("{word} {node}: {value}");
            self.odd.iter().map(one).collect::<Vec<_>>().join(between)
        };
        let (odd, odd_zh) = (list("node", ", "), list("节点", "，"));
        let more = usize::try_from(self.count).unwrap_or(usize::MAX).saturating_sub(self.odd.len());
        let (more, more_zh) = if more > 0 {
            (format!(" and {more} more"), format!(" 等另外 {more} 个"))
        } else {
            Default::default()
        };
        let hint = match self.property {
            Property::Clock => text!(
                "start a time service on that node; log lines of different nodes cannot be ordered",
                "请在该节点启用时间同步；否则无法比较不同节点日志的先后"
            ),
            _ => text!(
                "use one image and one set of variables on all nodes; --muster required makes this fail",
                "请在所有节点使用同一镜像和同一组变量；--muster required 会使其成为错误"
            ),
        };
        Warning::new(
            self.property.id(),
            text!(
                "{en} is not the same on all nodes: {odd}{more}; the others: {common}",
                "各节点的{zh}不一致：{odd_zh}{more_zh}；其余节点：{common}"
            ),
            hint,
        )
    }
}

/// What must be alike, or no job can come of it.
pub(super) fn check(own: &Card, other: &Card) -> Result<(), Refusal> {
    let host = &other.hostname;
    let Text { en: who, zh: who_zh } = Unit::of(other).named(other.node);
    let Text { en: first, zh: first_zh } = Unit::of(own).named(own.node);
    let refuse = |id: Id, text: Text, hint: Text| Err(Refusal::new(id, text, hint));
    if Unit::of(own) != Unit::of(other) {
        return refuse(
            Id::MusterTasks,
            text!(
                "{who} ({host}) and {first} do not mean the same: one stands for a whole node, the other for one rank",
                "{who_zh}（{host}）与 {first_zh} 的含义不一致：一个代表整个节点，另一个只代表一个 rank"
            ),
            text!(
                "start the command once per node, or as many tasks on every node; srun also tells nodes of one task that others have more",
                "请每节点只启动一次，或在每个节点上启动相同数量的 task；srun 会让只有一个 task 的节点得知其他节点有多个"
            ),
        );
    }
    if let (Some(ours), Some(theirs)) = (own.on, other.on)
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
    if own.engine != other.engine {
        let (ours, theirs) = (name(&own.engine), name(&other.engine));
        return refuse(
            Id::MusterEngine,
            text!(
                "{who} ({host}) would start engine {theirs}, and {first} {ours}",
                "{who_zh}（{host}）使用引擎 {theirs}，而{first_zh} 使用 {ours}"
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
                "{who} ({host}) has layout rule {theirs}, and {first} {ours}",
                "{who_zh}（{host}）的布局规则为 {theirs}，而{first_zh} 为 {ours}"
            ),
            text!(
                "give all nodes the same --layout and profile",
                "请为所有节点指定相同的 --layout 和配置文件"
            ),
        );
    }
    if let (Some(ours), Some(theirs)) = (own.heads, other.heads)
        && ours != theirs
    {
        return refuse(
            Id::MusterHeads,
            text!(
                "{who} ({host}) counts {theirs} attention heads, and {first} {ours}",
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

/// [`check`] for all nodes together, since node 0 itself may not know the heads.
pub(super) fn check_all(cards: &[Card]) -> Result<(), Refusal> {
    let knows = cards.iter().find(|card| card.heads.is_some()).or(cards.first());
    let Some(knows) = knows else { return Ok(()) };
    cards.iter().try_for_each(|card| check(knows, card))
}

/// The least that one node can carry, with what somebody fixed counted as such.
pub(super) fn fewest(cards: &[Card]) -> u32 {
    let most = |card: &Card| card.exact.unwrap_or(card.most);
    cards.iter().map(most).min().unwrap_or(1).max(1)
}

/// The heads, where at least one node knows them.
pub(super) fn heads(cards: &[Card]) -> Option<u32> {
    cards.iter().find_map(|card| card.heads)
}

/// Nodes that ask for different numbers of processes, or that cannot carry so many.
pub(super) fn check_exact(cards: &[Card], nproc: u32) -> Result<(), Refusal> {
    let misfit = |card: &&Card| card.exact.map_or(card.most < nproc, |exact| exact != nproc);
    let Some(card) = cards.iter().find(misfit) else { return Ok(()) };
    let (node, host) = (card.node, &card.hostname);
    let Text { en, zh } = match (card.exact, card.most) {
        (Some(exact), _) => text!("asks for {exact} processes", "要求 {exact} 个进程"),
        (None, most) => text!("can carry {most} processes", "最多只能运行 {most} 个进程"),
    };
    Err(Refusal::new(
        Id::MusterLayout,
        text!(
            "node {node} ({host}) {en}, and {nproc} is what fits all nodes",
            "节点 {node}（{host}）{zh}，而适合所有节点的是 {nproc} 个"
        ),
        text!(
            "give all nodes the same --nproc-per-node, or auto",
            "请为所有节点指定相同的 --nproc-per-node，或使用 auto"
        ),
    ))
}

fn name(value: &impl Serialize) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Everything else in which nodes differ, most nodes against the odd ones.
pub(super) fn differences(cards: &[Card]) -> Vec<Difference> {
    let unknown = || "unknown".to_owned();
    let text = |value: &Option<String>| value.clone().unwrap_or_else(unknown);
    let mut found = Vec::new();
    let mut look = |property: Property, value: &dyn Fn(&Card) -> String| {
        let mut counts: BTreeMap<String, u32> = BTreeMap::new();
        for card in cards {
            *counts.entry(value(card)).or_default() += 1;
        }
        // On a tie node 0's side counts as the common one.
        let first = cards.first().map(value);
        let Some((common, _)) =
            counts.iter().max_by_key(|(value, count)| (**count, Some(*value) == first.as_ref()))
        else {
            return;
        };
        let mut odd: Vec<(u32, String)> = cards
            .iter()
            .map(|card| (card.on.map_or(card.node, |seat| seat.node), value(card)))
            .filter(|(_, value)| value != common)
            .collect();
        // The tasks of one node say the same.
        odd.dedup();
        if !odd.is_empty() {
            let count = u32::try_from(odd.len()).unwrap_or(u32::MAX);
            let odd = odd.into_iter().take(LISTED).collect();
            found.push(Difference { property, common: common.clone(), odd, count });
        }
    };
    look(Property::Version, &|card| card.version.clone());
    look(Property::Script, &|card| text(&card.script));
    look(Property::Torch, &|card| text(&card.torch));
    look(Property::Driver, &|card| text(&card.driver));
    look(Property::Gpus, &|card| card.gpus.to_string());
    look(Property::Nccl, &|card| text(&card.nccl));
    look(Property::Rails, &|card| card.rails.to_string());
    look(Property::LinkLayer, &|card| text(&card.link_layer));
    // Older versions do not say these, and could not read a difference in them.
    if cards.iter().all(|card| card.protocol >= 2) {
        look(Property::Mtu, &|card| card.mtu.map_or_else(unknown, |mtu| mtu.to_string()));
        look(Property::Rates, &|card| text(&card.rates));
    }
    look(Property::Clock, &|card| {
        if card.clock_offset.unsigned_abs() < CLOCK {
            "within 2 s".to_owned()
        } else {
            let seconds = card.clock_offset / 1000;
            if seconds > 0 {
                format!("{seconds} s behind")
            } else {
                format!("{} s ahead", -seconds)
            }
        }
    });
    found
}

/// `--muster required`: what would be a warning fails.
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
    use crate::muster::types::{Seat, card};
    use crate::settings::{Engine, LayoutRule};

    #[test]
    fn what_must_be_alike_is_refused_by_name() {
        let own = Card { heads: Some(40), ..card(0, 3) };
        let other = Card { heads: Some(40), ..card(2, 3) };
        assert_eq!(check(&own, &other), Ok(()));
        assert_eq!(check(&own, &card(2, 3)), Ok(()), "unknown heads are not held against a node");
        for (other, id) in [
            (Card { engine: Engine::Torchrun, ..other.clone() }, Id::MusterEngine),
            (Card { rule: LayoutRule::UlyssesWorld, ..other.clone() }, Id::MusterRule),
            (Card { heads: Some(24), ..other.clone() }, Id::MusterHeads),
        ] {
            let refusal = check(&own, &other).expect_err(id.as_str());
            assert_eq!((refusal.id, refusal.verdict.code()), (id, 88));
            assert!(refusal.text.en.contains("node 2 (host-2)"), "{}", refusal.text.en);
        }
    }

    #[test]
    fn tasks_that_count_other_nodes_are_refused() {
        let task = |rank, node, nnodes| Card { on: Some(Seat { node, nnodes }), ..card(rank, 8) };
        assert_eq!(check(&task(0, 0, 2), &task(5, 1, 2)), Ok(()));
        for (other, said) in [
            (task(5, 3, 4), "task 5 (host-5) counts 4 nodes and task 0 2"),
            (card(5, 8), "node 5 (host-5) and task 0 do not mean the same"),
        ] {
            let refusal = check(&task(0, 0, 2), &other).expect_err("they do not fit");
            assert_eq!(refusal.id, Id::MusterTasks);
            assert!(refusal.text.en.starts_with(said), "{}", refusal.text.en);
        }
        // What the tasks of one node have in common is said once.
        let torch = |card: Card, torch: &str| Card { torch: Some(torch.to_owned()), ..card };
        let cards = [
            torch(task(0, 0, 2), "2.5"),
            torch(task(1, 0, 2), "2.5"),
            torch(task(2, 0, 2), "2.5"),
            torch(task(3, 1, 2), "2.4"),
            torch(task(4, 1, 2), "2.4"),
        ];
        let text = differences(&cards)[0].warning().text.en;
        assert_eq!(text, "torch is not the same on all nodes: node 1: 2.4; the others: 2.5");
    }

    #[test]
    fn the_odd_node_is_named() {
        let torch = |version: &str| Some(version.to_owned());
        let cards = [
            Card { torch: torch("2.5.1"), ..card(0, 3) },
            Card { torch: torch("2.4.0"), ..card(1, 3) },
            Card { torch: torch("2.5.1"), clock_offset: -9_500, ..card(2, 3) },
        ];
        let found = differences(&cards);
        assert_eq!(found.len(), 2, "{found:?}");
        let text = found[0].warning().text.en;
        assert_eq!(text, "torch is not the same on all nodes: node 1: 2.4.0; the others: 2.5.1");
        assert!(found[1].warning().text.en.contains("node 2: 9 s ahead"), "{:?}", found[1]);
        assert_eq!(differences(&[card(0, 2), card(1, 2)]), []);
        assert_eq!(refuse_differences(&found).expect_err("required").verdict.code(), 88);
    }

    #[test]
    fn a_tie_goes_to_node_0_and_long_lists_are_cut() {
        let cards = [
            Card { driver: Some("550".to_owned()), ..card(0, 2) },
            Card { driver: Some("535".to_owned()), ..card(1, 2) },
        ];
        assert_eq!(differences(&cards)[0].common, "550");
        let many: Vec<Card> = (0..40)
            .map(|node| Card { gpus: if node < 25 { 8 } else { 7 }, ..card(node, 40) })
            .collect();
        let found = differences(&many);
        assert_eq!((found[0].odd.len(), found[0].count), (LISTED, 15));
        assert!(found[0].warning().text.en.contains("and 7 more"));
    }

    #[test]
    fn a_fixed_number_that_does_not_fit_is_named() {
        let cards = [card(0, 2), Card { exact: Some(4), ..card(1, 2) }];
        assert_eq!(check_exact(&cards, 4), Ok(()));
        let refusal = check_exact(&cards, 8).expect_err("4 is not 8");
        assert!(refusal.text.en.contains("node 1 (host-1) asks for 4"));
        let few = [card(0, 2), Card { most: 6, ..card(1, 2) }];
        assert_eq!((fewest(&few), check_exact(&few, 6)), (6, Ok(())));
        let refusal = check_exact(&few, 7).expect_err("6 is fewer than 7");
        assert!(refusal.text.en.contains("node 1 (host-1) can carry 6"));
    }

    /// Node 0 may be the one that does not know them.
    #[test]
    fn heads_that_two_others_count_differently_are_refused() {
        let of = |node, heads| Card { heads, ..card(node, 4) };
        let mut cards = vec![of(0, None), of(1, Some(40)), of(2, None), of(3, Some(40))];
        assert_eq!((check_all(&cards), heads(&cards)), (Ok(()), Some(40)));
        cards.push(of(4, Some(24)));
        let text = check_all(&cards).expect_err("40 is not 24").text.en;
        assert_eq!(text, "node 4 (host-4) counts 24 attention heads, and node 1 40");
    }
}
