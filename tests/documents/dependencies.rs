//! Checks the dependencies as `make test SUITE=audit` does, without its tools: licences, sources and versions that deny.toml
//! forbids, unused dependencies, and features that dependencies have only in tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// `cargo metadata` for the targets of deny.toml.
fn metadata(deny: &toml::Value) -> Value {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--locked", "--format-version", "1"]);
    for target in words(&deny["graph"]["targets"]) {
        cargo.args(["--filter-platform", &target]);
    }
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

fn deny() -> toml::Value {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deny.toml");
    toml::from_str(&std::fs::read_to_string(file).expect("deny.toml")).expect("it is TOML")
}

fn words(list: &toml::Value) -> Vec<String> {
    let list = list.as_array().expect("a list");
    list.iter().map(|word| word.as_str().expect("text").to_owned()).collect()
}

fn text<'a>(of: &'a Value, name: &str) -> &'a str {
    of[name].as_str().unwrap_or_default()
}

fn list<'a>(of: &'a Value, name: &str) -> &'a [Value] {
    of[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// All violations of deny.toml by these packages.
fn forbidden(metadata: &Value, deny: &toml::Value) -> Vec<String> {
    let allowed: BTreeSet<String> = words(&deny["licenses"]["allow"]).into_iter().collect();
    let (mut found, mut registry) = (Vec::new(), None);
    for package in list(metadata, "packages") {
        let (name, licence) = (text(package, "name"), text(package, "license"));
        if !is_allowed(licence, &allowed) {
            found.push(format!("{name}: licence {licence:?}"));
        }
        let source = &package["source"];
        // Our own packages have no source; git and a second registry count as sources.
        if let Some(from) = source.as_str()
            && !(from.starts_with("registry+") && *registry.get_or_insert(from) == from)
        {
            found.push(format!("{name}: source {source}"));
        }
        for dependency in list(package, "dependencies") {
            if source.is_null() && dependency["path"].is_null() && dependency["req"] == "*" {
                found.push(format!("{name}: any version of {}", text(dependency, "name")));
            }
        }
    }
    found
}

/// An SPDX expression, where `/` is an old spelling of OR; AND binds closer.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut tokens = spaced.split_whitespace().peekable();
    let allows = any(&mut tokens, allowed);
    allows && tokens.next().is_none()
}

type Tokens<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(tokens: &mut Tokens<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut allows = all(tokens, allowed);
    while tokens.next_if_eq(&"OR").is_some() {
        allows |= all(tokens, allowed);
    }
    allows
}

fn all(tokens: &mut Tokens<'_>, allowed: &BTreeSet<String>) -> bool {
    let mut allows = one(tokens, allowed);
    while tokens.next_if_eq(&"AND").is_some() {
        allows &= one(tokens, allowed);
    }
    allows
}

fn one(tokens: &mut Tokens<'_>, allowed: &BTreeSet<String>) -> bool {
    if tokens.next_if_eq(&"(").is_some() {
        let allows = any(tokens, allowed);
        return tokens.next_if_eq(&")").is_some() && allows;
    }
    let Some(id) = tokens.next() else { return false };
    let with = tokens.next_if_eq(&"WITH").and_then(|_| tokens.next());
    allowed.contains(&with.map_or(id.to_owned(), |exception| format!("{id} WITH {exception}")))
}

/// Dependencies of the workspace's packages whose name appears in no source that may use them.
fn unused(metadata: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for package in list(metadata, "packages").iter().filter(|one| one["source"].is_null()) {
        let root = Path::new(text(package, "manifest_path")).parent().expect("a folder");
        let mut sources = BTreeMap::new();
        // The sources of a launcher crate are beside its manifest.
        let own = if root.join("src").is_dir() { "src" } else { "." };
        for (kind, places) in
            [("", &[own][..]), ("dev", &[own, "tests", "benches"]), ("build", &["build.rs"])]
        {
            let mut all = String::new();
            places.iter().for_each(|place| read(&root.join(place), &mut all));
            sources.insert(kind, all);
        }
        for dependency in list(package, "dependencies") {
            let (name, kind) = (text(dependency, "name"), text(dependency, "kind"));
            let name = dependency["rename"].as_str().unwrap_or(name).replace('-', "_");
            if !names(&sources[kind], &name) {
                found.push(format!("{}: {name}", text(package, "name")));
            }
        }
    }
    found
}

/// The sources of a package below `path`, without its comments and other packages.
fn read(path: &Path, all: &mut String) {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let below: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    below.iter().filter(|one| !one.join("Cargo.toml").exists()).for_each(|one| read(one, all));
    if path.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
        let text = std::fs::read_to_string(path).expect("a source");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        code.for_each(|line| all.extend([line, "\n"]));
    }
}

/// True for `name::…` that is no part of a longer path, or `use name;`.
fn names(source: &str, name: &str) -> bool {
    source.match_indices(name).any(|(at, _)| {
        let inside = |letter: char| letter.is_alphanumeric() || "_:".contains(letter);
        let (before, after) = (&source[..at], &source[at + name.len()..]);
        let is_used =
            after.starts_with("::") || (before.ends_with("use ") && after.starts_with([';', ' ']));
        is_used && !before.ends_with(inside)
    })
}

#[test]
fn no_dependency_is_forbidden_or_unused() {
    let deny = deny();
    let metadata = metadata(&deny);
    assert_eq!(forbidden(&metadata, &deny), Vec::<String>::new());
    assert_eq!(unused(&metadata), Vec::<String>::new());
}

/// The control: one violation of each kind.
#[test]
fn forbidden_or_unused_dependency_is_found() {
    let deny = deny();
    let mut metadata = metadata(&deny);
    let mut stricter = deny.clone();
    stricter["licenses"]["allow"] = vec!["MIT"].into();
    assert!(forbidden(&metadata, &stricter).concat().contains("Unicode-3.0"));
    let own = metadata["packages"].as_array_mut().expect("a list");
    let own = own.iter_mut().find(|one| one["name"] == "ranklaunch").expect("our own");
    let planted = serde_json::json!({"name": "left-pad", "req": "*", "kind": null});
    own["dependencies"].as_array_mut().expect("a list").push(planted);
    assert_eq!(forbidden(&metadata, &deny), ["ranklaunch: any version of left-pad"]);
    assert_eq!(unused(&metadata), ["ranklaunch: left_pad"]);
    let foreign = metadata["packages"].as_array_mut().expect("a list");
    let foreign = foreign.iter_mut().find(|one| one["name"] == "serde").expect("a dependency");
    foreign["source"] = "git+https://example.org/serde".into();
    assert!(forbidden(&metadata, &deny).concat().contains("serde: source \"git+"));

    let allowed: BTreeSet<String> = ["MIT", "Zlib", "A WITH E"].map(str::to_owned).into();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0-only OR MIT", true),
        ("GPL-3.0-only/MIT", true),
        ("MIT AND Zlib", true),
        ("MIT AND GPL-3.0-only", false),
        ("GPL-3.0-only OR MIT AND Zlib", true),
        ("(GPL-3.0-only OR MIT) AND ISC", false),
        ("(GPL-3.0-only OR MIT) AND Zlib", true),
        ("A WITH E", true),
        ("A", false),
        ("MIT WITH E", false),
        ("", false),
    ] {
        assert_eq!(is_allowed(expression, &allowed), expected, "{expression}");
    }
    for (source, expected) in [
        ("use time::Duration;", true),
        ("(time::now())", true),
        ("use time;", true),
        ("std::time::now()", false),
        ("mytime::x", false),
        ("let time = 3;", false),
    ] {
        assert_eq!(names(source, "time"), expected, "{source}");
    }
}

/// Permitted uses of nix for functions that rustix lacks; the reasons are in the head of `src/linux/sys/mod.rs`.
const NIX: &[(&str, &[&str])] = &[
    ("src/linux/sys/", &["nix::libc", "nix::sys::signal", "nix::sys::socket", "nix::unistd"]),
    ("src/node/observe/network.rs", &["nix::ifaddrs", "nix::net::if_"]),
    ("src/supervise/terminal.rs", &["nix::sys::termios"]),
    // These are for getrusage.
    ("src/logs/tests.rs", &["nix::sys::resource", "nix::sys::time"]),
];

/// System calls in a source that should go through `src/linux/sys/` or rustix.
fn system_calls_past_sys(file: &str, source: &str) -> Vec<String> {
    let allowed = NIX.iter().filter(|(place, _)| file.starts_with(place));
    let allowed: Vec<&str> = allowed.flat_map(|(_, paths)| *paths).copied().collect();
    let inside = |letter: char| letter.is_alphanumeric() || "_:".contains(letter);
    let mut found = Vec::new();
    for (at, _) in source.match_indices("nix::") {
        let rest = &source[at..];
        let path = &rest[..rest.find(|letter| !inside(letter)).unwrap_or(rest.len())];
        let is_whole = !source[..at].ends_with(inside);
        if is_whole && !allowed.iter().any(|one| path.starts_with(one)) {
            found.push(format!("{file}: {path}"));
        }
    }
    if !file.starts_with("src/linux/sys/") {
        let words = |name: &str| {
            source.split(';').any(|item| {
                let item = item.trim_start();
                let (path, name) = name.rsplit_once("::").expect("a path");
                item.contains(&format!("{path}::{name}"))
                    || (item.starts_with(&format!("use {path}::{{"))
                        && item.split(|letter| !inside(letter)).any(|word| word == name))
            })
        };
        let ours = ["rustix::process::Pid", "rustix::process::Signal", "rustix::event::poll"];
        found.extend(ours.iter().filter(|name| words(name)).map(|name| format!("{file}: {name}")));
    }
    found
}

#[test]
fn only_one_library_makes_system_calls() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut open = vec![root.join("src")];
    let (mut found, mut used) = (Vec::new(), BTreeSet::new());
    while let Some(path) = open.pop() {
        let below = std::fs::read_dir(&path).into_iter().flatten().flatten();
        open.extend(below.map(|entry| entry.path()).filter(|path| !path.ends_with("node-probe")));
        let file = path.strip_prefix(root).expect("below it").display().to_string();
        let mut source = String::new();
        if path.is_file() {
            read(&path, &mut source);
        }
        found.extend(system_calls_past_sys(&file, &source));
        for (place, paths) in NIX.iter().filter(|(place, _)| file.starts_with(place)) {
            let seen = paths.iter().filter(|path| source.contains(**path));
            used.extend(seen.map(|path| (*place, *path)));
        }
    }
    assert_eq!(found, Vec::<String>::new(), "see src/linux/sys/mod.rs");
    let listed = NIX.iter().flat_map(|(place, paths)| paths.iter().map(|path| (*place, *path)));
    assert_eq!(listed.collect::<BTreeSet<_>>(), used, "a path that is not used any more");
    for (source, expected) in [
        ("use std::os::unix::fs; rustix::io::read(&fd)", 0),
        ("let _ = nix::unistd::getppid();", 1),
        ("use nix::sys::termios::tcgetattr;", 1),
        ("use rustix::process::{WaitOptions, Signal};", 1),
        ("use rustix::process::{PidfdFlags, pidfd_send_signal};", 0),
        ("rustix::process::Pid::from_raw(1)", 1),
        ("use rustix::event::{PollFd, poll};", 1),
    ] {
        assert_eq!(
            system_calls_past_sys("src/settings/cli.rs", source).len(),
            expected,
            "{source}"
        );
    }
}

/// Features that a dependency of the executable has only in tests, and the reason why the executable behaves the same
/// without them. Cargo builds the dependency once for both, with the features of either. A name stands for all names
/// that begin with it.
const FEATURES_OF_TESTS: &[(&str, &[&str], &str)] = &[
    ("nix", &["feature", "fs", "mount", "poll", "resource", "sched", "uio", "user"], "functions"),
    ("num-traits", &["i128"], "implementations"),
    ("regex", &["unicode"], "src/text/pattern.rs compiles without Unicode"),
    ("regex", &["perf"], "engines for captures, which are slower without them"),
    (
        "regex-automata",
        &["dfa-onepass", "dfa-search", "nfa", "perf", "unicode"],
        "as regex, and unions of features",
    ),
    ("regex-syntax", &["unicode"], "src/diagnose/extended.rs parses without Unicode"),
    ("serde", &["alloc"], "std has it"),
    ("strum", &["std"], "implementations"),
    ("tokio", &["test-util"], "functions that stop the clock"),
];

/// The features of each package, by its name and version.
type Features = BTreeMap<String, BTreeSet<String>>;

/// The features that `cargo tree` resolves for edges of these kinds.
fn features(edges: &str, of: &[&str]) -> Features {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--locked", "--edges", edges, "--prefix", "none"]);
    cargo.args(["--no-dedupe", "--format", "{p} features: {f}"]).args(of);
    let output = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut found = Features::new();
    for line in String::from_utf8(output.stdout).expect("text").lines() {
        let Some((package, features)) = line.split_once(" features: ") else { continue };
        let package = package.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let features = features.split(',').filter(|one| !["", "default"].contains(one));
        found.entry(package).or_default().extend(features.map(str::to_owned));
    }
    found
}

/// `NAME FEATURE` of a feature that only the tests have and no row explains; `NAME row FEATURE` of a row that
/// explains nothing.
fn unexplained(executable: &Features, tests: &Features) -> Vec<String> {
    let mut found = Vec::new();
    let mut used = BTreeSet::new();
    // Code that tests share of our own crates is one of their features.
    let foreign = executable.iter().filter(|(package, _)| !package.starts_with("ranklaunch"));
    for (package, features) in foreign {
        let name = package.split(' ').next().unwrap_or_default();
        let more = tests.get(package).into_iter().flatten().filter(|one| !features.contains(*one));
        for feature in more {
            let rows = FEATURES_OF_TESTS.iter().filter(|(known, ..)| *known == name);
            let row = rows.flat_map(|(_, all, _)| *all).find(|begin| feature.starts_with(**begin));
            match row {
                Some(row) => drop(used.insert(format!("{name} row {row}"))),
                None => found.push(format!("{name} {feature}")),
            }
        }
    }
    let rows = FEATURES_OF_TESTS
        .iter()
        .flat_map(|(name, all, _)| all.iter().map(move |feature| format!("{name} row {feature}")));
    found.extend(rows.filter(|row| !used.contains(row)));
    found
}

/// Behaviour that a test shows must also hold in the executable, which has fewer features.
#[test]
fn executable_and_tests_have_equal_dependency_features() {
    let executable = features("normal,no-proc-macro", &["-p", "ranklaunch"]);
    let tests = features("normal,build,dev,no-proc-macro", &["--workspace"]);
    assert_eq!(unexplained(&executable, &tests), Vec::<String>::new());
    // The control: one feature fewer in the executable, and a row that nothing needs.
    let mut fewer = executable.clone();
    let json = fewer.iter_mut().find(|(name, _)| name.starts_with("serde_json "));
    assert!(json.expect("a dependency").1.remove("float_roundtrip"));
    assert_eq!(unexplained(&fewer, &tests), ["serde_json float_roundtrip"]);
    assert!(unexplained(&tests, &tests).contains(&"regex row unicode".to_owned()));
}
