//! What stands between a node and node 0, in words.

use std::net::SocketAddr;

use super::handshake::Stranger;
use super::types::Config;
use crate::lang::Text;
use crate::text;
use crate::verdict::{Refusal, Verdict};

/// What stood in the way last.
pub(super) enum Obstacle {
    Name(String),
    Connection(SocketAddr, String),
    Refused(Refusal),
}

pub(super) fn progress(config: &Config, obstacle: &Obstacle) -> Text {
    let (address, port) = (&config.master_addr, config.port);
    let Text { en, zh } = words(obstacle);
    text!(
        "waiting for node 0 at {address}:{port}: {en}",
        "正在等待节点 0（{address}:{port}）：{zh}"
    )
}

fn words(obstacle: &Obstacle) -> Text {
    match obstacle {
        Obstacle::Name(cause) => Text::same(cause.clone()),
        Obstacle::Connection(peer, cause) => Text::same(format!("{peer}: {cause}")),
        Obstacle::Refused(refusal) => refusal.text.clone(),
    }
}

pub(super) fn refuse(config: &Config, obstacle: Obstacle) -> Refusal {
    let (address, port, waited) = (&config.master_addr, config.port, config.patience.as_secs());
    let Text { en, zh } = words(&obstacle);
    match obstacle {
        Obstacle::Refused(refusal) => refusal,
        Obstacle::Name(_) => Refusal::new(
            Verdict::MasterName,
            "master.resolve",
            text!(
                "the master's name {address} has no address after {waited} s: {en}",
                "{waited} 秒后仍无法解析 Master 名称 {address}：{zh}"
            ),
            text!(
                "check MASTER_ADDR, the headless Service and the DNS of the cluster",
                "请检查 MASTER_ADDR、headless Service 以及集群 DNS"
            ),
        ),
        Obstacle::Connection(..) => Refusal::new(
            Verdict::MasterReach,
            "master.reach",
            text!(
                "node 0 at {address}:{port} does not answer after {waited} s: {en}",
                "{waited} 秒后节点 0（{address}:{port}）仍无应答：{zh}"
            ),
            text!(
                "look at node 0's log; a NetworkPolicy or a mesh sidecar may stand in between",
                "请查看节点 0 的日志；也可能被 NetworkPolicy 或网格 sidecar 阻挡"
            ),
        ),
    }
}

pub(super) fn shut_out(peer: SocketAddr, stranger: &Stranger) -> Refusal {
    let text = match stranger {
        Stranger::Mode { theirs: true } => text!(
            "node 0 ({peer}) has a secret, and this node has none",
            "节点 0（{peer}）设置了密钥，而本节点没有"
        ),
        Stranger::Mode { theirs: false } => text!(
            "this node has a secret, and node 0 ({peer}) has none",
            "本节点设置了密钥，而节点 0（{peer}）没有"
        ),
        Stranger::Version => text!(
            "node 0 ({peer}) runs a ranklaunch whose version does not fit this one",
            "节点 0（{peer}）的 ranklaunch 版本与本节点不兼容"
        ),
        _ => text!(
            "node 0 ({peer}) and this node have different secrets",
            "节点 0（{peer}）与本节点的密钥不一致"
        ),
    };
    let hint = match stranger {
        Stranger::Version => text!("use one image on all nodes", "请在所有节点使用同一镜像"),
        _ => text!(
            "give all nodes the same RANKLAUNCH_SECRET or RANKLAUNCH_SECRET_FILE",
            "请为所有节点设置相同的 RANKLAUNCH_SECRET 或 RANKLAUNCH_SECRET_FILE"
        ),
    };
    Refusal::new(Verdict::Muster, "muster.secret", text, hint)
}
