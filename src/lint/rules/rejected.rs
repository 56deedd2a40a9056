//! The rule about values that the API server rejects: of another type, outside of their range, or
//! without the object that they refer to.

use std::collections::BTreeSet;

use super::super::findings::Findings;
use super::super::pods::Group;
use super::super::scene::Scene;
use super::super::word::is_template;
use super::super::workload::Workload;
use text::lang::Text;
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

pub(super) fn rejected(scene: &Scene<'_, '_>, findings: &mut Findings) {
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
    let all: BTreeSet<&str> = own.chain(claims).collect();
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
