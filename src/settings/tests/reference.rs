//! config/reference.toml and the help name the true defaults.

use harness::reference::{self, REFERENCE};

use crate::contract;
use diagnose::Catalogue;
use verdict::Id;

use super::*;

#[test]
fn a_copy_of_the_reference_changes_nothing() {
    let mut copied = read_profile(REFERENCE).expect("the reference");
    assert!(copied.profile.take().is_some());
    let none = Settings::read(&options(&[]), &host(&[])).expect("settings");
    assert_eq!(format!("{copied:?}"), format!("{none:?}"));
    assert!(
        Profile::read(layer::FileLayer::Profile, "", REFERENCE).is_ok()
            && !Profile::has_values(REFERENCE)
    );
}

#[test]
fn reference_is_a_profile_with_every_key() {
    let text = reference::in_force();
    let settings = read_profile(&text).expect("the reference");
    assert_eq!(settings.layout.heads_table.as_ref().map(|table| table.heads.len()), Some(2));
    let shown = |key: &str| {
        text.lines().any(|line| {
            let line = line.trim_start_matches("# ");
            line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
        })
    };
    for row in TABLE {
        assert!(row.table.is_none() || shown(&row.key()), "{} is missing", row.key());
    }
    let others = ["total_gpus", "values", "argument", "default"];
    for key in
        profile::JOB_KEYS.iter().chain(&others).chain(diagnose_rows::KEYS).chain(platform::KEYS)
    {
        assert!(shown(key), "{key} is missing");
    }
    // Every key of [platform], and every reading by its name.
    for field in contract::fields() {
        assert!(shown(&platform::key(field)), "{field:?} is missing");
        for reading in contract::readings_of(field) {
            let name = platform::spelled(reading);
            assert!(text.contains(&name), "{name} is missing");
        }
    }
    for id in Id::checks() {
        assert!(settings.severities.contains_key(&id), "{id} is missing");
    }
    let rows: Vec<diagnose::Row> = settings.diagnose.iter().map(|row| row.value.clone()).collect();
    assert_eq!(rows.len(), 1);
    assert!(Catalogue::with(&rows).is_ok(), "the row of the reference is sound");
    assert_eq!(settings.watch.len(), 4);
    for key in watch::KEYS {
        assert!(shown(key), "{key} is missing");
    }
    for section in profile::SECTIONS {
        assert!(text.contains(&format!("[{section}]")), "[{section}] is missing");
    }
    for (key, _) in profile::TOP {
        let is_shown =
            ["#", "# "].iter().any(|mark| REFERENCE.contains(&format!("{mark}{key} = ")));
        assert!(is_shown, "{key} is missing");
    }
    for verdict in Verdict::ALL {
        assert_eq!(settings.exit_codes.get(&verdict.code()), Some(&verdict.code()));
    }
    // Settings with a default are shown with it.
    let none = Settings::read(&options(&[]), &host(&[])).expect("settings");
    let of = |s: &Settings| {
        let text = [
            format!("{:?} {:?}", s.engine.value, s.rdzv.value),
            format!("{:?} {:?}", s.world_size_counts.value, s.nproc_per_node.value),
            format!("{:?} {:?} {:?}", s.device.value, s.layout.rule.value, s.stale.value),
            format!("{:?} {:?} {:?}", s.muster.value, s.wait_timeout.value, s.rdma.value),
            format!("{:?} {:?} {:?}", s.probe.value, s.bind.value, s.grace.value),
            format!("{:?} {:?} {:?}", s.inject.value, s.hang_after.value, s.on_hang.value),
            format!("{:?} {:?} {:?}", s.notice.value, s.notice_signal.value, s.notice_lead.value),
            format!("{:?} {:?}", s.max_restarts.value, s.log_cap_rank.value),
            format!(
                "{:?} {:?} {:?}",
                s.log_cap_node.value, s.console.value, s.console_prefix.value
            ),
            format!("{:?} {:?}", s.color.value, s.verbose),
            format!("{:?} {:?} {:?}", s.nested, s.interactive.value, s.lang),
        ];
        text.join("\n")
    };
    assert_eq!(of(&settings), of(&none));
    assert!(settings.warnings.iter().any(|warning| warning.id == Id::SettingsNodeRank));
}

/// A default value in the help text is the real default.
#[test]
fn help_names_the_defaults_as_they_are() {
    let none = fixtures::undecided();
    let mut told = 0;
    for (name, help) in cli::descriptions() {
        let default = help.split_once("[default: ").and_then(|(_, rest)| rest.split_once(']'));
        let Some((default, _)) = default.filter(|(text, _)| !text.contains([' ', ','])) else {
            continue;
        };
        let row = row(&name).unwrap_or_else(|| panic!("{name} is no row"));
        let Take::One(put) = row.take else { panic!("{name} has several values") };
        let mut settings = none.clone();
        put(&mut settings, default, Source::Default).unwrap_or_else(|| panic!("{name}: {default}"));
        assert_eq!(format!("{settings:?}"), format!("{none:?}"), "{name} is not {default}");
        told += 1;
    }
    assert!(told > 15, "{told} defaults");
    let wait = cli::Wait { target: "a:1".into(), timeout: None, lang: None };
    let wait = wait.read(&host(&[])).expect("a target");
    assert_eq!(Some(wait.timeout), duration("30m"));
    let init = cli::Init { grace: None, lang: None, command: Vec::new() };
    let init = init.read(&host(&[])).expect("settings");
    assert_eq!(Some(init.grace), duration("5s"));
}
