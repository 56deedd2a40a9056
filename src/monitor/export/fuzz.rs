//! Requests of HTTP and the text of metrics as functions that a fuzzer feeds. Not part of the program.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use super::openmetrics::{Format, render};
use super::{LARGEST, Pages, is_loopback, parse};
use crate::status::{NodeStatus, StatusBoard};

const CODES: &[&str] = &["200", "400", "403", "404", "405", "431", "503"];
const PATHS: &[&str] = &["/", "/healthz", "/readyz", "/metrics", "/status"];

/// A request to the pages. The first byte chooses whether the server listens on a loopback address.
///
/// Every answer is valid HTTP with the correct length. Only a known path gets a page; on a loopback address, only
/// under a name of this machine. Further bytes never change the answer.
pub fn http(data: &[u8]) -> bool {
    let [mode, bytes @ ..] = data else { return false };
    let only_loopback = mode & 1 == 1;
    // The server cuts the request at the same length.
    let bytes = &bytes[..bytes.len().min(LARGEST)];
    let parsed = parse(bytes);
    let half = parse(&bytes[..bytes.len() / 2]);
    match &half {
        Ok(None) => {}
        known => assert_eq!(known, &parsed, "more bytes changed it"),
    }
    let Some(request) = parsed.transpose() else {
        assert!(bytes.len() < LARGEST, "it waits for more");
        return false;
    };
    let known = request.as_ref().ok().cloned();
    let answer = Pages::new(StatusBoard::new("node".to_owned()), only_loopback).answer(request);
    let answer = String::from_utf8(answer).expect("UTF-8");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(!head.chars().any(|letter| letter.is_control() && !matches!(letter, '\r' | '\n')));
    let code = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).expect("a code");
    assert!(CODES.contains(&code), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let length: usize = length.and_then(|length| length.parse().ok()).expect("a length");
    let Some(request) = known else {
        assert!(code.starts_with('4') && length == body.len(), "{answer}");
        return false;
    };
    assert_eq!(if request.only_head { 0 } else { length }, body.len(), "{head}");
    let is_here = request.host.as_deref().is_none_or(|host| host.is_empty() || local(host));
    if matches!(code, "200" | "503") {
        assert!(PATHS.contains(&request.path.as_str()), "{request:?}");
        assert!(!only_loopback || is_here, "{request:?}");
    }
    if let Some(host) = &request.host {
        assert!(!is_loopback(host) || local(host), "{host}");
    }
    true
}

/// Recognises a name of this machine by other code than the server's.
fn local(host: &str) -> bool {
    let is_own = |name: &str| {
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|one| one.is_loopback())
    };
    let socket = host.parse::<SocketAddr>().is_ok_and(|one| one.ip().is_loopback());
    let before = |mark: char| host.split_once(mark).is_some_and(|(name, _)| is_own(name));
    // The text after an address in brackets is ignored, and so is a port.
    socket
        || is_own(host)
        || before(':')
        || before(']')
        || host.rsplit_once(':').is_some_and(|(name, _)| is_own(name))
}

/// The status of a node, as JSON, as metrics of both formats, read by the rules of OpenMetrics 1.0 and of Prometheus.
pub fn metrics(data: &[u8]) -> bool {
    let Ok(mut status) = serde_json::from_slice::<NodeStatus>(data) else { return false };
    // A board has each rank, GPU and interface once, and counts upwards.
    let mut seen = BTreeSet::new();
    status.ranks.retain(|one| seen.insert(("rank", one.rank.to_string())));
    status.gpus.retain(|one| seen.insert(("gpu", one.gpu.to_string())));
    status.interfaces.retain(|one| seen.insert(("interface", one.interface.clone())));
    status.hcas.retain(|one| seen.insert(("hca", one.port.clone())));
    status.slow.retain(|one| seen.insert(("slow", one.rank.to_string())));
    let upwards = |count: &mut Option<f64>| *count = count.map(f64::abs);
    status.ranks.iter_mut().for_each(|one| upwards(&mut one.cpu_seconds));
    status.gpus.iter_mut().for_each(|one| upwards(&mut one.energy));
    let open = render(&status, Format::OpenMetrics);
    assert!(open.ends_with("# EOF\n") && open.matches("# EOF\n").count() == 1, "{open}");
    page(open.strip_suffix("# EOF\n").unwrap_or_default());
    page(&render(&status, Format::Text));
    true
}

/// One page: each family once and in one piece, each sample below its family and once, each line well formed.
fn page(text: &str) {
    let mut families: BTreeSet<&str> = BTreeSet::new();
    let mut samples: BTreeSet<&str> = BTreeSet::new();
    let mut family = "";
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (kind, name) = (words.next().expect("a kind"), words.next().expect("a name"));
            assert!(["HELP", "TYPE", "UNIT"].contains(&kind), "{line}");
            if kind == "HELP" {
                assert!(families.insert(name), "{name} twice");
                family = name;
            }
            assert_eq!(name, family, "{line}");
            continue;
        }
        let (series, value) = sample(line);
        assert!(samples.insert(series), "{series} twice");
        let name = series.split('{').next().unwrap_or_default();
        assert!(!family.is_empty() && name.starts_with(family), "{line} below {family}");
        let number = value.parse::<f64>();
        assert!(number.is_ok(), "{line}");
        if name.ends_with("_total") {
            assert!(number.is_ok_and(|number| number >= 0.0), "{line}");
        }
    }
}

/// A line as the series and its value.
fn sample(line: &str) -> (&str, &str) {
    let end = match line.find('{') {
        None => line.find(' ').expect("a value"),
        Some(open) => {
            let mut at = open + 1;
            let bytes = line.as_bytes();
            // label="text", … }
            loop {
                let equals = at + line[at..].find("=\"").expect("a label");
                let label = &line[at..equals];
                assert!(label.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{line}");
                at = equals + 2;
                while bytes[at] != b'"' {
                    if bytes[at] == b'\\' {
                        assert!(matches!(bytes[at + 1], b'\\' | b'"' | b'n'), "{line}");
                        at += 1;
                    }
                    at += 1;
                }
                at += 1;
                match bytes[at] {
                    b',' => at += 1,
                    b'}' => break at + 1,
                    _ => panic!("{line}"),
                }
            }
        }
    };
    let (series, value) = line.split_at(end);
    (series, value.strip_prefix(' ').expect("a blank"))
}
