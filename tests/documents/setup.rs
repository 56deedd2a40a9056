//! The set-up script of `make test` and `make demo` on incomplete machines: its installations and
//! messages, and the state after an interruption.
//!
//! `python3`, `apt-get` and `id` are fakes, and their folder is the whole PATH, so nothing is
//! really installed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Has no module unless a folder `modules` is beside it, and makes an environment of itself if
/// `ensurepip` exists in `$STATE`.
const PYTHON: &str = r#"#!/bin/sh
case "$1 $2" in
"- "*) [ -e "$(dirname "$0")/modules" ]; exit ;;
"-c import sys; print(sys.executable)") echo "$0" ;;
"-c import venv, ensurepip") [ -e "$STATE/ensurepip" ]; exit ;;
"-m venv")
    rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; echo made >> "$STATE/log" ;;
"-m pip")
    # torch is there long before pip is done.
    : > "$(dirname "$0")/modules"
    echo "pip" >> "$STATE/log"
    [ ! -e "$STATE/interrupt" ] || exit 1 ;;
*) echo "python3 $*" >> "$STATE/log"; exit 9 ;;
esac
"#;

const APT: &str = r#"#!/bin/sh
echo "apt-get $*" >> "$STATE/log"
[ ! -e "$STATE/no-apt" ] || exit 100
case $1 in install) : > "$STATE/ensurepip" ;; esac
"#;

struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let machine = Machine { folder: tempfile::tempdir().expect("a folder") };
        fs::create_dir(machine.path("bin")).expect("a folder");
        fs::create_dir(machine.path("home")).expect("a folder");
        machine.command("python3", PYTHON);
        machine.command("apt-get", APT);
        machine.command("id", "#!/bin/sh\necho 0\n");
        for tool in ["sh", "dirname", "mkdir", "cp", "mv", "rm", "cmp", "flock"] {
            let found = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(tool));
            let real = found.iter().find(|path| path.exists()).expect("a tool of every system");
            symlink(real, machine.path("bin").join(tool)).expect("a link");
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, name: &str, text: &str) {
        harness::write_program(&self.path("bin").join(name), text);
    }

    fn set(&self, state: &str) {
        fs::write(self.path(state), "").expect("written");
    }

    fn unset(&self, state: &str) {
        fs::remove_file(self.path(state)).expect("it was set");
    }

    fn find(&self) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/find.sh");
        Command::new("/bin/sh")
            .arg(script)
            .args(["torch", "numpy"])
            .env_clear()
            .env("PATH", self.path("bin"))
            .env("HOME", self.path("home"))
            .env("STATE", self.folder.path())
            .output()
            .expect("sh runs")
    }

    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    fn venv(&self) -> String {
        self.path("home/.cache/ranklaunch/venv/bin/python").display().to_string()
    }
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn complete_python_is_used_unchanged() {
    let machine = Machine::new();
    machine.set("bin/modules");
    let found = out(&machine.find());
    assert_eq!(found, machine.path("bin/python3").display().to_string());
    assert_eq!(machine.log(), [""; 0]);
}

#[test]
fn an_environment_is_made_once() {
    let machine = Machine::new();
    machine.set("ensurepip");
    assert_eq!(out(&machine.find()), machine.venv());
    assert_eq!(out(&machine.find()), machine.venv());
    assert_eq!(machine.log(), ["made", "pip"]);
}

#[test]
fn an_interrupted_installation_is_begun_anew() {
    let machine = Machine::new();
    machine.set("ensurepip");
    machine.set("interrupt");
    let output = machine.find();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("hint: "), "{output:?}");
    machine.unset("interrupt");
    assert_eq!(out(&machine.find()), machine.venv());
    assert_eq!(machine.log(), ["made", "pip", "made", "pip"]);
}

#[test]
fn a_missing_venv_module_is_installed() {
    let machine = Machine::new();
    assert_eq!(out(&machine.find()), machine.venv());
    let apt = ["apt-get update -qq", "apt-get install -y -qq python3-venv"];
    assert_eq!(machine.log(), [apt[0], apt[1], "made", "pip"]);
}

#[test]
fn setup_without_installer_names_the_command() {
    let machine = Machine::new();
    machine.set("no-apt");
    let output = machine.find();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("hint: sudo apt-get install python3-venv"), "{said}");
    assert!(output.stdout.is_empty(), "{output:?}");
}
