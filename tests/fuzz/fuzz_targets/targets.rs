//! One program for all targets, since to link each by itself takes longer than to fuzz it: FUZZ_TARGET names one.

#![no_main]

#[path = "../targets.rs"]
mod table;

use std::sync::LazyLock;

static TARGET: LazyLock<String> =
    LazyLock::new(|| std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target"));

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (_, target) = table::TARGETS.iter().find(|(known, _)| *known == *TARGET).expect("a target");
    target(data);
});
