//! Host and port of the master.
//!
//! Takes settings, contract and the node count; gives a checked host and port. Does not test
//! whether the host resolves or answers.

use crate::Notes;
use settings::Settings;
use settings::contract::{Claim, Contract, Evidence, Field, Reading, Strength};
use settings::split_endpoint;
use text::lang::Text;
use text::text;
use verdict::{Id, Refusal};

use super::claims::{self, refuse};
use super::known::{By, Known};

/// torchrun's own default for static rendezvous.
const STATIC_PORT: u16 = 29500;
/// torchrun's own default for a c10d endpoint without a port.
const C10D_PORT: u16 = 29400;

pub(super) struct Master {
    pub(super) addr: String,
    pub(super) port: u16,
}

/// Host and port of a job with known node ranks. Takes this node's rank and the number of
/// launchers that have to meet.
pub(super) fn master(
    settings: &Settings,
    contract: &Contract,
    nnodes: &Known,
    (node_rank, members): (u32, u32),
    notes: &mut Notes,
) -> Result<Master, Refusal> {
    let several = nnodes.value > 1;
    // `--nnodes 1` in a job of several pods: the platform's master is another node.
    let alone = nnodes.is_apart();
    let addr = match stated_addr(settings, notes)? {
        Some(addr) => addr,
        None => {
            let claims = if alone { Vec::new() } else { addresses(contract, several) };
            claimed_addr(&claims, nnodes, members, notes)?
        }
    };
    if several && node_rank > 0 && claims::is_loopback(&addr) {
        notes.warn(
            Id::MasterLocalhost,
            text!(
                "node {node_rank} looks for node 0 at {addr}, which is this node itself",
                "节点 {node_rank} 到 {addr} 寻找节点 0，而该地址就是本节点自己"
            ),
            text!(
                "give the name or address of node 0: --master-addr, or MASTER_ADDR",
                "请给出节点 0 的名称或地址：--master-addr 或 MASTER_ADDR"
            ),
        );
    }
    let mut claims = if alone { Vec::new() } else { claims::of(contract, Field::MasterPort) };
    // The job id of an outer platform may differ between the nodes. So may any id if the nodes are
    // numbered by hand.
    let derives = |found: &Evidence| {
        found.reading != Reading::PortOfJob
            || (found.platform == contract.platform && nnodes.by != By::Setting)
    };
    claims.retain(derives);
    let port = match stated_port(settings, notes)? {
        Some(port) => port,
        None => {
            let default = contract.default_port.unwrap_or(STATIC_PORT);
            claimed_port(&claims, members > 1, default, notes)?
        }
    };
    Ok(Master { addr, port })
}

/// Endpoint of an elastic job. `count`: the largest number of nodes, and its source.
pub(super) fn rendezvous(
    settings: &Settings,
    contract: &Contract,
    count: (u32, &Claim),
    notes: &mut Notes,
) -> Result<Master, Refusal> {
    let endpoint = claims::spoken(contract, Field::RdzvEndpoint);
    let part = |reading| move |found: &Evidence| Evidence { reading, ..found.clone() };
    // The endpoint is more specific; torchrun prefers it as well.
    let mut hosts: Vec<Evidence> = endpoint.iter().map(part(Reading::HostPart)).collect();
    hosts.extend(addresses(contract, true));
    let mut ports: Vec<Evidence> = endpoint
        .iter()
        .filter(|found| split_endpoint(&found.claim.value).1.is_some())
        .map(part(Reading::PortPart))
        .collect();
    let default = if endpoint.is_empty() { STATIC_PORT } else { C10D_PORT };
    if endpoint.is_empty() {
        ports = claims::of(contract, Field::MasterPort);
    }
    let (most, claim) = count;
    let several = Known { value: most, source: claim.to_string(), by: By::Platform };
    let addr = match stated_addr(settings, notes)? {
        Some(addr) => addr,
        None => claimed_addr(&hosts, &several, several.value, notes)?,
    };
    let port = match stated_port(settings, notes)? {
        Some(port) => port,
        None => claimed_port(&ports, true, default, notes)?,
    };
    Ok(Master { addr, port })
}

/// Hints only tell where several nodes meet, never that there are several. On a single node an
/// address from a node list or an endpoint is not worth a failed name look-up.
fn addresses(contract: &Contract, several: bool) -> Vec<Evidence> {
    let mut found = claims::of(contract, Field::MasterAddr);
    let own = |found: &Evidence| found.strength > Strength::Hint && found.reading == Reading::Plain;
    found.retain(|found| several || own(found));
    found
}

fn stated_addr(settings: &Settings, notes: &mut Notes) -> Result<Option<String>, Refusal> {
    let Some(setting) = &settings.master_addr else { return Ok(None) };
    let host = setting.value.trim();
    let said = Claim { variable: setting.source.to_string(), value: setting.value.clone() };
    if let Some(problem) = claims::host_problem(host) {
        return Err(bad_addr(&said, &problem));
    }
    let host = bare(host);
    notes.decide("master_addr", &host, stated(), &setting.source);
    Ok(Some(host))
}

fn stated_port(settings: &Settings, notes: &mut Notes) -> Result<Option<u16>, Refusal> {
    let Some(setting) = &settings.master_port else { return Ok(None) };
    let said = Claim { variable: setting.source.to_string(), value: setting.value.to_string() };
    let port = port(&said, &said.value)?;
    notes.decide("master_port", port, stated(), &setting.source);
    Ok(Some(port))
}

fn stated() -> Text {
    text!("given", "已指定")
}

fn claimed_addr(
    found: &[Evidence],
    nnodes: &Known,
    members: u32,
    notes: &mut Notes,
) -> Result<String, Refusal> {
    let (nodes, source, several) = (nnodes.value, &nnodes.source, nnodes.value > 1);
    if let Some(found) = found.iter().find(|found| !found.claim.is_blank()) {
        let (claim, platform) = (&found.claim, &found.platform);
        let host = found.host();
        match claims::host_problem(&host) {
            None => {
                let host = bare(&host);
                notes.decide(
                    "master_addr",
                    &host,
                    text!("names node 0 (platform {platform})", "表示节点 0（平台 {platform}）"),
                    claim,
                );
                return Ok(host);
            }
            Some(problem) if several => return Err(bad_addr(claim, &problem)),
            Some(Text { en, zh }) => notes.warn(
                Id::MasterAddr,
                text!(
                    "{claim} is not used: {en}; a single node does not need it",
                    "不采用 {claim}：{zh}；单节点也不需要它"
                ),
                text!(
                    "correct it in the job's definition, or set --master-addr",
                    "请在任务定义中改正，或给出 --master-addr"
                ),
            ),
        }
    } else if several {
        let blank = found.first().map(|found| found.claim.to_string());
        let text = match blank {
            Some(blank) => text!(
                "{blank} with {nodes} nodes ({source}): the nodes need an address for the rendezvous",
                "{blank}，而节点数为 {nodes}（{source}）：各节点缺少会合地址"
            ),
            None => text!(
                "there are {nodes} nodes ({source}), but MASTER_ADDR is not set: the nodes need an address for the rendezvous",
                "共有 {nodes} 个节点（{source}），但未设置 MASTER_ADDR：各节点缺少会合地址"
            ),
        };
        return Err(refuse(
            Id::MembershipMasterAddr,
            text,
            text!(
                "give the name or address of node 0: --master-addr, or MASTER_ADDR; --nnodes 1 if each node works for itself",
                "请给出节点 0 的名称或地址：--master-addr 或 MASTER_ADDR；若各节点独立工作，请用 --nnodes 1"
            ),
        ));
    }
    let blank = found.first().map_or("default".to_owned(), |found| found.claim.to_string());
    let because = match members {
        1 => text!("single node: no rendezvous needed", "单节点，无需会合"),
        _ => text!("all tasks are on this node", "全部 task 都在本节点上"),
    };
    notes.decide("master_addr", "127.0.0.1", because, blank);
    Ok("127.0.0.1".to_owned())
}

fn claimed_port(
    found: &[Evidence],
    several: bool,
    default: u16,
    notes: &mut Notes,
) -> Result<u16, Refusal> {
    let said = |found: &&Evidence| {
        // An endpoint may have no port.
        let text = found.port();
        !found.claim.is_blank() && !text.is_empty()
    };
    if let Some(found) = found.iter().find(said) {
        let (claim, platform) = (&found.claim, &found.platform);
        if found.reading == Reading::PortOfJob {
            let port = port_of_job(found);
            let because = text!(
                "no variable gives a port: derived from the job's id ({FIRST_OF_JOBS} to {LAST_OF_JOBS}), so that two jobs on one node use different ports",
                "没有变量给出端口：由任务 ID 推导（{FIRST_OF_JOBS} 到 {LAST_OF_JOBS}），使同一节点上的两个任务使用不同端口"
            );
            notes.decide("master_port", port, because, claim);
            return Ok(port);
        }
        if several || !is_service_link(&claim.value) {
            let port = port(claim, &found.port())?;
            let because = if several {
                text!("of platform {platform}", "来自平台 {platform}")
            } else {
                text!(
                    "of platform {platform}; a single node uses another free port if it is in use",
                    "来自平台 {platform}；单节点时若被占用，则改用其他空闲端口"
                )
            };
            notes.decide("master_port", port, because, claim);
            return Ok(port);
        }
        let Text { en, zh } = service_link();
        notes.warn(
            Id::MasterPort,
            text!("{claim} is not used: {en}", "不采用 {claim}：{zh}"),
            text!(
                "enableServiceLinks: false in the pod keeps such variables away",
                "在 Pod 中设置 enableServiceLinks: false 可避免此类变量"
            ),
        );
    }
    let because = if several {
        text!("the default, as no variable gives a port", "没有变量给出端口，取默认值")
    } else {
        text!("a single node uses any free port", "单节点可使用任意空闲端口")
    };
    notes.decide("master_port", default, because, "default");
    Ok(default)
}

/// First of the ports that are derived from a job id: below the ephemeral ports of usual kernels
/// (32768), Kubernetes' node ports (30000) and torchrun's own defaults.
const FIRST_OF_JOBS: u16 = 20_000;
const LAST_OF_JOBS: u16 = 27_999;

/// A port derived from the job id, the same on all nodes. Consecutive numbers, such as Slurm's
/// job ids with sixteen steps each, get different ports; other ids are hashed (FNV-1a).
fn port_of_job(found: &Evidence) -> u16 {
    let range = u64::from(LAST_OF_JOBS - FIRST_OF_JOBS) + 1;
    let id = found.claim.value.trim();
    let step = found.beside.as_ref().and_then(|beside| beside.value.trim().parse::<u64>().ok());
    let number = match (id.parse::<u64>(), step) {
        (Ok(job), Some(step)) => job.wrapping_mul(16).wrapping_add(step % 16),
        _ => id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }),
    };
    FIRST_OF_JOBS.saturating_add(u16::try_from(number % range).unwrap_or_default())
}

/// Kubernetes sets `<SERVICE>_PORT=tcp://IP:PORT` for every Service of the namespace, so a
/// Service called `master` sets MASTER_PORT.
fn is_service_link(value: &str) -> bool {
    let value = value.trim();
    ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme))
}

fn service_link() -> Text {
    text!(
        "Kubernetes sets it for a Service called `master` in this namespace (Service link); it is not a port",
        "这是 Kubernetes 为本命名空间中名为 `master` 的 Service 设置的（Service 链接），不是端口"
    )
}

fn port(claim: &Claim, text: &str) -> Result<u16, Refusal> {
    if let Some(port) = text.trim().parse::<u16>().ok().filter(|port| *port > 0) {
        return Ok(port);
    }
    let problem = if is_service_link(&claim.value) {
        service_link()
    } else {
        text!("a port is a whole number from 1 to 65535", "端口应为 1 到 65535 之间的整数")
    };
    let Text { en, zh } = problem;
    Err(refuse(
        Id::MembershipMasterPort,
        text!("{claim} is no port: {en}", "{claim} 不是端口：{zh}"),
        text!(
            "set the port with --master-port, or rename the variable's source (enableServiceLinks: false for a Service link)",
            "请用 --master-port 给出端口，或消除该变量的来源（Service 链接可设 enableServiceLinks: false）"
        ),
    ))
}

fn bad_addr(claim: &Claim, problem: &Text) -> Refusal {
    let Text { en, zh } = problem;
    refuse(
        Id::MembershipMasterAddr,
        text!("{claim} is no address: {en}", "{claim} 不是地址：{zh}"),
        text!(
            "give the name or address of node 0 with --master-addr",
            "请用 --master-addr 给出节点 0 的名称或地址"
        ),
    )
}

/// `[fd00::1]` → `fd00::1`.
fn bare(host: &str) -> String {
    split_endpoint(host).0.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use settings::contract::Strength;

    #[test]
    fn jobs_on_one_node_get_different_ports() {
        let port = |id: &str, step: Option<&str>| {
            let claim = |value: &str| Claim { variable: "V".to_owned(), value: value.to_owned() };
            port_of_job(&Evidence {
                platform: "slurm".to_owned(),
                field: Field::MasterPort,
                claim: claim(id),
                reading: Reading::PortOfJob,
                beside: step.map(claim),
                strength: Strength::Specific,
            })
        };
        let mut all = std::collections::BTreeSet::new();
        for job in 4_711..4_811 {
            for step in 0..4 {
                all.insert(port(&job.to_string(), Some(&step.to_string())));
            }
        }
        assert_eq!(all.len(), 400);
        for name in ["prterun-n1-12345@1", "2849243137", "", "18446744073709551615"] {
            all.insert(port(name, None));
            all.insert(port(name, Some("4294967291")));
        }
        assert!(all.iter().all(|port| (FIRST_OF_JOBS..=LAST_OF_JOBS).contains(port)), "{all:?}");
        assert_ne!(port("prterun-n1-12345@1", None), port("prterun-n1-12346@1", None));
    }
}
