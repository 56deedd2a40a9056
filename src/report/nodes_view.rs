//! Shows the nodes of a job and the measured links between them, as text and as JSON.

use std::fmt::Write as _;

use serde_json::{Value, json};

use muster::{Link, LinkReport, Measured, Speed};
use text::columns::table;
use text::lang::Lang;
use text::text;

/// Maximum number of nodes for which a matrix is printed.
const WIDEST: u32 = 16;

/// The nodes, and the links between them as two matrices: the row sends, the column receives.
pub fn text(found: &LinkReport, lang: Lang) -> String {
    let mut out = String::new();
    let nodes = found.nnodes;
    let _ = writeln!(out, "{}", text!("{nodes} nodes", "{nodes} 个节点").get(lang));
    if nodes > WIDEST {
        return out;
    }
    let rows = found.nodes.iter().map(|visited| {
        let or_dash = |word: Option<String>| word.unwrap_or_else(|| "-".to_owned());
        let station = &visited.endpoint;
        vec![
            visited.node.to_string(),
            visited.hostname.clone(),
            or_dash(station.interface.clone()),
            or_dash(station.address.map(|address| address.ip().to_string())),
        ]
    });
    table(&mut out, rows.collect());
    let title = text!("round trip, median (ms)", "往返延迟中位数（ms）");
    matrix(&mut out, found, title.get(lang), |speed| format!("{:.3}", speed.median as f64 / 1e3));
    let title = text!("bandwidth (Gb/s)", "带宽（Gb/s）");
    matrix(&mut out, found, title.get(lang), |speed| format!("{:.2}", speed.gigabits()));
    let _ = writeln!(out);
    out
}

fn matrix(out: &mut String, found: &LinkReport, title: &str, shown: impl Fn(&Speed) -> String) {
    let _ = writeln!(out, "{title}");
    let head = std::iter::once("→".to_owned()).chain((0..found.nnodes).map(|to| to.to_string()));
    let mut rows: Vec<Vec<String>> = vec![head.collect()];
    for from in 0..found.nnodes {
        let cell = |to: u32| {
            let link = found.links.iter().find(|link| (link.from, link.to) == (from, to));
            match link.map(|link| &link.measured) {
                Some(Measured::Speed(speed)) => shown(speed),
                Some(Measured::Failed(_)) => "✗".to_owned(),
                None => "-".to_owned(),
            }
        };
        rows.push(std::iter::once(from.to_string()).chain((0..found.nnodes).map(cell)).collect());
    }
    table(out, rows);
}

/// Members of the report: `nodes` and `links`.
pub fn json(found: &LinkReport, lang: Lang) -> [(&'static str, Value); 2] {
    let node = |visited: &muster::NodeResult| {
        let failed = visited.endpoint.failed.as_ref();
        json!({
            "node": visited.node,
            "hostname": visited.hostname,
            "interface": visited.endpoint.interface,
            "address": visited.endpoint.address.map(|address| address.ip()),
            "megabits": visited.endpoint.megabits,
            "lost": found.lost.iter().find(|(node, _)| *node == visited.node).map(|(_, loss)| loss),
            "failed": failed.map(|refusal| json!({
                "id": refusal.id,
                "code": refusal.verdict.code(),
                "text": refusal.text.get(lang),
            })),
        })
    };
    [
        ("nodes", found.nodes.iter().map(node).collect()),
        ("links", found.links.iter().map(link).collect()),
    ]
}

fn link(link: &Link) -> Value {
    let (from, to) = (link.from, link.to);
    match &link.measured {
        Measured::Speed(speed) => json!({
            "from": from,
            "to": to,
            "rtt_min_us": speed.floor,
            "rtt_median_us": speed.median,
            "rtt_p99_us": speed.p99,
            "gigabits_per_second": (speed.gigabits() * 1e3).round() / 1e3,
        }),
        Measured::Failed(error) => json!({ "from": from, "to": to, "error": error }),
    }
}
