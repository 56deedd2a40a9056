//! Finds mistakes in Kubernetes manifests, start-up scripts and Compose files that would show only when the job runs.
//!
//! Owns the rules ([`RULES`]) and the parsing of manifests. Takes the text of files and the
//! embedded profiles; gives [`Finding`]s with their lines, or why a file
//! cannot be read. Pure functions: no file, no environment, no clock. Nothing is guessed: values
//! that only a running shell or an operator knows give an info finding or none.

#![deny(unsafe_code)]

mod adopted;
mod command;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod inside;
mod launches;
mod pods;
mod rules;
mod scene;
mod scripts;
#[cfg(test)]
mod tests;
mod workload;
mod workload_kinds;

pub use adopt::{Adopted, InputKind, text_of};
pub use adopted::{adopted, adopted_line};
pub use rules::RULES;
pub use scene::{Finding, LintSeverity};

use std::collections::BTreeMap;
use std::fmt::Write;
use std::rc::Rc;

use serde_json::{Value, json};

use text::escape::{data, property};
use text::lang::{Lang, Text};
use text::style::{Style, paint};
use text::text;
use verdict::{Id, Refusal};

use launches::Profiles;
use pods::{is_kind, shown_bytes, whole_units};
use scene::{Findings, LaunchSite, Scene};
use scripts::Rewritten;
use text::yaml::{self, Node, NodeKind};
use workload::{Role, Workload};

/// Largest manifest, in bytes: Kubernetes refuses objects above 1.5 MiB.
pub const LARGEST: usize = 4 << 20;

/// One file of the command line.
#[derive(Debug)]
pub struct Manifest {
    /// The name that is shown.
    pub name: String,
    pub bytes: Vec<u8>,
}

/// The findings of all files.
#[derive(Debug, Default)]
pub struct Report {
    /// By file and line.
    pub findings: Vec<Finding>,
    /// Documents that cannot be read, in the order of the command line.
    pub refused: Vec<Refusal>,
    /// Files that were given.
    pub files: usize,
}

impl Report {
    /// 64 if a document is unreadable; otherwise 1 if something was found, else 0.
    pub fn exit_code(&self) -> i32 {
        if let Some(refused) = self.refused.first() {
            return refused.verdict.code();
        }
        i32::from(self.findings.iter().any(|found| found.importance != LintSeverity::Info))
    }
}

/// Bytes of a size such as `256Gi`, as Kubernetes writes them.
pub fn size(text: &str) -> Option<u64> {
    whole_units(text).filter(|bytes| *bytes > 0)
}

/// Reads all files as one input, since a TrainJob and its runtime may be in two files.
///
/// `node_memory`: bytes of memory that a node can give to pods. `profiles`: by name, with the
/// layout rule and the heads of a script.
pub fn lint(manifests: &[Manifest], node_memory: Option<u64>, profiles: Profiles) -> Report {
    let mut report = Report { files: manifests.len(), ..Report::default() };
    let mut findings = Findings::new(manifests.iter().map(|m| m.name.clone()).collect());
    let mut roots: Vec<(usize, Rc<Node>)> = Vec::new();
    let rewritten: Vec<Option<Rewritten>> = manifests.iter().map(as_manifest).collect();
    for (file, manifest) in manifests.iter().enumerate() {
        let text = rewritten.get(file).and_then(Option::as_ref).map(|it| it.text.as_bytes());
        let (documents, mut refused) =
            read(file, &manifest.name, text.unwrap_or(&manifest.bytes), &mut findings);
        roots.extend(documents.into_iter().map(|root| (file, root)));
        report.refused.append(&mut refused);
    }
    let mut objects = Vec::new();
    for (file, root) in &roots {
        if let Err((line, problem)) = collect(*file, root, &mut objects, 0) {
            let name = manifests.get(*file).map_or("", |manifest| manifest.name.as_str());
            report.refused.push(refusal(name, line, &problem));
        }
    }
    let layouts = launches::layouts(profiles);
    let mut jobs = Vec::new();
    for (file, object) in &objects {
        match workload::role(*file, object, &objects, profiles) {
            Role::Workload(job) => jobs.push(job),
            Role::Other => {}
            Role::Unknown => {
                let kind = object.get("kind").and_then(Node::text).unwrap_or_default();
                findings.at(*file, Id::KindUnknown);
                findings.info(
                    object.line,
                    text!(
                        "{kind} is not checked: unknown kind, its pod templates cannot be found",
                        "未检查 {kind}：未知类型，无法确定其 Pod 模板的位置"
                    ),
                    text!("check the pods by hand", "请手动检查其中的 Pod"),
                );
            }
        }
    }
    let mut host_ports: BTreeMap<String, Vec<&Workload<'_>>> = BTreeMap::new();
    for job in &jobs {
        if let Some(port) = rules::host_port_of(job) {
            host_ports.entry(port).or_default().push(job);
        }
    }
    let of_kind = |kind| objects.iter().copied().filter(move |(_, object)| is_kind(object, kind));
    let services: Vec<(usize, &Node)> = of_kind("Service").collect();
    let claims: Vec<&Node> = of_kind("PersistentVolumeClaim").map(|(_, object)| object).collect();
    let scenes: Vec<Scene<'_>> = jobs
        .iter()
        .map(|job| Scene {
            job,
            sites: LaunchSite::all(job),
            host_ports: &host_ports,
            services: &services,
            claims: &claims,
            layouts: &layouts,
            node_memory,
        })
        .collect();
    for scene in &scenes {
        for rule in RULES {
            findings.at(scene.job.file, rule.id);
            (rule.check)(scene, &mut findings);
        }
    }
    // Each service of a Compose file has become a job.
    for services in scenes.chunk_by(|one, other| one.job.file == other.job.file) {
        let file = services.first().map_or(0, |scene| scene.job.file);
        if rewritten.get(file).is_some_and(Option::is_some) {
            findings.at(file, Id::NodesCount);
            rules::services(services, &mut findings);
        }
    }
    findings.translate(|file, found| {
        let Some(rewritten) = rewritten.get(file).and_then(Option::as_ref) else { return true };
        found.line = rewritten.line_of(found.line);
        scripts::RULES_OF_SCRIPTS.contains(&found.id)
    });
    report.findings = findings.sorted();
    report
}

/// A script or a Compose file as a manifest; None: the file is one.
fn as_manifest(file: &Manifest) -> Option<Rewritten> {
    let bytes = file.bytes.get(..file.bytes.len().min(LARGEST))?;
    Rewritten::of(&file.name, text_of(bytes).ok()?)
}

/// The documents of a file; adds a refusal for each that cannot be read.
fn read(
    file: usize,
    name: &str,
    bytes: &[u8],
    findings: &mut Findings,
) -> (Vec<Rc<Node>>, Vec<Refusal>) {
    let refused = |line: usize, problem: &Text| (Vec::new(), vec![refusal(name, line, problem)]);
    if bytes.len() > LARGEST {
        let most = shown_bytes(LARGEST as u64);
        return refused(1, &text!("larger than {most}", "大于 {most}"));
    }
    let text = match text_of(bytes) {
        Ok(text) => text,
        Err((line, why)) => return refused(line, &why),
    };
    if InputKind::of(name, text) == InputKind::Profile {
        let why = text!(
            "a profile of ranklaunch, which `ranklaunch profile check` reads",
            "这是 ranklaunch 的配置文件，请用 `ranklaunch profile check` 检查"
        );
        return refused(1, &why);
    }
    let documents = yaml::documents(text);
    findings.at(file, Id::YamlDuplicateKey);
    for duplicate in documents.duplicates {
        let key = duplicate.key;
        findings.error(
            duplicate.line,
            text!("duplicate key {key}; the API server rejects it, older versions silently keep the last one", "键 {key} 重复；API server 会拒绝，旧版本则只保留最后一个且不提示"),
            text!("keep one of them", "请只保留一个"),
        );
    }
    let unreadable = documents.unreadable.iter();
    let mut refused: Vec<Refusal> =
        unreadable.map(|error| refusal(name, error.line, &error.text)).collect();
    let empty =
        |node: &Rc<Node>| matches!(&node.kind, NodeKind::Scalar { .. }) && node.text().is_none();
    let roots: Vec<Rc<Node>> = documents.roots.into_iter().filter(|root| !empty(root)).collect();
    if roots.is_empty() && refused.is_empty() {
        refused.push(refusal(
            name,
            1,
            &text!("the file has no Kubernetes object", "文件中没有 Kubernetes 对象"),
        ));
    }
    (roots, refused)
}

/// Objects, those inside Lists included.
fn collect<'a>(
    file: usize,
    root: &'a Node,
    objects: &mut Vec<(usize, &'a Node)>,
    depth: usize,
) -> Result<(), (usize, Text)> {
    const DEEPEST_LIST: usize = 3;
    // A limit, since some rules compare all pairs.
    const MOST_OBJECTS: usize = 2000;
    let kind = root.get("kind").and_then(Node::text);
    let Some(kind) = kind else {
        return Err((
            root.line,
            text!("not a Kubernetes object: it has no kind", "不是 Kubernetes 对象：没有 kind"),
        ));
    };
    let Some(items) = root.get("items").filter(|_| kind.ends_with("List")) else {
        if objects.len() >= MOST_OBJECTS {
            return Err((
                root.line,
                text!("more than {MOST_OBJECTS} objects", "对象超过 {MOST_OBJECTS} 个"),
            ));
        }
        objects.push((file, root));
        return Ok(());
    };
    if depth >= DEEPEST_LIST {
        return Err((root.line, text!("Lists nested too deeply", "List 嵌套过深")));
    }
    items.list().iter().try_for_each(|item| collect(file, item, objects, depth + 1))
}

fn refusal(file: &str, line: usize, problem: &Text) -> Refusal {
    let Text { en, zh } = problem;
    Refusal::new(
        Id::LintUnreadable,
        text!("{file}:{line}: {en}", "{file}:{line}: {zh}"),
        text!(
            "pass plain manifests; render templates first (helm template, kustomize build)",
            "请提供普通清单；模板请先渲染（helm template、kustomize build）"
        ),
    )
}

/// For people: `file:line: importance: text (id)` and a hint; one line if nothing was found.
pub fn plain(report: &Report, lang: Lang) -> String {
    let mut out = String::new();
    for Finding { id, importance, file, line, text, hint } in &report.findings {
        let (word, style) = match importance {
            LintSeverity::Error => (text!("error", "错误"), Style::Fail),
            LintSeverity::Warning => (text!("warning", "警告"), Style::Warn),
            LintSeverity::Info => (text!("info", "说明"), Style::Info),
        };
        let (word, text) = (paint(style, word.get(lang)), text.get(lang));
        let id = paint(Style::Dim, &format!("({id})"));
        let _ = writeln!(out, "{file}:{line}: {word}: {text} {id}");
        let hint = hint.get(lang);
        if !hint.is_empty() {
            let label = paint(Style::Info, text!("hint", "提示").get(lang));
            let _ = writeln!(out, "  {label}{}{hint}", lang.colon());
        }
    }
    let is_clean = report.findings.iter().all(|found| found.importance == LintSeverity::Info);
    if is_clean && report.refused.is_empty() {
        let files = report.files;
        let s = if files == 1 { "" } else { "s" };
        let line = text!("{files} manifest{s}, nothing found", "{files} 个清单，未发现问题");
        let _ = writeln!(out, "{}", line.get(lang));
    }
    out
}

/// `{"schema":1,"findings":[…]}`; unreadable files are in `refused`.
pub fn json(report: &Report, lang: Lang) -> Value {
    let findings: Vec<Value> = report
        .findings
        .iter()
        .map(|found| {
            json!({
                "id": found.id,
                "severity": found.importance,
                "file": found.file,
                "line": found.line,
                "text": found.text.get(lang),
                "hint": found.hint.get(lang),
            })
        })
        .collect();
    let mut out = json!({ "schema": 1, "findings": findings });
    if !report.refused.is_empty() {
        let refused: Vec<Value> = report
            .refused
            .iter()
            .map(|refused| {
                json!({
                    "id": refused.id,
                    "text": refused.text.get(lang),
                    "hint": refused.hint.get(lang),
                })
            })
            .collect();
        if let Value::Object(map) = &mut out {
            map.insert("refused".to_owned(), Value::Array(refused));
        }
    }
    out
}

/// Workflow commands.
pub fn github(report: &Report, lang: Lang) -> String {
    let mut out = String::new();
    for Finding { id, importance, file, line, text, hint } in &report.findings {
        let command = match importance {
            LintSeverity::Error => "error",
            LintSeverity::Warning => "warning",
            LintSeverity::Info => "notice",
        };
        let (file, id) = (property(file), property(id.as_str()));
        let (text, hint) = (text.get(lang), hint.get(lang));
        let message = if hint.is_empty() { text.to_owned() } else { format!("{text}\n{hint}") };
        let _ = writeln!(out, "::{command} file={file},line={line},title={id}::{}", data(&message));
    }
    out
}
