//! Imports of the warmed interpreter, conditions that prevent a fork, and state that a rank owns although it was
//! imported before.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::binding::{NAMESPACE, TWO_NODES, two_cpus};
use harness::{Ended, Launcher, executable, python, run_args, wait_until};

/// Runs a program of this text, and gives the launcher's end.
fn ran(text: &str, more: &[&str], environment: &[(&str, &str)]) -> Ended {
    let launcher = Launcher::new(run_args("direct", 1)).with_torch();
    let script = launcher.folder().join("asked.py");
    std::fs::write(&script, text).expect("written");
    let mut arguments: Vec<OsString> = more.iter().map(OsString::from).collect();
    arguments.extend(["--".into(), script.into_os_string()]);
    let launcher = launcher.args(arguments);
    environment.iter().fold(launcher, |launcher, (name, value)| launcher.env(name, value)).run()
}

/// The program, the environment, and the expected message.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

const TELLS: &str = "\nprint('forked' if 'RANKLAUNCH_WARM_LISTEN' in open('/proc/self/environ').read() else 'alone')\n";

#[test]
fn warm_start_steps_aside_and_says_why() {
    let customized = tempfile::tempdir().expect("a folder");
    std::fs::write(customized.path().join("sitecustomize.py"), "import os\n").expect("written");
    let customized = customized.path().display().to_string();
    // A folder of this name without __init__.py changes nothing.
    let harmless = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(harmless.path().join("usercustomize")).expect("a folder");
    let harmless = harmless.path().display().to_string();
    let preload: PathBuf = "/nowhere/libnone.so".into();
    let preload = preload.display().to_string();
    let cases: [Case<'_>; 10] = [
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch", &[], ""),
        ("print(1)\nimport json", &[], "nothing is imported before"),
        ("", &[], "(print() is called)"),
        ("import json", &[("PYTHONPATH", &customized)], "sitecustomize.py changes the interpreter"),
        ("import json", &[("PYTHONPATH", &harmless)], ""),
        ("import json", &[("LD_PRELOAD", &preload)], "LD_PRELOAD"),
        ("import json", &[("PYTHONSAFEPATH", "")], ""),
        (
            "import json",
            &[("PYTHONTRACEMALLOC", "1")],
            "the interpreter runs with PYTHONTRACEMALLOC",
        ),
        ("import json", &[("PYTHONPROFILEIMPORTTIME", "1")], "PYTHONPROFILEIMPORTTIME"),
        ("import this_is_no_module", &[], "nothing is imported before"),
    ];
    for (text, environment, said) in cases {
        let ended = ran(&format!("{text}{TELLS}"), &["--warm", "auto"], environment);
        let is_alone = ended.out.contains("alone");
        if said.is_empty() {
            assert!(ended.out.contains("forked"), "{text} {} {}", ended.out, ended.err);
            continue;
        }
        assert!(is_alone || text.contains("no_module"), "{text} {}", ended.out);
        assert!(ended.err.contains("no warm start: "), "{text} {}", ended.err);
        assert!(ended.err.contains(said), "{text} {}", ended.err);
        // The same with a required warm start: nothing has begun.
        let ended = ran(&format!("{text}{TELLS}"), &["--warm", "required"], environment);
        let ended = ended.expect_id("warm.required");
        assert!(!ended.out.contains("alone"), "{}", ended.out);
    }
}

#[test]
fn plan_lists_the_imports_and_their_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("asked.py");
    std::fs::write(&script, "import json, logging\nfrom os import path\nmain()\n")
        .expect("written");
    let planned = |more: &[&str]| {
        let mut args = run_args("direct", 1);
        args[0] = "plan".into();
        args.extend(more.iter().map(Into::into));
        args.extend(["--".into(), script.clone().into_os_string()]);
        Launcher::new(args).with_torch().run().expect_code(0).out
    };
    let line = format!("json logging os:path; up to {}:3 (main() is called)", script.display());
    let said = planned(&["--warm", "auto"]);
    assert!(said.contains(&line), "{said}");
    assert!(!planned(&[]).contains("warm start"));
    let changed = |modules: &[&str]| {
        let modules = modules.iter().flat_map(|module| ["--warm-modules", module]);
        planned(&["--warm", "auto"].into_iter().chain(modules).collect::<Vec<_>>())
    };
    let line = line.replace("json logging os:path", "json os decimal");
    let said = changed(&["-logging", "-os.path", "decimal"]);
    assert!(said.contains(&line), "{said}");
    for (module, why) in [
        ("nowhere", "nowhere of --warm-modules is no installed module"),
        ("json.nowhere", "json.nowhere of --warm-modules is no installed module"),
        ("ray.data", "ray.data does not work in a forked process"),
    ] {
        let said = changed(&[module]);
        assert!(said.contains(why), "{said}");
    }
}

/// Prints the modules that the interpreter was asked to import.
const LISTS: &str = "\nfor entry in open('/proc/self/environ').read().split(chr(0)):\n    if entry.startswith('RANKLAUNCH_WARM_IMPORTS='): print(entry)\n";

/// Modules that the user names are imported, whatever the program does before its own import of them. Modules that
/// are left out are imported by each rank, even those that would end the list.
#[test]
fn the_user_adds_modules_and_leaves_some_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let profile = folder.path().join("job.toml");
    std::fs::write(&profile, "[warm]\nmodules = ['decimal', '-no_module']\n").expect("written");
    let profile = profile.display().to_string();
    let required = ["--warm", "required"];
    let text = format!("import os\nimport no_module\nimport json\n{LISTS}");
    let ended = ran(&text, &[&required[..], &["--profile", &profile]].concat(), &[]);
    assert!(ended.err.contains("No module named 'no_module'"), "{}", ended.err);
    assert!(!ended.err.contains("no warm start"), "{}", ended.err);
    let text = text.replace("import no_module\n", "os.getpid()\n");
    let ended = ran(&text, &[&required[..], &["--profile", &profile]].concat(), &[]);
    assert!(ended.expect_code(0).out.contains("=os decimal"));
    let ended = ran(&text, &required, &[]).expect_code(0);
    assert!(!ended.out.contains("decimal"), "{}", ended.out);
}

/// An environment with modules of its own, which need no torch.
pub(super) fn environment(modules: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut make = Command::new(python());
    make.args(["-m", "venv", "--without-pip"]).arg(folder.path());
    assert!(make.status().expect("it starts").success());
    let lib = folder.path().join("lib");
    let version = std::fs::read_dir(&lib).expect("a folder").next().expect("one").expect("read");
    for (name, text) in modules {
        let file = version.path().join("site-packages").join(format!("{name}.py"));
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
        std::fs::write(file, text).expect("written");
    }
    folder
}

/// Modules, the action of each at its import, and the expected message.
const FAULTS: [(&str, &str, &str); 13] = [
    (
        "threaded",
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
        "what was imported has started 1 threads",
    ),
    (
        "connected",
        "import socket\nKEPT = socket.socket()\n",
        "what was imported has opened socket:",
    ),
    (
        "device",
        "import os\nKEPT = [os.pipe(), open('/dev/zero')]\n",
        "what was imported has opened /dev/zero",
    ),
    (
        "shares",
        "import mmap\nKEPT = mmap.mmap(-1, 4096)\n",
        "what was imported has opened /dev/zero",
    ),
    (
        "locks",
        "import fcntl, os\nKEPT = open(__file__)\n\
         try: fcntl.flock(KEPT, fcntl.LOCK_EX | fcntl.LOCK_NB)\nexcept OSError: pass\n",
        "what was imported holds a lock on ",
    ),
    (
        "makes",
        "import atexit, shutil, tempfile\nKEPT = tempfile.mkdtemp(prefix='made-')\n\
         atexit.register(shutil.rmtree, KEPT)\n",
        "what was imported has made ",
    ),
    (
        "starts",
        "import subprocess\nKEPT = subprocess.Popen(['sleep', '1000'])\n",
        "has started a process",
    ),
    (
        "reads",
        "import os\nRANK = int(os.environ.get('RANK', -1))\n",
        "has read RANK, of which each rank",
    ),
    ("traces", "import sys\nsys.settrace(lambda *of: None)\n", "a tracer or profiler is on"),
    (
        "asks",
        "try: import mine\nexcept ImportError: pass\n",
        "asks for mine, which is in the folder",
    ),
    (
        "puts",
        "import sys\nsys.path.insert(0, '/nowhere')\n",
        "has put a folder before those of sys.path",
    ),
    ("broken", "import nowhere", "(import of broken)"),
    (
        "dies",
        "import os\nif 'LOCAL_RANK' not in os.environ: os.kill(os.getpid(), 9)\n",
        "the warmed interpreter has ended",
    ),
];

/// A later run knows the faults that an earlier run has found: the same program forks without the module at fault,
/// even with a required warm start. Another program, and a run that names the module, do not use that knowledge.
#[test]
fn later_run_does_not_preload_a_faulty_module() {
    let venv = environment(&FAULTS.map(|(name, text, _)| (name, text)));
    let folder = tempfile::tempdir().expect("a folder");
    let interpreter = venv.path().join("bin/python").display().to_string();
    let cache = folder.path().join("cache").display().to_string();
    let run = |script: &str, more: &[&str]| {
        let script = folder.path().join(script);
        let launcher = Launcher::new(run_args("direct", 1)).args(["--python", &interpreter]);
        let launcher = launcher.env("XDG_CACHE_HOME", &cache).args(more);
        launcher.args([Path::new("--"), &script]).run()
    };
    std::fs::write(folder.path().join("mine.py"), "").expect("written");
    for (module, _, why) in FAULTS {
        let script = format!("{module}_job.py");
        let import = format!(
            "import stat\ntry:\n    import {module}\nexcept ImportError:\n    pass\nimport json\n"
        );
        std::fs::write(folder.path().join(&script), format!("{import}{TELLS}")).expect("written");
        let first = run(&script, &["--warm", "auto"]).expect_code(0);
        assert!(first.out.contains("alone"), "{} {}", first.out, first.err);
        assert!(first.err.contains("no warm start: ") && first.err.contains(why), "{}", first.err);
        let later = run(&script, &["--warm", "required"]).expect_code(0);
        assert!(later.out.contains("forked"), "{} {}", later.out, later.err);
        let said = format!("each rank imports {module} by itself: in an earlier run, ");
        assert!(later.err.contains(&said), "{}", later.err);
        let plan = |more: &[&str]| {
            let mut args = run_args("direct", 1);
            args[0] = "plan".into();
            let launcher = Launcher::new(args).args(["--python", &interpreter]).args(more);
            let launcher = launcher.env("XDG_CACHE_HOME", &cache);
            launcher.args([Path::new("--"), &folder.path().join(&script)]).run().expect_code(0).out
        };
        assert!(plan(&["--warm", "auto"]).contains(&said));
        // A user who names the module wants it.
        let named = run(&script, &["--warm", "auto", "--warm-modules", module]).expect_code(0);
        assert!(named.out.contains("alone"), "{} {}", named.out, named.err);
    }
    // The file is damaged.
    let memory = folder.path().join("cache/ranklaunch/warm.json");
    let known = std::fs::read_to_string(&memory).expect("it was written");
    assert_eq!(known.matches("\"program\"").count(), FAULTS.len(), "{known}");
    std::fs::write(&memory, known.replace(']', "")).expect("written");
    let forgotten = run("threaded_job.py", &["--warm", "auto"]).expect_code(0);
    assert!(forgotten.out.contains("alone"), "{} {}", forgotten.out, forgotten.err);
    let again = run("threaded_job.py", &["--warm", "auto"]).expect_code(0);
    assert!(again.out.contains("forked"), "{} {}", again.out, again.err);
}

/// Two modules. The first takes a name for a temporary file and leaves no file. While the second is imported, a
/// folder appears once that nobody here has asked a name for, as one of another process would.
const BESIDE: [(&str, &str); 2] = [
    ("tidy", "import tempfile\nNAME = tempfile.mktemp()\n"),
    (
        "beside",
        "import atexit, os, tempfile\nPLACE = os.path.join(tempfile.gettempdir(), 'of-another')\n\
         if not os.path.exists(__file__ + '.once'):\n    open(__file__ + '.once', 'w').close()\n    \
         os.mkdir(PLACE)\n    atexit.register(os.rmdir, PLACE)\n",
    ),
];

/// Files that another process makes in the folder of temporary files end the warm start of one run, and no module is
/// at fault for them in later runs.
#[test]
fn other_processes_files_make_no_module_faulty() {
    let venv = environment(&BESIDE);
    let folder = tempfile::tempdir().expect("a folder");
    let interpreter = venv.path().join("bin/python").display().to_string();
    let [cache, temporary] = ["cache", "tmp"].map(|name| folder.path().join(name));
    std::fs::create_dir(&temporary).expect("a folder");
    let script = folder.path().join("job.py");
    std::fs::write(&script, format!("import tidy\nimport beside\n{TELLS}")).expect("written");
    let run = |warm: &str| {
        let launcher = Launcher::new(run_args("direct", 1)).args(["--python", &interpreter]);
        let launcher = launcher.env("XDG_CACHE_HOME", &cache).env("TMPDIR", &temporary);
        launcher.args(["--warm", warm]).args([Path::new("--"), &script]).run().expect_code(0)
    };
    let first = run("auto");
    assert!(first.out.contains("alone"), "{} {}", first.out, first.err);
    assert!(first.err.contains("what was imported has made "), "{}", first.err);
    let later = run("required");
    assert!(later.out.contains("forked"), "{} {}", later.out, later.err);
    assert!(!later.err.contains("in an earlier run"), "{}", later.err);
}

/// torch is imported with the settings that the program made for it, or by each rank.
#[test]
fn settings_before_an_import_take_effect() {
    let text = "import os\nos.environ['TORCH_SHOW_CPP_STACKTRACES'] = '1'\nimport torch, sys\n";
    let ended = ran(&format!("{text}{LISTS}"), &["--warm", "required"], &[]).expect_code(0);
    let set = "os TORCH_SHOW_CPP_STACKTRACES=1 torch sys";
    assert!(ended.out.contains(set), "{}", ended.out);
    let text = text.replace("'1'", "'10'[:len(os.sep)]");
    let ended = ran(&format!("{text}{LISTS}"), &["--warm", "required"], &[]).expect_code(0);
    assert!(ended.out.contains("os"), "{}", ended.out);
    assert!(!ended.out.contains("torch"), "{}", ended.out);
    let text = "import os\nos.environ['NCCL_DEBUG'] = 'WARN'\nimport torch, sys\n";
    let ended = ran(&format!("{text}{LISTS}"), &["--warm", "required"], &[]).expect_code(0);
    assert!(ended.out.contains("os NCCL_DEBUG=WARN torch sys"), "{}", ended.out);
}

/// An interpreter that reads no sitecustomize must not run the program while it is warmed.
#[test]
fn program_runs_once_per_rank_never_for_warming() {
    let text = "import os\nimport json\nopen('ran', 'a').write('x')\n";
    for warm in ["auto", "required"] {
        let ended = ran(text, &["--warm", warm], &[]).expect_code(0);
        let ran = std::fs::read_to_string(ended.folder().join("ran")).expect("it ran");
        assert_eq!(ran, "x", "{warm}");
    }
    let wrapper = tempfile::tempdir().expect("a folder");
    let file = wrapper.path().join("python");
    harness::write_program(&file, &format!("#!/bin/sh\nexec {} -S \"$@\"\n", python().display()));
    let file = file.display().to_string();
    let ended = ran(text, &["--warm", "auto", "--python", &file], &[]);
    let runs = std::fs::read_to_string(ended.folder().join("ran")).expect("it ran");
    assert_eq!(runs, "x", "{}", ended.err);
    assert!(ended.err.contains("reads no sitecustomize"), "{}", ended.err);
}

/// Runs a program of this text in two forked ranks, with installed modules. Gives their output by rank.
fn forked(
    text: &str,
    modules: &[(&str, &str)],
    options: &[&str],
    arguments: &[&str],
) -> [String; 2] {
    let venv = environment(modules);
    let launcher = Launcher::new(run_args("direct", 2)).args(["--warm", "required", "--python"]);
    let launcher = launcher.args([venv.path().join("bin/python")]);
    let script = launcher.folder().join("asked.py");
    std::fs::write(&script, format!("{text}{TELLS}")).expect("written");
    let program = if options.contains(&"-m") { "asked".into() } else { script.into_os_string() };
    let launcher = launcher.args([&["--"], options].concat()).args([program]).args(arguments);
    let ended = launcher.run().expect_code(0).expect_nothing_left();
    assert_eq!(ended.out.matches("forked").count(), 2, "{}\n{}", ended.out, ended.err);
    [0, 1].map(|rank| {
        let of_rank = format!("[r{rank}] ");
        let lines = ended.out.lines().filter_map(|line| line.strip_prefix(&of_rank));
        lines.collect::<Vec<_>>().join("\n")
    })
}

/// The interpreter starts before the run has a name and before the nodes agree.
#[test]
fn forked_rank_gets_the_arguments_of_the_run() {
    for options in [&[][..], &["-m"]] {
        let text = "import sys\nprint(*sys.argv[1:], *sys.orig_argv[-3:])\n";
        let said = forked(text, &[], options, &["--to", "a {run_id}", "{world_size}"]);
        for said in said {
            let words =
                said.split(" forked").next().unwrap_or_default().lines().next().unwrap_or_default();
            assert!(!words.contains('{') && words.ends_with(" 2"), "{said}");
            assert_eq!(words.matches("--to a ").count(), 2, "{said}");
        }
    }
}

/// Values that a module notes at its import are those that it would note in the rank.
#[test]
fn preloaded_module_sees_the_state_of_its_rank() {
    let noted = "import os, sys\nPID = os.getpid()\nMAIN = sys.modules['__main__']\n\
                 FILE = getattr(MAIN, '__file__', None)\nARGV0 = sys.argv[0]\n";
    let text = "import noted, os, sys\n\
                print(noted.PID == os.getpid(), noted.FILE == __file__, noted.ARGV0 == sys.argv[0], \
                noted.MAIN is sys.modules['__main__'], hasattr(noted, '__main__'))\n";
    for options in [&[][..], &["-m"]] {
        for said in forked(text, &[("noted", noted)], options, &[]) {
            assert!(said.starts_with("True True True True False"), "{said}");
        }
    }
}

/// A file that a module has opened has its own offset in each rank.
#[test]
fn file_opened_at_import_has_per_rank_offset() {
    let kept = "KEPT = open(__file__, 'rb', buffering=0)\nKEPT.read(2)\n# And so on, and so on.\n";
    let text = "import kept, os, time\nfor _ in range(8):\n    print(kept.KEPT.read(5).decode().strip(), end='|')\n    time.sleep(0.02)\n\
                print(os.get_inheritable(kept.KEPT.fileno()))\n";
    let expected = "PT =|open(|__fil|e__,|'rb',|buff|ering|=0)";
    for said in forked(text, &[("kept", kept)], &[], &[]) {
        assert!(said.starts_with(expected), "{said}");
    }
}

/// An interpreter that is ended while it imports costs only time.
#[test]
fn interpreter_killed_during_import_costs_only_time() {
    let venv = environment(&[(
        "slow",
        "import os, time\nif 'LOCAL_RANK' not in os.environ:\n    \
         open('pid', 'w').write(str(os.getpid()))\n    while True: time.sleep(0.1)\n",
    )]);
    let launcher = Launcher::new(run_args("direct", 2)).args(["--warm", "auto", "--python"]);
    let launcher = launcher.args([venv.path().join("bin/python")]);
    let launcher = launcher.env("XDG_CACHE_HOME", venv.path().join("cache"));
    let script = launcher.folder().join("asked.py");
    std::fs::write(&script, format!("import slow\nimport json\n{TELLS}")).expect("written");
    let running = launcher.args([Path::new("--"), &script]).start();
    let pid = wait_until("the interpreter", || {
        std::fs::read_to_string(running.folder().join("pid")).ok()?.parse().ok()
    });
    harness::send(pid, nix::sys::signal::Signal::SIGKILL);
    let ended = running.wait().expect_code(0).expect_nothing_left();
    assert_eq!(ended.out.matches("alone").count(), 2, "{}", ended.out);
    assert_eq!(ended.err.matches("no warm start: ").count(), 1, "{}", ended.err);
}

#[test]
fn low_memory_prevents_a_warm_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("asked.py");
    std::fs::write(&script, format!("import json\n{TELLS}")).expect("written");
    let meminfo = std::fs::read_to_string("/proc/meminfo").expect("it is there");
    let small = |line: &str| match line.split_once(':') {
        Some(("MemAvailable", _)) => "MemAvailable:     900000 kB".to_owned(),
        _ => line.to_owned(),
    };
    let text = meminfo.lines().map(small).collect::<Vec<_>>().join("\n");
    let fake = folder.path().join("meminfo");
    std::fs::write(&fake, text + "\n").expect("written");
    let mut args: Vec<OsString> = ["--user", "--map-root-user", "--mount"].map(Into::into).into();
    let inside = "mount --bind \"$1\" /proc/meminfo && shift && exec \"$@\"";
    args.extend(["sh", "-c", inside, "sh"].map(Into::into));
    let mut tried = Command::new("unshare");
    tried.args(&args).arg(&fake).arg("true");
    if !tried.output().is_ok_and(|output| output.status.success()) {
        harness::skipped("needs a mount namespace");
        return;
    }
    args.extend([fake.into_os_string(), executable().into_os_string()]);
    args.extend(run_args("direct", 1));
    args.extend(["--warm", "auto", "--"].map(Into::into));
    args.push(script.into_os_string());
    let ended = Launcher::of(Command::new("unshare"), args).with_torch().run().expect_code(0);
    assert!(ended.out.contains("alone"), "{}", ended.out);
    assert!(ended.err.contains("no warm start: only 921 MB of memory are free"), "{}", ended.err);
}

/// A forked rank runs on the CPUs of its NUMA node, unless a library of threads has chosen CPUs before.
#[test]
fn forked_rank_is_bound_unless_threads_chose_cpus() {
    let Some(nodes) = two_cpus() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("asked.py");
    let text = "import json, os\nprint(os.environ['LOCAL_RANK'], 'on', *os.sched_getaffinity(0))\n";
    std::fs::write(&script, format!("{text}{TELLS}")).expect("written");
    for (variables, how) in [([].as_slice(), "forked"), (&[("OMP_PROC_BIND", "true")], "alone")] {
        let mut args: Vec<OsString> = NAMESPACE.into_iter().map(OsString::from).collect();
        args.extend(["sh", "-c", TWO_NODES, "sh", &nodes.0, &nodes.1].map(OsString::from));
        args.extend([folder.path().into(), executable().into_os_string()]);
        args.extend(run_args("direct", 2));
        args.extend(["--bind", "numa", "--warm", "auto", "--"].map(OsString::from));
        args.push(script.clone().into_os_string());
        let launcher = Launcher::of(Command::new("unshare"), args).with_torch();
        let launcher = variables.iter().fold(launcher, |to, (name, value)| to.env(name, value));
        let ended = launcher.run().expect_code(0).expect_nothing_left();
        assert_eq!(ended.out.matches(how).count(), 2, "{}\n{}", ended.out, ended.err);
        let says = ended.err.contains("OMP_PROC_BIND places threads");
        assert_eq!(says, how == "alone", "{}", ended.err);
        for (rank, cpu) in [&nodes.0, &nodes.1].into_iter().enumerate() {
            assert!(ended.out.contains(&format!("{rank} on {cpu}\n")), "{}", ended.out);
        }
    }
}

/// A tracer is active from the start of each interpreter, like coverage.py with COVERAGE_PROCESS_START.
#[test]
fn tracer_at_interpreter_start_prevents_warm_start() {
    let begin = "import os, sys\nif os.environ.get('TRACES'): sys.settrace(lambda *of: None)\n";
    let venv = environment(&[("begin", begin)]);
    let lib = std::fs::read_dir(venv.path().join("lib")).expect("a folder").next();
    let packages = lib.expect("one").expect("read").path().join("site-packages");
    std::fs::write(packages.join("begin.pth"), "import begin\n").expect("written");
    let python = venv.path().join("bin/python").display().to_string();
    let text = format!("import json\n{TELLS}");
    for (traces, how) in [("", "forked"), ("1", "alone")] {
        let options = ["--warm", "auto", "--python", &python];
        let ended = ran(&text, &options, &[("TRACES", traces)]).expect_code(0);
        assert!(ended.out.contains(how), "{} {}", ended.out, ended.err);
        let says = ended.err.contains("no warm start: a tracer or profiler is on");
        assert_eq!(says, how == "alone", "{}", ended.err);
    }
}
