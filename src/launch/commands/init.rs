//! `ranklaunch init -- COMMAND…`: the guard, around any command.

use super::output::{refuse, say};
use crate::cli;
use crate::host::Host;
use crate::report::closing;
use crate::settings;
use crate::supervise;
use crate::text;
use crate::verdict::{Id, Refusal, Verdict};

pub(crate) fn init(asked: &cli::Init) -> i32 {
    let host = Host::live();
    let wanted = match settings::read_init(asked, &host) {
        Ok(wanted) => wanted,
        Err(refusal) => {
            let options = cli::Options { lang: asked.lang.clone(), ..cli::Options::default() };
            return refuse(&refusal, settings::language(&options, &host));
        }
    };
    match supervise::init::init(&asked.command, wanted.grace) {
        Ok(code) => code,
        Err(error) => {
            let program = asked.command.first().map(|name| name.display().to_string());
            let program = program.unwrap_or_default();
            let refusal = Refusal::with(
                Verdict::EngineStart,
                Id::InitExec,
                text!("cannot execute {program}: {error}", "无法执行 {program}：{error}"),
                text!(
                    "check the name, PATH and the execute permission",
                    "请检查名称、PATH 和执行权限"
                ),
            );
            let code = supervise::exec_code(&error);
            say(&closing::refusal(&refusal, code, wanted.lang));
            code
        }
    }
}
