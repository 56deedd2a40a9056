//! The output of `clean`: stale processes, and the effect of each mode on them.

use serde_json::{Value, json};

use preflight::clear::{HeldResource, StaleProcess, shown_age};
use settings::StaleMode;
use text::columns;
use text::lang::{Lang, Text};
use text::text;

/// A line for each process: the effect of each mode, its identity, and the reason.
pub fn table(found: &[StaleProcess], lang: Lang) -> String {
    if found.is_empty() {
        return format!("{}\n", text!("nothing found", "未发现残留进程").get(lang));
    }
    let header = [
        Text::same("PID"),
        Text::same("kill"),
        Text::same("force"),
        text!("age", "已运行"),
        text!("parent", "父进程"),
        text!("command", "命令"),
        text!("why", "原因"),
    ];
    let mut rows: Vec<Vec<String>> =
        vec![header.iter().map(|text| text.get(lang).to_owned()).collect()];
    let fate = |one: &StaleProcess, mode| {
        if one.is_ended_by(mode) {
            text!("end", "终止").get(lang).to_owned()
        } else {
            "-".to_owned()
        }
    };
    for one in found {
        let age =
            one.age.map(shown_age).map_or_else(|| "?".to_owned(), |age| age.get(lang).to_owned());
        rows.push(vec![
            one.pid.to_string(),
            fate(one, StaleMode::Kill),
            fate(one, StaleMode::Force),
            age,
            format!("{} {}", one.parent.pid, one.parent.name).trim_end().to_owned(),
            short(&one.command),
            one.reason().get(lang).to_owned(),
        ]);
    }
    let mut lines = String::new();
    columns::table(&mut lines, rows);
    lines
}

/// A command, shortened for the table.
fn short(command: &str) -> String {
    const MOST: usize = 43;
    match command.char_indices().nth(MOST) {
        Some((cut, _)) => format!("{}…", command.get(..cut).unwrap_or_default()),
        None => command.to_owned(),
    }
}

/// `clean --format json`. `ended` are the pids that have ended.
pub fn json(found: &[StaleProcess], ended: &[i32], lang: Lang) -> Value {
    let processes: Vec<Value> = found
        .iter()
        .map(|one| {
            let holds: Vec<String> = one
                .holds
                .iter()
                .map(|held| match held {
                    HeldResource::Gpu(minor) => format!("/dev/nvidia{minor}"),
                    HeldResource::Port(port) => format!("port {port}"),
                })
                .collect();
            json!({
                "pid": one.pid,
                "command": one.command,
                "age_s": one.age.map(|age| age.as_secs()),
                "parent": { "pid": one.parent.pid, "name": one.parent.name },
                "rule": one.rule.id(),
                "holds": holds,
                "kill": one.is_ended_by(StaleMode::Kill),
                "force": one.is_ended_by(StaleMode::Force),
                "ended": ended.contains(&one.pid),
                "why": one.reason().get(lang),
            })
        })
        .collect();
    json!({ "schema": 1, "processes": processes })
}
