//! Flags, variables, profiles and defaults: which of them wins, and the refusals of invalid
//! values.

use std::time::Duration;

use text::lang::Text;
use verdict::{Id, Severity};

use super::*;

#[test]
fn flag_beats_variable_beats_profile_beats_default() {
    let (_folder, path) = file("[job]\n\nnnodes = 4\n[launch]\nwait_timeout = '2m'\n");
    let profile = ["--profile", &path];
    let variable = host(&[("RANKLAUNCH_NNODES", "3"), ("RANKLAUNCH_WAIT_TIMEOUT", "")]);

    let with = |more: &[&str], host: &Host| {
        Settings::read(&options(&[&profile, more].concat()), host).expect("settings")
    };
    let flag = with(&["--nnodes", "2"], &variable);
    assert_eq!(flag.nnodes, Some(Sourced::new(2, Source::Flag("--nnodes".into()))));
    let set = with(&[], &variable);
    assert_eq!(set.nnodes, Some(Sourced::new(3, Source::Environment("RANKLAUNCH_NNODES".into()))));
    let plain = with(&[], &host(&[]));
    let from_file = |line| Source::Profile { file: path.clone(), line };
    assert_eq!(plain.nnodes, Some(Sourced::new(4, from_file(3))));
    assert_eq!(plain.profile.as_deref(), Some(path.as_str()));

    // The empty variable counts as unset, with a warning.
    assert_eq!(set.wait_timeout, Sourced::new(Duration::from_secs(120), from_file(5)));
    assert!(set.warnings.iter().any(|w| w.text.en.contains("RANKLAUNCH_WAIT_TIMEOUT")));

    let none = Settings::read(&options(&[]), &host(&[])).expect("settings");
    assert_eq!((none.nnodes, none.profile), (None, None));
    assert_eq!(none.wait_timeout, Sourced::default_value(Duration::from_secs(1800)));
    assert_eq!(none.log_cap_rank.value, 256 << 20);
    assert_eq!(none.program, None);
    assert_eq!(none.warnings, []);
}

/// The deadline limits the reading of the other settings, so it is read before them, but in the same way.
#[test]
fn early_deadline_equals_the_settings_deadline() {
    for value in ["7s", "7s\n", " 7"] {
        let host = host(&[("RANKLAUNCH_DEADLINE", value)]);
        let first = options(&[]).deadline(&host);
        let settings = Settings::read(&options(&[]), &host).expect("settings");
        assert_eq!(first, Some(Duration::from_secs(7)), "{value:?}");
        assert_eq!(first, settings.deadline.map(|deadline| deadline.value), "{value:?}");
    }
}

#[test]
fn every_row_accepts_its_example_from_every_source() {
    for row in TABLE {
        if matches!(row.take, Take::Apart) {
            continue;
        }
        if let Take::One(put) = row.take {
            let mut settings = defaults(&host(&[]));
            assert!(put(&mut settings, row.example, Source::Default).is_some(), "{}", row.name);
        }
        if let Some(variable) = row.variable() {
            let settings = Settings::read(&options(&[]), &host(&[(&variable, row.example)]));
            assert!(settings.is_ok(), "{variable}: {settings:?}");
        }
        if let Some(table) = row.table {
            let value = match row.toml {
                table::Toml::Text => format!("'{}'", row.example),
                table::Toml::TextOrNumber => format!("\"{}\"", row.example),
                table::Toml::List => format!("['{}']", row.example),
                table::Toml::Number | table::Toml::Boolean => row.example.to_owned(),
            };
            let profile = format!("[{table}]\n{} = {value}", row.key());
            let settings = read_profile(&profile);
            assert!(settings.is_ok(), "{profile}: {settings:?}");
        }
    }
}

#[test]
fn bad_value_refusal_names_place_value_and_range() {
    for row in TABLE {
        // These take any text that is not empty.
        let bad = match row.name {
            "profile" | "module" | "chdir" | "python" | "conda-env" | "log-dir"
            | "checkpoint-dir" | "termination-log" | "host-root" => "a\u{1}b",
            // White space separates hosts.
            "nodes" => "two two",
            _ => "two nodes",
        };
        let (Some(variable), false) = (row.variable(), matches!(row.take, Take::Apart)) else {
            continue;
        };
        let refusal =
            Settings::read(&options(&[]), &host(&[(&variable, bad)])).expect_err(&variable);
        let id = format!("settings.{}", row.name.replace('-', "_"));
        assert_eq!((refusal.verdict, refusal.id.as_str()), (Verdict::Usage, id.as_str()));
        let Text { en, zh } = &refusal.text;
        for text in [en, zh] {
            assert!(text.contains(&variable), "{text}");
            // A severity's variable is a list: the first entry is at fault.
            let shown = bad.split([' ', '\u{1}']).next().expect("a word");
            assert!(text.contains(shown), "{text}");
        }
        assert!(en.contains(&*row.allowed.text().en), "{en}");
        assert!(zh.contains(&*row.allowed.text().zh), "{zh}");
        assert!(refusal.hint.en.contains(&format!("--{}", row.name)), "{}", refusal.hint.en);
    }
}

#[test]
fn flag_overrides_an_invalid_variable() {
    let link = host(&[("RANKLAUNCH_MASTER_PORT", "tcp://10.0.0.1:29500")]);
    let refusal = Settings::read(&options(&[]), &link).expect_err("a service link");
    assert!(refusal.hint.en.contains("Kubernetes Service"), "{}", refusal.hint.en);
    let settings = Settings::read(&options(&["--master-port", "29500"]), &link).expect("settings");
    assert_eq!(settings.master_port.map(|port| port.value), Some(29500));
}

#[test]
fn text_that_is_not_utf8_is_shown_escaped() {
    let bad = OsString::from_vec(b"a\xffb".to_vec());
    let given = cli::Options { nnodes: Some(bad.clone()), ..cli::Options::default() };
    let refusal = Settings::read(&given, &host(&[])).expect_err("not UTF-8");
    assert!(refusal.text.en.contains("`a\\xffb`"), "{}", refusal.text.en);

    // The values of the ranks' variables are not checked.
    let given = cli::Options {
        env: vec![OsString::from_vec(b"A=\xff".to_vec())],
        ..cli::Options::default()
    };
    let settings = Settings::read(&given, &host(&[])).expect("settings");
    assert_eq!(settings.env[0].value, OsString::from_vec(vec![0xff]));
}

#[test]
fn unknown_variables_get_the_nearest_name() {
    let node = host(&[
        ("RANKLAUNCH_NNODE", "2"),
        ("RANKLAUNCH_SECRET", "x"),
        ("RANKLAUNCH_JOB", "x"),
        ("RANKLAUNCH_SERVICE_HOST", "10.0.0.1"),
        ("RANKLAUNCH_PORT_29500_TCP_ADDR", "10.0.0.1"),
        ("RANKLAUNCH_PORT", "tcp://10.0.0.1:29500"),
        ("RANKLAUNCH_WHATEVER_IT_IS", "hunter2"),
        // No link of a Service, but a misspelt setting.
        ("RANKLAUNCH_MASTR_PORT", "29500"),
    ]);
    let warnings = Settings::read(&options(&[]), &node).expect("settings").warnings;
    let told: Vec<String> =
        warnings.iter().map(|w| format!("{} | {}", w.text.en, w.hint.en)).collect();
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[0].contains("RANKLAUNCH_MASTR_PORT is"), "{told:?}");
    assert!(told[0].contains("mean RANKLAUNCH_MASTER_PORT?"), "{told:?}");
    assert!(told[1].contains("RANKLAUNCH_NNODE is") && told[1].contains("mean RANKLAUNCH_NNODES?"));
    assert!(told[2].contains("RANKLAUNCH_WHATEVER_IT_IS") && !told[2].contains("hunter2"));
}

#[test]
fn entries_add_up_and_stronger_ones_win() {
    let (_folder, path) = file("[env]\nA = 'file'\nB = 2\n[severity]\nshm.size = 'fail'");
    let node = host(&[
        ("RANKLAUNCH_ENV", "B=variable\nC=1=2, 3\n"),
        ("RANKLAUNCH_SEVERITY", "memlock=off,nofile=fail"),
    ]);
    let given = options(&[
        "--profile",
        &path,
        "--env",
        "C=flag",
        "--env",
        "D=",
        "--severity",
        "shm.size=warn",
    ]);
    let settings = Settings::read(&given, &node).expect("settings");
    let found: Vec<(&str, String, String)> = settings
        .env
        .iter()
        .map(|s| (s.name.as_str(), s.value.to_string_lossy().into_owned(), s.source.to_string()))
        .collect();
    let expected = [
        ("A", "file".to_owned(), format!("{path}:2")),
        ("B", "variable".to_owned(), "RANKLAUNCH_ENV".to_owned()),
        ("C", "flag".to_owned(), "--env".to_owned()),
        ("D", String::new(), "--env".to_owned()),
    ];
    assert_eq!(found, expected);
    let severity = |id: Id| settings.severities.get(&id).map(|s| s.value);
    assert_eq!(severity(Id::ShmSize), Some(Severity::Warn));
    assert_eq!(severity(Id::Memlock), Some(Severity::Off));
    assert_eq!(severity(Id::Nofile), Some(Severity::Fail));

    let (_folder, path) = file("[launch]\nretry_on = ['a', 'b']\nno_retry_on = ['c']");
    let node = host(&[("RANKLAUNCH_RETRY_ON", "d, e"), ("RANKLAUNCH_NO_RETRY_ON", "f")]);
    let given = options(&["--profile", &path, "--retry-on", "c", "--no-retry-on", "a"]);
    let settings = Settings::read(&given, &node).expect("settings");
    let said = |ids: &[Sourced<String>]| {
        let said: Vec<String> =
            ids.iter().map(|id| format!("{} {}", id.value, id.source)).collect();
        said.join(", ").replace(&path, "job.toml")
    };
    assert_eq!(
        said(&settings.retry_on),
        "a job.toml:2, b job.toml:2, d RANKLAUNCH_RETRY_ON, e RANKLAUNCH_RETRY_ON, c --retry-on"
    );
    assert_eq!(
        said(&settings.no_retry_on),
        "c job.toml:3, f RANKLAUNCH_NO_RETRY_ON, a --no-retry-on"
    );

    let (_folder, path) = file("[warm]\nmodules = ['a.b', '-c']");
    let node = host(&[("RANKLAUNCH_WARM_MODULES", "-a.b,d")]);
    let given = options(&["--profile", &path, "--warm-modules", "-d", "--warm-modules", "e"]);
    let settings = Settings::read(&given, &node).expect("settings");
    let module = |module: &WarmModule| (module.name.clone(), module.is_imported);
    let found: Vec<(String, bool)> = settings.warm_modules.iter().map(module).collect();
    let of = |name: &str, is_imported| (name.to_owned(), is_imported);
    assert_eq!(found, [of("c", false), of("a.b", false), of("d", false), of("e", true)]);
    for bad in ["", "-", "a b", "a..b", "a.", "1a", "--warm", "a/b"] {
        let refused =
            Settings::read(&options(&["--warm-modules", bad]), &host(&[])).expect_err(bad);
        assert_eq!(refused.id, Id::SettingsWarmModules, "{bad}");
    }

    for bad in ["--env=x", "--env==x", "--env=A B=x"] {
        assert_eq!(
            Settings::read(&options(&[bad]), &host(&[])).expect_err(bad).id,
            Id::SettingsEnv
        );
    }
    let secret =
        Settings::read(&options(&["--env", "HF_TOKEN hunter2"]), &host(&[])).expect_err("no =");
    assert!(secret.text.en.contains("`HF_TOKEN`") && !secret.text.en.contains("hunter2"));
    let refusal =
        Settings::read(&options(&["--severity", "shm=fail"]), &host(&[])).expect_err("no such id");
    assert!(refusal.text.en.contains("`shm=fail`"), "{}", refusal.text.en);
}

#[test]
fn the_grace_stays_below_that_of_the_pod() {
    let grace = |line: &[&str], period: Option<&str>| {
        let node = host(
            &period.map(|p| ("TerminationGracePeriodSeconds", p)).into_iter().collect::<Vec<_>>(),
        );
        let settings = Settings::read(&options(line), &node).expect("settings");
        (
            settings.grace.value.as_secs_f64(),
            settings.grace.source.to_string(),
            settings.warnings.len(),
        )
    };
    assert_eq!(grace(&[], None), (28.0, "default".into(), 0));
    assert_eq!(grace(&[], Some("600")), (598.0, "TerminationGracePeriodSeconds".into(), 0));
    assert_eq!(grace(&[], Some("1")), (0.5, "TerminationGracePeriodSeconds".into(), 0));
    assert_eq!(grace(&[], Some("soon")), (28.0, "default".into(), 1));
    assert_eq!(grace(&["--grace", "10s"], Some("600")), (10.0, "--grace".into(), 0));
}

#[test]
fn language_follows_flag_variable_profile_or_locale() {
    let (_folder, path) = file("[logs]\nlang = 'en'");
    let zh = ("LANG", "zh_CN.UTF-8");
    for (line, variables, lang) in [
        (&[][..], &[][..], Lang::En),
        (&[], &[zh], Lang::Zh),
        (&["--profile", &path], &[zh], Lang::En),
        (&["--profile", &path], &[zh, ("RANKLAUNCH_LANG", "zh")], Lang::Zh),
        (&["--lang", "en"], &[zh, ("RANKLAUNCH_LANG", "zh")], Lang::En),
    ] {
        assert_eq!(
            Settings::read(&options(line), &host(variables)).expect("settings").lang,
            lang,
            "{line:?}"
        );
    }
    assert_eq!(options(&["--lang", "zh"]).language(&host(&[])), Lang::Zh);
    assert_eq!(options(&[]).language(&host(&[("RANKLAUNCH_LANG", "xx"), zh])), Lang::Zh);
}

#[test]
fn wait_reads_its_target_and_its_time() {
    let wait = |target: &str, timeout: Option<&str>| {
        let wait =
            cli::Wait { target: target.into(), timeout: timeout.map(Into::into), lang: None };
        wait.read(&host(&[("RANKLAUNCH_WAIT_TIMEOUT", "2m")]))
    };
    let found = wait("[fd00::1]:29500", Some("5")).expect("a target");
    assert_eq!((found.host.as_str(), found.port, found.timeout.as_secs()), ("fd00::1", 29500, 5));
    assert_eq!(wait("a:1", None).expect("a target").timeout, Duration::from_secs(120));
    assert_eq!(wait("a", None).expect_err("no port").id, Id::SettingsTarget);
    let refusal = wait("a:1", Some("soon")).expect_err("no time");
    assert!(refusal.text.en.starts_with("--timeout is `soon`"), "{}", refusal.text.en);
}

#[test]
fn range_of_one_number_is_that_number() {
    for (range, nodes) in
        [("2:2", Some(2)), ("2", Some(2)), ("1:2", None), ("0:0", None), (":", None)]
    {
        let read = Settings::read(&options(&["--nnodes", range]), &host(&[]));
        assert_eq!(
            read.ok().and_then(|settings| settings.nnodes).map(|n| n.value),
            nodes,
            "{range}"
        );
    }
}

#[test]
fn hint_names_the_probable_meaning() {
    for (line, hint) in [
        (&["--severity", "shm.sise=fail"][..], "did you mean --severity shm.size=fail?"),
        (&["--severity", "shm.size"], "--severity shm.size=fail"),
        (&["--severity", "shm.size=bad"], "--severity shm.size=fail"),
        (&["--severity", "colour=fail"], "gpu.fault, gpu.fabric"),
        (&["--nnodes", "1:2"], "PET_NNODES"),
    ] {
        let refusal = Settings::read(&options(line), &host(&[])).expect_err(hint);
        assert!(refusal.hint.en.contains(hint), "{line:?}: {}", refusal.hint.en);
        assert_ne!(refusal.hint.en, refusal.hint.zh);
    }
}

#[test]
fn an_option_that_was_typed_twice_is_noted() {
    let line = ["--wait-timeout", "30m", "--wait-timeout", "5m"];
    let settings = Settings::read(&options(&line), &host(&[])).expect("settings");
    assert_eq!(settings.wait_timeout.value, Duration::from_secs(300));
    let Repeated { option, times, value } = &settings.repeated[0];
    assert_eq!((option.as_str(), *times, value.as_str()), ("--wait-timeout", 2, "`5m`"));
}
