//! Every id of the program has an explanation in both languages, and there are no others: compares
//! the table of ids with the sources, the checks, the profile's reference and the documents.
//!
//! `make docs` (RANKLAUNCH_WRITE_DOCS=1) writes docs/; otherwise the files are compared.

mod pages;
mod sources;

use std::collections::BTreeSet;
use std::process::{Command, Output};

use report::findings::{self, ExitCode, Explanation, Id, explanation};
use text::lang::Text;
use verdict::Verdict;

/// The faults of an explanation.
fn faults(explanation: &Explanation) -> Vec<String> {
    let Explanation { what, why, mend, off } = explanation;
    let parts = [("what", what), ("why", why), ("mend", mend), ("off", off)];
    let is_chinese = |c: char| ('\u{4e00}'..='\u{9fff}').contains(&c);
    let mut faults = Vec::new();
    for (name, Text { en, zh }) in parts {
        let mut fault = |what: &str| faults.push(format!("{name} {what}: {en:?} {zh:?}"));
        if en.trim().is_empty() || zh.trim().is_empty() {
            fault("is empty");
        } else if en == zh {
            fault("is the same in both languages");
        } else if en.contains(is_chinese) || !zh.contains(is_chinese) {
            fault("is in the wrong language");
        }
        let blanks = ["{name}", "{allowed}", "{ways}", "{check}", "{code}", "{signal}"];
        // {{name}} counts as a literal brace.
        let is_blank = |text: &str| {
            let text = text.replace("{{name}}", "");
            blanks.iter().any(|blank| text.contains(blank))
        };
        if is_blank(en) || is_blank(zh) {
            fault("was not filled in");
        }
        let ends = if name == "what" { !en.ends_with('.') } else { en.ends_with(['.', '…']) };
        let ends_zh =
            if name == "what" { !zh.ends_with('。') } else { zh.ends_with(['。', '…']) };
        if !ends || !ends_zh {
            fault("does not end as it should");
        }
        if en.contains('\n') || zh.contains('\n') {
            fault("has several lines");
        }
    }
    faults
}

#[test]
fn every_id_and_code_has_both_languages() {
    let mut wrong = Vec::new();
    for id in Id::ALL {
        wrong.extend(faults(&explanation(*id)).into_iter().map(|fault| format!("{id}: {fault}")));
        assert!(!id.kinds().is_empty(), "{id} comes up nowhere");
    }
    for code in (0..=255).map(|code: u8| code.to_string().parse::<ExitCode>().expect("a code")) {
        let number = code.number();
        let found = faults(&code.explanation());
        wrong.extend(found.into_iter().map(|fault| format!("{number}: {fault}")));
    }
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn a_bad_explanation_is_found() {
    let good = explanation(Id::GpuCount);
    assert_eq!(faults(&good), Vec::<String>::new());
    let same = Text::same("the same.");
    for (bad, fault) in [
        (Explanation { why: Text::new("", "原因。"), ..good.clone() }, "why is empty"),
        (Explanation { mend: Text::new("Mend it.", " "), ..good.clone() }, "mend is empty"),
        (Explanation { off: same, ..good.clone() }, "off is the same"),
        (
            Explanation { why: Text::new("中文。", "English."), ..good.clone() },
            "why is in the wrong",
        ),
        (Explanation { mend: Text::new("{ways}.", "中{ways}。"), ..good.clone() }, "mend was not"),
        (Explanation { what: Text::new("A line.", "一行"), ..good.clone() }, "what does not end"),
    ] {
        let found = faults(&bad);
        assert!(found.iter().any(|one| one.starts_with(fault)), "{fault}: {found:?}");
    }
}

/// An entry without an id would never be shown, and one that cannot be parsed would lose its
/// whole file.
#[test]
fn explanation_files_hold_exactly_the_known_keys() {
    let codes: BTreeSet<String> =
        ExitCode::all().into_iter().map(|code| code.number().to_string()).collect();
    let mut bytes = 0;
    for (file, text) in findings::sources() {
        bytes += text.len();
        let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{file}: {error}"));
        for key in table.keys() {
            let id = key.parse::<Id>().ok();
            let family = id.map(|id| format!("{:?}.toml", id.family()).to_lowercase());
            let expected = match file {
                "codes.toml" => codes.contains(key) || ["128+n", "own"].contains(&key.as_str()),
                "overrides.toml" => ["check", "warning", "cause", "lint", "code", "other-code"]
                    .contains(&key.as_str()),
                _ => family.as_deref() == Some(file) || key == "settings.*",
            };
            assert!(expected, "{file}: {key} is asked for by nobody");
        }
    }
    assert!(bytes < 300 << 10, "{bytes} bytes of texts stand in the executable");
}

#[test]
fn rules_and_settings_are_in_the_table() {
    let names: BTreeSet<&str> = Id::ALL.iter().map(|id| id.as_str()).collect();
    assert_eq!(names.len(), Id::ALL.len(), "no id has two rows");
    let rules: BTreeSet<Id> = lint::RULES.iter().map(|rule| rule.id).collect();
    // These two ids come from the parser of manifests, not from a rule.
    let read = BTreeSet::from([Id::KindUnknown, Id::YamlDuplicateKey]);
    let of_lint: BTreeSet<Id> = Id::ALL.iter().copied().filter(|id| id.is_of_lint()).collect();
    assert_eq!(of_lint, rules.union(&read).copied().collect());
    for form in settings::forms() {
        assert_ne!(form.id, Id::Flags, "{} has no id of its own", form.name);
    }
    // gpu.fault.lost belongs to the check gpu.fault; memory.limit is a separate check.
    assert_eq!(Id::GpuFaultLost.check(), Some(Id::GpuFault));
    assert_eq!(Id::MemoryMissing.check(), None);
}

/// `"gpu.count" = "fail"` of the lines below [severity], in any order.
fn severities(reference: &str) -> BTreeSet<(String, String)> {
    let (_, section) = reference.split_once("\n[severity]\n").expect("the section");
    let lines = section.lines().take_while(|line| line.starts_with('#'));
    lines
        .filter_map(|line| {
            let (id, severity) = line.strip_prefix('#')?.split_once(" = ")?;
            Some((id.trim_matches('"').to_owned(), severity.trim_matches('"').to_owned()))
        })
        .collect()
}

fn usual_severities() -> BTreeSet<(String, String)> {
    let row = |id: Id| Some((id.to_string(), id.usual()?.as_str().to_owned()));
    Id::checks().filter_map(row).collect()
}

#[test]
fn the_reference_shows_every_check_with_its_severity() {
    let reference = include_str!("../../../config/reference.toml");
    assert_eq!(severities(reference), usual_severities());
    let wrong = reference.replace("#\"memlock\" = \"warn\"", "#\"memlock\" = \"fail\"");
    assert_ne!(severities(&wrong), usual_severities());
    let missing = reference.replace("#\"memlock\" = \"warn\"\n", "");
    assert_ne!(severities(&missing), usual_severities());
}

fn explain(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ranklaunch"));
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/documents");
    command.arg("explain").args(args).current_dir(folder).env("LC_ALL", "C.UTF-8");
    command.output().expect("it runs")
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
fn one_call_explains_several_ids_and_codes() {
    let output = explain(&["gpu.count", "86", "128+9", "gpu.busy"]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    for line in [
        "gpu.count: check; exit code 80; default fail\n",
        "--severity gpu.count=warn",
        "exit code 86\n",
        "master.reach",
        "exit code 137\n",
        "memory.oom",
        "gpu.busy: check; exit code 83; default warn; fail where no further process fits\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
    let chinese = said(&explain(&["--lang", "zh", "gpu.count"]));
    assert!(chinese.contains("退出码 80") && chinese.contains("处理"), "{chinese}");
}

#[test]
fn without_an_argument_everything_is_listed() {
    let text = said(&explain(&[]));
    for id in Id::ALL {
        assert!(
            text.lines().any(|line| line.split_whitespace().next() == Some(id.as_str())),
            "{id}"
        );
    }
    for verdict in Verdict::ALL {
        assert!(text.contains(&format!("\n  {} ", verdict.code())), "{verdict:?}");
    }
}

#[test]
fn json_has_numeric_codes_and_readable_words() {
    let output = explain(&["--format", "json", "gpu.busy", "rank.signal", "86"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("json");
    let all = value["explained"].as_array().expect("a list");
    assert_eq!((value["schema"].as_i64(), all.len()), (Some(1), 3));
    assert_eq!(all[0]["exit_codes"], serde_json::json!([83]));
    assert_eq!(
        (&all[0]["kinds"][0], &all[0]["default_severity"]),
        (&"check".into(), &"warn".into())
    );
    assert_eq!(all[1]["exit_codes"][0], "128+signal");
    assert_eq!(all[2]["ids"][0], "master.reach");
    for part in ["what", "why", "mend", "override"] {
        assert!(all[0][part].as_str().is_some_and(|text| !text.is_empty()), "{part}");
    }
    let all: serde_json::Value =
        serde_json::from_slice(&explain(&["--format", "json"]).stdout).expect("json");
    assert_eq!(all["explained"].as_array().map(Vec::len), Some(Id::ALL.len()));
}

#[test]
fn unknown_id_is_refused_with_a_suggestion() {
    for (word, hint) in [
        ("gpu.cuont", "did you mean gpu.count?"),
        ("settings.unknown-variable", "did you mean settings.unknown_variable?"),
        ("hami", "there are hami.limit"),
        ("gpu.fault.", "did you mean gpu.fault?"),
        ("nonsense", "ranklaunch explain lists all ids"),
        ("256", "ranklaunch explain lists all ids"),
        ("cuda_oon", "did you mean cuda_oom?"),
        ("main.rs", "the logs of one job, or ids"),
        ("-", "the logs of one job, or ids"),
        ("", "ranklaunch explain lists all ids"),
    ] {
        let output = explain(&["gpu.count", word]);
        let text = said(&output);
        assert_eq!(output.status.code(), Some(64), "{word:?}: {text}");
        assert!(text.contains(hint) && text.contains("(explain.unknown)"), "{word:?}: {text}");
        assert!(output.stdout.is_empty(), "nothing is explained beside a refusal: {text}");
    }
}
