//! Tests with interpreters and installations as trees of files below a folder.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use super::*;
use settings::fixtures::undecided;
use settings::{Program, Source, Sourced};

/// A host that consists of files.
struct Tree {
    root: tempfile::TempDir,
    environment: BTreeMap<OsString, OsString>,
}

impl Tree {
    fn new(environment: &[(&str, &str)]) -> Tree {
        let environment =
            environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Tree { root: tempfile::tempdir().expect("a folder"), environment }
    }

    fn at(&self, path: &str) -> PathBuf {
        let path = self.root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().expect("below the root")).expect("folders");
        path
    }

    fn file(self, path: &str, text: &str) -> Tree {
        fs::write(self.at(path), text).expect("a file");
        self
    }

    fn executable(self, path: &str, text: &str) -> Tree {
        let tree = self.file(path, text);
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(tree.at(path), mode).expect("a mode");
        tree
    }

    fn link(self, path: &str, target: &str) -> Tree {
        symlink(target, self.at(path)).expect("a link");
        self
    }

    /// Adds an interpreter at `<prefix>/bin/<name>`, with the links `python` and `python3`.
    fn python(self, prefix: &str, name: &str) -> Tree {
        self.executable(&format!("{prefix}/bin/{name}"), "\x7fELF")
            .link(&format!("{prefix}/bin/python3"), name)
            .link(&format!("{prefix}/bin/python"), "python3")
            .file(&format!("{prefix}/lib/{name}/os.py"), "")
    }

    fn torch(self, site: &str, version: &str, cuda: &str) -> Tree {
        let text = format!(
            "from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = {cuda}\n"
        );
        self.file(&format!("{site}/torch/version.py"), &text)
    }

    fn host(&self) -> Host {
        Host::replayed(self.root.path(), self.environment.clone())
    }

    fn find(&self, settings: &Settings) -> PythonFacts {
        python(&self.host(), settings)
    }

    fn found(&self) -> PythonFacts {
        self.find(&undecided())
    }
}

fn flag<T>(value: T) -> Option<Sourced<T>> {
    Some(Sourced::new(value, Source::Flag("--flag".to_owned())))
}

/// The facts as one line: `interpreter version torch cuda`.
fn line(facts: &PythonFacts) -> String {
    let torch = facts.torch.as_ref();
    format!(
        "{} {} {} {}",
        facts.interpreter.as_deref().unwrap_or(Path::new("-")).display(),
        facts.version.as_deref().unwrap_or("-"),
        torch.map_or("-", |torch| torch.version.as_str()),
        torch.and_then(|torch| torch.cuda.as_deref()).unwrap_or("-"),
    )
}

#[test]
fn python_of_the_official_image() {
    let tree = Tree::new(&[("PATH", "/usr/local/bin:/usr/bin")])
        .python("/usr/local", "python3.11")
        .torch("/usr/local/lib/python3.11/site-packages", "2.5.1+cu124", "'12.4'");
    let found = tree.found();
    assert_eq!(line(&found), "/usr/local/bin/python3 3.11 2.5.1+cu124 12.4");
    assert_eq!(found.found_by, "PATH");
    assert!(found.activation.is_empty());
}

#[test]
fn debian_keeps_packages_in_dist_packages() {
    let tree = Tree::new(&[("PATH", "/usr/bin")]).python("/usr", "python3.10").torch(
        "/usr/local/lib/python3.10/dist-packages",
        "2.1.0a0+nv23.06",
        "'12.1'",
    );
    assert_eq!(line(&tree.found()), "/usr/bin/python3 3.10 2.1.0a0+nv23.06 12.1");
    // The user's own site comes first.
    let tree = Tree { environment: [("HOME".into(), "/home/u".into())].into(), ..tree }.torch(
        "/home/u/.local/lib/python3.10/site-packages",
        "2.9.0",
        "None",
    );
    assert_eq!(line(&tree.found()), "/usr/bin/python3 3.10 2.9.0 -");
}

#[test]
fn python_of_torchrun_is_used_for_torch() {
    let tree = Tree::new(&[("PATH", "/usr/bin:/opt/tools")])
        .python("/usr", "python3.10")
        .python("/opt/py", "python3.12")
        .torch("/opt/py/lib/python3.12/site-packages", "2.6.0", "None")
        .executable("/opt/tools/torchrun", "#!/opt/py/bin/python3.12\nimport sys\n");
    let found = tree.found();
    assert_eq!(line(&found), "/opt/py/bin/python3.12 3.12 2.6.0 -");
    assert_eq!(found.found_by, "first line of /opt/tools/torchrun");
}

#[test]
fn virtualenv_keeps_to_itself_unless_told() {
    let venv = |shared: &str| {
        Tree::new(&[("PATH", "/usr/bin"), ("VIRTUAL_ENV", "/opt/venv")])
            .python("/usr", "python3.11")
            .torch("/usr/local/lib/python3.11/dist-packages", "2.0.0", "None")
            .link("/opt/venv/bin/python", "/usr/bin/python3.11")
            .file(
                "/opt/venv/pyvenv.cfg",
                &format!(
                    "home = /usr/bin\ninclude-system-site-packages = {shared}\nversion = 3.11.7\n"
                ),
            )
    };
    let alone = venv("false").found();
    assert_eq!(line(&alone), "/opt/venv/bin/python 3.11 - -");
    assert_eq!(alone.found_by, "VIRTUAL_ENV");
    assert_eq!(alone.activation, [("PATH".to_owned(), "/opt/venv/bin:/usr/bin".to_owned())].into());
    assert_eq!(line(&venv("true").found()), "/opt/venv/bin/python 3.11 2.0.0 -");
    let own = venv("true").torch("/opt/venv/lib/python3.11/site-packages", "2.7.0", "None");
    assert_eq!(line(&own.found()), "/opt/venv/bin/python 3.11 2.7.0 -");
}

#[test]
fn python_flag_selects_the_interpreter() {
    let tree = Tree::new(&[("PATH", "/usr/bin"), ("PWD", "/job")])
        .python("/usr", "python3.11")
        .file("/job/notes", "")
        .link("/job/venv/bin/python", "/usr/bin/python3")
        .file("/job/venv/pyvenv.cfg", "home = /usr/bin\nversion_info = 3.11.7\n")
        .torch("/job/venv/lib/python3.11/site-packages", "2.7.0", "None");
    let find = |path: &str| tree.find(&Settings { python: flag(path.into()), ..undecided() });
    assert_eq!(line(&find("venv/bin/python")), "/job/venv/bin/python 3.11 2.7.0 -");
    assert_eq!(find("venv/bin/python").found_by, "--flag");
    let activation = find("/job/venv/bin/python").activation;
    assert_eq!(activation.get("VIRTUAL_ENV").map(String::as_str), Some("/job/venv"));
    assert_eq!(line(&find("python3.11")), "/usr/bin/python3.11 3.11 - -");
    for (bad, said) in [
        ("python3.9", "/usr/bin"),
        ("/nowhere/python", "does not exist"),
        ("/job/notes", "no executable file"),
        ("/job/venv", "/job/venv/bin/python"),
    ] {
        let facts = find(bad);
        let problem = facts.problem.expect(bad);
        assert!(facts.interpreter.is_none() && problem.en.contains(said), "{}", problem.en);
    }
}

#[test]
fn conda_environment_is_found_by_name() {
    let tree = Tree::new(&[("PATH", "/usr/bin"), ("CONDA_EXE", "/data/conda/bin/conda")])
        .python("/mnt/p/miniconda3/envs/tiny-vae", "python3.11")
        .torch("/mnt/p/miniconda3/envs/tiny-vae/lib/python3.11/site-packages", "2.4.0", "'12.1'")
        .file(
            "/mnt/p/miniconda3/envs/tiny-vae/conda-meta/state",
            r#"{"version":1,"env_vars":{"HF_HOME":"/hf"}}"#,
        )
        .python("/data/conda", "python3.12")
        .file("/data/conda/conda-meta/history", "")
        .python("/data/conda/envs/other", "python3.10")
        .file("/opt/conda/envs/broken/README", "")
        .file("/root/.conda/environments.txt", "/srv/far-away\n")
        .python("/srv/far-away", "python3.9");
    let find = |name: &str| {
        tree.find(&Settings {
            conda_env: flag(name.to_owned()),
            conda_roots: vec!["/mnt/p/miniconda3".into(), "/gone".into()],
            ..undecided()
        })
    };
    let found = find("tiny-vae");
    assert_eq!(line(&found), "/mnt/p/miniconda3/envs/tiny-vae/bin/python 3.11 2.4.0 12.1");
    assert_eq!(found.found_by, "conda environment tiny-vae");
    let activation: Vec<(&str, &str)> =
        found.activation.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        activation,
        [
            ("CONDA_DEFAULT_ENV", "tiny-vae"),
            ("CONDA_PREFIX", "/mnt/p/miniconda3/envs/tiny-vae"),
            ("HF_HOME", "/hf"),
            ("PATH", "/mnt/p/miniconda3/envs/tiny-vae/bin:/usr/bin"),
        ]
    );
    assert_eq!(line(&find("other")), "/data/conda/envs/other/bin/python 3.10 - -");
    assert_eq!(line(&find("far-away")), "/srv/far-away/bin/python 3.9 - -");
    assert_eq!(line(&find("/srv/far-away")), "/srv/far-away/bin/python 3.9 - -");
    let base = find("base");
    assert_eq!(line(&base), "/data/conda/bin/python 3.12 - -");
    assert_eq!(base.activation.get("CONDA_DEFAULT_ENV").map(String::as_str), Some("base"));
    let problem = |name: &str| find(name).problem.expect(name);
    assert!(problem("broken").en.contains("/opt/conda/envs/broken"));
    let missing = problem("absent");
    for said in
        ["absent", "tiny-vae in /mnt/p/miniconda3", "other in /data/conda", "no folder /gone"]
    {
        assert!(missing.en.contains(said), "{said}: {}", missing.en);
    }
    assert!(missing.zh.contains("/gone 不存在"), "{}", missing.zh);
}

#[test]
fn active_conda_environment_is_used_unchanged() {
    let tree = Tree::new(&[
        ("PATH", "/opt/conda/bin:/usr/bin"),
        ("CONDA_PREFIX", "/opt/conda"),
        ("CONDA_DEFAULT_ENV", "base"),
    ])
    .python("/opt/conda", "python3.11")
    .file("/opt/conda/conda-meta/history", "")
    .file("/opt/conda/condabin/conda", "")
    .torch("/opt/conda/lib/python3.11/site-packages", "2.3.0", "'12.1'");
    let found = tree.found();
    assert_eq!(line(&found), "/opt/conda/bin/python 3.11 2.3.0 12.1");
    assert!(found.activation.is_empty(), "{:?}", found.activation);
}

#[test]
fn conda_environment_name_matches_that_of_activation() {
    let name = |prefix: &str, file: &str, variables: &[(&str, &str)]| {
        let tree = Tree::new(&[&[("PATH", "/usr/bin")], variables].concat())
            .python(prefix, "python3.11")
            .file(&format!("{prefix}/{file}"), "")
            .file(&format!("{prefix}/conda-meta/history"), "");
        let python = flag(format!("{prefix}/bin/python").as_str().into());
        let found = tree.find(&Settings { python, ..undecided() });
        found.activation.get("CONDA_DEFAULT_ENV").cloned().expect("a conda environment")
    };
    assert_eq!(name("/srv/job", "README", &[]), "/srv/job");
    assert_eq!(name("/srv/envs/job", "README", &[]), "job");
    assert_eq!(name("/srv/conda", "condabin/conda", &[]), "base");
    assert_eq!(name("/srv/mamba", "README", &[("MAMBA_ROOT_PREFIX", "/srv/mamba")]), "base");
    assert_eq!(name("/srv/own", "README", &[("CONDA_EXE", "/srv/own/bin/conda")]), "base");
}

#[test]
fn pyenv_shims_are_followed() {
    let shim = "#!/usr/bin/env bash\nexec \"/root/.pyenv/libexec/pyenv\" exec \"$program\"\n";
    let tree = |environment: &[(&str, &str)]| {
        let path = ("PATH", "/root/.pyenv/shims:/usr/bin");
        Tree::new(&[&[path], environment].concat())
            .executable("/root/.pyenv/shims/python3", shim)
            .python("/root/.pyenv/versions/3.11.7", "python3.11")
            .python("/root/.pyenv/versions/3.11.10", "python3.11")
            .python("/root/.pyenv/versions/3.12.1", "python3.12")
            .python("/usr", "python3.10")
            .file("/root/.pyenv/version", "3.11.7\n")
            .file("/job/.python-version", "# ours\n3.12.1\n")
    };
    let found = |environment: &[(&str, &str)]| line(&tree(environment).found());
    let version = |version| format!("/root/.pyenv/versions/{version}/bin/python3");
    assert_eq!(found(&[]), format!("{} 3.11 - -", version("3.11.7")));
    assert_eq!(found(&[("PWD", "/job/deep")]), format!("{} 3.12 - -", version("3.12.1")));
    assert_eq!(
        found(&[("PWD", "/job"), ("PYENV_VERSION", "3.11")]),
        format!("{} 3.11 - -", version("3.11.10"))
    );
    assert_eq!(found(&[("PYENV_VERSION", "system")]), "/usr/bin/python3 3.10 - -");
    assert_eq!(found(&[("PYENV_VERSION", "2.7")]), "/root/.pyenv/shims/python3 - - -");
}

#[test]
fn packages_elsewhere() {
    let tree = Tree::new(&[("PATH", "/usr/local/bin"), ("PYTHONPATH", "/extra:")])
        .python("/usr/local", "python3.11")
        .torch("/usr/local/lib/python3.11/site-packages", "2.5.0", "None")
        .torch("/extra", "2.6.0", "None");
    assert_eq!(line(&tree.found()), "/usr/local/bin/python3 3.11 2.6.0 -");
    let built = Tree::new(&[("PATH", "/usr/local/bin")])
        .python("/usr/local", "python3.11")
        .file(
            "/usr/local/lib/python3.11/site-packages/easy-install.pth",
            "import x\n\n/src/pytorch\n",
        )
        .torch("/src/pytorch", "2.8.0a0+git1", "None");
    assert_eq!(line(&built.found()), "/usr/local/bin/python3 3.11 2.8.0a0+git1 -");
}

#[test]
fn odd_files_are_facts_not_errors() {
    let none = Tree::new(&[("PATH", "/usr/bin::relative")]).found();
    assert!(none.interpreter.is_none());
    assert!(none.problem.expect("nothing found").en.contains("/usr/bin"));
    let tree = Tree::new(&[("PATH", "/a:/b")])
        .link("/a/python3", "/a/python3")
        .link("/a/loop", "/a/loop/deeper")
        .file("/a/python", "not executable")
        .executable("/b/python", "#!/bin/sh\nexec false\n");
    assert_eq!(line(&tree.found()), "/b/python - - -");
    let tree = Tree::new(&[("VIRTUAL_ENV", "/v"), ("PATH", "")])
        .executable("/v/bin/python", "")
        .file("/v/pyvenv.cfg", "=\nversion = \nhome\n")
        .file("/v/lib/python3.x/os.py", "")
        .file("/v/lib/python3.8/site-packages/torch/version.py", "__version__ = broken\n");
    assert_eq!(line(&tree.found()), "/v/bin/python 3.8 - -");
}

#[test]
fn heads_of_a_checkpoint() {
    let heads = |files: &[(&str, &str)], args: &[&str]| {
        let mut tree = Tree::new(&[("PWD", "/job")]);
        for (path, text) in files {
            tree = tree.file(path, text);
        }
        let mut settings = undecided();
        settings.layout.checkpoint_argument = Some("--ckpt_dir".to_owned());
        let args = args.iter().map(OsString::from).collect();
        settings.program = flag(Program::Script { path: "generate.py".into(), args });
        checkpoint_heads(&tree.host(), &settings)
    };
    let wan = [("/m/low_noise_model/config.json", r#"{"num_heads": 40}"#)];
    let found = Some((40, PathBuf::from("/m/low_noise_model/config.json")));
    assert_eq!(heads(&wan, &["--ckpt_dir", "/m"]), found);
    assert_eq!(
        heads(&wan, &["--ckpt_dir=/x", "--ckpt_dir=/m/"]),
        found.map(|(n, _)| (n, "/m/low_noise_model/config.json".into()))
    );
    let diffusers = [
        ("/job/m/config.json", "{}"),
        ("/job/m/transformer/config.json", r#"{"num_attention_heads": 24}"#),
    ];
    let found = Some((24, PathBuf::from("/job/m/transformer/config.json")));
    assert_eq!(heads(&diffusers, &["--ckpt_dir", "m"]), found);
    for config in
        ["", "[", "{\"num_heads\": 0}", "{\"num_heads\": -4}", "{\"num_heads\": \"40\"}", "[1]"]
    {
        assert_eq!(heads(&[("/m/config.json", config)], &["--ckpt_dir", "/m"]), None, "{config}");
    }
    assert_eq!(heads(&wan, &["--ckpt_dir"]), None);
    assert_eq!(heads(&wan, &["--ckpt_dirs", "/m"]), None);
}

/// A real virtual environment of this machine, if it has one.
#[test]
fn a_real_torch_is_read_from_its_files() {
    let Some(home) = std::env::var_os("HOME") else { return };
    let interpreter = Path::new(&home).join(".cache/ranklaunch/venv/bin/python");
    if !interpreter.exists() {
        return;
    }
    let facts =
        python(&Host::live(), &Settings { python: flag(interpreter.clone()), ..undecided() });
    assert_eq!(facts.interpreter, Some(interpreter));
    assert!(facts.version.is_some_and(|version| version.starts_with("3.")));
    let torch = facts.torch.expect("the environment is there for torch");
    assert!(torch.version.starts_with(|letter: char| letter.is_ascii_digit()), "{torch:?}");
}

#[test]
fn this_machine_is_searched_without_errors() {
    let facts = python(&Host::live(), &undecided());
    assert_eq!(facts.interpreter.is_none(), facts.problem.is_some());
}

#[test]
fn failed_scripts_are_reported_in_both_languages() {
    let prefix = tempfile::tempdir().expect("a folder");
    let folder = prefix.path().join("etc/conda/activate.d");
    fs::create_dir_all(&folder).expect("folders");
    fs::write(folder.join("a.sh"), "exit 5\n").expect("a script");
    let found = scripts(&Host::live(), &undecided(), prefix.path(), &BTreeMap::new());
    let Text { en, zh } = found.expect_err("a script that ends the shell").text;
    assert!(en.contains("ended with code 5"), "{en}");
    assert!(zh.contains("以退出码 5 结束") && !zh.contains("ended with"), "{zh}");
}
