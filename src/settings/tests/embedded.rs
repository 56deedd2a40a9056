//! The embedded profiles.

use verdict::{Id, Severity};

use super::*;

#[test]
fn wan22_is_the_job_of_the_guide() {
    let settings = embedded("wan22");
    let Some(Sourced { value: Program::Script { path, args }, source }) = settings.program else {
        panic!("no script")
    };
    assert_eq!(path, "generate.py");
    assert!(matches!(source, Source::Profile { file, .. } if file == "wan22.toml"));
    let after = |flag: &str| {
        let at = args.iter().position(|arg| arg == flag).expect(flag);
        args[at + 1].to_str().expect("text")
    };
    assert_eq!(after("--task"), "t2v-A14B");
    assert_eq!(after("--size"), "832*480");
    assert_eq!(after("--ckpt_dir"), "/Wan2.2-T2V-A14B");
    assert_eq!(after("--ulysses_size"), "{ulysses_size}");
    assert_eq!(after("--sample_guide_scale"), "10");
    assert!(after("--prompt").contains("the word \"tenxcloud\" clearly engraved on the rock's"));
    assert_eq!(after("--save_file"), "/workspace/output/{timestamp}.mp4");
    let ConditionalArguments { rows, at } = settings.args_if;
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((row.when.to_string().as_str(), at), ("world_size > 1", args.len()));
    assert_eq!(row.args, words(&["--dit_fsdp", "--t5_fsdp"]));

    assert_eq!(settings.layout.rule.value, LayoutRule::UlyssesWorld);
    assert_eq!(settings.layout.heads, None);
    let table = settings.layout.heads_table.expect("heads");
    assert_eq!((table.argument.as_str(), table.default.as_deref()), ("--task", Some("t2v-A14B")));
    let heads: Vec<(&str, u32)> = table.heads.iter().map(|(task, n)| (task.as_str(), *n)).collect();
    let expected =
        [("animate-14B", 40), ("i2v-A14B", 40), ("s2v-14B", 40), ("t2v-A14B", 40), ("ti2v-5B", 24)];
    assert_eq!(heads, expected);
    assert_eq!(settings.layout.ulysses_argument.as_deref(), Some("--ulysses_size"));
    assert_eq!(settings.layout.checkpoint_argument.as_deref(), Some("--ckpt_dir"));
    assert_eq!(settings.nproc_per_node.value, Nproc::Auto);
    assert_eq!(settings.engine.value, Engine::Torchrun);
    assert_eq!(settings.severities[&Id::ShmSize].value, Severity::Fail);
}

#[test]
fn taehv_is_the_job_of_the_platform_guide() {
    let settings = embedded("taehv");
    assert_eq!(settings.engine.value, Engine::Accelerate);
    assert_eq!(settings.engine_args, ["--config_file", "{deepspeed_config}"]);
    // The python that has torch differs between users.
    assert!(settings.conda_env.is_none() && settings.conda_roots.is_empty());
    assert!(settings.python.is_none() && settings.chdir.is_none());
    let rows: Vec<(Option<u32>, &str, &str)> = settings
        .selects
        .iter()
        .map(|row| (row.total_gpus, &*row.values["train_config"], &*row.values["deepspeed_config"]))
        .collect();
    let expected = [
        (Some(16), "taehv_config_16gpu_h100.py", "deepspeed_16gpu.yaml"),
        (Some(8), "taehv_config_h100.py", "deepspeed_8gpu.yaml"),
    ];
    assert_eq!(rows, expected);
    assert_eq!(
        settings.program.map(|program| program.value),
        Some(Program::Script {
            path: "train_taehv.py".into(),
            args: words(&["--config", "{train_config}"])
        })
    );
    assert_eq!(settings.severities[&Id::ShmSize].value, Severity::Fail);
    assert!(settings.env.is_empty());
}

#[test]
fn conditional_arguments_follow_the_profiles_own() {
    let given = |text: &str, more: &[&str]| {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("job.toml");
        std::fs::write(&file, text).expect("a profile");
        let line = ["--profile", file.to_str().expect("text"), "--"];
        let line = if more.is_empty() { &line[..2] } else { &line };
        let settings = Settings::read(&options(&[line, more].concat()), &host(&[])).expect(text);
        (settings.args_if.rows.len(), settings.args_if.at)
    };
    let when = "args_if = [{ when = \"nnodes > 1\", args = [\"--b\"] }]";
    let script = format!("[job]\nscript = \"a.py\"\nargs = [\"--a\", \"1\"]\n{when}\n");
    assert_eq!(given(&script, &[]), (1, 2));
    assert_eq!(given(&script, &["--c", "3"]), (1, 2), "before what the command line adds");
    assert_eq!(given(&script, &["own.py", "--a"]), (0, 0), "the command line's own program");
    let command = format!("[job]\ncommand = [\"sh\", \"a.sh\"]\nargs = [\"x\"]\n{when}\n");
    assert_eq!(given(&command, &[]), (1, 3));
    let engine = script.replace("[job]", "[job]\nengine = \"command\"");
    assert_eq!(given(&engine, &[]), (1, 3));
}

#[test]
fn unreadable_condition_is_refused_with_its_line() {
    for (row, words) in [
        ("{ when = \"world > 1\", args = [\"--b\"] }", "job.toml:3: `when`"),
        ("{ when = \"world_size > many\", args = [\"--b\"] }", "world_size, nnodes"),
        ("{ when = \"nnodes = 1\" }", "needs `when` and `args`"),
        ("{ args = [\"--b\"] }", "needs `when` and `args`"),
        ("{ if = \"nnodes = 1\", args = [\"--b\"] }", "if"),
    ] {
        let text = format!("[job]\nscript = \"a.py\"\nargs_if = [{row}]\n");
        let refusal = read_profile(&text).expect_err(row);
        assert!(refusal.text.en.contains(words), "{row}: {}", refusal.text.en);
        assert_eq!(refusal.verdict.code(), 64);
    }
}

#[test]
fn zimdb_is_one_node_of_four_gpus() {
    let settings = embedded("zimdb");
    assert_eq!(settings.nnodes.map(|n| n.value), Some(1));
    assert_eq!(settings.nproc_per_node.value, Nproc::Count(4));
    assert_eq!(
        settings.program.map(|program| program.value),
        Some(Program::Script { path: "train.py".into(), args: Vec::new() })
    );
    assert!(settings.env.iter().all(|setting| setting.name != "NCCL_IB_DISABLE"));
}
