//! `ranklaunch checkpoint`: lists the checkpoints below a folder, and says which are whole.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::output::{print, show};
use checkpoint::{Checkpoint, Lack, Limits, Survey, shown, survey};
use linux::host::Host;
use linux::pace::clock;
use settings::cli::{self, Options, ReportFormat};
use text::columns::columns;
use text::escape::in_one_line;
use text::lang::{Lang, Text, bytes, cause};
use text::style::{Style, paint};
use text::text;
use verdict::{Id, Refusal};

/// Maximum number of words for what one of them lacks, in a list for people.
const SHOWN: usize = 3;

pub(crate) fn checkpoint(asked: &cli::Checkpoints, lang: Lang) -> Result<i32, Refusal> {
    Options { color: asked.color.clone(), ..Options::default() }.checked_color(&Host::live())?;
    let folder = Path::new(&asked.dir);
    let seen = survey(folder, &Limits::default()).map_err(|error| {
        let (shown, Text { en, zh }) = (folder.display(), cause(&error));
        Refusal::new(
            Id::CheckpointInput,
            text!("{shown} cannot be read: {en}", "无法读取 {shown}：{zh}"),
            text!(
                "name the folder in which the program saves, which this user may read",
                "请指定程序保存检查点、且当前用户可读的目录"
            ),
        )
    })?;
    match asked.format {
        ReportFormat::Json => print(format!("{:#}\n", document(&seen, lang))),
        ReportFormat::Text => {
            show(&(list(folder, &seen.found, lang) + &not_read(&seen.unread, lang)))
        }
    }
    Ok(0)
}

fn document(Survey { found, unread }: &Survey, lang: Lang) -> Value {
    let text = |path: &PathBuf| shown(path.as_os_str());
    let newest = found.iter().find(|one| one.is_whole());
    let each = found.iter().map(|one| {
        let missing: Vec<_> =
            one.lacks.iter().map(|lack| lack.words().get(lang).to_owned()).collect();
        json!({
            "path": text(&one.path),
            "format": one.format,
            "step": one.step,
            "complete": one.is_whole(),
            "missing": missing,
            "bytes": one.bytes,
            "age_s": one.age().map(|age| age.as_secs_f64()),
            "parts": one.parts,
        })
    });
    json!({
        "schema": 1,
        "newest": newest.map(|one| text(&one.path)),
        "checkpoints": each.collect::<Vec<_>>(),
        "unread": unread.iter().map(text).collect::<Vec<_>>(),
    })
}

fn list(folder: &Path, found: &[Checkpoint], lang: Lang) -> String {
    if found.is_empty() {
        let shown = folder.display();
        let none = text!("no checkpoint below {shown}", "{shown} 下没有检查点");
        return format!("{}\n", none.get(lang));
    }
    let newest = found.iter().position(Checkpoint::is_whole);
    let rows: Vec<[String; 5]> = found.iter().map(|one| row(one, lang)).collect();
    let widths: [usize; 5] = std::array::from_fn(|column| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| columns(cell)).max().unwrap_or(0)
    });
    let mut out = String::new();
    for (number, (row, one)) in rows.iter().zip(found).enumerate() {
        let cells = row.iter().zip(widths).map(|(cell, width)| {
            format!("{cell}{}", " ".repeat(width.saturating_sub(columns(cell))))
        });
        let cells: Vec<String> = cells.collect();
        let state = state(one, newest == Some(number), lang);
        let _ = writeln!(out, "{}  {state}", cells.join("  "));
    }
    out
}

/// The folders whose folders were not read, so that the list may not be complete.
fn not_read(unread: &[PathBuf], lang: Lang) -> String {
    let [first, rest @ ..] = unread else { return String::new() };
    let first = in_one_line(&shown(first.as_os_str()));
    let more = match rest.len() {
        0 => Text::same(""),
        more => text!(" and {more} more", " 等另外 {more} 个目录"),
    };
    let Text { en, zh } = more;
    let line = text!(
        "not complete: folders in {first}{en} were not read, since they lie too deep or cannot be read",
        "列表不完整：未读取 {first}{zh} 中的目录（层级过深或不可读）"
    );
    format!("{}\n", line.get(lang))
}

/// Name, format, step, size, age.
fn row(one: &Checkpoint, lang: Lang) -> [String; 5] {
    let name = match one.name.as_os_str().is_empty() {
        true => one.path.as_path(),
        false => one.name.as_path(),
    };
    let step = one.step.map(|step| text!("step {step}", "第 {step} 步").get(lang).to_owned());
    let age = one.age().map(|age| {
        let age = clock(age);
        text!("{age} ago", "{age} 前").get(lang).to_owned()
    });
    [
        in_one_line(&shown(name.as_os_str())),
        one.format.name().to_owned(),
        step.unwrap_or_default(),
        bytes(one.bytes),
        age.unwrap_or_default(),
    ]
}

fn state(one: &Checkpoint, is_newest: bool, lang: Lang) -> String {
    if is_newest {
        return paint(Style::Good, text!("whole, the newest", "完整，最新").get(lang));
    }
    if one.is_whole() {
        return text!("whole", "完整").get(lang).to_owned();
    }
    let words = |lack: &Lack| in_one_line(lack.words().get(lang));
    let mut lacks: Vec<String> = one.lacks.iter().take(SHOWN).map(words).collect();
    if let Some(more) = one.lacks.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        lacks.push(text!("{more} more", "另有 {more} 项").get(lang).to_owned());
    }
    let (joint, lacks) = (text!("; ", "；"), lacks);
    paint(Style::Fail, &lacks.join(joint.get(lang)))
}
