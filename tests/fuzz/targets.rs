//! The table of fuzz targets.
//!
//! The body of a target is in the room that it tests, in a file `fuzz.rs` there. Each takes any bytes, panics if a promise
//! is broken, and returns whether the input was accepted, that is whether it got past the outermost check. `make fuzz`
//! runs them under libFuzzer; the tests here run them over their seeds and over mutations of these.

/// A body of a target.
pub(crate) type Target = fn(&[u8]) -> bool;

/// All targets by name. Each has seeds in a folder of its name in tests/fuzz/seeds; that folder is where `make fuzz` knows it
/// from.
pub(crate) const TARGETS: &[(&str, Target)] = &[
    ("adopt", lint::fuzz::script),
    ("agreement", ranklaunch::fuzz::agreement),
    ("catalogue", diagnose::fuzz::catalogue),
    ("console", logs::fuzz::console),
    ("dump", diagnose::recorder::fuzz::dump),
    ("environment", ranklaunch::fuzz::environment),
    ("folders", report::fuzz::folders),
    ("frames", muster::fuzz::frames),
    ("handshake", muster::fuzz::handshake),
    ("http", monitor::export::fuzz::http),
    ("index", logs::fuzz::index),
    ("journal", report::fuzz::journal),
    ("log", diagnose::fuzz::log),
    ("manifest", lint::fuzz::manifest),
    ("mask", text::fuzzing::mask),
    ("metrics", monitor::export::fuzz::metrics),
    ("nccl_conf", preflight::decide::fuzz::nccl_conf),
    ("nodelist", settings::fuzz::nodelist),
    ("notices", monitor::notice::fuzz::notices),
    ("pattern", diagnose::fuzz::pattern),
    ("profile", report::fuzz::profile),
    ("ras", monitor::watch::ras::fuzz::ras),
    ("scout", supervise::warm::fuzz::scout),
    ("stacks", diagnose::stacks::fuzz::stacks),
    ("status", monitor::status::fuzz::status),
    ("terminal", report::top::fuzz::terminal),
    ("words", settings::fuzz::words),
];
