//! `ranklaunch init -- COMMAND…`: runs any command under the guard.

use super::output::{refuse, say};
use linux::host::Host;
use preflight::prepare::no_process;
use report::{Ending, closing};
use settings::cli;
use text::lang::{Text, cause};
use text::text;
use verdict::outcome;
use verdict::{Class, Id};

pub(crate) fn init(asked: &cli::Init) -> i32 {
    let host = Host::live();
    let wanted = match asked.read(&host) {
        Ok(wanted) => wanted,
        Err(refusal) => {
            let options = cli::Options { lang: asked.lang.clone(), ..cli::Options::default() };
            return refuse(&refusal, options.language(&host));
        }
    };
    match supervise::init::init(&asked.command, wanted.grace) {
        Ok(code) => code,
        Err(error) => {
            let program = asked.command.first().map(|name| name.display().to_string());
            let (program, Text { en, zh }) = (program.unwrap_or_default(), cause(&error));
            let hint = no_process(&error).map(|refusal| refusal.hint);
            let ending = Ending {
                code: outcome::exec_code(&error),
                class: Class::Script,
                id: Id::InitExec,
                rank: None,
                node: None,
                text: text!("cannot execute {program}: {en}", "无法执行 {program}：{zh}"),
                hint: hint.unwrap_or_else(|| {
                    text!(
                        "check the name, PATH and the execute permission",
                        "请检查名称、PATH 和执行权限"
                    )
                }),
                why: None,
                consequence: false,
            };
            say(&closing::ended_early(&ending, ending.code, wanted.lang));
            ending.code
        }
    }
}
