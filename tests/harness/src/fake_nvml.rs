//! The fake `libnvidia-ml.so.1` of tests/fake-nvml, compiled once per test program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// One library that behaves by its settings; several can be used at once.
#[derive(Debug)]
pub struct FakeNvml {
    folder: tempfile::TempDir,
}

impl FakeNvml {
    /// `settings` are the names without `FAKE_NVML_` and their values.
    pub fn new(settings: &[(&str, &str)]) -> FakeNvml {
        static BUILT: OnceLock<PathBuf> = OnceLock::new();
        FakeNvml::from(BUILT.get_or_init(|| compile("whole", &[])), settings)
    }

    /// A library like that of drivers before 510: no second memory call, no MIG, no fields, no
    /// fabric, no health, no events.
    pub fn of_old_driver(settings: &[(&str, &str)]) -> FakeNvml {
        static BUILT: OnceLock<PathBuf> = OnceLock::new();
        FakeNvml::from(BUILT.get_or_init(|| compile("old", &["-DOLD_DRIVER"])), settings)
    }

    /// A file of the right name without the entry point.
    pub fn without_entry_point() -> FakeNvml {
        static BUILT: OnceLock<PathBuf> = OnceLock::new();
        FakeNvml::from(BUILT.get_or_init(|| compile("no-init", &["-DNO_INIT"])), &[])
    }

    /// A file that is no library.
    pub fn damaged() -> FakeNvml {
        let fake = FakeNvml::without_entry_point();
        std::fs::remove_file(fake.library()).expect("it is there");
        std::fs::write(fake.library(), [0; 100]).expect("a file");
        fake
    }

    fn from(built: &Path, settings: &[(&str, &str)]) -> FakeNvml {
        let folder = tempfile::tempdir().expect("a folder");
        // The real file's name carries the version; the library is opened by its link.
        let file = folder.path().join("libnvidia-ml.so.570.86.15");
        std::fs::copy(built, &file).expect("the library is copied");
        let library = folder.path().join("libnvidia-ml.so.1");
        std::os::unix::fs::symlink(&file, &library).expect("a link");
        let fake = FakeNvml { folder };
        fake.play(settings);
        fake
    }

    /// Sets other settings for processes that open the library from now on.
    pub fn play(&self, settings: &[(&str, &str)]) {
        let lines: Vec<String> =
            settings.iter().map(|(name, value)| format!("FAKE_NVML_{name}={value}\n")).collect();
        std::fs::write(self.folder.path().join("libnvidia-ml.so.1.conf"), lines.concat())
            .expect("the settings are written");
    }

    pub fn library(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1")
    }

    /// A line `INDEX XID` appended to this file makes that GPU report that Xid.
    pub fn events(&self) -> PathBuf {
        self.folder.path().join("libnvidia-ml.so.1.events")
    }
}

/// A library for LD_PRELOAD that prints in every process.
pub fn preload() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| compile_source("preload.c", "preload", &[])).clone()
}

fn compile(name: &str, flags: &[&str]) -> PathBuf {
    compile_source("nvml.c", name, flags)
}

fn compile_source(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let source = crate::root().join("tests/fake-nvml").join(source);
    let output = crate::built().join(format!("fake-nvml-{name}-{}.so", std::process::id()));
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
        .arg(&output)
        .args(flags)
        .arg(source)
        .arg("-ldl")
        .status()
        .expect("cc runs");
    assert!(status.success(), "the fake library does not compile");
    output
}
