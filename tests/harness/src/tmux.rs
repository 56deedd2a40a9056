//! A real terminal emulator: the screen that a user sees after all sequences.
//!
//! A separate tmux server without configuration, which ends with the test.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use crate::wait_until;

#[derive(Debug)]
pub struct Tmux {
    folder: tempfile::TempDir,
}

impl Tmux {
    /// `None` if there is no tmux.
    pub fn start(columns: u16, rows: u16, command: &Command) -> Option<Tmux> {
        let folder = tempfile::tempdir().unwrap();
        let options = "set -g remain-on-exit on\nset -g status off\nset -g escape-time 0\n\
            set -g remain-on-exit-format ''\nset -g default-terminal screen-256color\n";
        std::fs::write(folder.path().join("conf"), options).unwrap();
        let tmux = Tmux { folder };
        let size = [columns.to_string(), rows.to_string()];
        let mut words: Vec<OsString> =
            ["new-session", "-d", "-x", &size[0], "-y", &size[1]].map(OsString::from).to_vec();
        if let Some(place) = command.get_current_dir() {
            words.extend(["-c".into(), place.into()]);
        }
        // tmux does not always know how a command ended, so a shell around it writes the code down.
        words
            .extend(["--", "sh", "-c", "trap : INT; \"$@\"; echo $? > \"$0\""].map(OsString::from));
        words.push(tmux.code().into());
        // The command gets nothing of this test's own environment.
        words.extend(["env", "-i", "TERM=screen-256color"].map(OsString::from));
        for (name, value) in command.get_envs() {
            let mut pair = name.to_owned();
            pair.push("=");
            pair.push(value.unwrap_or_default());
            words.push(pair);
        }
        words.push(command.get_program().into());
        words.extend(command.get_args().map(OsString::from));
        let output = tmux.command().args(words).output().ok()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "tmux: {said}");
        Some(tmux)
    }

    fn code(&self) -> PathBuf {
        self.folder.path().join("code")
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command.env_remove("TMUX").env("LC_ALL", "C.UTF-8").arg("-u");
        command.arg("-S").arg(self.folder.path().join("socket"));
        command.arg("-f").arg(self.folder.path().join("conf"));
        command
    }

    #[track_caller]
    fn asks(&self, words: &[&str]) -> String {
        let output = self.command().args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{words:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The non-empty rows of the window.
    #[track_caller]
    pub fn screen(&self) -> Vec<String> {
        rows(&self.asks(&["capture-pane", "-p"]))
    }

    /// The same with all rows that have scrolled away.
    #[track_caller]
    pub fn history(&self) -> Vec<String> {
        rows(&self.asks(&["capture-pane", "-p", "-S", "-"]))
    }

    /// The rows of the window with their sequences of colours.
    #[track_caller]
    pub fn coloured(&self) -> Vec<String> {
        rows(&self.asks(&["capture-pane", "-p", "-e"]))
    }

    /// Modes that a program may have left changed: 1 if the cursor is visible and rows wrap, 0 if
    /// the screen is the usual one and neither keys nor mouse have another meaning.
    #[track_caller]
    pub fn modes(&self) -> String {
        let names = [
            "cursor_flag",
            "wrap_flag",
            "alternate_on",
            "insert_flag",
            "origin_flag",
            "keypad_flag",
            "keypad_cursor_flag",
            "mouse_any_flag",
        ];
        let format = names.map(|name| format!("{name}=#{{{name}}}")).join(" ");
        self.asks(&["display-message", "-p", &format]).trim().to_owned()
    }

    /// Waits until the window has a row for which this holds, and gives the row.
    #[track_caller]
    pub fn shows(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let found = || self.screen().into_iter().find(|row| is_it(row));
        let deadline = std::time::Instant::now() + crate::TIMEOUT;
        loop {
            match found() {
                Some(row) => return row,
                None if std::time::Instant::now() > deadline => {
                    panic!("waited for {what}; the screen:\n{}", self.screen().join("\n"))
                }
                None => std::thread::sleep(std::time::Duration::from_millis(50)),
            }
        }
    }

    /// Presses keys by tmux's names: `C-c`, `C-z`, `Enter`, or text.
    #[track_caller]
    pub fn presses(&self, keys: &[&str]) {
        self.asks(&[&["send-keys"], keys].concat());
    }

    #[track_caller]
    pub fn resizes(&self, columns: u16, rows: u16) {
        let size = [columns.to_string(), rows.to_string()];
        self.asks(&["resize-window", "-x", &size[0], "-y", &size[1]]);
    }

    /// Waits for the end of the command and gives its exit code.
    #[track_caller]
    pub fn ends(&self) -> i32 {
        wait_until("the end of the command in tmux", || {
            let code = std::fs::read_to_string(self.code()).ok()?;
            code.strip_suffix('\n')?.parse().ok()
        })
    }

    /// The process of the command.
    #[track_caller]
    pub fn pid(&self) -> i32 {
        let shell = self.asks(&["display-message", "-p", "#{pane_pid}"]);
        let children = format!("/proc/{0}/task/{0}/children", shell.trim());
        let children = std::fs::read_to_string(children).unwrap();
        children.split_whitespace().next().unwrap().parse().unwrap()
    }
}

fn rows(captured: &str) -> Vec<String> {
    captured.lines().map(str::trim_end).filter(|row| !row.is_empty()).map(str::to_owned).collect()
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.command().arg("kill-server").output();
    }
}
