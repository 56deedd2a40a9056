//! `ranklaunch adopt`: reads the files, and prints what replaces them, with what is wrong in them. Runs nothing of what
//! it reads.

use std::path::Path;

use serde_json::Value;

use super::output::{print, say, show};
use super::without_job::read_manifest;
use lint::Adopted;
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
    let mut adopted = Vec::new();
    let mut refused = Vec::new();
    let mut configs = Vec::new();
    for path in &asked.files {
        let name = path.to_string_lossy().into_owned();
        match read(path) {
            Ok(text) if Adopted::is_config(&text) => configs.push((name, text)),
            Ok(text) => match lint::adopted(&name, &text, settings::EMBEDDED) {
                Some(one) => adopted.push(one),
                None => refused.push(no_launch(&name, &text)),
            },
            Err(Text { en, zh }) => refused.push(refusal(text!("{name}: {en}", "{name}：{zh}"))),
        }
    }
    if !asked.command.is_empty() {
        let words: Vec<String> =
            asked.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        match lint::adopted_line(&words, settings::EMBEDDED) {
            Some(one) => adopted.push(one),
            None => refused.push(no_launch("--", &words.join(" "))),
        }
    }
    for one in &mut adopted {
        configured(one, &configs);
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
    String::from_utf8(bytes).map_err(|_| text!("not UTF-8", "不是 UTF-8"))
}

/// Compares the files of accelerate that the launches name with the job. A file that is not on the command line is
/// looked for beside the script and here.
fn configured(adopted: &mut Adopted, given: &[(String, String)]) {
    for name in adopted.config_files().to_vec() {
        let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        let known = given.iter().find(|(file, _)| base(file) == base(&name));
        let beside = Path::new(adopted.name()).parent().map(|folder| folder.join(&name));
        let text = known.map(|(_, text)| text.clone()).or_else(|| {
            let places = beside.into_iter().chain([Path::new(&name).to_owned()]);
            places.filter(|path| path.is_file()).find_map(|path| read(path.as_os_str()).ok())
        });
        if let Some(text) = text {
            adopted.add_config(&name, &text);
        }
    }
}

fn no_launch(name: &str, text: &str) -> Refusal {
    let mut words = text.split(|c: char| c.is_whitespace() || "\"'[],;".contains(c));
    if words.any(settings::launchers::is_ranklaunch) {
        return refusal(text!(
            "{name}: no line of it is a launch, but it starts ranklaunch already",
            "{name}：其中没有启动命令，但已在使用 ranklaunch"
        ));
    }
    refusal(text!("{name}: no line of it is a launch", "{name}：其中没有启动命令"))
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
