//! `plan --assume gpus=8,name=H100,memory=80GiB`: an assumed node.
//!
//! Takes the values of the option; gives the assumed GPUs, and turns off the checks of this
//! machine, which say nothing about that node. Only `plan` accepts it, since an assumed node
//! cannot run anything.

use std::ffi::{OsStr, OsString};

use super::refuse::{quoted, usage};
use super::value::{positive, size};
use super::{Assumed, Settings, Source, Sourced};
use text::text;
use verdict::{Id, Refusal, Severity};

/// More GPUs than a node has.
const MOST: u32 = 1024;

/// Checks of the job rather than of the machine, which remain on.
const KEPT: [Id; 3] = [Id::GpuCount, Id::EnvNccl, Id::MembershipSpares];

impl Assumed {
    /// The last value of a fact wins. None: nothing is assumed.
    pub fn read(words: &[OsString]) -> Result<Option<Assumed>, Refusal> {
        let (mut gpus, mut name, mut memory) = (None, None, None);
        for word in words {
            let facts = word.to_str().ok_or_else(|| wrong(word))?;
            for fact in facts.split(',') {
                let (key, value) = fact.split_once('=').unwrap_or((fact, ""));
                match (key.trim(), value.trim()) {
                    (_, "") => return Err(wrong(word)),
                    ("gpus", value) => {
                        let count = positive(value).filter(|count| *count <= MOST);
                        gpus = Some(count.ok_or_else(|| wrong(word))?);
                    }
                    ("name", value) => name = Some(value.to_owned()),
                    ("memory", value) => {
                        let bytes = size(value).filter(|bytes| *bytes > 0);
                        memory = Some(bytes.ok_or_else(|| wrong(word))?);
                    }
                    _ => return Err(wrong(word)),
                }
            }
        }
        match (words.first(), gpus) {
            (None, _) => Ok(None),
            (Some(_), Some(gpus)) => Ok(Some(Assumed { gpus, name, memory })),
            (Some(word), None) => Err(wrong(word)),
        }
    }

    /// Settings for a plan of that node: the checks of this machine are off unless a flag or a
    /// variable sets them.
    pub fn apply(self, settings: &mut Settings) {
        let ids = Id::checks().chain([Id::PythonInterpreter]);
        for id in ids.filter(|id| !KEPT.contains(id)) {
            let asked = settings.severities.get(&id).is_some_and(|severity| {
                matches!(severity.source, Source::Flag(_) | Source::Environment(_))
            });
            if !asked {
                let off = Sourced::new(Severity::Off, Source::Flag("--assume".to_owned()));
                settings.severities.insert(id, off);
            }
        }
        settings.assumed = Some(self);
    }
}

fn wrong(word: &OsStr) -> Refusal {
    let word = quoted(word);
    usage(
        Id::SettingsAssume,
        text!(
            "--assume is {word}, but must describe a node's GPUs: gpus=N from 1 to {MOST}, optionally name=NAME and memory=SIZE",
            "--assume 的值为 {word}，应给出节点的 GPU：gpus=N（1 到 {MOST}），可加 name=名称、memory=容量"
        ),
        text!(
            "for example --assume gpus=8,name=H100,memory=80GiB",
            "例如 --assume gpus=8,name=H100,memory=80GiB"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_and_nothing_else() {
        let read = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            Assumed::read(&words).map(|assumed| assumed.map(|one| one.to_string()))
        };
        assert_eq!(read(&[]), Ok(None));
        for (words, shown) in [
            (&["gpus=8"][..], "gpus=8"),
            (&["gpus=8,name=NVIDIA H100,memory=80GiB"], "gpus=8,name=NVIDIA H100,memory=80GiB"),
            (&["memory=100", "gpus=2", "gpus=4"], "gpus=4,memory=100"),
        ] {
            assert_eq!(read(words), Ok(Some(shown.to_owned())), "{words:?}");
        }
        for word in [
            "",
            "8",
            "gpus",
            "gpus=",
            "gpus=0",
            "gpus=2000",
            "gpus=x",
            "name=H100",
            "gpus=8,memory=0",
            "gpus=8,memory=much",
            "gpus=8,cpus=4",
            "gpus=8,",
        ] {
            let refusal = read(&[word]).expect_err(word);
            assert_eq!((refusal.id, refusal.verdict.code()), (Id::SettingsAssume, 64));
            assert!(refusal.hint.en.contains("gpus=8") && refusal.hint.zh.contains("gpus=8"));
        }
    }
}
