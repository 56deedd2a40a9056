//! All nodes must run one command.

use harness::{Ended, Launcher, free_port, run_args};

/// Both ends of a job whose nodes get these arguments.
fn job(mode: &str, words: [&[&str]; 2]) -> [Ended; 2] {
    let port = free_port();
    let start = |rank: u32| {
        let mut args = run_args("direct", 1);
        args.extend(["--muster", mode, "--", "sh", "-c", "exit 0", "job"].map(Into::into));
        args.extend(words[rank as usize].iter().map(Into::into));
        Launcher::new(&args).node(rank, 2, port).start()
    };
    [start(0), start(1)].map(|node| node.wait().expect_nothing_left())
}

#[test]
fn nodes_with_different_commands_are_named_or_refused() {
    const WARNING: &str = "the command (its digest) is not the same on all nodes";
    for (one, other, shown) in [
        (
            &["--lr", "1"][..],
            &["--lr", "2"][..],
            Some(["--lr 1 (", "node 1: sh -c exit 0 job --lr 2 ("]),
        ),
        (&["--lr", "1"], &[], Some(["--lr 1 (", "node 1: sh -c exit 0 job ("])),
        // Each node fills in its own number.
        (&["--node", "{node_rank}"], &["--node", "{node_rank}"], None),
        (&["--node", "0"], &["--node", "1"], Some(["--node 0 (", "--node 1 ("])),
        // Masked values are not compared.
        (&["--token", "Zq59one"], &["--token", "Zq59two"], None),
    ] {
        let [zero, _] = job("auto", [one, other]).map(|ended| ended.expect_code(0));
        assert_eq!(zero.err.contains(WARNING), shown.is_some(), "{}", zero.err);
        for words in shown.iter().flatten() {
            assert!(zero.err.contains(words), "{words}\n{}", zero.err);
        }
        assert!(!zero.err.contains("Zq59"), "{}", zero.err);
        let code = if shown.is_some() { 88 } else { 0 };
        for ended in job("required", [one, other]) {
            let ended = ended.expect_code(code);
            assert_eq!(ended.err.contains(WARNING), shown.is_some(), "{}", ended.err);
        }
    }
}
