//! The election by itself, and jobs of simulated hosts: crashes, cables, delays and restarts from a seed, in a clock of
//! their own.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::voters;
use super::world::{ALL, Rules, simulated};

#[test]
fn odd_number_of_at_most_five_votes() {
    let of = |members: [usize; 8]| members.map(voters);
    assert_eq!(of([0, 1, 2, 3, 4, 5, 6, 10_000]), [0, 0, 0, 3, 3, 5, 5, 5]);
}

/// `SEEDS` jobs from seed `FIRST` on, on all cores: `make test SUITE=simulation` has 100 000 of them.
#[test]
fn jobs_never_run_twice_and_go_on() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let (first, seeds): (u64, u64) = (number("FIRST").unwrap_or(0), number("SEEDS").unwrap_or(300));
    let next = AtomicU64::new(first);
    let (runs, attempts) = (AtomicU64::new(0), AtomicU64::new(0));
    let simulate = || loop {
        let seed = next.fetch_add(1, Relaxed);
        if seed >= first + seeds {
            return;
        }
        let one = simulated(seed, ALL).unwrap_or_else(|why| panic!("{why}"));
        runs.fetch_add(u64::from(one.runs), Relaxed);
        attempts.fetch_add(u64::from(one.attempts), Relaxed);
    };
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
        (0..cores).for_each(|_| drop(scope.spawn(simulate)));
    });
    let runs = runs.load(Relaxed);
    println!("{seeds} jobs, {} attempts, {runs} ran in the end", attempts.load(Relaxed));
    assert!(runs * 10 > seeds * 4, "{runs} of {seeds} ran in the end");
}

#[test]
fn without_its_rules_a_job_runs_twice() {
    let fails = |rules| {
        (0..2_000).any(|seed| simulated(seed, rules).is_err_and(|why| why.contains("two ")))
    };
    assert!(fails(Rules { waits_for_the_cut_off: false, ..ALL }), "without the wait");
    assert!(fails(Rules { needs_a_majority: false, ..ALL }), "without a majority");
}
