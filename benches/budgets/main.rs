//! Speed and memory against the budgets of the design, each with a rival measured in the same
//! run, since only the ratio is comparable between machines.
//!
//! `make bench` runs all; words pick some (`make bench ONLY="start memory"`).
//! Fails when a budget is missed. Real processes, release build, medians.

mod check;
mod cold;
mod crowd;
mod inject;
mod logs;
mod measure;
mod memory;
mod peers;
mod roles;
mod start;
mod warm;
mod watching;

use measure::Table;

fn main() {
    if let Some(code) = roles::play() {
        std::process::exit(code);
    }
    let asked: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let mut table = Table::new();
    for (name, measure) in [
        ("start", start::measure as fn(&mut Table)),
        ("check", check::measure),
        ("inject", inject::measure),
        ("memory", memory::measure),
        ("crowd", crowd::measure),
        ("logs", logs::measure),
        ("peers", peers::measure),
        ("watching", watching::measure),
        ("warm", warm::measure),
        ("cold", cold::measure),
    ] {
        if asked.is_empty() || asked.iter().any(|word| word == name) {
            measure(&mut table);
        }
    }
    std::process::exit(table.verdict());
}
