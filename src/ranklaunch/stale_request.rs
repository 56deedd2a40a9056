//! Describes an earlier run of this job, for `clear` to find.
//!
//! Pure: takes settings, plan and facts; gives a [`Request`].

use std::collections::BTreeSet;

use node::observe::Facts;
use plan::Plan;
use preflight::clear::Request;
use settings::contract::{Claim, Field};
use settings::launchers::{Launcher, PythonProgram, PythonRun};
use settings::{Program, Settings};

/// The [`Request`] that describes an earlier run of this job.
pub(super) fn request(settings: &Settings, plan: &Plan, facts: &Facts) -> Request {
    let mut request = Request::new(settings.stale.value);
    match &plan.program {
        Program::Script { path, .. } => request.script = std::path::absolute(path).ok(),
        Program::Module { name, .. } => request.module = Some(name.clone()),
        Program::Command { argv } => {
            let argv: Vec<&[u8]> = argv.iter().map(|word| word.as_encoded_bytes()).collect();
            match program_of(&argv) {
                Some(PythonProgram::Script(path)) => {
                    let path = linux::procfs::as_path(path);
                    request.script = std::path::absolute(path).ok();
                }
                Some(PythonProgram::Module(name)) => {
                    request.module = Some(String::from_utf8_lossy(name).into_owned());
                }
                None => {}
            }
        }
    }
    let chosen = || {
        let of = |index| facts.gpus.gpus.iter().find(move |seen| seen.index == index);
        plan.gpus.iter().filter(|gpu| gpu.selected).filter_map(move |gpu| of(gpu.index))
    };
    request.gpu_minors = chosen().filter_map(|gpu| gpu.minor).collect();
    request.gpu_users = chosen()
        .filter_map(|gpu| gpu.health.processes.as_ref())
        .flatten()
        .filter_map(|process| i32::try_from(process.pid).ok())
        .collect::<BTreeSet<i32>>()
        .into_iter()
        .collect();
    let member = &plan.membership;
    if member.task.is_some() {
        request.siblings = siblings(facts);
    }
    // In an elastic job c10d decides which node holds the port.
    let binds = member.is_master() && !member.master_port_free && member.elastic.is_none();
    request.master_port = binds.then_some(member.master_port);
    request
}

/// Variables that all tasks of this job have in common.
fn siblings(facts: &Facts) -> Vec<Claim> {
    let shared = [Field::Tasks, Field::JobId, Field::MasterAddr, Field::MasterPort];
    let evidence = facts.contract.evidence.iter().filter(|found| shared.contains(&found.field));
    evidence.flat_map(|found| std::iter::once(&found.claim).chain(&found.beside)).cloned().collect()
}

/// The script or module that a command starts: the one of python, or of a launcher's ranks.
fn program_of<'a>(argv: &'a [&[u8]]) -> Option<PythonProgram<'a>> {
    let run = match Launcher::of_argv(argv) {
        Some((launcher, at)) => launcher.target(argv.get(at..)?).filter(|_| launcher.is_read())?,
        None => PythonRun::of_command(argv)?,
    };
    Some(run.program)
}
