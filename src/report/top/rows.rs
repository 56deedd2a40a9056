//! Selects and sorts the rows of the table of ranks.

use std::cmp::Ordering;

use monitor::status::{GpuStatus, NodeStatus, RankState, RankStatus, SlowStatus};
use text::lang::Text;
use text::text;

/// A rank, its node and its GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) node: &'a NodeStatus,
    pub(super) rank: &'a RankStatus,
    pub(super) gpu: Option<&'a GpuStatus>,
    /// Set if the rank holds the others back.
    pub(super) slow: Option<&'a SlowStatus>,
}

impl Row<'_> {
    pub(super) fn node_number(&self) -> u32 {
        self.node.run.as_ref().map_or(0, |run| run.node)
    }

    /// The state in the words of the table.
    pub(super) fn state(&self) -> Text {
        match self.rank.state {
            RankState::Planned => text!("planned", "待启动"),
            RankState::Running if self.slow.is_some() => text!("slow", "拖慢"),
            RankState::Running => text!("running", "运行"),
            RankState::Done => text!("done", "完成"),
            RankState::Failed => text!("failed", "失败"),
        }
    }

    /// Whether every word of the filter is somewhere in the row, in either language.
    fn has(&self, words: &[String]) -> bool {
        let Text { en, zh } = self.state();
        let whole = format!(
            "r{} node{} {} {} {en} {zh} {}",
            self.rank.rank,
            self.node_number(),
            self.node.host,
            self.rank.state.name(),
            self.rank.last_line.as_deref().unwrap_or_default(),
        );
        let whole = whole.to_lowercase();
        let is_exact = |word: &str| word == format!("r{}", self.rank.rank);
        let of_rank = |word: &str| word.len() > 1 && word.starts_with('r') && is_number(word);
        words.iter().all(|word| match of_rank(word) {
            true => is_exact(word),
            false => whole.contains(word.as_str()),
        })
    }
}

fn is_number(word: &str) -> bool {
    word.get(1..).is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The ranks of all nodes that the filter lets through.
pub(super) fn rows<'a>(nodes: &'a [NodeStatus], filter: &str) -> Vec<Row<'a>> {
    let words: Vec<String> = filter.split_whitespace().map(str::to_lowercase).collect();
    let slow: Vec<&SlowStatus> = nodes.iter().flat_map(|node| &node.slow).collect();
    let mut rows = Vec::new();
    for node in nodes {
        for rank in &node.ranks {
            let gpu = rank.gpu.and_then(|number| node.gpus.iter().find(|gpu| gpu.gpu == number));
            let slow = slow.iter().find(|slow| slow.rank == rank.rank).copied();
            let row = Row { node, rank, gpu, slow };
            if words.is_empty() || row.has(&words) {
                rows.push(row);
            }
        }
    }
    rows
}

/// The sort order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Rank,
    /// Failed ranks first.
    State,
    Cpu,
    Memory,
    Gpu,
    LogRate,
    /// Ranks with the longest silence first.
    Age,
}

impl Order {
    pub(super) const ALL: &[Order] = &[
        Order::Rank,
        Order::State,
        Order::Cpu,
        Order::Memory,
        Order::Gpu,
        Order::LogRate,
        Order::Age,
    ];

    pub(super) fn next(self) -> Order {
        let at = Order::ALL.iter().position(|order| *order == self).unwrap_or(0);
        Order::ALL.get(at + 1).copied().unwrap_or(Order::Rank)
    }

    pub(super) fn sort(self, rows: &mut [Row<'_>]) {
        rows.sort_by(|one, other| {
            let of = |row: &Row<'_>| match self {
                Order::Rank => 0.0,
                Order::State => f64::from(row.rank.state as u8),
                Order::Cpu => row.rank.cpu_percent.unwrap_or(-1.0),
                Order::Memory => row.rank.memory.map_or(-1.0, |bytes| bytes as f64),
                Order::Gpu => row.gpu.and_then(|gpu| gpu.utilization).map_or(-1.0, f64::from),
                Order::LogRate => row.rank.log_rate,
                Order::Age => row.rank.last_line_age_ms.map_or(-1.0, |age| age as f64),
            };
            let largest_first = of(other).partial_cmp(&of(one)).unwrap_or(Ordering::Equal);
            largest_first.then(one.rank.rank.cmp(&other.rank.rank))
        });
    }
}
