//! Differences between the nodes of a job: the nodes that differ, and the value of the others.

use serde::{Deserialize, Serialize};

use super::sanitize::sanitize;
use text::lang::{Text, between};
use text::text;
use verdict::{Id, Warning};

/// Maximum number of nodes that a difference lists.
pub(crate) const LISTED: usize = 8;

/// Properties in which nodes may differ without a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Property {
    Version,
    Command,
    Script,
    Torch,
    Driver,
    Gpus,
    Nccl,
    Rails,
    LinkLayer,
    Clock,
    Mtu,
    Rates,
}

impl Property {
    fn text(self) -> Text {
        match self {
            Property::Version => text!("ranklaunch", "ranklaunch 版本"),
            Property::Command => text!("the command (its digest)", "命令（摘要）"),
            Property::Script => text!("the script (its digest)", "脚本（摘要）"),
            Property::Torch => text!("torch", "torch 版本"),
            Property::Driver => text!("the GPU driver", "GPU 驱动"),
            Property::Gpus => text!("the number of GPUs", "GPU 数量"),
            Property::Nccl => text!("the NCCL settings (their digest)", "NCCL 设置（摘要）"),
            Property::Rails => text!("the number of RDMA ports", "RDMA 端口数"),
            Property::LinkLayer => text!("the RDMA link layer", "RDMA 链路层"),
            Property::Clock => text!("the clock", "时钟"),
            Property::Mtu => text!("the interface's MTU", "接口 MTU"),
            Property::Rates => text!("the speed of the RDMA ports (Gb/s)", "RDMA 端口速率（Gb/s）"),
        }
    }

    /// Id of the warning.
    fn id(self) -> Id {
        match self {
            Property::Version => Id::MusterVersion,
            Property::Command => Id::MusterCommand,
            Property::Script => Id::MusterScript,
            Property::Torch => Id::MusterTorch,
            Property::Driver => Id::MusterDriver,
            Property::Gpus => Id::MusterGpus,
            Property::Nccl => Id::MusterNccl,
            Property::Rails => Id::MusterRails,
            Property::LinkLayer => Id::MusterLinkLayer,
            Property::Clock => Id::ClockSync,
            Property::Mtu => Id::MusterMtu,
            Property::Rates => Id::MusterRates,
        }
    }
}

/// One property, the value of most nodes, and the nodes with another value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub property: Property,
    pub common: String,
    /// (node, its value) of the first eight nodes that differ.
    pub odd: Vec<(u32, String)>,
    /// Total number of nodes that differ.
    pub count: u32,
}

impl Difference {
    pub(crate) fn sanitize(&mut self) {
        sanitize(&mut self.common);
        self.odd.truncate(LISTED);
        self.odd.iter_mut().for_each(|(_, value)| sanitize(value));
    }

    /// The difference as a warning.
    pub fn warning(&self) -> Warning {
        let Text { en, zh } = self.property.text();
        let of_zh = between(&zh);
        let common = &self.common;
        let list = |word: &str, between: &str| {
            let one = |(node, value): &(u32, String)| format!("{word} {node}: {value}");
            self.odd.iter().map(one).collect::<Vec<_>>().join(between)
        };
        let (odd, odd_zh) = (list("node", ", "), list("节点", "，"));
        let more = usize::try_from(self.count).unwrap_or(usize::MAX).saturating_sub(self.odd.len());
        let (more, more_zh) = if more > 0 {
            (format!(" and {more} more"), format!(" 等另外 {more} 个"))
        } else {
            Default::default()
        };
        let hint = match self.property {
            Property::Clock => text!(
                "start a time service on that node; log lines of different nodes cannot be ordered",
                "请在该节点启用时间同步；否则无法比较不同节点日志的先后"
            ),
            Property::Command => text!(
                "give all nodes the same program and arguments, and write what differs between nodes as a placeholder ({{node_rank}}); --muster required makes this fail",
                "请为所有节点指定相同的程序和参数，节点间不同的部分用占位符（{{node_rank}}）表示；--muster required 会使其成为错误"
            ),
            _ => text!(
                "use one image and one set of variables on all nodes; --muster required makes this fail",
                "请在所有节点使用同一镜像和同一组变量；--muster required 会使其成为错误"
            ),
        };
        Warning::new(
            self.property.id(),
            text!(
                "{en} is not the same on all nodes: {odd}{more}; the others: {common}",
                "各节点的{of_zh}不一致：{odd_zh}{more_zh}；其余节点：{common}"
            ),
            hint,
        )
    }
}
