//! The cause of a job's failure, as far as the output of its processes shows it, and its effect on the
//! exit code.

use serde::{Deserialize, Serialize};

use super::{Class, Verdict};
use text::lang::Text;
use text::text;

/// Reliability of a cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Confidence {
    Unknown,
    Likely,
    Certain,
}

/// The party that has to act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// The author of the training program.
    Code,
    Configuration,
    Image,
    Node,
    Fabric,
    Platform,
}

/// Whether another attempt can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Retry {
    /// Another attempt would fail in the same way.
    Never,
    SameNodes,
    OtherNode,
    /// Later, when something outside has changed.
    Wait,
}

/// The root cause in the form that is printed, stored and sent to the other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// A row of the catalogue of failures, or of the profile.
    pub id: String,
    pub confidence: Confidence,
    /// Description of the failure.
    pub text: Text,
    pub remedy: Text,
    pub owner: Owner,
    pub retry: Retry,
    /// Global rank of the culprit.
    pub rank: Option<u32>,
    /// The last frame of the user's own code: `generate.py:363 main`.
    pub frame: Option<String>,
    /// The log that shows the cause, as a path below the folder of the attempt. Empty if no line
    /// shows the cause, but the exit status of a rank does.
    pub log: String,
    /// Counts line feeds, from 1.
    pub line: u64,
    /// The line in the log, without its prefix.
    pub evidence: String,
    /// Ranks that did not reach the point at which the others waited.
    pub missing: Vec<u32>,
    /// Ranks that failed as a consequence.
    pub victims: Vec<Victims>,
    /// Causes that do not depend on this one.
    pub also: Vec<AlsoFailed>,
}

/// Ranks that failed because of another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victims {
    /// Global ranks in ascending order.
    pub ranks: Vec<u32>,
    /// The catalogue row of their output.
    pub id: String,
    pub text: Text,
}

/// A cause beside the first one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlsoFailed {
    pub id: String,
    pub text: Text,
    pub rank: Option<u32>,
}

impl Why {
    /// A certain cause in the user's code that names no line of a log and no rank.
    pub fn without_log(id: &str, text: Text, remedy: Text) -> Why {
        Why {
            id: id.to_owned(),
            confidence: Confidence::Certain,
            text,
            remedy,
            owner: Owner::Code,
            retry: Retry::SameNodes,
            rank: None,
            frame: None,
            log: String::new(),
            line: 0,
            evidence: String::new(),
            missing: Vec::new(),
            victims: Vec::new(),
            also: Vec::new(),
        }
    }

    /// A cause for tests.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn fixture(id: &str, confidence: Confidence, owner: Owner, retry: Retry) -> Why {
        let nothing = Why::without_log(id, Text::same(""), Text::same(""));
        Why { confidence, owner, retry, ..nothing }
    }

    /// Whether the node or its network is certainly at fault, so that another attempt on the same
    /// nodes would meet it again.
    fn needs_another_node(&self) -> bool {
        self.confidence == Confidence::Certain
            && self.retry == Retry::OtherNode
            && matches!(self.owner, Owner::Node | Owner::Fabric)
    }
}

impl Confidence {
    /// For people.
    pub fn words(self) -> Text {
        match self {
            Confidence::Certain => text!("certain", "确定"),
            Confidence::Likely => text!("likely", "很可能"),
            Confidence::Unknown => text!("unknown", "未知"),
        }
    }
}

impl Retry {
    /// For people.
    pub fn words(self) -> Text {
        match self {
            Retry::Never => text!(
                "useless: it would fail again in the same way",
                "无用：再次运行会以同样方式失败"
            ),
            Retry::SameNodes => text!("may help, on the same nodes", "可能有用，可在原节点上重试"),
            Retry::OtherNode => text!("only on another node", "只有换节点才可能有用"),
            Retry::Wait => text!("later, when the platform has room", "等平台条件满足后再试"),
        }
    }
}

impl Owner {
    /// For people.
    pub fn words(self) -> Text {
        match self {
            Owner::Code => text!("the program", "程序"),
            Owner::Configuration => text!("the job's configuration", "任务配置"),
            Owner::Image => text!("the image", "镜像"),
            Owner::Node => text!("the node", "节点"),
            Owner::Fabric => text!("the network", "网络"),
            Owner::Platform => text!("the platform", "平台"),
        }
    }
}

/// The exit code of an end with `code`. [`Verdict::ReplaceNode`] replaces a rank's own code if the
/// node has to be replaced: only then can the platform tell that case from a failure of the
/// program.
pub fn code_by_cause(class: Class, code: i32, why: Option<&Why>) -> i32 {
    match why {
        Some(why) if class == Class::Script && why.needs_another_node() => {
            Verdict::ReplaceNode.code()
        }
        _ => code,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certain_node_fault_replaces_rank_exit_code() {
        use {Confidence as C, Owner as O, Retry as R};
        for (class, confidence, owner, retry, code) in [
            (Class::Script, C::Certain, O::Node, R::OtherNode, 90),
            (Class::Script, C::Certain, O::Fabric, R::OtherNode, 90),
            (Class::Script, C::Likely, O::Node, R::OtherNode, 1),
            (Class::Script, C::Certain, O::Image, R::OtherNode, 1),
            (Class::Script, C::Certain, O::Node, R::SameNodes, 1),
            (Class::Engine, C::Certain, O::Node, R::OtherNode, 1),
            (Class::Stopped, C::Certain, O::Node, R::OtherNode, 1),
            (Class::Launcher, C::Certain, O::Node, R::OtherNode, 1),
        ] {
            let why = Why::fixture("cuda_ecc", confidence, owner, retry);
            let found = code_by_cause(class, 1, Some(&why));
            assert_eq!(found, code, "{class:?} {confidence:?} {owner:?} {retry:?}");
        }
        assert_eq!(code_by_cause(Class::Script, 137, None), 137);
    }
}
