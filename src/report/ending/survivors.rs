//! The text about processes of the job that outlived SIGKILL.

use super::types::Ending;
use text::text;
use verdict::outcome::Outcome;
use verdict::{Class, Id, Verdict};

pub(super) fn unkillable(outcome: &Outcome) -> Ending {
    let list: Vec<String> = outcome
        .survivors
        .iter()
        .map(|left| {
            let place = left.wait_channel.as_deref().unwrap_or("?");
            format!("{} ({}, {}, {place})", left.pid, left.comm, left.state)
        })
        .collect();
    let list = list.join(", ");
    if outcome.survivors.iter().any(|left| left.forbidden) {
        return Ending::new(
            Verdict::Stale.code(),
            Class::Launcher,
            Id::Forbidden,
            None,
            text!(
                "processes that ranklaunch may not signal are left: {list}",
                "仍有 ranklaunch 无权发送信号的进程：{list}"
            ),
            text!(
                "they run as another user and this container has no CAP_KILL (docker run --cap-drop, securityContext.capabilities): keep KILL, or start ranklaunch as the user that the job runs as",
                "它们以其他用户身份运行，而此容器没有 CAP_KILL（docker run --cap-drop、securityContext.capabilities）：请保留 KILL，或以任务的用户身份启动 ranklaunch"
            ),
        );
    }
    // A process that would run if it got a CPU, or that the kernel is ending, does not sleep in the
    // kernel.
    let are_ending = outcome.survivors.iter().all(|left| matches!(left.state, 'R' | 'Z' | 'X'));
    let hint = if are_ending {
        text!(
            "they are not blocked, but got no CPU in time: this node is overloaded; they end when it lets them",
            "它们没有阻塞，只是未能及时得到 CPU：该节点过载；得到 CPU 后它们会自行结束"
        )
    } else {
        text!(
            "they are blocked in the kernel by a hung driver or file system; reboot the node",
            "它们因驱动或文件系统挂死而卡在内核中；请重启该节点"
        )
    };
    Ending::new(
        Verdict::Stale.code(),
        Class::Launcher,
        Id::Unkillable,
        None,
        text!("processes outlived SIGKILL: {list}", "以下进程收到 SIGKILL 后仍未退出：{list}"),
        hint,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use verdict::outcome::Survivor;

    #[test]
    fn only_uninterruptible_survivors_need_a_reboot() {
        let hint = |states: &[char]| {
            let of = |state: &char| Survivor {
                pid: 7,
                comm: "python".to_owned(),
                forbidden: false,
                state: *state,
                wait_channel: None,
            };
            let survivors = states.iter().map(of).collect();
            unkillable(&Outcome { survivors, ..Outcome::default() }).hint.en.into_owned()
        };
        assert!(hint(&['R', 'Z']).contains("overloaded"));
        assert!(hint(&['R', 'D']).contains("reboot"));
    }
}
