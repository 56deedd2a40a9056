//! The order of the rooms: a room needs only rooms of its own floor and of those below.

use std::collections::BTreeSet;
use std::path::Path;

use crate::modules::{Crate, Edge};
use crate::{root, shown};

/// The floors, lowest first, each with its rooms.
const FLOORS: &[(&str, &str)] = &[
    (
        "text",
        "annotations columns embedded escape lang letters mask nearest pattern ranges rank run_id style version",
    ),
    (
        "linux",
        "cgroups cpus deadline host own_executable pace procfs random regular_file signal sys terminal users",
    ),
    ("verdict", "outcome verdict"),
    ("diagnose", "diagnose recorder stacks"),
    (
        "settings",
        "arguments cli contract endpoint engine hostlist launchers settings torchrun_options",
    ),
    ("node", "observe probe"),
    ("plan", "plan"),
    ("lint", "lint"),
    ("muster", "muster names net"),
    ("logs", "logs"),
    ("supervise", "inject supervise warm"),
    ("preflight", "check clear decide prepare"),
    ("monitor", "export hang history status watch"),
    ("report", "findings report top"),
    ("ranklaunch", "launch"),
];

/// The place of a room's floor in [`FLOORS`].
fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|(_, rooms)| rooms.split(' ').any(|known| known == room))
}

/// The imports of a crate that lead up.
fn ups(read: &Crate) -> impl Iterator<Item = Edge> {
    let rooms = read.files();
    let floor = move |file: &Path| floor(rooms.get(file)?);
    let is_up = move |edge: &Edge| match (floor(&edge.from), floor(&edge.to)) {
        (Some(from), Some(to)) => from < to,
        _ => false,
    };
    read.edges().into_values().filter(is_up)
}

#[test]
fn no_room_needs_a_higher_one() {
    let read = Crate::read(&root().join("src/lib.rs"));
    let line = |edge: Edge| {
        format!("{}:{} → {} ({})", shown(&edge.from), edge.line, shown(&edge.to), edge.name)
    };
    let ups: Vec<String> = ups(&read).map(line).collect();
    assert!(ups.is_empty(), "{} imports lead up:\n{}", ups.len(), ups.join("\n"));
}

/// The control: an import that leads up, beside those that may be.
#[test]
fn an_import_that_leads_up_is_seen() {
    let folder = tempfile::tempdir().expect("a folder");
    for (file, text) in [
        ("lib.rs", "mod lang;\nmod launch;\nmod verdict;"),
        ("lang.rs", "pub struct Lang;\n#[cfg(test)] mod tests { use crate::launch::main; }"),
        ("verdict.rs", "pub fn code() { crate::launch::main() }"),
        ("launch.rs", "use crate::verdict::code;\npub fn main() { let _ = crate::lang::Lang; }"),
    ] {
        std::fs::write(folder.path().join(file), text).expect("a file");
    }
    let read = Crate::read(&folder.path().join("lib.rs"));
    let ups: Vec<String> = ups(&read).map(|edge| edge.name).collect();
    assert_eq!(ups, ["crate::launch::main"]);
}

#[test]
fn every_room_has_one_floor() {
    let read = Crate::read(&root().join("src/lib.rs"));
    let files = read.files();
    let rooms: BTreeSet<&str> = files.values().map(String::as_str).collect();
    let named: Vec<&str> = FLOORS.iter().flat_map(|(_, rooms)| rooms.split(' ')).collect();
    let once: BTreeSet<&str> = named.iter().copied().collect();
    assert_eq!(named.len(), once.len(), "a room stands twice");
    // The façade for tests opens every room.
    let rooms = rooms.difference(&BTreeSet::from(["testing"])).copied().collect();
    assert_eq!(once, rooms);
}
