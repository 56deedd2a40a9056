//! Settings: which source wins, refusals and their texts, and the embedded profiles.

mod embedded;
mod engine_args;
mod profiles;
mod programs;
mod reference;
mod schema;
mod site;
mod sources;

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;

use super::*;
use verdict::{Family, Verdict};

fn options(line: &[&str]) -> cli::Options {
    let words = std::iter::once("ranklaunch").chain(line.iter().copied()).map(OsString::from);
    match cli::Command::parse(words) {
        Ok(cli::Command::Run(options)) => options,
        other => panic!("{line:?}: {other:?}"),
    }
}

/// A node with these variables and an empty file system.
fn host(variables: &[(&str, &str)]) -> Host {
    let environment = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    Host::replayed("/nonexistent", environment)
}

/// A profile file that exists as long as the folder.
fn file(text: impl AsRef<[u8]>) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("job.toml");
    std::fs::write(&path, text).expect("a file");
    let path = path.to_str().expect("a plain path").to_owned();
    (folder, path)
}

fn read_profile(text: &str) -> Result<Settings, Refusal> {
    let (_folder, path) = file(text);
    let options = cli::Options { profile: Some(path.into()), ..cli::Options::default() };
    Settings::read(&options, &host(&[]))
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn embedded(name: &str) -> Settings {
    Settings::read(&options(&["--profile", name]), &host(&[])).expect(name)
}

/// Nearly valid lines, so that more than the TOML parser is tested.
fn nearly_a_profile() -> impl Strategy<Value = Vec<u8>> {
    let keys: Vec<String> = TABLE
        .iter()
        .map(SettingRow::key)
        .chain(profile::JOB_KEYS.iter().map(|k| (*k).into()))
        .collect();
    let sections: Vec<&'static str> = profile::SECTIONS.to_vec();
    let line = prop_oneof![
        prop::sample::select(sections).prop_map(|s| format!("[{s}]")),
        Just("[[select]]".to_owned()),
        Just("[layout.heads]".to_owned()),
        (
            prop::sample::select(keys),
            prop_oneof![
                "[-0-9x]{1,4}",
                "'\\PC{0,8}'",
                Just("true".to_owned()),
                "\\['\\PC{0,4}', [0-9]\\]",
                "\\{ \\w = [0-9] \\}"
            ]
        )
            .prop_map(|(key, value)| format!("{key} = {value}")),
    ];
    prop::collection::vec(line, 0..8).prop_map(|lines| lines.join("\n").into_bytes())
}

proptest! {
    #[test]
    fn any_profile_bytes_give_settings_or_a_refusal(
        bytes in prop_oneof![prop::collection::vec(any::<u8>(), 0..200), nearly_a_profile()]
    ) {
        let (_folder, path) = file(bytes);
        let given = cli::Options { profile: Some(path.into()), ..cli::Options::default() };
        if let Err(refusal) = Settings::read(&given, &host(&[])) {
            prop_assert_eq!(refusal.verdict, Verdict::Usage);
        }
    }

    #[test]
    fn any_variables_and_words_give_settings_or_refusal(
        values in prop::collection::vec((0..TABLE.len(), prop::collection::vec(any::<u8>(), 0..12)), 0..5),
        program in prop::collection::vec("\\PC{0,8}", 0..4),
        profile in prop::sample::select(vec!["wan22", "taehv", "zimdb"]),
    ) {
        let environment = values
            .into_iter()
            .filter_map(|(row, value)| Some((OsString::from(TABLE.get(row)?.variable()?), OsString::from_vec(value))))
            .collect();
        let given = cli::Options {
            profile: Some(profile.into()),
            program: program.into_iter().map(OsString::from).collect(),
            ..cli::Options::default()
        };
        if let Err(refusal) = Settings::read(&given, &Host::replayed("/nonexistent", environment)) {
            prop_assert_eq!(refusal.verdict, Verdict::Usage);
            prop_assert_eq!(refusal.id.family(), Family::Settings);
        }
    }
}
