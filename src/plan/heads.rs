//! The number of attention heads, which every ulysses size must divide.
//!
//! Sources, strongest first: flag or variable, the profile's table by the script's own argument,
//! the profile's plain number, the checkpoint's config.json. Unknown heads are a warning
//! elsewhere, never a refusal.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::notes::Notes;
use settings::arguments::GivenArgument;
use settings::{LayoutSettings, Source};
use text::text;
use verdict::Id;

/// Heads of the model that `args` select; None if unknown. The number that the nodes `agreed` on
/// wins over what this node would find by itself.
pub fn heads(
    layout: &LayoutSettings,
    args: &[OsString],
    checkpoint: Option<&(u32, PathBuf)>,
    agreed: Option<u32>,
    notes: &mut Notes,
) -> Option<u32> {
    let given = layout.heads.as_ref().filter(|heads| heads.value > 0);
    let strong =
        given.filter(|heads| matches!(heads.source, Source::Flag(_) | Source::Environment(_)));
    let checkpoint = checkpoint.filter(|(heads, _)| *heads > 0);
    let (count, because, source) = if let (None, Some(agreed)) = (given, agreed) {
        (agreed, text!("agreed by the nodes", "由各节点协商"), Source::Agreement.to_string())
    } else if let Some(heads) = strong {
        (heads.value, text!("given", "由用户给定"), heads.source.to_string())
    } else if let Some((count, argument, value, source)) = from_table(layout, args) {
        (
            count,
            text!(
                "the profile's heads for {argument} {value}",
                "配置文件中 {argument} {value} 对应的头数"
            ),
            source,
        )
    } else if let Some(heads) = given {
        (heads.value, text!("given by the profile", "由配置文件给定"), heads.source.to_string())
    } else {
        let (count, file) = checkpoint?;
        let file = file.display();
        notes.decide(
            "heads",
            count,
            text!("read from the checkpoint", "从模型检查点读取"),
            file.to_string(),
        );
        return Some(*count);
    };
    if let Some((other, file)) = checkpoint.filter(|(other, _)| *other != count) {
        let file = file.display();
        notes.warn(
            Id::LayoutHeadsConflict,
            text!(
                "{source} says {count} attention heads, {file} says {other}; {count} is used",
                "{source} 给出的注意力头数为 {count}，而 {file} 中为 {other}；采用 {count}"
            ),
            text!(
                "check that the task and the checkpoint belong together, or set --heads {other}",
                "请确认任务与检查点是否匹配，或用 --heads {other} 明确指定"
            ),
        );
    }
    notes.decide("heads", count, because, source);
    Some(count)
}

/// The table's row for the argument's value: heads, argument, value, place of the table.
fn from_table(layout: &LayoutSettings, args: &[OsString]) -> Option<(u32, String, String, String)> {
    let table = layout.heads_table.as_ref()?;
    let is_known = |value: &OsStr| value.to_str().is_some_and(|v| table.heads.contains_key(v));
    let value = match GivenArgument::of(args, &[&table.argument], is_known) {
        Some(given) => given.value.to_str()?.to_owned(),
        None => table.default.clone()?,
    };
    let count = *table.heads.get(&value).filter(|count| **count > 0)?;
    Some((count, table.argument.clone(), value, table.source.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use settings::{HeadsTable, LayoutRule, Sourced};

    fn layout(heads: Option<(u32, Source)>, table: bool) -> LayoutSettings {
        let profile = Source::Profile { file: "wan22.toml".into(), line: 9 };
        LayoutSettings {
            rule: Sourced::default_value(LayoutRule::UlyssesWorld),
            heads: heads.map(|(value, source)| Sourced::new(value, source)),
            heads_table: table.then(|| HeadsTable {
                argument: "--task".into(),
                heads: [("t2v-A14B".to_owned(), 40), ("ti2v-5B".to_owned(), 24)].into(),
                default: Some("t2v-A14B".into()),
                source: profile,
            }),
            ulysses_argument: None,
            ring_argument: None,
            checkpoint_argument: None,
        }
    }

    #[test]
    fn the_strongest_source_gives_the_heads() {
        let flag = || Some((12, Source::Flag("--heads".into())));
        let profile = || Some((16, Source::Profile { file: "p.toml".into(), line: 1 }));
        let checkpoint = (40, PathBuf::from("/ckpt/config.json"));
        #[expect(
            clippy::type_complexity,
            reason = "a table: settings, arguments, checkpoint, result"
        )]
        let cases: [(LayoutSettings, &[&str], Option<&(u32, PathBuf)>, Option<u32>, &str);
            9] = [
            (layout(flag(), true), &["--task", "ti2v-5B"], None, Some(12), "--heads"),
            (layout(None, true), &["--task", "ti2v-5B"], None, Some(24), "wan22.toml:9"),
            (layout(None, true), &["--task=ti2v-5B"], None, Some(24), "wan22.toml:9"),
            (layout(None, true), &["--tas", "ti2v-5B"], None, Some(24), "wan22.toml:9"),
            (layout(None, true), &[], None, Some(40), "wan22.toml:9"),
            (
                layout(None, true),
                &["--task", "new"],
                Some(&checkpoint),
                Some(40),
                "/ckpt/config.json",
            ),
            (layout(None, true), &["--task", "new"], None, None, ""),
            (layout(profile(), true), &["--task", "new"], None, Some(16), "p.toml:1"),
            (layout(profile(), true), &["--task", "ti2v-5B"], None, Some(24), "wan22.toml:9"),
        ];
        for (layout, args, checkpoint, expected, source) in cases {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            let mut notes = Notes::default();
            assert_eq!(heads(&layout, &args, checkpoint, None, &mut notes), expected, "{args:?}");
            assert_eq!(notes.decisions.first().map_or("", |d| d.source.as_str()), source);
            assert!(notes.warnings.is_empty());
        }
    }

    #[test]
    fn table_contradicting_the_checkpoint_is_a_warning() {
        let mut notes = Notes::default();
        let checkpoint = (24, PathBuf::from("/ckpt/config.json"));
        let found = heads(&layout(None, true), &[], Some(&checkpoint), None, &mut notes);
        assert_eq!(found, Some(40));
        // The nodes agreed on it.
        let agreed = heads(&layout(None, true), &[], None, Some(24), &mut notes);
        assert_eq!(agreed, Some(24));
        assert_eq!(notes.warnings.first().map(|w| w.id), Some(Id::LayoutHeadsConflict));
    }
}
