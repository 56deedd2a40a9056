//! Programs that set variables before their imports print the same with a warm start as without.

use std::path::Path;
use std::sync::Mutex;

use super::aside::environment;
use harness::{Ended, Launcher, program, run_args};

/// Modules that read variables at their import, in place of large ones. Each notes the values that it
/// saw.
const STAND_INS: [(&str, &str); 20] = [
    // The libraries of torch ask the C library for variables.
    (
        "torch/__init__",
        "import ctypes, os\n_get = ctypes.CDLL(None).getenv\n_get.restype = ctypes.c_char_p\n\
         SEEN = {n: str(_get(n.encode())) for n in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS', 'GIVEN')}\n\
         SEEN['TORCH_LOGS'] = os.environ.get('TORCH_LOGS')\nclass Dataset: pass\n\
         class default_generator: initial_seed = staticmethod(lambda: 67280421310721)\n",
    ),
    ("torch/distributed", "SEEN = {}\n"),
    ("numpy", "import os\nSEEN = {n: os.environ.get(n) for n in ('OMP_NUM_THREADS', 'GIVEN')}\n"),
    ("huggingface_hub/__init__", "from . import constants\n"),
    (
        "huggingface_hub/constants",
        "import os\nNAMES = ('HF_HOME', 'HF_HUB_OFFLINE', 'TRANSFORMERS_OFFLINE', 'HF_HUB_CACHE', 'HF_ENDPOINT', 'GIVEN')\n\
         SEEN = {n: os.environ.get(n) for n in NAMES}\n",
    ),
    (
        "transformers",
        "import os, huggingface_hub, torch\nclass Trainer: pass\n\
         SEEN = {n: os.environ.get(n) for n in ('TRANSFORMERS_CACHE', 'USE_TF')}\n",
    ),
    (
        "datasets",
        "import os\nSEEN = {n: os.environ.get(n) for n in ('HF_DATASETS_CACHE', 'HF_HOME')}\n",
    ),
    (
        "diffusers",
        "import os, huggingface_hub\nSEEN = {'SLOW': os.getenv('DIFFUSERS_SLOW_IMPORT')}\n",
    ),
    ("wandb", "import os\nSEEN = {'SILENT': os.environ.get('WANDB_SILENT')}\n"),
    (
        "accelerate/__init__",
        "import os\nSEEN = {'CPU': os.environ.get('ACCELERATE_USE_CPU')}\nclass Accelerator: pass\n",
    ),
    ("accelerate/logging", "def get_logger(name, log_level=None): return name\n"),
    ("deepspeed", "import os, torch\nSEEN = {'DS': os.environ.get('DS_ACCELERATOR')}\n"),
    (
        "lightning",
        "import os, torch\nSEEN = {'PL': os.environ.get('PL_FORCE')}\nclass LightningModule: pass\n",
    ),
    ("cv2", "import os\nSEEN = {}\nos.environ['QT_FONTS'] = 'of cv2'\n"),
    (
        "dotenv",
        "import os\ndef dotenv_values(path): return dict(l.strip().split('=', 1) for l in open(path) if '=' in l)\n\
         def load_dotenv(): os.environ.update(dotenv_values('.env'))\n",
    ),
    ("absl/__init__", "from . import app, flags\n"),
    (
        "absl/flags",
        "import os\nFLAGS = {}\nSEEN = {'OMP': os.environ.get('OMP_NUM_THREADS')}\n\
         def DEFINE_integer(name, value, text): FLAGS[name] = value\n",
    ),
    ("absl/app", ""),
    ("PIL", "Image = None\n"),
    (
        "hydra",
        "import os\nSEEN = {'HYDRA': os.environ.get('HYDRA_FULL_ERROR')}\n\
         def main(config_path):\n    os.environ['OMP_NUM_THREADS'] = '2'\n    return lambda of: of\n",
    ),
];

/// Prints the values that imports saw and that the program left, and in another line whether the rank was
/// forked.
const PRINTS: &str = "
import os, sys
print('ends', __name__, sys.argv, getattr(sys.modules['__main__'], '__package__', None))
print({name: module.SEEN for name, module in sorted(sys.modules.items()) if hasattr(module, 'SEEN')})
LIBRARIES = ('ACCELERATE_', 'CUDA_', 'DS_', 'GIVEN', 'HF_', 'HYDRA_', 'MKL_', 'OMP_', 'PL_', 'QT_', 'TOKENIZERS_',
             'TRANSFORMERS_', 'WANDB_')
print({name: value for name, value in sorted(os.environ.items()) if name.startswith(LIBRARIES)})
with open('/proc/self/environ') as file:
    print('HOW', 'forked' if 'RANKLAUNCH_WARM_LISTEN' in file.read() else 'alone')
";

struct Program {
    name: String,
    /// `-m` and a module; empty: main.py.
    module: Vec<String>,
    files: Vec<(String, String)>,
}

fn programs() -> Vec<Program> {
    let text = std::fs::read_to_string(program("configured.txt")).expect("it is there");
    let mut programs: Vec<Program> = Vec::new();
    for line in text.lines() {
        if let Some(head) = line.strip_prefix("#### ") {
            let mut words = head.split(' ').map(str::to_owned);
            let name = words.next().expect("a name");
            let files = vec![("main.py".to_owned(), String::new())];
            programs.push(Program { name, module: words.collect(), files });
        } else if let Some(last) = programs.last_mut() {
            match line.strip_prefix("## ") {
                Some(file) => last.files.push((file.to_owned(), String::new())),
                None => last.files.last_mut().expect("one").1.extend([line, "\n"]),
            }
        }
    }
    programs
}

impl Program {
    /// The main file, which prints at its end.
    fn main(&self) -> String {
        match self.module.last() {
            None => "main.py".to_owned(),
            Some(module) => {
                let file = format!("{}.py", module.replace('.', "/"));
                let is_file = self.files.iter().any(|(name, _)| *name == file);
                if is_file { file } else { format!("{module}/__main__.py") }
            }
        }
    }

    fn write(&self, folder: &Path) {
        for (name, text) in &self.files {
            let file = folder.join(name);
            std::fs::create_dir_all(file.parent().expect("a folder")).expect("a folder");
            let end = if *name == self.main() { PRINTS } else { "" };
            std::fs::write(file, format!("{text}{end}")).expect("written");
        }
    }

    fn run(&self, python: &Path, warm: &[&str]) -> Ended {
        let launcher = Launcher::new(run_args("direct", 1));
        self.write(launcher.folder());
        let cache = launcher.folder().join("cache");
        let launcher = launcher.env("GIVEN", "from outside").env("XDG_CACHE_HOME", cache);
        let launcher =
            launcher.args(["--python".as_ref(), python.as_os_str()]).args(warm).args(["--"]);
        match self.module.as_slice() {
            [] => launcher.args(["main.py"]).run(),
            module => launcher.args(module).run(),
        }
    }
}

/// The output of the program, and whether its rank was forked.
fn said(ended: &Ended) -> (String, bool) {
    let lines: Vec<&str> = ended.out.lines().filter(|line| !line.contains("HOW ")).collect();
    let folder = ended.folder().display().to_string();
    (lines.join("\n").replace(&folder, "FOLDER"), ended.out.contains("HOW forked"))
}

/// Runs of all programs, two at once.
fn of_all<T: Send>(programs: &[Program], run: impl Fn(&Program) -> T + Sync) -> Vec<T> {
    let (next, found) = (Mutex::new(programs.iter()), Mutex::new(Vec::new()));
    let work = || {
        while let Some(program) = { next.lock().expect("no panic").next() } {
            let one = run(program);
            found.lock().expect("no panic").push(one);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    found.into_inner().expect("no panic")
}

#[test]
fn programs_that_configure_themselves_print_the_same() {
    let venv = environment(&STAND_INS);
    let python = venv.path().join("bin/python");
    let programs = programs();
    let seen = of_all(&programs, |program| {
        let off = program.run(&python, &["--warm", "off"]);
        let warm = program.run(&python, &["--warm", "auto"]);
        let ((alone, _), (other, forked)) = (said(&off), said(&warm));
        let is_same = alone == other && off.code == warm.code;
        let differs = format!("{}:\n{alone}\n{other}\n{}", program.name, warm.err);
        (forked, (!is_same).then_some(differs), alone.contains("ends "), program.name.clone())
    });
    let wrong: Vec<&String> = seen.iter().filter_map(|(_, differs, ..)| differs.as_ref()).collect();
    assert!(wrong.is_empty(), "{}", wrong.into_iter().cloned().collect::<Vec<_>>().join("\n\n"));
    let names = |is_one: &dyn Fn(bool, bool) -> bool| -> Vec<&str> {
        let ones = seen.iter().filter(|(forked, _, ends, _)| is_one(*forked, *ends));
        ones.map(|(.., name)| name.as_str()).collect()
    };
    let alone = names(&|forked, _| !forked);
    let silent = names(&|_, ends| !ends);
    println!("not forked: {alone:?}; not to the end: {silent:?}");
    assert!(seen.len() >= 40 && seen.len() - alone.len() >= 40, "not forked: {alone:?}");
}

/// The comparison can fail: a module that the user names is imported before the program has set anything.
#[test]
fn module_named_by_user_misses_the_programs_settings() {
    let venv = environment(&STAND_INS);
    let python = venv.path().join("bin/python");
    let programs = programs();
    for (name, module) in
        [("path_that_only_the_program_knows", "huggingface_hub"), ("own_get_logger", "torch")]
    {
        let program = programs.iter().find(|program| program.name == name).expect("it is there");
        let off = said(&program.run(&python, &["--warm", "off"]));
        let named = ["--warm", "required", "--warm-modules", module];
        let named = said(&program.run(&python, &named));
        assert!(named.1 && !off.1, "{name}");
        assert_ne!(off.0, named.0, "{name}");
    }
}
