//! Rules about values that the API server, the kubelet or the kernel cannot use.

use super::super::command::LostWord;
use super::super::findings::Findings;
use super::super::objects::{name_of, namespace_of};
use super::super::pods::{Container, Group};
use super::super::quantity;
use super::super::scene::Scene;
use linux::own_executable::has_usual_name;
use settings::launchers::Launcher;
use text::lang::Text;
use text::text;
use text::yaml::Node;

/// Every container whose complete pod is in the manifest, with its group.
fn whole<'a, 'b>(
    scene: &Scene<'a, 'b>,
) -> impl Iterator<Item = (&'b Group<'a>, &'b Container<'a>)> + use<'a, 'b> {
    let groups = scene.job.groups.iter().filter(|group| group.whole);
    groups.flat_map(|group| group.containers.iter().map(move |container| (group, container)))
}

/// Whether a template tool will replace a part of the text.
fn is_template(text: &str) -> bool {
    text.contains('$') || text.contains("{{")
}

pub(super) fn containers(scene: &Scene<'_, '_>, findings: &mut Findings) {
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

pub(super) fn quantities(scene: &Scene<'_, '_>, findings: &mut Findings) {
    let mut judge = |name: &str, value: &Node| {
        let Some(text) = value.text().filter(|text| !is_template(text)) else { return };
        let amount = quantity::milli(text);
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
    for (_, container) in whole(scene) {
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
    let (number, unit) = quantity::split(text)?;
    let first = unit.trim().chars().next()?.to_ascii_uppercase();
    let meant = format!("{number}{first}i");
    ("KMGTP".contains(first) && quantity::milli(&meant).is_some()).then_some(meant)
}

pub(super) fn image(scene: &Scene<'_, '_>, findings: &mut Findings) {
    for (_, container) in whole(scene) {
        let Some(image) = container.node.get("image") else { continue };
        let Some(name) = image.text().filter(|name| !is_template(name)) else { continue };
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
    const PLACEHOLDERS: &[&str] = &[
        "your-registry",
        "your_registry",
        "your-image",
        "your_image",
        "yourregistry",
        "changeme",
        "replace-me",
    ];
    let small = name.to_ascii_lowercase();
    if let Some(strange) =
        name.chars().find(|c| !(c.is_ascii_alphanumeric() || "._-/:@+".contains(*c)))
    {
        return Some(text!(
            "{strange} does not belong into the name of an image; was a placeholder left?",
            "镜像名中不能有 {strange}，是否忘了替换占位符？"
        ));
    }
    if let Some(left) = PLACEHOLDERS.iter().find(|left| small.contains(**left)) {
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
fn lost_words(scene: &Scene<'_, '_>, findings: &mut Findings) {
    let starts = scene.job.groups.iter().flat_map(|group| &group.containers).map(|c| &c.started);
    for LostWord { script, word } in
        starts.chain([&scene.job.entrypoint]).flat_map(|started| &started.lost)
    {
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

pub(super) fn command(scene: &Scene<'_, '_>, findings: &mut Findings) {
    lost_words(scene, findings);
    for (_, container) in whole(scene) {
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
        if !has_usual_name(first.as_bytes()) && Launcher::of_argv(&[base(first).as_str()]).is_none()
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
pub(super) fn once(scene: &Scene<'_, '_>, findings: &mut Findings) {
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
