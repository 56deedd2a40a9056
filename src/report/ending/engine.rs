//! Endings because the engine failed: before any rank started, while ranks ran, or after they
//! had ended well.

use super::types::Ending;
use super::words::describe;
use text::lang::Text;
use text::text;
use verdict::outcome::End;
use verdict::{Class, Id, Verdict};

/// The engine ended before any rank started. `end` is None if unknown.
pub(super) fn began_none(end: Option<End>) -> Ending {
    let Text { en, zh } = end.map_or_else(|| Text::same("?"), describe);
    Ending::new(
        Verdict::EngineStart.code(),
        Class::Engine,
        Id::EngineStart,
        None,
        text!(
            "the engine ended before any rank began: {en}",
            "尚无 rank 启动，启动引擎就已结束：{zh}"
        ),
        text!(
            "read its last lines; its whole output is in engine.log",
            "请查看其最后几行输出，完整输出见 engine.log"
        ),
    )
}

/// The engine ended while its ranks were running.
pub(super) fn gone(end: End) -> Ending {
    let code = if end.success() { Verdict::Internal.code() } else { end.shell_code() };
    let Text { en, zh } = describe(end);
    Ending::new(
        code,
        Class::Engine,
        Id::EngineGone,
        None,
        text!(
            "the engine ended while its ranks were running: {en}",
            "rank 仍在运行，启动引擎却已结束：{zh}"
        ),
        text!(
            "its ranks were stopped; read its last lines, its whole output is in engine.log",
            "其 rank 已被停止；请查看其最后几行输出，完整输出见 engine.log"
        ),
    )
}

/// The engine failed although all ranks had ended with 0.
pub(super) fn failed_at_the_end(end: End) -> Ending {
    let Text { en, zh } = describe(end);
    Ending::new(
        end.shell_code(),
        Class::Engine,
        Id::EngineEnd,
        None,
        text!(
            "all ranks of this node ended with code 0, but the engine ended with {en}",
            "本节点所有 rank 的退出码均为 0，但启动引擎失败：{zh}"
        ),
        text!(
            "another node may have failed: read the last lines of the engine and the other nodes' reports",
            "可能是其他节点失败：请查看启动引擎的最后几行输出和其他节点的报告"
        ),
    )
}

/// The engine could not listen on the master port. `taken` is the reason why the port cannot be
/// bound now; None if it is free again.
pub fn port_lost(port: u16, taken: Option<&Text>) -> Ending {
    let text = match taken {
        Some(Text { en, zh }) => {
            text!("the engine could not listen: {en}", "启动引擎无法监听端口：{zh}")
        }
        None => text!(
            "the engine could not listen on port {port}: another process took it between the agreement and the start",
            "启动引擎无法监听端口 {port}：从协商完成到启动之间，该端口被其他进程占用"
        ),
    };
    Ending::new(
        Verdict::PortInUse.code(),
        Class::Engine,
        Id::PortLost,
        None,
        text,
        text!(
            "choose another --master-port on all nodes, outside of ip_local_port_range; --max-restarts tries again",
            "请为所有节点选择 ip_local_port_range 之外的其他 --master-port；--max-restarts 会重试"
        ),
    )
}
