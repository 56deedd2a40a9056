//! Versions of the software of a job, as its log tells them, and the ranges of versions that a row is for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::lines::{Pattern, kept};
use super::rows::{Range, Row};

/// Fragments of the lines that may tell a version.
pub(super) const TELLING: &[&str] = &[
    " version",
    "version: ",
    "torch==",
    "vllm==",
    "transformers==",
    "deepspeed==",
    "datasets==",
    "nccl-cu12==",
    "engine (v",
    "aws-ofi-nccl ",
];

/// Maximum number of components and of versions of each that are kept.
const MOST: usize = 64;
const MOST_OF_ONE: usize = 4;
/// A log tells its versions where it begins; a word that each of its lines has costs no more than this many.
const MOST_LINES: usize = 2_000;

/// The numbers of a version: those of `2.19.3+cuda12.3` are 2, 19 and 3.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version {
    /// Without zeros at the end, so that 2.20 and 2.20.0 are the same.
    numbers: Vec<u32>,
}

impl Version {
    pub(super) fn parse(text: &str) -> Option<Version> {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let text = text.get(..end)?.trim_end_matches('.');
        let mut numbers: Vec<u32> =
            text.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        while numbers.len() > 1 && numbers.last() == Some(&0) {
            numbers.pop();
        }
        Some(Version { numbers })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.numbers.iter().map(u32::to_string).collect();
        out.write_str(&parts.join("."))
    }
}

impl Range {
    /// Whether the bounds can be read.
    pub(super) fn is_sound(&self) -> bool {
        let bounds: Vec<Option<Version>> =
            self.from.iter().chain(&self.below).map(|bound| Version::parse(bound)).collect();
        let in_order = match &bounds[..] {
            [Some(from), Some(below)] => from < below,
            [Some(_)] => true,
            _ => false,
        };
        in_order && self.component == name(&self.component)
    }

    fn holds(&self, version: &Version) -> bool {
        let bound = |bound: &Option<String>| bound.as_deref().and_then(Version::parse);
        bound(&self.from).is_none_or(|from| *version >= from)
            && bound(&self.below).is_none_or(|below| *version < below)
    }
}

/// The versions that a log tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Versions {
    /// By component.
    told: BTreeMap<String, BTreeSet<(Version, String)>>,
    lines: usize,
}

impl Versions {
    /// Takes what a line tells.
    pub(super) fn note(&mut self, line: &[u8]) {
        self.lines += 1;
        if self.lines > MOST_LINES {
            return;
        }
        static PATTERN: Pattern = Pattern::new(concat!(
            r"(?i)(?:^|[^\w.-])`?(?P<name>[a-z][\w-]{1,30})`?",
            r"(?: (?:info: )?version(?: is)?[:= ]\s*|==|(?: api server version | v\d llm engine | llm engine )\(?v?|-nccl )",
            r"v?(?P<version>\d{1,4}(?:\.\d{1,4}){1,3}[\w.+]*)",
        ));
        static ENGINE: Pattern = Pattern::new(
            r"(?i)Initializing an? (?:\w+ )?LLM engine \(v(?P<version>\d+(?:\.\d+)+[\w.+]*)\)",
        );
        let engine = ENGINE.captures(line).map(|groups| ("vllm".to_owned(), groups));
        let told = PATTERN.captures(line).and_then(|groups| {
            let name = groups.name("name")?;
            Some((kept(name.as_bytes()), groups))
        });
        for (component, groups) in engine.into_iter().chain(told) {
            let Some(text) = groups.name("version").map(|version| kept(version.as_bytes())) else {
                continue;
            };
            let component = name(&component);
            let Some(version) = Version::parse(&text) else { continue };
            if self.told.len() < MOST || self.told.contains_key(&component) {
                let known = self.told.entry(component).or_default();
                if known.len() < MOST_OF_ONE {
                    known.insert((version, text.trim_end_matches('.').to_owned()));
                }
            }
        }
    }

    /// Also those of another log.
    pub(super) fn add(&mut self, other: &Versions) {
        for (component, versions) in &other.told {
            self.told.entry(component.clone()).or_default().extend(versions.iter().cloned());
        }
    }

    /// The version of a component, if the log tells one only.
    pub(super) fn of(&self, component: &str) -> Option<&str> {
        let known = self.told.get(&name(component))?;
        let (_, text) = known.first().filter(|_| known.len() == 1)?;
        Some(text)
    }

    /// Whether the log leaves a row possible: each component has a version in the range, or none.
    pub(super) fn allow(&self, row: &Row) -> bool {
        row.versions.iter().all(|range| self.holds(range) != Some(false))
    }

    /// Whether the log tells that the software has the failure of a row.
    pub(super) fn confirm(&self, row: &Row) -> bool {
        row.versions.iter().all(|range| self.holds(range) == Some(true))
    }

    /// None: the log tells no version of the component, or some within the range and some outside.
    fn holds(&self, range: &Range) -> Option<bool> {
        let known = self.told.get(&range.component)?;
        let mut held = known.iter().map(|(version, _)| range.holds(version));
        let first = held.next()?;
        held.all(|other| other == first).then_some(first)
    }
}

/// One name for the spellings of a component.
fn name(component: &str) -> String {
    let name = component.to_ascii_lowercase().replace('-', "_");
    match &*name {
        "pytorch" => "torch".to_owned(),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_in_many_forms() {
        for (line, component, version) in [
            ("NCCL version 2.19.3+cuda12.3", "nccl", "2.19.3+cuda12.3"),
            (
                "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.29.7",
                "nccl",
                "2.29.7",
            ),
            ("n1:1:2 [0] NCCL INFO NCCL version 2.20.5+cuda12.4", "nccl", "2.20.5+cuda12.4"),
            ("[pip3] torch==2.5.1+cu121", "torch", "2.5.1+cu121"),
            ("PyTorch version: 2.3.0", "torch", "2.3.0"),
            ("- `transformers` version: 4.44.2", "transformers", "4.44.2"),
            ("INFO 01-02 vLLM API server version 0.6.3.post1", "vllm", "0.6.3.post1"),
            ("Initializing a V1 LLM engine (v0.8.5) with config: x", "vllm", "0.8.5"),
            ("[INFO] DeepSpeed info: version=0.14.0, git-hash=x", "deepspeed", "0.14.0"),
            ("huggingface-hub==0.30.1", "huggingface_hub", "0.30.1"),
        ] {
            let mut told = Versions::default();
            told.note(line.as_bytes());
            assert_eq!(told.of(component), Some(version), "{line}: {told:?}");
        }
        let mut told = Versions::default();
        told.note(b"Mismatched NCCL version detected : rank 0 version 21803 rank 1 version 22005");
        told.note(b"========== conversion 3.4 ==========");
        assert_eq!(told.told, BTreeMap::new());
    }

    #[test]
    fn range_includes_its_first_version_only() {
        let range = |from: Option<&str>, below: Option<&str>| Range {
            component: "nccl".to_owned(),
            from: from.map(str::to_owned),
            below: below.map(str::to_owned),
        };
        for (from, below, version, held) in [
            (Some("2.19"), Some("2.20"), "2.19", true),
            (Some("2.19.0"), Some("2.20"), "2.19", true),
            (Some("2.19"), Some("2.20"), "2.19.4", true),
            (Some("2.19"), Some("2.20"), "2.20.0", false),
            (Some("2.19"), Some("2.20"), "2.18.6", false),
            (None, Some("2.20"), "2.9", true),
            (Some("2.19"), None, "3.0", true),
        ] {
            let range = range(from, below);
            assert!(range.is_sound());
            let version = Version::parse(version).expect("a version");
            assert_eq!(range.holds(&version), held, "{range:?} {version}");
        }
        assert!(!range(None, None).is_sound() && !range(Some("2.20"), Some("2.19")).is_sound());
        assert!(!range(Some("new"), None).is_sound());
    }
}
