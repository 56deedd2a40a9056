//! The effect of a failure's cause on the exit code.

use super::why::{Confidence, Owner, Retry, Why};
use super::{Class, Verdict};
#[cfg(any(test, feature = "fixtures"))]
use text::lang::Text;

impl Why {
    /// A cause for tests.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn fixture(id: &str, confidence: Confidence, owner: Owner, retry: Retry) -> Why {
        Why {
            id: id.to_owned(),
            confidence,
            text: Text::same(""),
            remedy: Text::same(""),
            owner,
            retry,
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

    /// Whether the node or its network is certainly at fault, so that another attempt on the same
    /// nodes would meet it again.
    pub(crate) fn needs_another_node(&self) -> bool {
        self.confidence == Confidence::Certain
            && self.retry == Retry::OtherNode
            && matches!(self.owner, Owner::Node | Owner::Fabric)
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
