//! Turns clap's errors into refusals of our form, each with one hint.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use super::help;
use super::line::Line;
use super::topic::Topic;
use crate::launchers::{self, LauncherKind, PythonRun};
use text::lang::{Lang, Text};
use text::letters::meant;
use text::nearest::nearest;
use text::text;
use verdict::{Id, Refusal};

/// Why the program ends without running a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// Help or version was requested. Ends in a newline.
    Shown(String),
    /// A command line that cannot be parsed.
    Refused(Refusal),
}

fn refusal(text: Text, hint: Text) -> Refusal {
    Refusal::new(Id::Flags, text, hint)
}

/// The refusal of another launcher's option without a counterpart.
pub(super) fn foreign(typed: &str, of: &str, hint: &Text) -> Refusal {
    let text = match of {
        "other programs" => text!("there is no option `{typed}`", "没有选项 `{typed}`"),
        _ => text!(
            "`{typed}` is an option of {of}, not of ranklaunch",
            "`{typed}` 是 {of} 的选项，不是 ranklaunch 的"
        ),
    };
    refusal(text, hint.clone())
}

/// The refusal of another launcher's option without its value.
pub(super) fn no_value(typed: &str) -> Refusal {
    let hint = text!("write its value, or leave it out", "请写出它的值，或去掉它");
    refusal(text!("`{typed}` needs a value", "`{typed}` 缺少值"), hint)
}

/// The refusal for clap's error.
pub(super) fn stop(error: &clap::Error, line: &[OsString]) -> Stop {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let help = help::asked(line, Lang::En);
        return Stop::Shown(help.unwrap_or_else(|| error.render().to_string()));
    }
    let root = Line::command();
    let named = line.get(1).and_then(|word| word.to_str());
    let command = named.and_then(|name| root.find_subcommand(name)).unwrap_or(&root);
    let launches = command
        .get_positionals()
        .any(|one| one.is_last_set() && one.get_id().as_str() == "program");
    let argument = context(error, ContextKind::InvalidArg);
    let value = context(error, ContextKind::InvalidValue);
    Stop::Refused(match error.kind() {
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            unknown_option(&argument, command, launches, line)
        }
        ErrorKind::UnknownArgument => unknown_word(&argument, command, launches, line),
        ErrorKind::InvalidSubcommand => {
            let word = context(error, ContextKind::InvalidSubcommand);
            unknown_word(&word, command, launches, line)
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            refusal(text!("`{argument}` needs a value", "`{argument}` 缺少值"), about(command))
        }
        ErrorKind::InvalidValue => {
            let valid = context(error, ContextKind::ValidValue);
            refusal(
                text!("`{argument}` is `{value}`", "`{argument}` 的值为 `{value}`"),
                text!("write one of: {valid}", "可用的值：{valid}"),
            )
        }
        ErrorKind::MissingRequiredArgument => {
            refusal(text!("{argument} is missing", "缺少 {argument}"), about(command))
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let (name, names) = (command.get_name(), names.join(", "));
            refusal(
                text!("{name} needs a subcommand", "{name} 之后缺少子命令"),
                text!("write one of: {names}", "可用的值：{names}"),
            )
        }
        ErrorKind::TooManyValues if !argument.is_empty() => {
            refusal(text!("`{argument}` takes no value", "`{argument}` 不带值"), about(command))
        }
        _ => {
            let rendered = error.render().to_string();
            let first = rendered.lines().next().unwrap_or_default();
            let first = first.strip_prefix("error: ").unwrap_or(first).trim_end_matches(':');
            refusal(Text::same(first.to_owned()), about(command))
        }
    })
}

/// The refusal of `help WORD` where the word is neither a command nor a topic.
pub(super) fn no_help(word: &str, root: &Command) -> Refusal {
    let text = text!("there is no help about `{word}`", "没有关于 `{word}` 的帮助");
    let flag = format!("--{}", word.trim_start_matches('-'));
    let has_it = |of: &&Command| longs(of).contains(&flag);
    // Most options are those of several subcommands, run first.
    let owner = root.get_subcommands().find(has_it).map(Command::get_name);
    let ids = Id::ALL.iter().map(|id| id.as_str());
    let of_family = ids.clone().find(|id| {
        id.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    let names = || root.get_subcommands().map(Command::get_name).chain(Topic::ALL.map(Topic::name));
    let near = nearest(word, names()).map(|near| format!("help {near}"));
    let near = near.or_else(|| nearest(word, ids).map(|near| format!("explain {near}")));
    let Text { en, zh } = match (owner, of_family, near) {
        (Some(owner), Some(id), _) => text!(
            "{flag} is an option: ranklaunch {owner} --help; findings of this name: ranklaunch explain {id}",
            "{flag} 是一个选项：ranklaunch {owner} --help；同名检查项：ranklaunch explain {id}"
        ),
        (Some(owner), None, _) => text!(
            "{flag} is an option: ranklaunch {owner} --help",
            "{flag} 是一个选项：ranklaunch {owner} --help"
        ),
        (None, Some(id), _) => {
            text!("write ranklaunch explain {id}", "请写 ranklaunch explain {id}")
        }
        (None, None, Some(near)) => {
            text!("did you mean ranklaunch {near}?", "是否想写 ranklaunch {near}？")
        }
        (None, None, None) => {
            let commands: Vec<&str> = root.get_subcommands().map(Command::get_name).collect();
            let commands = commands.join(", ");
            text!("commands: {commands}", "子命令：{commands}")
        }
    };
    let topics = Topic::ALL.map(Topic::name).join(", ");
    refusal(text, text!("{en}; topics: {topics}", "{zh}；主题：{topics}"))
}

/// The options of a subcommand, with their dashes.
fn longs(of: &Command) -> Vec<String> {
    of.get_arguments().filter_map(|one| Some(format!("--{}", one.get_long()?))).collect()
}

/// The hint with the help of this subcommand.
fn about(command: &Command) -> Text {
    match command.get_name() {
        "ranklaunch" => text!("see ranklaunch --help", "用法见 ranklaunch --help"),
        name => text!("see ranklaunch {name} --help", "用法见 ranklaunch {name} --help"),
    }
}

/// A script in a line with `--`, for a hint.
fn script_of(line: &[OsString]) -> Option<String> {
    let is_script = |word: &&OsString| word.as_bytes().ends_with(b".py");
    let script = line.iter().find(is_script)?.to_string_lossy();
    Some(script.escape_debug().to_string())
}

fn unknown_option(argument: &str, command: &Command, launches: bool, line: &[OsString]) -> Refusal {
    let typed = argument.split('=').next().unwrap_or(argument);
    let text = text!("there is no option `{typed}`", "没有选项 `{typed}`");
    let names = longs(command);
    let root = Line::command();
    let owner = root.get_subcommands().find(|other| longs(other).iter().any(|one| one == typed));
    if let Some(owner) = owner.map(Command::get_name) {
        return refusal(
            text,
            text!("only ranklaunch {owner} has this option", "只有 ranklaunch {owner} 有此选项"),
        );
    }
    let plain: String = typed.chars().map(|letter| meant(letter).unwrap_or(letter)).collect();
    let hint = match (nearest(&plain, names.iter().map(String::as_str)), launches) {
        (Some(near), true) => text!(
            "did you mean `{near}`? Arguments of the script go behind it",
            "是否想写 `{near}`？脚本的参数写在脚本之后"
        ),
        (Some(near), false) => text!("did you mean `{near}`?", "是否想写 `{near}`？"),
        (None, true) => {
            let script = script_of(line).unwrap_or_else(|| "SCRIPT.py".to_owned());
            text!(
                "arguments of the script go behind it: ranklaunch [options] {script} {typed} …; ranklaunch --help lists the options",
                "脚本的参数写在脚本之后：ranklaunch [选项] {script} {typed} …；ranklaunch --help 列出全部选项"
            )
        }
        (None, false) => about(command),
    };
    refusal(text, hint)
}

/// The refusal of a word that is neither an option nor a subcommand.
fn unknown_word(word: &str, command: &Command, launches: bool, line: &[OsString]) -> Refusal {
    if word.chars().next().and_then(meant) == Some('-') {
        return unknown_option(word, command, launches, line);
    }
    let root = &Line::command();
    // `profile` and `lint` accept other words.
    let (names, is_root): (Vec<&str>, bool) = match command.has_subcommands() {
        true => (
            command.get_subcommands().map(Command::get_name).collect(),
            command.get_name() == root.get_name(),
        ),
        false => (Vec::new(), false),
    };
    let text = match is_root {
        true => text!("there is no subcommand `{word}`", "没有子命令 `{word}`"),
        false => text!("`{word}` is not allowed here", "此处不能出现 `{word}`"),
    };
    if is_root && word == "uninstall" {
        let hint = text!(
            "remove the file: rm \"$(command -v ranklaunch)\"",
            "删除该文件即可：rm \"$(command -v ranklaunch)\""
        );
        return refusal(text, hint);
    }
    if is_root && let Some(other) = foreign_subcommand(word) {
        return refusal(text, text!("write ranklaunch {other}", "请写 ranklaunch {other}"));
    }
    if let Some(near) = nearest(word, names.iter().copied()) {
        return refusal(text, text!("did you mean `{near}`?", "是否想写 `{near}`？"));
    }
    if root.find_subcommand(word).is_some() {
        let own = command.get_name();
        return refusal(
            text,
            text!("give one subcommand: {own} or {word}", "只能给出一个子命令：{own} 或 {word}"),
        );
    }
    if launches {
        let name = if is_root { "" } else { command.get_name() };
        return no_script(word, &["ranklaunch", name, "[options]"], line);
    }
    let hint = match command.get_name() {
        "init" => text!(
            "put -- before the command: ranklaunch init -- {word} …",
            "请在命令前加 --：ranklaunch init -- {word} …"
        ),
        _ => about(command),
    };
    refusal(text, hint)
}

/// The refusal of a word that may name a program, but is no .py file.
fn no_script(word: &str, before: &[&str], line: &[OsString]) -> Refusal {
    let before: Vec<&str> = before.iter().copied().filter(|word| !word.is_empty()).collect();
    let before = before.join(" ");
    let zh = before.replace("[options]", "[选项]");
    let text = text!(
        "`{word}` is neither a subcommand nor a .py file",
        "`{word}` 既不是子命令，也不是 .py 文件"
    );
    let is_torchrun = launchers::of_name(word).is_some_and(|it| it.kind == LauncherKind::Torchrun);
    if !is_torchrun && !PythonRun::is_by(word) {
        let shell = if word.ends_with(".sh") { "bash " } else { "" };
        let hint = text!(
            "put -- before a program that is no .py file: {before} -- {shell}{word} …",
            "不是 .py 文件的程序前须加 --：{zh} -- {shell}{word} …"
        );
        return refusal(text, hint);
    }
    let script = script_of(line).unwrap_or_else(|| "SCRIPT.py".to_owned());
    let kept = if is_torchrun { "--engine command -- " } else { "-- " };
    let hint = text!(
        "leave it out: {before} {script} …; to keep it: {before} {kept}{word} …",
        "请去掉它：{zh} {script} …；如需保留：{zh} {kept}{word} …"
    );
    refusal(text, hint)
}

fn context(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(word)) => word.clone(),
        Some(ContextValue::Strings(words)) => words.join(", "),
        Some(ContextValue::StyledStr(words)) => words.to_string(),
        _ => String::new(),
    }
}

/// Our command in place of another program's subcommand.
fn foreign_subcommand(word: &str) -> Option<&'static str> {
    Some(match word {
        "launch" | "start" | "exec" => "run",
        "list" | "ls" => "profile list",
        "show" => "profile show NAME",
        "new" => "profile new",
        "config" | "profiles" => "profile",
        "doctor" | "diagnose" | "test" => "check",
        "validate" => "lint MANIFEST, or profile check FILE",
        "dry-run" => "plan",
        "cleanup" | "kill" => "clean",
        "completion" => "completions SHELL",
        _ => return None,
    })
}
