//! Snapshots of the texts of a launch, in both languages: the plan, the start block and the closing
//! block.

use harness::node::{Node, PYTHON};
use harness::snapshot::{compare, named, timed};
use harness::{Launcher, python, run_args};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn plan_matches_its_snapshot() {
    for lang in ["en", "zh"] {
        let node = Node::with_gpus(8)
            .platform("WORLD_SIZE=2 RANK=0 MASTER_ADDR=h MASTER_PORT=29500 OMP_NUM_THREADS=4");
        let script = ["--", "generate.py", "--ulysses_size", "{ulysses_size}"];
        let args = ["--lang", lang, "--profile", "wan22", "--python", PYTHON];
        let planned = node.plan(&[&args[..], &script].concat()).expect_code(0);
        let root = node.root().to_string_lossy().into_owned();
        compare(
            &format!("plan.{lang}"),
            &named(&planned.out, &[(&root, "ROOT"), (VERSION, "VERSION")]),
        );
    }
}

/// The blocks of a launch. These parts are removed: remarks, which depend on the machine; the order
/// of lines between the blocks, which depends on its speed; and the width of columns, which depends
/// on the path of the interpreter.
fn blocks(lang: &str, what: &str, code: i32) -> String {
    let mut args = run_args("direct", 2);
    // The disk of this machine may be nearly full, which is shown as a block.
    args.extend(["--lang", lang, "--severity", "disk.space=off", "--"].map(Into::into));
    let ended = Launcher::new(args).args([harness::program("rank.sh")]).args([what]).run();
    let ended = ended.expect_code(code).expect_nothing_left();
    let run = ended.run_id();
    let torch = ended.err.lines().find_map(|line| line.split_once(" · torch "));
    let (_, torch) = torch.expect("a version");
    let torch = torch.trim().to_owned();
    let (folder, python) = (ended.folder().to_string_lossy(), python());
    let values = [
        (&*run, "RUN"),
        (&*folder, "FOLDER"),
        (&*python.to_string_lossy(), "PYTHON"),
        (&*torch, "TORCH"),
        (VERSION, "VERSION"),
    ];
    let is_block = |line: &&str| line.starts_with([' ', '─']);
    let narrow = |line: &str| {
        let (lead, rest) = line.split_at(line.len() - line.trim_start().len());
        let columns: Vec<&str> = rest.split("  ").filter(|column| !column.is_empty()).collect();
        format!(
            "{lead}{}\n",
            columns.iter().map(|column| column.trim()).collect::<Vec<_>>().join("  ")
        )
    };
    let text: String = ended.err.lines().filter(is_block).map(narrow).collect();
    timed(&named(&text, &values))
}

#[test]
fn launch_matches_its_snapshot() {
    for lang in ["en", "zh"] {
        compare(&format!("success.{lang}"), &blocks(lang, "succeed", 0));
        compare(&format!("failure.{lang}"), &blocks(lang, "exit-7-on-rank-1", 7));
    }
}
