//! Checks of the network: route to the master, interfaces, RDMA ports, proxies and NCCL's
//! settings. Whether the job requires RDMA is decided in `src/plan/hcas.rs`.

use std::net::IpAddr;

use super::finding::{
    CheckFinding, CheckInput, Judge, Reach, bad, doubtful, hinted, info, note, ok, or, planned,
};
use text::lang::Text;
use text::text;
use verdict::Id;

pub(super) const JUDGES: &[Judge] = &[
    (Id::PortFree, port),
    (Id::MasterResolve, resolve),
    (Id::MasterReach, reach),
    (Id::RdmaPorts, rdma),
    (Id::RdmaGpudirect, gpudirect),
    (Id::EnvNccl, nccl),
    (Id::EnvProxy, proxy),
];

fn port(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    if let Some(freed) = &input.tried.port_freed {
        return vec![info(freed.clone())];
    }
    vec![match &input.tried.port {
        Some(Ok(port)) => ok(text!("{port} can be bound", "{port} 可绑定")),
        Some(Err(refusal)) => bad((refusal.text.clone(), refusal.hint.clone())),
        None if input.nnodes() == 1 => {
            ok(text!("one node: any free port is used", "单节点：自动选用空闲端口"))
        }
        None => ok(text!("only node 0 binds it", "只由节点 0 绑定")),
    }]
}

fn resolve(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(master) = &input.facts.network.master else {
        return vec![ok(text!("no name to resolve", "无需解析"))];
    };
    let name = &master.host;
    if master.addresses.is_empty() {
        let Text { en, zh } = master.error.clone().unwrap_or_else(|| Text::same("?"));
        return vec![bad(hinted!(
            "{name} has no address: {en}",
            "{name} 无地址：{zh}",
            "check MASTER_ADDR and the headless Service; run retries until --wait-timeout",
            "请检查 MASTER_ADDR 与 headless Service；run 会重试到 --wait-timeout 为止"
        ))];
    }
    let all: Vec<String> = master.addresses.iter().map(ToString::to_string).collect();
    let all = all.join(", ");
    if let Some(Text { en, zh }) = &master.error {
        return vec![doubtful(hinted!(
            "{name} resolves to {all}, but {en}",
            "{name} 解析为 {all}，但{zh}",
            "check the routes of this node (ip route get)",
            "请检查本节点的路由（ip route get）"
        ))];
    }
    vec![ok(text!("{name} resolves to {all}", "{name} 解析为 {all}"))]
}

fn reach(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    vec![match &input.tried.reach {
        Some(Ok(peer)) => ok(text!("{peer} answers", "{peer} 已应答")),
        Some(Err(reach)) => {
            let Reach { peer, cause: Text { en, zh } } = reach;
            bad(hinted!(
                "{peer} does not answer yet: {en}",
                "{peer} 尚无应答：{zh}",
                "start node 0 first, or check firewall and NetworkPolicy; run waits for it until --wait-timeout",
                "请先启动节点 0，或检查防火墙与 NetworkPolicy；run 会等到 --wait-timeout 为止"
            ))
        }
        None => ok(text!("no master to connect to", "无需连接 Master")),
    }]
}

fn rdma(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let hcas = &input.facts.hcas;
    let all = hcas.len();
    let chosen = input.outline().map(|plan| plan.network.hcas.as_slice()).unwrap_or_default();
    let mut found = or(planned(input, &[Id::RdmaPorts]), || {
        if hcas.is_empty() {
            ok(text!("no RDMA device", "无 RDMA 设备"))
        } else if chosen.is_empty() {
            info(text!("none of {all} RDMA devices is used", "{all} 个 RDMA 设备均未使用"))
        } else {
            ok(Text::same(chosen.join(", ")))
        }
    });
    if !hcas.is_empty() && hcas.iter().all(|hca| !hca.openable) {
        found.push(doubtful(hinted!(
            "sysfs lists {all} RDMA devices, but none can be opened: NCCL falls back to TCP without an error",
            "sysfs 中有 {all} 个 RDMA 设备但均无法打开：NCCL 会改用 TCP 且不报错",
            "request the RDMA resource for the container (rdma/hca), or mount /dev/infiniband",
            "请为容器申请 RDMA 资源（rdma/hca），或挂载 /dev/infiniband"
        )));
    }
    let gpus = input.on_gpus() as usize;
    if input.nnodes() > 1 && !chosen.is_empty() && chosen.len() < gpus {
        let rails = chosen.len();
        found.push(note(hinted!(
            "{rails} RDMA ports for {gpus} GPUs",
            "{gpus} 个 GPU 使用 {rails} 个 RDMA 端口",
            "compare with the other nodes: all should have the same number",
            "请与其他节点比较：各节点数量应相同"
        )));
    }
    found
}

fn nccl(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    or(planned(input, &[Id::EnvNccl]), || {
        ok(match input.facts.network.nccl.len() {
            0 => text!("no NCCL settings", "未设置 NCCL 变量"),
            set => {
                text!("{set} settings, all effective and harmless", "{set} 项设置，均有效且无害")
            }
        })
    })
}

fn gpudirect(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let gpus = input.on_gpus() > 0;
    let usable = input.facts.hcas.iter().any(|hca| hca.openable);
    if !gpus || !usable || input.nnodes() == 1 {
        return vec![ok(text!("not needed here", "此处不需要"))];
    }
    vec![match &input.facts.state.gpudirect {
        Some(way) => ok(text!("by {way}", "通过 {way}")),
        None => bad(hinted!(
            "nvidia_peermem is not loaded and the driver does not support dma-buf: NCCL copies all traffic between HCA and GPU through host memory",
            "未加载 nvidia_peermem，驱动也不支持 dma-buf：HCA 与 GPU 之间的数据都要经主机内存中转",
            "run modprobe nvidia_peermem on the host, or install the driver's open kernel modules",
            "请在宿主机执行 modprobe nvidia_peermem，或安装驱动的开源内核模块"
        )),
    }]
}

/// Variables by which HTTP clients and gRPC are sent through a proxy.
const PROXIES: &[&str] = &["http_proxy", "https_proxy", "all_proxy", "grpc_proxy"];

fn proxy(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let environment = &input.facts.environment;
    let get = |name: &str| {
        let upper = name.to_uppercase();
        let found = environment.get(name).map(|value| (name.to_owned(), value));
        let found = found.or_else(|| environment.get(&upper).map(|value| (upper, value)));
        found.filter(|(_, value)| !value.trim().is_empty())
    };
    let set: Vec<String> =
        PROXIES.iter().filter_map(|name| get(name)).map(|(name, _)| name).collect();
    if set.is_empty() {
        return vec![ok(text!("no proxy is set", "未设置代理"))];
    }
    // The value may hold a password.
    let set = set.join(", ");
    let member = input.outline().map(|plan| &plan.membership);
    let Some(master) = member.filter(|member| member.nnodes > 1).map(|member| &member.master_addr)
    else {
        return vec![ok(text!("{set}; there are no other nodes", "{set}；没有其他节点"))];
    };
    let exempt = get("no_proxy").map(|(_, list)| list.as_str()).unwrap_or_default();
    if is_exempt(master, exempt) {
        return vec![ok(text!(
            "{set}; no_proxy contains {master}",
            "{set}；no_proxy 包含 {master}"
        ))];
    }
    vec![bad(hinted!(
        "{set} is set, but no_proxy does not contain {master}: HTTP and gRPC traffic to it (etcd rendezvous, Ray, health checks) goes through the proxy; torch's own TCPStore does not",
        "设置了 {set}，而 no_proxy 不包含 {master}：以 HTTP 或 gRPC 与其通信的组件（etcd rendezvous、Ray、健康检查）会走代理；torch 自身的 TCPStore 不受影响",
        "add the nodes to no_proxy: their domain (.svc,.cluster.local) or addresses",
        "请将各节点加入 no_proxy：其域名（.svc,.cluster.local）或地址"
    ))]
}

/// Whether no_proxy keeps `host` from the proxy: `*`, a name or its domain, an address
/// or its network.
fn is_exempt(host: &str, list: &str) -> bool {
    let host = host.trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase();
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    list.split([',', ' ']).map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let entry = entry.to_ascii_lowercase();
        let domain = entry.trim_start_matches('*').trim_start_matches('.');
        match (address, entry.split_once('/')) {
            _ if entry == "*" => true,
            (Some(address), Some((network, length))) => is_within(address, network, length),
            (Some(_), None) => entry == host,
            (None, _) => host == domain || host.ends_with(&format!(".{domain}")),
        }
    })
}

fn is_within(address: IpAddr, network: &str, length: &str) -> bool {
    let (Ok(network), Ok(length)) = (network.parse::<IpAddr>(), length.parse::<u32>()) else {
        return false;
    };
    // Compares the first `length` bits of both.
    let head = |bits: u128, width: u32| bits.checked_shr(width.saturating_sub(length)).unwrap_or(0);
    let head = |address: IpAddr| match address {
        IpAddr::V4(address) => head(address.to_bits().into(), 32),
        IpAddr::V6(address) => head(address.to_bits(), 128),
    };
    address.is_ipv4() == network.is_ipv4() && head(address) == head(network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_accepts_names_domains_addresses_and_networks() {
        for (host, list, exempt) in [
            ("10.0.0.1", "", false),
            ("10.0.0.1", "*", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.10", false),
            ("10.0.0.1", "localhost, 10.0.0.0/8", true),
            ("11.0.0.1", "10.0.0.0/8", false),
            ("fd00::1", "fd00::/8", true),
            ("10.0.0.1", "::/0", false),
            ("127.0.0.1", "", true),
            ("job-master-0", "job-master-0", true),
            ("job-master-0.ns.svc", ".svc", true),
            ("job-master-0.ns.svc", "svc", true),
            ("job-master-0.ns.svc", "*.svc", true),
            ("job-master-0", ".svc,.cluster.local", false),
            ("xsvc", "svc", false),
        ] {
            assert_eq!(is_exempt(host, list), exempt, "{host} in {list:?}");
        }
    }
}
