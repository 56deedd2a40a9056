//! The manual pages: one of everything, or one of each command.
//!
//! clap's generator makes names, options and version of them; the other sections are here, since it puts all options
//! into the synopsis and knows neither exit codes nor files.

use std::io;

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::chinese;
use super::help::definition;
use super::parts::launches;
use super::topic::Topic;
use text::lang::{Lang, Text};

/// An entry of a section: its name, and what it means in English and in Chinese.
type Entry = (&'static str, &'static str, &'static str);

const ENVIRONMENT: &[Entry] = &[
    (
        "RANKLAUNCH_OPTION",
        "Every option of a launch: RANKLAUNCH_MASTER_PORT is --master-port. An option on the command line is stronger.",
        "启动任务的每个选项：RANKLAUNCH_MASTER_PORT 对应 --master-port。命令行选项优先。",
    ),
    (
        "RANKLAUNCH_SECRET, RANKLAUNCH_SECRET_FILE",
        "A secret of 16 bytes or more, or its file, the same on all nodes: authenticates and encrypts what nodes say to each other.",
        "至少 16 字节的密钥或其所在文件，所有节点相同：对节点间的通信进行认证和加密。",
    ),
    (
        "RANKLAUNCH_NVML_LIBRARY",
        "Another libnvidia-ml.so.1, for tests.",
        "另一个 libnvidia-ml.so.1，用于测试。",
    ),
    (
        "LC_ALL, LC_MESSAGES, LANG",
        "Language of all messages: Chinese if it begins with zh, else English.",
        "消息的语言：以 zh 开头时为中文，否则为英文。",
    ),
    ("NO_COLOR", "No colours at a terminal.", "在终端上不使用颜色。"),
    (
        "MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK, …",
        "What the platform says of the job; ranklaunch plan names every variable that decides something.",
        "平台给出的任务信息；ranklaunch plan 会列出起作用的每个变量。",
    ),
];

const FILES: &[Entry] = &[
    (
        "ranklaunch.toml",
        "The profile that is used without --profile: beside the executable, in the working directory, or in /etc/ranklaunch.",
        "未指定 --profile 时使用的配置文件：在可执行文件所在目录、工作目录或 /etc/ranklaunch 中。",
    ),
    (
        "ranklaunch-logs/latest",
        "The newest run. Its node-0, node-1, … have run.json (verdict and plan), report.html, agent.jsonl (events), and the output of each rank in attempt-0, attempt-1, …",
        "最新一次运行。其中的 node-0、node-1 等包含 run.json（结论与计划）、report.html、agent.jsonl（事件），以及 attempt-0、attempt-1 等之中各 rank 的输出。",
    ),
    (
        "/dev/termination-log",
        "Gets the verdict as one line of JSON if it exists; Kubernetes shows it with the pod.",
        "若存在，则写入一行 JSON 形式的结论；Kubernetes 会在 Pod 状态中显示。",
    ),
];

/// The page of everything. `codes` are the exit codes with their meaning.
pub(super) fn page(lang: Lang, codes: &[(String, Text)]) -> io::Result<Vec<u8>> {
    let mut line = definition(lang);
    line.build();
    let mut page = beginning(&line, lang)?;
    page += &options(&line)?;
    page += &section(lang, COMMANDS, |section| {
        for below in line.get_subcommands() {
            let own = below.get_arguments().filter(|own| !is_shared(own, &line));
            let shown = own.filter(|own| !own.is_hide_set());
            let words = shown.map(|own| match (own.is_positional(), own.is_last_set()) {
                (_, true) => format!("-- {own}"),
                (true, false) => own.to_string(),
                (false, false) => format!("[{own}]"),
            });
            let name = format!("ranklaunch {}", below.get_name());
            let usage: Vec<String> = std::iter::once(name).chain(words).collect();
            entry(section, &usage.join(" "), &about(below));
        }
    });
    page += &context(&line, lang, codes)?;
    page += &topics(lang);
    Ok(finished(page, lang))
}

/// A page of each command, with the name of its file.
pub(super) fn pages(lang: Lang, codes: &[(String, Text)]) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut line = definition(lang);
    line.build();
    let mut commands = Vec::new();
    all_of(&line, &mut commands);
    let root = line.get_name();
    let made = commands.into_iter().map(|command| {
        let is_root = command.get_name() == root;
        let mut page = beginning(command, lang)?;
        if is_root || !launches(command) {
            page += &options(command)?;
        } else {
            page += &options(&command.clone().mut_args(|arg| {
                let is_hidden = is_shared(&arg, &line);
                arg.hide(is_hidden)
            }))?;
            page += &section(lang, ("OPTIONS OF A LAUNCH", "启动任务的选项"), |section| {
                let all = Text::new("All options of ranklaunch(1).", "ranklaunch(1) 的全部选项。");
                section.text([roman(all.get(lang))]);
            });
        }
        if command.has_subcommands() {
            page += &section(lang, COMMANDS, |section| {
                for below in command.get_subcommands() {
                    entry(section, &file(below).replace(".1", "(1)"), &about(below));
                }
            });
        }
        if is_root {
            page += &context(command, lang, codes)?;
            page += &topics(lang);
        } else {
            page += &section(lang, SEE_ALSO, |section| {
                section.text([roman(format!("{root}(1)"))]);
            });
        }
        Ok((file(command), finished(page, lang)))
    });
    made.collect()
}

fn file(command: &Command) -> String {
    Man::new(command.clone()).get_filename()
}

fn about(command: &Command) -> String {
    command.get_about().map(ToString::to_string).unwrap_or_default()
}

const COMMANDS: (&str, &str) = ("COMMANDS", "子命令");
const SEE_ALSO: (&str, &str) = ("SEE ALSO", "参见");

/// What explains more.
fn topics(lang: Lang) -> String {
    section(lang, SEE_ALSO, |section| {
        let topics = Topic::ALL.map(|topic| format!("ranklaunch help {}", topic.name()));
        section.text([roman(topics.join(", ") + ", ranklaunch explain ID")]);
    })
}

/// A command and those below it.
fn all_of<'a>(command: &'a Command, found: &mut Vec<&'a Command>) {
    found.push(command);
    command.get_subcommands().for_each(|below| all_of(below, found));
}

/// Whether an argument of a subcommand is one of every launch.
fn is_shared(own: &Arg, line: &Command) -> bool {
    line.get_arguments().any(|shared| shared.get_id() == own.get_id())
}

/// Title, name, usage, and the description without the sentence of the name.
fn beginning(command: &Command, lang: Lang) -> io::Result<String> {
    let source = concat!("ranklaunch ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(source);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    let mut page = String::from_utf8_lossy(&page).into_owned();
    // Options and paths are copied, so no hyphens in them; and blanks stretch between Chinese words.
    let (title, name) = page.split_once(".SH ").unwrap_or_default();
    page = format!("{title}.nh\n.ad l\n.SH {name}");
    let usage = command.clone().render_usage().to_string();
    page += &section(lang, ("SYNOPSIS", "概要"), |section| {
        section.control("nf", []);
        for line in usage.trim_start_matches("Usage:").lines() {
            section.text([bold(line.trim())]);
        }
        section.control("fi", []);
    });
    let details = command.get_long_about().map(ToString::to_string).unwrap_or_default();
    if let Some((_, details)) = details.split_once("\n\n") {
        page += &section(lang, ("DESCRIPTION", "描述"), |section| paragraphs(section, details));
    }
    Ok(page)
}

/// All options, with headings below one section.
fn options(command: &Command) -> io::Result<String> {
    if command.get_arguments().all(Arg::is_hide_set) {
        return Ok(String::new());
    }
    let mut made = Vec::new();
    Man::new(command.clone()).render_options_section(&mut made)?;
    let mut made = String::from_utf8_lossy(&made).into_owned();
    for heading in command.get_arguments().filter_map(Arg::get_help_heading) {
        let capital = Roff::new().control("SH", [heading.to_uppercase().as_str()]).to_roff();
        let below = Roff::new().control("SS", [heading]).to_roff();
        made = made.replace(&capital, &below);
    }
    Ok(made)
}

/// What surrounds a launch: exit codes, variables, files, examples, the version.
fn context(command: &Command, lang: Lang, codes: &[(String, Text)]) -> io::Result<String> {
    let of = |name: (&str, &str), entries: &[Entry]| {
        section(lang, name, |section| {
            for (name, en, zh) in entries {
                entry(section, name, Text::new(*en, *zh).get(lang));
            }
        })
    };
    let mut page = section(lang, ("EXIT STATUS", "退出状态"), |section| {
        for (code, meaning) in codes {
            entry(section, code, meaning.get(lang));
        }
    });
    page += &of(("ENVIRONMENT", "环境变量"), ENVIRONMENT);
    page += &of(("FILES", "文件"), FILES);
    let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    page += &section(lang, ("EXAMPLES", "示例"), |section| {
        section.control("nf", []);
        for line in after.lines().filter_map(|line| line.strip_prefix("  ")) {
            section.text([roman(line)]);
        }
        section.control("fi", []);
    });
    let mut version = Vec::new();
    Man::new(command.clone()).render_version_section(&mut version)?;
    Ok(page + &String::from_utf8_lossy(&version))
}

fn section(lang: Lang, (name, name_zh): (&str, &str), fill: impl FnOnce(&mut Roff)) -> String {
    let mut made = Roff::new();
    made.control("SH", [Text::new(name.to_owned(), name_zh.to_owned()).get(lang)]);
    fill(&mut made);
    made.to_roff()
}

fn entry(section: &mut Roff, name: &str, meaning: &str) {
    section.control("TP", []).text([bold(name)]).text([roman(meaning)]);
}

fn paragraphs(section: &mut Roff, text: &str) {
    for line in text.lines() {
        match line.trim() {
            "" => section.control("PP", []),
            line => section.text([roman(line)]),
        };
    }
}

fn finished(page: String, lang: Lang) -> Vec<u8> {
    match lang {
        Lang::En => page,
        Lang::Zh => chinese::man(&page),
    }
    .into_bytes()
}
