//! The table of settings: each row has the flag, the place in a profile, the allowed values, and
//! the parser, also that of entries: `--env`, `--severity`, `--retry-on`, `--no-retry-on` and
//! `--warm-modules`.
//!
//! A new setting is a field in `cli::Options`, a field in `Settings` with its default in
//! `settings::defaults`, a row here, a line in config/reference.toml and in both command-line guides.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use super::value::{
    boolean, duration, host, hosts, listens, log_keep, named, nodes, one_of, port, positive,
    progress, size, whole, words,
};
use super::{EnvSetting, Nproc, Reaction, Settings, Source, Sourced, WarmModule};
use crate::checkpoint::{CheckpointFormat, WithoutCheckpoint};
use crate::cli::Options;
use crate::engine::NAMES as ENGINES;
use crate::notice;
use text::lang::Text;
use text::letters::is_hidden;
use verdict::Id;

/// One setting. `name` is the flag; with `_` for `-` it is the profile key, and in upper case
/// after RANKLAUNCH_ the variable.
#[derive(Debug)]
pub(super) struct SettingRow {
    pub(super) name: &'static str,
    /// The values of the flag; None: only in profiles.
    pub(super) flag: Option<fn(&Options) -> Vec<&OsStr>>,
    /// Table of the profile; None: not in a profile.
    pub(super) table: Option<&'static str>,
    /// The TOML type that a profile must use.
    pub(super) toml: Toml,
    pub(super) allowed: Allowed,
    pub(super) example: &'static str,
    pub(super) take: Take,
}

/// TOML types of a scalar setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Toml {
    Text,
    Number,
    TextOrNumber,
    Boolean,
    /// A list of texts.
    List,
}

/// The allowed values, in words for a refusal: "… must be {allowed}".
#[derive(Debug, Clone, Copy)]
pub(super) enum Allowed {
    /// Names that the type of the value has in its serialized form as well.
    OneOf(&'static [&'static str]),
    Words(&'static str, &'static str),
}

impl Allowed {
    pub(super) fn text(self) -> Text {
        match self {
            Allowed::OneOf(names) => {
                let (last, others) = names.split_last().unwrap_or((&"", &[]));
                let (en, zh) = (others.join(", "), others.join("、"));
                Text::new(format!("{en} or {last}"), format!("{zh} 或 {last}"))
            }
            Allowed::Words(en, zh) => Text::new(en, zh),
        }
    }
}

/// Parses a value into the settings. None: the text is not allowed.
type Put = fn(&mut Settings, &str, Source) -> Option<()>;

/// The way in which a setting's text is read.
#[derive(Debug, Clone, Copy)]
pub(super) enum Take {
    /// One value, from the strongest source only.
    One(Put),
    /// Entries of all sources; for equal names the stronger source wins. A variable may hold
    /// several, separated by any of these characters.
    Entries(&'static [char]),
    /// Read elsewhere: the profile before the others, the module with the program.
    Apart,
}

/// The raw texts of a field of `Options`.
trait Typed {
    fn typed(&self) -> Vec<&OsStr>;
}

impl Typed for Option<OsString> {
    fn typed(&self) -> Vec<&OsStr> {
        self.iter().map(OsString::as_os_str).collect()
    }
}

impl Typed for Vec<OsString> {
    fn typed(&self) -> Vec<&OsStr> {
        self.iter().map(OsString::as_os_str).collect()
    }
}

impl Typed for bool {
    fn typed(&self) -> Vec<&OsStr> {
        self.then_some(OsStr::new("true")).into_iter().collect()
    }
}

fn path(text: &str) -> Option<PathBuf> {
    words(text).map(PathBuf::from)
}

/// A duration greater than zero.
fn some_time(text: &str) -> Option<Duration> {
    duration(text).filter(|time| !time.is_zero())
}

/// A duration, or `off`.
fn time_or_off(text: &str) -> Option<Option<Duration>> {
    if text == "off" { Some(None) } else { some_time(text).map(Some) }
}

fn argument(text: &str) -> Option<Option<String>> {
    words(text).map(Some)
}

fn nproc(text: &str) -> Option<Nproc> {
    one_of(text, &["auto", "gpu", "cpu"]).or_else(|| positive(text).map(Nproc::Count))
}

const WHOLE: Allowed = Allowed::Words("a whole number, 0 or more", "不小于 0 的整数");
const POSITIVE: Allowed = Allowed::Words("a whole number, 1 or more", "不小于 1 的整数");
const PORT: Allowed = Allowed::Words("a port from 1 to 65535", "1 到 65535 之间的端口号");
const DURATION: Allowed = Allowed::Words(
    "a duration such as 30s, 30m, 1h30m or a number of seconds, at most a year",
    "时长，例如 30s、30m、1h30m 或秒数，最长一年",
);
const STANDS_STILL: Allowed = Allowed::Words(
    "off or a duration such as 5m or 1h30m, at most a year",
    "off 或时长，例如 5m、1h30m，最长一年",
);
const SIZE: Allowed = Allowed::Words("a size such as 256MiB or 4GiB", "大小，例如 256MiB 或 4GiB");
const LISTENS: Allowed = Allowed::Words(
    "a port of the loopback address such as 9400, or ADDRESS:PORT such as 0.0.0.0:9400 or [::]:9400",
    "回环地址的端口，例如 9400；或 ADDRESS:PORT，例如 0.0.0.0:9400、[::]:9400",
);
const PROGRESS: Allowed = Allowed::Words(
    "auto, off, or a regular expression with the groups step and total, or percent",
    "auto、off，或带有分组 step 与 total（或 percent）的正则表达式",
);
const KEPT: Allowed = Allowed::Words(
    "all, or a number of runs (20), an age (14d) and a size (50GiB), one or several of them with commas",
    "all，或运行数（20）、时长（14d）、大小（50GiB），可用逗号组合",
);
const HOST: Allowed =
    Allowed::Words("a host name or an address, without a port", "主机名或地址，不带端口");
const HOSTS: Allowed = Allowed::Words(
    "the names or addresses of all hosts, each once, such as host0,host1 or host[0-3] (their number alone is --nnodes)",
    "全部主机的名称或地址，每台一次，例如 host0,host1 或 host[0-3]（只给出数目用 --nnodes）",
);
const FOLDER: Allowed = Allowed::Words("a folder", "目录路径");
const FILE: Allowed = Allowed::Words("a path", "文件路径");
const NAME: Allowed = Allowed::Words("a name", "名称");
const PROFILE: Allowed =
    Allowed::Words("an embedded profile's name or a TOML file", "内置配置的名称或 TOML 文件");
const MODULE: Allowed = Allowed::Words("a Python module's name", "Python 模块名");
const INTERPRETER: Allowed = Allowed::Words("the path of an interpreter", "解释器路径");
const ASSIGNMENT: Allowed = Allowed::Words("NAME=VALUE", "NAME=VALUE 的形式");
const SEVERITY: Allowed = Allowed::Words(
    "ID=fail, ID=warn or ID=off with the id of a check",
    "ID=fail、ID=warn 或 ID=off，ID 为检查项",
);
const CAUSE: Allowed = Allowed::Words(
    "the id of a cause, such as cuda_oom or rank.exit",
    "原因的 ID，例如 cuda_oom 或 rank.exit",
);
const MODULES: Allowed = Allowed::Words(
    "a Python module's name, with - before it to leave it out",
    "Python 模块名，前面加 - 表示不导入",
);
const NPROC: Allowed = Allowed::Words(
    "auto, gpu, cpu or a whole number, 1 or more",
    "auto、gpu、cpu 或不小于 1 的整数",
);
const NOTICE: Allowed = Allowed::Words(
    "auto, off, or sources with commas, each once: slurm, gcp, aws, azure, alibaba, file:/PATH, signal:USR1, signal:USR2 or signal:RTMIN+N",
    "auto、off，或用逗号分隔、各不重复的来源：slurm、gcp、aws、azure、alibaba、file:/PATH、signal:USR1、signal:USR2 或 signal:RTMIN+N",
);
const NOTICE_SIGNAL: Allowed = Allowed::Words(
    "TERM, USR1, USR2, INT, HUP, or a real-time signal such as RTMIN+1 (not RTMAX-6, which asks Python for its stacks)",
    "TERM、USR1、USR2、INT、HUP，或实时信号，例如 RTMIN+1（RTMAX-6 除外，它用于获取 Python 堆栈）",
);
const BOOLEAN: Allowed = Allowed::OneOf(&["true", "false"]);
const ARGUMENT: Allowed =
    Allowed::Words("an argument of the script, such as --task", "脚本的参数名，例如 --task");

/// The parser of a row: `set` for a field with a default, `some` for one without, `plain` for
/// one without a source.
macro_rules! take {
    (set $($place:ident).+ = $parse:expr) => {
        Take::One(|s, text, source| {
            s.$($place).+ = Sourced::new($parse(text)?, source);
            Some(())
        })
    };
    (some $($place:ident).+ = $parse:expr) => {
        Take::One(|s, text, source| {
            s.$($place).+ = Some(Sourced::new($parse(text)?, source));
            Some(())
        })
    };
    (plain $($place:ident).+ = $parse:expr) => {
        Take::One(|s, text, _| {
            s.$($place).+ = $parse(text)?;
            Some(())
        })
    };
    (entries $separators:expr) => { Take::Entries($separators) };
    (apart) => { Take::Apart };
}

/// `row!(name, flag, profile table, TOML type, allowed, example, take)`; the flag is a field of
/// Options, and `-` means no flag or not in a profile.
macro_rules! row {
    ($name:literal, $flag:tt, $table:tt, $toml:ident, $allowed:expr, $example:literal, $($take:tt)+) => {
        SettingRow {
            name: $name,
            flag: row!(@flag $flag),
            table: row!(@table $table),
            toml: Toml::$toml,
            allowed: $allowed,
            example: $example,
            take: take!($($take)+),
        }
    };
    (@flag -) => { None };
    (@flag $field:ident) => { Some(|o| o.$field.typed()) };
    (@table -) => { None };
    (@table $table:literal) => { Some($table) };
}

/// A row for a setting with a few allowed names.
macro_rules! choice {
    ($name:literal, $flag:ident, $table:literal, $example:literal, $($place:ident).+ = $names:expr) => {
        row!($name, $flag, $table, Text, Allowed::OneOf($names), $example,
            set $($place).+ = |text| one_of(text, $names))
    };
}

/// Rows that choose the same: that of the stronger layer counts.
const CHOICES: &[&[&str]] = &[&["python", "conda-env"]];

/// The rows that choose the same as this one.
pub(super) fn others(name: &str) -> impl Iterator<Item = &'static str> {
    let choice = CHOICES.iter().find(|choice| choice.contains(&name)).copied().unwrap_or_default();
    choice.iter().copied().filter(move |other| *other != name)
}

#[rustfmt::skip]
pub(super) static TABLE: &[SettingRow] = &[
    row!("profile", profile, -, Text, PROFILE, "wan22", apart),
    row!("module", module, "job", Text, MODULE, "package.train", apart),
    row!("chdir", chdir, "job", Text, FOLDER, "/workspace/job", some chdir = path),
    choice!("engine", engine, "job", "torchrun", engine = ENGINES),
    row!("python", python, "job", Text, INTERPRETER, "/usr/bin/python3", some python = path),
    row!("conda-env", conda_env, "job", Text, NAME, "tiny-vae", some conda_env = words),
    row!("env", env, -, Text, ASSIGNMENT, "OMP_NUM_THREADS=8", entries &['\n']),
    row!("interactive", interactive, "job", Boolean, BOOLEAN, "true", set interactive = boolean),

    row!("nnodes", nnodes, "job", Number, POSITIVE, "2", some nnodes = nodes),
    row!("spares", spares, "job", Number, WHOLE, "2", set spares = whole),
    row!("nodes", nodes, "job", Text, HOSTS, "host0,host1", some nodes = hosts),
    row!("node-rank", node_rank, "job", Number, WHOLE, "0", some node_rank = whole),
    row!("master-addr", master_addr, "job", Text, HOST, "172.31.0.80", some master_addr = host),
    row!("master-port", master_port, "job", Number, PORT, "29500", some master_port = port),
    choice!("world-size-counts", world_size_counts, "job", "nodes", world_size_counts = &["auto", "nodes", "processes"]),
    choice!("rdzv", rdzv, "job", "static", rdzv = &["static", "c10d"]),
    row!("nested", nested, "job", Boolean, BOOLEAN, "true", plain nested = boolean),

    row!("nproc-per-node", nproc_per_node, "job", TextOrNumber, NPROC, "auto", set nproc_per_node = nproc),
    row!("min-nproc", min_nproc, "job", Number, POSITIVE, "4", some min_nproc = positive),
    choice!("device", device, "job", "gpu", device = &["auto", "gpu", "cpu"]),
    choice!("layout", layout, "layout", "ulysses-world", layout.rule = &["none", "ulysses-world", "ulysses-ring"]),
    row!("heads", heads, "layout", Number, POSITIVE, "40", some layout.heads = positive),
    row!("ulysses-argument", -, "layout", Text, ARGUMENT, "--ulysses_size", plain layout.ulysses_argument = argument),
    row!("ring-argument", -, "layout", Text, ARGUMENT, "--ring_size", plain layout.ring_argument = argument),
    row!("checkpoint-argument", -, "layout", Text, ARGUMENT, "--ckpt_dir", plain layout.checkpoint_argument = argument),

    choice!("stale", stale, "launch", "report", stale = &["kill", "force", "report", "off"]),
    choice!("muster", muster, "launch", "off", muster = &["auto", "off", "required"]),
    row!("muster-port", muster_port, "launch", Number, PORT, "29400", some muster_port = port),
    row!("wait-timeout", wait_timeout, "launch", TextOrNumber, DURATION, "30m", set wait_timeout = duration),
    choice!("rdma", rdma, "launch", "auto", rdma = &["auto", "required", "off"]),
    choice!("probe", probe, "launch", "auto", probe = &["auto", "file", "memfd", "nvidia-smi", "off"]),
    row!("severity", severity, -, Text, SEVERITY, "shm.size=warn", entries &[',', ' ', '\n']),
    choice!("bind", bind, "launch", "numa", bind = &["none", "numa"]),
    choice!("inject", inject, "launch", "off", inject = &["auto", "off"]),
    choice!("warm", warm, "launch", "auto", warm = &["off", "auto", "required"]),
    row!("warm-modules", warm_modules, "warm", List, MODULES, "-apex", entries &[',', '\n']),
    row!("hang-after", hang_after, "launch", TextOrNumber, STANDS_STILL, "5m", set hang_after = time_or_off),
    choice!("on-hang", on_hang, "launch", "end", on_hang = Reaction::NAMES),
    row!("notice", notice, "notice", Text, NOTICE, "slurm,file:/run/stop", set notice = notice::mode),
    row!("notice-signal", notice_signal, "notice", Text, NOTICE_SIGNAL, "USR1", set notice_signal = notice::signal),
    row!("notice-lead", notice_lead, "notice", TextOrNumber, DURATION, "2m", set notice_lead = some_time),
    row!("checkpoint-dir", checkpoint_dir, "checkpoint", Text, FOLDER, "/workspace/checkpoints", some checkpoint_dir = path),
    choice!("checkpoint-format", checkpoint_format, "checkpoint", "dcp", checkpoint_format = CheckpointFormat::NAMES),
    choice!("checkpoint-missing", checkpoint_missing, "checkpoint", "refuse", checkpoint_missing = WithoutCheckpoint::NAMES),
    row!("deadline", deadline, "launch", TextOrNumber, DURATION, "30s", some deadline = some_time),
    row!("grace", grace, "launch", TextOrNumber, DURATION, "30s", set grace = duration),
    row!("max-restarts", max_restarts, "launch", Number, WHOLE, "0", set max_restarts = whole),
    row!("max-restarts-without-progress", max_restarts_without_progress, "launch", Number, POSITIVE, "3", set max_restarts_without_progress = positive),
    row!("retry-on", retry_on, "launch", List, CAUSE, "cuda_oom", entries &[',', '\n']),
    row!("no-retry-on", no_retry_on, "launch", List, CAUSE, "nccl_ib_completion", entries &[',', '\n']),

    row!("log-dir", log_dir, "logs", Text, FOLDER, "/workspace/logs", some log_dir = path),
    row!("log-cap-rank", log_cap_rank, "logs", TextOrNumber, SIZE, "256MiB", set log_cap_rank = size),
    row!("log-cap-node", log_cap_node, "logs", TextOrNumber, SIZE, "4GiB", set log_cap_node = size),
    row!("log-keep", log_keep, "logs", TextOrNumber, KEPT, "20,14d,50GiB", set log_keep = log_keep),
    choice!("console", console, "logs", "rank0", console = &["all", "rank0", "errors", "none"]),
    choice!("console-prefix", console_prefix, "logs", "rank", console_prefix = &["rank", "none"]),
    choice!("color", color, "logs", "never", color = &["auto", "always", "never"]),
    row!("verbose", verbose, "logs", Boolean, BOOLEAN, "true", plain verbose = boolean),
    row!("termination-log", termination_log, "logs", Text, FILE, "/dev/termination-log", some termination_log = path),
    row!("progress", progress, "logs", Text, PROGRESS, "step (?P<step>\\d+)/(?P<total>\\d+)", set progress = progress),
    row!("http", http, "logs", TextOrNumber, LISTENS, "9400", some http = listens),
    row!("lang", lang, "logs", Text, Allowed::OneOf(&["en", "zh"]), "en", plain lang = |text| one_of(text, &["en", "zh"])),
    row!("host-root", host_root, -, Text, FOLDER, "/tmp/node", plain host_root = |text| path(text).map(Some)),
];

impl SettingRow {
    /// `RANKLAUNCH_NPROC_PER_NODE`; None for a setting that only a profile has.
    pub(super) fn variable(&self) -> Option<String> {
        self.flag?;
        Some(format!("RANKLAUNCH_{}", self.name.replace('-', "_").to_uppercase()))
    }

    /// The key in the profile's table. Some differ from the flag: `rule` for --layout, `workdir` for --chdir, and in a
    /// table that is called as the flag begins the rest of its name, or `sources` for --notice.
    pub(super) fn key(&self) -> String {
        match self.name {
            "layout" => "rule".to_owned(),
            "chdir" => "workdir".to_owned(),
            "warm-modules" => "modules".to_owned(),
            "checkpoint-dir" => "dir".to_owned(),
            "checkpoint-format" => "format".to_owned(),
            "checkpoint-missing" => "missing".to_owned(),
            "notice" => "sources".to_owned(),
            "notice-signal" => "signal".to_owned(),
            "notice-lead" => "lead".to_owned(),
            name => name.replace('-', "_"),
        }
    }

    /// `settings.nproc_per_node`
    pub(super) fn id(&self) -> Id {
        Id::of_setting(self.name).unwrap_or(Id::Flags)
    }
}

pub(super) fn row(name: &str) -> Option<&'static SettingRow> {
    TABLE.iter().find(|row| row.name == name)
}

/// Whether a variable can have this name.
pub(super) fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(|c: char| c == '=' || c.is_whitespace() || is_hidden(c))
}

/// An id without blanks. The catalogue of failures knows whether the id exists.
fn cause_id(entry: &OsStr) -> Option<String> {
    let id = entry.to_str()?.trim();
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    (!id.is_empty() && id.chars().all(is_letter)).then(|| id.to_owned())
}

/// Takes one entry. None: not allowed.
pub(super) fn put_entry(
    settings: &mut Settings,
    row: &str,
    entry: &OsStr,
    source: Source,
) -> Option<()> {
    match row {
        "env" => {
            let bytes = entry.as_bytes();
            let at = bytes.iter().position(|byte| *byte == b'=')?;
            let (name, value) = bytes.split_at(at);
            let name = std::str::from_utf8(name).ok().filter(|name| is_variable_name(name))?;
            let value = OsStr::from_bytes(value.strip_prefix(b"=")?).to_owned();
            put_variable(settings, EnvSetting { name: name.to_owned(), value, source });
        }
        "severity" => {
            let (id, severity) = entry.to_str()?.split_once('=')?;
            let id = Id::check_named(id)?;
            let severity = Sourced::new(named(severity)?, source);
            settings.severities.insert(id, severity);
        }
        "retry-on" => settings.retry_on.push(Sourced::new(cause_id(entry)?, source)),
        "no-retry-on" => settings.no_retry_on.push(Sourced::new(cause_id(entry)?, source)),
        "warm-modules" => {
            let module = warm_module(entry)?;
            settings.warm_modules.retain(|other| other.name != module.name);
            settings.warm_modules.push(module);
        }
        _ => return None,
    }
    Some(())
}

/// `package.module`, or `-package.module` to leave it out.
fn warm_module(entry: &OsStr) -> Option<WarmModule> {
    let entry = entry.to_str()?.trim();
    let (name, is_imported) = match entry.strip_prefix('-') {
        Some(name) => (name, false),
        None => (entry, true),
    };
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    let is_name = |part: &str| {
        part.chars().all(is_letter) && part.chars().next().is_some_and(|c| !c.is_numeric())
    };
    name.split('.').all(is_name).then(|| WarmModule { name: name.to_owned(), is_imported })
}

/// A variable has one value; the later, stronger entry replaces the earlier one.
pub(super) fn put_variable(settings: &mut Settings, setting: EnvSetting) {
    settings.env.retain(|other| other.name != setting.name);
    settings.env.push(setting);
}

/// The entries of a variable that holds several.
pub(super) fn split_entries(value: &OsStr, separators: &[char]) -> Vec<OsString> {
    value
        .as_bytes()
        .split(|byte| separators.contains(&char::from(*byte)))
        .map(OsStr::from_bytes)
        .filter(|entry| !entry.as_bytes().trim_ascii().is_empty())
        .map(OsStr::to_owned)
        .collect()
}
