//! Default settings for the tests of other rooms.

use std::collections::BTreeMap;

use super::{Settings, defaults};
use linux::host::Host;

/// The defaults on a node without a single variable.
pub fn undecided() -> Settings {
    defaults(&Host::replayed("/", BTreeMap::new()))
}

/// One `[[job.args_if]]` before all other arguments; None if `when` is no condition.
#[cfg(any(test, feature = "fixtures"))]
pub fn args_if(when: &str, args: &[&str]) -> Option<super::ConditionalArguments> {
    let row = super::ArgumentsIf {
        when: super::condition::Condition::read(when)?,
        args: args.iter().map(Into::into).collect(),
        source: super::Source::Default,
    };
    Some(super::ConditionalArguments { rows: vec![row], at: 0 })
}
