//! Read-ahead of the modules that a warm start imports: in order, once per node, only while no rank runs, never
//! beside another job, and within a bound. Nothing waits for a mount that does not answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use harness::slow_mount::{Read, SlowMount, alone};
use harness::{Ended, Launcher, program, python, root, run_args, wait_until};
use nix::sys::signal::Signal;

/// Duration of a read: long compared with the time between two requests of a process, so that simultaneous requests
/// are seen.
const TAKES: Duration = Duration::from_millis(20);
/// Simultaneous reads of an import without read-ahead: the file's own, and those of the kernel's read-ahead behind
/// it.
const ALONE: usize = 4;

/// An environment whose site-packages are on a slow mount.
struct Slow {
    venv: tempfile::TempDir,
    packages: tempfile::TempDir,
}

impl Slow {
    /// Packages with the given number of modules each. The package's own module imports all of them, or, without the
    /// flag, none because a variable is missing.
    fn new(packages: &[(&str, usize, bool)]) -> Slow {
        let (venv, folder) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let mut makes = Command::new(python());
        makes.args(["-m", "venv", "--without-pip"]).arg(venv.path());
        assert!(makes.status().expect("it starts").success());
        for (name, modules, are_imported) in packages {
            let package = folder.path().join(name);
            std::fs::create_dir(&package).expect("a folder");
            let mut text = String::from("import os\n");
            if !are_imported {
                text.push_str("if 'NEVER' in os.environ:\n    pass\n");
            }
            for number in 0..*modules {
                let indent = if *are_imported { "" } else { "    " };
                text.extend([indent, "import ", name, ".m", &number.to_string(), "\n"]);
                let module = package.join(format!("m{number}.py"));
                std::fs::write(module, format!("VALUE = {number}\n")).expect("written");
            }
            std::fs::write(package.join("__init__.py"), text).expect("written");
        }
        let slow = Slow { venv, packages: folder };
        let mut compiles = Command::new(slow.python());
        compiles.args(["-m", "compileall", "-q"]).arg(slow.packages.path());
        assert!(compiles.status().expect("it starts").success());
        slow
    }

    fn python(&self) -> PathBuf {
        self.venv.path().join("bin/python")
    }

    /// Mounts the packages, with none of their files in the page cache.
    fn mount(&self, takes: Duration) -> SlowMount {
        let lib = self.venv.path().join("lib");
        let version =
            std::fs::read_dir(&lib).expect("a folder").next().expect("one").expect("read");
        let at = version.path().join("site-packages");
        SlowMount::new(self.packages.path(), &at, takes).expect("a mount")
    }

    fn job(&self, nproc: u32, warm: &str, text: &str) -> Launcher {
        let launcher = Launcher::new(run_args("direct", nproc));
        let script = launcher.folder().join("job.py");
        std::fs::write(&script, text).expect("written");
        let python = self.python();
        launcher
            .args([Path::new("--python"), &python, Path::new("--warm"), Path::new(warm)])
            .args([Path::new("--"), &script])
    }

    /// Runs ahead.py alone, without anything that ends it.
    fn reads_ahead(&self, module: &str, bound: u64) -> String {
        let report = self.venv.path().join("ahead");
        let files = ["bytecode.py", "shared_object.py", "ahead.py"];
        let files = files.map(|name| root().join("src/supervise/warm").join(name));
        let text = format!(
            "import sys; given = {{'__name__': 'ahead', 'ROOTS': [{module:?}], \
             'PATH': sys.path[1:], 'BOUND': {bound}, 'REPORT': {report:?}}}\n\
             for name in {files:?}: exec(compile(open(name).read(), name, 'exec'), given)"
        );
        let status = Command::new(self.python()).args(["-c", &text]).status();
        assert!(status.expect("it starts").success());
        std::fs::read_to_string(report).expect("a report")
    }
}

fn at_once(reads: &[Read]) -> usize {
    reads.iter().map(|read| read.at_once).max().unwrap_or(0)
}

/// The reason why the read-ahead ended or did not begin, from the journal.
fn why(ended: &Ended) -> String {
    let journal =
        std::fs::read_to_string(ended.node_folder(0).join("agent.jsonl")).expect("a journal");
    let said = journal.lines().find(|line| line.contains("read ahead"));
    said.unwrap_or_else(|| panic!("{journal}")).to_owned()
}

const IMPORTS: &str =
    "import first\nimport second\nimport time\nprint('began', time.time(), flush=True)\n";

#[test]
fn imported_modules_are_read_ahead_once_in_order() {
    let slow = Slow::new(&[("first", 150, true), ("second", 150, true)]);
    alone(|| {
        let mount = slow.mount(TAKES);
        let cold = slow.job(2, "required", IMPORTS).run().expect_code(0).expect_nothing_left();
        let reads = mount.reads();
        assert!(at_once(&reads) >= 8, "{} {}", at_once(&reads), why(&cold));
        let mut times: BTreeMap<(&Path, u64), usize> = BTreeMap::new();
        for read in &reads {
            *times.entry((&read.path, read.offset)).or_default() += 1;
        }
        assert!(times.values().all(|times| *times == 1), "{times:?}");
        assert!(times.len() >= 300, "{}", times.len());
        let median = |package: &str| {
            let of: Vec<usize> =
                (0..reads.len()).filter(|at| reads[*at].path.starts_with(package)).collect();
            of[of.len() / 2]
        };
        assert!(median("first") < median("second"), "{} {}", median("first"), median("second"));

        // All files are in the page cache.
        let again = slow.job(2, "required", IMPORTS).run().expect_code(0).expect_nothing_left();
        assert_eq!(mount.reads().len(), reads.len());
        assert!(why(&again).contains("the page cache had it"), "{}", why(&again));
        drop(mount);

        // An import without read-ahead reads one file after the other.
        let mount = slow.mount(TAKES);
        slow.job(1, "off", IMPORTS).run().expect_code(0);
        let reads = mount.reads();
        assert!(reads.len() >= 300 && at_once(&reads) <= ALONE, "{}", at_once(&reads));
    });
}

#[test]
fn readahead_ends_at_first_rank_or_at_bound() {
    const MODULES: usize = 1500;
    let slow = Slow::new(&[("wide", MODULES, false)]);
    let of_modules = |mount: &SlowMount| {
        mount.reads().iter().filter(|read| !read.path.ends_with("__init__.py")).count()
    };
    alone(|| {
        let takes = Duration::from_millis(100);
        let mount = slow.mount(takes);
        let text =
            "import wide\nimport time\nprint('began', time.time(), flush=True)\ntime.sleep(2)\n";
        let ended = slow.job(1, "required", text).run().expect_code(0).expect_nothing_left();
        let began = ended.out.split("began ").nth(1).and_then(|rest| rest.trim().parse().ok());
        let began = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(began.expect("a time"));
        let late = |read: &&Read| read.asked > began + Duration::from_secs(1);
        assert_eq!(mount.reads().iter().find(late), None);
        assert!(of_modules(&mount) < MODULES, "{}", of_modules(&mount));
        assert!(why(&ended).contains("ended by us"), "{}", why(&ended));
        drop(mount);

        // Without an end from outside, everything is read, or as much as the bound allows.
        let mount = slow.mount(TAKES);
        let said = slow.reads_ahead("wide", 1 << 30);
        assert!(said.ends_with(" done"), "{said}");
        assert!(of_modules(&mount) >= MODULES, "{}", of_modules(&mount));
        drop(mount);
        let mount = slow.mount(TAKES);
        let bound = 100_000;
        let said = slow.reads_ahead("wide", bound);
        assert!(said.ends_with(" bound"), "{said}");
        // The bound may be exceeded by whole pages and by one read under way per thread.
        let read: u64 = mount.reads().iter().map(|read| read.size).sum();
        assert!(read <= bound + 33 * 4096 && of_modules(&mount) > 0, "{read}");
    });
}

#[test]
fn unresponsive_mount_does_not_delay_the_end() {
    let slow = Slow::new(&[("first", 3, true), ("second", 3, true)]);
    alone(|| {
        let mount = slow.mount(Duration::MAX);
        let running = slow.job(1, "auto", IMPORTS).start();
        wait_until("a read without an answer", || (mount.waiting() > 0).then_some(()));
        running.signal(Signal::SIGTERM);
        running.ends_within(Duration::from_secs(30)).expect_code(143).expect_nothing_left();
    });
}

#[test]
fn nothing_is_read_ahead_beside_a_running_job() {
    let slow = Slow::new(&[("first", 50, true), ("second", 50, true)]);
    alone(|| {
        let mount = slow.mount(TAKES);
        let waits = "import time\nprint('runs', flush=True)\ntime.sleep(600)\n";
        let mut other = slow.job(1, "off", waits).start();
        other.says("runs", 1);
        let ended = slow.job(1, "required", IMPORTS).run().expect_code(0);
        assert!(why(&ended).contains("another job runs on this node"), "{}", why(&ended));
        let reads = mount.reads();
        assert!(reads.len() >= 100 && at_once(&reads) <= ALONE, "{}", at_once(&reads));
        other.signal(Signal::SIGTERM);
        other.wait().expect_nothing_left();
    });
}

#[test]
fn imports_of_a_module_are_in_its_bytecode() {
    let mut reads = Command::new(python());
    reads.arg(program("imports.py")).arg(root().join("src/supervise/warm/bytecode.py"));
    let output = reads.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
