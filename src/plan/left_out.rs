//! Leaves out what names a placeholder without a value, by one rule for the arguments of the program, the arguments of its
//! engine and the variables.
//!
//! Takes a plan and the placeholders that have no value; gives what was left out, as people write it. A word goes with the
//! flag in front of it if it is nothing but the placeholder. A variable is removed, with a value from outside that the
//! setting would have replaced: that value would name something else than what the job goes on from.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::Plan;
use crate::placeholders::mentions;
use settings::{Placeholder, Program};
use text::mask::mask_args;

/// Leaves out of `plan` what names one of `absent`.
pub(crate) fn leave_out(plan: &mut Plan, absent: &[Placeholder]) -> Vec<String> {
    if absent.is_empty() {
        return Vec::new();
    }
    let mut left = Vec::new();
    match &mut plan.program {
        Program::Script { args, .. } | Program::Module { args, .. } => {
            words(args, absent, &mut left);
        }
        Program::Command { argv } => {
            // Without a first word there is nothing to start, and nothing to name in the error.
            let mut rest = argv.split_off(argv.len().min(1));
            words(&mut rest, absent, &mut left);
            argv.extend(rest);
        }
    }
    words(&mut plan.engine_args, absent, &mut left);
    let names = |value: &OsString| absent.iter().any(|one| mentions(value, one.name()));
    for (name, _) in plan.env.extract_if(.., |_, value| names(value)) {
        left.push(name.clone());
        if !plan.env_remove.contains(&name) {
            plan.env_remove.push(name);
        }
    }
    left
}

fn words<W: AsRef<OsStr>>(all: &mut Vec<W>, absent: &[Placeholder], left: &mut Vec<String>) {
    let mut kept: Vec<W> = Vec::with_capacity(all.len());
    // The word before is not left out itself.
    let mut follows = false;
    for word in all.drain(..) {
        let own: &OsStr = word.as_ref();
        if !absent.iter().any(|one| mentions(own, one.name())) {
            follows = true;
            kept.push(word);
            continue;
        }
        let alone = absent.iter().any(|one| *own == *format!("{{{}}}", one.name()));
        let flag = kept.pop_if(|last| follows && alone && is_flag(last.as_ref()));
        follows = false;
        let gone: Vec<OsString> =
            flag.iter().chain([&word]).map(|word| word.as_ref().to_owned()).collect();
        let shown = mask_args(&gone);
        let shown: Vec<_> = shown.iter().map(|word| word.to_string_lossy()).collect();
        left.push(shown.join(" "));
    }
    *all = kept;
}

/// `--resume` and `-r`; not `--lr=1`, `--` and the value `-1`.
fn is_flag(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    let is_number = word.to_str().is_some_and(|word| word.parse::<f64>().is_ok());
    bytes.starts_with(b"-")
        && bytes.len() > 1
        && !bytes.contains(&b'=')
        && bytes != b"--"
        && !is_number
}
