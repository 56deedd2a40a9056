//! Chooses the RDMA ports of the ranks, and refuses if RDMA is required and missing.
//!
//! Takes the devices found; gives the ports in use and, only if it differs from NCCL's own
//! choice, an exact list for NCCL_IB_HCA. A list that is already set is only checked, never
//! changed. The reasons for leaving a port out are in [`crate::rails`].

use std::ffi::OsString;

use crate::Notes;
use crate::nccl::NcclList;
use crate::rails::{RailPort, Rails};
use crate::variables::Variables;
use node::observe::{Facts, Gpu, Hca};
use settings::{Need, Settings};
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal, Warning};

/// NCCL silently cuts a longer list.
const MOST_DEVICES: usize = 32;

/// Ports in use as `mlx5_0:1`, and the variables that select them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChosenHcas {
    pub ports: Vec<String>,
    pub env: Vec<(String, OsString)>,
}

/// Chooses the ports for these GPUs on this node of `nnodes`.
pub fn choose(
    settings: &Settings,
    facts: &Facts,
    variables: Variables<'_>,
    nnodes: u32,
    gpus: &[&Gpu],
    notes: &mut Notes,
) -> ChosenHcas {
    let hcas = facts.hcas.as_slice();
    let all = RailPort::all(hcas);
    let rdma = settings.rdma.value;
    if rdma == Need::Off {
        let mut env = Vec::new();
        if nnodes > 1
            && all.iter().any(RailPort::nccl_takes)
            && !variables.is_set("NCCL_IB_DISABLE")
        {
            env.push(("NCCL_IB_DISABLE".to_owned(), "1".into()));
            notes.decide(
                "NCCL_IB_DISABLE",
                "1",
                text!("rdma is off", "已关闭 rdma"),
                &settings.rdma.source,
            );
        }
        return ChosenHcas { ports: Vec::new(), env };
    }
    let own = variables
        .get("NCCL_IB_HCA")
        .and_then(|found| Some((NcclList::parse(&found.value)?, found)));
    let visible = facts.gpus.visible.len();
    let mut rails = Rails::of(hcas, &facts.network, visible);
    if gpus.len() < visible {
        rails = rails.near(gpus);
    }
    let kept: Vec<RailPort<'_>> = match &own {
        Some((list, _)) => all
            .iter()
            .copied()
            .filter(|port| port.nccl_takes() && list.takes(&port.hca.name, Some(port.port.number)))
            .collect(),
        None => rails.kept.clone(),
    };
    let disabled = variables.get("NCCL_IB_DISABLE").is_some_and(|found| found.value == "1");
    // A device of a plugin counts, although NCCL's own code uses no port of it.
    let has_any = !kept.is_empty() || hcas.iter().any(|hca| hca.openable && is_efa(&hca.name));
    if rdma == Need::Required && (disabled || !has_any) {
        notes.failures.push(refuse(settings, hcas, disabled));
    }
    if let Some((_, found)) = &own
        && kept.is_empty()
        && !hcas.is_empty()
    {
        let (value, source) = (&found.value, &found.source);
        notes.raise(
            settings,
            Warning::new(
                Id::RdmaPorts,
                text!(
                    "NCCL_IB_HCA={value} ({source}) matches no usable RDMA port here, and NCCL then falls back to TCP without an error",
                    "NCCL_IB_HCA={value}（{source}）在此处没有匹配到可用的 RDMA 端口，NCCL 会不报错地退回 TCP"
                ),
                text!(
                    "remove it, or name devices of this container; rdma = \"required\" makes this an error",
                    "请删除该变量或改为本容器内的设备；rdma = \"required\" 可将此视为错误"
                ),
            ),
        );
    }
    if let Some((list, found)) = &own {
        let names: Vec<&str> = hcas.iter().map(|hca| hca.name.as_str()).collect();
        let strangers = list.strangers(&names);
        if !kept.is_empty() && !strangers.is_empty() {
            let (value, source, strangers) = (&found.value, &found.source, strangers.join(", "));
            let have = names.join(", ");
            notes.env_nccl(
                settings,
                text!(
                    "NCCL_IB_HCA={value} ({source}): no RDMA device matches {strangers}; here: {have}",
                    "NCCL_IB_HCA={value}（{source}）：没有 RDMA 设备与 {strangers} 匹配；此处有：{have}"
                ),
                text!(
                    "remove it: the devices are then found on each node",
                    "请删除该变量，届时将在各节点上自动查找设备"
                ),
            );
        }
        let more = list.more_than_named(&names);
        if !more.is_empty() {
            let (value, source, more) = (&found.value, &found.source, more.join(", "));
            notes.env_nccl(
                settings,
                text!(
                    "NCCL_IB_HCA={value} ({source}) takes {more} as well, since its items are prefixes",
                    "NCCL_IB_HCA={value}（{source}）按前缀匹配，还会选中 {more}"
                ),
                text!("begin the list with =", "请在列表最前加 ="),
            );
        }
    }
    let ports: Vec<String> = kept.iter().map(RailPort::name).collect();
    if ports.is_empty() || disabled {
        return ChosenHcas::default();
    }
    let listed = ports.join(",");
    let mut env = Vec::new();
    if let Some((_, found)) = own {
        notes.decide(
            "hcas",
            &listed,
            text!("NCCL_IB_HCA is set", "已设置 NCCL_IB_HCA"),
            found.source,
        );
    } else {
        let natural: Vec<String> =
            all.iter().filter(|port| port.nccl_takes()).map(RailPort::name).collect();
        let by_plugin = hcas.iter().any(|hca| hca.openable && is_efa(&hca.name));
        if natural == ports || by_plugin || ports.len() > MOST_DEVICES {
            notes.decide(
                "hcas",
                &listed,
                text!(
                    "what NCCL takes by itself, so nothing is set",
                    "与 NCCL 的默认选择一致，无需设置"
                ),
                "detected",
            );
        } else {
            notes.decide("hcas", &listed, rails.left_out(), "detected");
            if nnodes > 1 {
                env.push(("NCCL_IB_HCA".to_owned(), format!("={listed}").into()));
                // PyTorch's symmetric memory would copy NCCL's value, including `=`.
                if !variables.is_set("NVSHMEM_HCA_LIST") {
                    env.push(("NVSHMEM_HCA_LIST".to_owned(), listed.clone().into()));
                }
            }
        }
    }
    let roce = kept.iter().any(|port| port.is_ethernet());
    if nnodes > 1
        && roce
        && kept.iter().all(|port| port.hca.ipv6_only)
        && !variables.is_set("NCCL_IB_ADDR_FAMILY")
    {
        notes.decide(
            "NCCL_IB_ADDR_FAMILY",
            "AF_INET6",
            text!(
                "the RoCE addresses are only IPv6, but NCCL looks for IPv4",
                "RoCE 地址仅有 IPv6，而 NCCL 默认查找 IPv4"
            ),
            "detected",
        );
        env.push(("NCCL_IB_ADDR_FAMILY".to_owned(), "AF_INET6".into()));
    }
    ChosenHcas { ports, env }
}

/// Amazon's devices are driven by a plugin, not by NCCL's own verbs code.
fn is_efa(name: &str) -> bool {
    name.starts_with("efa") || name.starts_with("rdmap")
}

fn refuse(settings: &Settings, hcas: &[Hca], disabled: bool) -> Refusal {
    let source = &settings.rdma.source;
    let Text { en: seen_en, zh: seen_zh } = if disabled {
        text!("NCCL_IB_DISABLE=1 turns RDMA off", "NCCL_IB_DISABLE=1 关闭了 RDMA")
    } else if hcas.is_empty() {
        text!("/sys/class/infiniband lists no device", "/sys/class/infiniband 下没有设备")
    } else {
        let reasons: Vec<(String, String)> = hcas.iter().map(why_unusable).collect();
        let en: Vec<&str> = reasons.iter().map(|(en, _)| en.as_str()).collect();
        let zh: Vec<&str> = reasons.iter().map(|(_, zh)| zh.as_str()).collect();
        Text::new(en.join(", "), zh.join("，"))
    };
    Refusal::new(
        Id::RdmaPorts,
        text!(
            "RDMA is required ({source}), but no RDMA port can be used: {seen_en}",
            "要求使用 RDMA（{source}），但没有可用的 RDMA 端口：{seen_zh}"
        ),
        text!(
            "request the RDMA device and IPC_LOCK for the container; --rdma auto starts without it",
            "请为容器申请 RDMA 设备与 IPC_LOCK 权限；--rdma auto 可在没有 RDMA 时启动"
        ),
    )
}

fn why_unusable(hca: &Hca) -> (String, String) {
    let name = &hca.name;
    let (en, zh) = if !hca.openable {
        ("cannot be opened", "无法打开")
    } else if !hca.ports.iter().any(|port| port.active) {
        ("has no active port", "没有活动端口")
    } else if hca.ports.iter().any(|port| port.active && port.link_layer == "InfiniBand") {
        ("is not in NCCL_IB_HCA", "不在 NCCL_IB_HCA 中")
    } else {
        (
            "has no RoCE v2 address in this network namespace",
            "在当前网络命名空间中没有 RoCE v2 地址",
        )
    };
    (format!("{name} {en}"), format!("{name} {zh}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::observe::{HcaPort, NetworkFacts};

    fn hca(name: &str, layer: &str, rate: f64, (openable, active, gid): (bool, bool, bool)) -> Hca {
        Hca {
            name: name.into(),
            openable,
            ports: vec![HcaPort {
                number: 1,
                active,
                link_layer: layer.into(),
                gigabits: Some(rate),
                roce_v2_gid: gid,
            }],
            ..Hca::default()
        }
    }

    fn chosen(hcas: &[Hca], gpus: usize) -> Vec<String> {
        Rails::of(hcas, &NetworkFacts::default(), gpus).kept.iter().map(RailPort::name).collect()
    }

    const GOOD: (bool, bool, bool) = (true, true, true);

    #[test]
    fn closed_dead_and_unaddressable_ports_are_left_out() {
        let hcas = [
            hca("mlx5_0", "InfiniBand", 400.0, (true, true, false)),
            hca("mlx5_1", "InfiniBand", 400.0, (false, true, false)),
            hca("mlx5_2", "InfiniBand", 400.0, (true, false, false)),
        ];
        assert_eq!(chosen(&hcas, 8), ["mlx5_0:1"]);
        let roce = [
            hca("mlx5_0", "Ethernet", 200.0, GOOD),
            hca("mlx5_1", "Ethernet", 200.0, (true, true, false)),
        ];
        assert_eq!(chosen(&roce, 8), ["mlx5_0:1"]);
        assert!(chosen(&[], 8).is_empty());
    }

    #[test]
    fn slow_front_end_beside_rails_is_left_out() {
        let hcas = [
            hca("mlx5_0", "InfiniBand", 400.0, GOOD),
            hca("mlx5_1", "InfiniBand", 400.0, GOOD),
            hca("mlx5_bond_0", "Ethernet", 100.0, GOOD),
        ];
        assert_eq!(chosen(&hcas, 8), ["mlx5_0:1", "mlx5_1:1"]);
        // A single fast device is no class of rails for two GPUs.
        let odd = [hca("a", "InfiniBand", 400.0, GOOD), hca("b", "InfiniBand", 200.0, GOOD)];
        assert_eq!(chosen(&odd, 2), ["a:1", "b:1"]);
        assert_eq!(chosen(&odd, 1), ["a:1"]);
    }

    #[test]
    fn link_layers_are_never_mixed() {
        let hcas = [
            hca("r0", "Ethernet", 200.0, GOOD),
            hca("r1", "Ethernet", 200.0, GOOD),
            hca("i0", "InfiniBand", 200.0, GOOD),
        ];
        assert_eq!(chosen(&hcas, 3), ["r0:1", "r1:1"]);
    }
}
