use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use monitor::history::{JournalReader, NodeHistory};

/// Output that a rank may print to break out of the page.
const HOSTILE: &str = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> &lt; \u{2028}\u{2029} {{data}} {{nonce}} ]]>";

fn node(number: u32, ranks: u32, samples: u32) -> NodeHistory {
    let mut journal = JournalReader::default();
    let mut line = |second: u32, fields: Value| {
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        let stamp = format!("2026-11-23T{hour:02}:{minute:02}:{second:02}Z");
        let line = json!({ "timestamp": stamp, "fields": fields });
        journal.line(line.to_string().as_bytes());
    };
    let both = |words: String| json!({ "en": words, "zh": format!("中文 {words}") });
    let checks: Vec<Value> = (0..25)
        .map(|at| {
            let severity = if at < 3 { "warn" } else { "ok" };
            let text =
                both(format!("{} GiB are free on node {number}, which is enough", at * number));
            json!({ "id": format!("check.{at}"), "severity": severity, "text": text, "hint": text })
        })
        .collect();
    line(
        0,
        json!({ "message": "checked", "host": format!("worker-{number}.{HOSTILE}"),
        "versions": { "torch": "2.9.0" }, "environment": { "NCCL_DEBUG": HOSTILE }, "checks": checks }),
    );
    let decisions: Vec<Value> = (0..30)
        .map(|at| {
            let because = both(format!("because it is the {at}th value and there is a reason"));
            json!({ "what": format!("value_{at}"), "value": "2", "because": because, "source": "solved" })
        })
        .collect();
    line(
        1,
        json!({ "message": "planned", "run_id": format!("run-{HOSTILE}"), "attempt": 0,
        "node": number, "members": 125, "lang": "en",
        "plan": { "engine": "torchrun", "world_size": 1000, "decisions": decisions } }),
    );
    for local in 0..ranks {
        let rank = number * ranks + local;
        line(2, json!({ "began": rank, "local": local, "pid": 1000 + rank }));
    }
    for sample in 0..samples {
        let numbers = 0..ranks;
        let of = |local: u32| (local * 7 + sample * 13 + number) % 100;
        let rows: Vec<Value> = numbers
            .clone()
            .map(|local| {
                json!({ "rank": number * ranks + local,
            "cpu_percent": of(local), "memory": 80_000_000_000_u64 + u64::from(of(local)) })
            })
            .collect();
        let gpus: Vec<Value> = numbers
            .map(|local| {
                json!({ "gpu": local, "utilization": of(local),
            "memory_used": 70_000_000_000_u64, "power": 650.0, "temperature": 60 })
            })
            .collect();
        line(
            4 + sample * 30,
            json!({ "message": "sampled", "ranks": rows, "gpus": gpus,
            "memory": { "used": 1_u64 << 40, "available": 1_u64 << 40 }, "network": [] }),
        );
    }
    let last = 10 + samples * 30;
    line(last, json!({ "stopping": true }));
    for local in 0..ranks {
        line(last + 1, json!({ "ended": number * ranks + local, "signal": 15 }));
    }
    line(
        last + 2,
        json!({ "message": "ended", "record": {
        "attempt": 0, "exit_code": 1, "ended": "2026-11-23T23:59:59Z",
        "verdict": { "class": "script", "id": "rank.exit", "rank": 1, "text": both(HOSTILE.to_owned()), "hint": "" },
        "cause": { "id": "cuda_oom", "text": both(HOSTILE.to_owned()), "remedy": both(HOSTILE.to_owned()),
            "evidence": HOSTILE, "log": "rank-00001.err", "line": 3 },
        "last_lines": [HOSTILE, "x".repeat(1 << 20)],
        "logs": { "owners": (0..ranks).map(|local| (format!("rank {}", number * ranks + local),
            json!({ "lines": 1_000_000, "bytes": 1_u64 << 30 }))).collect::<serde_json::Map<_, _>>() },
    } }),
    );
    journal.finish(None, MOST_POINTS)
}

#[test]
fn page_with_a_thousand_ranks_stays_small() {
    let nodes = (0..125).map(|number| node(number, 8, 120)).collect();
    let page = page(JobHistory::of(nodes).expect("a job"), true);
    assert!(page.len() <= LARGEST, "{} bytes", page.len());
    // The page covers all nodes.
    let document = document(&page);
    assert_eq!(document["nodes"].as_array().map(Vec::len), Some(125));
    let tracks = document["nodes"][124]["samples"]["tracks"].as_array().expect("tracks");
    let longest = tracks.iter().filter_map(|track| track[5].as_array().map(Vec::len)).max();
    assert!(longest.is_some_and(|longest| longest >= 8), "{longest:?}");
}

fn document(page: &str) -> Value {
    let (_, after) = page.split_once(r#"id="data">"#).expect("the document");
    let (document, _) = after.split_once("</script>").expect("its end");
    serde_json::from_str(document).expect("JSON")
}

#[test]
fn hostile_log_content_stays_text() {
    let page = page(JobHistory::of(vec![node(0, 2, 3)]).expect("a job"), false);
    let count = |words: &str| page.matches(words).count();
    assert_eq!((count("<script"), count("</script"), count("<img"), count("<!--")), (2, 2, 0, 0));
    assert!(!page.contains(['\u{2028}', '\u{2029}']));
    let document = document(&page);
    assert_eq!(document["end"]["cause"]["evidence"], HOSTILE, "and nothing of it is lost");
    assert_eq!(document["end"]["last_lines"][0], HOSTILE);
    // The page requests nothing, and only its own script runs.
    let policy = "default-src 'none'; script-src 'nonce-";
    assert_eq!(count(policy), 1);
    let nonce = page.split_once("script-src 'nonce-").and_then(|(_, rest)| rest.split_once('\''));
    let nonce = nonce.expect("a nonce").0;
    assert_eq!(nonce.len(), 32);
    assert_eq!(count(&format!("nonce=\"{nonce}\"")), 2, "the style and the script");
    for word in [
        "http://",
        "https://",
        "url(",
        "@import",
        "fetch(",
        "XMLHttpRequest",
        "innerHTML",
        "document.write",
        "eval(",
    ] {
        let own = page.replace("http://www.w3.org/2000/svg", "");
        assert!(!own.contains(word), "{word}");
    }
}

#[test]
fn title_uses_the_language_of_the_run() {
    for (lang, title) in [(Lang::En, "· node 3 – "), (Lang::Zh, "· 节点 3 – ")] {
        let node = NodeHistory { lang, ..node(3, 1, 0) };
        let page = page(JobHistory::of(vec![node]).expect("a job"), false);
        assert!(page.contains(&format!("{title}ranklaunch</title>")), "{lang:?}");
    }
}

/// Browsers print no backgrounds, so the light letters of a dark screen would be on white paper.
#[test]
fn dark_theme_applies_only_to_screens() {
    let dark: Vec<&str> = file("style.css").split("--page: #121418").collect();
    assert_eq!(dark.len(), 3, "that of the system, and that of the button");
    for before in dark.iter().rev().skip(1) {
        let (_, media) = before.rsplit_once("@media ").expect("it is for a medium");
        assert!(media.starts_with("screen "), "{media}");
    }
}

#[test]
fn every_page_label_has_two_languages() {
    let mut keys = BTreeSet::new();
    for line in file("words.js").lines().filter(|line| line.starts_with("  ")) {
        let (key, words) = line.trim().split_once(": ").expect("a key and its words");
        let words: Vec<String> =
            serde_json::from_str(words.trim_end_matches(',')).expect("two strings");
        let [en, zh] = words.as_slice() else { panic!("{line}") };
        assert!(!en.is_empty() && !zh.is_empty(), "{line}");
        for value in ["{0}", "{1}"] {
            assert_eq!(en.contains(value), zh.contains(value), "{line}");
        }
        assert!(keys.insert(key.to_owned()), "twice: {key}");
    }
    // Each key is used, and each used key exists.
    let code = ["draw.js", "timeline.js", "script.js"].map(file).concat();
    for key in &keys {
        let is_theme = key.starts_with("theme");
        assert!(is_theme || code.contains(&format!("\"{key}\"")), "{key} is used nowhere");
    }
    for called in code.split("w(\"").skip(1).filter_map(|rest| rest.split_once('"')) {
        assert!(keys.contains(called.0), "{} has no words", called.0);
    }
}
