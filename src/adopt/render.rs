//! What an input becomes, for people and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use text::escape::printable;
use text::lang::{Lang, Text};
use text::style::{Style, paint};
use text::text;

use crate::adopted::{Adopted, AdoptedProfile, Answer, Line};
use crate::classes::Class;

fn word(class: Class) -> (Text, Style) {
    match class {
        Class::Replaced => (text!("replaced", "替换"), Style::Info),
        Class::Wrong => (text!("wrong", "有误"), Style::Fail),
        Class::NotUnderstood => (text!("not understood", "未能理解"), Style::Warn),
        Class::Unnecessary => (text!("unnecessary", "不再需要"), Style::Info),
        Class::Kept => (text!("kept", "保留"), Style::Dim),
    }
}

/// The replacement first, then every line with its class and why.
pub(crate) fn plain(adopted: &Adopted, lang: Lang) -> String {
    let mut out = String::new();
    let name = &adopted.name;
    for answer in &adopted.answers {
        let is_for = match answer.containers.join(", ") {
            all if all.is_empty() => Text::same(""),
            all => text!(", container {all},", " 中的容器 {all} "),
        };
        let Text { en, zh } = is_for;
        let whole = answer.profile.as_ref().filter(|profile| profile.is_all);
        if let Some(AdoptedProfile { file, text, .. }) = whole {
            let head = text!(
                "{name}{en} becomes the profile {file}, and the line `ranklaunch --profile {file}`:",
                "{name}{zh} 改为配置文件 {file}，以及命令 `ranklaunch --profile {file}`："
            );
            let _ = writeln!(out, "{}\n\n{}", head.get(lang), indented(text));
            continue;
        }
        let head = text!("{name}{en} becomes:", "{name}{zh} 改为：");
        let _ = writeln!(out, "{}\n\n{}", head.get(lang), indented(&answer.script));
        if let Some(AdoptedProfile { file, text, .. }) = &answer.profile {
            let head = text!("beside it the profile {file}:", "以及配置文件 {file}：");
            let _ = writeln!(out, "{}\n\n{}", head.get(lang), indented(text));
        }
    }
    let head = text!("Line by line:", "逐行说明：");
    let _ = writeln!(out, "{}", head.get(lang));
    for line in merged(&adopted.lines, lang) {
        let (class, style) = word(line.class);
        let place = match line.first == line.last {
            true => line.first.to_string(),
            false => format!("{}-{}", line.first, line.last),
        };
        let (class, why) = (paint(style, class.get(lang)), printable(line.why.get(lang)));
        let _ = writeln!(out, "{place:>9}  {class}{}{why}", lang.colon());
    }
    let count = |class| adopted.lines.iter().filter(|line| line.class == class).count();
    let (wrong, unread) = (count(Class::Wrong), count(Class::NotUnderstood));
    if wrong + unread > 0 {
        let s = if wrong == 1 { "" } else { "s" };
        let sum = text!(
            "{wrong} mistake{s}, {unread} not understood: look at these before the first run",
            "{wrong} 处错误，{unread} 处未能理解：首次运行前请逐一查看"
        );
        let _ = writeln!(out, "{}", sum.get(lang));
    }
    out
}

fn indented(text: &str) -> String {
    let lines = text.lines().map(|line| match line.is_empty() {
        true => "\n".to_owned(),
        false => format!("    {}\n", printable(line)),
    });
    lines.collect()
}

/// Neighbours of one class and reason are one.
fn merged(lines: &[Line], lang: Lang) -> Vec<Line> {
    let mut out: Vec<Line> = Vec::new();
    for line in lines {
        let same = out.iter_mut().rev().take(2).find(|before| {
            before.class == line.class
                && before.why.get(lang) == line.why.get(lang)
                && line.first <= before.last + 1
                && line.class != Class::Replaced
        });
        match same {
            Some(before) => before.last = before.last.max(line.last),
            None => out.push(line.clone()),
        }
    }
    out
}

/// `{"schema":1,"file":…,"launches":[…],"answers":[{"containers":…,"script":…,"profile":…}],"lines":[…]}`
pub(crate) fn json(adopted: &Adopted, lang: Lang) -> Value {
    let launches: Vec<Value> = adopted
        .launches
        .iter()
        .map(|launch| {
            json!({
                "line": launch.line,
                "container": launch.container,
                "launcher": launch.launcher,
                "nodes": launch.nodes,
                "nproc_per_node": launch.nproc,
                "conditional": launch.may_not_run,
                "argv": launch.argv,
            })
        })
        .collect();
    let lines: Vec<Value> = adopted
        .lines
        .iter()
        .map(|line| {
            json!({ "first": line.first, "last": line.last, "class": line.class, "why": line.why.get(lang) })
        })
        .collect();
    let answer = |answer: &Answer| {
        let profile = answer.profile.as_ref().map(|profile| {
            json!({ "file": profile.file, "text": profile.text, "replaces_all": profile.is_all })
        });
        json!({ "containers": answer.containers, "script": answer.script, "profile": profile })
    };
    let answers: Vec<Value> = adopted.answers.iter().map(answer).collect();
    json!({
        "schema": 1,
        "file": adopted.name,
        "launches": launches,
        "answers": answers,
        "lines": lines,
    })
}
