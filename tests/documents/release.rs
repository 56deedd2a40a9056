//! CHANGELOG.md and the settings of `packaging/dist/build.sh`: each version has a day, and packages name a maintainer.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The versions of a changelog with their days, the newest first.
fn versions(changelog: &str) -> Vec<(String, String)> {
    let headings =
        changelog.lines().filter_map(|line| line.strip_prefix("## [")?.split_once("] – "));
    headings.map(|(version, day)| (version.to_owned(), day.to_owned())).collect()
}

fn is_day(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let is_number = |part: &&str| part.bytes().all(|byte| byte.is_ascii_digit());
    parts.iter().map(|part| part.len()).eq([4_usize, 2, 2]) && parts.iter().all(is_number)
}

#[test]
fn each_version_has_one_day_in_both_languages() {
    let [english, chinese] = ["CHANGELOG.md", "CHANGELOG.zh-CN.md"]
        .map(|name| versions(&std::fs::read_to_string(path(name)).expect("a changelog")));
    assert_eq!(english, chinese);
    let newest = english.first().map(|(version, _)| version.as_str());
    assert_eq!(newest, Some(env!("CARGO_PKG_VERSION")), "the version of Cargo.toml is the newest");
    for (version, day) in &english {
        assert!(is_day(day), "{version}: {day}");
    }
    for wrong in ["unreleased", "2026-11", "26-11-2026", "2026-1a-25"] {
        assert!(!is_day(wrong), "{wrong}");
    }
}

/// The result of `dated` of packaging/dist/pack.py for a changelog with this heading.
fn packed(heading: &str) -> Output {
    let program = "import sys\nsys.path.insert(0, sys.argv[1])\nimport pack\n\
                   sys.stdout.buffer.write(pack.dated(sys.argv[2], '1.2.0', '2026-11-25').encode())";
    let mut python = Command::new(harness::python());
    python.args(["-B", "-X", "utf8", "-c", program]).arg(path("packaging/dist")).arg(heading);
    python.output().expect("python runs")
}

#[test]
fn undated_version_gets_the_release_day() {
    for (changelog, expected) in [
        ("# C\n\n## [1.2.0] – unreleased\n\nx\n", "# C\n\n## [1.2.0] – 2026-11-25\n\nx\n"),
        ("## [1.2.0] – 2026-01-31\n", "## [1.2.0] – 2026-01-31\n"),
        (
            "## [1.2.0] – unreleased\n## [1.1.0] – soon\n",
            "## [1.2.0] – 2026-11-25\n## [1.1.0] – soon\n",
        ),
    ] {
        let output = packed(changelog);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }
    let output = packed("## [1.2] – unreleased\n");
    assert!(!output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("## [1.2.0] – "), "{output:?}");
}

#[test]
fn invalid_maintainer_or_day_ends_the_release_early() {
    let both = "SOMEBODY <a@example.org>";
    for (maintainer, day, says) in [
        ("nobody", "2026-11-25", "MAINTAINER is 'nobody', not NAME <ADDRESS>"),
        ("<a@example.org>", "2026-11-25", "not NAME <ADDRESS>"),
        ("a <b@c>\nDepends: d <e@f>", "2026-11-25", "MAINTAINER has several lines"),
        (both, "2026-13-01", "RELEASE_DATE is '2026-13-01', not a day"),
        (both, "tomorrow", "RELEASE_DATE is 'tomorrow', not a day"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let output = Command::new("bash")
            .arg(path("packaging/dist/build.sh"))
            .arg(folder.path().join("dist"))
            .arg(std::env::consts::ARCH)
            .envs([("MAINTAINER", maintainer), ("RELEASE_DATE", day)])
            .output()
            .expect("bash runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(says), "{maintainer} {day}: {said}");
    }
}
