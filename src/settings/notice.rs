//! Parses `--notice` and the signals of `[notice]`: the words of a setting in, checked types out.
//!
//! A source is `slurm`, a cloud, `file:PATH` or `signal:NAME`; its words are also its form in JSON. Says nothing about
//! how a source is watched.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Real-time signals as glibc counts them, which is what programs, Python and scontrol(1) mean by RTMIN+n.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;
/// Python's stacks are asked for with this signal (`faulthandler` in the ranks), so it cannot mean anything else there.
const STACKS: i32 = 58;

const USR1: NoticeSignal = NoticeSignal(10);
const USR2: NoticeSignal = NoticeSignal(12);
const TERM: NoticeSignal = NoticeSignal(15);
/// Signals with a name of their own.
const NAMES: &[(&str, NoticeSignal)] = &[
    ("HUP", NoticeSignal(1)),
    ("INT", NoticeSignal(2)),
    ("QUIT", NoticeSignal(3)),
    ("USR1", USR1),
    ("USR2", USR2),
    ("TERM", TERM),
];

/// A signal by its number. `USR1`, `SIGUSR1`; `RTMIN+3` and `RTMAX-2` for real-time ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoticeSignal(i32);

impl NoticeSignal {
    pub fn number(self) -> i32 {
        self.0
    }

    /// Whether it begins the stop of a launcher.
    fn is_stop(self) -> bool {
        matches!(self.0, 1..=3 | 15)
    }
}

impl Default for NoticeSignal {
    /// The one that programs without a handler for another one know.
    fn default() -> NoticeSignal {
        TERM
    }
}

impl fmt::Display for NoticeSignal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, signal)| signal == self) {
            Some((name, _)) => out.write_str(name),
            None if self.0 == RTMIN => out.write_str("RTMIN"),
            None => write!(out, "RTMIN+{}", self.0 - RTMIN),
        }
    }
}

/// The text is none of the words that a setting allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown;

impl fmt::Display for Unknown {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("no source of notices and no signal")
    }
}

impl FromStr for NoticeSignal {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<NoticeSignal, Unknown> {
        let name = text.strip_prefix("SIG").unwrap_or(text);
        if let Some((_, signal)) = NAMES.iter().find(|(known, _)| *known == name) {
            return Ok(*signal);
        }
        let beyond = |rest: &str, sign: char| match rest.strip_prefix(sign) {
            None if rest.is_empty() => Some(0),
            None => None,
            // Digits alone: no second sign.
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
            Some(_) => None,
        };
        let number = match (name.strip_prefix("RTMIN"), name.strip_prefix("RTMAX")) {
            (Some(rest), _) => beyond(rest, '+').and_then(|above| RTMIN.checked_add(above)),
            (_, Some(rest)) => beyond(rest, '-').and_then(|below| RTMAX.checked_sub(below)),
            _ => None,
        };
        let number = number.filter(|number| (RTMIN..=RTMAX).contains(number));
        number.map(NoticeSignal).ok_or(Unknown)
    }
}

/// Says that this node or job ends soon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum NoticeSource {
    /// The end of the job's time, SLURM_JOB_END_TIME.
    Slurm,
    Gcp,
    Aws,
    Azure,
    Alibaba,
    /// A file that the platform makes or changes; an absolute path.
    File(PathBuf),
    /// A signal to the launcher that is no stop.
    Signal(NoticeSignal),
}

impl NoticeSource {
    /// The sources whose word is a name alone.
    const NAMED: [(&str, NoticeSource); 5] = [
        ("slurm", NoticeSource::Slurm),
        ("gcp", NoticeSource::Gcp),
        ("aws", NoticeSource::Aws),
        ("azure", NoticeSource::Azure),
        ("alibaba", NoticeSource::Alibaba),
    ];
}

impl fmt::Display for NoticeSource {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoticeSource::File(path) => write!(out, "file:{}", path.display()),
            NoticeSource::Signal(signal) => write!(out, "signal:{signal}"),
            named => {
                let name = NoticeSource::NAMED.iter().find(|(_, source)| source == named);
                out.write_str(name.map_or("", |(name, _)| name))
            }
        }
    }
}

impl From<NoticeSource> for String {
    fn from(source: NoticeSource) -> String {
        source.to_string()
    }
}

impl FromStr for NoticeSource {
    type Err = Unknown;

    fn from_str(text: &str) -> Result<NoticeSource, Unknown> {
        if let Some(path) = text.strip_prefix("file:") {
            let is_path = path.starts_with('/') && !path.contains(char::is_control);
            return is_path.then(|| NoticeSource::File(path.into())).ok_or(Unknown);
        }
        if let Some(name) = text.strip_prefix("signal:") {
            let signal = NoticeSignal::from_str(name).ok().filter(|signal| !signal.is_stop());
            return signal.map(NoticeSource::Signal).ok_or(Unknown);
        }
        let named = NoticeSource::NAMED.into_iter().find(|(name, _)| *name == text);
        named.map(|(_, source)| source).ok_or(Unknown)
    }
}

impl TryFrom<String> for NoticeSource {
    type Error = Unknown;

    fn try_from(text: String) -> Result<NoticeSource, Unknown> {
        text.parse()
    }
}

/// The sources that are watched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum NoticeMode {
    /// Slurm where it says the end of the job, and the cloud whose machine this is.
    #[default]
    Auto,
    Off,
    Only(Vec<NoticeSource>),
}

impl fmt::Display for NoticeMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoticeMode::Auto => out.write_str("auto"),
            NoticeMode::Off => out.write_str("off"),
            NoticeMode::Only(sources) => {
                let words: Vec<String> = sources.iter().map(ToString::to_string).collect();
                out.write_str(&words.join(","))
            }
        }
    }
}

/// `auto`, `off`, or sources, each once.
pub(super) fn mode(text: &str) -> Option<NoticeMode> {
    match text {
        "auto" => return Some(NoticeMode::Auto),
        "off" => return Some(NoticeMode::Off),
        _ => {}
    }
    let mut sources: Vec<NoticeSource> = Vec::new();
    for word in text.split(',') {
        let source = word.trim().parse().ok()?;
        if sources.contains(&source) {
            return None;
        }
        sources.push(source);
    }
    Some(NoticeMode::Only(sources))
}

/// The signal that ranks get: not QUIT, whose usual effect is a core file, and not that of their stacks.
pub(super) fn signal(text: &str) -> Option<NoticeSignal> {
    let signal: NoticeSignal = text.parse().ok()?;
    (!matches!(signal.number(), 3 | STACKS)).then_some(signal)
}

/// A mistake in a list of sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Mistake {
    /// The signal, which is a stop already.
    IsStop(NoticeSignal),
    /// The path, which is relative.
    Relative(String),
    /// A path of which this is the rest behind a comma, where the next source begins.
    Comma(String),
    /// The word of a source that is there twice.
    Twice(String),
    /// `auto` or `off` beside sources.
    Beside(&'static str),
}

/// The known mistake of a list that is not allowed.
pub(super) fn mistake(text: &str) -> Option<Mistake> {
    let mut seen: Vec<NoticeSource> = Vec::new();
    for word in text.split(',').map(str::trim) {
        let signal = word.strip_prefix("signal:").and_then(|name| name.parse().ok());
        if let Some(signal) = signal.filter(|signal: &NoticeSignal| signal.is_stop()) {
            return Some(Mistake::IsStop(signal));
        }
        if let Some(path) = word.strip_prefix("file:").filter(|path| !path.starts_with('/')) {
            return Some(Mistake::Relative(path.to_owned()));
        }
        if let Some(alone) = ["auto", "off"].into_iter().find(|alone| *alone == word) {
            return text.contains(',').then_some(Mistake::Beside(alone));
        }
        let Ok(source) = word.parse::<NoticeSource>() else {
            if matches!(seen.last(), Some(NoticeSource::File(_))) {
                return Some(Mistake::Comma(word.to_owned()));
            }
            continue;
        };
        if seen.contains(&source) {
            return Some(Mistake::Twice(word.to_owned()));
        }
        seen.push(source);
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_source() -> impl Strategy<Value = NoticeSource> {
        let signals = prop_oneof![Just(10), Just(12), RTMIN..=RTMAX];
        prop_oneof![
            proptest::sample::select(NoticeSource::NAMED.map(|(_, source)| source).to_vec()),
            "/[a-z.:= ]{0,12}[a-z]".prop_map(|path| NoticeSource::File(path.into())),
            signals.prop_map(|number| NoticeSource::Signal(NoticeSignal(number))),
        ]
    }

    proptest! {
        #[test]
        fn words_of_a_source_are_read_as_that_source(source in any_source()) {
            prop_assert_eq!(source.to_string().parse(), Ok(source.clone()));
            let json = serde_json::to_string(&source).expect("JSON");
            prop_assert_eq!(serde_json::from_str::<NoticeSource>(&json).expect("a source"), source);
        }

        #[test]
        fn each_source_counts_once(sources in proptest::collection::vec(any_source(), 1..6)) {
            let mode_of = NoticeMode::Only(sources.clone());
            let is_twice = (1..sources.len()).any(|at| sources[..at].contains(&sources[at]));
            let read = mode(&mode_of.to_string());
            prop_assert_eq!(read.as_ref(), (!is_twice).then_some(&mode_of));
            let found = mistake(&mode_of.to_string());
            prop_assert_eq!(matches!(found, Some(Mistake::Twice(_))), is_twice);
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            if let Some(read) = mode(&text) {
                prop_assert_eq!(mode(&read.to_string()), Some(read));
            }
            mistake(&text);
            if let Some(read) = signal(&text) {
                prop_assert_eq!(signal(&read.to_string()), Some(read));
            }
        }
    }

    #[test]
    fn signals_by_name_and_by_distance() {
        for (text, number) in [
            ("TERM", 15),
            ("SIGUSR1", 10),
            ("USR2", 12),
            ("RTMIN", 34),
            ("SIGRTMIN+2", 36),
            ("RTMAX-1", 63),
            ("RTMAX", 64),
            ("RTMIN+30", 64),
        ] {
            assert_eq!(text.parse().map(NoticeSignal::number), Ok(number), "{text}");
        }
        for text in [
            "", "SIG", "KILL", "STOP", "usr1", "15", "RTMIN-1", "RTMIN+31", "RTMAX+1", "RTMIN+",
            "RTMIN2",
        ] {
            assert_eq!(text.parse::<NoticeSignal>(), Err(Unknown), "{text}");
        }
        for text in ["QUIT", "RTMAX-6", "RTMIN+24"] {
            assert!(text.parse::<NoticeSignal>().is_ok() && signal(text).is_none(), "{text}");
        }
    }

    #[test]
    fn stops_relative_paths_and_company_of_off_are_known_mistakes() {
        for (text, found) in [
            ("signal:TERM", Mistake::IsStop(TERM)),
            ("slurm,signal:SIGHUP", Mistake::IsStop(NoticeSignal(1))),
            ("file:stop", Mistake::Relative("stop".into())),
            ("file:/a,b/stop", Mistake::Comma("b/stop".into())),
            ("slurm,file:/a,", Mistake::Comma("".into())),
            ("aws,aws", Mistake::Twice("aws".into())),
            ("signal:USR1,signal:SIGUSR1", Mistake::Twice("signal:SIGUSR1".into())),
            ("slurm,auto", Mistake::Beside("auto")),
        ] {
            assert_eq!((mode(text), mistake(text)), (None, Some(found)), "{text}");
        }
        for text in ["", "ec2", "slurm,", "file:", "signal:", "signal:KILL", "SLURM"] {
            assert_eq!(mode(text), None, "{text}");
        }
        assert_eq!(mode("slurm, aws").map(|mode| mode.to_string()).as_deref(), Some("slurm,aws"));
    }
}
