//! The texts of refusals and warnings about settings.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::notice::{self, Mistake};
use super::table::SettingRow;
use super::{Source, Sourced};
use text::lang::{Text, spaced};
use text::mask;
use text::nearest::nearest;
use text::text;
use verdict::{Id, Refusal, Verdict, Warning};

/// A value for a message: escaped, with secrets masked, and shortened.
pub(super) fn quoted(value: &OsStr) -> String {
    const SHOWN: usize = 200;
    let escaped = match value.to_str() {
        Some(text) => {
            let masked = mask::mask_args(&[text.into()]).into_iter().collect::<OsString>();
            let masked = masked.to_string_lossy();
            masked.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'")
        }
        None => value.as_bytes().escape_ascii().to_string(),
    };
    let mut shown: String = escaped.chars().take(SHOWN).collect();
    if shown.len() < escaped.len() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// The name of a setting at its source: `--nnodes`, `RANKLAUNCH_NNODES`, `nnodes
/// (wan22.toml:12)`.
fn place(row: &SettingRow, source: &Source) -> String {
    match source {
        _ if source.is_file() => format!("{source}: {}", row.key()),
        _ => source.to_string(),
    }
}

/// The refusal of a value that the setting does not allow.
pub(super) fn not_allowed(row: &SettingRow, value: &OsStr, source: &Source) -> Refusal {
    // `--env "HF_TOKEN abc"` has no `=`, but contains the secret.
    let shown = if row.name == "env" { first_word(value) } else { value };
    let (place, value) = (place(row, source), quoted(shown));
    let allowed = row.allowed.text();
    let text = Text::new(
        format!("{place} is {value}, but must be {}", allowed.en),
        format!("{place} 的值为 {value}，应为{}", spaced(&allowed.zh)),
    );
    let (name, example) = (row.name, row.example);
    let flag = format!("--{name} {example}");
    let hint = known_mistake(row, shown).unwrap_or_else(|| match source {
        // For a Service called ranklaunch-master the kubelet sets RANKLAUNCH_MASTER_PORT.
        Source::Environment(variable) if value.starts_with("`tcp://") => text!(
            "this is the link of a Kubernetes Service; set enableServiceLinks: false in the pod or rename the Service, or use {flag}, which overrides {variable}",
            "这是 Kubernetes Service 的链接变量；请在 Pod 中设置 enableServiceLinks: false 或给 Service 改名，也可以用 {flag} 覆盖 {variable}"
        ),
        Source::Environment(variable) => text!(
            "set {variable}={example}, or use {flag}, which overrides it",
            "请设置 {variable}={example}，或用优先级更高的 {flag}"
        ),
        _ if source.is_file() && row.flag.is_some() => text!(
            "correct the line, or use {flag}, which overrides the profile",
            "请修改该行，或用优先级高于配置文件的 {flag}"
        ),
        _ if source.is_file() => {
            text!(
                "correct the line, for example to \"{example}\"",
                "请修改该行，例如 \"{example}\""
            )
        }
        _ => text!("for example {flag}", "例如 {flag}"),
    });
    Refusal::with(Verdict::Usage, row.id(), text, hint)
}

/// The hint for values of other launchers and for mistyped ids.
fn known_mistake(row: &SettingRow, value: &OsStr) -> Option<Text> {
    let value = value.to_str()?;
    match row.name {
        "severity" => {
            let (id, what) = value.split_once('=').unwrap_or((value, ""));
            if Id::check_named(id).is_some() {
                return Some(text!(
                    "write --severity {id}=fail, {id}=warn or {id}=off",
                    "请写 --severity {id}=fail、{id}=warn 或 {id}=off"
                ));
            }
            let what = if matches!(what, "fail" | "warn" | "off") { what } else { "warn" };
            let checks: Vec<&str> = Id::checks().map(Id::as_str).collect();
            let family: Vec<&str> = checks
                .iter()
                .copied()
                .filter(|known| known.strip_prefix(id).is_some_and(|rest| rest.starts_with('.')))
                .collect();
            let known = if family.is_empty() { &checks } else { &family }.join(", ");
            Some(match nearest(id, checks.iter().copied()) {
                Some(near) => text!(
                    "did you mean --severity {near}={what}?",
                    "是否想写 --severity {near}={what}？"
                ),
                None => text!(
                    "--severity takes the id of one of the checks: {known}",
                    "--severity 可用的检查项：{known}"
                ),
            })
        }
        "notice" => notice::mistake(value).map(|mistake| match mistake {
            Mistake::IsStop(signal) => text!(
                "{signal} already stops the job: the ranks get it, save and have the grace period (--grace); for a notice before it name USR1, USR2 or a real-time signal",
                "{signal} 本身就是停止信号：各 rank 会收到它并在宽限期（--grace）内保存；若要提前通知，请用 USR1、USR2 或实时信号"
            ),
            Mistake::Relative(path) => text!(
                "`{path}` would be another file on a node with another working folder: write file:/… with the whole path",
                "`{path}` 在工作目录不同的节点上会是另一个文件：请写完整路径 file:/…"
            ),
            Mistake::Comma(rest) => text!(
                "`{rest}` is no source: each comma begins another one, so a path with a comma cannot be named; name a link to the file",
                "`{rest}` 不是来源：逗号用于分隔来源，因此不能使用带逗号的路径；请改用指向该文件的链接"
            ),
            Mistake::Twice(word) => text!("`{word}` is there twice", "`{word}` 出现了两次"),
            Mistake::Beside(alone) => text!(
                "{alone} stands alone; name sources, or {alone}",
                "{alone} 只能单独使用；请只写来源，或只写 {alone}"
            ),
        }),
        "nnodes" if value.contains(':') => Some(text!(
            "only the platform can give a range, for an elastic job (PET_NNODES of a PyTorchJob); otherwise give one number: --nnodes 2",
            "节点数范围只能由平台为弹性任务给出（PyTorchJob 的 PET_NNODES）；其他情况请只给一个数：--nnodes 2"
        )),
        _ => None,
    }
}

/// The warning of a node rank in a profile, which every node would read.
pub(super) fn rank_in_profile(rank: &Sourced<String>) -> Warning {
    let Sourced { value, source } = rank;
    Warning::new(
        Id::SettingsNodeRank,
        text!(
            "{source} sets node_rank = {value}: every node that uses this profile is node {value}",
            "{source} 设置了 node_rank = {value}：使用该配置文件的每个节点都会成为节点 {value}"
        ),
        text!(
            "remove the line; the platform gives the node rank, or set --node-rank on each node",
            "请删除该行；节点编号由平台给出，或在各节点上用 --node-rank 指定"
        ),
    )
}

fn first_word(value: &OsStr) -> &OsStr {
    let bytes = value.as_bytes();
    let end = bytes.iter().position(u8::is_ascii_whitespace).unwrap_or(bytes.len());
    bytes.get(..end).map_or(value, OsStr::from_bytes)
}

/// A usage refusal with its own text.
pub(super) fn usage(id: Id, text: Text, hint: Text) -> Refusal {
    Refusal::with(Verdict::Usage, id, text, hint)
}

/// `did you mean …?` if a known name is similar, else the list of known names.
pub(super) fn suggest(nearest: Option<&str>, known: &str) -> Text {
    match nearest {
        Some(name) => text!("did you mean {name}?", "是否想写 {name}？"),
        None => text!("allowed here: {known}", "此处可用：{known}"),
    }
}

pub(super) fn empty_variable(variable: &str) -> Warning {
    Warning::new(
        Id::SettingsEmpty,
        text!(
            "{variable} is set but empty, so it is ignored",
            "{variable} 已设置但为空，视为未设置"
        ),
        text!("give it a value or remove it", "请赋值或删除该变量"),
    )
}

pub(super) fn unknown_variable(variable: &str, nearest: Option<&str>) -> Warning {
    let hint = match nearest {
        Some(name) => text!("did you mean {name}?", "是否想写 {name}？"),
        None => text!(
            "ranklaunch --help lists the options; each is also a variable",
            "ranklaunch --help 列出全部选项，每个选项都有对应的变量"
        ),
    };
    let text =
        text!("{variable} is not a setting and has no effect", "{variable} 不是设置项，不起作用");
    Warning::new(Id::SettingsUnknownVariable, text, hint)
}
