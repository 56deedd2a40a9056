//! The two languages of the program's output.
//!
//! Every sentence for people exists in English and in Chinese, side by side at the place that
//! knows the facts. The language is chosen once, where the text is printed. Ids, JSON keys and
//! variable names are never translated.

use std::borrow::Cow;
use std::fmt;
use std::io;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::text;

/// The language of all output for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lang {
    #[default]
    En,
    Zh,
}

impl Lang {
    /// The language of a POSIX locale name (`zh_CN.UTF-8` → Chinese; all else English).
    pub(crate) fn from_locale(locale: &str) -> Lang {
        if locale.starts_with("zh") { Lang::Zh } else { Lang::En }
    }

    /// The separator between a label and its text.
    pub fn colon(self) -> &'static str {
        match self {
            Lang::En => ": ",
            Lang::Zh => "：",
        }
    }

    /// The language of the environment: RANKLAUNCH_LANG, else the first non-empty of LC_ALL,
    /// LC_MESSAGES, LANG.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Lang {
        match variable("RANKLAUNCH_LANG").as_deref().map(str::trim) {
            Some("en") => return Lang::En,
            Some("zh") => return Lang::Zh,
            _ => {}
        }
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

    /// `SUBJECT: text`, for a path, a name or an address that is the same in both languages.
    pub fn about(&self, subject: impl fmt::Display) -> Text {
        let Text { en, zh } = self;
        text!("{subject}: {en}", "{subject}：{zh}")
    }

    pub fn get(&self, lang: Lang) -> &str {
        match lang {
            Lang::En => &self.en,
            Lang::Zh => &self.zh,
        }
    }
}

/// An error with our own text, which [`cause`] gives back.
pub fn failure(kind: io::ErrorKind, text: Text) -> io::Error {
    io::Error::new(kind, Named(text))
}

/// Whether an error is one of [`failure`].
pub fn is_explained(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<Named>())
}

#[derive(Debug)]
struct Named(Text);

impl fmt::Display for Named {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.en)
    }
}

impl std::error::Error for Named {}

/// The system's text of an error, with its number, so that it can be looked up.
pub fn cause(error: &io::Error) -> Text {
    if let Some(Named(text)) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        return text.clone();
    }
    const KNOWN: &[(io::ErrorKind, &str)] = &[
        (io::ErrorKind::NotFound, "文件或目录不存在"),
        (io::ErrorKind::PermissionDenied, "权限不足"),
        (io::ErrorKind::ConnectionRefused, "连接被拒绝"),
        (io::ErrorKind::ConnectionReset, "连接被重置"),
        (io::ErrorKind::ConnectionAborted, "连接已中止"),
        (io::ErrorKind::HostUnreachable, "没有到该主机的路由"),
        (io::ErrorKind::NetworkUnreachable, "网络不可达"),
        (io::ErrorKind::TimedOut, "超时"),
        (io::ErrorKind::AddrInUse, "地址已被占用"),
        (io::ErrorKind::AddrNotAvailable, "本机没有该地址"),
        (io::ErrorKind::BrokenPipe, "对方已关闭连接"),
        (io::ErrorKind::UnexpectedEof, "数据提前结束"),
        (io::ErrorKind::AlreadyExists, "文件已存在"),
        (io::ErrorKind::NotADirectory, "不是目录"),
        (io::ErrorKind::IsADirectory, "是目录"),
        (io::ErrorKind::ReadOnlyFilesystem, "文件系统为只读"),
        (io::ErrorKind::StorageFull, "磁盘空间已满"),
        (io::ErrorKind::QuotaExceeded, "超出磁盘配额"),
        (io::ErrorKind::StaleNetworkFileHandle, "网络文件句柄已失效"),
        (io::ErrorKind::OutOfMemory, "内存不足"),
    ];
    /// Errors without a kind of their own, or whose kind also covers errors with other words.
    const NUMBERS: &[(Errno, &str)] = &[
        (Errno::AGAIN, "资源暂时不可用"),
        (Errno::INVAL, "无效的参数"),
        (Errno::MFILE, "进程打开的文件过多"),
        (Errno::NFILE, "系统中打开的文件过多"),
        (Errno::IO, "输入/输出错误"),
        (Errno::NOEXEC, "可执行文件格式错误"),
    ];
    let en = error.to_string();
    let number = Errno::from_io_error(error);
    let by_kind = KNOWN.iter().find(|(kind, _)| *kind == error.kind()).map(|(_, zh)| *zh);
    let by_number = || NUMBERS.iter().find(|(known, _)| Some(*known) == number).map(|(_, zh)| *zh);
    let zh = by_kind.or_else(by_number);
    match (zh, error.raw_os_error()) {
        (Some(zh), Some(number)) => Text::new(en, format!("{zh}（os error {number}）")),
        (Some(zh), None) => Text::new(en, zh),
        (None, _) => Text::same(en),
    }
}

/// A name that follows Chinese words: with a space in front if it begins in Latin.
pub fn spaced(zh: &str) -> String {
    if zh.starts_with(|c: char| c.is_ascii()) { format!(" {zh}") } else { zh.to_owned() }
}

/// A name between Chinese words: with a space at each end that is Latin.
pub fn between(zh: &str) -> String {
    let mut zh = spaced(zh);
    if zh.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        zh.push(' ');
    }
    zh
}

/// Like [`between`], at the beginning of a sentence: without the leading space.
pub fn leading(zh: &str) -> String {
    between(zh).trim_start().to_owned()
}

/// `text!("{n} nodes", "{n} 个节点")`: a [`Text`] from two format strings that
/// capture variables of the scope.
#[macro_export]
macro_rules! text {
    ($en:literal, $zh:literal $(,)?) => {
        $crate::lang::Text::new($crate::lang::singular(format!($en)), format!($zh))
    };
}

/// Nouns that messages count: plural and singular.
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

/// The sentence with the singular of each noun that is counted once: `1 nodes × 1 processes`
/// becomes `1 node × 1 process`. A message therefore needs only one form.
pub fn singular(sentence: String) -> String {
    if !sentence.contains("1 ") {
        return sentence;
    }
    let mut out = String::with_capacity(sentence.len());
    let mut rest = sentence.as_str();
    while let Some(at) = rest.find("1 ") {
        let (before, after) = rest.split_at(at + 2);
        let is_one = before.len() == 2 || before.get(..at).is_some_and(|b| b.ends_with([' ', '(']));
        // A `1` at the start of the rest may be the end of a longer number.
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
pub fn counted(count: impl TryInto<u64> + fmt::Display, noun: &str) -> String {
    let shown = count.to_string();
    let many = if count.try_into().is_ok_and(|count| count == 1) { "" } else { "s" };
    format!("{shown} {noun}{many}")
}

/// A readable number of bytes: `64 MiB`, `1.5 GiB`, `7 B`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = "B";
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
    fn system_errors_are_told_in_both_languages() {
        let refused = cause(&io::Error::from_raw_os_error(111));
        assert_eq!(refused.en, "Connection refused (os error 111)");
        assert_eq!(refused.zh, "连接被拒绝（os error 111）");
        // An error without a kind, and an error from a container's limits.
        for (number, zh) in [(24, "进程打开的文件过多"), (11, "资源暂时不可用")] {
            let said = cause(&io::Error::from_raw_os_error(number));
            assert_eq!(said.zh, format!("{zh}（os error {number}）"));
        }
        let odd = cause(&io::Error::other("odd"));
        assert_eq!((odd.en, odd.zh), ("odd".into(), "odd".into()));
    }

    #[test]
    fn nouns_counted_once_are_singular() {
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
    fn sizes_have_readable_units() {
        for (count, said) in [
            (0, "0 B"),
            (1023, "1023 B"),
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
