//! ranklaunch as PID 1, and a shell in its place.

use harness::Running;
use harness::docker::{self, Setup, tell};

use crate::{json, run};

/// Only the guard is left, and it reports the end.
#[test]
fn guard_reports_a_killed_agent() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let log = tempfile::NamedTempFile::new().expect("a file");
    let to = format!("{}:/dev/termination-log", log.path().display());
    let setup = Setup::of(&image).programs().options(&["-v", &to]);
    let mut container = setup.start(&run("echo READY; exec sleep 300"));
    container.says("READY", 2);
    // The agent is the guard's only child.
    docker::shell(container.container(), "kill -9 $(cat /proc/1/task/1/children)");
    container
        .wait()
        .expect_code(137)
        .expect_words(&["ranklaunch's agent was killed by SIGKILL", "(agent.killed)"]);
    let message = json(&std::fs::read_to_string(log.path()).expect("text"));
    assert_eq!((&message["cause"], &message["code"]), (&"agent.killed".into(), &137.into()));
}
/// A line of shell: a job whose ranks save something upon TERM.
fn job() -> String {
    let script = "'trap \"echo SAVED; exit 0\" TERM; echo READY; while :; do sleep 0.1; done'";
    format!("{} {}", docker::RANKLAUNCH, run(script).join(" "))
}

/// Other programs as PID 1, some of which forward a stop.
#[test]
fn shell_that_forwards_no_signal_gets_a_warning() {
    if docker::missing().is_some() {
        return;
    }
    const WARNING: &str = "which does not forward SIGTERM";
    let image = docker::host_like();
    let job = job();
    let table: [(&str, &[&str], String, bool); 6] = [
        ("bash", &[], format!("{job}; echo $?"), true),
        ("sh", &[], format!("{job} & wait"), true),
        ("bash", &[], format!("cd /; exec {job}"), false),
        // This shell catches the signal and forwards it.
        ("bash", &[], format!("trap 'kill $!; wait $!' TERM; {job} & wait $!"), false),
        // An init runs in front of the shell.
        ("bash", &["init"], format!("{job}; true"), false),
        // The container's first process belongs to another container, as with a shared PID
        // namespace.
        ("bash", &["--pid"], format!("{job}; true"), false),
    ];
    let mut pause =
        Setup::as_it_is(&image).programs().start(&["sh", "-c", "echo READY; exec sleep 300"]);
    pause.says("READY", 1);
    let beside = format!("container:{}", pause.container());
    let started: Vec<Running> = table
        .iter()
        .map(|(shell, options, script, _)| {
            let setup = Setup::of(&image).programs();
            match options {
                ["init"] => setup.start(&["init", "--", shell, "-c", script]),
                ["--pid"] => {
                    setup.options(&["--entrypoint", shell, "--pid", &beside]).start(&["-c", script])
                }
                _ => setup.options(&["--entrypoint", shell]).start(&["-c", script]),
            }
        })
        .collect();
    for (mut container, (shell, options, script, deaf)) in started.into_iter().zip(&table) {
        container.says("READY", 2);
        if *deaf {
            let look = [
                "exec",
                container.container(),
                docker::RANKLAUNCH,
                "check",
                "--device",
                "cpu",
                "--all",
            ];
            let said = String::from_utf8_lossy(&docker::docker(&look).stdout).into_owned();
            // A process started beside the job is not below PID 1 and gets no warning.
            assert!(said.contains("signals.term") && !said.contains(WARNING), "{said}");
        }
        // Both streams are complete only at the end.
        tell(&["kill", container.container()]);
        let err = container.wait().err;
        assert_eq!(err.contains(WARNING), *deaf, "{shell} {options:?} {script}: {err}");
        assert!(!deaf || err.contains(&format!("PID 1 is {shell} (")), "{err}");
    }
}

#[test]
fn control_deaf_shell_forwards_no_signal() {
    if docker::missing().is_some() {
        return;
    }
    let image = docker::host_like();
    let job = job();
    let start = |script: &str| {
        let setup = Setup::of(&image).programs().options(&["--entrypoint", "bash"]);
        let mut container = setup.options(&["--stop-timeout", "1"]).start(&["-c", script]);
        container.says("READY", 2);
        container
    };
    let deaf = start(&format!("{job}; exit $?"));
    let exec = start(&format!("exec {job}"));
    tell(&["stop", "-t", "1", deaf.container()]);
    tell(&["stop", "-t", "30", exec.container()]);
    let deaf = deaf.wait().expect_code(137);
    assert!(!deaf.out.contains("SAVED"), "{}", deaf.out);
    let exec = exec.wait().expect_code(143);
    assert_eq!(exec.out.matches("SAVED").count(), 2, "{}", exec.out);
}
