//! Every option, from the definition of the command line and the table of settings.

use clap::{Arg, ArgAction, Command};
use settings::cli;
use settings::{self, Form};
use text::lang::Lang;

use super::{Page, plain};

pub(super) fn options(lang: Lang) -> String {
    let mut page = Page::new(
        lang,
        "Options",
        "选项",
        "All options and commands, as `ranklaunch --help` has them. Each option of a launch is also a \
         variable and, but for a few, a key of a profile; a flag is stronger than the variable, the \
         variable than the profile, the profile than the platform. A wrong value is refused with exit \
         code 64 and with what is allowed. [Command line](guide/command-line.md) says how they work \
         together.",
        "全部选项与子命令，与 `ranklaunch --help` 一致。启动任务的每个选项同时也是环境变量，除少数外还是配置文件的键；\
         命令行选项优先于变量，变量优先于配置文件，配置文件优先于平台。取值有误时以退出码 64 拒绝启动，并说明允许的取值。\
         各选项如何配合见[命令行](guide/command-line.zh-CN.md)。",
    );
    let mut line = cli::definition(lang);
    line.build();
    let forms: Vec<Form> = settings::forms().collect();
    of_a_launch(&mut page, &line, &forms);
    let shared: Vec<&str> = line.get_arguments().map(|arg| arg.get_id().as_str()).collect();
    for command in line.get_subcommands() {
        of_a_command(&mut page, command, command.get_name(), &shared);
    }
    page.out
}

/// The options of `run`, `plan`, `check` and `clean`, by the headings of the help.
fn of_a_launch(page: &mut Page, line: &Command, forms: &[Form]) {
    let mut heading = String::new();
    // --help and --version have no heading.
    let named = |arg: &Arg| Some((arg.get_help_heading()?.to_owned(), arg.get_long()?.to_owned()));
    for arg in line.get_arguments() {
        let Some((above, long)) = named(arg) else { continue };
        if heading != above {
            page.heading(2, &above);
            heading = above;
            let head = page.say(
                "option|what it does|allowed|variable|key of a profile",
                "选项|作用|取值|变量|配置文件的键",
            );
            let head: Vec<String> = head.split('|').map(str::to_owned).collect();
            page.table(&head.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let long = format!("--{long}");
        let form = forms.iter().find(|form| form.name == long);
        let of =
            |what: fn(&Form) -> Option<&str>| form.and_then(what).map(quoted).unwrap_or_default();
        page.row(&[
            &flag(arg),
            &meaning(arg),
            form.map(|form| page.get(&form.allowed).to_owned()).unwrap_or_default().as_str(),
            &of(|form| form.variable.as_deref()),
            &of(|form| form.key.as_deref()),
        ]);
    }
}

/// A subcommand, with the options that only it has.
fn of_a_command(page: &mut Page, command: &Command, path: &str, shared: &[&str]) {
    if path.contains(" help") {
        return;
    }
    page.heading(2, &format!("ranklaunch {path}"));
    let about = command.get_long_about().or(command.get_about());
    page.out.push_str(&plain(&about.map(ToString::to_string).unwrap_or_default()));
    page.out.push_str("\n\n");
    let own: Vec<&Arg> = command
        .get_arguments()
        .filter(|arg| !shared.contains(&arg.get_id().as_str()) && arg.get_id() != "help")
        .filter(|arg| !arg.is_hide_set())
        .collect();
    if !own.is_empty() {
        let head = page.say("option|what it does", "选项|作用").to_owned();
        page.table(&head.split('|').collect::<Vec<_>>());
        for arg in own {
            page.row(&[&flag(arg), &meaning(arg)]);
        }
    }
    for below in command.get_subcommands() {
        of_a_command(page, below, &format!("{path} {}", below.get_name()), shared);
    }
}

fn quoted(text: &str) -> String {
    format!("`{text}`")
}

/// `-v`, `--verbose`; `--grace DURATION`; the name of an argument.
fn flag(arg: &Arg) -> String {
    let value = match arg.get_action() {
        ArgAction::Set | ArgAction::Append => {
            let names = arg.get_value_names().unwrap_or_default();
            names.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    };
    match (arg.get_short(), arg.get_long()) {
        (None, None) => quoted(&value),
        (short, long) => {
            let short = short.map(|short| format!("`-{short}`"));
            let long = long.map(|long| quoted(format!("--{long} {value}").trim_end()));
            short.into_iter().chain(long).collect::<Vec<_>>().join(", ")
        }
    }
}

fn meaning(arg: &Arg) -> String {
    let text = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|_| arg.get_action().takes_values())
        .map(|value| quoted(value.get_name()))
        .collect();
    let values =
        if values.is_empty() { String::new() } else { format!(" ({})", values.join(", ")) };
    (text + &values).replace('\n', " ")
}
