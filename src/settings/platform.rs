//! Parses `[platform]`: a platform that the program does not know, as one more row of the table of
//! contracts ([`crate::contract`]).
//!
//! Checks keys, names and readings. Whether the variables are set, and what their values mean, is
//! decided where all rows are read.

use toml::de::DeValue;

use super::Sourced;
use super::document::{Document, Entry};
use super::table::is_variable_name;
use super::value::named;
use crate::contract::{
    Beside, Field, Groups, Platform, PlatformRow, Reading, Strength, Test, beside_of, fields,
    platform_ids, readings_of,
};
use text::text;
use verdict::Refusal;

/// The keys in addition to those of the fields.
pub(super) const KEYS: &[&str] = &["name", "proofs", "default_port"];

/// Names that messages use where there is no platform.
const TAKEN: &[&str] = &["none", "flags", "nested"];

/// The fields that describe one of several tasks of a node; only all of them together do.
const OF_TASKS: &[Field] = &[Field::TasksPerNode, Field::Tasks, Field::TaskRank, Field::TaskLocal];

/// The key of a field: `master_addr`.
pub(super) fn key(field: Field) -> String {
    spelled(field).replace('-', "_")
}

/// The name of a reading or a field in its serialized form.
pub(super) fn spelled(name: impl serde::Serialize) -> String {
    serde_json::to_value(name)
        .ok()
        .and_then(|name| name.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// The rows of a profile live as long as those of the program; a process reads few profiles.
fn kept<T: ?Sized>(value: Box<T>) -> &'static T {
    Box::leak(value)
}

fn kept_text(text: &str) -> &'static str {
    kept(text.into())
}

/// `[platform]`.
pub(super) fn platform(
    document: Document<'_>,
    section: Entry<'_>,
) -> Result<Sourced<&'static Platform>, Refusal> {
    let (mut id, mut proofs, mut default_port) = (None, None, None);
    let mut claims: Vec<PlatformRow> = Vec::new();
    for entry in document.entries(document.table(section)?) {
        match entry.key {
            "name" => id = Some(name(document, entry)?),
            "proofs" => proofs = Some(groups(document, entry)?),
            "default_port" => default_port = Some(port(document, entry)?),
            _ => {
                let field = named::<Field>(&entry.key.replace('_', "-"));
                match field.filter(|field| key(*field) == entry.key) {
                    Some(field) if !readings_of(field).is_empty() => {
                        claims.extend(rows(document, entry, field)?);
                    }
                    _ => return Err(unknown(document, entry)),
                }
            }
        }
    }
    let (Some(id), Some(proofs), false) = (id, proofs, claims.is_empty()) else {
        let lacks = match (id, claims.is_empty()) {
            (None, _) => "name",
            (_, true) => "nnodes",
            _ => "proofs",
        };
        return Err(document.refuse(
            section.line,
            text!("[platform] without `{lacks}`", "[platform] 缺少 `{lacks}`"),
            text!(
                "for example name = \"acme\", proofs = [\"ACME_JOB_ID\"], nnodes = \"ACME_NODES\", node_rank = \"ACME_INDEX\", master_addr = \"ACME_HEAD\"",
                "例如 name = \"acme\"，proofs = [\"ACME_JOB_ID\"]，nnodes = \"ACME_NODES\"，node_rank = \"ACME_INDEX\"，master_addr = \"ACME_HEAD\""
            ),
        ));
    };
    whole_task(document, section, &claims)?;
    let platform = Platform {
        id,
        strength: Strength::Profile,
        proofs,
        claims: kept([kept(claims.into_boxed_slice())].into()),
        default_port,
    };
    Ok(Sourced::new(kept(Box::new(platform)), document.source(section.line)))
}

fn unknown(document: Document<'_>, entry: Entry<'_>) -> Refusal {
    if matches!(entry.key, "world_size" | "rank") {
        return document.refuse_key(
            entry,
            "[platform]",
            text!(
                "say what it counts: nnodes = \"ACME_WORLD_SIZE\" for nodes; for processes nnodes = {{ variable = \"ACME_WORLD_SIZE\", reading = \"per-node\", beside = \"ACME_PER_NODE\" }}; node_rank for the rank of a node",
                "请写明含义：表示节点数时写 nnodes = \"ACME_WORLD_SIZE\"；表示进程数时写 nnodes = {{ variable = \"ACME_WORLD_SIZE\", reading = \"per-node\", beside = \"ACME_PER_NODE\" }}；节点编号写 node_rank"
            ),
        );
    }
    let known: Vec<String> =
        KEYS.iter().map(ToString::to_string).chain(fields().map(key)).collect();
    document.unknown_key(entry, "[platform]", &known)
}

fn whole_task(
    document: Document<'_>,
    section: Entry<'_>,
    claims: &[PlatformRow],
) -> Result<(), Refusal> {
    let gives = |field: &&Field| claims.iter().any(|row| row.field == **field);
    let missing: Vec<String> =
        OF_TASKS.iter().filter(|field| !gives(field)).map(|field| key(*field)).collect();
    if missing.is_empty() || missing.len() == OF_TASKS.len() {
        return Ok(());
    }
    let missing = missing.join(", ");
    Err(document.refuse(
        section.line,
        text!(
            "[platform] describes tasks, but not by {missing}",
            "[platform] 描述了 task，但缺少 {missing}"
        ),
        text!(
            "give tasks_per_node, tasks, task_rank and task_local, or none of them",
            "tasks_per_node、tasks、task_rank、task_local 应全部给出，或全部不给"
        ),
    ))
}

/// A name for messages and for `membership.platform`.
fn name(document: Document<'_>, entry: Entry<'_>) -> Result<&'static str, Refusal> {
    const LONGEST: usize = 40;
    let name = document.name_of(entry)?;
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_plain = name.len() <= LONGEST && name.chars().all(is_letter);
    if !is_plain || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err(document.wrong_type(
            entry,
            text!(
                "a name of at most {LONGEST} small letters, digits and -, which begins with a letter",
                "以小写字母开头的名称，只含小写字母、数字和 -，最长 {LONGEST} 个字符"
            ),
        ));
    }
    if TAKEN.contains(&&*name) || platform_ids().any(|id| id == name) {
        return Err(document.wrong_type(
            entry,
            text!(
                "another name: ranklaunch calls something else {name} already",
                "其他名称：{name} 在 ranklaunch 中已有含义"
            ),
        ));
    }
    Ok(kept_text(&name))
}

/// The master port where no variable gives one.
fn port(document: Document<'_>, entry: Entry<'_>) -> Result<u16, Refusal> {
    let port = u16::try_from(document.number_of(entry)?).ok().filter(|port| *port > 0);
    port.ok_or_else(|| {
        document.wrong_type(entry, text!("a port from 1 to 65535", "1 到 65535 的端口"))
    })
}

/// `["A", "B"]` is one group; of the groups in `[["A"], ["B"]]` one is enough.
fn groups(document: Document<'_>, entry: Entry<'_>) -> Result<Groups<Test>, Refusal> {
    let items = document.items(entry)?;
    let groups = match items.iter().any(|item| item.value.is_array()) {
        true => {
            items.into_iter().map(|item| group(document, item)).collect::<Result<Vec<_>, _>>()?
        }
        false => vec![group(document, entry)?],
    };
    Ok(kept(groups.into()))
}

/// Tests that have to hold together.
fn group(document: Document<'_>, entry: Entry<'_>) -> Result<&'static [Test], Refusal> {
    let tests = document.texts_of(entry)?;
    let tests: Option<Vec<Test>> = tests.iter().map(|text| test(text)).collect();
    // A group without a variable that must be set would prove the platform everywhere.
    let shows = |tests: &Vec<Test>| tests.iter().any(|test| !matches!(test, Test::Unset(_)));
    match tests.filter(shows) {
        Some(tests) => Ok(kept(tests.into())),
        None => Err(document.wrong_type(
            entry,
            text!(
                "tests of variables, at least one of which needs a variable that is set: \"NAME\", \"NAME=VALUE\", \"NAME=*END\", \"!NAME\"",
                "对变量的判断，其中至少一项要求变量已设置：\"NAME\"、\"NAME=VALUE\"、\"NAME=*END\"、\"!NAME\""
            ),
        )),
    }
}

/// `NAME`, `!NAME`, `NAME=VALUE` or `NAME=*END`.
fn test(text: &str) -> Option<Test> {
    if let Some(name) = text.strip_prefix('!') {
        return is_variable_name(name).then(|| Test::Unset(kept_text(name)));
    }
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    if !is_variable_name(name) {
        return None;
    }
    let name = kept_text(name);
    Some(match value.map(|value| (value, value.strip_prefix('*'))) {
        None => Test::Set(name),
        Some((_, Some(end))) => Test::Ends(name, kept_text(end)),
        Some((value, None)) => Test::Is(name, kept_text(value)),
    })
}

/// One variable or several; the first variable that is not blank is read.
fn rows(
    document: Document<'_>,
    entry: Entry<'_>,
    field: Field,
) -> Result<Vec<PlatformRow>, Refusal> {
    if !entry.value.is_array() {
        return row(document, entry, field).map(|row| vec![row]);
    }
    let items = document.items(entry)?.into_iter().enumerate();
    let row_of = |(at, item)| Ok(PlatformRow { fallback: at > 0, ..row(document, item, field)? });
    items.map(row_of).collect()
}

/// `"NAME"`, or `{ variable = "NAME", reading = "…", beside = "NAME" }`.
fn row(document: Document<'_>, entry: Entry<'_>, field: Field) -> Result<PlatformRow, Refusal> {
    let (mut read, mut reading, mut beside) = (None, Reading::Plain, None);
    match entry.value {
        DeValue::Table(table) => {
            for part in document.entries(table) {
                match part.key {
                    "variable" => read = Some(variable(document, part)?),
                    "reading" => reading = reading_of(document, part, field)?,
                    "beside" => beside = Some(variable(document, part)?),
                    _ => {
                        let known = ["variable", "reading", "beside"];
                        return Err(document.unknown_key(part, entry.key, &known));
                    }
                }
            }
        }
        _ => read = Some(variable(document, entry)?),
    }
    let Some(variable) = read else {
        return Err(document.wrong_type(
            entry,
            text!(
                "\"NAME\" or {{ variable = \"NAME\", reading = \"…\" }}",
                "\"NAME\" 或 {{ variable = \"NAME\", reading = \"…\" }}"
            ),
        ));
    };
    let name = spelled(reading);
    match (beside_of(reading), beside) {
        (Beside::Always, None) => Err(document.refuse(
            entry.line,
            text!(
                "`{name}` reads {variable} together with a second variable, which `beside` names",
                "`{name}` 需要与 {variable} 一起读取另一个变量，由 `beside` 指明"
            ),
            text!(
                "add beside = \"NAME\"; config/reference.toml says what each reading takes",
                "请添加 beside = \"NAME\"；config/reference.toml 说明了每种读法"
            ),
        )),
        (Beside::Never, Some(other)) => Err(document.refuse(
            entry.line,
            text!(
                "`{name}` reads one variable, so {other} has no effect",
                "`{name}` 只读取一个变量，{other} 不起作用"
            ),
            text!("remove `beside`, or name another reading", "请删除 `beside`，或改用其他读法"),
        )),
        _ => Ok(PlatformRow { field, variable, reading, beside, fallback: false, only: None }),
    }
}

fn reading_of(document: Document<'_>, entry: Entry<'_>, field: Field) -> Result<Reading, Refusal> {
    let of_field = readings_of(field);
    let found = entry.value.as_str().and_then(named::<Reading>);
    found.filter(|reading| of_field.contains(reading)).ok_or_else(|| {
        let key = key(field);
        let names: Vec<String> = of_field.iter().map(spelled).collect();
        let names = names.join(", ");
        document
            .wrong_type(entry, text!("a reading of {key}: {names}", "{key} 可用的读法：{names}"))
    })
}

fn variable(document: Document<'_>, entry: Entry<'_>) -> Result<&'static str, Refusal> {
    match entry.value.as_str().filter(|name| is_variable_name(name)) {
        Some(name) => Ok(kept_text(name)),
        None => Err(document
            .wrong_type(entry, text!("the name of a variable, in quotes", "带引号的变量名"))),
    }
}
