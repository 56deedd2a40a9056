//! `ranklaunch adopt`: reads the files, and prints what replaces them, with what is wrong in them. Runs nothing of what
//! it reads.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use super::output::{print, say, show};
use super::without_job::read_manifest;
use lint::InputKind;
use linux::host::Host;
use report::closing;
use settings::cli::{self, Options, ReportFormat};
use text::lang::{Lang, Text, cause};
use text::text;
use verdict::{Id, Refusal};

pub(crate) fn adopt(asked: &cli::Adopt, lang: Lang) -> Result<i32, Refusal> {
    Options { color: asked.color.clone(), ..Options::default() }.checked_color(&Host::live())?;
    if asked.files.is_empty() && asked.command.is_empty() {
        return Err(refusal(text!("there is nothing to read", "没有可读取的内容")));
    }
    let (mut texts, mut refused) = (Vec::new(), Vec::new());
    for path in &asked.files {
        let name = path.to_string_lossy().into_owned();
        match read(path) {
            Ok(text) => texts.push((name, text)),
            Err(why) => refused.push(refusal(why.about(name))),
        }
    }
    let (configs, texts): (Vec<_>, Vec<_>) = texts
        .into_iter()
        .partition(|(name, text)| InputKind::of(name, text) == InputKind::AccelerateConfig);
    let used: RefCell<BTreeSet<&str>> = RefCell::default();
    let mut adopted = Vec::new();
    for (name, text) in &texts {
        let files = |named: &str| config(named, name, &configs, &used);
        match lint::adopted(name, text, &files, settings::EMBEDDED) {
            Ok(one) => adopted.push(one),
            Err(why) => refused.push(refusal(why.about(name))),
        }
    }
    if !asked.command.is_empty() {
        let words: Vec<String> =
            asked.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let files = |named: &str| config(named, "", &configs, &used);
        match lint::adopted_line(&words, &files, settings::EMBEDDED) {
            Ok(one) => adopted.push(one),
            Err(why) => refused.push(refusal(why.about("--"))),
        }
    }
    let unused = configs.iter().filter(|(name, _)| !used.borrow().contains(name.as_str()));
    for (name, text) in unused {
        let files = |_: &str| Err(Text::same(""));
        let why = lint::adopted(name, text, &files, settings::EMBEDDED).err();
        refused.extend(why.map(|why| refusal(why.about(name))));
    }
    match asked.format {
        ReportFormat::Text => {
            let texts: Vec<String> = adopted.iter().map(|one| one.plain(lang)).collect();
            show(&texts.join("\n"));
        }
        ReportFormat::Json => match adopted.as_slice() {
            [] => {}
            [one] => print(format!("{:#}\n", one.json(lang))),
            all => {
                let all: Vec<Value> = all.iter().map(|one| one.json(lang)).collect();
                print(format!("{:#}\n", Value::Array(all)));
            }
        },
    }
    let code = refused.first().map_or(0, |refusal| refusal.verdict.code());
    for refusal in &refused {
        say(&closing::refusal(refusal, code, lang));
    }
    Ok(code)
}

fn read(path: &std::ffi::OsStr) -> Result<String, Text> {
    let bytes = read_manifest(path).map_err(|error| cause(&error))?;
    if bytes.len() > lint::LARGEST {
        return Err(text!("too large for a script", "作为脚本过大"));
    }
    let text = lint::text_of(&bytes);
    let text =
        text.map_err(|(line, Text { en, zh })| text!("line {line}: {en}", "第 {line} 行：{zh}"))?;
    Ok(text.to_owned())
}

/// The text of a file of accelerate that a launch of `script` names: one of the command line with the same last name,
/// else
/// the file itself, beside the script or here.
fn config<'a>(
    named: &str,
    script: &str,
    given: &'a [(String, String)],
    used: &RefCell<BTreeSet<&'a str>>,
) -> Result<String, Text> {
    let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let mut alike: Vec<_> = given.iter().filter(|(file, _)| base(file) == base(named)).collect();
    if alike.len() > 1 {
        alike.retain(|(file, _)| Path::new(file).ends_with(named));
    }
    match alike.as_slice() {
        [] => {}
        [(name, text)] => {
            used.borrow_mut().insert(name);
            return Ok(text.clone());
        }
        several => {
            let number = several.len();
            return Err(text!("{number} files have this name", "有 {number} 个同名文件"));
        }
    }
    let here = Path::new(named);
    let beside = Path::new(script).parent().map(|folder| folder.join(here));
    let place = beside.filter(|path| path.exists()).unwrap_or_else(|| here.to_owned());
    read(place.as_os_str())
}

fn refusal(text: Text) -> Refusal {
    Refusal::new(
        Id::AdoptInput,
        text,
        text!(
            "name the script or manifest that starts the ranks, or give its line: ranklaunch adopt -- torchrun …; a script without a launcher: ranklaunch -- train.py",
            "请指定启动各 rank 的脚本或清单，或直接给出命令：ranklaunch adopt -- torchrun …；没有启动器的脚本：ranklaunch -- train.py"
        ),
    )
}
