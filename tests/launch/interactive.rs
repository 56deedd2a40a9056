//! One rank with the terminal: pdb, input() and Ctrl-C as under plain python. Every session is
//! also run with plain python and must look the same.

use std::path::Path;
use std::process::Command;

use harness::pty::{CTRL_C, CTRL_D, CTRL_Z, Terminal};
use harness::{executable, python, run_args, wait_until};

/// Way in which the script is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Python,
    Direct,
    /// Like `Direct`, but chosen without a request, because there is one process and a terminal.
    Implied,
    Torchrun,
}

impl By {
    fn words(self, script: &Path) -> Vec<std::ffi::OsString> {
        let engine = match self {
            By::Python => return vec![python().into(), "-u".into(), script.into()],
            By::Direct | By::Implied => "direct",
            By::Torchrun => "torchrun",
        };
        let mut words = vec![executable().into_os_string()];
        words.extend(run_args(engine, 1));
        if self != By::Implied {
            words.push("--interactive".into());
        }
        words.extend(["--".into(), script.into()]);
        words
    }
}

/// `script` on a terminal, below a shell script that prints its code and then reads a line itself,
/// which needs the foreground back.
struct Session {
    terminal: Terminal,
    folder: tempfile::TempDir,
    token: String,
    modes: nix::sys::termios::Termios,
}

fn session(by: By, script: &str) -> Session {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("script.py");
    std::fs::write(&path, script).expect("the script is written");
    let after = "trap : INT; \"$@\"; code=$?; echo \"code=$code\"; read line; echo \"read=$line\"";
    let token = format!("interactive-{}-{}", std::process::id(), folder.path().display());
    let mut command = Command::new("sh");
    command
        .args(["-c", after, "sh"])
        .args(by.words(&path))
        .current_dir(folder.path())
        .env("JOB_TEST_TOKEN", &token)
        .env("TERM", "dumb")
        .env("LANG", "C.UTF-8");
    for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    let terminal = Terminal::start(command);
    let modes = terminal.modes();
    Session { terminal, folder, token, modes }
}

impl Session {
    fn processes(&self) -> Vec<harness::Process> {
        harness::alive(&self.token, Some(self.folder.path()))
    }

    /// Waits for the script's end. Gives its code and the screen, after checking that foreground,
    /// modes and processes are as before.
    #[track_caller]
    fn ends(mut self) -> (i32, String) {
        self.terminal.shows("code=");
        let code = self.terminal.shows("\r\n").parse().expect("a number");
        let leader = self.terminal.pid();
        assert_eq!(self.terminal.foreground(), leader, "the foreground is the script's again");
        assert_eq!(self.terminal.modes(), self.modes, "the modes are as before");
        self.terminal.types("hello\n");
        self.terminal.shows("read=hello");
        let shown = self.terminal.everything().to_owned();
        assert_eq!(self.terminal.ends(), 0);
        let left = self.processes();
        assert!(left.is_empty(), "left behind: {left:#?}");
        (code, shown)
    }
}

const ALL: [By; 4] = [By::Python, By::Direct, By::Implied, By::Torchrun];

#[test]
fn pdb_steps_prints_and_continues() {
    let script = "import pdb, sys\n\
        pdb.set_trace()\n\
        x = 6 * 7\n\
        print('done', sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty())\n";
    for by in ALL {
        let mut session = session(by, script);
        session.terminal.answers(&[("(Pdb) ", "n\n"), ("(Pdb) ", "p x\n")]);
        if !session.terminal.everything().contains("42") {
            session.terminal.shows("42");
        }
        session.terminal.answers(&[("(Pdb) ", "c\n")]);
        session.terminal.shows("done True True True");
        assert_eq!(session.ends().0, 0, "{by:?}");
    }
}

#[test]
fn input_reads_lines_and_the_end_of_file() {
    let script = "name = input('name? ')\n\
        print('hello', name.upper())\n\
        try:\n\
        \x20   input('more? ')\n\
        except EOFError:\n\
        \x20   print('no more'); raise SystemExit(5)\n";
    for by in ALL {
        let mut session = session(by, script);
        session.terminal.answers(&[("name? ", "ada\n")]);
        session.terminal.shows("hello ADA");
        session.terminal.answers(&[("more? ", CTRL_D)]);
        session.terminal.shows("no more");
        assert_eq!(session.ends().0, 5, "{by:?}");
    }
}

#[test]
fn ctrl_c_is_a_keyboard_interrupt() {
    let script = "import time\n\
        print('sleeping')\n\
        time.sleep(600)\n";
    let mut codes = Vec::new();
    for by in ALL {
        let mut session = session(by, script);
        session.terminal.shows("sleeping");
        session.terminal.types(CTRL_C);
        session.terminal.shows("KeyboardInterrupt");
        let (code, shown) = session.ends();
        // One Ctrl-C causes one interrupt.
        assert_eq!(shown.matches("KeyboardInterrupt").count(), 1, "{by:?}\n{shown}");
        codes.push(code);
    }
    assert_eq!(codes, [130; 4], "plain python first");
}

#[test]
fn ctrl_c_at_the_pdb_prompt_prompts_again() {
    let script = "import pdb\n\
        try:\n\
        \x20   pdb.set_trace(); x = 1\n\
        except KeyboardInterrupt:\n\
        \x20   print('caught')\n\
        input('next? ')\n\
        print('over')\n";
    for by in ALL {
        let mut session = session(by, script);
        session.terminal.shows("(Pdb) ");
        // Python's pdb reports the interrupt and prompts again, every time.
        for _ in 0..2 {
            session.terminal.presses_until(CTRL_C, "KeyboardInterrupt");
            session.terminal.shows("(Pdb) ");
        }
        session.terminal.types("c\n");
        session.terminal.answers(&[("next? ", "\n")]);
        session.terminal.shows("over");
        assert_eq!(session.ends().0, 0, "{by:?}");
    }
}

#[test]
fn rank_owns_the_foreground_and_its_tty() {
    let script = "import os\n\
        print('mine', os.tcgetpgrp(0) == os.getpgrp(), open('/dev/tty').isatty())\n";
    for by in [By::Python, By::Direct] {
        let mut session = session(by, script);
        let shown = session.terminal.shows("mine True True");
        assert_eq!(shown.contains("not captured"), by != By::Python, "{shown}");
        assert_eq!(session.ends().0, 0, "{by:?}");
    }
}

/// Below torchrun the rank is not in the terminal's foreground, so the launcher passes the resize
/// on.
#[test]
fn window_resize_is_noticed() {
    let script = "import os, signal, time\n\
        sizes = []\n\
        note = lambda *_: sizes.append(os.get_terminal_size(0).columns)\n\
        signal.signal(signal.SIGWINCH, note)\n\
        print('READY', flush=True)\n\
        while not sizes: time.sleep(0.02)\n\
        print('columns', sizes[0])\n";
    for by in [By::Python, By::Direct, By::Torchrun] {
        let mut session = session(by, script);
        session.terminal.shows("READY");
        session.terminal.resizes(132, 43);
        session.terminal.shows("columns 132");
        assert_eq!(session.ends().0, 0, "{by:?}");
    }
}

#[test]
fn killed_rank_leaves_the_terminal_restored() {
    let script = "import os, signal, tty\n\
        tty.setraw(0)\n\
        os.kill(os.getpid(), signal.SIGKILL)\n";
    let (code, _) = session(By::Direct, script).ends();
    assert_eq!(code, 137);
}

#[test]
fn killed_agent_or_shim_leaves_the_terminal_restored() {
    let script = "import tty\ntty.setraw(0)\nprint('READY', flush=True)\ninput()\n";
    for victim in ["run", "rank"] {
        let mut session = session(By::Direct, script);
        session.terminal.shows("READY");
        let mut ours: Vec<_> = session.processes()
            .into_iter()
            .filter(|process| {
                matches!(&process.argv[..], [name, role, ..] if name.ends_with("/ranklaunch") && role == victim)
            })
            .collect();
        ours.sort_by_key(|process| process.pid);
        harness::kill(ours.last().expect("the victim is there").pid);
        session.terminal.shows("code=137");
        let terminal = &session.terminal;
        assert_eq!(terminal.foreground(), terminal.pid(), "{victim}");
        assert_eq!(terminal.modes(), session.modes, "{victim}");
        wait_until("the end of all", || {
            let left = session.processes();
            left.iter().all(|process| process.pid == terminal.pid()).then_some(())
        });
    }
}

#[test]
fn shell_can_suspend_and_resume_the_launcher() {
    let script = "n = input('first? ')\nprint('got', n)\nn = input('second? ')\nprint('got', n)\n";
    for by in [By::Python, By::Direct] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("script.py");
        std::fs::write(&path, script).expect("the script is written");
        let mut shell = Command::new("sh");
        shell.args(["-i", "-m"]).current_dir(folder.path());
        shell.env("PS1", "shell> ").env("TERM", "dumb").env_remove("ENV");
        let mut terminal = Terminal::start(shell);
        terminal.shows("shell> ");
        let words: Vec<String> =
            by.words(&path).iter().map(|word| word.to_string_lossy().into_owned()).collect();
        terminal.types(&format!("{}\n", words.join(" ")));
        terminal.shows("first? ");
        terminal.types(CTRL_Z);
        terminal.shows("shell> ");
        terminal.types("echo still $((40 + 2))\n");
        terminal.shows("still 42");
        terminal.types("fg\n");
        // python does not repeat the prompt, but reads the line.
        terminal.shows("fg");
        wait_until("the script in the foreground", || {
            (terminal.foreground() != terminal.pid()).then_some(())
        });
        terminal.types("ada\n");
        terminal.shows("got ada");
        terminal.shows("second? ");
        terminal.types("bob\n");
        terminal.shows("got bob");
        terminal.shows("shell> ");
        terminal.types("echo code $?\n");
        terminal.shows("code 0");
        terminal.types("exit\n");
        assert_eq!(terminal.ends(), 0, "{by:?}");
    }
}

#[test]
fn ctrl_z_spares_a_containers_first_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("script.py");
    std::fs::write(&path, "print('got', input('name? ')); raise SystemExit(6)\n")
        .expect("the script is written");
    let words = By::Implied.words(&path);
    let (launcher, args) = words.split_first().expect("a command");
    let mut command = Command::new(launcher);
    command.args(args).current_dir(folder.path());
    let mut terminal = Terminal::start(command);
    terminal.shows("name? ");
    terminal.types(CTRL_Z);
    terminal.types("ada\n");
    terminal.shows("got ada");
    assert_eq!(terminal.ends(), 6);
}

#[test]
fn closing_the_window_ends_everything() {
    for by in [By::Direct, By::Torchrun] {
        let mut session = session(by, "input('name? ')\n");
        session.terminal.shows("name? ");
        session.terminal.hang_up();
        wait_until("the end of all", || {
            let gone = session.terminal.leader_is_gone();
            (gone && session.processes().is_empty()).then_some(())
        });
    }
}

#[test]
fn several_processes_cannot_share_a_terminal() {
    let mut args = run_args("direct", 2);
    args.extend(["--interactive".into(), "--".into(), "true".into()]);
    let ended = harness::Launcher::new(args).run().expect_code(64);
    assert!(ended.err.contains("nproc_per_node is 2"), "{}", ended.err);
    assert!(ended.err.contains("--nproc-per-node 1"), "{}", ended.err);
}

#[test]
fn without_a_terminal_the_streams_pass_through() {
    let mut args = run_args("direct", 1);
    args.extend(["--interactive".into(), "--".into(), "sh".into(), "-c".into()]);
    args.push("echo out; echo err >&2; exit 3".into());
    let ended = harness::Launcher::new(args).run().expect_code(3).expect_nothing_left();
    assert_eq!(ended.out, "out\n");
    assert!(ended.err.contains("err\n"), "{}", ended.err);
}
