//! Where a node meets the others, as far as it can be known when its settings are refused.

use super::table::{Take, row};
use super::variables::Variables;
use super::{EMBEDDED, Settings, Sourced, checked, defaults, extends, strongest};
use crate::cli;
use crate::host::Host;

/// The settings that say which node this is and where node 0 listens.
const ROWS: &[&str] = &[
    "host-root",
    "lang",
    "nnodes",
    "node-rank",
    "master-addr",
    "master-port",
    "world-size-counts",
    "nested",
    "engine",
    "muster",
    "muster-port",
];

/// The defaults with what the flags, the variables and a readable profile say of the
/// meeting. None: one of those is itself wrong, so nothing may be guessed from the rest.
pub fn read_meeting(options: &cli::Options, host: &Host) -> Option<Settings> {
    let variables = Variables::read(host, &mut Vec::new());
    let mut settings = defaults(host);
    let asked = row("profile").and_then(|row| strongest(row, options, &variables));
    let asked = asked.map(|(row, raw)| checked(row, raw)).transpose().ok()?;
    // One that cannot be read says nothing; the platform mostly says it all.
    let profile =
        extends::load(asked.as_ref(), host, EMBEDDED).ok().flatten().map(|whole| whole.profile);
    for row in ROWS.iter().copied().filter_map(row) {
        let Take::One(put) = row.take else { continue };
        let given = match strongest(row, options, &variables) {
            Some((_, raw)) => Some(checked(row, raw).ok()?),
            None => profile.as_ref().and_then(|profile| profile.values.get(row.name).cloned()),
        };
        if let Some(Sourced { value, source }) = given {
            put(&mut settings, &value, source)?;
        }
    }
    Some(settings)
}
