//! Endings because of a stop from outside or of another node.

use std::io::IsTerminal;

use super::types::Ending;
use linux::sys::{Signal, signal_name};
use text::lang::Text;
use text::text;
use verdict::outcome::End;
use verdict::{Class, Id, Verdict};

/// Stopped from outside by `signal`.
pub fn stopped(signal: i32) -> Ending {
    let name = signal_name(signal);
    // After Ctrl-C at the terminal the user needs no hint.
    let hint = if signal == Signal::INT.as_raw() && std::io::stderr().is_terminal() {
        Text::same("")
    } else {
        text!(
            "find where the signal came from: a deleted pod, a preemption, a time limit or Ctrl-C",
            "请查明信号来源：Pod 被删除或抢占、达到时间限制，或 Ctrl-C"
        )
    };
    Ending::new(
        End::Signal(signal).shell_code(),
        Class::Stopped,
        Id::StoppedSignal,
        None,
        text!("stopped from outside by {name}", "收到外部信号 {name}，任务停止"),
        hint,
    )
}

/// Ended because it stood still; [`Ending::of_standstill`] names the rank that the others waited
/// for.
pub(super) fn stood_still() -> Ending {
    Ending::new(
        Verdict::NoProgress.code(),
        Class::Launcher,
        Id::Hang,
        None,
        text!("the job stood still", "任务卡死"),
        text!("look at the hang in run.json", "请查看 run.json 中的 hang"),
    )
}

/// Ended because a rule of the profile was broken; [`Ending::of_breach`] names the rule.
pub(super) fn rule_broken() -> Ending {
    Ending::new(
        Verdict::NoProgress.code(),
        Class::Launcher,
        Id::WatchRule,
        None,
        text!("a rule of the profile was broken", "违反了配置文件中的规则"),
        text!("look at the event rule in agent.jsonl", "请查看 agent.jsonl 中的 rule 事件"),
    )
}

/// Stopped because of another node, whose cause did not arrive.
pub(super) fn other_node() -> Ending {
    Ending::new(
        Verdict::OtherNode.code(),
        Class::Launcher,
        Id::NodeOther,
        None,
        text!("stopped because another node failed", "因其他节点失败而停止"),
        text!("read the report of the other nodes", "请查看其他节点的报告"),
    )
}
