//! The graph of the crates: allowed dependencies, and the way in which it is drawn.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::Command;

use serde_json::Value;

use crate::{root, sources};

/// The crates, lowest first, each with the crates that it may name. A new arrow needs a line here and its reason in the
/// commit.
const CRATES: &[(&str, &str)] = &[
    ("embed", ""),
    ("text", ""),
    ("linux", "text"),
    ("verdict", "text"),
    ("checkpoint", "text linux"),
    ("diagnose", "embed text linux verdict"),
    ("settings", "text linux verdict diagnose"),
    ("node", "text linux verdict checkpoint settings"),
    ("plan", "text linux verdict settings node"),
    ("adopt", "text settings"),
    ("lint", "text verdict settings plan adopt"),
    ("muster", "text linux verdict settings plan"),
    ("logs", "text linux verdict settings"),
    ("supervise", "embed text linux verdict node"),
    ("preflight", "text linux verdict settings node plan muster"),
    ("monitor", "text linux verdict diagnose settings node logs"),
    (
        "report",
        "embed text linux verdict diagnose settings node plan muster logs preflight monitor",
    ),
    (
        "ranklaunch",
        "text linux verdict checkpoint diagnose settings node plan lint muster logs supervise preflight monitor report",
    ),
];
/// Maximum number of arrows in the graph. More of them would make a worse house.
const MOST_ARROWS: usize = 84;

/// The crates that each crate of the launcher names, according to cargo.
fn named() -> BTreeMap<String, BTreeSet<String>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--format-version", "1", "--offline"]);
    let output = cargo.current_dir(root()).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let short = |name: &str| name.strip_prefix("ranklaunch-").unwrap_or(name).to_owned();
    let mut named = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = short(package["name"].as_str().expect("a name"));
        let needed = package["dependencies"].as_array().expect("dependencies").iter();
        let needed = needed.filter(|one| one["kind"].is_null() && one["path"].is_string());
        let needed = needed.map(|one| short(one["name"].as_str().expect("a name"))).collect();
        if !matches!(&*name, "harness" | "node-probe") {
            named.insert(name, needed);
        }
    }
    named
}

fn allowed() -> BTreeMap<String, BTreeSet<String>> {
    let row = |(name, names): &(&str, &str)| {
        ((*name).to_owned(), names.split_whitespace().map(str::to_owned).collect())
    };
    CRATES.iter().map(row).collect()
}

#[test]
fn every_crate_imports_exactly_its_row() {
    assert_eq!(named(), allowed());
    let arrows: usize = allowed().values().map(BTreeSet::len).sum();
    assert!(arrows <= MOST_ARROWS, "{arrows} arrows");
}

#[test]
fn no_row_names_a_higher_crate() {
    for (at, (name, names)) in CRATES.iter().enumerate() {
        for other in names.split_whitespace() {
            let place = CRATES.iter().position(|(known, _)| *known == other);
            assert!(place.is_some_and(|place| place < at), "{name} names {other}");
        }
    }
}

/// An arrow that no import needs would invite one.
#[test]
fn every_arrow_is_drawn_by_an_import() {
    for (name, names) in CRATES {
        let sources = sources(&root().join("src").join(name));
        for other in names.split_whitespace() {
            let path = format!("{other}::");
            let is_named = sources.iter().any(|(_, text)| text.contains(&path));
            assert!(is_named, "{name} names nothing of {other}");
        }
    }
}

/// The graph as docs/architecture.md shows it: the dependencies of a crate, without dependencies that one of these
/// already names.
fn drawn(named: &BTreeMap<String, BTreeSet<String>>) -> String {
    let mut out = String::new();
    for (name, _) in CRATES.iter().rev() {
        let names = &named[*name];
        let is_direct = |one: &&String| !names.iter().any(|other| reaches(named, other, one));
        let mut direct: Vec<&str> = names.iter().filter(is_direct).map(String::as_str).collect();
        direct.sort_by_key(|name| CRATES.iter().position(|(known, _)| known == name));
        let arrow = if direct.is_empty() { "" } else { "→ " };
        let _ = writeln!(out, "{}", format!("{name:<11}{arrow}{}", direct.join(", ")).trim_end());
    }
    out
}

fn reaches(named: &BTreeMap<String, BTreeSet<String>>, from: &str, to: &str) -> bool {
    named[from].iter().any(|one| one == to || reaches(named, one, to))
}

#[test]
fn the_architecture_begins_with_the_graph() {
    let page = root().join("docs/architecture.md");
    let text = std::fs::read_to_string(&page).expect("a page");
    let (before, rest) = text.split_once("```text\n").expect("a block");
    let (shown, after) = rest.split_once("```\n").expect("its end");
    let drawn = drawn(&named());
    if std::env::var_os("RANKLAUNCH_WRITE_DOCS").is_some() {
        std::fs::write(&page, format!("{before}```text\n{drawn}```\n{after}")).expect("written");
        return;
    }
    assert_eq!(shown, drawn, "make docs writes it");
}

/// The control: a dependency through another crate is not drawn, and a direct one is.
#[test]
fn graph_omits_implied_arrows() {
    let row = |(name, names): (&str, &[&str])| {
        (name.to_owned(), names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>())
    };
    let mut named: BTreeMap<_, _> = CRATES.iter().map(|(name, _)| row((name, &[]))).collect();
    named.extend([row(("linux", &["text"])), row(("plan", &["text", "linux", "embed"]))]);
    let drawn = drawn(&named);
    assert!(drawn.contains("\nplan       → embed, linux\n"), "{drawn}");
    assert!(drawn.contains("\nlinux      → text\n"), "{drawn}");
}
