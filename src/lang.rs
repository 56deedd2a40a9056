//! The two languages in which the program speaks.
//!
//! Every sentence that a person reads exists in English and in Chinese, side
//! by side at the place that knows the facts; which of the two is shown is
//! decided once, where it is printed. Ids, JSON keys and variable names are
//! never translated.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The language of everything shown to people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lang {
    #[default]
    En,
    Zh,
}

impl Lang {
    /// The language of a POSIX locale name (`zh_CN.UTF-8` → Chinese; all else English).
    pub fn from_locale(locale: &str) -> Lang {
        if locale.starts_with("zh") { Lang::Zh } else { Lang::En }
    }

    /// The language of the environment: the first non-empty of LC_ALL, LC_MESSAGES, LANG.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Lang {
        ["LC_ALL", "LC_MESSAGES", "LANG"]
            .into_iter()
            .filter_map(variable)
            .find(|value| !value.is_empty())
            .map_or(Lang::En, |value| Lang::from_locale(&value))
    }
}

/// One sentence in both languages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    pub en: Cow<'static, str>,
    pub zh: Cow<'static, str>,
}

impl Text {
    pub fn new(en: impl Into<Cow<'static, str>>, zh: impl Into<Cow<'static, str>>) -> Text {
        Text { en: en.into(), zh: zh.into() }
    }

    /// The same words in both languages: names, paths, quoted output.
    pub fn same(words: impl Into<Cow<'static, str>>) -> Text {
        let words = words.into();
        Text { en: words.clone(), zh: words }
    }

    pub fn get(&self, lang: Lang) -> &str {
        match lang {
            Lang::En => &self.en,
            Lang::Zh => &self.zh,
        }
    }
}

/// `text!("{n} nodes", "{n} 个节点")`: a [`Text`] from two format strings that
/// capture variables of the scope.
#[macro_export]
macro_rules! text {
    ($en:literal, $zh:literal $(,)?) => {
        $crate::lang::Text::new($crate::lang::singular(format!($en)), format!($zh))
    };
}

/// What is counted in messages: many and one.
const NOUNS: &[(&str, &str)] = &[
    ("nodes", "node"),
    ("other nodes", "other node"),
    ("GPUs", "GPU"),
    ("ranks", "rank"),
    ("processes", "process"),
    ("CPUs", "CPU"),
    ("lines", "line"),
    ("files", "file"),
    ("times", "time"),
    ("remarks", "remark"),
    ("warnings", "warning"),
];

/// The sentence with a noun in the singular wherever exactly one is counted: `1 nodes × 1
/// processes` becomes `1 node × 1 process`. So no message needs two forms.
pub fn singular(sentence: String) -> String {
    if !sentence.contains("1 ") {
        return sentence;
    }
    let mut out = String::with_capacity(sentence.len());
    let mut rest = sentence.as_str();
    while let Some(at) = rest.find("1 ") {
        let (before, after) = rest.split_at(at + 2);
        let is_one = before.len() == 2 || before.get(..at).is_some_and(|b| b.ends_with([' ', '(']));
        // Not the end of a longer number at the very beginning of what is left.
        let is_one = is_one && !(before.len() == 2 && out.ends_with(|c: char| !c.is_whitespace()));
        out.push_str(before);
        rest = after;
        let noun = NOUNS.iter().find(|(many, _)| {
            after
                .strip_prefix(many)
                .is_some_and(|next| !next.starts_with(|c: char| c.is_alphanumeric()))
        });
        if let (true, Some((many, one))) = (is_one, noun) {
            out.push_str(one);
            rest = after.get(many.len()..).unwrap_or_default();
        }
    }
    out.push_str(rest);
    out
}

/// `1 node`, `2 nodes`: a number with its English noun, whose plural ends in s.
pub fn counted(count: impl TryInto<u64> + std::fmt::Display, noun: &str) -> String {
    let shown = count.to_string();
    let many = if count.try_into().is_ok_and(|count| count == 1) { "" } else { "s" };
    format!("{shown} {noun}{many}")
}

/// A number of bytes as people say it: `64 MiB`, `1.5 GiB`, `7 bytes`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = "bytes";
    for next in UNITS {
        unit = next;
        if value < 1024.0 || next == "TiB" {
            break;
        }
        value /= 1024.0;
    }
    if value.fract() < 0.05 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locale_names_choose_the_language() {
        let of = |name: &'static str, value: &'static str| {
            Lang::from_environment(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(of("LANG", "zh_CN.UTF-8"), Lang::Zh);
        assert_eq!(of("LC_ALL", "zh_TW"), Lang::Zh);
        assert_eq!(of("LANG", "C.UTF-8"), Lang::En);
        assert_eq!(of("OTHER", "zh"), Lang::En);
    }

    #[test]
    fn one_is_counted_in_the_singular() {
        for (many, one) in [
            ("1 nodes × 1 processes", "1 node × 1 process"),
            ("11 nodes, 21 GPUs", "11 nodes, 21 GPUs"),
            ("needs 1 GPUs (1 CPUs for 1 ranks)", "needs 1 GPU (1 CPU for 1 rank)"),
            ("0 of 1 other nodes heard", "0 of 1 other node heard"),
            ("x=1 nodes, 0.1 nodes, 1 nodesets", "x=1 nodes, 0.1 nodes, 1 nodesets"),
            ("1 1 nodes", "1 1 node"),
            ("in 1 ", "in 1 "),
        ] {
            assert_eq!(singular(many.to_owned()), one);
        }
        let count = 1;
        assert_eq!(text!("{count} GPUs can be used", "{count} 个 GPU").en, "1 GPU can be used");
    }

    #[test]
    fn sizes_are_said_for_people() {
        for (count, said) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1536, "1.5 KiB"),
            (212 << 10, "212 KiB"),
            (5 << 40, "5 TiB"),
        ] {
            assert_eq!(bytes(count), said);
        }
    }

    #[test]
    fn both_languages_capture_the_same_values() {
        let nodes = 3;
        let text = text!("{nodes} nodes", "{nodes} 个节点");
        assert_eq!((text.get(Lang::En), text.get(Lang::Zh)), ("3 nodes", "3 个节点"));
    }
}
