//! The rules of this crate, each with a log that needs it.

mod any_bytes;
mod choice;
mod excerpts;
mod inventory;
mod own_rows;
mod pasted;
mod survival;
mod tracebacks;
mod writers;

use super::rows::{GIVEN_UP, Row, RowIndex};
use super::{Catalogue, Diagnosis, LogScan, Origin, Scanned, catalogue, diagnose};

fn scanned(number: usize, origin: Origin, log: &[u8]) -> Scanned {
    let mut scan = LogScan::new(catalogue(), number, origin);
    scan.feed(log);
    scan.finish()
}

/// The diagnosis of one log.
fn of(log: &str) -> Diagnosis {
    diagnose(catalogue(), &[scanned(0, Origin::default(), log.as_bytes())], false)
}

/// The id of the cause, or `none`.
fn id(diagnosis: &Diagnosis) -> &str {
    diagnosis.cause.as_ref().map_or("none", |cause| cause.why.id.as_str())
}

/// Reads rows as they stand in a file of the catalogue.
fn parse(text: &str) -> Result<Catalogue, String> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        row: Vec<Row>,
    }
    let File { row: rows } = toml::from_str(text).map_err(|error| error.to_string())?;
    Catalogue::of(rows, 0).map_err(|flaw| flaw.to_string())
}

/// The rows in any order, with their examples, which the executable lacks.
pub(crate) fn with_examples() -> Catalogue {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("catalogue");
    let files = folder.read_dir().expect("the folder").map(|entry| entry.expect("a file").path());
    let texts = files.map(|file| std::fs::read_to_string(file).expect("text"));
    parse(&texts.collect::<String>()).expect("it can be read")
}

/// Every flaw that reading a catalogue does not find: patterns, texts and examples.
fn flaws(catalogue: &Catalogue) -> Vec<String> {
    let rows = 0..catalogue.rows().len();
    rows.flat_map(|index| catalogue.flaws_of(RowIndex(index)))
        .map(|flaw| flaw.to_string())
        .collect()
}

#[test]
fn the_catalogue_is_sound() {
    let catalogue = with_examples();
    let mut rows = catalogue.rows().to_vec();
    rows.iter_mut().for_each(|row| (row.matches, row.differs) = Default::default());
    let mut embedded = catalogue::embedded().expect("it can be inflated");
    for rows in [&mut rows, &mut embedded] {
        rows.sort_by(|one, other| one.id.cmp(&other.id));
    }
    assert_eq!(embedded, rows);
    let flaws = flaws(&catalogue);
    assert!(flaws.is_empty(), "{}", flaws.join("\n"));
    assert!(catalogue.by_id("user_exception").is_some());
    assert!(GIVEN_UP.iter().all(|id| catalogue.by_id(id).is_some()), "{GIVEN_UP:?}");
    let poor: Vec<&str> = catalogue
        .rows()
        .iter()
        .filter(|row| row.id != "user_exception" && row.matches.is_empty())
        .map(|row| row.id.as_str())
        .collect();
    assert!(poor.is_empty(), "rows without an example: {poor:?}");
}

#[test]
fn a_flawed_catalogue_is_named() {
    let row = |more: &str| {
        format!(
            "[[row]]\nid = \"a\"\nrole = \"root\"\ndomain = \"net\"\nowner = \"code\"\nretry = \"never\"\n\
             cause = {{ en = \"x {{who}}\", zh = \"x\" }}\nremedy = {{ en = \"y\", zh = \"y\" }}\n{more}"
        )
    };
    for (text, expected) in [
        (row("") + &row(""), "stands twice"),
        (row("fragments = [\"Loud\"]"), "not lower-case"),
        (row("colour = 1"), "unknown field"),
    ] {
        let flaw = parse(&text).expect_err(expected);
        assert!(flaw.contains(expected), "{flaw}");
    }
    for (more, expected) in [
        ("", "cause `{who}` names no group"),
        ("clears = [\"b\"]", "clears `b` is not a row"),
        ("leads_to = [\"b\"]", "leads_to `b` is not a row"),
        ("fragments = [\"boom\"]\nmatches = [\"quiet\"]", "does not match"),
        ("fragments = [\"boom\"]\ndiffers = [\"a BOOM\"]", "`a BOOM` matches"),
        ("fragments = [\"boom\"]\npatterns = ['(']", "is not a regular expression"),
    ] {
        let all = flaws(&parse(&row(more)).expect("it can be read"));
        assert!(all.iter().any(|flaw| flaw.contains(expected)), "{expected}: {all:?}");
    }
}
