//! Turns clap's errors into refusals of our form.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};
use std::ffi::OsString;

use super::foreign;
use super::line::Line;
use text::lang::Text;
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

/// The refusal for clap's error.
pub(super) fn stop(error: &clap::Error, line: &[OsString]) -> Stop {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Stop::Shown(error.render().to_string());
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
            unknown_option(&argument, command, launches)
        }
        ErrorKind::UnknownArgument => unknown_word(&argument, command, &root, launches),
        ErrorKind::InvalidSubcommand => {
            let word = context(error, ContextKind::InvalidSubcommand);
            unknown_word(&word, command, &root, launches)
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

/// The refusal of `help WORD` where the word is no subcommand.
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
    let names = || root.get_subcommands().map(Command::get_name);
    let hint = match (owner, of_family) {
        (Some(owner), Some(id)) => text!(
            "{flag} is an option: ranklaunch {owner} --help; findings of this name: ranklaunch explain {id}",
            "{flag} 是一个选项：ranklaunch {owner} --help；同名检查项：ranklaunch explain {id}"
        ),
        (Some(owner), None) => text!(
            "{flag} is an option: ranklaunch {owner} --help",
            "{flag} 是一个选项：ranklaunch {owner} --help"
        ),
        (None, Some(id)) => text!("write ranklaunch explain {id}", "请写 ranklaunch explain {id}"),
        (None, None) => match (nearest(word, names()), nearest(word, ids)) {
            (Some(near), _) => {
                text!("did you mean ranklaunch help {near}?", "是否想写 ranklaunch help {near}？")
            }
            (None, Some(near)) => text!(
                "did you mean ranklaunch explain {near}?",
                "是否想写 ranklaunch explain {near}？"
            ),
            (None, None) => text!(
                "ranklaunch --help lists subcommands and options, ranklaunch explain all ids",
                "ranklaunch --help 列出子命令与选项，ranklaunch explain 列出全部 ID"
            ),
        },
    };
    refusal(text, hint)
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

fn unknown_option(argument: &str, command: &Command, launches: bool) -> Refusal {
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
            "did you mean `{near}`? Arguments of the script go after --",
            "是否想写 `{near}`？脚本的参数写在 -- 之后"
        ),
        (Some(near), false) => text!("did you mean `{near}`?", "是否想写 `{near}`？"),
        (None, true) => text!(
            "arguments of the script go after --: ranklaunch [options] -- SCRIPT {typed} …; ranklaunch --help lists the options",
            "脚本的参数写在 -- 之后：ranklaunch [选项] -- SCRIPT {typed} …；ranklaunch --help 列出全部选项"
        ),
        (None, false) => about(command),
    };
    refusal(text, hint)
}

/// The refusal of a word that is neither an option nor a subcommand.
fn unknown_word(word: &str, command: &Command, root: &Command, launches: bool) -> Refusal {
    if word.chars().next().and_then(meant) == Some('-') {
        return unknown_option(word, command, launches);
    }
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
    if is_root && let Some(other) = foreign::subcommand(word) {
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
    let hint = match (launches, command.get_name()) {
        (true, "ranklaunch") => text!(
            "put -- before the script: ranklaunch [options] -- {word} …",
            "请在脚本前加 --：ranklaunch [选项] -- {word} …"
        ),
        (true, name) => text!(
            "put -- before the script: ranklaunch {name} [options] -- {word} …",
            "请在脚本前加 --：ranklaunch {name} [选项] -- {word} …"
        ),
        (false, "init") => text!(
            "put -- before the command: ranklaunch init -- {word} …",
            "请在命令前加 --：ranklaunch init -- {word} …"
        ),
        (false, _) => about(command),
    };
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
