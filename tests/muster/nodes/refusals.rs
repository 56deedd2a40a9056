//! A node that refuses before it has a plan notifies the others, or reports that it cannot.

use std::ffi::OsString;

use harness::{Ended, Launcher, free_port, program, run_args};

/// The fault of one of three nodes.
struct Odd {
    rank: u32,
    more: &'static [&'static str],
    has_program: bool,
    env: &'static [(&'static str, &'static str)],
}

const ODD: Odd = Odd { rank: 1, more: &[], has_program: true, env: &[] };

fn three(odd: &Odd, patience: &str) -> Vec<Ended> {
    let Odd { rank: odd, more, has_program, env } = *odd;
    let port = free_port();
    let node = |rank: u32| {
        let mut args: Vec<OsString> = run_args("direct", 1);
        let is_odd = rank == odd;
        args.extend(more.iter().filter(|_| is_odd).map(Into::into));
        if !is_odd || has_program {
            args.push("--".into());
            args.extend([program("rank.sh").into_os_string(), "succeed".into()]);
        }
        let launcher = Launcher::new(args).node(rank, 3, port);
        let launcher = launcher.env("RANKLAUNCH_WAIT_TIMEOUT", patience);
        let env = env.iter().filter(|_| is_odd);
        env.fold(launcher, |launcher, (name, value)| launcher.env(name, value)).start()
    };
    let nodes: Vec<_> = (0..3).map(node).collect();
    nodes.into_iter().map(|node| node.wait().expect_nothing_left()).collect()
}

/// All nodes except `odd` end with one refusal that names it and repeats its words.
#[track_caller]
fn expect_told(ended: Vec<Ended>, odd: u32, words: &str) {
    let mut refusals = Vec::new();
    for (rank, ended) in (0..).zip(ended) {
        assert!(ended.out.is_empty(), "nothing ran: {}", ended.out);
        assert!(ended.err.contains(words), "node {rank}: {words}\n{}", ended.err);
        if rank != odd {
            let ended = ended.expect_code(88);
            let at = ended.err.find("ranklaunch: refused: ").expect("a refusal");
            refusals.push(ended.err[at..].to_owned());
        }
    }
    assert_eq!(refusals[0], refusals[1]);
    let named = format!("refused: node {odd} (");
    assert!(refusals[0].contains(&named), "{}", refusals[0]);
    assert!(refusals[0].contains(") cannot take part: "), "{}", refusals[0]);
}

#[test]
fn all_nodes_name_the_node_with_refused_settings() {
    let profile: &[&str] = &["--profile", "no-such-profile"];
    for (odd, words) in [
        (Odd { more: profile, ..ODD }, "no-such-profile"),
        (Odd { more: profile, rank: 0, ..ODD }, "no-such-profile"),
        (Odd { more: &["--console", "sometimes"], rank: 2, ..ODD }, "sometimes"),
        (Odd { more: &["--no-such-flag"], ..ODD }, "--no-such-flag"),
        (Odd { has_program: false, rank: 2, ..ODD }, "no program was given"),
    ] {
        // The test would time out if any node waited for the deadline.
        let ended = three(&odd, "30m");
        let own = &ended[usize::try_from(odd.rank).expect("small")];
        assert_eq!(own.code, 64, "{}", own.err);
        let told = match odd.rank {
            0 => "all 2 other nodes were notified of this refusal",
            _ => "was notified, so that no node waits for this one",
        };
        assert!(own.err.contains(told), "{}", own.err);
        expect_told(ended, odd.rank, words);
    }
}

/// The settings for the node's place are themselves wrong, so nothing is guessed from the other
/// settings.
#[test]
fn node_without_known_rank_says_nobody_is_notified() {
    for odd in [
        Odd { env: &[("RANKLAUNCH_NODE_RANK", "one")], ..ODD },
        Odd { env: &[("RANK", "one")], ..ODD },
    ] {
        let ended = three(&odd, "2s");
        let [zero, own, two] = ended.as_slice() else { panic!("three") };
        assert!(matches!(own.code, 64 | 65), "{}\n{}", own.code, own.err);
        assert!(own.err.contains("other nodes are not notified"), "{}", own.err);
        for other in [zero, two] {
            assert_eq!((other.code, other.id()), (88, Some("muster.missing")), "{}", other.err);
            assert!(other.err.contains("node 1 ("), "{}", other.err);
        }
    }
}

/// Node 0 is missing: the refusal says so, and nothing hangs.
#[test]
fn undeliverable_refusal_says_so() {
    let mut args = run_args("direct", 1);
    args.extend(["--profile".into(), "no-such-profile".into()]);
    let ended = Launcher::new(args).node(1, 2, free_port()).run().expect_code(64);
    let words = "was not notified, since it is not there (127.0.0.1:";
    assert!(ended.err.contains(words), "{}", ended.err);
}

/// Two nodes that only a profile introduces to each other; the platform's file of node `odd` has a mistake.
#[test]
fn broken_platform_file_is_told_by_the_profiles_membership() {
    for odd in [0, 1] {
        let port = free_port();
        let profile = format!(
            "[job]\nnnodes = 2\nmaster_addr = '127.0.0.1'\nmaster_port = {port}\n[launch]\nwait_timeout = '30m'\n"
        );
        let node = |rank: u32| {
            let mut args: Vec<OsString> = run_args("direct", 1);
            args.extend(["--profile", "./job.toml", "--node-rank"].map(Into::into));
            args.extend([
                rank.to_string().into(),
                "--".into(),
                program("rank.sh").into_os_string(),
            ]);
            args.push("succeed".into());
            let launcher = Launcher::new(args).env("RANKLAUNCH_SITE", "site.toml");
            let site = if rank == odd { "[logs]\nlog_kep = 'all'\n" } else { "" };
            for (name, text) in [("job.toml", profile.as_str()), ("site.toml", site)] {
                std::fs::write(launcher.folder().join(name), text).expect("written");
            }
            launcher.start()
        };
        // The test would time out if the other node waited for the deadline.
        let nodes = [node(0), node(1)];
        for (rank, ended) in (0..).zip(nodes.map(|node| node.wait().expect_nothing_left())) {
            let code = if rank == odd { 64 } else { 88 };
            let ended = ended.expect_code(code);
            assert!(ended.out.is_empty(), "nothing ran: {}", ended.out);
            assert!(ended.err.contains("site.toml:2"), "node {rank}: {}", ended.err);
            assert!(ended.err.contains("`log_kep`"), "node {rank}: {}", ended.err);
        }
    }
}
