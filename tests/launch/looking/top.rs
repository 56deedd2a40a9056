//! `ranklaunch top` in a real terminal emulator: tmux, 80 columns by 24 lines.

use std::path::Path;
use std::process::{Command, Output};

use harness::{Running, executable, free_port, skipped, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{asked, shell, two_nodes};

/// A tmux server of its own with one window.
struct Tmux {
    folder: tempfile::TempDir,
}

impl Tmux {
    /// Runs `ranklaunch top ARGS` in a shell that notes the state of the terminal before and after.
    fn top(args: &str, variables: &[(&str, &str)]) -> Option<Tmux> {
        if !Command::new("tmux").arg("-V").output().is_ok_and(|out| out.status.success()) {
            skipped("no tmux on this machine");
            return None;
        }
        let tmux = Tmux { folder: tempfile::tempdir().expect("a folder") };
        let folder = tmux.folder.path().display();
        let top = executable().display().to_string();
        let script = format!("cd {folder}; stty -a > before; {top} top {args}; echo CODE=$?; cat");
        let mut command = tmux.command(&["new-session", "-d", "-x", "80", "-y", "24"]);
        command.arg(script).env("RANKLAUNCH_LANG", "en");
        command.envs(variables.iter().copied());
        assert!(command.status().expect("tmux runs").success());
        Some(tmux)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.folder.path().join("tmux")).args(["-f", "/dev/null"]).args(args);
        command.env_remove("TMUX").env_remove("NO_COLOR").env("LC_ALL", "C.UTF-8");
        command
    }

    fn says(&self, args: &[&str]) -> String {
        let Output { stdout, .. } = self.command(args).output().expect("tmux runs");
        String::from_utf8_lossy(&stdout).into_owned()
    }

    fn screen(&self) -> String {
        self.says(&["capture-pane", "-p"])
    }

    fn press(&self, keys: &[&str]) {
        let words: Vec<&str> = ["send-keys"].iter().chain(keys).copied().collect();
        assert!(self.command(&words).status().expect("tmux runs").success());
    }

    /// Waits until the screen shows all of this.
    #[track_caller]
    fn shows(&self, words: &[&str]) -> String {
        wait_until(&format!("{words:?} on the screen; it is:\n{}", self.screen()), || {
            let screen = self.screen();
            words.iter().all(|word| screen.contains(word)).then_some(screen)
        })
    }

    /// Expects the terminal as it was, and the shell in its foreground.
    #[track_caller]
    fn is_restored(&self, code: &str) {
        self.shows(&[code]);
        let before = std::fs::read_to_string(self.folder.path().join("before")).expect("a state");
        assert!(before.contains("baud") && before.contains(" icanon"), "{before}");
        let terminal = self.says(&["display-message", "-p", "#{pane_tty}"]);
        let after = Command::new("stty").args(["-a", "-F", terminal.trim()]).output();
        let after = String::from_utf8_lossy(&after.expect("stty runs").stdout).into_owned();
        // The first line has the size.
        let modes = |state: &str| state.split_once('\n').map(|(_, modes)| modes.to_owned());
        assert_eq!(modes(&before), modes(&after));
        let modes = ["#{alternate_on}", "#{cursor_flag}", "#{wrap_flag}"]
            .map(|mode| self.says(&["display-message", "-p", mode]).trim().to_owned());
        assert_eq!(modes, ["0", "1", "1"], "alternate screen, cursor, wrapping");
    }

    /// The processes of `ranklaunch top` in the window, the first one first.
    fn processes(&self) -> Vec<i32> {
        let shell = self.says(&["display-message", "-p", "#{pane_pid}"]);
        let of = |parent: i32| -> Vec<i32> {
            let list = format!("/proc/{parent}/task/{parent}/children");
            let children = std::fs::read_to_string(list).unwrap_or_default();
            children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
        };
        let is_top = |pid: &i32| {
            let name = std::fs::read_link(Path::new("/proc").join(pid.to_string()).join("exe"));
            name.is_ok_and(|name| name == executable())
        };
        let shell: i32 = shell.trim().parse().expect("a pid");
        let first: Vec<i32> = of(shell).into_iter().filter(is_top).collect();
        let second: Vec<i32> = first.iter().flat_map(|pid| of(*pid)).collect();
        first.into_iter().chain(second).collect()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).status();
    }
}

const STEPS: &str =
    "n=0; while [ ! -e stop ]; do n=$((n+1)); echo \"rank $RANK at step $n\"; sleep 0.1; done";

fn ended(nodes: [Running; 2]) {
    for node in &nodes {
        std::fs::write(node.folder().join("stop"), "").expect("written");
    }
    for node in nodes {
        node.wait().expect_code(0).expect_nothing_left();
    }
}

#[test]
fn top_shows_filters_and_follows_all_ranks() {
    let mut nodes = two_nodes(STEPS);
    for node in &mut nodes {
        node.says("at step 2", 1);
    }
    let run = nodes[0].run_id();
    let Some(tmux) = Tmux::top(&run, &[]) else { return ended(nodes) };
    let screen = tmux.shows(&[&run, "2/2 nodes", "2/2 ranks", "rank 1 at step", "LAST LINE"]);
    assert!(screen.lines().last().is_some_and(|line| line.starts_with("q quit")), "{screen}");
    // The last lines change with the job.
    tmux.shows(&["rank 0 at step 2"]);
    tmux.press(&["/", "r1", "Enter"]);
    let screen = tmux.shows(&["1 rank by RANK↑  /r1"]);
    assert!(!screen.contains("rank 0 at step"), "{screen}");
    // The view shows the output of a rank of the other node.
    tmux.press(&["l"]);
    tmux.shows(&["log of rank 1, followed", "  rank 1 at step 3"]);
    tmux.press(&["t"]);
    tmux.shows(&["stacks of rank 1", "Process "]);
    tmux.press(&["q", "p"]);
    tmux.shows(&["the plan and its reasons", "nproc_per_node = 1"]);
    tmux.press(&["Escape", "Escape", "n"]);
    // The interfaces that are shown depend on their traffic.
    tmux.shows(&["all nodes", "MEMORY"]);
    tmux.press(&["?"]);
    tmux.shows(&["changes nothing of it"]);
    // The window gets another size.
    assert!(
        tmux.command(&["resize-window", "-x", "40", "-y", "10"]).status().expect("runs").success()
    );
    tmux.press(&["q"]);
    tmux.shows(&["RANK"]);
    tmux.press(&["q"]);
    tmux.is_restored("CODE=0");
    ended(nodes);
}

#[test]
fn colours_are_drawn_unless_no_color_is_set() {
    let mut nodes = two_nodes(STEPS);
    for node in &mut nodes {
        node.says("at step 2", 1);
    }
    let run = nodes[0].run_id();
    for (variables, has_colours) in [(&[][..], true), (&[("NO_COLOR", "1")][..], false)] {
        let Some(tmux) = Tmux::top(&run, variables) else { return ended(nodes) };
        tmux.shows(&["rank 1 at step"]);
        let raw = tmux.says(&["capture-pane", "-p", "-e"]);
        assert_eq!(raw.contains("\u{1b}[32m"), has_colours, "{raw:?}");
    }
    ended(nodes);
}

/// An action that ends a view.
type End<'a> = &'a dyn Fn(&Tmux);

/// The view is ended by a key, by signals, and by the death of either process.
#[test]
fn end_of_top_spares_job_and_restores_terminal() {
    let mut job = shell(1, &[], STEPS).start();
    job.says("at step 2", 1);
    let run = job.run_id();
    let ends: [(&str, &str, End<'_>); 5] = [
        ("Ctrl-C", "CODE=0", &|tmux| tmux.press(&["C-c"])),
        ("TERM", "CODE=0", &|tmux| send(tmux, 0, Signal::SIGTERM)),
        ("HUP of the second", "CODE=0", &|tmux| send(tmux, 1, Signal::SIGHUP)),
        ("KILL of the second", "CODE=137", &|tmux| send(tmux, 1, Signal::SIGKILL)),
        // The shell's output is lost with the screen, which the second process still has.
        ("KILL of the first", "", &|tmux| send(tmux, 0, Signal::SIGKILL)),
    ];
    for (what, code, end) in ends {
        let Some(tmux) = Tmux::top(&run, &[]) else { break };
        tmux.shows(&["rank 0 at step"]);
        // The control: top draws on the alternate screen.
        assert_eq!(tmux.says(&["display-message", "-p", "#{alternate_on}"]).trim(), "1", "{what}");
        end(&tmux);
        wait_until(what, || tmux.processes().is_empty().then_some(()));
        tmux.is_restored(code);
        assert!(!job.is_over(), "{what}");
    }
    std::fs::write(job.folder().join("stop"), "").expect("written");
    job.wait().expect_code(0).expect_nothing_left();
}

fn send(tmux: &Tmux, which: usize, signal: Signal) {
    let processes = tmux.processes();
    let pid = *processes.get(which).unwrap_or_else(|| panic!("{which} of {processes:?}"));
    kill(Pid::from_raw(pid), signal).expect("sent");
}

#[test]
fn job_waiting_for_nodes_is_shown_as_agreeing() {
    let mut node = shell(1, &["--wait-timeout", "10m"], "true").node(0, 2, free_port()).start();
    let agent = node.agent().to_string();
    let listed = format!("(agent {agent})");
    node.waits("it is listed", |_| asked(&["ps"]).out.contains(&listed));
    // The job has no run id yet, and is named by the pid of its agent.
    if let Some(tmux) = Tmux::top(&agent, &[]) {
        tmux.shows(&["1/2 nodes", "0/2 ranks", "agreeing"]);
        tmux.press(&["q"]);
        tmux.is_restored("CODE=0");
    }
    node.signal(Signal::SIGTERM);
    node.wait().expect_code(143).expect_nothing_left();
}

/// One node from any machine: its state, but no logs.
#[test]
fn node_serving_its_status_is_shown_over_http() {
    let port = free_port();
    let mut job = shell(1, &["--http", &port.to_string()], STEPS).start();
    job.says("at step 2", 1);
    let at = format!("127.0.0.1:{port}");
    if let Some(tmux) = Tmux::top(&at, &[]) {
        tmux.shows(&[&job.run_id(), "1/1 ranks", "rank 0 at step 2"]);
        tmux.press(&["l"]);
        tmux.shows(&["only where the ranks run"]);
        tmux.press(&["q", "q"]);
        tmux.is_restored("CODE=0");
    }
    std::fs::write(job.folder().join("stop"), "").expect("written");
    job.wait().expect_code(0).expect_nothing_left();
    // The control: the node is gone.
    if let Some(tmux) = Tmux::top(&at, &[]) {
        tmux.shows(&["gives no status", "CODE=64"]);
    }
}

#[test]
fn top_without_terminal_is_refused_with_a_hint() {
    let refused = asked(&["top"]).expect_code(64).expect_id("top.terminal");
    assert!(refused.err.contains("ranklaunch ps"), "{}", refused.err);
}
