//! Rules about values that the API server, the kubelet or the kernel cannot use: of another type,
//! outside of their range, or without the object that they refer to.

use crate::launches::LostWord;
use crate::pods::{Container, Group, milli, name_of, namespace_of, split_unit};
use crate::scene::{Findings, Scene};
use crate::workload::Workload;
use adopt::shell::is_template;
use std::collections::BTreeSet;
use text::lang::Text;
use text::order::InOrder;
use text::text;
use text::yaml::{Node, NodeKind, Scalar};

/// The type of a field.
#[derive(Clone, Copy)]
enum Field {
    Of(Scalar),
    /// A list of texts.
    Texts,
    /// A map of texts.
    TextMap,
    /// The name of an object or a part of it.
    Name,
    Port,
}

const TEXT: Field = Field::Of(Scalar::Text);
const NUMBER: Field = Field::Of(Scalar::Number);
const TRUTH: Field = Field::Of(Scalar::Truth);

type Fields = &'static [(&'static [&'static str], Field)];

const OF_OBJECT: Fields = &[
    (&["metadata", "name"], Field::Name),
    (&["metadata", "labels"], Field::TextMap),
    (&["metadata", "annotations"], Field::TextMap),
];
const OF_JOB: Fields = &[
    (&["activeDeadlineSeconds"], NUMBER),
    (&["backoffLimit"], NUMBER),
    (&["completions"], NUMBER),
    (&["parallelism"], NUMBER),
    (&["suspend"], TRUTH),
    (&["ttlSecondsAfterFinished"], NUMBER),
];
const OF_TEMPLATE: Fields = &[(&["labels"], Field::TextMap), (&["annotations"], Field::TextMap)];
const OF_POD: Fields = &[
    (&["activeDeadlineSeconds"], NUMBER),
    (&["enableServiceLinks"], TRUTH),
    (&["hostIPC"], TRUTH),
    (&["hostNetwork"], TRUTH),
    (&["hostPID"], TRUTH),
    (&["nodeSelector"], Field::TextMap),
    (&["priorityClassName"], TEXT),
    (&["schedulerName"], TEXT),
    (&["serviceAccountName"], TEXT),
    (&["subdomain"], TEXT),
    (&["terminationGracePeriodSeconds"], NUMBER),
];
const OF_TOLERATION: Fields = &[(&["value"], TEXT), (&["tolerationSeconds"], NUMBER)];
const OF_VOLUME: Fields = &[(&["name"], Field::Name)];
const OF_CONTAINER: Fields = &[
    (&["args"], Field::Texts),
    (&["command"], Field::Texts),
    (&["image"], TEXT),
    (&["name"], Field::Name),
    (&["securityContext", "privileged"], TRUTH),
    (&["stdin"], TRUTH),
    (&["tty"], TRUTH),
    (&["workingDir"], TEXT),
];
const OF_VARIABLE: Fields = &[(&["name"], TEXT), (&["value"], TEXT)];
const OF_PORT: Fields = &[(&["containerPort"], Field::Port), (&["hostPort"], Field::Port)];
const OF_MOUNT: Fields = &[(&["mountPath"], TEXT), (&["readOnly"], TRUTH), (&["subPath"], TEXT)];
/// The type of the operator's definition (training-operator, PyTorchJobSpec).
const OF_PYTORCHJOB: Fields = &[(&["spec", "nprocPerNode"], TEXT)];

/// The restart policies that a kind takes, and whether one must be given: the default of a pod is
/// Always.
const RESTARTS: &[(&str, &str, &[&str], bool)] = &[
    ("batch/", "Job", &["Never", "OnFailure"], true),
    ("batch/", "CronJob", &["Never", "OnFailure"], true),
    // Its webhook fills in OnFailure.
    ("jobset.x-k8s.io/", "JobSet", &["Never", "OnFailure"], false),
    ("apps/", "Deployment", &["Always"], false),
    ("apps/", "ReplicaSet", &["Always"], false),
    ("apps/", "DaemonSet", &["Always"], false),
    ("apps/", "StatefulSet", &["Always"], false),
    ("v1", "Pod", &["Always", "OnFailure", "Never"], false),
];

pub(super) fn rejected(scene: &Scene<'_>, findings: &mut Findings) {
    let job = scene.job;
    judge(job.object, OF_OBJECT, findings);
    if job.kind.kind == "PyTorchJob" {
        judge(job.object, OF_PYTORCHJOB, findings);
    }
    for spec in job_specs(job) {
        judge(spec, OF_JOB, findings);
    }
    for group in &job.groups {
        if let Some(metadata) = group.metadata {
            judge(metadata, OF_TEMPLATE, findings);
        }
        for pod in &group.pod.layers {
            judge(pod, OF_POD, findings);
        }
        restart(job, group, findings);
        for volume in group.pod.items("volumes") {
            judge(volume, OF_VOLUME, findings);
        }
        for toleration in group.pod.items("tolerations") {
            judge(toleration, OF_TOLERATION, findings);
        }
        let volumes = volumes(job, group);
        let layers = group.containers.iter().flat_map(|container| &container.node.layers);
        for container in group.pod.items("initContainers").chain(layers.copied()) {
            judge(container, OF_CONTAINER, findings);
            for (list, fields) in
                [("env", OF_VARIABLE), ("ports", OF_PORT), ("volumeMounts", OF_MOUNT)]
            {
                for item in container.get(list).map(Node::list).unwrap_or_default() {
                    judge(item, fields, findings);
                }
            }
            folder(container, findings);
            if let Some(volumes) = &volumes {
                mounts(container, volumes, findings);
            }
        }
    }
}

/// The JobSpecs of Kubernetes within the object.
fn job_specs<'a>(job: &Workload<'a>) -> Vec<&'a Node> {
    let object = job.object;
    match (job.kind.kind, job.kind.group) {
        ("Job", "batch/") => object.get("spec").into_iter().collect(),
        ("CronJob", "batch/") => object.at(&["spec", "jobTemplate", "spec"]).into_iter().collect(),
        ("JobSet", _) => {
            let jobs = object.at(&["spec", "replicatedJobs"]).map(Node::list).unwrap_or_default();
            jobs.iter().filter_map(|job| job.at(&["template", "spec"])).collect()
        }
        _ => Vec::new(),
    }
}

fn judge(node: &Node, fields: Fields, findings: &mut Findings) {
    for (path, field) in fields {
        let Some(value) = node.at(path) else { continue };
        let name = path.last().copied().unwrap_or_default();
        match (field, &value.kind) {
            (Field::Of(wanted), _) => typed(name, value, *wanted, findings),
            (Field::Texts, NodeKind::List(items)) => {
                items.iter().for_each(|item| typed(name, item, Scalar::Text, findings));
            }
            (Field::TextMap, NodeKind::Map(entries)) => {
                for (key, value) in entries.iter().filter(|(key, _)| key.text() != Some("<<")) {
                    typed(key.text().unwrap_or(name), value, Scalar::Text, findings);
                }
            }
            (Field::Texts, NodeKind::Scalar { text, .. }) if value.text().is_some() => {
                let shown = text.lines().next().unwrap_or_default();
                say(
                    value.line,
                    text!(
                        "{name} is a list, not the text \"{shown}\"",
                        "{name} 应为列表，而不是文本 \"{shown}\""
                    ),
                    text!(
                        "make every word an item, or write [\"sh\", \"-c\", \"…\"]",
                        "请让每个词各占一项，或写成 [\"sh\", \"-c\", \"…\"]"
                    ),
                    findings,
                );
            }
            (Field::Name, _) => named(name, value, findings),
            (Field::Port, _) => {
                typed(name, value, Scalar::Number, findings);
                let number = value.text().and_then(|text| text.parse::<u64>().ok());
                if let Some(number) = number.filter(|number| !(1..=65535).contains(number)) {
                    say(
                        value.line,
                        text!("{name}: {number} is no port", "{name}: {number} 不是端口号"),
                        text!("use 1 to 65535", "请使用 1 到 65535"),
                        findings,
                    );
                }
            }
            _ => {}
        }
    }
}

fn say(line: usize, what: Text, hint: Text, findings: &mut Findings) {
    let Text { en, zh } = what;
    findings.error(line, text!("{en}: the object is rejected", "{zh}：该对象会被拒绝"), hint);
}

fn typed(name: &str, value: &Node, wanted: Scalar, findings: &mut Findings) {
    let (Some(is), Some(text)) = (value.scalar(), value.text()) else { return };
    if is == wanted || is_template(text) {
        return;
    }
    let (en, zh, hint) = match wanted {
        Scalar::Text => {
            ("a text", "文本", text!("put it in quotes: \"{text}\"", "请加引号：\"{text}\""))
        }
        Scalar::Number => (
            "a number",
            "数字",
            text!("write a number without quotes or unit", "请写不带引号和单位的数字"),
        ),
        Scalar::Truth => {
            ("true or false", "true 或 false", text!("write true or false", "请写 true 或 false"))
        }
    };
    let (is_en, is_zh) = match is {
        Scalar::Text => ("a text", "文本"),
        Scalar::Number => ("a number", "数字"),
        Scalar::Truth => ("true or false", "布尔值"),
    };
    let what = text!(
        "{name}: {text} is {is_en} to YAML, and the field takes {en}",
        "{name}: {text} 在 YAML 中是{is_zh}，而该字段只接受{zh}"
    );
    say(value.line, what, hint, findings);
}

/// Names are parts of DNS names.
fn named(name: &str, value: &Node, findings: &mut Findings) {
    typed(name, value, Scalar::Text, findings);
    let Some(text) = value.text().filter(|text| !is_template(text)) else { return };
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c);
    if !text.chars().all(inside) || text.starts_with(['-', '.']) || text.ends_with(['-', '.']) {
        say(
            value.line,
            text!("{name}: {text} is no DNS name", "{name}: {text} 不是合法的 DNS 名称"),
            text!("use small letters, digits and -", "请只用小写字母、数字和 -"),
            findings,
        );
    }
}

fn restart(job: &Workload<'_>, group: &Group<'_>, findings: &mut Findings) {
    let row = RESTARTS
        .iter()
        .find(|(prefix, kind, ..)| (*prefix, *kind) == (job.kind.group, job.kind.kind));
    let Some((_, kind, policies, must)) = row else { return };
    let node = group.pod.get("restartPolicy");
    let stated = node.and_then(Node::text);
    let given = stated.unwrap_or("Always");
    if (stated.is_none() && !must) || policies.contains(&given) || is_template(given) {
        return;
    }
    let (all, first) = (policies.join(", "), policies.first().copied().unwrap_or_default());
    let (by_en, by_zh) =
        if stated.is_some() { ("", "") } else { (" by default", "（默认值）") };
    say(
        node.map_or(group.pod.line(), |node| node.line),
        text!(
            "restartPolicy is {given}{by_en}, and a {kind} takes only {all}",
            "restartPolicy 为 {given}{by_zh}，而 {kind} 只接受 {all}"
        ),
        text!("set restartPolicy: {first}", "请设置 restartPolicy: {first}"),
        findings,
    );
}

/// The volumes that the group's containers may mount; None if others are added elsewhere.
fn volumes<'a>(job: &Workload<'a>, group: &Group<'a>) -> Option<BTreeSet<&'a str>> {
    let claims = [["spec"].as_slice(), &["spec", "leaderWorkerTemplate"]]
        .into_iter()
        .filter_map(|path| job.object.at(path)?.get("volumeClaimTemplates"))
        .flat_map(Node::list)
        .filter_map(|claim| claim.at(&["metadata", "name"])?.text());
    let own = group.pod.items("volumes").filter_map(|volume| volume.get("name")?.text());
    let all: BTreeSet<&str> = own.chain(claims).in_set();
    // An operator whose variables are not known may add volumes as well.
    let known = group.whole && !job.kind.sets.contains(&"");
    (known && !all.iter().any(|name| is_template(name))).then_some(all)
}

fn mounts(container: &Node, volumes: &BTreeSet<&str>, findings: &mut Findings) {
    for mount in container.get("volumeMounts").map(Node::list).unwrap_or_default() {
        let Some(name) = mount.get("name") else { continue };
        let Some(shown) = name.text().filter(|text| !is_template(text)) else { continue };
        if !volumes.contains(shown) {
            say(
                name.line,
                text!("the pod has no volume {shown}", "Pod 没有卷 {shown}"),
                text!(
                    "add it under volumes, or correct the name",
                    "请在 volumes 中添加，或更正名称"
                ),
                findings,
            );
        }
    }
}

/// The runtime takes absolute folders only.
fn folder(container: &Node, findings: &mut Findings) {
    let Some(node) = container.get("workingDir") else { return };
    let Some(path) = node.text().filter(|path| !is_template(path)) else { return };
    if !path.starts_with('/') && !path.is_empty() && node.scalar() == Some(Scalar::Text) {
        findings.error(
            node.line,
            text!(
                "workingDir {path} is not absolute: the container runtime does not start the container",
                "workingDir {path} 不是绝对路径：容器运行时不会启动该容器"
            ),
            text!("write /{path}", "请写 /{path}"),
        );
    }
}

/// Every container whose complete pod is in the manifest.
fn whole<'a>(scene: &Scene<'a>) -> impl Iterator<Item = &'a Container<'a>> {
    let whole = |(group, _): &(&Group<'_>, _)| group.whole;
    scene.job.containers().filter(whole).map(|(_, container)| container)
}

/// Whether a template tool will replace a part of the text.
fn may_be_template(text: &str) -> bool {
    text.contains('$') || text.contains("{{")
}

pub(super) fn containers(scene: &Scene<'_>, findings: &mut Findings) {
    for group in scene.job.groups.iter().filter(|group| group.is_empty()) {
        let role = &group.role;
        findings.error(
            group.pod.line(),
            text!(
                "{role} has no containers: the object is rejected, or its pods never start",
                "{role} 没有容器：该对象会被拒绝，或 Pod 无法启动"
            ),
            text!("add spec.containers to the template", "请在模板中加上 spec.containers"),
        );
    }
}

pub(super) fn quantities(scene: &Scene<'_>, findings: &mut Findings) {
    let mut judge = |name: &str, value: &Node| {
        let Some(text) = value.text().filter(|text| !may_be_template(text)) else { return };
        let amount = milli(text);
        // Devices have a vendor in their name.
        if name.contains('/') && amount.is_some_and(|amount| amount % 1000 != 0) {
            findings.error(
                value.line,
                text!(
                    "{name}: {text} is no whole number, so the object is rejected",
                    "{name}: {text} 不是整数，该对象会被拒绝"
                ),
                text!(
                    "devices are given whole: write 1 or more",
                    "设备只能整个申请：请写 1 或更大的整数"
                ),
            );
            return;
        }
        if amount.is_some() || text.starts_with('-') {
            return;
        }
        let like = similar(text).map_or_else(
            || text!("write a number with a unit such as 16Gi", "请写数字加单位，例如 16Gi"),
            |meant| text!("write {meant}", "请写成 {meant}"),
        );
        findings.error(
            value.line,
            text!(
                "{name}: {text} is no quantity of Kubernetes, so the object is rejected",
                "{name}: {text} 不是 Kubernetes 的数量，该对象会被拒绝"
            ),
            like,
        );
    };
    for container in whole(scene) {
        for (part, key) in ["resources", "resourcesPerNode"]
            .into_iter()
            .flat_map(|part| ["limits", "requests"].map(|key| (part, key)))
        {
            let Some(all) = container.node.at(&[part, key]) else { continue };
            for (name, _, value) in all.entries() {
                judge(name, value);
            }
        }
    }
    for volume in scene.job.groups.iter().flat_map(|group| group.pod.items("volumes")) {
        if let Some(limit) = volume.at(&["emptyDir", "sizeLimit"]) {
            judge("sizeLimit", limit);
        }
    }
}

/// The quantity that was probably meant: `16gb`, `16 GiB` and `16gi` are 16Gi.
fn similar(text: &str) -> Option<String> {
    let (number, unit) = split_unit(text)?;
    let first = unit.trim().chars().next()?.to_ascii_uppercase();
    let meant = format!("{number}{first}i");
    ("KMGTP".contains(first) && milli(&meant).is_some()).then_some(meant)
}

pub(super) fn image(scene: &Scene<'_>, findings: &mut Findings) {
    for container in whole(scene) {
        let Some(image) = container.node.get("image") else { continue };
        let Some(name) = image.text().filter(|name| !may_be_template(name)) else { continue };
        let Some(Text { en, zh }) = flaw(name) else { continue };
        findings.error(
            image.line,
            text!("the image {name}: {en}", "镜像 {name}：{zh}"),
            text!(
                "write registry/repository:tag as it was pushed",
                "请按推送时的名称填写 registry/repository:tag"
            ),
        );
    }
}

/// The reason why a text is no reference to an image (distribution/reference).
fn flaw(name: &str) -> Option<Text> {
    const PLACEHOLDERS: &str = "\
        your-registry your_registry your-image your_image yourregistry changeme replace-me";
    let small = name.to_ascii_lowercase();
    if let Some(strange) =
        name.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-/:@+".contains(*c)))
    {
        return Some(text!(
            "{strange} does not belong into the name of an image; was a placeholder left?",
            "镜像名中不能有 {strange}，是否忘了替换占位符？"
        ));
    }
    if let Some(left) = PLACEHOLDERS.split(' ').find(|left| small.contains(left)) {
        return Some(text!("{left} is a placeholder", "{left} 是占位符"));
    }
    // The first part is a host if it has a dot or a port; a host may have capitals.
    let (host, path) = name.split_once('/').unwrap_or(("", name));
    let is_host = host.contains(['.', ':']) || host == "localhost";
    let path = if is_host { path } else { name };
    let repository = path.split('@').next().unwrap_or(path);
    let last = repository.rfind('/').map_or(0, |at| at + 1);
    let tag = repository.get(last..).and_then(|part| part.find(':')).map(|at| last + at);
    let repository = tag.and_then(|at| repository.get(..at)).unwrap_or(repository);
    repository
        .contains(|c: char| c.is_ascii_uppercase())
        .then(|| text!("a repository has no capital letters", "仓库名不能有大写字母"))
}

/// `sh -c` runs the one item behind it.
fn lost_words(scene: &Scene<'_>, findings: &mut Findings) {
    for LostWord { script, word } in scene.started().flat_map(|started| &started.lost) {
        let (script, shown) = (script.lines().next().unwrap_or_default(), word.shown());
        findings.error(
            word.line,
            text!(
                "sh -c runs only \"{script}\": {shown} and what follows become $0, $1, …, which it does not read",
                "sh -c 只执行 \"{script}\"：{shown} 及其后的词成为 $0、$1……，而它并不读取"
            ),
            text!(
                "make the whole line one item behind -c, or leave out the shell",
                "请将整行命令写成 -c 之后的一项，或去掉 shell"
            ),
        );
    }
}

pub(super) fn command(scene: &Scene<'_>, findings: &mut Findings) {
    lost_words(scene, findings);
    for container in whole(scene) {
        let items: Vec<&Node> = ["command", "args"]
            .into_iter()
            .filter_map(|key| container.node.get(key))
            .flat_map(|list| list.list().iter().map(|item| &**item))
            .collect();
        let has_command = container.node.get("command").is_some();
        let Some(first) = items.first().and_then(|item| item.text()) else { continue };
        if has_command && first.trim().contains(char::is_whitespace) {
            let line = items.first().map_or(container.line(), |item| item.line);
            let shown = first.lines().next().unwrap_or_default();
            let items = first.split_whitespace().take(4).map(|word| format!("{word:?}"));
            let items = items.collect::<Vec<_>>().join(", ");
            findings.error(
                line,
                text!(
                    "the first item of command is the program, and there is no program of the name \"{shown}\"",
                    "command 的第一项是程序，而没有名为 \"{shown}\" 的程序"
                ),
                text!(
                    "make every word an item: [{items}, …]; or [\"sh\", \"-c\", \"…\"] for a line of a shell",
                    "请让每个词各占一项：[{items}, …]；若是 shell 命令行，请用 [\"sh\", \"-c\", \"…\"]"
                ),
            );
            continue;
        }
        let base = |text: &str| text.rsplit('/').next().unwrap_or(text).to_owned();
        if !settings::launchers::is_ranklaunch(first)
            && settings::launchers::Launcher::of_argv(&[base(first).as_str()]).is_none()
        {
            continue;
        }
        for item in items.iter().skip(1) {
            let Some((option, value)) = item.text().and_then(|text| text.split_once(' ')) else {
                continue;
            };
            if !is_option(option) || value.is_empty() {
                continue;
            }
            findings.error(
                item.line,
                text!(
                    "{option} and its value are one item, so the launcher gets one unknown argument",
                    "{option} 与它的值写在同一项中，启动器会收到一个未知参数"
                ),
                text!("two items: \"{option}\", \"{value}\"", "请写成两项：\"{option}\", \"{value}\""),
            );
        }
    }
}

/// `--nnodes`, `-m`: an option alone, without `=`.
fn is_option(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    word.starts_with('-')
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// Several pods of a job run on several nodes, and a ReadWriteOnce volume is attached to one.
pub(super) fn once(scene: &Scene<'_>, findings: &mut Findings) {
    let job = scene.job;
    for group in &job.groups {
        for volume in group.pod.items("volumes") {
            let Some(name) = volume.at(&["persistentVolumeClaim", "claimName"]) else { continue };
            let named = |claim: &&&Node| {
                Some(name_of(claim).as_str()) == name.text() && namespace_of(claim) == job.namespace
            };
            let Some(claim) = scene.claims.iter().find(named) else { continue };
            let modes = claim.at(&["spec", "accessModes"]).map(Node::list).unwrap_or_default();
            let modes: Vec<&str> = modes.iter().filter_map(|mode| mode.text()).collect();
            let Some(mode) = modes.iter().find(|mode| mode.starts_with("ReadWriteOnce")) else {
                continue;
            };
            let mounts = |group: &&Group<'_>| {
                group.pod.items("volumes").any(|other| {
                    other.at(&["persistentVolumeClaim", "claimName"]).and_then(Node::text)
                        == name.text()
                })
            };
            let pods = (job.groups.iter().filter(mounts))
                .try_fold(0_u64, |sum, group| Some(sum.saturating_add(group.replicas?)));
            let Some(pods) = pods.filter(|pods| *pods > 1 && modes.len() == 1) else { continue };
            let shown = name.text().unwrap_or_default();
            let text = text!(
                "{pods} pods mount {shown}, which is {mode}: on the second node its pod waits for the volume for ever",
                "{pods} 个 Pod 挂载 {shown}，而它是 {mode}：第二个节点上的 Pod 会一直等待该卷"
            );
            let hint = text!(
                "use a claim with ReadWriteMany, or one claim for each pod",
                "请使用 ReadWriteMany 的卷，或每个 Pod 一个卷"
            );
            if *mode == "ReadWriteOncePod" {
                findings.error(name.line, text, hint);
            } else {
                findings.warning(name.line, text, hint);
            }
        }
    }
}
