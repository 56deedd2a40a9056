//! Unidentified connections to the port of node 0: whatever they do, its memory stays bounded and
//! the nodes of the job meet and run. Each test proves that its attack happened.

#![expect(clippy::unwrap_used, reason = "a socket that fails here fails the test")]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness::{
    Ended, Launcher, Running, TIMEOUT, executable, free_port, program, run_args, wait_until,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const SECRET: &str = "correct horse battery";
/// Maximum memory of node 0 under attack; without an attack it uses a third.
const MEGABYTES: u64 = 40;
/// Start of a node's handshake without a secret: magic, lowest and highest version, unencrypted.
const PLAIN: &[u8] = b"rkl/mu\x05\x05\x00";
const ENCRYPTED: &[u8] = b"rkl/mu\x05\x05\x01";

/// A node of a job, in one rank. The job has a name, so that a node may connect through another
/// port than node 0's.
fn node(rank: u32, nodes: u32, port: u16, secret: Option<&str>) -> Launcher {
    node_of(Command::new(executable()), rank, nodes, port, secret)
}

fn node_of(command: Command, rank: u32, nodes: u32, port: u16, secret: Option<&str>) -> Launcher {
    let mut args = run_args("direct", 1);
    args.extend(["--".into(), program("rank.sh").into_os_string(), "succeed".into()]);
    let launcher = Launcher::of(command, args)
        .env("SKYPILOT_NUM_NODES", nodes.to_string())
        .env("SKYPILOT_NODE_RANK", rank.to_string())
        .env("SKYPILOT_TASK_ID", "strangers")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string());
    match secret {
        Some(secret) => launcher.env("RANKLAUNCH_SECRET", secret),
        None => launcher,
    }
}

/// Node 0, once it listens, and its port.
fn listening(nodes: u32, secret: Option<&str>) -> (Running, u16) {
    let port = free_port();
    let zero = node(0, nodes, port, secret).start();
    drop(dial(port));
    (zero, port)
}

fn dial(port: u16) -> TcpStream {
    let stream = wait_until("node 0 listens", || TcpStream::connect(("127.0.0.1", port)).ok());
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Reads until the other side ends the connection. Gives the bytes received before.
fn until_hung_up(mut stream: &TcpStream) -> Vec<u8> {
    let mut said = Vec::new();
    if let Err(error) = stream.read_to_end(&mut said) {
        let kind = error.kind();
        assert_eq!(kind, std::io::ErrorKind::ConnectionReset, "it is still connected: {error}");
    }
    said
}

/// Sends the handshake of a node without a secret, and gets the eighteen bytes of the answer.
fn claim(port: u16, rank: u32, nodes: u32, job: &str) -> TcpStream {
    let mut stream = dial(port);
    stream.write_all(PLAIN).unwrap();
    stream.read_exact(&mut [0; 9]).unwrap();
    let hello = format!(
        r#"{{"hello":{{"node":{rank},"key":{{"job":"{job}","port":{port},"nnodes":{nodes}}},"hostname":"ghost","purpose":"run"}}}}"#
    );
    let length = u32::try_from(hello.len()).unwrap().to_be_bytes();
    stream.write_all(&[&length, hello.as_bytes()].concat()).unwrap();
    stream
}

/// The next frame of node 0 that is not a heartbeat.
fn frame(mut stream: &TcpStream) -> String {
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut text = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
        stream.read_exact(&mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        if !text.contains("\"heartbeat\"") {
            return text;
        }
    }
}

/// A figure of the agent's /proc status in KB.
fn status(zero: &Running, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", zero.agent())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn expect_small(zero: &Running) {
    let peak = status(zero, "VmHWM:") / 1024;
    assert!(peak <= MEGABYTES, "node 0 held {peak} MB");
}

/// The unidentified connections that node 0 counted.
fn counted(zero: &Ended) -> usize {
    let mark = "that were no node of this job and were closed: ";
    let (_, rest) = zero.err.split_once(mark).unwrap_or_else(|| panic!("{}", zero.err));
    rest.split(',').next().unwrap().parse().unwrap()
}

/// The rest of a job of two nodes whose node 0 is running.
fn runs(zero: Running, port: u16, secret: Option<&str>) -> Ended {
    let one = node(1, 2, port, secret).start().wait().expect_code(0).expect_nothing_left();
    assert!(one.out.contains("rank 1 of 2"), "{}\n{}", one.out, one.err);
    let zero = zero.wait().expect_code(0).expect_nothing_left();
    assert!(zero.out.contains("rank 0 of 2"), "{}\n{}", zero.out, zero.err);
    zero
}

#[test]
fn ten_thousand_idle_strangers_keep_nobody_out() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let free = maximum.map_or(usize::MAX, |most| usize::try_from(most).unwrap() - 500);
    let crowd = free.min(10_000);
    for secret in [None, Some(SECRET)] {
        let (zero, port) = listening(2, secret);
        let strangers: Vec<TcpStream> = (0..crowd).map(|_| dial(port)).collect();
        // Node 0 has admitted all of them, and keeps only the last few.
        let gone = |stream: &TcpStream| {
            stream.set_nonblocking(true).unwrap();
            matches!((&mut &*stream).read(&mut [0]), Ok(0))
        };
        let (early, late) = strangers.split_at(crowd - 400);
        let mut early: Vec<&TcpStream> = early.iter().collect();
        wait_until("node 0 makes room", || {
            early.retain(|stream| !gone(stream));
            early.is_empty().then_some(())
        });
        let kept = late.iter().filter(|stream| !gone(stream)).count();
        assert!(kept > 200, "only {kept} of the last 400 are still connected");
        let files = std::fs::read_dir(format!("/proc/{}/fd", zero.agent())).unwrap().count();
        assert!(files < 400, "{files} descriptors of node 0");
        expect_small(&zero);
        let zero = runs(zero, port, secret);
        let counted = counted(&zero);
        assert!(counted > crowd - 400, "{counted} of {crowd}");
    }
}

/// The file limit is lower than the number of connections allowed to strangers, and these make room
/// as well.
#[test]
fn strangers_taking_the_last_file_keep_nobody_out() {
    const FILES: usize = 160;
    let port = free_port();
    let mut shell = Command::new("sh");
    let limit = format!("ulimit -n {FILES} && exec \"$@\"");
    shell.args(["-c", &limit, "sh"]).arg(executable());
    let zero = node_of(shell, 0, 2, port, None).start();
    let strangers: Vec<TcpStream> = (0..300).map(|_| dial(port)).collect();
    wait_until("all files of node 0 are taken", || {
        let files = std::fs::read_dir(format!("/proc/{}/fd", zero.agent())).unwrap().count();
        (files >= FILES - 2).then_some(())
    });
    let zero = runs(zero, port, None);
    assert!(counted(&zero) > strangers.len() - FILES, "{}", zero.err);
}

#[test]
fn garbage_and_endless_frames_are_disconnected() {
    let (zero, port) = listening(2, None);
    let begin = |more: &[u8]| [PLAIN, more].concat();
    let endless: Vec<u8> = b"rkl/mu".iter().copied().cycle().take(1 << 20).collect();
    let attacks = [
        ("garbage", vec![0xa5; 1 << 20]),
        ("half of the magic, then garbage", [b"rkl/".as_slice(), &[0; 1 << 16]].concat()),
        ("a header of 4 GiB", begin(&[[0xff; 4].as_slice(), &[b' '; 1 << 20]].concat())),
        ("a frame over the limit of strangers", begin(&[&[0, 0, 0x10, 0], &endless[..]].concat())),
        ("a frame of garbage", begin(b"\0\0\0\x04\xff\xfe\xfd\xfc")),
        ("an empty frame", begin(b"\0\0\0\0")),
        ("deep JSON", begin(&[b"\0\0\x08\0".as_slice(), &[b'['; 0x800]].concat())),
        ("a frame that only node 0 says", begin(b"\0\0\0\x04\"go\"")),
        ("another job", Vec::new()),
    ];
    for (name, bytes) in &attacks {
        let stream = if bytes.is_empty() {
            let stream = claim(port, 1, 2, "another");
            assert!(frame(&stream).contains("muster.other-job"), "{name}");
            stream
        } else {
            let mut stream = dial(port);
            // Node 0 closes the connection in the middle of the write, once it has seen enough.
            let _ = stream.write_all(bytes);
            stream
        };
        until_hung_up(&stream);
    }
    // One attack sends frame after frame without end, as long as node 0 listens.
    let mut stream = claim(port, 1, 2, "strangers");
    assert!(frame(&stream).contains("welcome"));
    stream.write_all(b"\xff\xff\xff\xff").unwrap();
    while stream.write_all(&endless).is_ok() {}
    expect_small(&zero);
    let zero = runs(zero, port, None);
    // `listening` adds one; connections that were admitted or refused as nodes do not count.
    assert_eq!(counted(&zero), attacks.len(), "{}", zero.err);
}

/// If only silence counted, one byte at a time would keep a connection for ever.
#[test]
fn slow_handshakes_time_out_and_delay_nobody() {
    // All these bytes are valid: 58 bytes of a handshake that has 59.
    let handshake = [ENCRYPTED, b"\0\x30", &[7; 47]].concat();
    let slow = |port: u16, pause: Duration| {
        let (mut stream, handshake) = (dial(port), handshake.clone());
        std::thread::spawn(move || {
            let began = Instant::now();
            for byte in handshake {
                // The writer sees the end at its second write afterwards.
                if stream.write_all(&[byte]).is_err() {
                    return began.elapsed();
                }
                std::thread::sleep(pause);
            }
            panic!("it was listened to for {:?}", began.elapsed());
        })
    };
    // The whole handshake takes longer than its ten seconds, at either step.
    let pauses = [Duration::from_millis(400), Duration::from_millis(800)];
    let (zero, port) = listening(2, Some(SECRET));
    for stranger in pauses.map(|pause| slow(port, pause)) {
        let lasted = stranger.join().unwrap();
        assert!(lasted > Duration::from_secs(9), "{lasted:?}");
    }
    // No node waits for the strangers meanwhile.
    let strangers = pauses.map(|pause| slow(port, pause));
    let zero = runs(zero, port, Some(SECRET));
    assert!(counted(&zero) >= 3, "{}", zero.err);
    for stranger in strangers {
        // The stranger is disconnected at the latest with the listener.
        stranger.join().unwrap();
    }
}

#[test]
fn only_the_right_secret_is_admitted() {
    let (zero, port) = listening(2, Some(SECRET));
    // A node without a secret gets the reason and ends. A node with a secret believes nothing
    // unproven.
    let ended = node(1, 2, port, None).start().wait().expect_code(88);
    ended.expect_id("muster.secret");
    let words = "has no secret (RANKLAUNCH_SECRET), but this node has one: rejected";
    wait_until("node 0 says so", || zero.err().contains(words).then_some(()));
    let wait = |one: Launcher| one.env("RANKLAUNCH_WAIT_TIMEOUT", "4s").start().wait();
    let ended = wait(node(1, 2, port, Some("another secret altogether"))).expect_code(88);
    let ended = ended.expect_id("muster.secret");
    assert!(ended.err.contains("(0:03 of 0:04): node 0 (127.0.0.1:"), "{}", ended.err);
    assert!(ended.elapsed >= Duration::from_secs(4), "{:?}", ended.elapsed);
    let zero = runs(zero, port, Some(SECRET));
    assert!(counted(&zero) >= 4, "{}", zero.err);
    // A node 0 without a secret does not admit nodes that have one.
    let (zero, port) = listening(2, None);
    let ended = wait(node(1, 2, port, Some(SECRET))).expect_code(88);
    ended.expect_id("muster.secret");
    let zero = runs(zero, port, None);
    assert!(zero.err.contains("has a secret (RANKLAUNCH_SECRET), but this node has none"));
}

/// A client with rank 1 of 2 that answers each ping or none, and reports the frames that it
/// received.
fn ghost(port: u16, answers: bool) -> std::thread::JoinHandle<Vec<String>> {
    let stream = claim(port, 1, 2, "strangers");
    assert!(frame(&stream).contains("welcome"));
    std::thread::spawn(move || {
        let mut said = Vec::new();
        let mut length = [0; 4];
        while (&stream).read_exact(&mut length).is_ok() {
            let mut text = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
            if (&stream).read_exact(&mut text).is_err() {
                break;
            }
            if answers && text == b"\"ping\"" {
                let _ = (&stream).write_all(b"\0\0\0\x06\"pong\"");
            }
            said.push(String::from_utf8(text).unwrap());
        }
        said
    })
}

#[test]
fn stranger_gets_only_an_unclaimed_rank() {
    // An open ghost before the real node that answers no ping: the real node wins.
    let (zero, port) = listening(2, None);
    let mute = ghost(port, false);
    runs(zero, port, None);
    let heard = mute.join().unwrap();
    assert!(heard.iter().any(|frame| frame == "\"ping\""), "it was not asked: {heard:?}");

    // An open ghost before the real node that answers: both are named, and nothing runs.
    let (zero, port) = listening(2, None);
    let alive = ghost(port, true);
    let one = node(1, 2, port, None).start();
    for ended in [zero.wait(), one.wait()] {
        let ended = ended.expect_code(88).expect_nothing_left();
        let ended = ended.expect_id("muster.duplicate");
        assert!(ended.err.contains("ghost (127.0.0.1:"), "{}", ended.err);
        assert!(ended.out.is_empty(), "nothing ran: {}", ended.out);
    }
    alive.join().unwrap();

    // An open ghost after the real node, which waits for node 2: the same, the other way round.
    let (zero, port) = listening(3, None);
    let one = node(1, 3, port, None).start();
    let seen = || {
        let again = claim(port, 1, 3, "strangers");
        // The ghost is refused once the real node is there; before that, it would be admitted.
        let words = frame(&again);
        words.contains("muster.duplicate").then_some(words)
    };
    wait_until("node 1 is there", || one.err().contains("waiting").then_some(()));
    let words = wait_until("the ghost is refused", seen);
    assert!(words.contains("and ghost ("), "{words}");
    for ended in [zero.wait(), one.wait()] {
        let ended = ended.expect_code(88).expect_nothing_left();
        ended.expect_id("muster.duplicate");
    }
}

#[test]
fn secret_keeps_strangers_from_every_rank() {
    let (zero, port) = listening(2, Some(SECRET));
    // One client speaks like a node without a secret, the other like a node with another secret.
    let mut open = dial(port);
    open.write_all(PLAIN).unwrap();
    assert_eq!(until_hung_up(&open), b"rkl/mu\x05\x01\x02", "version 5, encrypted, other mode");
    let mut encrypted = dial(port);
    let message = [ENCRYPTED, b"\0\x30", &[7; 48]].concat();
    encrypted.write_all(&message).unwrap();
    assert_eq!(until_hung_up(&encrypted), b"rkl/mu\x05\x01\x00\0\0", "and: the secrets differ");
    let zero = runs(zero, port, Some(SECRET));
    assert_eq!(counted(&zero), 3, "{}", zero.err);
}

/// Forwards a node to `port` of node 0, and records the bytes that the node sent.
fn recorder(port: u16) -> (u16, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    let record = Arc::new(Mutex::new(Vec::new()));
    let written = Arc::clone(&record);
    std::thread::spawn(move || {
        let (mut node, _) = listener.accept().unwrap();
        let mut zero = dial(port);
        let (mut back_from, mut back_to) = (zero.try_clone().unwrap(), node.try_clone().unwrap());
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut back_from, &mut back_to);
            let _ = back_to.shutdown(Shutdown::Write);
        });
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = node.read(&mut bytes) {
            written.lock().unwrap().extend(&bytes[..read]);
            let _ = zero.write_all(&bytes[..read]);
        }
        let _ = zero.shutdown(Shutdown::Write);
    });
    (own, record)
}

/// A whole job of two nodes, in which node 1 connects through a recorder.
fn recorded(secret: Option<&str>) -> Vec<u8> {
    let (zero, port) = listening(2, secret);
    let (proxy, record) = recorder(port);
    let one = node(1, 2, proxy, secret).start();
    zero.wait().expect_code(0);
    one.wait().expect_code(0);
    let bytes = record.lock().unwrap().clone();
    assert!(bytes.len() > 300, "a whole session: {} bytes", bytes.len());
    bytes
}

#[test]
fn replayed_session_is_useless_with_a_secret() {
    // Without a secret, the same bytes act as a node, which shows that the replay works.
    let session = recorded(None);
    let (zero, port) = listening(2, None);
    let mut replay = dial(port);
    replay.write_all(&session).unwrap();
    let zero = zero.wait();
    assert!(zero.err.contains("all 2 nodes agree"), "{}", zero.err);

    let session = recorded(Some(SECRET));
    let (zero, port) = listening(2, Some(SECRET));
    for _ in 0..3 {
        let mut replay = dial(port);
        replay.write_all(&session).unwrap();
        let answer = until_hung_up(&replay);
        // Node 0 answers the first message with its own key, and reads nothing further.
        assert_eq!(answer.len(), 9 + 2 + 48, "{answer:?}");
    }
    assert!(!zero.err().contains("agree"), "{}", zero.err());
    let zero = runs(zero, port, Some(SECRET));
    assert!(zero.err.contains("has another secret: rejected"), "{}", zero.err);
    assert_eq!(counted(&zero), 4, "{}", zero.err);
}

/// The second port is where a node 0 with an occupied port would say so. Here it is as good as
/// blocked, because no node 0 runs.
#[test]
fn http_server_at_node_0s_port_is_named() {
    let port = free_port();
    let mut server = Command::new("python3");
    server.args(["-m", "http.server", "--bind", "127.0.0.1"]).arg(port.to_string());
    let mut server = server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    drop(dial(port));
    let one = node(1, 2, port, None).env("RANKLAUNCH_WAIT_TIMEOUT", "5s");
    let one = one.start().wait().expect_code(86).expect_nothing_left();
    let one = one.expect_id("master.reach");
    server.kill().unwrap();
    server.wait().unwrap();
    let named = format!("127.0.0.1:{port} is an HTTP server (SimpleHTTP/");
    for words in [format!("(0:03 of 0:05): {named}"), format!("was not reached in 5s: {named}")] {
        assert!(one.err.contains(&words), "{words}\n{}", one.err);
    }
    assert!(one.err.contains("another program holds the master port there"), "{}", one.err);
    let second =
        format!("tells the others on port {}, where nothing was heard", port_of_last_resort(port));
    assert!(one.err.contains(&second), "{second}\n{}", one.err);
}

/// The port as in src/muster/net.rs: 10 000 below, or above if there is no room below.
fn port_of_last_resort(port: u16) -> u16 {
    if port >= 20_000 { port - 10_000 } else { port + 10_000 }
}

/// The master port is free, and the muster's configured port is occupied.
#[test]
fn occupied_muster_port_ends_all_nodes_with_87() {
    let (port, own) = (free_port(), free_port());
    let holder = TcpListener::bind(("127.0.0.1", own)).unwrap();
    let with = |rank| node(rank, 2, port, None).env("RANKLAUNCH_MUSTER_PORT", own.to_string());
    let [zero, one] = [with(0), with(1)].map(Launcher::start);
    for ended in [zero.wait(), one.wait()] {
        let ended = ended.expect_code(87).expect_nothing_left();
        let ended = ended.expect_id("port.free");
        assert!(ended.err.contains(&format!(" {own} ")), "{own}\n{}", ended.err);
        assert!(ended.err.contains("deps/muster-"), "who holds it: {}", ended.err);
        assert!(ended.out.is_empty(), "nothing ran: {}", ended.out);
    }
    // The control: the port was the reason.
    drop(holder);
    let [zero, one] = [with(0), with(1)].map(Launcher::start);
    for ended in [zero.wait(), one.wait()] {
        ended.expect_code(0);
    }
}
