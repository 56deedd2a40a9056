//! Processes, world size and sizes of the layout.

use harness::node::{Node, PYTHON};

use super::{line, of, ulysses};

/// Nodes, GPUs of each, flags, program, and the expected line.
type Job<'a> = (&'a str, u32, &'a [&'a str], &'a [&'a str], &'a str);

#[test]
fn sizes_of_real_jobs_are_solved_or_refused() {
    let script = ["--", "generate.py", "--ulysses_size", "{ulysses_size}"];
    let literal = |size| ["--", "generate.py", "--ulysses_size", size];
    let table: &[Job<'_>] = &[
        ("2", 8, &["--heads", "40"], &script, "5 10 10 1 0,1,2,3,4"),
        ("2", 7, &["--heads", "40"], &script, "5 10 10 1 0,1,2,3,4"),
        ("2", 4, &["--heads", "40"], &script, "4 8 8 1 absent"),
        ("1", 8, &["--heads", "40"], &script, "8 8 8 1 absent"),
        ("4", 8, &["--heads", "40"], &script, "5 20 20 1 0,1,2,3,4"),
        ("5", 8, &["--heads", "40"], &script, "8 40 40 1 absent"),
        ("2", 8, &["--heads", "24"], &script, "6 12 12 1 0,1,2,3,4,5"),
        ("3", 8, &["--heads", "24"], &script, "8 24 24 1 absent"),
        ("3", 8, &["--heads", "40"], &script, "66 layout.unsolvable"),
        ("2", 8, &["--heads", "40", "--min-nproc", "8"], &script, "66 layout.min-nproc"),
        ("2", 8, &["--heads", "40", "--min-nproc", "5"], &script, "5 10 10 1 0,1,2,3,4"),
        ("2", 7, &["--heads", "40", "--nproc-per-node", "7"], &script, "66 layout.nproc"),
        ("2", 4, &["--heads", "40", "--nproc-per-node", "5"], &script, "80 gpu.count"),
        // A literal size is checked, and decides if it is legal.
        ("2", 8, &["--profile", "wan22"], &literal("10"), "5 10 10 1 0,1,2,3,4"),
        ("2", 8, &["--profile", "wan22"], &literal("8"), "4 8 8 1 0,1,2,3"),
        ("2", 7, &["--profile", "wan22"], &literal("14"), "66 layout.literal"),
        ("2", 8, &["--profile", "wan22"], &literal("5"), "66 layout.literal"),
    ];
    let mut wrong = Vec::new();
    for (nodes, gpus, more, program, expected) in table {
        let args = [&ulysses(nodes, more), *program].concat();
        let planned = Node::with_gpus(*gpus).json(&args);
        let have = line(&planned);
        if have != *expected {
            wrong.push(format!("{nodes} x {gpus} {more:?}\n want {expected}\n have {have}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// generate.py asserts at world size 1 that its FSDP flags are absent.
#[test]
fn single_gpu_script_gets_no_refused_flags() {
    let wan = |gpus, more: &[&str]| {
        let args = [&["--profile", "wan22", "--severity", "shm.size=warn"][..], more].concat();
        Node::with_gpus(gpus).json(&args)
    };
    for (gpus, more, fate) in [
        (1, &[][..], "left out"),
        (1, &["--", "--prompt", "a cat"], "left out"),
        (2, &[], "given"),
        (8, &["--", "--prompt", "a cat"], "given"),
    ] {
        let planned = wan(gpus, more);
        assert_eq!(planned.code, 0, "{:#}", planned.json);
        let argv = planned.words("/argv");
        let flags: Vec<&String> = argv.iter().filter(|word| word.ends_with("_fsdp")).collect();
        let expected: &[&str] = if fate == "given" { &["--dit_fsdp", "--t5_fsdp"] } else { &[] };
        assert_eq!(flags, expected, "{gpus}");
        let decisions = planned.json["decisions"].as_array().expect("a list");
        let said = decisions.iter().find(|one| one["what"] == "--dit_fsdp --t5_fsdp");
        let said = said.expect("the decision is shown");
        assert_eq!(said["value"], fate);
        let because = said["because"].as_str().expect("text");
        assert!(because.contains("world_size is") && because.contains("world_size > 1"));
        assert!(said["source"].as_str().expect("text").starts_with("wan22.toml:"), "{said}");
    }
    // The user's own flags are refused, not removed.
    let own = ["--", "generate.py", "--dit_fsdp", "--ulysses_size", "{ulysses_size}"];
    assert_eq!(wan(1, &own).refusal(), "66 layout.alone");
    assert_eq!(wan(2, &own).code, 0);
    assert_eq!(wan(1, &[&["--layout", "none"][..], &own].concat()).code, 0);
    let bare = ["--layout", "ulysses-world", "--heads", "40", "--", "bash", "-c"];
    let script = "python generate.py --t5_f --ulysses_size 1";
    let refused = Node::with_gpus(1).json(&[&bare[..], &[script]].concat());
    assert_eq!(refused.refusal(), "66 layout.alone", "{:#}", refused.json);
    assert!(refused.at("/refused/text").contains("--t5_f"), "{:#}", refused.json);
}

/// A literal size is read in every spelling, even without a profile.
#[test]
fn sizes_are_read_however_they_are_written() {
    let two = |more: &[&str]| {
        let args = [&ulysses("2", &["--heads", "40"])[..], &["--"], more].concat();
        line(&Node::with_gpus(8).json(&args))
    };
    let script = |argument: &str| format!("cd /x && exec python generate.py {argument}");
    for name in
        ["--ulysses_size", "--ulysses_degree", "--ulysses-degree", "--sequence_parallel_size"]
    {
        let attached = format!("{name}=16");
        for words in [&["generate.py", name, "16"][..], &["generate.py", &attached]] {
            assert_eq!(two(words), "66 layout.literal", "{words:?}");
        }
        assert_eq!(two(&["generate.py", name, "10"]), "5 10 10 1 0,1,2,3,4", "{name}");
        for argument in [&format!("{name} 16"), &attached] {
            let words = ["bash", "-c", &script(argument)];
            assert_eq!(two(&words), "66 layout.literal", "{words:?}");
        }
    }
    for (words, expected) in [
        (&["generate.py", "--ulysses_s", "16"][..], "66 layout.literal"),
        (&["generate.py", "--ulysses", "8"], "4 8 8 1 0,1,2,3"),
        (&["generate.py", "--uly=10"], "5 10 10 1 0,1,2,3,4"),
        // These words are no option any more, or belong to another option.
        (&["generate.py", "--", "--ulysses_size", "16"], "5 10 10 1 0,1,2,3,4"),
        (&["generate.py", "--prompt", "--ulysses_size", "--ulysses_size", "8"], "4 8 8 1 0,1,2,3"),
        (&["bash", "-c", "a=1 python g.py --ulysses_size {ulysses_size}"], "5 10 10 1 0,1,2,3,4"),
        (&["bash", "g.sh", "-c", "x --ulysses_size 16"], "5 10 10 1 0,1,2,3,4"),
    ] {
        assert_eq!(two(words), expected, "{words:?}");
    }
    // The abbreviated task decides the heads.
    let wan = [&of("2")[..], &["--profile", "wan22", "--python", PYTHON, "--"]].concat();
    let task = ["generate.py", "--tas", "ti2v-5B", "--ulysses_size", "{ulysses_size}"];
    let planned = Node::with_gpus(8).json(&[&wan[..], &task].concat());
    assert_eq!(
        (planned.at("/layout/heads"), planned.at("/nproc_per_node")),
        ("24".into(), "6".into())
    );
    // A ring has sizes with its own names, and a sequence size that is no ulysses size.
    let ring = |more: &[&str]| {
        let args =
            [&of("2")[..], &["--layout", "ulysses-ring", "--heads", "12", "--"], more].concat();
        line(&Node::with_gpus(8).json(&args))
    };
    assert_eq!(ring(&["g.py", "--ulysses_degree", "8", "--ring_degree", "2"]), "66 layout.literal");
    assert_eq!(ring(&["g.py", "--ulysses-degree", "4", "--ring-degree", "4"]), "8 16 4 4 absent");
    assert_eq!(ring(&["g.py", "--sequence_parallel_size", "16"]), "8 16 4 4 absent");
}

/// A size that no rule checks is reported if the ranks cannot form its groups.
#[test]
fn undeclared_size_that_cannot_fit_is_reported() {
    let told = |gpus: u32, flags: &[&str], program: &[&str]| {
        let planned = Node::with_gpus(gpus).json(&[flags, &["--", "x.py"], program].concat());
        assert_eq!(planned.code, 0, "{:#}", planned.json);
        let warnings = planned.json["warnings"].as_array().expect("a list").clone();
        warnings.into_iter().find(|one| one["id"] == "layout.size")
    };
    for (gpus, name, size, hint) in [
        (2, "--ulysses_size", "14", "--layout ulysses-world --ulysses_size {ulysses_size}"),
        (2, "--ulysses_size", "14", "sizes that divide 2 ranks: 1, 2;"),
        (8, "--ulysses-degree", "3", "--layout ulysses-world --ulysses-degree {ulysses_size}"),
        (4, "--sp_size", "8", "--sp_size {world_size}"),
        (4, "--context-parallel-size", "3", "--context-parallel-size {world_size}"),
        (4, "--ring_degree", "0", "--ring_degree {world_size}"),
    ] {
        for program in [vec![name.to_owned(), size.into()], vec![format!("{name}={size}")]] {
            let program: Vec<&str> = program.iter().map(String::as_str).collect();
            let warning = told(gpus, &[], &program).unwrap_or_else(|| panic!("{name} {size}"));
            let text = warning["text"].as_str().expect("text");
            assert!(
                text.starts_with(&format!("{name} {size} does not fit {gpus} ranks")),
                "{text}"
            );
            assert!(warning["hint"].as_str().is_some_and(|said| said.contains(hint)), "{warning}");
        }
    }
    for (gpus, flags, program) in [
        (8, &[][..], ["--ulysses_size", "4"]),
        (2, &[], ["--ulysses_size", "{ulysses_size}"]),
        (2, &[], ["--seq", "2048"]),
        (2, &["--layout", "none"], ["--ulysses_size", "14"]),
    ] {
        assert!(told(gpus, flags, &program).is_none(), "{flags:?} {program:?}");
    }
}
