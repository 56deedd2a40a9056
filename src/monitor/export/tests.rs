use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::openmetrics::{Format, render};
use super::otlp::{OtlpTarget, spans_json};
use super::post::{HttpUrl, PostError, post};
use super::request::{Bad, is_loopback, parse};
use super::server::HttpServer;
use crate::status::{
    EndStatus, GpuStatus, NodeStatus, Phase, PhaseTime, RankState, RunStatus, SlowStatus,
    StatusBoard,
};
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
fn a_status_is_a_page_of_openmetrics() {
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
    // What NVML does not say is no zero.
    assert!(!page.contains("ranklaunch_gpu_power_watts"));
}

/// A hang is found after some minutes, which the time in which the job ran loses then.
#[test]
fn no_counter_falls_when_a_hang_is_found() {
    let mut status = status();
    status.ledger.running_ms = 700_000;
    status.ledger.stalled_ms = 400_000;
    status.ledger.most_running_ms = 1_000_000;
    let page = render(&status, Format::OpenMetrics);
    let spent = |state: &str| {
        value(&page, &format!("ranklaunch_spent_seconds_total{{state=\"{state}\"}}")).to_owned()
    };
    assert_eq!((spent("running"), spent("stalled")), ("1000".to_owned(), "100".to_owned()));
    let share = value(&page, "ranklaunch_goodput_ratio").parse::<f64>().expect("a number");
    assert!((0.63..0.64).contains(&share), "{share}");
}

/// All families stand once, with help and type, their samples together.
#[test]
fn each_family_stands_once_in_both_formats() {
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
    // Nothing is known of a run that began in this millisecond.
    let until = Instant::now() + SOON;
    while !status()["goodput"].is_number() {
        assert!(Instant::now() < until, "no goodput");
    }
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
fn who_is_slow_or_sends_garbage_keeps_nobody_from_the_pages() {
    let server = serve(board());
    assert_eq!(code(&get(&server, "\x16\x03\x01\x02\r\n")), "400");
    assert_eq!(code(&get(&server, &"x".repeat(64 * 1024))), "431");
    assert_eq!(code(&get(&server, &format!("GET /{}", "x".repeat(8 * 1024)))), "431");
    // More than there are places, which say nothing, a part, or do not take their answer.
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
    // The oldest ones had to leave.
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
fn nothing_listens_after_the_end() {
    let server = serve(board());
    let address = server.address();
    drop(server);
    let until = Instant::now() + SOON;
    while TcpStream::connect(address).is_ok() {
        assert!(Instant::now() < until, "it still listens");
    }
}

fn target(pairs: &[(&str, &str)]) -> Result<Option<OtlpTarget>, Text> {
    let pairs: BTreeMap<&str, &str> = pairs.iter().copied().collect();
    OtlpTarget::of(|name| pairs.get(name).map(|value| (*value).to_owned()))
}

#[test]
fn the_standard_variables_are_understood() {
    let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/");
    assert_eq!(target(&[]), Ok(None));
    assert_eq!(target(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]), Ok(None));
    assert_eq!(target(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
    let url = |pairs: &[(&str, &str)]| target(pairs).expect("understood").expect("wanted").url;
    assert_eq!(url(&[endpoint]), "http://c:4318/v1/traces");
    let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://d:1/x");
    assert_eq!(url(&[endpoint, traces]), "http://d:1/x");
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20a, x = y");
    let headers = target(&[endpoint, headers]).expect("understood").expect("wanted").headers;
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(headers, [pair("authorization", "Bearer a"), pair("x", "y")]);
    assert!(target(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).is_err());
    assert!(target(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c")]).is_err());
}

/// Each is printed, and stands in the journal.
#[test]
fn an_address_is_quoted_without_its_secrets() {
    let said = |text: Text| {
        assert!(!text.en.contains("S3CR3T") && !text.zh.contains("S3CR3T"), "{text:?}");
        text.en.into_owned()
    };
    let refused = HttpUrl::parse("http://me:S3CR3T@c:4318/v1/traces").expect_err("no user");
    assert!(said(refused.text()).contains("http://***@c:4318/v1/traces"));
    for url in ["https://me:S3CR3T@c", "me:S3CR3T@c:4318", "https://c/?token=S3CR3T"] {
        let why = target(&[("OTEL_EXPORTER_OTLP_ENDPOINT", url)]).expect_err("no http");
        assert!(said(why).contains("***"), "{url}");
    }
}

#[test]
fn what_the_user_says_of_the_resource_wins_and_each_key_is_there_once() {
    let target = target(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
        ("OTEL_SERVICE_NAME", "training"),
        ("OTEL_RESOURCE_ATTRIBUTES", "host.name=mine,service.name=other,a=1,a=2"),
    ]);
    let target = target.expect("understood").expect("wanted");
    let phase = PhaseTime { phase: Phase::Running, attempt: 0, began_ms: 5, ended_ms: None };
    let document = spans_json(&target, &status(), &[phase]).expect("spans");
    let attributes = document["resourceSpans"][0]["resource"]["attributes"].as_array();
    let attributes: Vec<(&str, &str)> = attributes
        .expect("attributes")
        .iter()
        .filter_map(|one| Some((one["key"].as_str()?, one["value"]["stringValue"].as_str()?)))
        .collect();
    let version = env!("CARGO_PKG_VERSION");
    let expected = [
        ("a", "2"),
        ("host.name", "mine"),
        ("service.name", "training"),
        ("service.version", version),
    ];
    assert_eq!(attributes, expected);
}

fn spans(target: &OtlpTarget, node: u32) -> Vec<Value> {
    let mut status = status();
    if let Some(run) = &mut status.run {
        run.node = node;
    }
    status.end = Some(EndStatus {
        code: 1,
        id: "rank.exit".to_owned(),
        cause: Some("cuda_oom".to_owned()),
        rank: None,
        node: None,
        text: Text::same("rank 3"),
    });
    let phase =
        |phase, attempt, began_ms, ended_ms| PhaseTime { phase, attempt, began_ms, ended_ms };
    let phases = [
        phase(Phase::Running, 1, 5, Some(8)),
        phase(Phase::Finishing, 1, 8, Some(10)),
        phase(Phase::Pausing, 1, 10, Some(15)),
        phase(Phase::Launching, 2, 15, Some(20)),
        phase(Phase::Running, 2, 20, Some(22)),
        phase(Phase::Finishing, 2, 22, None),
    ];
    let document = spans_json(target, &status, &phases).expect("spans");
    let spans = &document["resourceSpans"][0]["scopeSpans"][0]["spans"];
    spans.as_array().expect("spans").clone()
}

#[test]
fn an_attempt_is_a_span_with_its_phases() {
    let plain = target(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c")]).expect("one").expect("one");
    let all = spans(&plain, 1);
    let names: Vec<_> = all.iter().map(|span| span["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["node 1 attempt 2", "pausing", "launching", "running", "finishing"]);
    let [root, first, ..] = all.as_slice() else { panic!("two") };
    assert_eq!(
        (&root["startTimeUnixNano"], &first["endTimeUnixNano"]),
        (&json!("10000000"), &json!("15000000"))
    );
    assert_eq!(root["status"], json!({ "code": 2, "message": "rank 3" }));
    assert!(root["parentSpanId"].is_null() && first["parentSpanId"] == root["spanId"]);
    let other = spans(&plain, 0);
    assert_eq!(other[0]["traceId"], root["traceId"], "the nodes of a run have one trace");
    assert_ne!(other[0]["spanId"], root["spanId"]);
    assert_eq!(root["traceId"].as_str().map(str::len), Some(32));
    assert_eq!(root["spanId"].as_str().map(str::len), Some(16));
    let (trace, span) = ("a".repeat(32), "b".repeat(16));
    let parent = format!("00-{trace}-{span}-01");
    let pairs = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"), ("TRACEPARENT", parent.as_str())];
    let below = spans(&target(&pairs).expect("one").expect("one"), 1);
    assert_eq!((&below[0]["traceId"], &below[0]["parentSpanId"]), (&json!(trace), &json!(span)));
}

#[tokio::test]
async fn a_document_is_posted_within_its_time() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let url = HttpUrl::parse(&format!("http://localhost:{port}/v1/traces")).expect("a URL");
    let here = [IpAddr::from(Ipv4Addr::LOCALHOST)];
    let collector = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for answer in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 429 Too Many\r\n\r\n", "SSH-2.0\r\n"] {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = Vec::new();
            while !request.ends_with(b"{}") {
                let mut bytes = [0; 512];
                let count = stream.read(&mut bytes).expect("readable");
                assert!(count > 0, "{request:?}");
                request.extend_from_slice(&bytes[..count]);
            }
            stream.write_all(answer.as_bytes()).expect("answered");
            asked.push(String::from_utf8(request).expect("text"));
        }
        // The last one gets no answer.
        (listener.accept().expect("a client"), asked)
    });
    let headers = [("x".to_owned(), "y\r\nz: 1".to_owned())];
    post(&url, &here, &headers, b"{}", SOON).await.expect("taken");
    for code in ["429", "SSH"] {
        let refused = post(&url, &here, &[], b"{}", SOON).await.expect_err("refused");
        assert!(matches!(&refused, PostError::Refused(line) if line.contains(code)), "{refused:?}");
    }
    let late = post(&url, &here, &[], b"{}", Duration::from_millis(50)).await.expect_err("late");
    assert!(matches!(late, PostError::Late(_)), "{late:?}");
    let (_, asked) = collector.join().expect("it ran");
    assert!(asked[0].starts_with("POST /v1/traces HTTP/1.1\r\nHost: localhost:"), "{}", asked[0]);
    assert!(asked[0].contains("\r\nx: yz: 1\r\n"), "{}", asked[0]);
    for url in ["ftp://a/", "http://", "http://a:x/", "http://u@a/", "http://a b/", "a:1"] {
        assert!(HttpUrl::parse(url).is_err(), "{url}");
    }
    let ports = ["http://a/", "https://a/"].map(|url| HttpUrl::parse(url).expect("a URL").port);
    assert_eq!(ports, [80, 443]);
    assert_eq!(HttpUrl::parse("http://[::1]:4318").expect("a URL").host, "::1");
}

#[test]
fn states_have_their_names() {
    for state in RankState::ALL {
        assert_eq!(serde_json::to_value(state).expect("JSON"), state.name());
    }
    for phase in Phase::ALL {
        assert_eq!(serde_json::to_value(phase).expect("JSON"), phase.name());
    }
}
