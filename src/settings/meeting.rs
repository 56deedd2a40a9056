//! Reads where the nodes meet, for a node whose settings are refused and that has to notify the
//! others.

use super::table::{Take, row};
use super::variables::OwnVariables;
use super::{EMBEDDED, Settings, Sourced, checked, defaults, extends, strongest};
use crate::cli;
use linux::host::Host;

/// The settings for the node rank and the address of node 0.
const ROWS: &[&str] = &[
    "host-root",
    "lang",
    "nnodes",
    "nodes",
    "node-rank",
    "master-addr",
    "master-port",
    "world-size-counts",
    "nested",
    "engine",
    "muster",
    "muster-port",
];

impl Settings {
    /// The defaults with these settings from flags, variables and a readable profile. None if one of
    /// them is itself wrong, since the rest could mislead.
    pub fn read_meeting(options: &cli::Options, host: &Host) -> Option<Settings> {
        let variables = OwnVariables::read(host, &mut Vec::new());
        let mut settings = defaults(host);
        let asked = row("profile").and_then(|row| strongest(row, options, &variables));
        let asked = asked.map(|(row, raw)| checked(row, raw)).transpose().ok()?;
        // An unreadable profile is skipped; usually the platform gives these values.
        let profile = extends::load(asked.as_ref(), host, EMBEDDED, &mut Vec::new());
        let profile = profile.ok().flatten().map(|whole| whole.profile);
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
        settings.platform = profile.and_then(|profile| profile.platform);
        Some(settings)
    }
}
