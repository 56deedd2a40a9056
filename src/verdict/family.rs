//! Families of ids.

use text::lang::Text;
use text::text;

/// The subject of an id; ids are listed in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Gpu,
    Limits,
    Network,
    Program,
    Membership,
    Layout,
    Muster,
    Settings,
    End,
    Lint,
}

impl Family {
    pub const ALL: &[Family] = &[
        Family::Gpu,
        Family::Limits,
        Family::Network,
        Family::Program,
        Family::Membership,
        Family::Layout,
        Family::Muster,
        Family::Settings,
        Family::End,
        Family::Lint,
    ];

    pub fn title(self) -> Text {
        match self {
            Family::Gpu => text!("GPUs", "GPU"),
            Family::Limits => text!("Limits, disks, clock and logs", "资源限制、磁盘、时钟与日志"),
            Family::Network => text!("Ports, master, RDMA and NCCL", "端口、Master、RDMA 与 NCCL"),
            Family::Program => text!("Program, python and torch", "程序、Python 与 torch"),
            Family::Membership => {
                text!("Which node of how many", "节点数与节点编号")
            }
            Family::Layout => text!("Processes and parallel sizes", "进程数与并行规模"),
            Family::Muster => text!("Between the nodes", "节点之间"),
            Family::Settings => {
                text!("Command line, variables and profile", "命令行、变量与配置文件")
            }
            Family::End => text!("How a job ended", "任务如何结束"),
            Family::Lint => text!("Rules of lint", "lint 规则"),
        }
    }

    /// The ids of the family, in the order of the table.
    pub fn ids(self) -> impl Iterator<Item = crate::Id> {
        crate::Id::ALL.iter().copied().filter(move |id| id.family() == self)
    }
}
