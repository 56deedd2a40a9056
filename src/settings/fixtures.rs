//! Default settings for the tests of other rooms.

use std::collections::BTreeMap;

use super::{Settings, defaults};
use crate::host::Host;

/// The defaults on a node without a single variable.
pub(crate) fn undecided() -> Settings {
    defaults(&Host::replayed("/", BTreeMap::new()))
}
