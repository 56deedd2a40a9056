//! The doors of the crates: a `pub` item is used by another crate, a test, a bench or a fuzz target.
//!
//! The compiler reports unused items inside a crate, but no unused `pub` items. A function, a method or a constant
//! counts as used if its name appears in another crate. A type may be needed without being named, in a signature.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::modules::is_for_tests;
use crate::{root, shown, sources};

/// A `pub` function, method or constant.
struct Item {
    name: String,
    file: PathBuf,
    line: usize,
}

/// The `pub` items of a file outside of tests.
fn items(file: &Path, text: &str) -> Vec<Item> {
    let mut found = Vec::new();
    let parsed = syn::parse_file(text).expect("Rust");
    collect(&parsed.items, file, &mut found);
    found
}

fn collect(items: &[syn::Item], file: &Path, found: &mut Vec<Item>) {
    let mut add = |vis: &syn::Visibility, attrs: &[syn::Attribute], name: &syn::Ident| {
        if matches!(vis, syn::Visibility::Public(_)) && !is_for_tests(attrs) {
            let (name, line) = (name.to_string(), name.span().start().line);
            found.push(Item { name, file: file.to_owned(), line });
        }
    };
    for item in items {
        match item {
            syn::Item::Fn(item) => add(&item.vis, &item.attrs, &item.sig.ident),
            syn::Item::Const(item) => add(&item.vis, &item.attrs, &item.ident),
            syn::Item::Static(item) => add(&item.vis, &item.attrs, &item.ident),
            syn::Item::Impl(item) if !is_for_tests(&item.attrs) => {
                for inside in &item.items {
                    match inside {
                        syn::ImplItem::Fn(item) => add(&item.vis, &item.attrs, &item.sig.ident),
                        syn::ImplItem::Const(item) => add(&item.vis, &item.attrs, &item.ident),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    for item in items {
        if let syn::Item::Mod(item) = item
            && let Some((_, inside)) = &item.content
            && !is_for_tests(&item.attrs)
        {
            collect(inside, file, found);
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
}

fn is_of_tests(file: &Path) -> bool {
    let is_one = |name: &str| {
        matches!(name, "tests" | "tests.rs" | "fuzz" | "fuzz.rs" | "fixtures.rs" | "build.rs")
    };
    file.components().any(|part| part.as_os_str().to_str().is_some_and(is_one))
}

/// The crate that a source belongs to; all tests and benches are one.
fn home(file: &Path) -> Option<&str> {
    let below = file.strip_prefix(root().join("src")).ok()?;
    below.components().next()?.as_os_str().to_str()
}

/// The items of all crates except the executable's whose names appear in no source of another crate.
fn unused(all: &[(PathBuf, String)]) -> Vec<String> {
    let mut homes: BTreeMap<&str, BTreeSet<Option<&str>>> = BTreeMap::new();
    for (file, text) in all {
        for word in words(text) {
            homes.entry(word).or_default().insert(home(file));
        }
    }
    let has_door = |file: &Path| {
        home(file).is_some_and(|home| !matches!(home, "ranklaunch" | "node-probe"))
            && !is_of_tests(file)
    };
    let with_doors = all.iter().filter(|(file, _)| has_door(file));
    let items = with_doors.flat_map(|(file, text)| items(file, text));
    let unused = items.filter(|item| homes[&*item.name].len() < 2);
    unused.map(|item| format!("{}:{} {}", shown(&item.file), item.line, item.name)).collect()
}

#[test]
fn every_open_door_is_used() {
    let all: Vec<_> = ["src", "tests", "benches"]
        .into_iter()
        .flat_map(|place| sources(&root().join(place)))
        .collect();
    let unused = unused(&all);
    assert!(unused.is_empty(), "{} could be pub(crate):\n{}", unused.len(), unused.join("\n"));
}

/// The control: an unused `pub` item is found.
#[test]
fn an_open_door_that_nobody_uses_is_seen() {
    let own = "pub fn used() {}\npub(crate) fn inner() {}\nimpl A { pub fn method(&self) {} }\npub const N: u8 = 1;\n\
        #[cfg(test)] pub fn of_tests() {}\nmod inside { pub fn deep() {} }";
    let file = |name: &str, text: &str| (root().join(name), text.to_owned());
    let found = unused(&[
        file("src/a/lib.rs", own),
        file("src/b/lib.rs", "fn f() { a::used(); x.methods(); N_2 }"),
    ]);
    assert_eq!(found, ["src/a/lib.rs:3 method", "src/a/lib.rs:4 N", "src/a/lib.rs:6 deep"]);
}
