//! An interpreter without the engine's modules is refused before the start, with the names of
//! interpreters that have them. An interpreter that would find them is never refused.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use harness::{Ended, Launcher, python};

/// The machine's own Python, which CI images have without torch; made bare here in any case.
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
    // `plan` gives the same refusal, also in Chinese.
    assert_eq!(case.asked("plan", "torchrun", &[], &[]).code, 67);
    let chinese = case.asked("plan", "torchrun", &["--lang", "zh"], &[]);
    assert!((chinese.out + &chinese.err).contains("中没有 torch，而启动引擎 torchrun 需要它"));
    // The user can override the check; engines that need no torch are not checked.
    let more = ["--severity", "python.torch=warn"];
    assert_eq!(case.asked("plan", "torchrun", &more, &[]).code, 0);
    assert_eq!(case.asked("plan", "direct", &[], &[]).code, 0);
    assert_eq!(case.asked("plan", "command", &[], &[]).code, 0);
}

#[test]
fn engines_own_module_is_required_as_well() {
    let case = Case::new();
    module(&case.site(), "torch");
    for engine in ["accelerate", "deepspeed"] {
        let ended = case.asked("run", engine, &["--stale", "off"], &[]).expect_code(67);
        let ended = ended.expect_id("python.torch");
        assert!(ended.err.contains(&format!(" {engine} ")), "{}", ended.err);
        module(&case.site(), engine);
        assert_eq!(case.asked("plan", engine, &[], &[]).code, 0, "the control");
    }
}

#[test]
fn interpreters_with_the_module_are_named() {
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

    // conda environments are found through CONDA_ENVS_DIRS.
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

/// All ways in which Python finds a module without a file of that name in a site.
#[test]
fn importable_module_is_not_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let torch = place.path().join("src");
    module(&torch, "torch");
    let source = torch.display();
    let zip = place.path().join("torch.zip");
    let write = "import sys, zipfile\n\
        zipfile.ZipFile(sys.argv[1], 'w').writestr('torch/__init__.py', '')";
    harness::run_tool(std::process::Command::new(python()).args(["-c", write]).arg(&zip));
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
        // setuptools writes this for `pip install -e`.
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
    // The environment supplies it, either the launcher's own or the ranks'.
    let case = Case::new();
    let env = [("PYTHONPATH", zip.clone().into_os_string())];
    assert_eq!(case.asked("plan", "torchrun", &[], &env).code, 0);
    let given = format!("PYTHONPATH={source}");
    assert_eq!(case.asked("plan", "torchrun", &["--env", &given], &[]).code, 0);
    // An interpreter that does not answer is no proof either, and causes only a warning.
    let mute = case.folder.path().join("mute");
    harness::write_program(&mute, "#!/bin/sh\nexit 3\n");
    let ended = Launcher::new(["plan", "--device", "cpu", "--python"])
        .args([&mute])
        .args(["--", "true", "x"])
        .run();
    assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
    // The control for all these cases.
    assert_eq!(Case::new().asked("plan", "torchrun", &[], &[]).code, 67);
}

/// Three interpreters of one installation whose packages the test places: the installation itself,
/// an environment of it, and one with `system-site-packages`.
struct Layouts {
    folder: tempfile::TempDir,
    /// `python3.11`
    library: String,
}

impl Layouts {
    fn new() -> Layouts {
        let said = |code: &str| {
            let base = std::fs::canonicalize(python()).expect("an interpreter");
            let output = std::process::Command::new(base).args(["-c", code]).output();
            String::from_utf8(output.expect("python runs").stdout).expect("text").trim().to_owned()
        };
        let stdlib = said("import sysconfig; print(sysconfig.get_path('stdlib'))");
        let binary = said("import sys, os; print(os.path.realpath(sys.executable))");
        let library =
            Path::new(&stdlib).file_name().expect("a name").to_string_lossy().into_owned();
        let folder = tempfile::tempdir().expect("a folder");
        let layouts = Layouts { folder, library };
        // The prefix is the folder with the interpreter's own file and the standard library
        // (Modules/getpath.py).
        let lib = layouts.at("plain/lib").join(&layouts.library);
        std::fs::create_dir_all(lib.join("site-packages")).expect("a folder");
        std::fs::create_dir_all(layouts.at("plain/bin")).expect("a folder");
        for entry in std::fs::read_dir(stdlib).expect("the library").flatten() {
            if entry.file_name() != "site-packages" {
                symlink(entry.path(), lib.join(entry.file_name())).expect("a link");
            }
        }
        let own = layouts.at("plain/bin").join(&layouts.library);
        harness::run_tool(std::process::Command::new("cp").arg(binary).arg(&own));
        symlink(&own, layouts.interpreter("plain")).expect("a link");
        for (name, more) in [("venv", None), ("shared", Some("--system-site-packages"))] {
            let mut make = std::process::Command::new(layouts.interpreter("plain"));
            make.args(["-m", "venv", "--without-pip"]).args(more).arg(layouts.at(name));
            harness::run_tool(&mut make);
        }
        layouts
    }

    fn at(&self, place: &str) -> PathBuf {
        self.folder.path().join(place)
    }

    fn interpreter(&self, name: &str) -> PathBuf {
        self.at(name).join("bin/python")
    }

    /// Replaces `SRC` by a folder outside that has a torch, and `LIB` by `pythonX.Y`.
    fn filled(&self, text: &str) -> String {
        let source = self.at("src").to_string_lossy().into_owned();
        text.replace("SRC", &source).replace("LIB", &self.library)
    }
}

type Layout =
    (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str], bool);

/// Results of Python's own rules (Lib/site.py) for each layout.
#[rustfmt::skip]
const LAYOUTS: &[Layout] = &[
    // interpreter, files and their text, variables or `--env` of them, whether torch is found
    ("venv",   &[], &[], false),
    ("venv",   &[("venv/lib/LIB/site-packages/torch/__init__.py", "")], &[], true),
    ("venv",   &[("venv/lib/LIB/site-packages/torch.py", "")], &[], true),
    ("venv",   &[("venv/lib/LIB/site-packages/torch/version.txt", "")], &[], true),
    // The user's site belongs to the installation, and to environments that share its packages.
    ("plain",  &[("user/lib/LIB/site-packages/torch/__init__.py", "")], &[], true),
    ("plain",  &[("user/lib/LIB/site-packages/torch/__init__.py", "")], &["PYTHONNOUSERSITE=1"], false),
    ("plain",  &[("user/lib/LIB/site-packages/torch/__init__.py", "")], &["--env", "PYTHONNOUSERSITE=1"], false),
    ("plain",  &[("user/lib/python2.7/site-packages/torch/__init__.py", "")], &[], false),
    ("venv",   &[("user/lib/LIB/site-packages/torch/__init__.py", "")], &[], false),
    ("shared", &[("user/lib/LIB/site-packages/torch/__init__.py", "")], &[], true),
    ("shared", &[("user/lib/LIB/site-packages/torch/__init__.py", "")], &["PYTHONNOUSERSITE=1"], false),
    // The installation's own packages belong to both as well.
    ("plain",  &[("plain/lib/LIB/site-packages/torch/__init__.py", "")], &["PYTHONNOUSERSITE=1"], true),
    ("venv",   &[("plain/lib/LIB/site-packages/torch/__init__.py", "")], &[], false),
    ("shared", &[("plain/lib/LIB/site-packages/torch/__init__.py", "")], &["PYTHONNOUSERSITE=1"], true),
    // Editable installs: any .pth of a site is read, and only pip reads an egg-link.
    ("venv",   &[("venv/lib/LIB/site-packages/easy-install.pth", "SRC\n"), ("venv/lib/LIB/site-packages/torch.egg-link", "SRC\n.")], &[], true),
    ("venv",   &[("venv/lib/LIB/site-packages/torch.egg-link", "SRC\n.")], &[], false),
    ("venv",   &[("venv/lib/LIB/site-packages/__editable__.torch.pth", "SRC")], &[], true),
    ("venv",   &[("venv/lib/LIB/site-packages/torch.pth", "# a comment\n\n/nowhere\n../../../../src\n")], &[], true),
    ("venv",   &[("venv/lib/LIB/site-packages/torch.pth", "#SRC\n")], &[], false),
    ("venv",   &[("venv/lib/LIB/site-packages/torch.pth", " SRC\n")], &[], false),
    ("venv",   &[("venv/lib/LIB/site-packages/torch.pth", "SRC \t\n")], &[], true),
    ("venv",   &[("venv/lib/LIB/site-packages/torch.pth.bak", "SRC\n")], &[], false),
    ("venv",   &[("user/lib/LIB/site-packages/torch.pth", "SRC\n")], &[], false),
    ("shared", &[("user/lib/LIB/site-packages/torch.pth", "SRC\n")], &[], true),
    ("shared", &[("user/lib/LIB/site-packages/torch.pth", "SRC\n")], &["PYTHONNOUSERSITE=1"], false),
    ("venv",   &[("plain/lib/LIB/site-packages/torch.pth", "SRC\n")], &[], false),
    ("shared", &[("plain/lib/LIB/site-packages/torch.pth", "SRC\n")], &[], true),
    // PYTHONPATH adds folders and no sites, so a .pth there is an ordinary file.
    ("venv",   &[], &["PYTHONPATH=SRC"], true),
    ("venv",   &[], &["PYTHONPATH=:/nowhere:SRC"], true),
    ("venv",   &[], &["--env", "PYTHONPATH=SRC"], true),
    ("venv",   &[], &["PYTHONPATH=SRC", "--env", "PYTHONPATH=/nowhere"], false),
    ("venv",   &[("path/torch.pth", "SRC\n")], &["PYTHONPATH=SRC/../path"], false),
];

#[test]
fn interpreter_and_launcher_agree_on_importable_modules() {
    let layouts = Layouts::new();
    for (name, files, given, expected) in LAYOUTS {
        let _ = std::fs::remove_dir_all(layouts.at("user"));
        module(&layouts.at("src"), "torch");
        let files: Vec<_> =
            files.iter().map(|(file, text)| (layouts.at(&layouts.filled(file)), text)).collect();
        for (file, text) in &files {
            std::fs::create_dir_all(file.parent().expect("below")).expect("a folder");
            std::fs::write(file, layouts.filled(text)).expect("written");
        }
        let given: Vec<String> = given.iter().map(|word| layouts.filled(word)).collect();
        let user = layouts.at("user").to_string_lossy().into_owned();
        let mut environment = vec![("PYTHONUSERBASE", user.as_str())];
        let mut more = Vec::new();
        let mut words = given.iter().map(String::as_str);
        let mut ranks = Vec::new();
        while let Some(word) = words.next() {
            let (is_flag, pair) = match word {
                "--env" => (true, words.next().expect("a pair")),
                pair => (false, pair),
            };
            let (variable, value) = pair.split_once('=').expect("NAME=value");
            if is_flag {
                more.extend(["--env", pair]);
                ranks.push((variable, value));
            } else {
                environment.push((variable, value));
            }
        }
        let question =
            "import importlib.util; print(importlib.util.find_spec('torch') is not None)";
        let nowhere = tempfile::tempdir().expect("a folder");
        let answer = std::process::Command::new(layouts.interpreter(name))
            .args(["-c", question])
            .env_remove("PYTHONPATH")
            .env_remove("PYTHONNOUSERSITE")
            .envs(environment.iter().chain(&ranks).copied())
            .current_dir(nowhere.path())
            .output()
            .expect("it runs");
        let what = format!("{name} {files:?} {given:?}");
        let answer = String::from_utf8_lossy(&answer.stdout).trim() == "True";
        assert_eq!(answer, *expected, "the interpreter itself: {what}");
        let launcher = Launcher::new(["plan", "--device", "cpu", "--python"])
            .args([layouts.interpreter(name)])
            .args(&more)
            .args(["--", "true", "x"]);
        let launcher = environment.iter().fold(launcher, |all, (name, value)| all.env(name, value));
        let ended = launcher.run();
        let code = if *expected { 0 } else { 67 };
        assert_eq!(ended.code, code, "the launcher: {what}\n{}{}", ended.out, ended.err);
        for (file, _) in &files {
            std::fs::remove_file(file).expect("it was there");
            // A package has its own folder.
            if file.parent().is_some_and(|folder| folder.ends_with("torch")) {
                std::fs::remove_dir_all(file.parent().expect("below")).expect("it was there");
            }
        }
    }
}
