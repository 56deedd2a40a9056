//! Output of the executable, and findings on two jobs together.

use std::io::Write as _;
use std::process::{Command, Stdio};

use text::lang::Lang;

use super::samples::PYTORCHJOB;
use super::{check, ids};

#[test]
fn the_executable_prints_each_format() {
    let broken = PYTORCHJOB.replace("per_node=4", "per_node=5");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a:b,c%.yaml");
    std::fs::write(&path, &broken).expect("written");
    let run = |args: &[&str], stdin: Option<&str>| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ranklaunch"))
            .arg("lint")
            .args(args)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut input = child.stdin.take().expect("stdin");
        // The program may end without reading.
        let _ = input.write_all(stdin.unwrap_or_default().as_bytes());
        drop(input);
        let output = child.wait_with_output().expect("it ends");
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let path = path.to_str().expect("a name");
    let line = 1 + broken.lines().take_while(|line| !line.contains("per_node=5")).count();

    let (code, out, _) = run(&[path], None);
    assert_eq!(code, Some(1));
    assert!(
        out.contains(&format!("{path}:{line}: error: ")) && out.contains("(gpu.nproc)"),
        "{out}"
    );

    let (code, out, _) = run(&["--format", "github", path], None);
    let escaped = path.replace('%', "%25").replace(':', "%3A").replace(',', "%2C");
    assert_eq!(code, Some(1));
    assert!(
        out.contains(&format!("::error file={escaped},line={line},title=gpu.nproc::5 processes")),
        "{out}"
    );
    assert!(out.lines().all(|line| line.starts_with("::")), "{out}");

    let (code, out, _) = run(&["--format", "json", "--lang", "zh", "-"], Some(&broken));
    assert_eq!(code, Some(1));
    let json: serde_json::Value = serde_json::from_str(&out).expect("json");
    assert_eq!(json["schema"], 1);
    let found = json["findings"].as_array().expect("a list").iter();
    let found: Vec<_> = found.filter(|found| found["id"] == "gpu.nproc").collect();
    assert_eq!(
        (found.len(), &found[0]["line"], &found[0]["severity"]),
        (1, &line.into(), &"error".into())
    );
    assert!(found[0]["text"].as_str().is_some_and(|text| text.contains("个进程")));

    let (code, out, err) = run(&["-"], Some(PYTORCHJOB));
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "1 manifest, nothing found\n", ""));
    // An unreadable file does not hide the others.
    let (code, out, err) = run(&["/nowhere.yaml", "-"], Some(&format!("{broken}---\na: [\n")));
    assert!(code == Some(64) && out.contains("(gpu.nproc)") && err.contains("-:"), "{out}{err}");
    let (code, _, err) = run(&["-"], Some("a: [\n"));
    assert!(code == Some(64) && err.contains("-:2: ") && err.contains("exit code 64"), "{err}");
    let (code, _, err) = run(&["/nowhere.yaml"], None);
    assert!(code == Some(64) && err.contains("/nowhere.yaml"), "{err}");
    let (code, _, err) = run(&["--node-memory", "much", "-"], Some(PYTORCHJOB));
    assert!(code == Some(64) && err.contains("256Gi"), "{err}");
}

#[test]
fn two_jobs_on_host_network_need_two_ports() {
    let pod = |name: &str, port: u16| {
        format!(
            "---\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  hostNetwork: true\n  containers: [{{name: a, command: [torchrun, --nproc_per_node=2, --master_port={port}, t.py]}}]\n"
        )
    };
    let report = check(&(pod("a", 29500) + &pod("b", 29500)), None);
    assert_eq!(
        ids(&report),
        [("network.port", 5), ("network.port", 11)],
        "{}",
        lint::plain(&report, Lang::En)
    );
    assert!(ids(&check(&(pod("a", 29500) + &pod("b", 29501)), None)).is_empty());
}
