//! Builds the engine's command line; each engine with a program of its own has a file.
//!
//! Takes a [`Plan`], finished or not; gives the command line that a user could paste ([`argv`])
//! and the one that is executed, with the rank shim between engine and program ([`exec_argv`]).
//! Passes no optional flag that the installed engine does not know, and reports the other flags
//! that the engine does not know ([`check_flags`]). Arguments stay separate, so nothing is
//! quoted.

pub mod accelerate;
mod deepspeed;
mod flags;
mod line;
mod torchrun;

use std::ffi::OsString;
use std::path::Path;

use crate::Plan;
use settings::Program;
use settings::engine::Engine;

pub use flags::check as check_flags;
pub use line::EngineOptions;
use line::{Line, python};

/// The program as one rank runs it: `python -u script args…`.
pub fn rank_argv(plan: &Plan) -> Vec<OsString> {
    let mut argv = Vec::new();
    match &plan.program {
        Program::Script { path, args } => {
            argv.extend([python(plan), "-u".into(), path.clone()]);
            argv.extend(args.iter().cloned());
        }
        Program::Module { name, args } => {
            argv.extend([python(plan), "-u".into(), "-m".into(), name.into()]);
            argv.extend(args.iter().cloned());
        }
        Program::Command { argv: command } => argv.extend(command.iter().cloned()),
    }
    argv
}

/// The command line without the rank shim.
pub fn argv(plan: &Plan) -> Vec<OsString> {
    render(plan, None, &EngineOptions::default())
}

/// The command line that is executed; `shim` is our own executable.
pub fn exec_argv(plan: &Plan, shim: &Path, options: &EngineOptions) -> Vec<OsString> {
    render(plan, Some(shim), options)
}

/// The engine's part of the command line, before the program; None without a program of its own.
fn engine_line(plan: &Plan, options: &EngineOptions) -> Option<Line> {
    let mut line = match plan.engine {
        Engine::Command | Engine::Direct => return None,
        Engine::Torchrun => torchrun::line(plan, options),
        Engine::Accelerate => accelerate::line(plan, options),
        Engine::Deepspeed => deepspeed::line(plan),
    };
    // The user's own arguments for the engine come last, so they win.
    line.argv.extend(plan.engine_args.iter().map(OsString::from));
    Some(line)
}

fn render(plan: &Plan, shim: Option<&Path>, options: &EngineOptions) -> Vec<OsString> {
    // The role comes before `--`, since argparse removes a `--` that follows the program.
    let shimmed = |shim: &Path| [shim.into(), "rank".into(), "--".into()];
    let Some(mut line) = engine_line(plan, options) else {
        let shim = shim.filter(|_| !plan.engine.runs_a_command());
        return shim.map(shimmed).into_iter().flatten().chain(rank_argv(plan)).collect();
    };
    match (shim, &plan.program) {
        (Some(shim), _) => {
            line.switch("no-python");
            line.argv.extend(shimmed(shim));
            line.argv.extend(rank_argv(plan));
        }
        (None, Program::Script { path, args }) => {
            line.argv.push(path.clone());
            line.argv.extend(args.iter().cloned());
        }
        (None, Program::Module { name, args }) => {
            line.argv.extend(["--module".into(), name.into()]);
            line.argv.extend(args.iter().cloned());
        }
        (None, Program::Command { argv: command }) => {
            line.switch("no-python");
            line.argv.extend(command.iter().cloned());
        }
    }
    line.argv
}
