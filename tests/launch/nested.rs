//! `--nested`: a job inside a rank of another job has its own ranks, its own port and one node,
//! whatever the outer launcher's variables are.

use std::path::Path;
use std::process::Command;

use harness::{Launcher, executable, free_port, python, run_args};

/// `ranklaunch run` with two ranks that print their place, as words of another command line.
fn inner(program: &Path, nested: bool) -> Vec<String> {
    let mut words = vec![program.display().to_string()];
    words.extend(run_args("direct", 2).iter().map(|word| word.to_string_lossy().into_owned()));
    words.extend(nested.then(|| "--nested".to_owned()));
    let say =
        "echo inner $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT";
    words.extend(["--", "sh", "-c", say].map(str::to_owned));
    words
}

/// The place that each inner rank printed (`0/2 0/2`), and its port.
fn said(out: &str) -> Vec<(String, String)> {
    let lines = out.lines().filter_map(|line| line.split_once("inner ").map(|(_, rest)| rest));
    let of = |line: &str| {
        let (who, place) = line.rsplit_once(' ').expect("who and where");
        let (address, port) = place.rsplit_once(':').expect("a port");
        assert_eq!(address, "127.0.0.1");
        (who.to_owned(), port.to_owned())
    };
    let mut said: Vec<_> = lines.map(of).collect();
    said.sort();
    said
}

#[test]
fn each_worker_of_torchrun_has_its_own_job() {
    let port = free_port();
    let node = |rank: u32| {
        let mut args: Vec<String> =
            ["-m", "torch.distributed.run", "--nnodes", "2"].map(str::to_owned).into();
        args.extend(["--nproc-per-node", "1", "--node-rank"].map(str::to_owned));
        args.extend([rank.to_string(), "--master-addr".into(), "127.0.0.1".into()]);
        args.extend(["--master-port".into(), port.to_string(), "--no-python".into()]);
        Launcher::of(Command::new(python()), args).args(inner(&executable(), true)).start()
    };
    for node in [0, 1].map(node) {
        let ended = node.wait().expect_code(0).expect_nothing_left();
        let said = said(&ended.out);
        let who: Vec<&str> = said.iter().map(|(who, _)| who.as_str()).collect();
        assert_eq!(who, ["0/2 0/2", "1/2 1/2"], "{}\n{}", ended.out, ended.err);
        assert!(said.iter().all(|(_, own)| *own != port.to_string()), "{said:?}");
    }
}

#[test]
fn launcher_below_our_rank_is_separate_or_refused() {
    // The file name of the executable does not matter.
    let folder = tempfile::tempdir_in(harness::built()).expect("a folder");
    let renamed = folder.path().join("start-ranks");
    std::fs::copy(executable(), &renamed).expect("a copy");
    [executable(), renamed].iter().for_each(|program| below_a_rank(program));
}

fn below_a_rank(program: &Path) {
    let outer = |nested| {
        let mut args = run_args("direct", 2);
        args.push("--".into());
        args.extend(inner(program, nested).into_iter().map(Into::into));
        Launcher::of(Command::new(program), args).run().expect_nothing_left()
    };
    let ended = outer(true).expect_code(0);
    let said = said(&ended.out);
    let who: Vec<&str> = said.iter().map(|(who, _)| who.as_str()).collect();
    assert_eq!(who, ["0/2 0/2", "0/2 0/2", "1/2 1/2", "1/2 1/2"], "{}", ended.out);
    let mut ports: Vec<&str> = said.iter().map(|(_, port)| port.as_str()).collect();
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 2, "a port for each inner job: {said:?}");

    // The inner job prints the refusal; the outer job names the rank that it was.
    let refused = outer(false).expect_code(65).expect_id("rank.exit");
    assert!(refused.err.contains("(nested)"), "{}", refused.err);
    let shim = format!("{} rank -- ", program.display());
    assert!(refused.err.contains(&shim), "{}", refused.err);
}
