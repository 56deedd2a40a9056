//! `ranklaunch lint`: each mistake is found at its line, its repaired version has no finding,
//! and no input makes it panic or hang.

mod bounds;
mod formats;
mod guides;
mod judged;
mod mistakes;
mod samples;
mod written;

use lint::{self, Manifest, Report};

fn check(text: &str, node_memory: Option<&str>) -> Report {
    let manifest = Manifest { name: "m.yaml".into(), bytes: text.as_bytes().to_vec() };
    lint::lint(&[manifest], node_memory.and_then(lint::size), settings::EMBEDDED)
}

fn ids(report: &Report) -> Vec<(&'static str, usize)> {
    report.findings.iter().map(|found| (found.id.as_str(), found.line)).collect()
}
