//! Rules about pods: shared memory, memory, CPU, grace period, ports.

use crate::launches::Launcher;
use crate::pods::{Container, Group, Quantity, milli, shown_bytes, split_unit, whole_units};
use crate::scene::{Findings, LaunchSite, LintSeverity, Scene};
use crate::workload::Workload;
use settings::launchers::FlagField;
use settings::{GRACE_OF_A_POD, grace_in_container};
use text::text;
use text::yaml::Node;

pub(super) fn gpu_requests(scene: &Scene<'_>, findings: &mut Findings) {
    for (_, container) in scene.containers() {
        for name in Container::gpu_names() {
            let Some(request) = container.in_resources("requests", name) else { continue };
            let limit = container.in_resources("limits", name);
            let (asked, limit) = (request.text, limit.map(|limit| limit.text));
            // `8` and `8000m` are one number.
            let number = milli(asked);
            let same = number.is_some() && number == limit.and_then(milli);
            if limit != Some(asked) && !same {
                let (limit, limit_zh) =
                    limit.map_or(("nothing", "未设置"), |limit| (limit, limit));
                findings.error(
                    request.line,
                    text!(
                        "{name}: request {asked}, limit {limit}; Kubernetes rejects a request that differs from the limit",
                        "{name}：request {asked}，limit {limit_zh}；两者不同会被 Kubernetes 拒绝"
                    ),
                    text!("set it under limits only", "请只写在 limits 中"),
                );
            }
        }
    }
}

pub(super) fn gpu_memory(scene: &Scene<'_>, findings: &mut Findings) {
    const NAME: &str = "nvidia.com/gpumem";
    const LEAST_MIB: u64 = 1024;
    for (_, container) in scene.containers() {
        let Some(Quantity { text, line }) = container.resource(NAME) else { continue };
        let small = whole_units(text).is_some_and(|mib| mib < LEAST_MIB);
        let unit = split_unit(text).map_or("", |(_, unit)| unit);
        if !small && unit.is_empty() {
            continue;
        }
        findings.error(
            line,
            text!(
                "{NAME} is {text}: HAMi reads it as the GPU memory of each device in MiB, without a unit",
                "{NAME} 为 {text}：HAMi 把它当作每个设备的显存上限，单位为 MiB，不带后缀"
            ),
            text!("remove it to use whole GPUs, or give MiB: 81920", "使用整个 GPU 请删除；否则请写 MiB 数，例如 81920"),
        );
    }
}

/// The volume mounted at /dev/shm: its definition, or else the mount.
fn shm<'a>(group: &Group<'a>, container: &Container<'a>) -> Option<(&'a Node, Option<&'a Node>)> {
    let mount = container.node.items("volumeMounts").find(|mount| {
        let path = mount.get("mountPath").and_then(Node::text).unwrap_or_default();
        path.trim_end_matches('/') == "/dev/shm"
    })?;
    let name = mount.get("name").and_then(Node::text);
    let volume = group.pod.items("volumes").find(|v| v.get("name").and_then(Node::text) == name);
    Some((mount, volume))
}

fn shares_host_ipc(group: &Group<'_>) -> bool {
    group.pod.get("hostIPC").is_some_and(Node::is_true)
}

/// Containers with GPUs whose complete pod is in the manifest.
fn with_gpus<'a>(
    scene: &Scene<'a>,
) -> impl Iterator<Item = (&'a Group<'a>, &'a Container<'a>, u64)> {
    scene
        .containers()
        .filter(|(group, _)| group.whole)
        .filter_map(|(group, container)| Some((group, container, container.gpus()?.0)))
}

pub(super) fn shm_missing(scene: &Scene<'_>, findings: &mut Findings) {
    for (group, container, gpus) in with_gpus(scene) {
        if shm(group, container).is_some() || shares_host_ipc(group) {
            continue;
        }
        let is_first = group.containers.first().is_some_and(|first| std::ptr::eq(first, container));
        if scene.job.kind.mounts_shm && is_first {
            continue;
        }
        // NCCL shares memory only between the ranks of one pod; data loaders belong to training.
        let is_known = scene.trains(container) || container.started.serves;
        let (importance, who_en, who_zh) = match (gpus, is_known) {
            (1, _) if !scene.trains(container) => continue,
            (1, _) => {
                (LintSeverity::Warning, "data loaders with workers", "带 worker 的 DataLoader")
            }
            (_, true) => (LintSeverity::Error, "NCCL and data loaders", "NCCL 和 DataLoader"),
            (_, false) => (LintSeverity::Warning, "NCCL and data loaders", "NCCL 和 DataLoader"),
        };
        let name = &container.name;
        findings.push(
            importance,
            container.line(),
            text!(
                "{name} has no volume at /dev/shm, so it has 64 MiB: {who_en} fail with \"No space left on device\"",
                "{name} 没有挂载 /dev/shm，只有 64 MiB：{who_zh} 会报 \"No space left on device\""
            ),
            text!(
                "mount an emptyDir with medium: Memory and a sizeLimit of some GiB there",
                "请在此挂载 medium: Memory、sizeLimit 为若干 GiB 的 emptyDir"
            ),
        );
    }
}

pub(super) fn shm_medium(scene: &Scene<'_>, findings: &mut Findings) {
    for (group, container, _) in with_gpus(scene) {
        let Some((mount, volume)) = shm(group, container) else { continue };
        let Some(volume) = volume else {
            let name = mount.get("name").and_then(Node::text).unwrap_or_default();
            findings.error(
                mount.line,
                text!(
                    "the volume {name} at /dev/shm is not defined",
                    "/dev/shm 处的卷 {name} 没有定义"
                ),
                text!("define it under volumes", "请在 volumes 中定义"),
            );
            continue;
        };
        let Some(empty) = volume.get("emptyDir") else { continue };
        let medium = empty.get("medium");
        if medium.and_then(Node::text) != Some("Memory") {
            findings.error(
                medium.map_or(empty.line, |medium| medium.line),
                text!(
                    "the emptyDir at /dev/shm is not in memory but on the node's disk",
                    "/dev/shm 处的 emptyDir 不在内存中，而在节点磁盘上"
                ),
                text!("add medium: Memory", "请加上 medium: Memory"),
            );
        }
    }
}

pub(super) fn shm_size(scene: &Scene<'_>, findings: &mut Findings) {
    const LEAST: u64 = 1 << 30;
    for (group, container, _) in with_gpus(scene) {
        let Some((_, Some(volume))) = shm(group, container) else { continue };
        let Some(limit) = volume.at(&["emptyDir", "sizeLimit"]) else { continue };
        let Some(bytes) = limit.text().and_then(whole_units) else { continue };
        let shown = shown_bytes(bytes);
        if bytes < LEAST {
            findings.error(
                limit.line,
                text!(
                    "/dev/shm has {shown}, which NCCL and data loaders fill at once",
                    "/dev/shm 只有 {shown}，NCCL 和 DataLoader 会很快占满"
                ),
                text!("give it 2Gi or more", "请设为 2Gi 或更大"),
            );
        }
        let memory = container.in_resources("limits", "memory");
        let Some(memory) = memory.and_then(|memory| whole_units(memory.text)) else { continue };
        if bytes > memory {
            let memory = shown_bytes(memory);
            findings.error(
                limit.line,
                text!(
                    "/dev/shm may take {shown}, the container {memory}; its content counts towards the container's memory",
                    "/dev/shm 上限 {shown}，而容器内存限额 {memory}；其内容计入容器内存"
                ),
                text!("raise the memory limit above that size", "请把内存限额设得更大"),
            );
        }
    }
}

/// The request, or else the limit, which Kubernetes uses as request.
fn asked<'a>(container: &Container<'a>, name: &str) -> Option<Quantity<'a>> {
    container.in_resources("requests", name).or_else(|| container.in_resources("limits", name))
}

pub(super) fn memory_missing(scene: &Scene<'_>, findings: &mut Findings) {
    for (_, container, _) in with_gpus(scene).filter(|(_, c, _)| scene.trains(c)) {
        if asked(container, "memory").is_none() {
            let name = &container.name;
            findings.warning(
                container.line(),
                text!(
                    "{name} sets no memory: it may be scheduled to a node without enough, and is among the first to be killed",
                    "{name} 未设置内存：可能被调度到内存不足的节点，并会最先被终止"
                ),
                text!("set memory under requests and limits", "请在 requests 和 limits 中设置 memory"),
            );
        }
    }
}

pub(super) fn cpu_missing(scene: &Scene<'_>, findings: &mut Findings) {
    for (_, container, gpus) in with_gpus(scene).filter(|(_, c, _)| scene.trains(c)) {
        if asked(container, "cpu").is_none() {
            let (name, least) = (&container.name, gpus.saturating_mul(2));
            findings.warning(
                container.line(),
                text!(
                    "{name} sets no CPU: next to other pods its data loaders cannot keep the GPUs busy",
                    "{name} 未设置 CPU：与其他 Pod 争用 CPU 时，数据加载会拖慢 GPU"
                ),
                text!(
                    "set cpu under requests, {least} or more",
                    "请在 requests 中设置 cpu，不少于 {least}"
                ),
            );
        }
    }
}

pub(super) fn memory_node(scene: &Scene<'_>, findings: &mut Findings) {
    let Some(node) = scene.node_memory else { return };
    for group in &scene.job.groups {
        let asked: Vec<(u64, usize)> = group
            .containers
            .iter()
            .filter_map(|container| asked(container, "memory"))
            .filter_map(|found| Some((whole_units(found.text)?, found.line)))
            .collect();
        let all = asked.iter().fold(0_u64, |sum, (bytes, _)| sum.saturating_add(*bytes));
        let Some((_, line)) = asked.iter().max_by_key(|(bytes, _)| *bytes) else { continue };
        if all > node {
            let (all, node) = (shown_bytes(all), shown_bytes(node));
            findings.error(
                *line,
                text!(
                    "the pod requests {all}, but a node has {node}: it stays Pending (Insufficient memory)",
                    "Pod 申请 {all}，而节点只有 {node}：会一直 Pending（Insufficient memory）"
                ),
                text!("request less than {node}", "请申请少于 {node} 的内存"),
            );
        }
    }
}

/// torchrun kills its ranks so many seconds after TERM (torch.distributed.elastic,
/// close(timeout=30)).
const TORCHRUN: u64 = 30;

pub(super) fn grace(scene: &Scene<'_>, findings: &mut Findings) {
    for place in scene.sites.iter().filter(|place| place.group.whole) {
        let period = place.group.pod.get("terminationGracePeriodSeconds");
        let Some(seconds) = period.map_or(Some(GRACE_OF_A_POD.as_secs()), |node| {
            node.text().and_then(|t| t.parse().ok())
        }) else {
            continue;
        };
        let (budget, who) = match place.launch.launcher {
            Launcher::Torchrun | Launcher::Accelerate => (TORCHRUN, "torchrun"),
            Launcher::Ranklaunch => (ours(place), "ranklaunch"),
            Launcher::Deepspeed | Launcher::Python => continue,
        };
        let hook = pre_stop(place.container);
        let needed = budget.saturating_add(hook);
        if needed <= seconds {
            continue;
        }
        let line = place
            .launch
            .get(FlagField::Grace)
            .filter(|_| period.is_none())
            .map_or(period.map_or(place.group.pod.line(), |node| node.line), |word| word.line);
        let hook_en =
            if hook > 0 { format!(" after a preStop hook of {hook} s") } else { String::new() };
        let hook_zh =
            if hook > 0 { format!("（另有 preStop {hook} 秒）") } else { String::new() };
        findings.error(
            line,
            text!(
                "the pod's grace period is {seconds} s, but {who} takes up to {budget} s{hook_en}: the kubelet kills it first",
                "Pod 的终止宽限期为 {seconds} 秒，而 {who} 最多需要 {budget} 秒{hook_zh}：kubelet 会提前将其终止"
            ),
            text!(
                "set terminationGracePeriodSeconds to {needed} or more, or a shorter --grace",
                "请将 terminationGracePeriodSeconds 设为 {needed} 或更大，或缩短 --grace"
            ),
        );
    }
}

/// ranklaunch's own grace period: as set, or derived from the pod's.
fn ours(place: &LaunchSite<'_>) -> u64 {
    let stated =
        place.launch.get(FlagField::Grace).and_then(|word| settings::duration(word.text()));
    let default = || grace_in_container(|name| Some(place.container.literal(name)?.0));
    stated.unwrap_or_else(default).as_secs()
}

/// Seconds that a preStop hook sleeps, if they are given.
fn pre_stop(container: &Container<'_>) -> u64 {
    let hook = ["lifecycle", "preStop"];
    let Some(hook) = container.node.at(&hook) else { return 0 };
    let number = |text: &str| text.trim_end_matches('s').parse::<u64>().ok();
    if let Some(seconds) = hook.at(&["sleep", "seconds"]) {
        return seconds.text().and_then(number).unwrap_or(0);
    }
    let words: Vec<&str> = hook
        .at(&["exec", "command"])
        .map(Node::list)
        .unwrap_or_default()
        .iter()
        .filter_map(|word| word.text())
        .flat_map(str::split_whitespace)
        .collect();
    words
        .iter()
        .zip(words.iter().skip(1))
        .find(|(word, _)| word.ends_with("sleep"))
        .and_then(|(_, seconds)| number(seconds.trim_end_matches(';')))
        .unwrap_or(0)
}

fn uses_host_network(group: &Group<'_>) -> Option<usize> {
    group.pod.get("hostNetwork").filter(|node| node.is_true()).map(|node| node.line)
}

/// The master port of a job.
fn port(job: &Workload<'_>) -> Option<String> {
    let mut ports = job.groups.iter().flat_map(|group| &group.containers).flat_map(|container| {
        let of_launch = container.started.launches.iter().filter_map(|launch| {
            let endpoint = launch.get(FlagField::Endpoint).map(|word| word.shown());
            let port = endpoint.and_then(|text| Some(text.rsplit_once(':')?.1.to_owned()));
            launch.get(FlagField::MasterPort).map(|word| word.shown()).or(port)
        });
        let of_variable = ["MASTER_PORT", "RANKLAUNCH_MASTER_PORT", "PET_MASTER_PORT"]
            .into_iter()
            .filter_map(|name| container.env.get(name))
            .map(|variable| variable.value.clone().unwrap_or_default());
        let of_pod = container.node.items("ports").filter_map(|port| {
            let name = port.get("name").and_then(Node::text)?;
            Some(port.get("containerPort")?.text()?.to_owned())
                .filter(|_| name == "pytorchjob-port" || name == "master")
        });
        of_launch.chain(of_variable).chain(of_pod).collect::<Vec<_>>()
    });
    ports.next()
}

/// Line of hostNetwork in a job's working pods.
fn host_line(job: &Workload<'_>) -> Option<usize> {
    job.groups.iter().filter(|group| group.works()).find_map(uses_host_network)
}

/// The master port of a job on the host's network.
pub(crate) fn host_port_of(job: &Workload<'_>) -> Option<String> {
    host_line(job)?;
    port(job)
}

/// Whether a launcher opens the given port, or a default that is the same in every job. A single
/// node of ranklaunch, and torchrun --standalone, take a free port.
fn opens_default_port(job: &Workload<'_>, place: &LaunchSite<'_>) -> bool {
    let launch = place.launch;
    match launch.launcher {
        Launcher::Python => false,
        Launcher::Ranklaunch => {
            job.nodes() != Some(1) || launch.get(FlagField::MasterPort).is_some()
        }
        _ => launch.get(FlagField::Standalone).is_none(),
    }
}

pub(super) fn host_port(scene: &Scene<'_>, findings: &mut Findings) {
    let job = scene.job;
    // KubeBrain assigns ports to pods on the host's network (PORT_0); Ray's scripts choose their
    // own.
    if job.kind.kind == "TrainingJob" || job.kind.remote {
        return;
    }
    let Some(line) = host_line(job) else { return };
    if !scene.sites.iter().any(|place| opens_default_port(job, place)) {
        return;
    }
    let Some(own) = port(job) else {
        findings.warning(
            line,
            text!(
                "hostNetwork without a MASTER_PORT of its own: a second job on the host uses the same default port",
                "使用 hostNetwork 但没有单独设置 MASTER_PORT：同一主机上的第二个任务会用同样的默认端口"
            ),
            text!(
                "set a different MASTER_PORT for each job",
                "请为每个任务设置不同的 MASTER_PORT"
            ),
        );
        return;
    };
    // `$MASTER_PORT` is set by the platform.
    let twins = scene.host_ports.get(&own).filter(|_| own.parse::<u16>().is_ok());
    let twin = twins.into_iter().flatten().find(|twin| !std::ptr::eq(twin.object, job.object));
    if let Some(twin) = twin {
        let other = &twin.name;
        findings.warning(
            line,
            text!(
                "port {own} on the host's network is also used by {other}: two jobs on one host collide",
                "在主机网络上使用端口 {own}，与 {other} 相同：两个任务在同一主机上会冲突"
            ),
            text!("set another MASTER_PORT", "请换一个 MASTER_PORT"),
        );
    }
}

pub(super) fn host_dns(scene: &Scene<'_>, findings: &mut Findings) {
    if scene.job.nodes().is_none_or(|nodes| nodes < 2) {
        return;
    }
    for group in scene.job.groups.iter().filter(|group| group.works()) {
        let Some(line) = uses_host_network(group) else { continue };
        let policy = group.pod.get("dnsPolicy").and_then(Node::text);
        if !matches!(policy, Some("ClusterFirstWithHostNet" | "None")) {
            findings.warning(
                line,
                text!(
                    "hostNetwork uses the host's DNS, which cannot resolve the master's name",
                    "hostNetwork 会使用主机的 DNS，无法解析 Master 的名称"
                ),
                text!(
                    "add dnsPolicy: ClusterFirstWithHostNet",
                    "请加上 dnsPolicy: ClusterFirstWithHostNet"
                ),
            );
        }
    }
}
