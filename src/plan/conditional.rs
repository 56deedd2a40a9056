//! Conditional arguments of the profile (`[[job.args_if]]`).
//!
//! Takes the program and the solved sizes; gives the program with the arguments of every
//! condition that holds, after the profile's own and before those of the command line. Records
//! the reason for each.

use std::ffi::OsString;

use crate::Notes;
use crate::layout::Sizes;
use settings::{ArgumentsIf, PlannedSize, Program, Settings};
use text::mask::mask_args;
use text::text;

pub fn value(size: PlannedSize, nnodes: u32, sizes: Sizes) -> u32 {
    match size {
        PlannedSize::WorldSize => sizes.world,
        PlannedSize::Nnodes => nnodes,
        PlannedSize::NprocPerNode => sizes.nproc,
        PlannedSize::UlyssesSize => sizes.ulysses,
        PlannedSize::RingSize => sizes.ring,
    }
}

/// The program with the arguments whose conditions hold.
pub fn apply(
    settings: &Settings,
    program: Program,
    nnodes: u32,
    sizes: Sizes,
    notes: &mut Notes,
) -> Program {
    let mut given: Vec<OsString> = Vec::new();
    for ArgumentsIf { when, args, source } in &settings.args_if.rows {
        let size = when.size();
        let value = value(size, nnodes, sizes);
        let words = mask_args(args);
        let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
        let because = text!(
            "{size} is {value}; the profile gives them when {when}",
            "{size} 为 {value}，而配置文件规定 {when} 时给出"
        );
        let fate = if when.holds(value) {
            given.extend(args.iter().cloned());
            "given"
        } else {
            "left out"
        };
        notes.decide(words.join(" "), fate, because, source);
    }
    let at = settings.args_if.at;
    let insert = |mut words: Vec<OsString>| {
        let at = at.min(words.len());
        words.splice(at..at, given);
        words
    };
    match program {
        Program::Script { path, args } => Program::Script { path, args: insert(args) },
        Program::Module { name, args } => Program::Module { name, args: insert(args) },
        Program::Command { argv } => Program::Command { argv: insert(argv) },
    }
}

#[cfg(test)]
mod tests {
    use crate::AskedNproc;
    use crate::fixtures::{facts, planned, settings, strings};
    use settings::fixtures::args_if;

    #[test]
    fn arguments_are_recorded_without_their_secrets() {
        let mut settings = settings(&[]);
        settings.args_if = args_if("nnodes = 1", &["--hf-token", "hunter2"]).expect("a condition");
        let plan = planned(&settings, &facts(1), 1, &AskedNproc::Auto).expect("a plan");
        assert!(plan.decision("--hf-token ***").is_some(), "{:?}", plan.decisions);
        assert_eq!(plan.program.args(), strings(&["--hf-token", "hunter2"]));
    }
}
