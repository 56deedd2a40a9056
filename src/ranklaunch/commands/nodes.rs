//! `ranklaunch nodes`: lists the nodes that failed in the last days, as the launchers remember them beside the logs.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::output::{print, show, unwritten_file};
use crate::bad_nodes::{FILE, Incident, append, forgotten, read, remembered};
use crate::here::log_folders;
use linux::pace::clock;
use settings::cli::{self, ReportFormat};
use text::escape::in_one_line;
use text::lang::{Lang, Text};
use text::text;
use verdict::{Id, Refusal};

/// What is remembered of one node.
type Remembered = (String, Vec<Incident>);

pub(crate) fn nodes(asked: &cli::Nodes, lang: Lang) -> Result<i32, Refusal> {
    let folders = log_folders(asked.log_dir.as_deref());
    let found = folders.iter().find_map(|folder| Some((folder, read(folder).ok()?)));
    let (folder, incidents) = found.map(|(folder, all)| (Some(folder), all)).unwrap_or_default();
    let mut nodes: Vec<Remembered> = remembered(incidents, muster::now()).into_iter().collect();
    if let Some(name) = &asked.forget {
        let name = name.to_string_lossy();
        let is_asked = |(node, all): &Remembered| {
            *node == name || all.last().is_some_and(|last| last.host == name)
        };
        let gone = nodes.iter().find(|one| is_asked(one)).map(|(node, _)| node.clone());
        let (Some(folder), Some(gone)) = (folder, gone) else { return Err(unknown(&name, &nodes)) };
        append(folder, &forgotten(&gone))
            .map_err(|error| unwritten_file(&folder.join(FILE), &error))?;
        nodes.retain(|(node, _)| *node != gone);
    }
    match asked.format {
        ReportFormat::Json => {
            print(document(folder.map(|folder| folder.join(FILE)).as_deref(), &nodes))
        }
        ReportFormat::Text => show(&list(&nodes, lang)),
    }
    Ok(0)
}

fn unknown(name: &str, nodes: &[Remembered]) -> Refusal {
    let known: Vec<&str> = nodes.iter().map(|(node, _)| node.as_str()).collect();
    let (text, hint) = match known.is_empty() {
        true => (
            text!(
                "no node is remembered, so {name} is not forgotten",
                "没有记录任何节点，因此无法清除 {name}"
            ),
            text!("name the folder of the logs with --log-dir", "请用 --log-dir 指定日志目录"),
        ),
        false => {
            let known = known.join(", ");
            (
                text!(
                    "no node {name} is remembered: there are {known}",
                    "没有节点 {name} 的记录；已记录：{known}"
                ),
                text!(
                    "give --forget the first word of a line",
                    "请将某一行的第一个词作为 --forget 的值"
                ),
            )
        }
    };
    Refusal::new(Id::NodesUnknown, text, hint)
}

fn age(incident: &Incident) -> Duration {
    let age = u64::try_from(muster::now().saturating_sub(incident.at)).unwrap_or(0);
    Duration::from_millis(age)
}

fn document(file: Option<&Path>, nodes: &[Remembered]) -> String {
    let each = nodes.iter().map(|(node, all)| {
        let each = all.iter().map(|one| {
            json!({
                "age_s": age(one).as_secs_f64(),
                "id": one.id,
                "text": one.text.en,
                "host": one.host,
                "run": one.run,
            })
        });
        json!({ "node": node, "incidents": each.collect::<Vec<_>>() })
    });
    let file = file.map(|file| file.to_string_lossy().into_owned());
    let nodes: Vec<_> = each.collect();
    format!("{:#}\n", json!({ "schema": 1, "file": file, "nodes": nodes }))
}

fn list(nodes: &[Remembered], lang: Lang) -> String {
    let mut lines: Vec<Text> = Vec::new();
    for (node, all) in nodes {
        let Some(last) = all.last() else { continue };
        let (ago, Text { en, zh }, id) = (clock(age(last)), &last.text, &last.id);
        lines.push(match all.len() {
            1 => text!("{node}  {ago} ago  {en} [{id}]", "{node}  {ago} 前  {zh} [{id}]"),
            count => text!(
                "{node}  {count} times, {ago} ago  {en} [{id}]",
                "{node}  {count} 次，{ago} 前  {zh} [{id}]"
            ),
        });
    }
    if lines.is_empty() {
        lines.push(text!("no node failed in the last seven days", "最近七天没有节点发生故障"));
    }
    lines.iter().map(|line| format!("{}\n", in_one_line(line.get(lang)))).collect()
}
