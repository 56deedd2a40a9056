//! The columns of the two tables: their content, their width, and the selection of those that fit.
//!
//! Selects and sorts the rows of the table of ranks.

use std::cmp::Ordering;

use ratatui::style::{Color, Modifier, Style};

use crate::ps_view::{ago, gpu_use, phase};
use monitor::status::{GpuStatus, NodeStatus, Phase, RankState, RankStatus, SlowStatus};
use text::columns::columns;
use text::lang::{Lang, Text};
use text::order::Ordered;
use text::text;

/// A rank that has written nothing for this time may stand still.
const QUIET_MS: u64 = 60_000;

/// A text and its style.
pub(super) type Cell = (String, Style);

/// A column with its cells.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) title: Text,
    /// The value 0 means the rest of the line.
    pub(super) width: usize,
    pub(super) is_number: bool,
    pub(super) cells: Vec<Cell>,
    /// Also shown of the only node of a job, whose ranks tell the rest.
    pub(super) is_of_lone_node: bool,
    /// Columns with larger numbers are the first to be left out of a narrow line.
    need: u8,
}

impl Column {
    fn new(title: Text, is_number: bool, need: u8, cells: Vec<Cell>) -> Column {
        Column { title, width: 0, is_number, cells, is_of_lone_node: false, need }
    }

    fn of_lone_node(self) -> Column {
        Column { is_of_lone_node: true, ..self }
    }

    fn has_any(&self) -> bool {
        self.cells.iter().any(|(text, _)| !text.is_empty())
    }
}

/// The columns that have content and fit into `room`; the last one takes the rest, at least `least` columns.
pub(super) fn fitting(all: Vec<Column>, room: usize, least: usize, lang: Lang) -> Vec<Column> {
    let last = all.len().saturating_sub(1);
    let mut shown: Vec<Column> = all
        .into_iter()
        .enumerate()
        .filter(|(at, column)| *at == last || column.has_any())
        .map(|(_, column)| column)
        .collect();
    let count = shown.len();
    for column in shown.iter_mut().take(count.saturating_sub(1)) {
        let widest = column.cells.iter().map(|(text, _)| columns(text)).max().unwrap_or(0);
        column.width = widest.max(columns(column.title.get(lang)));
    }
    while shown.len() > 2 {
        let used: usize = shown.iter().map(|column| column.width + 1).sum();
        if used + least <= room {
            break;
        }
        let fixed = shown.len() - 1;
        let next = shown.iter().take(fixed).enumerate().max_by_key(|(_, column)| column.need);
        let Some((at, column)) = next else { break };
        if column.need == 0 {
            break;
        }
        shown.remove(at);
    }
    shown
}

/// A share from 0 to 1 as a bar of so many columns, in eighths of a column.
pub(super) fn bar(share: f64, width: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    // `as` saturates, and a share is not negative.
    #[expect(clippy::cast_sign_loss, reason = "a share is not negative")]
    let eighths = (share * width as f64 * 8.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    bar.push_str(EIGHTHS.get(eighths % 8).unwrap_or(&""));
    let used = columns(&bar);
    bar + &"░".repeat(width.saturating_sub(used))
}

/// Four or five signs: `512K`, `1.2G`, `80G`.
pub(super) fn short(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["B", "K", "M", "G", "T", "P"];
    let mut value = bytes.max(0.0);
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"");
    while value >= 1000.0 {
        let Some(next) = units.next() else { break };
        (value, unit) = (value / 1024.0, next);
    }
    match *unit {
        "B" if value < 0.5 => "0".to_owned(),
        "B" => format!("{value:.0}B"),
        unit if value < 9.95 => format!("{value:.1}{unit}"),
        unit => format!("{value:.0}{unit}"),
    }
}

fn size(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| short(bytes as f64))
}

fn plain(text: impl Into<String>) -> Cell {
    (text.into(), Style::new())
}

fn coloured(text: impl Into<String>, colour: Color) -> Cell {
    (text.into(), Style::new().fg(colour))
}

/// The state in the language of the view.
fn state(row: &Row<'_>, lang: Lang) -> Cell {
    let word = row.state();
    let word = word.get(lang);
    let end = match (row.rank.code, row.rank.signal) {
        (Some(code), _) => format!(" {code}"),
        (None, Some(signal)) => format!(" SIG{signal}"),
        (None, None) => String::new(),
    };
    match row.rank.state {
        RankState::Planned => (word.to_owned(), Style::new().add_modifier(Modifier::DIM)),
        RankState::Running if row.slow.is_some() => coloured(word, Color::Yellow),
        RankState::Running => coloured(word, Color::Green),
        RankState::Done => plain(word),
        RankState::Failed => {
            (format!("{word}{end}"), Style::new().fg(Color::Red).add_modifier(Modifier::BOLD))
        }
    }
}

/// The head of the column by which ranks are sorted.
pub(super) fn head(order: Order) -> Text {
    match order {
        Order::Rank => text!("RANK", "RANK"),
        Order::State => text!("STATE", "状态"),
        Order::Cpu => text!("CPU%", "CPU%"),
        Order::Memory => text!("MEM", "内存"),
        Order::Gpu => text!("GPU%", "GPU%"),
        Order::LogRate => text!("LOG/S", "日志/S"),
        Order::Age => text!("AGE", "距今"),
    }
}

/// `bars`: columns of a bar.
pub(super) fn of_ranks(
    rows: &[Row<'_>],
    several_nodes: bool,
    lang: Lang,
    bars: usize,
) -> Vec<Column> {
    let of = |cell: &dyn Fn(&Row<'_>) -> Cell| rows.iter().map(cell).collect::<Vec<Cell>>();
    let restarted = |row: &Row<'_>| match row.rank.restarts {
        0 => plain(""),
        count => coloured(count.to_string(), Color::Yellow),
    };
    let age = |row: &Row<'_>| {
        let Some(age) = row.rank.last_line_age_ms else { return plain("") };
        let is_quiet = age >= QUIET_MS && row.rank.state == RankState::Running;
        let text = ago(age / 1000);
        if is_quiet { coloured(text, Color::Yellow) } else { plain(text) }
    };
    let node = |row: &Row<'_>| match several_nodes {
        true => plain(row.node_number().to_string()),
        false => plain(""),
    };
    let rounded =
        |value: Option<f64>| value.map_or_else(String::new, |value| format!("{value:.0}"));
    let number = |value: Option<u32>| value.map_or_else(String::new, |value| value.to_string());
    let gpu = |cell: &dyn Fn(&GpuStatus) -> String| {
        of(&|row| plain(row.gpu.map_or_else(String::new, cell)))
    };
    let gpu_used = |row: &Row<'_>| match row.gpu.and_then(|gpu| gpu.utilization) {
        Some(percent) => used(percent, bars),
        None => plain(""),
    };
    let gpu_memory = |row: &Row<'_>| match row.gpu.map(|gpu| (gpu.memory_used, gpu.memory_total)) {
        Some((Some(used), Some(total))) => filled(used, total, &size(Some(used)), bars),
        Some((used, _)) => plain(size(used)),
        None => plain(""),
    };
    let last = |row: &Row<'_>| plain(row.rank.last_line.clone().unwrap_or_default());
    vec![
        Column::new(head(Order::Rank), true, 0, of(&|row| plain(row.rank.rank.to_string()))),
        Column::new(text!("NODE", "节点"), true, 1, of(&node)),
        Column::new(head(Order::State), false, 0, of(&|row| state(row, lang))),
        Column::new(head(Order::Cpu), true, 2, of(&|row| plain(rounded(row.rank.cpu_percent)))),
        Column::new(head(Order::Memory), true, 3, of(&|row| plain(size(row.rank.memory)))),
        Column::new(head(Order::Gpu), true, 0, of(&gpu_used)),
        Column::new(text!("GMEM", "显存"), true, 1, of(&gpu_memory)),
        Column::new(text!("W", "W"), true, 5, gpu(&|gpu| rounded(gpu.power))),
        Column::new(text!("MHZ", "MHZ"), true, 6, gpu(&|gpu| number(gpu.clock))),
        Column::new(text!("°C", "°C"), true, 7, gpu(&|gpu| number(gpu.temperature))),
        Column::new(head(Order::LogRate), true, 4, of(&|row| plain(short(row.rank.log_rate)))),
        Column::new(head(Order::Age), true, 0, of(&age)),
        Column::new(text!("RST", "重启"), true, 1, of(&restarted)),
        Column::new(text!("LAST LINE", "最后一行"), false, 0, of(&last)),
    ]
}

/// A percentage with its bar.
fn used(percent: u32, bars: usize) -> Cell {
    coloured(format!("{} {percent:>3}", bar(f64::from(percent) / 100.0, bars)), Color::Cyan)
}

/// A part of a memory with its bar; red when nearly nothing is left.
fn filled(used: u64, all: u64, words: &str, bars: usize) -> Cell {
    let share = used as f64 / all.max(1) as f64;
    let colour = if share >= 0.95 { Color::Red } else { Color::Cyan };
    coloured(format!("{} {words:>4}", bar(share, bars)), colour)
}

pub(super) fn of_nodes(nodes: &[&NodeStatus], lang: Lang, bars: usize) -> Vec<Column> {
    let of = |cell: &dyn Fn(&NodeStatus) -> Cell| {
        nodes.iter().map(|node| cell(node)).collect::<Vec<Cell>>()
    };
    let number = |node: &NodeStatus| {
        let number = node.run.as_ref().map(|run| run.node.to_string());
        plain(number.unwrap_or_else(|| "?".to_owned()))
    };
    let where_it_is = |node: &NodeStatus| {
        let word = phase(node, lang);
        match node.phase {
            _ if node.standstill.is_some() => coloured(word, Color::Red),
            Phase::Running => coloured(word, Color::Green),
            Phase::Stopping | Phase::Judging => coloured(word, Color::Yellow),
            _ => plain(word),
        }
    };
    let since =
        |node: &NodeStatus| plain(ago(node.at_ms.saturating_sub(node.phase_since_ms) / 1000));
    let ranks = |node: &NodeStatus| {
        plain(format!("{}/{}", node.count(RankState::Running), node.ranks.len()))
    };
    let memory = |node: &NodeStatus| {
        let Some(memory) = &node.memory else { return plain("") };
        let (used, all) = match (memory.group_used, memory.group_limit) {
            (Some(used), Some(limit)) => (used, limit),
            _ => (memory.used, memory.used.saturating_add(memory.available)),
        };
        let text = format!("{}/{}", short(used as f64), short(all as f64));
        filled(used, all, &text, bars)
    };
    let gpus = |node: &NodeStatus| match gpu_use(node) {
        Some(mean) => used(u32::try_from(mean).unwrap_or(u32::MAX), bars),
        None => plain(""),
    };
    let power = |node: &NodeStatus| {
        let power = node.gpus.iter().filter_map(|gpu| gpu.power).reduce(|sum, one| sum + one);
        plain(power.map_or_else(String::new, |power| format!("{power:.0}")))
    };
    let traffic = |pairs: &mut dyn Iterator<Item = (f64, f64)>| {
        let sum = pairs.reduce(|sum, one| (sum.0 + one.0, sum.1 + one.1));
        plain(sum.map_or_else(String::new, |sum| format!("{}/{}", short(sum.0), short(sum.1))))
    };
    let nics = |node: &NodeStatus| {
        traffic(&mut node.interfaces.iter().map(|one| (one.received, one.sent)))
    };
    let hcas =
        |node: &NodeStatus| traffic(&mut node.hcas.iter().map(|one| (one.received, one.sent)));
    let attempts = |node: &NodeStatus| {
        let attempt = node.run.as_ref().map_or(0, |run| run.attempt);
        if attempt == 0 { plain("") } else { coloured(attempt.to_string(), Color::Yellow) }
    };
    vec![
        Column::new(text!("NODE", "节点"), true, 0, of(&number)),
        Column::new(text!("STATE", "状态"), false, 0, of(&where_it_is)),
        Column::new(text!("SINCE", "已持续"), true, 6, of(&since)),
        Column::new(text!("RANKS", "RANK"), true, 1, of(&ranks)),
        Column::new(text!("RST", "重启"), true, 1, of(&attempts)),
        Column::new(text!("MEMORY", "内存"), true, 2, of(&memory)).of_lone_node(),
        Column::new(text!("GPU%", "GPU%"), true, 1, of(&gpus)),
        Column::new(text!("W", "W"), true, 5, of(&power)),
        Column::new(text!("NET IN/OUT", "网络 入/出"), true, 3, of(&nics)).of_lone_node(),
        Column::new(text!("HCA IN/OUT", "HCA 入/出"), true, 3, of(&hcas)).of_lone_node(),
        Column::new(text!("LOG/S", "日志/S"), true, 4, of(&|node| plain(short(node.logs.rate)))),
        Column::new(text!("HOST", "主机"), false, 0, of(&|node| plain(node.host.clone())))
            .of_lone_node(),
    ]
}

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
        rows.order_by(|one, other| {
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
