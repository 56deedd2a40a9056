//! `ranklaunch wait HOST:PORT`: waits until a port answers, as a launch does.

use super::output::{block_on, refuse, say};
use linux::host::Host;
use preflight::prepare::{self, Wait};
use report::closing;
use settings::cli;
use text::lang::Text;
use text::text;
use verdict::{Refusal, Verdict};

pub(crate) fn wait(asked: &cli::Wait) -> i32 {
    let host = Host::live();
    let target = match asked.read(&host) {
        Ok(target) => target,
        Err(refusal) => {
            let options = cli::Options { lang: asked.lang.clone(), ..cli::Options::default() };
            return refuse(&refusal, options.language(&host));
        }
    };
    let lang = target.lang;
    let wait = Wait::new(&target.host, target.port, target.timeout);
    let reached = block_on(prepare::wait_for_master(&host, &wait, |line| {
        say(&closing::line(&line, lang));
    }));
    match reached.and_then(|reached| reached) {
        Ok(reached) => {
            let (peer, seconds) = (reached.peer, reached.waited.as_secs_f64());
            let answers = text!(
                "{peer} answers, after {seconds:.1} s",
                "{peer} 已应答，用时 {seconds:.1} 秒"
            );
            say(&closing::line(&answers, lang));
            0
        }
        Err(refusal) => {
            let Some(hint) = unreached(&refusal, target.port) else {
                return refuse(&refusal, lang);
            };
            let code = refusal.verdict.code();
            say(&closing::gave_up(&refusal.text, &hint, refusal.id, code, lang));
            code
        }
    }
}

/// The hint if the other side did not answer; None for any other refusal.
fn unreached(refusal: &Refusal, port: u16) -> Option<Text> {
    match refusal.verdict {
        Verdict::MasterName => Some(text!(
            "check the name, and that its pod and Service exist; --timeout 1h waits longer",
            "请检查名称，以及对应的 Pod 与 Service 是否存在；--timeout 1h 可延长等待"
        )),
        Verdict::MasterReach => Some(text!(
            "check that something listens on port {port} there and that no firewall or network policy is in between; --timeout 1h waits longer",
            "请检查对方是否在端口 {port} 上监听，以及是否被防火墙或网络策略拦截；--timeout 1h 可延长等待"
        )),
        _ => None,
    }
}
