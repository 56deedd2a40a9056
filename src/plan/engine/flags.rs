//! Finds the flags that the installed engine does not know, before it is started.
//!
//! Takes the plan; gives a finding for our own flags and one for the user's. Without the engine's
//! source there is no finding.

use super::engine_line;
use super::line::EngineOptions;
use crate::Plan;
use crate::notes::Notes;
use settings::Settings;
use text::lang::Text;
use text::text;
use verdict::{Id, Warning};

pub fn check(plan: &Plan, settings: &Settings, notes: &mut Notes) {
    let Some(cli) = &plan.engine_cli else { return };
    let Some(line) = engine_line(plan, &EngineOptions::default()) else { return };
    let users = line.argv.len().saturating_sub(plan.engine_args.len());
    let unknown = |words: &[std::ffi::OsString]| -> Vec<String> {
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
    use std::path::PathBuf;

    use super::*;
    use crate::fixtures::{facts, settings};
    use crate::{Scope, survey};
    use node::observe::EngineCli;

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
