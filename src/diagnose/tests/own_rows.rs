//! Rows of a profile beside the rows of the catalogue.

use super::super::{Catalogue, Diagnosis, LogScan, Origin, Row, catalogue, diagnose};
use super::id;
use text::lang::Text;

const RAISED: &str = "Traceback (most recent call last):\n  File \"/work/train.py\", line 9, in <module>\n    main()\n";

/// A row as a profile gives it.
fn row(id: &str, more: &str) -> Row {
    let text = format!(
        "id = \"{id}\"\nrole = \"root\"\ndomain = \"user\"\nowner = \"code\"\nretry = \"never\"\n\
         cause = {{ en = \"the shard {{shard}} is empty\", zh = \"分片 {{shard}} 为空\" }}\n\
         remedy = {{ en = \"build it again\", zh = \"请重新生成\" }}\n{more}"
    );
    toml::from_str(&text).expect("a row")
}

fn of(catalogue: &Catalogue, log: &str) -> Diagnosis {
    let mut scan = LogScan::new(catalogue, 0, Origin::default());
    scan.feed(log.as_bytes());
    diagnose(catalogue, &[scan.finish()], false)
}

#[test]
fn profile_row_is_found_with_its_captures() {
    let own = row("empty_shard", "patterns = ['(?i)no samples in (?P<shard>\\S+)']");
    let whole = Catalogue::with(&[own]).expect("a sound row");
    let log = format!("{RAISED}RuntimeError: No samples in train-00017.tar\n");
    let cause = of(&whole, &log).cause.expect("a cause");
    assert_eq!(
        (cause.why.id.as_str(), &*cause.why.text.en),
        ("empty_shard", "the shard train-00017.tar is empty")
    );
    assert_eq!(&*cause.why.text.zh, "分片 train-00017.tar 为空");
    assert_eq!(id(&of(catalogue(), &log)), "user_exception");
    // The rows of the program work as before.
    let log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";
    assert_eq!(id(&of(&whole, log)), id(&of(catalogue(), log)));
}

#[test]
fn profile_row_wins_in_the_same_line() {
    let line = "RuntimeError: CUDA error: invalid device ordinal";
    let log = format!("{RAISED}{line}\n");
    let known = of(catalogue(), &log).cause.expect("a cause");
    let own = row("bad_slot", "patterns = ['(?P<shard>invalid device) ordinal']");
    let cause = of(&Catalogue::with(&[own]).expect("a sound row"), &log).cause.expect("a cause");
    assert_eq!((cause.why.id.as_str(), cause.why.confidence), ("bad_slot", known.why.confidence));
    // A row with the same id replaces it.
    let own = Row {
        cause: Text::same("x"),
        remedy: Text::same("y"),
        ..row(&known.why.id, "fragments = [\"device ordinal\"]")
    };
    let whole = Catalogue::with(&[own]).expect("a sound row");
    assert_eq!(whole.rows().len(), catalogue().rows().len());
    let cause = of(&whole, &log).cause.expect("a cause");
    assert_eq!((cause.why.id.as_str(), &*cause.why.text.en), (known.why.id.as_str(), "x"));
}

#[test]
fn flawed_row_is_named_with_key_and_hint() {
    let plain = |more: &str| Row { cause: Text::same("x"), ..row("a", more) };
    for (row, key, value, problem, hint) in [
        (plain(""), "fragments", "", "is empty", "fragments = ["),
        (plain("fragments = ['no']"), "fragments", "no", "fewer than 3", "healthy"),
        (plain("patterns = ['\\d+']"), "patterns", "\\d+", "gives no fragment", "fragments = ["),
        (plain("patterns = ['(x']"), "patterns", "(x", "unclosed group", "regex crate"),
        (plain("fragments = ['boom']\nexcept = ['[']"), "except", "[", "unclosed", "regex crate"),
        (row("a", "fragments = ['boom']"), "cause", "{shard}", "names no group", "(?P<shard>…)"),
        (
            plain("fragments = ['boom']\nmatches = ['calm']"),
            "matches",
            "calm",
            "does not",
            "a line",
        ),
        (
            plain("fragments = ['Boom']\ndiffers = ['a boom']"),
            "differs",
            "a boom",
            "matches",
            "except",
        ),
        (
            plain("fragments = ['boom']\nclears = ['cuda_oon']"),
            "clears",
            "cuda_oon",
            "is not a row",
            "cuda_oom",
        ),
        (
            row("user_exception", "fragments = ['boom']"),
            "id",
            "user_exception",
            "no other",
            "another",
        ),
    ] {
        let flaw = Catalogue::with(&[row]).expect_err(problem);
        assert_eq!((flaw.key, flaw.value.as_str()), (key, value), "{flaw:?}");
        assert!(flaw.problem.en.contains(problem) && flaw.hint.en.contains(hint), "{flaw:?}");
    }
    let long = row("a", "").id.repeat(40_000);
    let flaw = Catalogue::with(&[Row { fragments: vec![long], ..plain("") }]).expect_err("long");
    assert!(flaw.problem.en.contains("32 KiB"), "{flaw:?}");
}
