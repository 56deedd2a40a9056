//! The platform's file below every profile, with the real program: the places that a plan names, locks before a launch,
//! and the file in /etc.

use std::path::Path;
use std::process::Command;

use harness::{Ended, Launcher, executable, run_args, skipped};
use serde_json::Value;

const SITE: &str = "locked = ['log_keep', 'env.NCCL_SOCKET_IFNAME']\n\
    [job]\nnproc_per_node = 1\n[logs]\nlog_keep = '20'\nlang = 'en'\n\
    [env]\nNCCL_SOCKET_IFNAME = 'lo'\nMINE = 'site'\n";
const PROFILE: &str =
    "[job]\nscript = 'a.py'\ndevice = 'cpu'\nnproc_per_node = 2\n[env]\nMINE = 'job'\n";

fn launcher<'a>(site: Option<&str>, words: impl IntoIterator<Item = &'a str>) -> Launcher {
    let launcher = Launcher::new(words);
    let files = [("site.toml", site), ("job.toml", Some(PROFILE)), ("a.py", Some(""))];
    for (name, text) in files {
        if let Some(text) = text {
            std::fs::write(launcher.folder().join(name), text).expect("written");
        }
    }
    launcher
}

fn planned(site: Option<&str>, variable: Option<&str>, more: &[&str]) -> Value {
    let words = ["plan", "--format", "json", "--profile", "job.toml"];
    let launcher = launcher(site, words.iter().chain(more).copied());
    let launcher = match variable {
        Some(value) => launcher.env("RANKLAUNCH_SITE", value),
        None => launcher,
    };
    let ended = launcher.run();
    let mut plan: Value =
        serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error}: {}", ended.out));
    // A disk that fills up is told with the folder of the launcher.
    let warnings = plan["warnings"].as_array_mut().expect("warnings");
    warnings.retain(|one| !one["id"].as_str().is_some_and(|id| id.starts_with("disk.")));
    plan
}

#[test]
fn plan_without_the_file_is_unchanged() {
    let without = planned(None, None, &[]);
    assert!(without["argv"].is_array() && without.get("site").is_none(), "{without}");
    assert!(without.get("settings").is_none());
    assert_eq!(planned(None, Some("none"), &[]), without);
    let mut empty = planned(Some("# nothing\n"), Some("site.toml"), &[]);
    let document = empty.as_object_mut().expect("an object");
    assert_eq!(
        document.remove("site"),
        Some(serde_json::json!({"file": "site.toml", "locked": []}))
    );
    assert!(document.remove("settings").is_some());
    assert_eq!(empty, without);
}

#[test]
fn plan_names_the_layer_of_each_value() {
    let plan = planned(Some(SITE), Some("site.toml"), &["--max-restarts", "2"]);
    let said = |key: &str| {
        let rows = plan["settings"].as_array().expect("rows");
        let row =
            rows.iter().find(|row| row["key"] == key).unwrap_or_else(|| panic!("{key}: {plan}"));
        let text = |name: &str| row[name].as_str().expect("text").to_owned();
        format!("{} {} {} {}", text("value"), text("layer"), text("source"), row["locked"])
    };
    assert_eq!(said("log_keep"), "20 site site.toml:5 true");
    assert_eq!(said("nproc_per_node"), "2 profile job.toml:4 false");
    assert_eq!(said("max_restarts"), "2 flag --max-restarts false");
    assert_eq!(said("env.MINE"), "job profile job.toml:6 false");
    assert_eq!(plan["env"]["MINE"], "job");
    assert_eq!(plan["env"]["NCCL_SOCKET_IFNAME"], "lo");
    assert_eq!(plan["site"]["locked"], serde_json::json!(["log_keep", "env.NCCL_SOCKET_IFNAME"]));
    let words = ["plan", "--profile", "job.toml", "--engine", "direct"];
    let text = launcher(Some(SITE), words).env("RANKLAUNCH_SITE", "site.toml").run().expect_code(0);
    for part in ["settings", "[site.toml:5, locked]", "[job.toml:4]"] {
        assert!(text.out.contains(part), "{part}: {}", text.out);
    }
}

/// The control starts the job; each way to change a locked key starts nothing.
#[test]
fn locked_key_is_refused_before_the_launch() {
    let run = |variables: &[(&str, &str)], words: &[&str]| {
        let mut line: Vec<String> =
            run_args("direct", 1).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        line.extend(words.iter().map(|word| (*word).to_owned()));
        line.extend(["--", "sh", "-c", "echo $NCCL_SOCKET_IFNAME > started"].map(str::to_owned));
        let launcher = launcher(Some(SITE), line.iter().map(String::as_str));
        let launcher = launcher.env("RANKLAUNCH_SITE", "site.toml");
        variables.iter().fold(launcher, |all, (name, value)| all.env(name, value)).run()
    };
    let started = |ended: &Ended| std::fs::read_to_string(ended.folder().join("started"));
    let ended = run(&[("RANKLAUNCH_LOG_KEEP", "20")], &["--env", "NCCL_SOCKET_IFNAME=lo"]);
    assert_eq!(started(&ended.expect_code(0)).expect("it ran"), "lo\n");
    for (variables, words, part) in [
        (&[][..], &["--log-keep", "all"][..], "--log-keep sets log_keep to `all`"),
        (&[("RANKLAUNCH_LOG_KEEP", "7")], &[], "RANKLAUNCH_LOG_KEEP sets log_keep to `7`"),
        (&[("NCCL_SOCKET_IFNAME", "eth9")], &[], "NCCL_SOCKET_IFNAME sets env.NCCL_SOCKET_IFNAME"),
        (&[], &["--env", "NCCL_SOCKET_IFNAME=eth9"], "--env sets env.NCCL_SOCKET_IFNAME to `eth9`"),
    ] {
        let ended = run(variables, words).expect_code(64);
        for part in [part, "site.toml:1 locks it", "(settings.locked)"] {
            assert!(ended.err.contains(part), "{part}: {}", ended.err);
        }
        assert!(started(&ended).is_err() && !ended.folder().join("ranklaunch-logs").exists());
    }
}

/// A file that is mounted over a link, and is not there, is no missing file.
#[test]
fn link_that_leads_nowhere_is_refused() {
    for (name, variable) in [("site.toml", "RANKLAUNCH_SITE"), ("ranklaunch.toml", "NONE")] {
        let words = ["plan", "--engine", "direct", "--device", "cpu", "--", "true"];
        let launcher = launcher(None, words).env(variable, name);
        std::os::unix::fs::symlink("..data/site.toml", launcher.folder().join(name)).expect("made");
        let ended = launcher.run().expect_code(64);
        let said = format!("{name}: it is a link to ..data/site.toml, which does not exist");
        assert!(ended.err.contains(&said), "{}", ended.err);
    }
}

/// A plan in a mount namespace whose /etc has only this file.
fn in_etc(mode: &str, words: &[&str]) -> Option<Ended> {
    if !nix::unistd::geteuid().is_root() {
        skipped("another /etc needs root");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c"]);
    command.arg(format!(
        "mount -t tmpfs none /etc && mkdir /etc/ranklaunch && cp site.toml /etc/ranklaunch && \
         chmod {mode} /etc/ranklaunch/site.toml && exec \"$0\" \"$@\""
    ));
    command.arg(executable());
    let words =
        ["plan", "--profile", "job.toml", "--engine", "direct"].iter().chain(words).copied();
    let launcher = Launcher::of(command, words);
    for (name, text) in [("site.toml", SITE), ("job.toml", PROFILE), ("a.py", "")] {
        std::fs::write(Path::new(launcher.folder()).join(name), text).expect("written");
    }
    Some(launcher.run())
}

#[test]
fn file_in_etc_counts_if_only_root_writes_it() {
    let Some(ended) = in_etc("644", &[]) else { return };
    let ended = ended.expect_code(0);
    assert!(ended.out.contains("[/etc/ranklaunch/site.toml:5, locked]"), "{}", ended.out);
    let ended = in_etc("644", &["--log-keep", "all"]).expect("root").expect_code(64);
    assert!(ended.err.contains("/etc/ranklaunch/site.toml:5 sets it to `20`"), "{}", ended.err);
    let ended = in_etc("666", &["--log-keep", "all"]).expect("root").expect_code(0);
    let said = format!("{}{}", ended.out, ended.err);
    for part in ["is not used", "RANKLAUNCH_SITE=/etc/ranklaunch/site.toml", "chmod o-w"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
