//! NCCL's variables as NCCL reads them: its list grammar, and the settings that
//! do nothing or do harm.
//!
//! Takes values; gives matches and warnings. The table below is data: a new dead
//! or dangerous variable is one more row. Sources: nccl src/misc/{socket,param}.cc,
//! src/transport/net_ib, docs/userguide/source/env.rst.

use crate::lang::Text;
use crate::observe::Facts;
use crate::plan::notes::{Notes, severity};
use crate::plan::variables::Variables;
use crate::settings::Settings;
use crate::text;
use crate::verdict::{Refusal, Severity, Verdict, Warning};

/// `[^][=]item[:port],…`: the value of NCCL_SOCKET_IFNAME and NCCL_IB_HCA.
///
/// `^` (all but) and `=` (whole names) stand once, at the very front, in this
/// order, and hold for the whole list. Without `=` an item is a prefix, so that
/// `mlx5_1` takes mlx5_10 too. Nothing is trimmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NcclList {
    pub exclude: bool,
    pub exact: bool,
    items: Vec<(String, Option<u32>)>,
}

impl NcclList {
    /// None for a value that NCCL takes as unset (shorter than two characters).
    pub fn parse(value: &str) -> Option<NcclList> {
        if value.len() < 2 {
            return None;
        }
        let (exclude, rest) = value.strip_prefix('^').map_or((false, value), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let items = rest
            .split(',')
            .filter(|item| !item.is_empty())
            .map(|item| {
                let (name, port) = item.split_once(':').map_or((item, ""), |(name, port)| {
                    (name, port.split(':').next().unwrap_or_default())
                });
                (name.to_owned(), port.parse().ok())
            })
            .collect();
        Some(NcclList { exclude, exact, items })
    }

    /// Whether NCCL would take the device `name`, at `port` where it has ports.
    pub fn takes(&self, name: &str, port: Option<u32>) -> bool {
        let listed = (0..self.items.len()).any(|item| self.item_matches(item, name, port));
        listed != self.exclude
    }

    /// The items that match none of `names`; an exclusion has none.
    pub fn strangers<'a>(&'a self, names: &[&str]) -> Vec<&'a str> {
        if self.exclude {
            return Vec::new();
        }
        (0..self.items.len())
            .filter(|item| !names.iter().any(|name| self.item_matches(*item, name, None)))
            .filter_map(|item| self.items.get(item).map(|(name, _)| name.as_str()))
            .collect()
    }

    fn item_matches(&self, item: usize, name: &str, port: Option<u32>) -> bool {
        self.items.get(item).is_some_and(|(wanted, wanted_port)| {
            let named = if self.exact { name == wanted } else { name.starts_with(wanted.as_str()) };
            let on_port = match (wanted_port, port) {
                (Some(wanted), Some(port)) => *wanted == port,
                _ => true,
            };
            named && on_port
        })
    }
}

/// When a row of the table applies to a value.
enum When {
    Always,
    Is(&'static str),
    /// Only where the node has RDMA devices that can be opened.
    IsWithHcas(&'static str),
    /// A number where words are meant.
    Number,
    OtherThan(&'static [&'static str]),
    /// `^` or `=` inside the list, where they become part of a name.
    InnerMark,
}

struct Row {
    name: &'static str,
    when: When,
    /// What it does, and what to do instead, in both languages.
    effect: (&'static str, &'static str),
    advice: (&'static str, &'static str),
}

const fn row(
    name: &'static str,
    when: When,
    effect: (&'static str, &'static str),
    advice: (&'static str, &'static str),
) -> Row {
    Row { name, when, effect, advice }
}

const NEVER_EXISTED: (&str, &str) = (
    "is not a variable of NCCL or PyTorch and does nothing",
    "不是 NCCL 或 PyTorch 的变量，不起作用",
);
const REMOVED: (&str, &str) =
    ("is no longer read by NCCL and does nothing", "NCCL 已不再读取，不起作用");
const RENAMED: (&str, &str) = ("is an old name", "是旧名称");
const SLOW: (&str, &str) = (
    "turns a fast path off, usually a leftover of debugging",
    "关闭了一条快速通路，通常是调试后的遗留",
);
const REMOVE: (&str, &str) = ("remove it", "请删除");
const TIMEOUT: (&str, &str) = (
    "set the timeout in the script: init_process_group(timeout=…)",
    "请在脚本中设置超时：init_process_group(timeout=…)",
);
const TORCH_NAME: (&str, &str) =
    ("the name today begins with TORCH_NCCL_", "现名以 TORCH_NCCL_ 开头");

const TABLE: &[Row] = &[
    row("NCCL_TIMEOUT", When::Always, NEVER_EXISTED, TIMEOUT),
    row("TORCH_DISTRIBUTED_TIMEOUT", When::Always, NEVER_EXISTED, TIMEOUT),
    row(
        "NCCL_NSOCKS",
        When::Always,
        NEVER_EXISTED,
        ("NCCL_NSOCKS_PERTHREAD is meant", "应为 NCCL_NSOCKS_PERTHREAD"),
    ),
    row("NCCL_TEMP_DIR", When::Always, NEVER_EXISTED, REMOVE),
    row(
        "NCCL_MIN_NRINGS",
        When::Always,
        RENAMED,
        ("use NCCL_MIN_CTAS, or leave it to NCCL", "请改用 NCCL_MIN_CTAS，或交由 NCCL 决定"),
    ),
    row(
        "NCCL_MAX_NRINGS",
        When::Always,
        RENAMED,
        ("use NCCL_MAX_CTAS, or leave it to NCCL", "请改用 NCCL_MAX_CTAS，或交由 NCCL 决定"),
    ),
    row(
        "NCCL_IB_GDR_LEVEL",
        When::Always,
        REMOVED,
        ("since 2.4 it is NCCL_NET_GDR_LEVEL", "自 2.4 起为 NCCL_NET_GDR_LEVEL"),
    ),
    row("NCCL_IB_CUDA_SUPPORT", When::Always, REMOVED, REMOVE),
    row("NCCL_TREE_THRESHOLD", When::Always, REMOVED, REMOVE),
    row("NCCL_SINGLE_RING_THRESHOLD", When::Always, REMOVED, REMOVE),
    row("NCCL_LL_THRESHOLD", When::Always, REMOVED, REMOVE),
    row("NCCL_CHECKS_DISABLE", When::Always, REMOVED, REMOVE),
    row("NCCL_ASYNC_ERROR_HANDLING", When::Always, RENAMED, TORCH_NAME),
    row("NCCL_BLOCKING_WAIT", When::Always, RENAMED, TORCH_NAME),
    row("NCCL_DESYNC_DEBUG", When::Always, RENAMED, TORCH_NAME),
    row("NCCL_ENABLE_TIMING", When::Always, RENAMED, TORCH_NAME),
    row(
        "NCCL_SOCKET_FAMILY",
        When::OtherThan(&["AF_INET", "AF_INET6"]),
        (
            "is ignored, since only AF_INET and AF_INET6 are known",
            "会被忽略，NCCL 只识别 AF_INET 与 AF_INET6",
        ),
        ("use AF_INET or AF_INET6", "请使用 AF_INET 或 AF_INET6"),
    ),
    row(
        "NCCL_SOCKET_IFNAME",
        When::InnerMark,
        (
            "has ^ or = inside the list, where it becomes part of a name",
            "列表中间的 ^ 或 = 会被当作名称的一部分",
        ),
        ("write the mark once, at the front: ^=a,b", "标记只写一次，放在最前：^=a,b"),
    ),
    row(
        "NCCL_IB_HCA",
        When::InnerMark,
        (
            "has ^ or = inside the list, where it becomes part of a name",
            "列表中间的 ^ 或 = 会被当作名称的一部分",
        ),
        ("write the mark once, at the front: =a,b", "标记只写一次，放在最前：=a,b"),
    ),
    row(
        "NCCL_IB_DISABLE",
        When::IsWithHcas("1"),
        (
            "turns RoCE off as well as InfiniBand, and this node has usable RDMA devices",
            "会同时关闭 RoCE 与 InfiniBand，而本节点有可用的 RDMA 设备",
        ),
        ("remove it unless sockets are meant", "除非确实要用以太网 socket，否则请删除"),
    ),
    row(
        "NCCL_NET",
        When::IsWithHcas("Socket"),
        SLOW,
        ("remove it unless sockets are meant", "除非确实要用以太网 socket，否则请删除"),
    ),
    row("NCCL_P2P_DISABLE", When::Is("1"), SLOW, ("remove it", "请删除")),
    row(
        "NCCL_SHM_DISABLE",
        When::Is("1"),
        SLOW,
        ("remove it; give /dev/shm more room instead", "请删除，并改为增大 /dev/shm"),
    ),
    row(
        "NCCL_IB_GID_INDEX",
        When::Number,
        (
            "fixes a table position that differs between pods",
            "固定了 GID 表下标，而各 Pod 的下标不同",
        ),
        ("remove it: NCCL finds the GID itself since 2.21", "请删除：NCCL 自 2.21 起自行查找 GID"),
    ),
    row(
        "NCCL_P2P_LEVEL",
        When::Number,
        ("is a number whose meaning changed between versions", "为数字，其含义随版本变化"),
        ("use a word: LOC, PIX, PXB, PHB, SYS", "请使用单词：LOC、PIX、PXB、PHB、SYS"),
    ),
    row(
        "NCCL_NET_GDR_LEVEL",
        When::Number,
        ("is a number whose meaning changed between versions", "为数字，其含义随版本变化"),
        ("use a word: LOC, PIX, PXB, PHB, SYS", "请使用单词：LOC、PIX、PXB、PHB、SYS"),
    ),
    row(
        "NCCL_COMM_ID",
        When::Always,
        (
            "makes bootstrap demand an interface in that subnet; PyTorch passes the id through its own store",
            "会使引导过程强制要求该网段的网卡，而 PyTorch 通过自身的 store 传递该标识",
        ),
        REMOVE,
    ),
];

/// What a setting does that was not meant, and what to do instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misuse {
    /// Follows `NAME=value`.
    pub effect: Text,
    pub advice: Text,
}

/// The row of the table that `name=value` falls under; `has_hcas`: RDMA devices can be opened.
pub fn misuse(name: &str, value: &str, has_hcas: bool) -> Option<Misuse> {
    let row = TABLE.iter().filter(|row| row.name == name).find(|row| match &row.when {
        When::Always => true,
        When::Is(bad) => value == *bad,
        When::IsWithHcas(bad) => value == *bad && has_hcas,
        When::Number => value.parse::<u32>().is_ok(),
        When::OtherThan(good) => !value.is_empty() && !good.contains(&value),
        When::InnerMark => has_inner_mark(value),
    })?;
    Some(Misuse {
        effect: Text::new(row.effect.0, row.effect.1),
        advice: Text::new(row.advice.0, row.advice.1),
    })
}

/// Warns of variables that do nothing or do harm (check `env.nccl`).
pub fn lint(
    settings: &Settings,
    facts: &Facts,
    variables: Variables<'_>,
    notes: &mut Notes,
) -> Result<(), Refusal> {
    let has_hcas = facts.hcas.iter().any(|hca| hca.openable);
    for Row { name, .. } in TABLE {
        let Some(found) = variables.get(name) else { continue };
        let (value, source) = (&found.value, &found.source);
        let Some(Misuse { effect, advice }) = misuse(name, value, has_hcas) else { continue };
        let Text { en, zh } = effect;
        notes.raise(
            severity(settings, "env.nccl", Severity::Warn),
            Verdict::Usage,
            Warning::new(
                "env.nccl",
                text!("{name}={value} ({source}) {en}", "{name}={value}（{source}）{zh}"),
                advice,
            ),
        )?;
    }
    Ok(())
}

fn has_inner_mark(value: &str) -> bool {
    let body = value.strip_prefix('^').unwrap_or(value);
    let body = body.strip_prefix('=').unwrap_or(body);
    body.split(',').any(|item| item.starts_with(['^', '=']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_match_as_nccl_matches() {
        // value, name, port, taken
        let cases = [
            ("eth0", "eth0", None, true),
            ("eth1", "eth10", None, true),
            ("=eth1", "eth10", None, false),
            ("^docker,lo", "eth0", None, true),
            ("^docker,lo", "docker0", None, false),
            ("^=eth1", "eth10", None, true),
            ("=mlx5_0:1", "mlx5_0", Some(1), true),
            ("=mlx5_0:1", "mlx5_0", Some(2), false),
            ("=mlx5_0", "mlx5_0", Some(2), true),
            ("eth0, eth1", "eth1", None, false),
        ];
        for (value, name, port, taken) in cases {
            let list = NcclList::parse(value).expect("a list");
            assert_eq!(list.takes(name, port), taken, "{value} {name}");
        }
        assert_eq!(NcclList::parse(""), None);
        assert_eq!(NcclList::parse("="), None);
        let list = NcclList::parse("eth0,eno1,ib").expect("a list");
        assert_eq!(list.strangers(&["lo", "eth0", "ib3"]), ["eno1"]);
    }

    #[test]
    fn marks_inside_a_list_are_seen() {
        for (value, expected) in
            [("^a,^b", true), ("=^a", true), ("^=a,b", false), ("=a,=b", true), ("a,b", false)]
        {
            assert_eq!(has_inner_mark(value), expected, "{value}");
        }
    }

    #[test]
    fn every_row_speaks_both_languages() {
        for Row { name, effect, advice, .. } in TABLE {
            for text in [effect, advice] {
                assert!(!text.0.is_empty() && !text.1.is_empty(), "{name}");
            }
        }
    }
}
