//! NCCL's variables as NCCL reads them: its list grammar, and settings without effect or with
//! harm.
//!
//! Takes values; gives matches and warnings. The settings without effect or with harm are rows
//! of [`table`].

mod table;

use crate::Notes;
use crate::variables::Variables;
use node::observe::Facts;
use settings::Settings;
use text::lang::Text;
use text::nearest::is_slip;
use text::text;

use table::{COMMON, NcclRow, TABLE, When};

/// `[^][=]item[:port],…`: the value of NCCL_SOCKET_IFNAME and NCCL_IB_HCA.
///
/// `^` (all but) and `=` (whole names) occur once, at the very front, in this order, and apply
/// to the whole list. Without `=` an item is a prefix, so `mlx5_1` takes mlx5_10 too. Nothing is
/// trimmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NcclList {
    pub exclude: bool,
    pub exact: bool,
    items: Vec<(String, Option<u32>)>,
}

impl NcclList {
    /// None for a value that NCCL treats as unset (shorter than two characters).
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

    /// Whether NCCL would use the device `name`, at `port` if it has ports.
    pub fn takes(&self, name: &str, port: Option<u32>) -> bool {
        let listed = self.items.iter().any(|item| self.item_matches(item, name, port));
        listed != self.exclude
    }

    /// The items that match none of `names`; an exclusion has none.
    pub fn strangers<'a>(&'a self, names: &[&str]) -> Vec<&'a str> {
        if self.exclude {
            return Vec::new();
        }
        let strange = |item: &&_| !names.iter().any(|name| self.item_matches(item, name, None));
        self.items.iter().filter(strange).map(|(name, _)| name.as_str()).collect()
    }

    /// Names that match an item only as prefix although another device has exactly the
    /// item's name:
    /// `mlx5_1` exists, and also selects `mlx5_10`.
    pub(crate) fn more_than_named<'a>(&self, names: &[&'a str]) -> Vec<&'a str> {
        if self.exact || self.exclude {
            return Vec::new();
        }
        let is_item = |name: &str| self.items.iter().any(|(item, _)| item == name);
        let whole: Vec<&str> = names.iter().copied().filter(|name| is_item(name)).collect();
        let comes_along =
            |name: &&&str| !is_item(name) && whole.iter().any(|item| name.starts_with(item));
        names.iter().filter(comes_along).copied().collect()
    }

    fn item_matches(&self, item: &(String, Option<u32>), name: &str, port: Option<u32>) -> bool {
        let (wanted, wanted_port) = item;
        let named = if self.exact { name == wanted } else { name.starts_with(wanted.as_str()) };
        named && wanted_port.zip(port).is_none_or(|(wanted, port)| wanted == port)
    }
}

/// The unintended effect of a setting, and what to do instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misuse {
    /// Printed after `NAME=value`.
    pub effect: Text,
    pub advice: Text,
}

/// The circumstances on which a row depends besides the value.
#[derive(Debug, Clone, Copy, Default)]
struct Around<'a> {
    /// RDMA devices can be opened.
    has_hcas: bool,
    world: u32,
    /// NCCL's own output goes to files.
    to_files: bool,
    /// Variables that name a missing file.
    absent: &'a [String],
}

impl NcclRow {
    fn is_of(&self, name: &str) -> bool {
        self.names.split(' ').any(|one| one == name)
    }

    fn applies(&self, name: &str, value: &str, around: Around<'_>) -> bool {
        match &self.when {
            When::Always => true,
            When::NotEmpty => !value.is_empty(),
            When::Is(bad) => value == *bad,
            When::IsWithHcas(bad) => value.eq_ignore_ascii_case(bad) && around.has_hcas,
            When::Number => value.parse::<u32>().is_ok(),
            When::OtherThan(good) => !value.is_empty() && !good.contains(&value),
            When::InnerMark => has_inner_mark(value),
            When::UnknownWord(known) => {
                !value.is_empty() && value.parse::<i64>().is_err() && !known.contains(&value)
            }
            When::Outside(range) => value.parse().is_ok_and(|value| !range.contains(&value)),
            When::Colon => value.contains(':'),
            When::SharedFile => {
                let one_file = value.starts_with('/') && !value.starts_with("/dev/");
                one_file && !value.contains("%p") && around.world > 1
            }
            When::Blank => value.contains(char::is_whitespace),
            When::LongerThan(most) => value.split(',').count() > *most,
            When::InLargeJob(bad, least) => {
                around.world >= *least && bad.contains(&value) && !around.to_files
            }
            When::NoSuchFile => around.absent.iter().any(|absent| absent == name),
        }
    }

    fn misuse(&self) -> Misuse {
        Misuse {
            effect: Text::new(self.effect.0, self.effect.1),
            advice: Text::new(self.advice.0, self.advice.1),
        }
    }
}

/// The row of the table that applies to `name=value` on any node. `has_hcas`: RDMA devices can
/// be opened.
pub fn misuse(name: &str, value: &str, has_hcas: bool) -> Option<Misuse> {
    let around = Around { has_hcas, ..Around::default() };
    let row = TABLE.iter().find(|row| row.is_of(name) && row.applies(name, value, around))?;
    Some(row.misuse())
}

/// Warns of variables without effect or with harm (check `env.nccl`) in a job of `world` ranks.
pub fn lint(
    settings: &Settings,
    facts: &Facts,
    variables: Variables<'_>,
    world: u32,
    notes: &mut Notes,
) {
    let around = Around {
        has_hcas: facts.hcas.iter().any(|hca| hca.openable),
        world,
        to_files: variables.is_set("NCCL_DEBUG_FILE"),
        absent: &facts.state.absent,
    };
    for (row, name) in TABLE.iter().flat_map(|row| row.names.split(' ').map(move |one| (row, one)))
    {
        let Some(found) = variables.get(name) else { continue };
        let (value, source) = (&found.value, &found.source);
        if !row.applies(name, value, around) {
            continue;
        }
        let Misuse { effect: Text { en, zh }, advice } = row.misuse();
        notes.env_nccl(
            settings,
            text!("{name}={value} ({source}) {en}", "{name}={value}（{source}）{zh}"),
            advice,
        );
    }
    slips(settings, facts, notes);
    odd_lines(settings, facts, notes);
}

/// Warns of lines in NCCL's files that do not set what they seem to: nothing is trimmed, and
/// `export` becomes a part of the name.
fn odd_lines(settings: &Settings, facts: &Facts, notes: &mut Notes) {
    for found in &facts.network.nccl {
        let (name, source) = (&found.name, &found.source);
        if !name.contains(char::is_whitespace) || source == "environment" {
            continue;
        }
        let meant = name.trim().trim_start_matches("export").trim();
        notes.env_nccl(
            settings,
            text!(
                "\"{name}=\" in {source} sets nothing that NCCL reads: it takes blanks and export for a part of the name",
                "{source} 中的 \"{name}=\" 不会被 NCCL 读取：空白与 export 会被当作名称的一部分"
            ),
            text!("write {meant}=VALUE, from the first column on", "请从行首写 {meant}=值"),
        );
    }
}

/// Warns of variables that differ by one letter from an existing one, and of names that NCCL
/// never looks up (`NCCL_SOCKET_IFNAME-`).
fn slips(settings: &Settings, facts: &Facts, notes: &mut Notes) {
    let common = || COMMON.split(' ');
    let known =
        |name: &str| common().any(|one| one == name) || TABLE.iter().any(|row| row.is_of(name));
    let names = facts.environment.keys().filter(|name| name.starts_with("NCCL_"));
    for name in names.filter(|name| !known(name)) {
        let Some(meant) = common().find(|common| is_slip(name, common)) else { continue };
        notes.env_nccl(
            settings,
            text!(
                "{name} is no variable of NCCL, and {meant} is",
                "{name} 不是 NCCL 的变量，而 {meant} 是"
            ),
            text!("did you mean {meant}?", "是否想写 {meant}？"),
        );
    }
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
        // Value, name, port, taken.
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
    fn misspelt_variable_is_a_slip_but_neighbours_not() {
        for (name, slip) in [
            ("NCCL_SOCKET_IFNAMES", true),
            ("NCCL_SOCKET_IFNAME-", true),
            ("NCCL_IB_HCAS", true),
            ("NCCL_DEUBG", true),
            ("NCCL_IB_TC", false),
            ("NCCL_MAX_P2P_NCHANNELS", false),
            ("NCCL_NVLSTREE_MAX_CHUNKSIZE", false),
            ("NCCL_IB_SL", false),
        ] {
            assert_eq!(COMMON.split(' ').any(|common| is_slip(name, common)), slip, "{name}");
        }
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
        for NcclRow { names, effect, advice, .. } in TABLE {
            for text in [effect, advice] {
                assert!(!text.0.is_empty() && !text.1.is_empty(), "{names}");
            }
        }
    }
}
