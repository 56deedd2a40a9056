//! A server that behaves as NCCL's does, and other servers that may listen on its port.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use super::view::read;
use super::*;
use text::rank::GlobalRank;

const SOON: Duration = Duration::from_secs(20);
const OWN: [(GlobalRank, i32); 2] = [(GlobalRank(0), 1524344), (GlobalRank(1), 1524345)];

/// The sample of NCCL's guide (docs/userguide/source/troubleshooting/ras.rst of 2.30), with counts.
const SAMPLE: &str = include_str!("sample.json");

#[derive(Debug, Clone, Copy, PartialEq)]
enum Plays {
    /// NCCL since 2.28.7.
    Json(&'static str),
    /// An older NCCL, which does not know the command.
    Text,
    /// The report stops in the middle.
    Cut,
    /// The server accepts and sends nothing.
    Silent,
    /// The server sends a byte at a time.
    Slow,
    Garbage,
    /// Another program: a web server.
    Http,
    /// Endless bytes.
    Endless,
    /// The server greets and closes.
    Closes,
}

/// Reads lines and answers them like NCCL's RAS thread.
fn serve(stream: TcpStream, plays: Plays) -> io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut out = stream;
    let mut json = false;
    match plays {
        Plays::Silent => return lines.read_line(&mut String::new()).and_then(|_| wait(&mut lines)),
        Plays::Slow => loop {
            out.write_all(b"S")?;
            std::thread::sleep(Duration::from_millis(20));
        },
        Plays::Garbage => return out.write_all(b"\x00\xff\x16\x03\x01\n\n\n"),
        Plays::Http => return out.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        Plays::Endless => loop {
            out.write_all(&[b'x'; 4096])?;
        },
        _ => {}
    }
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let line = line.trim_end().to_ascii_lowercase();
        let answer = match (line.as_str(), plays) {
            (line, _) if line.starts_with("client protocol ") => "SERVER PROTOCOL 2\n".to_owned(),
            _ if plays == Plays::Closes => return Ok(()),
            (line, _) if line.starts_with("timeout ") => {
                let number = line.trim_start_matches("timeout ").parse::<u32>();
                if number.is_ok() { "OK\n".to_owned() } else { "ERROR: Invalid\n".to_owned() }
            }
            ("set format json", Plays::Json(_) | Plays::Cut) => {
                json = true;
                "OK\n".to_owned()
            }
            ("status" | "verbose status", _) => {
                let report = match plays {
                    Plays::Json(report) if json => report,
                    Plays::Cut if json => &SAMPLE[..SAMPLE.len() / 2],
                    _ => "NCCL version 2.27.5 compiled with CUDA 12.9\n\nJob summary\n",
                };
                return out.write_all(report.as_bytes());
            }
            (line, _) => format!("ERROR: Unknown command {line}\n"),
        };
        out.write_all(answer.as_bytes())?;
    }
}

fn wait(lines: &mut impl BufRead) -> io::Result<()> {
    lines.read_line(&mut String::new()).map(|_| ())
}

/// The address of the server; each connection is served by the next of these.
fn server(plays: &'static [Plays]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for (stream, plays) in listener.incoming().zip(plays.iter().cycle()) {
            let Ok(stream) = stream else { return };
            std::thread::spawn(move || serve(stream, *plays));
        }
    });
    address
}

fn asked(plays: &'static [Plays], timeout: Duration) -> Result<RasReport, RasError> {
    ask(Some(&server(plays)), &OWN, timeout)
}

#[test]
fn report_names_dead_unresponsive_and_lagging_ranks() {
    let RasReport { text, view } = asked(&[Plays::Json(SAMPLE)], SOON).expect("a report");
    let view = view.expect("JSON was offered");
    assert_eq!(text, SAMPLE);
    let verdict = view.verdict(Some(4), &OWN);
    let ranks = |numbers: &[u32]| numbers.iter().map(|rank| GlobalRank(*rank)).collect();
    assert_eq!((verdict.dead, verdict.unresponsive), (ranks(&[3]), ranks(&[2])));
    assert_eq!(verdict.failed, ranks(&[]));
    let behind: Vec<_> = verdict
        .behind
        .iter()
        .map(|one| (one.rank.0, one.op.as_str(), one.count, one.most))
        .collect();
    assert_eq!(behind, [(1, "AllReduce", 40, 42)]);
    // In a communicator of some ranks only the ranks of this node can be identified.
    let verdict = view.verdict(Some(8), &OWN);
    assert_eq!((verdict.dead, verdict.behind[0].rank), (ranks(&[]), GlobalRank(1)));
    // The counts of senders and receivers may differ for ever.
    let sends = read(SAMPLE.replace("AllReduce", "Send").as_bytes()).expect("JSON");
    assert_eq!(sends.verdict(Some(4), &OWN).behind, []);
    // The control: all are reached and have launched as much.
    let even = SAMPLE.replace(": 40", ": 42").replace("true", "false");
    assert_eq!(read(even.as_bytes()).expect("JSON").verdict(Some(4), &OWN), RasVerdict::default());
}

#[test]
fn report_with_missing_commas_is_repaired() {
    let broken = SAMPLE.replace("\"nvml_dev\": 3,", "\"nvml_dev\": 3");
    assert_ne!(broken, SAMPLE);
    assert!(serde_json::from_str::<serde_json::Value>(&broken).is_err(), "the control");
    assert_eq!(read(broken.as_bytes()).expect("repaired"), read(SAMPLE.as_bytes()).expect("JSON"));
    let broken = SAMPLE.replace(
        "},\n          {\n            \"rank\": 3",
        "}\n          {\n            \"rank\": 3",
    );
    assert_ne!(broken, SAMPLE);
    assert_eq!(read(broken.as_bytes()).expect("repaired"), read(SAMPLE.as_bytes()).expect("JSON"));
    for text in ["", "{", "{\"a\" \"b\"}", "[1 2]", "\"", "}{", "{\"communicators\":[{}{}]"] {
        assert!(read(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn nccl_without_json_yields_plain_text() {
    let report = asked(&[Plays::Text], SOON).expect("a report");
    assert!(report.text.starts_with("NCCL version 2.27.5"));
    assert_eq!(report.view, None);
}

#[test]
fn invalid_report_is_refused_in_time() {
    let short = Duration::from_millis(400);
    for (plays, timeout, expected) in [
        (&[Plays::Cut][..], SOON, "cannot be read: EOF"),
        (&[Plays::Silent], short, "does not answer: "),
        (&[Plays::Slow], short, "does not answer: "),
        (&[Plays::Garbage], SOON, "is not NCCL RAS"),
        (&[Plays::Http], SOON, "is not NCCL RAS, it said \"HTTP/1.1 400 Bad Request\""),
        (&[Plays::Endless], SOON, "is not NCCL RAS"),
        (&[Plays::Closes], SOON, ""),
    ] {
        let began = Instant::now();
        let error = asked(plays, timeout).expect_err("no report").to_string();
        assert!(error.contains(expected), "{plays:?}: {error}");
        assert!(began.elapsed() < SOON / 2, "{plays:?}");
    }
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one");
    let error = ask(Some(&free.to_string()), &OWN, SOON).expect_err("nobody").to_string();
    assert!(error.contains("does not answer: "), "{error}");
    for address in ["x", "host:", "host:99999", "nonsense:80:80"] {
        let error = ask(Some(address), &OWN, SOON).expect_err("no address").to_string();
        assert!(error.contains(&format!("NCCL_RAS_ADDR={address} is not an address")), "{error}");
    }
}

#[test]
fn answer_of_another_job_is_skipped() {
    const OTHER: &str = r#"{"communicators":[{"size":4,"ranks":[{"rank":0,"host":"h","pid":5}]}]}"#;
    let found = asked(&[Plays::Json(OTHER), Plays::Json(SAMPLE)], SOON).expect("the second");
    assert_eq!(found.text, SAMPLE);
    let error = asked(&[Plays::Json(OTHER)], SOON).expect_err("never ours").to_string();
    assert!(error.contains("answers for another job"), "{error}");
}

#[test]
fn arbitrary_bytes_never_panic() {
    fuzz::ras(SAMPLE.as_bytes());
    for cut in 0..SAMPLE.len() {
        fuzz::ras(&SAMPLE.as_bytes()[..cut]);
        let mut other = SAMPLE.as_bytes().to_vec();
        other[cut] ^= 0x15;
        fuzz::ras(&other);
    }
}

/// Each node hears of all ranks, and reports them to node 0.
#[test]
fn list_of_lagging_ranks_is_bounded() {
    let rank = |number: u32| {
        let count = if number == 7 { 3 } else { 9 + u64::from(number == 0) };
        serde_json::json!({ "rank": number, "collective_counts": { "AllReduce": count } })
    };
    let ranks: Vec<_> = (0..5000).map(rank).collect();
    let report = serde_json::json!({ "communicators": [{ "size": 5000, "ranks": ranks }] });
    let view = read(report.to_string().as_bytes()).expect("a report");
    let behind = view.verdict(Some(5000), &[]).behind;
    assert_eq!(behind.first().map(|one| (one.rank, one.count)), Some((GlobalRank(7), 3)));
    assert_eq!(behind.len(), 512);
}

/// A process with this environment, which waits for its input to end.
fn rank(variables: &[(&str, &str)]) -> Child {
    let mut command = Command::new("cat");
    command.env_clear().envs(variables.iter().copied());
    command.stdin(std::process::Stdio::piped()).spawn().expect("cat")
}

#[test]
fn rank_environment_names_the_ras_address() {
    let host = Host::live();
    let named = Some(Some("127.0.0.1:4000".to_owned()));
    for (variables, gpus, else_named) in [
        (&[(ADDRESS, "127.0.0.1:4000")][..], &named, &named),
        (&[(ADDRESS, "127.0.0.1:4000"), (ENABLED, "0")], &None, &None),
        (&[(ADDRESS, "127.0.0.1:4000"), (ENABLED, "1")], &named, &named),
        (&[], &Some(None), &None),
        (&[(ADDRESS, "")], &Some(None), &None),
    ] {
        let mut child = rank(variables);
        let ranks = [(GlobalRank(0), child.id().cast_signed())];
        assert_eq!(&address(&host, RasSource::Gpus, &ranks), gpus, "{variables:?}");
        assert_eq!(&address(&host, RasSource::IfNamed, &ranks), else_named, "{variables:?}");
        assert!(processes(&ranks).contains(&ranks[0]));
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }
}
