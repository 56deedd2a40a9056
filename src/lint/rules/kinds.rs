//! Rules about the requirements of single kinds.

use super::sizes::{StatedSize, is_dynamic, stated_nodes};
use crate::launches::Launcher;
use crate::pods::{Group, name_of, namespace_of};
use crate::scene::{Findings, LaunchSite, LintSeverity, Scene};
use adopt::shell::Word;
use settings::launchers::FlagField;
use text::lang::Text;
use text::text;
use text::yaml::Node;
use verdict::Id;

/// The JobSpec of a plain or a cron Job.
fn job_spec<'a>(scene: &Scene<'a>) -> Option<&'a Node> {
    let object = scene.job.object;
    match (scene.job.kind.kind, scene.job.kind.gives_master) {
        ("Job", false) => object.get("spec"),
        ("CronJob", _) => object.at(&["spec", "jobTemplate", "spec"]),
        _ => None,
    }
    .filter(|_| scene.job.is_one_job())
}

fn is_indexed(spec: &Node) -> bool {
    spec.get("completionMode").and_then(Node::text) == Some("Indexed")
}

/// The pods of these kinds are replicas, and no pod is told its number.
fn replicas_without_index(scene: &Scene<'_>, findings: &mut Findings) {
    let kind = scene.job.kind.kind;
    if scene.job.kind.group != "apps/" {
        return;
    }
    for LaunchSite { group, container, launch } in &scene.sites {
        let pods = group.replicas.unwrap_or(1);
        let ranked = [FlagField::Nnodes, FlagField::NodeRank, FlagField::MasterAddr];
        if launch.launcher != Launcher::Ranklaunch
            || pods < 2
            || container.started.serves
            || ranked.into_iter().any(|field| launch.get(field).is_some())
        {
            continue;
        }
        findings.warning(
            launch.line,
            text!(
                "the {pods} pods of a {kind} get no rank: each starts a job of its own, with rank 0",
                "{kind} 的 {pods} 个 Pod 得不到编号：每个都会启动各自独立的任务，都有 rank 0"
            ),
            text!(
                "use an Indexed Job or a PyTorchJob; if each is alone on purpose, say so with --nnodes 1",
                "请使用 Indexed Job 或 PyTorchJob；若确实各自独立，请写明 --nnodes 1"
            ),
        );
    }
}

pub(super) fn job_index(scene: &Scene<'_>, findings: &mut Findings) {
    replicas_without_index(scene, findings);
    let Some(spec) = job_spec(scene) else { return };
    let pods = scene.job.nodes().unwrap_or(1);
    let starts = || scene.job.containers().map(|(_, container)| &container.started);
    let ranks: Vec<_> = starts().flat_map(|started| &started.launches).collect();
    // Pods that each start a script, or something unknown, may be independent.
    let importance = if starts().any(|started| !started.unread.is_empty())
        || ranks.iter().any(|launch| launch.launcher != Launcher::Python)
    {
        LintSeverity::Error
    } else if !ranks.is_empty() {
        LintSeverity::Warning
    } else {
        return;
    };
    if pods > 1 && !is_indexed(spec) {
        let line = spec.get("parallelism").map_or(spec.line, |node| node.line);
        findings.push(
            importance,
            line,
            text!(
                "a plain Job with {pods} pods: none of them gets a rank or a master address",
                "普通 Job 有 {pods} 个 Pod：都得不到 rank 和 Master 地址"
            ),
            text!(
                "add completionMode: Indexed, completions: {pods} and a headless Service, or use a PyTorchJob",
                "请加上 completionMode: Indexed、completions: {pods} 和 headless Service，或改用 PyTorchJob"
            ),
        );
    }
}

pub(super) fn job_completions(scene: &Scene<'_>, findings: &mut Findings) {
    let Some(spec) = job_spec(scene).filter(|spec| is_indexed(spec)) else { return };
    let number = |key: &str| {
        let node = spec.get(key)?;
        Some((node.text()?.parse::<u64>().ok()?, node.line))
    };
    let (pods, _) = number("parallelism").unwrap_or((1, spec.line));
    let (completions, line) = number("completions").unwrap_or((1, spec.line));
    if pods > 1 && completions != pods {
        findings.error(
            line,
            text!(
                "{completions} completions but {pods} pods at a time: the nodes of one job must run at the same time",
                "completions 为 {completions}，而同时运行 {pods} 个 Pod：同一任务的节点必须同时运行"
            ),
            text!("set completions: {pods}", "请设置 completions: {pods}"),
        );
    }
}

pub(super) fn job_subdomain(scene: &Scene<'_>, findings: &mut Findings) {
    if job_spec(scene).is_none_or(|spec| !is_indexed(spec))
        || scene.job.nodes().is_none_or(|pods| pods < 2)
    {
        return;
    }
    for group in scene.job.groups.iter().filter(|group| group.works()) {
        let subdomain = group.pod.get("subdomain").filter(|node| node.text().is_some());
        if let Some(subdomain) = subdomain {
            names_by_service(scene, group, subdomain, findings);
        } else if !group.pod.get("hostNetwork").is_some_and(Node::is_true)
            && !found_through_service(scene, group)
        {
            findings.warning(
                group.pod.line(),
                text!(
                    "no subdomain, so pods have no DNS names and the master cannot be found",
                    "没有 subdomain，Pod 没有 DNS 名称，无法找到 Master"
                ),
                text!(
                    "add subdomain: NAME and a headless Service of that name",
                    "请加上 subdomain: NAME 及同名的 headless Service"
                ),
            );
        }
    }
    for place in &scene.sites {
        master_name(scene, place, findings);
    }
}

/// Pods have names below a headless Service of their subdomain that selects them.
fn names_by_service(
    scene: &Scene<'_>,
    group: &Group<'_>,
    subdomain: &Node,
    findings: &mut Findings,
) {
    let name = subdomain.text().unwrap_or_default();
    if !asks_by_name(scene, group, name) {
        return;
    }
    let near = || {
        let services = scene.services.iter();
        services.filter(|(_, service)| namespace_of(service) == scene.job.namespace)
    };
    let mut say = |file: usize, line: usize, what: Text, hint: Text| {
        let Text { en, zh } = what;
        findings.at(file, Id::JobSubdomain);
        findings.error(
            line,
            text!(
                "{en}: the pods get no DNS names, and the master cannot be found",
                "{zh}：Pod 没有 DNS 名称，无法找到 Master"
            ),
            hint,
        );
        findings.at(scene.job.file, Id::JobSubdomain);
    };
    let line = |service: &Node, path: &[&str]| {
        let node = service.at(path).or_else(|| service.get("spec"));
        node.map_or(service.line, |node| node.line)
    };
    if let Some((file, service)) = near().find(|(_, service)| name_of(service) == name) {
        if !is_headless(service) {
            say(
                *file,
                line(service, &["spec", "clusterIP"]),
                text!("the Service {name} is not headless", "Service {name} 不是 headless"),
                text!("add clusterIP: None", "请加上 clusterIP: None"),
            );
        } else if !selects(scene, group, service) {
            let job = name_of(scene.job.object);
            say(
                *file,
                line(service, &["spec", "selector"]),
                text!("the Service {name} selects other pods", "Service {name} 选中的不是这些 Pod"),
                text!("set selector: {{job-name: {job}}}", "请设置 selector: {{job-name: {job}}}"),
            );
        }
        return;
    }
    let other = near().find(|(_, service)| is_headless(service) && selects(scene, group, service));
    if let Some((_, service)) = other {
        let other = name_of(service);
        say(
            scene.job.file,
            subdomain.line,
            text!(
                "subdomain is {name}, but the Service of these pods is {other}",
                "subdomain 为 {name}，而这些 Pod 的 Service 名为 {other}"
            ),
            text!("give both the same name", "请使两者同名"),
        );
    }
}

/// The Job controller names the pods JOB-INDEX, and index 0 is node 0.
fn master_name(scene: &Scene<'_>, place: &LaunchSite<'_>, findings: &mut Findings) {
    let pod = &place.group.pod;
    let (Some(word), Some(subdomain), Some(job)) = (
        place.launch.get(FlagField::MasterAddr).filter(|word| word.is_plain()),
        pod.get("subdomain").and_then(Node::text),
        scene.job.object.at(&["metadata", "name"]).and_then(Node::text),
    ) else {
        return;
    };
    let ranked = place.launch.get(FlagField::NodeRank);
    let by_index = ranked.is_none_or(|rank| {
        let shown = rank.shown();
        ["$JOB_COMPLETION_INDEX", "${JOB_COMPLETION_INDEX}"].contains(&shown.as_str())
    });
    let mut parts = word.text().split('.');
    let (first, below, namespace) = (parts.next(), parts.next(), parts.next());
    let own = &scene.job.namespace;
    let elsewhere = namespace.filter(|name| !own.is_empty() && name != own);
    let expected = format!("{job}-0");
    if below != Some(subdomain)
        || pod.get("hostname").is_some()
        || !by_index
        || (first == Some(expected.as_str()) && elsewhere.is_none())
    {
        return;
    }
    let shown = word.text();
    findings.error(
        word.line,
        text!(
            "the master's address is {shown}, but node 0 of this Job is {expected}.{subdomain}",
            "Master 的地址为 {shown}，而此 Job 的节点 0 是 {expected}.{subdomain}"
        ),
        text!("write {expected}.{subdomain}", "请写 {expected}.{subdomain}"),
    );
}

fn is_headless(service: &Node) -> bool {
    service.at(&["spec", "clusterIP"]).and_then(Node::text) == Some("None")
}

/// Whether the Service selects the group's pods.
fn selects(scene: &Scene<'_>, group: &Group<'_>, service: &Node) -> bool {
    let labels = group.metadata.and_then(|metadata| metadata.get("labels"));
    let own = |name: &str| {
        let label = labels.and_then(|labels| labels.get(name)).and_then(Node::text);
        // The Job controller adds these two.
        let named = ["job-name", "batch.kubernetes.io/job-name"].contains(&name);
        label.map(str::to_owned).or_else(|| named.then(|| name_of(scene.job.object)))
    };
    service.at(&["spec", "selector"]).is_some_and(|selector| {
        let mut wanted = selector.entries().peekable();
        wanted.peek().is_some()
            && wanted.all(|(name, _, value)| own(name).as_deref() == value.text())
    })
}

/// Whether a headless Service in the input gives the addresses of the group's pods, and no pod
/// is addressed by its name, which needs a subdomain.
fn found_through_service(scene: &Scene<'_>, group: &Group<'_>) -> bool {
    let headless = scene.services.iter().map(|(_, service)| *service).find(|service| {
        namespace_of(service) == scene.job.namespace
            && is_headless(service)
            && selects(scene, group, service)
    });
    headless.is_some_and(|service| !asks_by_name(scene, group, &name_of(service)))
}

/// Whether a pod of the group is addressed by its name below this one.
fn asks_by_name(scene: &Scene<'_>, group: &Group<'_>, service: &str) -> bool {
    let below = format!(".{service}");
    let asks_for_one = |text: &str| {
        text.match_indices(&below).any(|(at, _)| {
            let before = text.get(..at).and_then(|before| before.chars().next_back());
            let after = text.get(at + below.len()..).and_then(|after| after.chars().next());
            before.is_some_and(|c| c.is_alphanumeric() || "})".contains(c))
                && !after.is_some_and(|c| c.is_alphanumeric() || c == '-')
        })
    };
    let by_name = group.containers.iter().any(|container| {
        let words = ["command", "args"].into_iter().flat_map(|key| container.node.items(key));
        let literals = container.env.values().filter_map(|variable| variable.value.as_deref());
        words.filter_map(Node::text).chain(literals).any(asks_for_one)
    });
    // By default ranklaunch uses the pod's own name and subdomain.
    let derives = scene.sites.iter().any(|place| {
        place.launch.launcher == Launcher::Ranklaunch
            && place.launch.get(FlagField::MasterAddr).is_none()
    });
    derives || by_name
}

fn is_pytorchjob(scene: &Scene<'_>) -> bool {
    scene.job.kind.kind == "PyTorchJob"
}

pub(super) fn master_replicas(scene: &Scene<'_>, findings: &mut Findings) {
    if !is_pytorchjob(scene) {
        return;
    }
    for group in scene.job.groups.iter().filter(|group| group.role == "Master") {
        let Some(masters) = group.replicas.filter(|masters| *masters != 1) else { continue };
        findings.error(
            group.replicas_line,
            text!(
                "{masters} Masters, but a PyTorchJob has exactly one",
                "有 {masters} 个 Master，而 PyTorchJob 只能有一个"
            ),
            text!(
                "set Master replicas to 1, the rest are Workers",
                "请将 Master 副本数设为 1，其余为 Worker"
            ),
        );
    }
}

pub(super) fn container(scene: &Scene<'_>, findings: &mut Findings) {
    if !is_pytorchjob(scene) {
        return;
    }
    for group in &scene.job.groups {
        if !group.containers.iter().any(|container| container.name == "pytorch") {
            let line = group.containers.first().map_or(group.pod.line(), |first| {
                first.node.get("name").map_or(first.line(), |name| name.line)
            });
            let role = &group.role;
            findings.error(
                line,
                text!(
                    "{role} has no container named pytorch, so the operator rejects the job",
                    "{role} 中没有名为 pytorch 的容器，operator 会拒绝该任务"
                ),
                text!("name the training container pytorch", "请将训练容器命名为 pytorch"),
            );
        }
    }
}

/// Without a Master and an elasticPolicy the operator sets no RANK, MASTER_ADDR and PET_NODE_RANK
/// (training-operator, pkg/controller.v1/pytorch/envvar.go).
pub(super) fn worker_ranks(scene: &Scene<'_>, findings: &mut Findings) {
    let job = scene.job;
    if !is_pytorchjob(scene)
        || job.object.at(&["spec", "elasticPolicy"]).is_some()
        || job.groups.iter().any(|group| group.role == "Master")
    {
        return;
    }
    let Some(pods) = job.nodes().filter(|pods| *pods > 1) else { return };
    for place in &scene.sites {
        let launch = place.launch;
        // A literal rank has its own rule; this one is about `$RANK`.
        let of_operator = |word: &Word| {
            let shown = word.shown();
            shown.contains('$') && (shown.contains("RANK") || shown.contains("INDEX"))
        };
        let asks = launch.get(FlagField::NodeRank).is_none_or(of_operator);
        let alone = stated_nodes(scene, place).known() == Some(1);
        if launch.launcher == Launcher::Python || !asks || alone || is_dynamic(scene, place) {
            continue;
        }
        let line = match stated_nodes(scene, place) {
            StatedSize::Known(_, line) => line,
            _ => place.group.replicas_line,
        };
        findings.error(
            line,
            text!(
                "{pods} Workers without a Master and without elasticPolicy: the operator sets neither RANK nor MASTER_ADDR, so each pod acts as node 0 and waits",
                "{pods} 个 Worker，既没有 Master 也没有 elasticPolicy：operator 不会设置 RANK 和 MASTER_ADDR，每个 Pod 都按节点 0 运行并一直等待"
            ),
            text!(
                "make one of them the Master, or add an elasticPolicy with rdzvBackend: c10d",
                "请将其中一个改为 Master，或加上 rdzvBackend 为 c10d 的 elasticPolicy"
            ),
        );
    }
}

pub(super) fn elastic(scene: &Scene<'_>, findings: &mut Findings) {
    let Some(policy) = scene.job.object.at(&["spec", "elasticPolicy"]) else { return };
    if let Some(standalone) = policy.get("standalone").filter(|node| node.is_true()) {
        findings.error(
            standalone.line,
            text!(
                "standalone sets an empty PET_STANDALONE, and torchrun fails with a ValueError",
                "standalone 会设置空的 PET_STANDALONE，torchrun 会因 ValueError 退出"
            ),
            text!("remove it", "请删除"),
        );
    }
    if is_pytorchjob(scene) && scene.job.groups.iter().any(|group| group.role == "Master") {
        findings.warning(
            policy.line,
            text!(
                "elasticPolicy beside a Master: PET_NNODES counts Workers only and WORLD_SIZE counts both",
                "elasticPolicy 与 Master 并存：PET_NNODES 只计 Worker，而 WORLD_SIZE 两者都计"
            ),
            text!("make all replicas Workers", "请全部使用 Worker"),
        );
    }
}

pub(super) fn reserved(scene: &Scene<'_>, findings: &mut Findings) {
    const RESERVED: &str = "\
        PET_NNODES PET_NPROC_PER_NODE PET_NODE_RANK PET_MASTER_ADDR PET_MASTER_PORT";
    if scene.job.kind.kind != "TrainJob" {
        return;
    }
    for container in scene.job.groups.iter().flat_map(|group| &group.containers) {
        for (name, variable) in &container.env {
            if RESERVED.split(' ').any(|reserved| reserved == name) {
                findings.error(
                    variable.line,
                    text!(
                        "{name} is reserved by the Trainer; its webhook rejects the job",
                        "{name} 是 Trainer 保留的变量，webhook 会拒绝该任务"
                    ),
                    text!("use numNodes and numProcPerNode", "请使用 numNodes 和 numProcPerNode"),
                );
            }
        }
    }
}

pub(super) fn ray_nodes(scene: &Scene<'_>, findings: &mut Findings) {
    if !scene.job.kind.kind.starts_with("Ray") {
        return;
    }
    for launch in &scene.job.entrypoint.launches {
        let Some(word) = launch.get(FlagField::Nnodes) else { continue };
        let Some(nodes) = word.text().parse::<u64>().ok().filter(|nodes| *nodes > 1) else {
            continue;
        };
        findings.error(
            word.line,
            text!(
                "a RayJob's entrypoint runs once, on one node, but this one waits for {nodes}",
                "RayJob 的 entrypoint 只在一个节点上运行一次，而它在等待 {nodes} 个节点"
            ),
            text!(
                "start it on every node with packaging/ray/ranklaunch_ray.py, which gives it the node rank and the first node's address",
                "请用 packaging/ray/ranklaunch_ray.py 在每个节点上各启动一次，它会给出节点编号和第一个节点的地址"
            ),
        );
    }
}
