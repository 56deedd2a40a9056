//! Compares texts for people, and the keys of JSON documents, with the reviewed ones in tests/snapshots.
//!
//! `make docs SUITE=snapshots` writes the snapshots, to review in the diff.

/// Fails if `text` differs from tests/snapshots/NAME.txt; with RANKLAUNCH_BLESS=1 writes it there.
#[track_caller]
pub fn compare(name: &str, text: &str) {
    let file = crate::root().join("tests/snapshots").join(format!("{name}.txt"));
    if std::env::var_os("RANKLAUNCH_BLESS").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    let how = "`make docs SUITE=snapshots` writes it anew";
    for (at, (is, was)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(is, was, "tests/snapshots/{name}.txt:{}; {how}", at + 1);
    }
    let (is, was) = (text.lines().count(), expected.lines().count());
    assert_eq!(is, was, "lines of tests/snapshots/{name}.txt; {how}\n{text}");
}

/// `text` with each of `values` by its name.
pub fn named(text: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(text.to_owned(), |text, (value, name)| text.replace(value, name))
}

/// `text` with N.N for each number of one decimal point, as seconds have it.
pub fn timed(text: &str) -> String {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    let mut timed = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(is_digit) {
        let (before, from) = rest.split_at(start);
        let (number, after) = from.split_at(from.find(|c| !is_digit(c)).unwrap_or(from.len()));
        let parts: Vec<&str> = number.split('.').collect();
        let is_time = parts.len() == 2 && parts.iter().all(|part| !part.is_empty());
        timed.push_str(before);
        timed.push_str(if is_time { "N.N" } else { number });
        rest = after;
    }
    timed + rest
}
