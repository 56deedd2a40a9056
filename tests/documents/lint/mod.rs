//! `ranklaunch lint`: each mistake is found at its line, its repaired version has no finding,
//! and no input makes it panic or hang.

mod bounds;
mod formats;
mod guides;
mod judged;
mod mistakes;
mod samples;
mod written;

use lint::{self, Knowledge, LintLimits, Manifest, Report};

fn check(text: &str, node_memory: Option<&str>) -> Report {
    let manifest = Manifest { name: "m.yaml".into(), bytes: text.as_bytes().to_vec() };
    let limits = LintLimits { node_memory: node_memory.and_then(lint::size) };
    lint::lint(&[manifest], limits, knowledge())
}

fn knowledge() -> Knowledge {
    Knowledge { misuse: plan::nccl::misuse, profiles: settings::EMBEDDED }
}

fn ids(report: &Report) -> Vec<(&'static str, usize)> {
    report.findings.iter().map(|found| (found.id.as_str(), found.line)).collect()
}
