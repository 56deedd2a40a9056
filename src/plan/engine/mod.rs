//! Builds the engine's command line; each engine with a program of its own has a function in
//! `lines`.
//!
//! Takes a [`Plan`], finished or not; gives the command line that a user could paste ([`argv`])
//! and the one that is executed, with the rank shim between engine and program ([`exec_argv`]).
//! Passes no optional flag that the installed engine does not know, and reports the other flags
//! that the engine does not know ([`check_flags`]). Arguments stay separate, so nothing is
//! quoted.

mod lines;

use std::ffi::OsString;
use std::path::Path;

use crate::{Notes, Plan};
use lines::{Line, python};
use settings::engine::Engine;
use settings::{Program, Settings};
use text::lang::Text;
use text::text;
use verdict::{Id, Warning};

pub use lines::EngineOptions;
pub(crate) use lines::{check_accelerate, check_on_cpus, names_a_mode};

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
        Engine::Torchrun => lines::torchrun(plan, options),
        Engine::Accelerate => lines::accelerate(plan, options),
        Engine::Deepspeed => lines::deepspeed(plan),
    };
    // The user's own arguments for the engine come last, so they win.
    line.argv.extend(plan.engine_args.iter().map(OsString::from));
    Some(line)
}

fn render(plan: &Plan, shim: Option<&Path>, options: &EngineOptions) -> Vec<OsString> {
    // The role comes before `--`, since argparse removes a `--` that follows the program.
    let shimmed = |shim: &Path| vec![shim.into(), "rank".into(), "--".into()];
    let Some(mut line) = engine_line(plan, options) else {
        let shim = shim.filter(|_| !plan.engine.runs_a_command());
        return shim.map(shimmed).into_iter().flatten().chain(rank_argv(plan)).collect();
    };
    if let Some(shim) = shim {
        line.switch("no-python");
        return [line.argv, shimmed(shim), rank_argv(plan)].concat();
    }
    let (switch, program, args) = match &plan.program {
        Program::Script { path, args } => (None, Some(path.clone()), args),
        Program::Module { name, args } => (Some("module"), Some(name.into()), args),
        Program::Command { argv } => (Some("no-python"), None, argv),
    };
    switch.into_iter().for_each(|switch| line.switch(switch));
    // argparse reads words behind the program as options as well: `--run=x` as an abbreviation of torchrun's
    // `--run-path`. Behind `--` it reads none, in every Python from 3.6 on.
    line.argv.push("--".into());
    line.argv.extend(program.into_iter().chain(args.iter().cloned()));
    line.argv
}

/// Finds the flags that the installed engine does not know: a finding for our own flags and one for
/// the user's. Without the engine's source there is no finding.
pub(crate) fn check_flags(plan: &Plan, settings: &Settings, notes: &mut Notes) {
    let Some(cli) = &plan.engine_cli else { return };
    let Some(line) = engine_line(plan, &EngineOptions::default()) else { return };
    let users = line.argv.len().saturating_sub(plan.engine_args.len());
    let unknown = |words: &[OsString]| -> Vec<String> {
        let names = words.iter().filter_map(|word| {
            let flag = word.to_str()?.split('=').next()?;
            // A program that starts with two hyphens does not exist; `--` alone ends the flags.
            (flag.len() > 2 && flag.starts_with("--")).then(|| flag.to_owned())
        });
        names.filter(|flag| !cli.knows(flag)).collect()
    };
    let (own, given) = line.argv.split_at(users);
    let (package, path) = (&cli.package, cli.path.display());
    let mut own = unknown(own);
    if !cli.knows("--no-python") {
        own.push("--no-python".to_owned());
    }
    let mut say = |flags: Vec<String>, hint: Text| {
        if flags.is_empty() {
            return;
        }
        let flags = flags.join(", ");
        let text =
            text!("{package} does not know {flags} ({path})", "{package} 不支持 {flags}（{path}）");
        notes.raise(settings, Warning::new(Id::EngineFlags, text, hint));
    };
    let name = package.split(' ').next().unwrap_or(package);
    say(
        own,
        text!(
            "it is too old for this launcher: update {name}, or name another environment with --python PATH or --conda-env NAME; --severity engine.flags=warn starts anyway",
            "该版本过旧，本启动器无法使用：请升级 {name}，或用 --python PATH、--conda-env NAME 指定其他环境；--severity engine.flags=warn 可强制启动"
        ),
    );
    say(
        unknown(given),
        text!(
            "correct or remove it in engine_args; --severity engine.flags=warn starts anyway",
            "请在 engine_args 中改正或删除；--severity engine.flags=warn 可强制启动"
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{facts, settings};
    use crate::{Scope, survey};
    use node::observe::EngineCli;
    use std::path::PathBuf;

    #[test]
    fn an_unknown_flag_is_found_before_the_start() {
        const KNOWN: &[&str] = &[
            "nnodes",
            "nproc_per_node",
            "node_rank",
            "rdzv_backend",
            "master_addr",
            "master_port",
            "max_restarts",
            "no_python",
            "tee",
        ];
        let refused = |known: &[&str], given: &[&str]| {
            let mut settings = settings(&[]);
            settings.engine_args = given.iter().map(|word| (*word).to_owned()).collect();
            let mut facts = facts(1);
            facts.python.engine_cli = Some(EngineCli {
                path: PathBuf::from("/site/torch/distributed/run.py"),
                package: "torch 1.8.0".to_owned(),
                flags: known.iter().map(|name| (*name).to_owned()).collect(),
            });
            let found = survey(&settings, &facts, Scope::Alone);
            let own = |one: &&verdict::Refusal| one.id == Id::EngineFlags;
            let refusal = found.failures().iter().find(own);
            refusal.map(|refusal| refusal.text.en.to_string())
        };
        assert_eq!(refused(KNOWN, &["--tee", "3", "--tee=3", "-r", "3"]), None);
        let path = "(/site/torch/distributed/run.py)";
        let said = format!("torch 1.8.0 does not know --colour {path}");
        assert_eq!(refused(KNOWN, &["--colour=red", "--"]), Some(said));
        let said = format!("torch 1.8.0 does not know --no-python {path}");
        assert_eq!(refused(&KNOWN[..7], &[]), Some(said));
    }
}
