//! The structure of the source: allowed dependencies between crates, no circle of imports between the files of a crate,
//! and the size of each crate. `make test SUITE=house` prints the circles and the sizes.
//!
//! A file needs another file of its crate if it names an item that the other defines, by any path: through `crate`,
//! `super`, an import, a re-export or a glob. Four kinds of reference do not count: a `mod` line; a `pub use`, which
//! only passes a name on; the path through a module; code that only tests compile. So a parent that declares and
//! re-exports its children needs none of them, and they may use its types. A parent that calls a child which uses an
//! item of the parent is a circle of two.

mod doors;
mod languages;
mod modules;
mod openers;
mod order;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use modules::{Crate, Edge};

/// The root files of the launcher's crates by their names.
fn crates() -> BTreeMap<String, PathBuf> {
    let folders = std::fs::read_dir(root().join("src")).expect("a folder").flatten();
    let root_of = |folder: PathBuf| {
        let name = folder.file_name()?.to_str()?.to_owned();
        let file = ["lib.rs", "src/main.rs"].map(|file| folder.join(file));
        Some((name, file.into_iter().find(|file| file.exists())?))
    };
    folders.filter_map(|entry| root_of(entry.path())).collect()
}

struct Room {
    /// Lines of each file, shortest first.
    lines: Vec<(usize, String)>,
    edges: Vec<Edge>,
}

impl Room {
    fn circles(&self) -> BTreeSet<BTreeSet<String>> {
        let mut next: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for edge in &self.edges {
            next.entry(shown(&edge.from)).or_default().insert(shown(&edge.to));
        }
        let reached: BTreeMap<&String, BTreeSet<String>> =
            next.keys().map(|file| (file, reachable(&next, file))).collect();
        let circle = |file: &String| {
            let all = reached[file].iter();
            let back = |other: &&String| reached.get(other).is_some_and(|all| all.contains(file));
            all.filter(back).cloned().collect::<BTreeSet<String>>()
        };
        next.keys().map(circle).filter(|circle| circle.len() > 1).collect()
    }
}

fn reachable(next: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(file) = open.pop() {
        for to in next.get(&file).into_iter().flatten() {
            if found.insert(to.clone()) {
                open.push(to.clone());
            }
        }
    }
    found
}

/// The Rust sources below a folder of the project, with their texts.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path).expect("text");
            found.push((path, text));
        }
    }
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn shown(file: &Path) -> String {
    file.strip_prefix(root()).expect("below the root").display().to_string()
}

fn rooms() -> BTreeMap<String, Room> {
    let room = |(name, file): (String, PathBuf)| {
        let read = Crate::read(&file);
        let count = |file: &Path| {
            let text = std::fs::read_to_string(file).expect("a module's file");
            (text.lines().count(), shown(file))
        };
        let mut lines: Vec<_> = read.files().into_iter().map(count).collect();
        lines.sort();
        (name, Room { lines, edges: read.edges().into_values().collect() })
    };
    crates().into_iter().map(room).collect()
}

/// The edges between the files of a circle, one per line.
fn between(room: &Room, circle: &BTreeSet<String>) -> String {
    let inside =
        |edge: &&Edge| circle.contains(&shown(&edge.from)) && circle.contains(&shown(&edge.to));
    let line = |edge: &Edge| {
        format!("    {}:{} → {} ({})\n", shown(&edge.from), edge.line, shown(&edge.to), edge.name)
    };
    room.edges.iter().filter(inside).map(line).collect()
}

#[test]
fn no_crate_has_circular_files() {
    let rooms = rooms();
    let circles: Vec<String> = rooms
        .iter()
        .flat_map(|(name, room)| room.circles().into_iter().map(move |circle| (name, room, circle)))
        .map(|(name, room, circle)| {
            let (files, arrows) = (circle.len(), between(room, &circle));
            format!("{name}: {files} files need each other: {circle:?}\n{arrows}")
        })
        .collect();
    assert!(circles.is_empty(), "{}", circles.concat());
}

/// The control: files that need each other by every kind of path, and files that only seem to.
#[test]
fn circle_of_files_is_found_by_any_path() {
    let folder = std::env::temp_dir().join(format!("ranklaunch-house-{}", std::process::id()));
    let needs = |child: &str, parent: &str| {
        std::fs::create_dir_all(folder.join("room")).expect("a folder");
        for (file, text) in [
            ("lib.rs", "mod room;"),
            ("room.rs", &*format!("mod a;\nmod b;\npub use a::A;\npub struct P;\n{parent}")),
            ("room/a.rs", &*format!("pub struct A;\npub mod inner {{ pub fn f() {{}} }}\n{child}")),
            ("room/b.rs", "pub fn b() -> super::a::A {}"),
        ] {
            std::fs::write(folder.join(file), text).expect("a file");
        }
        let edges = Crate::read(&folder.join("lib.rs")).edges().into_values();
        let name = |file: &Path| file.file_stem().expect("a name").display().to_string();
        edges.map(|edge| format!("{} {}", name(&edge.from), name(&edge.to))).collect::<Vec<_>>()
    };
    let only = ["b a".to_owned()];
    for (child, parent, more) in [
        ("use super::b::b;", "", "a b"),
        ("fn f() { crate::room::b::b() }", "", "a b"),
        ("fn f() { format!(\"{}\", super::b::b()) }", "", "a b"),
        ("use super::b; fn f() { b::b() }", "", "a b"),
        ("use super::P;", "", "a room"),
        ("use super::*; fn f(_: P) {}", "", "a room"),
        ("", "fn f(_: A) {}", "room a"),
        ("", "fn f() { a::inner::f() }", "room a"),
        ("use super::b;", "", ""),
        ("#[cfg(test)] mod tests { use super::super::P; }", "", ""),
        ("use super::A as B;", "", ""),
        ("fn f(x: u8) { x.b() }", "", ""),
        ("pub use super::b::b; fn f(b: u8) -> u8 { b }", "", ""),
    ] {
        let expected: BTreeSet<String> =
            only.iter().cloned().chain((!more.is_empty()).then(|| more.to_owned())).collect();
        let found: BTreeSet<String> = needs(child, parent).into_iter().collect();
        assert_eq!(found, expected, "{child} {parent}");
    }
    std::fs::remove_dir_all(&folder).expect("it was made");
}

/// `make test SUITE=house` shows the lines and files of each crate, the median file and the longest one.
#[test]
#[ignore = "prints a table"]
fn size_of_each_crate_is_printed() {
    println!(
        "{:<14}{:>7}{:>7}{:>8}{:>8}{:>9}",
        "room", "lines", "files", "median", "longest", "circles"
    );
    let mut all = Room { lines: vec![], edges: vec![] };
    let row = |name: &str, room: &Room, circles: String| {
        let (sum, files) =
            (room.lines.iter().map(|(lines, _)| lines).sum::<usize>(), room.lines.len());
        let (longest, file) = room.lines.last().expect("a room has a file");
        let median = room.lines[files / 2].0;
        println!("{name:<14}{sum:>7}{files:>7}{median:>8}{longest:>8}{circles:>9}  {file}");
    };
    for (name, mut room) in rooms() {
        row(&name, &room, room.circles().len().to_string());
        all.lines.append(&mut room.lines);
    }
    all.lines.sort();
    row("all", &all, String::new());
}
