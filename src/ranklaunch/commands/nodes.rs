//! `ranklaunch nodes`: lists the nodes that failed in the last days, as the launchers remember them beside the logs.

use std::io;
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::output::{print, show, unwritten_file};
use crate::bad_nodes::{FILE, Incident, append, forgotten, read, remembered};
use crate::here::log_folders;
use linux::pace::clock;
use settings::cli::{self, ReportFormat};
use text::escape::in_one_line;
use text::lang::{Lang, Text, cause};
use text::text;
use verdict::{Id, Refusal};

/// What is remembered of one node.
type Remembered = (String, Vec<Incident>);

pub(crate) fn nodes(asked: &cli::Nodes, lang: Lang) -> Result<i32, Refusal> {
    let folders = log_folders(asked.log_dir.as_deref());
    let (mut found, mut incidents) = (Vec::new(), Vec::new());
    for folder in &folders {
        match read(folder) {
            Ok(all) => {
                found.push(folder);
                incidents.extend(all);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unread(folder, &error)),
        }
    }
    let mut nodes: Vec<Remembered> = remembered(incidents, muster::now()).into_iter().collect();
    if let Some(name) = &asked.forget {
        let name = name.to_string_lossy();
        let is_named = nodes.iter().any(|(node, _)| *node == name);
        // A host name may be that of several machines, one after the other.
        let is_asked = |(node, all): &Remembered| match is_named {
            true => *node == name,
            false => all.last().is_some_and(|last| last.host == name),
        };
        let (gone, left): (Vec<_>, Vec<_>) = nodes.into_iter().partition(is_asked);
        if gone.is_empty() {
            return Err(unknown(&name, &left));
        }
        for (folder, (node, _)) in found.iter().flat_map(|at| gone.iter().map(move |one| (at, one)))
        {
            append(folder, &forgotten(node))
                .map_err(|error| unwritten_file(&folder.join(FILE), &error))?;
        }
        nodes = left;
    }
    match asked.format {
        ReportFormat::Json => {
            print(document(found.first().map(|folder| folder.join(FILE)).as_deref(), &nodes))
        }
        ReportFormat::Text => show(&list(&nodes, lang)),
    }
    Ok(0)
}

fn unread(folder: &Path, error: &io::Error) -> Refusal {
    let (file, Text { en, zh }) = (folder.join(FILE), cause(error));
    let file = file.display();
    Refusal::new(
        Id::NodesUnknown,
        text!("{file} cannot be read: {en}", "无法读取 {file}：{zh}"),
        name_the_folder(),
    )
}

fn name_the_folder() -> Text {
    text!("name the folder of the logs with --log-dir", "请用 --log-dir 指定日志目录")
}

/// Most nodes that a refusal names.
const NAMED: usize = 20;

fn unknown(name: &str, nodes: &[Remembered]) -> Refusal {
    let known: Vec<&str> = nodes.iter().take(NAMED).map(|(node, _)| node.as_str()).collect();
    let (text, hint) = match known.is_empty() {
        true => (
            text!(
                "no node is remembered, so {name} is not forgotten",
                "没有记录任何节点，因此无法清除 {name}"
            ),
            name_the_folder(),
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
            1 => text!("{node}  {ago} ago  {id}: {en}", "{node}  {ago} 前  {id}：{zh}"),
            count => text!(
                "{node}  {count} times, {ago} ago  {id}: {en}",
                "{node}  {count} 次，{ago} 前  {id}：{zh}"
            ),
        });
    }
    if lines.is_empty() {
        lines.push(text!("no node failed in the last seven days", "最近七天没有节点发生故障"));
    }
    lines.iter().map(|line| format!("{}\n", in_one_line(line.get(lang)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_begins_with_node_age_and_cause() {
        let text = text!("the GPU is lost (exit code 1)", "GPU 丢失（退出码 1）");
        let last = Incident { id: "xid_79".to_owned(), text, ..forgotten("n7") };
        let first = Incident { id: "node.died".to_owned(), ..last.clone() };
        for (all, lang, expected) in [
            (vec![last.clone()], Lang::En, "n7  0:00 ago  xid_79: the GPU is lost (exit code 1)\n"),
            (
                vec![first, last.clone()],
                Lang::En,
                "n7  2 times, 0:00 ago  xid_79: the GPU is lost (exit code 1)\n",
            ),
            (vec![last], Lang::Zh, "n7  0:00 前  xid_79：GPU 丢失（退出码 1）\n"),
        ] {
            assert_eq!(list(&[("n7".to_owned(), all)], lang), expected);
        }
    }
}
