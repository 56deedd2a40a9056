//! Jobs in containers of a real Docker engine. Without one they are skipped, with a message.

mod confinement;
mod hosts;
mod limits;
mod nodes;
mod pid_1;
mod stacks;
mod start;
mod zimdb;

use serde_json::Value;

/// `run` of `nproc` ranks without torch.
fn direct<'a>(nproc: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let run = ["run", "--engine", "direct", "--device", "cpu", "--nproc-per-node", nproc];
    [&run, more].concat()
}

/// The same with two ranks that are shells.
fn run(script: &str) -> Vec<&str> {
    direct("2", &["--stale", "off", "--", "sh", "-c", script])
}

fn json(out: &str) -> Value {
    serde_json::from_str(out).unwrap_or_else(|error| panic!("{error}: {out}"))
}
