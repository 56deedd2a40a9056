use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use strum::VariantArray;

use super::openmetrics::{Format, render};
use super::trainjob::{HttpUrl, TrainJobTarget};
use super::{Bad, HttpServer, is_loopback, parse};
use crate::status::{GpuStatus, NodeStatus, Phase, RankState, RunStatus, SlowStatus, StatusBoard};
use text::lang::Text;
use text::rank::{GlobalRank, LocalRank, RankId};
use verdict::outcome::Notice;

const SOON: Duration = Duration::from_secs(20);

fn board() -> StatusBoard {
    let board = StatusBoard::new("worker-1".to_owned());
    let run = RunStatus {
        run_id: Some("job-1".to_owned()),
        attempt: 2,
        node: 1,
        nodes: 2,
        world_size: 4,
        engine: "torchrun".to_owned(),
        program: "train\"\\.py".to_owned(),
        ..RunStatus::default()
    };
    let rank = RankId { global: GlobalRank(3), local: LocalRank(1) };
    let gpu = GpuStatus {
        gpu: 5,
        local_rank: Some(LocalRank(1)),
        utilization: Some(93),
        clock: Some(1410),
        energy: Some(12_345.678),
        ..GpuStatus::default()
    };
    board.run(run.clone());
    board.enter(Phase::Launching);
    board.attempt(run, &[rank], vec![gpu]);
    board.notice(&Notice::RankStarted { rank, pid: 7 });
    board
}

fn status() -> NodeStatus {
    let mut status = board().snapshot();
    status.findings.insert("a\nb".to_owned(), 3);
    status.slow = vec![SlowStatus { rank: GlobalRank(0), lost: 0.25, ..SlowStatus::default() }];
    status
}

/// The value of a sample.
fn value<'a>(page: &'a str, sample: &str) -> &'a str {
    let found = page.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {sample} in\n{page}"))
}

#[test]
fn status_renders_as_an_openmetrics_page() {
    let page = render(&status(), Format::OpenMetrics);
    assert!(page.ends_with("# EOF\n"));
    for (sample, expected) in [
        ("ranklaunch_phase{ranklaunch_phase=\"running\"}", "1"),
        ("ranklaunch_phase{ranklaunch_phase=\"agreeing\"}", "0"),
        ("ranklaunch_restarts_total", "2"),
        ("ranklaunch_rank_up{rank=\"3\",local_rank=\"1\"}", "1"),
        ("ranklaunch_ranks{state=\"running\"}", "1"),
        ("ranklaunch_gpu_utilization_ratio{gpu=\"5\",uuid=\"\",rank=\"3\"}", "0.93"),
        ("ranklaunch_gpu_clock_hertz{gpu=\"5\",uuid=\"\",rank=\"3\"}", "1410000000"),
        ("ranklaunch_gpu_energy_joules_total{gpu=\"5\",uuid=\"\",rank=\"3\"}", "12345.678"),
        ("ranklaunch_findings_total{id=\"a\\nb\"}", "3"),
        ("ranklaunch_slow_rank_lost_ratio{rank=\"0\"}", "0.25"),
        ("ranklaunch_standstill", "0"),
    ] {
        assert_eq!(value(&page, sample), expected, "{sample}");
    }
    assert!(page.contains("program=\"train\\\"\\\\.py\""), "{page}");
    assert!(page.contains("# TYPE ranklaunch_run info\n"));
    assert!(page.contains("# TYPE ranklaunch_restarts counter\n"));
    assert!(page.contains("# UNIT ranklaunch_spent_seconds seconds\n"));
    // A value that NVML does not report is not shown as zero.
    assert!(!page.contains("ranklaunch_gpu_power_watts"));
}

/// A hang is detected some minutes late, and these minutes are then subtracted from the running
/// time.
#[test]
fn no_counter_falls_when_a_hang_is_found() {
    let mut status = status();
    status.ledger.running_ms = 700_000;
    status.ledger.stalled_ms = 400_000;
    status.ledger.most_running_ms = 1_000_000;
    status.ledger.goodput_ms = Some(550_000);
    let page = render(&status, Format::OpenMetrics);
    let spent = |state: &str| {
        value(&page, &format!("ranklaunch_spent_seconds_total{{state=\"{state}\"}}")).to_owned()
    };
    assert_eq!((spent("running"), spent("stalled")), ("1000".to_owned(), "100".to_owned()));
    let share = value(&page, "ranklaunch_goodput_ratio").parse::<f64>().expect("a number");
    assert!((0.49..0.51).contains(&share), "{share}");
    // Without steps the word is not used.
    status.ledger.goodput_ms = None;
    assert!(!render(&status, Format::OpenMetrics).contains("goodput"));
}

/// Every family appears once, with help and type, and its samples stand together.
#[test]
fn each_family_appears_once_in_both_formats() {
    for format in [Format::OpenMetrics, Format::Text] {
        let page = render(&status(), format);
        let mut types: BTreeMap<&str, &str> = BTreeMap::new();
        let mut current = "";
        for line in page.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (family, kind) = rest.split_once(' ').expect("a type");
                assert!(types.insert(family, kind).is_none(), "{family} stands twice");
                current = family;
                let known = ["gauge", "counter", "info", "stateset"];
                assert!(known.contains(&kind) && family.starts_with("ranklaunch_"), "{line}");
                assert!(format == Format::OpenMetrics || !["info", "stateset"].contains(&kind));
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().expect("a name");
                let end =
                    name.strip_prefix(current).unwrap_or_else(|| panic!("{line} in {current}"));
                let expected = match (format, types.get(current)) {
                    (Format::OpenMetrics, Some(&"counter")) => "_total",
                    (Format::OpenMetrics, Some(&"info")) => "_info",
                    _ => "",
                };
                assert_eq!(end, expected, "{line}");
                let value = line.rsplit(' ').next().expect("a value");
                assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            }
        }
        assert!(types.len() > 25, "{}", types.len());
    }
}

#[test]
fn requests_are_read_or_refused() {
    let whole = |head: &str| parse(format!("{head}\r\n\r\n").as_bytes());
    let asked = whole("GET /metrics?x=1 HTTP/1.1\r\nHost: a:1\r\naccept: b").expect("HTTP");
    let asked = asked.expect("whole");
    assert_eq!(
        (asked.path.as_str(), asked.only_head, asked.accept.as_str()),
        ("/metrics", false, "b")
    );
    assert_eq!(asked.host.as_deref(), Some("a:1"));
    assert_eq!(parse(b"GET /metr"), Ok(None));
    assert_eq!(whole("POST /metrics HTTP/1.1"), Err(Bad::Method));
    assert_eq!(parse(b"\x16\x03\x01\x02\x00\x01"), Err(Bad::Garbage));
    assert_eq!(parse(&[b'a'; 8 * 1024]), Err(Bad::TooLong));
    let many = format!("GET / HTTP/1.1{}", "\r\na: b".repeat(100));
    assert_eq!(whole(&many), Err(Bad::TooLong));
    for (host, expected) in [
        ("localhost:9400", true),
        ("LOCALHOST", true),
        ("127.0.0.2:1", true),
        ("[::1]:9400", true),
        ("[localhost", false),
        ("[::1].evil.com", false),
        ("[::1]:9400.evil.com", false),
        ("[::1]x", false),
        ("[localhost]", false),
        ("[::1", false),
        ("evil.example:9400", false),
        ("localhost.evil.example", false),
        ("10.0.0.1", false),
    ] {
        assert_eq!(is_loopback(host), expected, "{host}");
    }
}

fn serve(board: StatusBoard) -> HttpServer {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    HttpServer::start(address, board).expect("a port")
}

fn get(server: &HttpServer, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).expect("connected");
    stream.set_read_timeout(Some(SOON)).expect("a limit");
    stream.write_all(request.as_bytes()).expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn code(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_else(|| panic!("no answer: {answer:?}"))
}

#[test]
fn pages_are_served() {
    let board = board();
    let server = serve(board.clone());
    let page =
        |path: &str| get(&server, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    assert_eq!(code(&page("/healthz")), "200");
    assert!(page("/readyz").ends_with("\r\n\r\nrunning\n"));
    assert!(page("/metrics").contains("\r\nContent-Type: text/plain; version=0.0.4"));
    let accept =
        "GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n";
    assert!(get(&server, accept).ends_with("# EOF\n"));
    let status = || {
        let answer = page("/status");
        let document = answer.split_once("\r\n\r\n").expect("a body").1;
        serde_json::from_str::<Value>(document).expect("JSON")
    };
    assert_eq!(status()["ranks"][0]["state"], "running");
    // No line has told a step.
    assert!(status()["goodput"].is_null());
    assert_eq!(code(&page("/none")), "404");
    assert_eq!(code(&get(&server, "POST /metrics HTTP/1.1\r\n\r\n")), "405");
    let rebound = get(&server, "GET /status HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    assert_eq!(code(&rebound), "403");
    let head = get(&server, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: "), "{head}");
    board.enter(Phase::Stopping);
    // The status may be a moment old.
    let until = Instant::now() + SOON;
    while code(&page("/readyz")) != "503" {
        assert!(Instant::now() < until, "it is still ready");
    }
}

#[test]
fn slow_or_invalid_clients_do_not_block_others() {
    let server = serve(board());
    assert_eq!(code(&get(&server, "\x16\x03\x01\x02\r\n")), "400");
    assert_eq!(code(&get(&server, &"x".repeat(64 * 1024))), "431");
    assert_eq!(code(&get(&server, &format!("GET /{}", "x".repeat(8 * 1024)))), "431");
    // Fill more than all places with clients that send nothing, send a part, or do not read their
    // answer.
    let idle: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut stream = TcpStream::connect(server.address()).expect("connected");
            let said: &[u8] = match number % 3 {
                0 => b"",
                1 => b"GET /met",
                _ => b"GET /metrics HTTP/1.1\r\n\r\n",
            };
            stream.write_all(said).expect("said");
            stream
        })
        .collect();
    for _ in 0..5 {
        assert_eq!(code(&get(&server, "GET /healthz HTTP/1.1\r\n\r\n")), "200");
    }
    // The oldest connections were closed.
    let mut first = idle.first().expect("one");
    first.set_read_timeout(Some(SOON)).expect("a limit");
    assert!(matches!(first.read(&mut [0; 1]), Ok(0) | Err(_)));
    // A client that closes its side after its request gets its answer.
    let mut stream = TcpStream::connect(server.address()).expect("connected");
    stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").expect("asked");
    stream.shutdown(Shutdown::Write).expect("half closed");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert_eq!(code(&answer), "200");
    drop(idle);
}

#[test]
fn server_stops_listening_when_dropped() {
    let server = serve(board());
    let address = server.address();
    drop(server);
    let until = Instant::now() + SOON;
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < until, "it still listens");
    }
}

#[test]
fn url_is_split_into_its_parts() {
    for url in ["ftp://a/", "http://", "http://a:x/", "http://u@a/", "http://a b/", "a:1"] {
        assert_eq!(HttpUrl::parse(url), None, "{url}");
    }
    let ports = ["http://a/", "https://a/"].map(|url| HttpUrl::parse(url).expect("a URL").port);
    assert_eq!(ports, [80, 443]);
    assert_eq!(HttpUrl::parse("http://[::1]:4318").expect("a URL").host, "::1");
}

/// The address is printed and recorded in the journal.
#[test]
fn refused_url_is_quoted_without_secrets() {
    for url in ["https://me:S3CR3T@c", "me:S3CR3T@c:4318", "ftp://c/?token=S3CR3T"] {
        let variable = |name: &str| (name == super::trainjob::URL).then(|| url.to_owned());
        let Text { en, zh } = TrainJobTarget::of(variable).expect_err("no address");
        assert!(en.contains("***") && !en.contains("S3CR3T") && !zh.contains("S3CR3T"), "{en}");
    }
}

#[test]
fn state_and_phase_names_match_their_json() {
    for state in RankState::VARIANTS {
        assert_eq!(serde_json::to_value(state).expect("JSON"), state.name());
    }
    for phase in Phase::VARIANTS {
        assert_eq!(serde_json::to_value(phase).expect("JSON"), phase.name());
    }
}
