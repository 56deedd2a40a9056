//! A job counts as done only if the planned ranks started, each with the planned world size;
//! every rank is reported with its own numbers.

use std::ffi::OsString;

use harness::{Launcher, Place, Running, free_port, program, run_args, wait_until};
use serde_json::{Value, json};

/// An engine that starts the ranks listed in `begin` (see the program), each of which runs
/// `script`.
fn engine(name: &str, nproc: u32, begin: &str, script: &str) -> Launcher {
    engine_with(name, nproc, &[], begin, script)
}

fn engine_with(name: &str, nproc: u32, options: &[&str], begin: &str, script: &str) -> Launcher {
    let mut args: Vec<OsString> = run_args(name, nproc);
    let python = args.iter().position(|word| word == "--python").expect("it is named");
    args[python + 1] = program("engine.sh").into();
    Launcher::new(args).args(options).args(["--", "sh", "-c", script]).env("BEGIN", begin)
}

#[test]
fn job_with_fewer_ranks_than_planned_fails() {
    for name in ["torchrun", "accelerate", "deepspeed"] {
        // The control: as planned.
        let whole = engine(name, 2, "0:0:2 1:1:2", "echo $RANK").run().expect_code(0);
        assert_eq!(whole.run_json(0)["verdict"]["class"], "done", "{}", whole.err);
        assert!(!whole.err.contains("world size 2 was planned"), "{}", whole.err);

        let alone = engine(name, 4, "::", "echo I am alone").run().expect_nothing_left();
        assert_eq!(alone.code, 68, "{name}\n{}", alone.err);
        assert!(alone.err.contains("1 of 4"), "{}", alone.err);
        let verdict = &alone.run_json(0)["verdict"];
        assert_eq!((&verdict["id"], &verdict["class"]), (&json!("engine.ranks"), &json!("engine")));

        // All requested ranks start, in a world of another size.
        let other = engine(name, 2, "0:0:3 1:1:3", "echo $RANK").run().expect_code(68);
        assert!(other.err.contains("WORLD_SIZE=3"), "{}", other.err);
        other.expect_id("engine.ranks");
    }
    let chinese = engine("torchrun", 2, "0:0:2", "true").env("LANG", "zh_CN.UTF-8");
    let chinese = chinese.run().expect_code(68);
    assert!(chinese.err.contains("2 个 rank 中只启动了 1 个"), "{}", chinese.err);
}

#[test]
fn different_world_size_is_reported_at_rank_start() {
    let script = "echo READY; while [ ! -e go ]; do sleep 0.02; done";
    let mut job = engine("torchrun", 2, "0:0:8 1:1:8", script).start();
    job.says("READY", 2);
    let words =
        "rank 0 found WORLD_SIZE=8, but world size 2 was planned: this is not the planned job";
    wait_until("the line", || job.err().contains("was planned: this is").then_some(()));
    assert!(job.err().contains(words) || job.err().contains(&words.replace("rank 0", "rank 1")));
    assert_eq!(job.err().matches("this is not the planned job").count(), 1, "once, not per rank");
    std::fs::write(job.folder().join("go"), "").expect("released");
    job.wait().expect_code(68).expect_nothing_left();
}

#[test]
fn rank_failing_in_another_world_keeps_its_code() {
    let ended = engine("accelerate", 2, "::", "exit 5").run().expect_code(5);
    let hint =
        "hint: rank 0 found no WORLD_SIZE, so it ran by itself, but world size 2 was planned";
    assert!(ended.err.contains(hint), "{}", ended.err);
}

/// The file that `accelerate config` writes on a laptop, below the real accelerate.
#[test]
fn accelerates_own_mode_is_seen_on_all_nodes() {
    let port = free_port();
    let node = |rank: u32| {
        let mut args = run_args("accelerate", 2);
        args.extend(["--profile".into(), "job.toml".into()]);
        let launcher = Launcher::new(args).node(rank, 2, port);
        let mode = ["NO", "MULTI_CPU"][rank as usize];
        let write = |name: &str, text: &str| {
            std::fs::write(launcher.folder().join(name), text).expect("written");
        };
        write("who.py", "import os\nprint('I am', os.environ.get('RANK'))\n");
        write(
            "job.toml",
            "[job]\nscript = 'who.py'\nengine_args = ['--config_file', 'acc.yaml']\n",
        );
        write(
            "acc.yaml",
            &format!(
                "compute_environment: LOCAL_MACHINE\ndistributed_type: '{mode}'\nuse_cpu: true\n"
            ),
        );
        launcher.start()
    };
    let ended = [node(0), node(1)].map(Running::wait);
    let verdicts = [0, 1].map(|node| ended[node as usize].run_json(node)["verdict"].clone());
    let (first, second) = (&verdicts[0], &verdicts[1]);
    for what in ["id", "text", "hint", "node"] {
        assert_eq!(first[what], second[what], "one cause");
    }
    assert_eq!(first["id"], "engine.ranks");
    let text = first["text"].as_str().expect("text");
    assert!(text.starts_with("only 1 of the 2 ranks of this node ever began"), "{text}");
    assert!(first["hint"].as_str().expect("hint").contains("FSDP or DEEPSPEED in place of"));
    let mut codes = ended.each_ref().map(|ended| ended.code);
    codes.sort_unstable();
    assert_eq!(codes, [68, 92]);
    for (ended, rank) in ended.iter().zip([0, 2]) {
        // Node 1 has rank 2, even if its engine does not say so.
        assert!(ended.out.contains(&format!("[r{rank}] I am None")), "{}", ended.out);
        assert!(ended.err.contains("so accelerate starts one process, but 4 are planned"));
    }
}

#[test]
fn the_second_node_has_its_own_local_ranks() {
    let port = free_port();
    let node = |rank: u32| {
        let args = run_args("direct", 2);
        let script = "echo rank $RANK local $LOCAL_RANK";
        Launcher::new(args).args(["--", "sh", "-c", script]).node(rank, 2, port).start()
    };
    let ended = [node(0), node(1)].map(Running::wait);
    for (node, ended) in (0..).zip(ended) {
        let ended = ended.expect_code(0).expect_nothing_left();
        let run = ended.run_json(node);
        let ranks: Vec<_> = run["outcome"]["ranks"]
            .as_array()
            .expect("ranks")
            .iter()
            .map(|rank| (rank["rank"].clone(), rank["local_rank"].clone()))
            .collect();
        let first = 2 * node;
        assert_eq!(ranks, [(json!(first), json!(0)), (json!(first + 1), json!(1))], "{run:#}");
    }
}

#[test]
fn node_command_is_not_called_a_rank() {
    let port = free_port();
    let node = |rank: u32| {
        let script = "echo I launch; test $NODE_RANK = 0 && exec sleep 300; exit 7";
        let args = run_args("command", 2);
        Launcher::new(args).args(["--", "sh", "-c", script]).node(rank, 2, port).start()
    };
    let ended = [node(0), node(1)].map(Running::wait);
    for (node, code) in [(0, 143), (1, 7)] {
        let ended = &ended[node as usize];
        assert_eq!(ended.code, code, "{}", ended.err);
        assert!(ended.out.contains(&format!("[n{node}] I launch")), "{}", ended.out);
        assert!(!ended.err.contains("rank 1"), "{}", ended.err);
        assert!(ended.err.contains("last 1 line of the command on node 1:"), "{}", ended.err);
        let verdict = &ended.run_json(node)["verdict"];
        assert_eq!((&verdict["rank"], &verdict["id"]), (&Value::Null, &json!("rank.exit")));
        assert_eq!(verdict["node"], 1, "{verdict}");
    }
}

/// Between the agreement and torchrun's bind another process can take the port.
#[test]
fn port_lost_to_a_stranger_names_its_owner() {
    let port = free_port();
    let say = "torch.distributed.DistNetworkError: The server socket has failed to listen on any \
        local network address. port: PORT, useIpv6: false, code: -98, name: EADDRINUSE, message: \
        address already in use";
    let node = |rank: u32| {
        let launcher = match rank {
            0 => engine("torchrun", 1, "", "true").env("SAY", say).env("WAIT", "stolen"),
            _ => engine("torchrun", 1, "1:0:2", "exec sleep 300"),
        };
        launcher.node(rank, 2, port).start()
    };
    let nodes = [node(0), node(1)];
    let agreed = || nodes[0].err().contains("all 2 nodes agree").then_some(());
    wait_until("the agreement", agreed);
    let stranger = wait_until("the port", || std::net::TcpListener::bind(("0.0.0.0", port)).ok());
    std::fs::write(nodes[0].folder().join("stolen"), "").expect("written");
    let [zero, one] = nodes.map(Running::wait);
    drop(stranger);
    let me = std::process::id();
    for (ended, code) in [(zero, 87), (one, 143)] {
        let ended = ended.expect_code(code).expect_nothing_left().expect_id("port.lost");
        for value in [format!(" {port} "), format!("pid {me} (")] {
            assert!(ended.err.contains(&value), "{value}\n{}", ended.err);
        }
    }
}

/// On a single node, every attempt takes a port of its own.
#[test]
fn lost_port_causes_a_restart() {
    let say = "OSError: [Errno 98] Address already in use: PORT";
    let ended = engine_with("torchrun", 1, &["--max-restarts", "3"], "0:0:1", "echo up")
        .env("SAY", say)
        .env("ONCE", "said")
        .run()
        .expect_code(0);
    assert!(ended.err.contains("(port.lost)") && ended.out.contains("up"), "{}", ended.err);
}

/// A shim ends before its first packet, as after the executable was replaced.
#[test]
fn ranks_with_silent_shims_keep_their_local_ranks() {
    let port = free_port();
    let setup = Launcher::at(Place::Plain)
        .env("WORLD_SIZE", "2")
        .env("RANK", "1")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string());
    let launcher = setup.folder().join("ranklaunch");
    std::fs::hard_link(harness::executable(), &launcher).expect("a link");
    let mut args = run_args("direct", 2);
    args.extend(["--muster", "off", "--", "true"].map(OsString::from));
    let mut job = setup.program(&launcher, &args);
    // From here on the launcher knows its own path, and every shim is `false`.
    let address = format!("127.0.0.1:{port}");
    job.waits("the wait for the master", |job| job.err().contains(&address));
    std::fs::remove_file(&launcher).expect("removed");
    std::os::unix::fs::symlink("/bin/false", &launcher).expect("a link");
    let master = std::net::TcpListener::bind(("127.0.0.1", port)).expect("the port is ours");
    let over = job.ends_within(harness::TIMEOUT).expect_nothing_left();
    drop(master);
    let file = over.node_folder(1).join("run.json");
    let run: Value = serde_json::from_slice(&std::fs::read(file).expect("run.json")).expect("JSON");
    let ranks: Vec<_> = run["outcome"]["ranks"]
        .as_array()
        .expect("ranks")
        .iter()
        .map(|rank| (rank["rank"].clone(), rank["local_rank"].clone(), rank["pid"].clone()))
        .collect();
    let never_began = |rank: u32, local: u32| (json!(rank), json!(local), Value::Null);
    assert_eq!(ranks, [never_began(2, 0), never_began(3, 1)], "{run:#}\n{}", over.err);
}
