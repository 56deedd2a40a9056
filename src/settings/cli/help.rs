//! The help: `-h` with the options that people use, `--help` with all, `help` with commands and topics.
//!
//! Takes the definition of the command line; gives texts for a terminal of 80 columns in both languages.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory};

use super::line::Line;
use super::parts::launches;
use super::topic::Topic;
use super::{chinese, options};
use text::columns::padded;
use text::lang::{Lang, Text};
use text::text;

/// The options of `-h`: id, value, what it does in one line.
const USUAL: &[(&str, &str, &str, &str)] = &[
    (
        "profile",
        "PROFILE",
        "Settings from a profile: wan22, or a TOML file",
        "从配置文件取设置：wan22，或 TOML 文件",
    ),
    (
        "module",
        "MODULE",
        "Run a Python module, as python -m does",
        "运行 Python 模块，同 python -m",
    ),
    (
        "engine",
        "ENGINE",
        "torchrun, accelerate, deepspeed, direct, command",
        "torchrun、accelerate、deepspeed、direct、command",
    ),
    ("python", "PATH", "Python interpreter", "Python 解释器"),
    ("conda_env", "NAME", "Conda environment, without activating it", "conda 环境，无需激活"),
    ("env", "K=V", "Set a variable for the ranks; repeatable", "为各 rank 设置变量；可重复使用"),
    (
        "nodes",
        "HOST,HOST",
        "All hosts; the same line starts each of them",
        "全部主机；每台主机使用相同的命令",
    ),
    ("nnodes", "N", "Number of nodes", "节点数"),
    ("node_rank", "N", "Rank of this node, from 0", "本节点的编号，从 0 开始"),
    ("master_addr", "HOST", "Name or address of node 0", "节点 0 的主机名或地址"),
    ("nproc_per_node", "N", "Processes per node, or auto", "每个节点的进程数，或 auto"),
    (
        "layout",
        "RULE",
        "Rule of parallel sizes, such as ulysses-world",
        "并行度的规则，例如 ulysses-world",
    ),
    ("max_restarts", "N", "Restart all nodes at most this often", "所有节点一起重启的最多次数"),
    ("log_dir", "DIR", "Folder for logs", "日志目录"),
    (
        "console",
        "WHICH",
        "Ranks to show: all, rank0, errors or none",
        "显示哪些 rank：all、rank0、errors 或 none",
    ),
];

/// Columns for a text beside an option in `-h`.
const BESIDE: usize = 46;
/// Columns for a text below an option, with clap's indentation.
const BELOW: usize = 68;

/// Every command and option with its texts.
pub fn definition(lang: Lang) -> Command {
    match lang {
        Lang::En => Line::command(),
        Lang::Zh => chinese::command(Line::command(), None),
    }
}

/// The help that a line asks for.
pub(super) fn asked(line: &[OsString], lang: Lang) -> Option<String> {
    let ours = line.iter().take_while(|word| *word != "--");
    // Letters may stand together, and one dash before a word is many letters: `-vh`, `-help`.
    let is_short = |word: &OsString| match word.as_bytes() {
        b"--help" => Some(false),
        [b'-', letters @ ..] if !letters.starts_with(b"-") && letters.contains(&b'h') => Some(true),
        _ => None,
    };
    let is_short = ours.into_iter().find_map(is_short)?;
    let definition = match (lang, is_short) {
        (Lang::En, _) => Line::command(),
        (Lang::Zh, false) => chinese::command(Line::command(), Some(BELOW)),
        (Lang::Zh, true) => chinese::command(Line::command(), Some(BESIDE)),
    };
    let definition = if is_short { usual(definition, lang) } else { definition };
    let stop = definition.try_get_matches_from(line).err();
    let shown = stop.filter(|stop| stop.kind() == ErrorKind::DisplayHelp)?.render().to_string();
    Some(match lang {
        Lang::En => shown,
        Lang::Zh => chinese::help(&shown),
    })
}

/// The definition for `-h`.
fn usual(command: Command, lang: Lang) -> Command {
    let command = command.mut_subcommands(|below| usual(below, lang));
    if !launches(&command) {
        return command;
    }
    let heading = match lang {
        Lang::En => options::COMMON,
        Lang::Zh => chinese::heading(options::COMMON).unwrap_or(options::COMMON),
    };
    command.next_line_help(false).mut_args(|arg| {
        let of_a_launch = arg.get_help_heading().is_some() || arg.is_last_set();
        let rows = USUAL.iter().enumerate();
        match rows.into_iter().find(|(_, (id, ..))| *id == arg.get_id()) {
            Some((at, (_, value, en, zh))) => arg
                .help(Text::new(*en, *zh).get(lang).to_owned())
                .value_name(*value)
                .help_heading(heading)
                .display_order(at),
            None => {
                let takes_values = arg.get_action().takes_values();
                arg.hide_short_help(of_a_launch).hide_possible_values(takes_values)
            }
        }
    })
}

/// The commands and the topics, for `help` without a word.
pub(super) fn list(lang: Lang) -> String {
    let definition = definition(lang);
    let about =
        |command: &Command| command.get_about().map(ToString::to_string).unwrap_or_default();
    let commands = definition.get_subcommands().map(|one| (one.get_name(), about(one)));
    let topics =
        Topic::ALL.into_iter().map(|topic| (topic.name(), topic.about().get(lang).to_owned()));
    let of = |rows: &mut dyn Iterator<Item = (&str, String)>| -> String {
        rows.map(|(name, about)| format!("  {}  {about}\n", padded(name, 11))).collect()
    };
    let (commands, topics) = (of(&mut commands.into_iter()), of(&mut topics.into_iter()));
    let page = text!(
        "Commands (ranklaunch help COMMAND, or ranklaunch COMMAND --help):\n{commands}\nTopics (ranklaunch help TOPIC):\n{topics}\nranklaunch explain ID says what an id or an exit code of a message means.\n",
        "子命令（ranklaunch help 子命令，或 ranklaunch 子命令 --help）：\n{commands}\n主题（ranklaunch help 主题）：\n{topics}\nranklaunch explain ID 说明消息中的 ID 或退出码。\n"
    );
    page.get(lang).to_owned()
}
