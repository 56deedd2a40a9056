//! `ranklaunch explain` with rows of `[[diagnose]]` in the platform's file and in a profile: a file that cannot be used
//! is only told, since the question is about a log.

use std::path::Path;
use std::process::{Command, Output};

use crate::explain_logs::written;
use harness::executable;
use serde_json::Value;

const LOG: &str = "Traceback (most recent call last):\n  File \"/work/train.py\", line 9, in <module>\n    \
                   main()\nRuntimeError: no samples in train-7.tar\n";

fn row(id: &str, pattern: &str) -> String {
    format!(
        "[[diagnose]]\nid = '{id}'\npatterns = ['{pattern}']\ncause = '{id}: empty'\nremedy = 'r'\n"
    )
}

/// The question with these layers; the profile counts by a flag or by its variable.
fn explained(layers: &[(&str, &Path)], words: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(executable());
    command.arg("explain").args(words).current_dir(folder).env("LC_ALL", "C.UTF-8");
    command.env_remove("RANKLAUNCH_SITE").env_remove("RANKLAUNCH_PROFILE");
    command.envs(layers.iter().copied()).output().expect("it runs")
}

fn cause(ended: &Output) -> String {
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{said}");
    let told: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
    told["cause"]["id"].as_str().unwrap_or("none").to_owned()
}

fn said(ended: &Output) -> String {
    String::from_utf8_lossy(&ended.stderr).into_owned()
}

#[test]
fn platforms_rows_explain_logs_and_ids() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let log = written(folder, "a.log", LOG.as_bytes());
    let site = written(folder, "site.toml", row("of_site", "no samples in").as_bytes());
    written(folder, "job.toml", row("of_job", "no samples in train").as_bytes());
    let site = [("RANKLAUNCH_SITE", Path::new(&site))];
    let json = ["--format", "json", &log];
    assert_ne!(cause(&explained(&[], &json, folder)), "of_site");
    let ended = explained(&site, &json, folder);
    assert_eq!((cause(&ended), said(&ended)), ("of_site".to_owned(), String::new()));
    let by_id = explained(&site, &["of_site"], folder);
    assert!(String::from_utf8_lossy(&by_id.stdout).contains("of_site: empty"), "{by_id:?}");
    // Both layers: the rows add up, and RANKLAUNCH_PROFILE is a profile as the flag is.
    for (layers, words) in [
        (&site[..], &["--profile", "job.toml", "of_job", "of_site"][..]),
        (&[site[0], ("RANKLAUNCH_PROFILE", Path::new("job.toml"))], &["of_job", "of_site"]),
    ] {
        let ended = explained(layers, words, folder);
        let out = String::from_utf8_lossy(&ended.stdout);
        assert!(out.contains("of_site: empty") && out.contains("of_job: empty"), "{ended:?}");
    }
}

#[test]
fn unusable_file_only_warns_the_reader() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let log = written(folder, "a.log", LOG.as_bytes());
    written(folder, "job.toml", row("of_job", "no samples in").as_bytes());
    let files = [
        ("toml", "[diagnose\n".to_owned(), "toml:"),
        ("key", "lock = 1\n".to_owned(), "`lock`"),
        ("pattern", row("of_site", "(?P<a"), "pattern:1: [[diagnose]] of_site"),
        ("newer", "min_version = '99'\n".to_owned(), "ranklaunch 99 or later"),
    ];
    for (name, text, _) in &files {
        written(folder, name, text.as_bytes());
    }
    let others = [("absent", String::new(), "no such"), ("link", String::new(), "a link to none")];
    std::os::unix::fs::symlink("none", folder.join("link")).expect("made");
    for (name, _, words) in files.iter().chain(&others) {
        for variable in ["RANKLAUNCH_SITE", "RANKLAUNCH_PROFILE"] {
            let file = folder.join(name);
            let ended = explained(&[(variable, &file)], &["--format", "json", &log], folder);
            cause(&ended);
            assert!(said(&ended).contains(words), "{name}: {}", said(&ended));
        }
        // The rows of the profile count beside a file of the platform that does not.
        let site = [("RANKLAUNCH_SITE", &*folder.join(name))];
        let ended = explained(&site, &["--profile", "job.toml", "--format", "json", &log], folder);
        assert_eq!(cause(&ended), "of_job", "{name}");
    }
    // A flag asks for the file, so it must be usable.
    for name in ["./toml", "./key", "./pattern", "./newer", "./absent", "./link"] {
        let ended = explained(&[], &["--profile", name, &log], folder);
        assert_eq!(ended.status.code(), Some(64), "{name}: {}", said(&ended));
        assert!(ended.stdout.is_empty(), "{name}");
    }
}

#[test]
fn locked_row_is_refused_by_its_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let log = written(folder, "a.log", LOG.as_bytes());
    let of_site = row("shard", "no samples in");
    let text = format!("locked = ['diagnose.shard', 'log_keep']\n{of_site}");
    let site = written(folder, "site.toml", text.as_bytes());
    let site = [("RANKLAUNCH_SITE", Path::new(&site))];
    let asked = |text: &str, words: &[&str]| {
        written(folder, "job.toml", text.as_bytes());
        explained(&site, &[words, &["--format", "json", &log]].concat(), folder)
    };
    let flag: &[&str] = &["--profile", "job.toml"];
    let ended = asked(&row("shard", "in train"), flag);
    assert_eq!((ended.status.code(), ended.stdout.len()), (Some(64), 0), "{}", said(&ended));
    for part in ["job.toml:1 sets diagnose.shard", "site.toml:1 locks it", "(settings.locked)"] {
        assert!(said(&ended).contains(part), "{part}: {}", said(&ended));
    }
    // The same row, and another key that explain does not read.
    assert_eq!(cause(&asked(&of_site, flag)), "shard");
    assert_eq!(cause(&asked("[logs]\nlog_keep = 'all'", flag)), "shard");
    // The variable was not typed for this question, so the locked row counts.
    written(folder, "job.toml", row("shard", "nothing of this log").as_bytes());
    let layers = [site[0], ("RANKLAUNCH_PROFILE", Path::new("job.toml"))];
    let ended = explained(&layers, &["--format", "json", &log], folder);
    assert_eq!(cause(&ended), "shard");
    assert!(said(&ended).contains("locks it"), "{}", said(&ended));
}
