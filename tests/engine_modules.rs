//! An interpreter without the engine's modules is refused before the start, with the
//! interpreters that have them; whatever Python itself would find is never refused.

#![cfg(target_os = "linux")]

mod common;

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use common::{Ended, Launcher, python};

/// The machine's own Python, which CI images have without torch; here made surely bare.
fn bare(folder: &Path) -> PathBuf {
    let prefix = folder.join("bare");
    let base = std::fs::canonicalize(python()).expect("an interpreter");
    let made = std::process::Command::new(base)
        .args(["-m", "venv", "--without-pip"])
        .arg(&prefix)
        .status()
        .expect("python runs");
    assert!(made.success());
    prefix.join("bin/python")
}

fn module(folder: &Path, name: &str) {
    std::fs::create_dir_all(folder.join(name)).expect("a folder");
    std::fs::write(folder.join(name).join("__init__.py"), "").expect("a file");
}

struct Case {
    folder: tempfile::TempDir,
    bare: PathBuf,
}

impl Case {
    fn new() -> Case {
        let folder = tempfile::tempdir().expect("a folder");
        let bare = bare(folder.path());
        Case { folder, bare }
    }

    fn site(&self) -> PathBuf {
        let lib = self.folder.path().join("bare/lib");
        let inner = std::fs::read_dir(lib).expect("lib").flatten().next().expect("pythonX.Y");
        inner.path().join("site-packages")
    }

    fn asked(&self, what: &str, engine: &str, more: &[&str], env: &[(&str, OsString)]) -> Ended {
        let mut args: Vec<OsString> = vec![what.into(), "--device".into(), "cpu".into()];
        args.extend(["--engine", engine, "--python"].map(OsString::from));
        args.push(self.bare.clone().into());
        args.extend(more.iter().map(OsString::from));
        args.extend(["--", "true", "x"].map(OsString::from));
        let launcher = Launcher::new(args).env("PYTHONNOUSERSITE", "1");
        env.iter().fold(launcher, |launcher, (name, value)| launcher.env(name, value)).run()
    }
}

const WORDS: &str = "has no torch, which the engine torchrun needs";

#[test]
fn without_torch_nothing_starts() {
    let case = Case::new();
    let ended = case.asked("run", "torchrun", &["--stale", "off"], &[]);
    let ended = ended.expect_code(67).expect_nothing_left();
    let first: Vec<&str> = ended.err.lines().take(3).collect();
    let path = case.bare.display().to_string();
    assert!(first[0].contains(&format!("refused: {path} [--python] {WORDS}")), "{first:?}");
    assert!(first[1].contains("--severity python.torch=warn starts anyway"), "{first:?}");
    assert!(first[2].contains("exit code 67 (python.torch)"), "{first:?}");
    // The same is said beforehand, and in Chinese.
    assert_eq!(case.asked("plan", "torchrun", &[], &[]).code, 67);
    let chinese = case.asked("plan", "torchrun", &["--lang", "zh"], &[]);
    assert!((chinese.out + &chinese.err).contains("中没有 torch，而引擎 torchrun 需要它"));
    // Whoever knows better has the last word; engines that need no torch are not asked.
    let more = ["--severity", "python.torch=warn"];
    assert_eq!(case.asked("plan", "torchrun", &more, &[]).code, 0);
    assert_eq!(case.asked("plan", "direct", &[], &[]).code, 0);
    assert_eq!(case.asked("plan", "command", &[], &[]).code, 0);
}

#[test]
fn the_engines_own_module_is_looked_for_as_well() {
    let case = Case::new();
    module(&case.site(), "torch");
    for engine in ["accelerate", "deepspeed"] {
        let ended = case.asked("run", engine, &["--stale", "off"], &[]).expect_code(67);
        let words = format!("has no {engine}, which the engine {engine} needs");
        assert!(ended.err.contains(&words), "{}", ended.err);
        module(&case.site(), engine);
        assert_eq!(case.asked("plan", engine, &[], &[]).code, 0, "the control");
    }
}

#[test]
fn interpreters_that_have_it_are_named() {
    let case = Case::new();
    let real = python().parent().and_then(Path::parent).expect("its prefix").to_owned();
    let job = Launcher::new(["run", "--device", "cpu", "--stale", "off", "--python"])
        .args([&case.bare])
        .args(["--", "true", "x"])
        .env("PYTHONNOUSERSITE", "1")
        .env("PATH", "/nowhere");
    symlink(&real, job.folder().join(".venv")).expect("a link");
    let ended = job.run().expect_code(67);
    assert!(ended.err.contains("/.venv/bin/python has it"), "{}", ended.err);

    // Environments of conda, wherever CONDA_ENVS_DIRS says that they are.
    let envs = case.folder.path().join("envs");
    let one = envs.join("tiny");
    std::fs::create_dir_all(one.join("conda-meta")).expect("a folder");
    symlink(real.join("bin"), one.join("bin")).expect("a link");
    symlink(real.join("lib"), one.join("lib")).expect("a link");
    symlink(real.join("pyvenv.cfg"), one.join("pyvenv.cfg")).expect("a link");
    for name in ["CONDA_ENVS_DIRS", "CONDA_ENVS_PATH"] {
        let env = [(name, envs.clone().into_os_string())];
        let ended = case.asked("run", "torchrun", &["--stale", "off"], &env).expect_code(67);
        let words = format!("--python {}", one.join("bin/python").display());
        assert!(ended.err.contains(&words), "{}", ended.err);
        let found = Launcher::new(["plan", "--device", "cpu", "--conda-env", "tiny", "--"])
            .args(["true", "x"])
            .env(name, &envs)
            .run();
        let all = found.out + &found.err;
        assert!(all.contains(&one.join("bin/python").display().to_string()), "{all}");
    }
}

/// Everything by which Python finds a module where no file of that name lies in a site.
#[test]
fn what_python_would_find_is_not_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let torch = place.path().join("src");
    module(&torch, "torch");
    let source = torch.display();
    let zip = place.path().join("torch.zip");
    let write = "import sys, zipfile\n\
        zipfile.ZipFile(sys.argv[1], 'w').writestr('torch/__init__.py', '')";
    common::run_tool(std::process::Command::new(python()).args(["-c", write]).arg(&zip));
    let finder = format!(
        "import sys, importlib.util\n\
         class Finder:\n\
         \x20   @staticmethod\n\
         \x20   def find_spec(name, path=None, target=None):\n\
         \x20       if name == 'torch':\n\
         \x20           return importlib.util.spec_from_file_location(name, '{source}/torch/__init__.py')\n\
         sys.meta_path.append(Finder)\n"
    );
    let files: [(&str, String); 4] = [
        ("plain.pth", format!("{source}\n")),
        ("zip.pth", format!("{}\n", zip.display())),
        // What setuptools makes of `pip install -e`.
        ("__editable__.pth", "import editable_finder\n".to_owned()),
        ("sitecustomize.py", format!("import sys; sys.path.append('{source}'); print('hello')\n")),
    ];
    for (name, text) in files {
        let case = Case::new();
        std::fs::write(case.site().join(name), text).expect("written");
        std::fs::write(case.site().join("editable_finder.py"), &finder).expect("written");
        let ended = case.asked("plan", "torchrun", &[], &[]);
        assert_eq!(ended.code, 0, "{name}\n{}{}", ended.out, ended.err);
    }
    // By the environment, the launcher's own or the ranks'.
    let case = Case::new();
    let env = [("PYTHONPATH", zip.clone().into_os_string())];
    assert_eq!(case.asked("plan", "torchrun", &[], &env).code, 0);
    let given = format!("PYTHONPATH={source}");
    assert_eq!(case.asked("plan", "torchrun", &["--env", &given], &[]).code, 0);
    // An interpreter that does not answer is no proof either: it is only warned of.
    let mute = case.folder.path().join("mute");
    common::write_program(&mute, "#!/bin/sh\nexit 3\n");
    let ended = Launcher::new(["plan", "--device", "cpu", "--python"])
        .args([&mute])
        .args(["--", "true", "x"])
        .run();
    assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
    // The control for all of them.
    assert_eq!(Case::new().asked("plan", "torchrun", &[], &[]).code, 67);
}
