//! Rules about variables that a container or a script sets.

use super::sizes::nodes;
use crate::command::is_shell;
use crate::launches::Launcher;
use crate::pods::{Container, Reference, ShellReference, name_of, namespace_of};
use crate::scene::{Findings, Scene};
use crate::workload::{Workload, references};
use adopt::shell::{is_template, shell_names};
use settings::launchers::FlagField;
use std::collections::BTreeMap;
use text::lang::Text;
use text::text;
use text::yaml::{Node, NodeKind};
use verdict::Id;

/// Literal variables of a container: its own, and those that its script exports.
fn literals<'b>(container: &'b Container<'_>) -> impl Iterator<Item = (&'b str, &'b str, usize)> {
    let own = container.env.iter().filter_map(|(name, variable)| {
        Some((name.as_str(), variable.value.as_deref()?, variable.line))
    });
    let exported = container
        .started
        .exports
        .iter()
        .filter(|(_, word)| word.is_plain())
        .map(|(name, word)| (name.as_str(), word.text(), word.line));
    own.chain(exported)
}

pub(super) fn nccl(scene: &Scene<'_>, findings: &mut Findings) {
    for (_, container) in scene.containers() {
        let has_hcas = asks_for_rdma(container);
        for (name, value, line) in literals(container) {
            if let Some(misuse) = plan::nccl::misuse(name, value, has_hcas) {
                let Text { en, zh } = misuse.effect;
                findings.warning(
                    line,
                    text!("{name}={value} {en}", "{name}={value} {zh}"),
                    misuse.advice,
                );
                continue;
            }
            let several = value.contains(',');
            let marked = value.starts_with(['^', '=']);
            match name {
                "NCCL_SOCKET_IFNAME" if several && !marked => findings.warning(
                    line,
                    text!(
                        "{name}={value} is a list of guesses: each entry matches by prefix, so nodes may pick different interfaces",
                        "{name}={value} 列出多个候选：每项按前缀匹配，各节点可能选中不同网卡"
                    ),
                    text!(
                        "name one interface (=eth0), or leave it to ranklaunch",
                        "请只写一个网卡（=eth0），或交由 ranklaunch 决定"
                    ),
                ),
                "NCCL_IB_HCA" if several && !marked => findings.warning(
                    line,
                    text!(
                        "{name}={value} names the devices of one pod, and each also matches by prefix",
                        "{name}={value} 是某个 Pod 的设备名，并且按前缀匹配"
                    ),
                    text!(
                        "put = in front, or leave it unset: ranklaunch finds them on each node",
                        "请在最前面加 =，或交由 ranklaunch 在各节点上查找"
                    ),
                ),
                "GLOO_SOCKET_IFNAME" if marked => findings.error(
                    line,
                    text!(
                        "{name}={value}: gloo supports neither ^ nor = and finds no such interface",
                        "{name}={value}：gloo 不识别 ^ 和 =，会找不到网卡"
                    ),
                    text!("give only the interface name", "请只写网卡名"),
                ),
                _ => {}
            }
        }
    }
}

/// Whether the container requests RDMA devices.
fn asks_for_rdma(container: &Container<'_>) -> bool {
    let Some(limits) = container.node.at(&["resources", "limits"]) else { return false };
    limits.entries().any(|(name, ..)| {
        ["rdma", "hca", "/efa", "infiniband", "roce", "ib_shared"]
            .iter()
            .any(|mark| name.to_ascii_lowercase().contains(mark))
    })
}

pub(super) fn visible(scene: &Scene<'_>, findings: &mut Findings) {
    for (_, container) in scene.containers() {
        let Some((gpus, _)) = container.gpus() else { continue };
        for (_, value, line) in literals(container).filter(|(n, ..)| *n == "CUDA_VISIBLE_DEVICES") {
            let named: Vec<&str> =
                value.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
            let beyond = named.iter().any(|item| item.parse::<u64>().is_ok_and(|n| n >= gpus));
            if named.len() as u64 > gpus || beyond {
                let last = gpus - 1;
                let (numbers_en, numbers_zh) = if gpus == 1 {
                    (
                        "the pod's only GPU is number 0".to_owned(),
                        "Pod 中唯一的 GPU 编号为 0".to_owned(),
                    )
                } else {
                    (
                        format!("the pod's GPUs are numbers 0 to {last}"),
                        format!("Pod 内的 GPU 编号为 0 到 {last}"),
                    )
                };
                findings.error(
                    line,
                    text!(
                        "CUDA_VISIBLE_DEVICES={value}, but {numbers_en}",
                        "CUDA_VISIBLE_DEVICES={value}，而{numbers_zh}"
                    ),
                    text!(
                        "remove it: the pod has only its own GPUs",
                        "请删除：Pod 中只有分配给它的 GPU"
                    ),
                );
            }
        }
    }
}

/// Kubernetes replaces `$(NAME)` in a command if the container has the variable, and leaves it
/// unchanged otherwise.
pub(super) fn undefined(scene: &Scene<'_>, findings: &mut Findings) {
    let job = scene.job;
    for (group, container) in scene.containers() {
        if !group.whole || container.node.items("envFrom").next().is_some() {
            continue;
        }
        undefined_in_shell(scene, container, findings);
        defined_below(container, findings);
        for Reference { name, line, in_script } in &container.references {
            // A Service of the namespace sets NAME_SERVICE_HOST, NAME_PORT and NAME_PORT_80_TCP.
            let of_service = name.contains("_SERVICE_") || name.contains("_PORT");
            if container.env.contains_key(name) || of_service || job.sets(name) {
                continue;
            }
            let (then_en, then_zh) = if *in_script {
                ("the shell runs it as a command", "shell 会把它当作命令执行")
            } else {
                ("the program gets it unchanged", "程序会原样收到这段文字")
            };
            findings.error(
                *line,
                text!(
                    "the container has no variable {name}, so Kubernetes does not replace $({name}): {then_en}",
                    "容器没有变量 {name}，因此 Kubernetes 不会替换 $({name})：{then_zh}"
                ),
                set_by_operator(job, name).unwrap_or_else(|| {
                    text!(
                        "define {name} under env, or write its value",
                        "请在 env 中定义 {name}，或直接写出其值"
                    )
                }),
            );
        }
    }
}

/// `$(NAME)` in a value is replaced by a variable that stands above it in the list.
fn defined_below(container: &Container<'_>, findings: &mut Findings) {
    let variables = || container.node.items("env").enumerate();
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (at, variable) in variables() {
        if let Some(name) = variable.get("name").and_then(Node::text) {
            first.entry(name).or_insert(at);
        }
    }
    for (at, variable) in variables() {
        let Some(value) = variable.get("value") else { continue };
        let Some(text) = value.text() else { continue };
        for Reference { name, line, .. } in references(&[(text, value)]) {
            let Some(below) = first.get(name.as_str()).filter(|place| **place >= at) else {
                continue;
            };
            let (where_en, where_zh) = if *below == at {
                ("only here", "仅在此处定义")
            } else {
                ("below it", "定义在其下方")
            };
            findings.error(
                line,
                text!(
                    "$({name}) stays as it is: {name} is defined {where_en}, and Kubernetes replaces only variables above",
                    "$({name}) 会原样保留：{name} {where_zh}，而 Kubernetes 只替换位于上方的变量"
                ),
                text!("define {name} above it", "请将 {name} 的定义移到它的上方"),
            );
        }
    }
}

/// Names the variables that the operator sets in the job, for a name that only the operator can set.
fn set_by_operator(job: &Workload<'_>, name: &str) -> Option<Text> {
    let names = job.kind.names(job.object).filter(|_| job.kind.owns(name))?;
    let names = if names.is_empty() { "-".to_owned() } else { names.join(", ") };
    Some(text!(
        "the plugins of this job set: {names}. env sets VC_TASK_INDEX, svc VC_NAME_HOSTS and VC_NAME_NUM for each task, its name in capitals",
        "此任务的插件设置的变量：{names}。env 设置 VC_TASK_INDEX，svc 为每个任务设置 VC_任务名_HOSTS 与 VC_任务名_NUM（任务名为大写）"
    ))
}

/// A variable of the operator that a shell expands, and that the operator does not set here.
fn undefined_in_shell(scene: &Scene<'_>, container: &Container<'_>, findings: &mut Findings) {
    let job = scene.job;
    for ShellReference { name, line } in &container.shell_references {
        let own = container.started.exports.iter().any(|(set, _)| set == name);
        let is_set = job.sets(name) || container.env.contains_key(name) || own;
        let Some(hint) = set_by_operator(job, name).filter(|_| !is_set) else { continue };
        findings.error(
            *line,
            text!(
                "{name} is not set in this job, so the shell puts nothing in its place",
                "此任务中没有 {name}，shell 会把它替换为空"
            ),
            hint,
        );
    }
}

/// `$NAME` in the arguments of a known program, which no shell reads. Names in small letters are
/// left alone: Hydra, OmegaConf and templates of programs write them in the same form.
fn literal_in_command(scene: &Scene<'_>, findings: &mut Findings) {
    let mut found = Vec::new();
    for (group, container) in scene.containers() {
        if !group.whole || container.started.launches.is_empty() {
            continue;
        }
        let words = ["command", "args"].into_iter().flat_map(|key| container.node.items(key));
        let words = words.filter_map(|node| Some((node.text()?, node)));
        for (text, node) in words.take_while(|(text, _)| !is_shell(text)) {
            if text.contains(char::is_whitespace) || text.contains("$$") {
                continue;
            }
            let names = shell_names(text).into_iter();
            let mut names = names.filter(|name| !name.contains(char::is_lowercase));
            found.extend(names.next().map(|name| (name, container.env.contains_key(name), node)));
        }
    }
    if found.is_empty() || is_filled_in(scene.job.object) {
        return;
    }
    for (name, has, node) in found {
        let hint = if has {
            text!("write $({name})", "请写 $({name})")
        } else {
            text!(
                "write its value, or $({name}) with {name} under env, or let a shell start it: [sh, -c, \"exec …\"]",
                "请写出其值；或在 env 中定义 {name} 并写 $({name})；或用 shell 启动：[sh, -c, \"exec …\"]"
            )
        };
        findings.error(
            node.line,
            text!(
                "the program gets the text ${name} as it stands: Kubernetes expands $(NAME) only, and no shell reads this",
                "程序会原样收到文本 ${name}：Kubernetes 只展开 $(NAME)，这里也没有 shell"
            ),
            hint,
        );
    }
}

/// Whether a tool fills the object in before it is applied: `$NAME` or `{{` stands where nothing
/// else could read it.
fn is_filled_in(node: &Node) -> bool {
    const READ_LATER: &[&str] = &["command", "args", "env", "entrypoint", "annotations"];
    match &node.kind {
        NodeKind::Scalar { text, .. } => is_template(text),
        NodeKind::List(items) => items.iter().any(|item| is_filled_in(item)),
        NodeKind::Map(entries) => entries.iter().any(|(key, value)| {
            !key.text().is_some_and(|key| READ_LATER.contains(&key)) && is_filled_in(value)
        }),
    }
}

/// Variables of images and shells to which a value often adds a folder.
const OF_IMAGES: &[&str] =
    &["PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LIBRARY_PATH", "CPATH", "HOME"];

/// Kubernetes replaces `$(NAME)` in a value; `$NAME` and `${NAME}` stay as they are. A template tool may
/// fill in unknown names before the manifest is applied.
pub(super) fn literal(scene: &Scene<'_>, findings: &mut Findings) {
    literal_in_command(scene, findings);
    for (group, container) in scene.containers() {
        for (variable, held) in container.env.iter().filter(|_| group.whole) {
            let Some(value) = &held.value else { continue };
            // A value that is nothing but a name is a template's, unless images have that variable.
            let is_all = value.trim_start_matches(['$', '{']).trim_end_matches('}').len() + 1;
            let known = |name: &str| {
                OF_IMAGES.contains(&name)
                    || (container.env.contains_key(name) && name.len() + 1 != is_all)
            };
            let Some(name) = shell_names(value).into_iter().find(|name| known(name)) else {
                continue;
            };
            let (what_en, what_zh, or_en, or_zh) = if *name == *variable {
                ("its old value is lost", "原有的值会丢失", String::new(), String::new())
            } else {
                (
                    "nothing is put in its place",
                    "不会被替换",
                    format!(", $({name}) if env has {name} above it"),
                    format!("；若 {name} 在 env 中位于其上方，可写 $({name})"),
                )
            };
            findings.warning(
                held.line,
                text!(
                    "{variable} gets the text ${name} as it stands: Kubernetes expands $(NAME) only, and no shell reads this; {what_en}",
                    "{variable} 会原样得到文本 ${name}：Kubernetes 只展开 $(NAME)，这里也没有 shell；{what_zh}"
                ),
                text!(
                    "write the whole value{or_en}, or set it in the container's script",
                    "请写出完整的值{or_zh}；或在容器的脚本中设置"
                ),
            );
        }
    }
}

pub(super) fn master_self(scene: &Scene<'_>, findings: &mut Findings) {
    if scene.job.nodes().is_none_or(|nodes| nodes < 2) {
        return;
    }
    let mut say = |line: usize, name: Text, value: &str| {
        let Text { en, zh } = name;
        findings.error(
            line,
            text!(
                "{en} is {value} on every node: each node waits for itself",
                "{zh} 在每个节点上都是 {value}：每个节点都在等自己"
            ),
            text!(
                "set the pod of rank 0, or let the platform set it",
                "请填 rank 0 所在 Pod 的名称，或交由平台设置"
            ),
        );
    };
    let own = |value: &str| {
        value == "localhost"
            || value.starts_with("127.")
            || value == "0.0.0.0"
            || (value.contains('$') && value.to_ascii_lowercase().contains("hostname"))
    };
    for (_, container) in scene.containers() {
        if let Some((value, line)) = container.literal("MASTER_ADDR")
            && own(value)
        {
            say(line, Text::same("MASTER_ADDR"), value);
        }
        for (name, word) in &container.started.exports {
            if name == "MASTER_ADDR" && own(&word.shown()) {
                say(word.line, Text::same("MASTER_ADDR"), &word.shown());
            }
        }
    }
    for place in &scene.sites {
        // localhost is correct for a single torchrun.
        if let Some(word) = place.launch.get(FlagField::MasterAddr)
            && own(&word.shown())
            && nodes(scene, place).known() != Some(1)
        {
            say(word.line, text!("the master's address", "Master"), &word.shown());
        }
    }
}

/// A Service named NAME sets NAME_PORT=tcp://… in every pod of its namespace (kubelet,
/// envvars.FromServices; except Services without a cluster address).
pub(super) fn service_links(scene: &Scene<'_>, findings: &mut Findings) {
    let job = scene.job;
    for (group, container) in scene.containers() {
        if group.pod.get("enableServiceLinks").is_some_and(Node::is_false) {
            continue;
        }
        let ours = container.started.launches.iter().any(|l| l.launcher == Launcher::Ranklaunch);
        for (file, service) in scene.services {
            if namespace_of(service) != job.namespace {
                continue;
            }
            let address = service.at(&["spec", "clusterIP"]).and_then(Node::text);
            let kind = service.at(&["spec", "type"]).and_then(Node::text);
            if address == Some("None") || kind == Some("ExternalName") {
                continue;
            }
            let name = name_of(service);
            let variable = format!("{}_PORT", name.to_ascii_uppercase().replace('-', "_"));
            let read = match variable.as_str() {
                "MASTER_PORT" => !job.kind.gives_master,
                "RANKLAUNCH_MASTER_PORT" | "RANKLAUNCH_MUSTER_PORT" => ours,
                _ => false,
            };
            if !read || container.env.contains_key(&variable) {
                continue;
            }
            let line = service.at(&["metadata", "name"]).map_or(service.line, |name| name.line);
            findings.at(*file, Id::ServiceLinks);
            let pod = &job.name;
            findings.error(
                line,
                text!(
                    "the Service {name} sets {variable}=tcp://… in the pods of {pod}, which is no port",
                    "Service {name} 会在 {pod} 的 Pod 中设置 {variable}=tcp://…，这不是端口"
                ),
                text!(
                    "set enableServiceLinks: false in the pod, or rename the Service",
                    "请在 Pod 中设置 enableServiceLinks: false，或给 Service 改名"
                ),
            );
            findings.at(job.file, Id::ServiceLinks);
            break;
        }
    }
}
