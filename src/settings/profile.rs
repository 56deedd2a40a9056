//! Parses the sections of a profile: TOML text in, checked values out, each with its line.
//!
//! Scalars are converted back to text, so that profile, variable and flag share the parser of
//! their row; lists and tables are checked here.
//!
//! [`Profile::over`] merges a profile with one that it extends, and with the platform's file below both: the
//! values of the upper one win. Single values, variables, severities, exit codes and rows of `[[diagnose]]` and `[[watch]]` are
//! merged one by one; lists and tables (`engine_args`, `conda_roots`, `[[select]]`, `[layout.heads]`,
//! `[platform]`) as a whole. `args` and `args_if` of a profile without a program are appended, as
//! arguments after `--` are.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use toml::de::{DeTable, DeValue};

use super::diagnose_rows;
use super::document::{Document, Entry};
use super::layer::FileLayer;
use super::locks;
use super::min_version;
use super::platform;
use super::size_tables::{args_if, heads_table, select, unshared};
use super::table::is_variable_name;
use super::table::{self, SettingRow, TABLE, Toml};
use super::value::named;
use super::watch;
use super::{ArgumentsIf, EnvSetting, HeadsTable, Rule, Select, Sourced};
use crate::contract::Platform;
use diagnose::Row;
use text::text;
use verdict::{Id, Refusal, Severity, Verdict};

/// The key that names the profile that this one extends.
pub(super) const EXTENDS: &str = "extends";

/// The key with the keys that no other layer may change.
pub(super) const LOCKED: &str = "locked";

/// The key with the oldest version that reads the file.
pub(super) const MIN_VERSION: &str = "min_version";

/// The keys above the sections, each with the layer that alone has it.
pub(super) const TOP: &[(&str, Option<FileLayer>)] =
    &[(MIN_VERSION, None), (EXTENDS, Some(FileLayer::Profile)), (LOCKED, Some(FileLayer::Site))];

/// Keys of `[job]` that say which program runs, so that they belong to the job and not to its platform.
pub(super) const OF_PROGRAM: &[&str] = &["script", "module", "command", "args", "args_if"];

/// The row of the engine.
const ENGINE: &str = "engine";

/// The sections of a profile.
pub(super) const SECTIONS: &[&str] = &[
    "job",
    "platform",
    "layout",
    "select",
    "env",
    "launch",
    "warm",
    "notice",
    "checkpoint",
    "logs",
    "severity",
    "exit",
    "diagnose",
    "watch",
];

/// Keys of `[job]` that are not in the table of settings: `script`, `module` and `command` name
/// the program, the others are lists.
pub(super) const JOB_KEYS: &[&str] =
    &["script", "module", "command", "args", "args_if", "engine_args", "conda_roots"];

/// The values of a profile.
#[derive(Debug, Default)]
pub(super) struct Profile {
    /// The profile whose values apply where this one has none.
    pub(super) extends: Option<Sourced<String>>,
    /// The keys that no other layer may change; only of the platform's file.
    pub(super) locked: Vec<Sourced<String>>,
    /// Scalars of the table, by row name.
    pub(super) values: BTreeMap<&'static str, Sourced<String>>,
    /// Lists of the table, by row name.
    pub(super) lists: BTreeMap<&'static str, Vec<Sourced<String>>>,
    pub(super) program: Option<Sourced<ProfileProgram>>,
    pub(super) args: Vec<OsString>,
    pub(super) args_if: Vec<ArgumentsIf>,
    pub(super) engine_args: Option<Sourced<Vec<String>>>,
    /// The engine that these arguments are for: that of their layer or of a weaker one. None: no layer names one.
    pub(super) engine_of_args: Option<Sourced<String>>,
    pub(super) conda_roots: Option<Sourced<Vec<PathBuf>>>,
    pub(super) heads_table: Option<HeadsTable>,
    pub(super) selects: Vec<Select>,
    pub(super) env: Vec<EnvSetting>,
    pub(super) severities: BTreeMap<Id, Sourced<Severity>>,
    pub(super) exit_codes: BTreeMap<i32, Sourced<i32>>,
    pub(super) diagnose: Vec<Sourced<Row>>,
    pub(super) watch: Vec<Sourced<Rule>>,
    pub(super) platform: Option<Sourced<&'static Platform>>,
}

#[derive(Debug)]
pub(super) enum ProfileProgram {
    Script(String),
    Module(String),
    Command(Vec<String>),
}

/// The rows of a section, each with an id of its own.
fn rows<'a, T>(
    document: Document<'a>,
    section: Entry<'a>,
    row: impl Fn(Document<'a>, Entry<'a>) -> Result<Sourced<T>, Refusal>,
    id_of: impl Fn(&T) -> &String,
) -> Result<Vec<Sourced<T>>, Refusal> {
    let mut rows: Vec<Sourced<T>> = Vec::new();
    for item in document.items(section)? {
        let new = row(document, item)?;
        let id = id_of(&new.value);
        if let Some(other) = rows.iter().find(|one| id_of(&one.value) == id) {
            let other = &other.source;
            return Err(document.refuse(
                item.line,
                text!("`{id}` is already set at {other}", "`{id}` 已在 {other} 给出"),
                text!("keep one row for each id", "每个 id 只保留一项"),
            ));
        }
        rows.push(new);
    }
    Ok(rows)
}

impl Profile {
    pub(super) fn read(layer: FileLayer, file: &str, text: &str) -> Result<Profile, Refusal> {
        let document = Document { layer, file, text };
        let root = document.parse()?;
        let sections = document.entries(&root);
        // Before the keys that this version does not know.
        if let Some(entry) = sections.iter().find(|entry| entry.key == MIN_VERSION) {
            min_version::refuse_newer(document, *entry)?;
        }
        let mut profile = Profile::default();
        for section in sections {
            if let Some((_, Some(only))) = TOP.iter().find(|(key, _)| *key == section.key)
                && *only != layer
            {
                return Err(document.refuse_key(section, "the top level", only.has_it()));
            }
            match section.key {
                MIN_VERSION => {}
                LOCKED => profile.locked = locks::read(document, section)?,
                EXTENDS => {
                    let name = document.name_of(section)?;
                    profile.extends = Some(Sourced::new(name, document.source(section.line)));
                }
                "job" => profile.job(document, document.table(section)?)?,
                "platform" => profile.platform = Some(platform::platform(document, section)?),
                "layout" => profile.layout(document, document.table(section)?)?,
                "launch" | "warm" | "notice" | "checkpoint" | "logs" => {
                    for entry in document.entries(document.table(section)?) {
                        profile.scalar(document, section.key, entry, &[])?;
                    }
                }
                "select" => profile.select(document, section)?,
                "env" => profile.env(document, document.table(section)?)?,
                "severity" => profile.severity(document, document.table(section)?, "")?,
                "exit" => profile.exit(document, document.table(section)?)?,
                "diagnose" => {
                    let row = |document, item| diagnose_rows::row(document, item);
                    profile.diagnose = rows(document, section, row, |row: &Row| &row.id)?;
                }
                "watch" => {
                    let row = |document, item| watch::row(document, item);
                    profile.watch = rows(document, section, row, |rule: &Rule| &rule.id)?;
                }
                key => {
                    let here = |only: &Option<FileLayer>| only.is_none_or(|only| only == layer);
                    let top = TOP.iter().filter(|(_, only)| here(only));
                    let known: Vec<String> = top
                        .map(|(key, _)| (*key).to_owned())
                        .chain(SECTIONS.iter().map(|name| format!("[{name}]")))
                        .collect();
                    return Err(match home(key) {
                        Some(table) => document.refuse_key(
                            section,
                            "the top level",
                            text!("write it below [{table}]", "请写在 [{table}] 之下"),
                        ),
                        None => document.unknown_key(section, "the top level", &known),
                    });
                }
            }
        }
        if profile.engine_args.is_some() {
            profile.engine_of_args = profile.values.get(ENGINE).cloned();
        }
        Ok(profile)
    }

    fn job(&mut self, document: Document<'_>, table: &DeTable<'_>) -> Result<(), Refusal> {
        let mut args_line = None;
        for entry in document.entries(table) {
            if document.layer == FileLayer::Site && OF_PROGRAM.contains(&entry.key) {
                return Err(document.refuse_key(
                    entry,
                    "[job] of the platform's file",
                    text!(
                        "the job names its program; a profile such as /etc/ranklaunch/ranklaunch.toml can do it",
                        "程序由任务指定；可写入配置文件，例如 /etc/ranklaunch/ranklaunch.toml"
                    ),
                ));
            }
            let program = match entry.key {
                "script" => ProfileProgram::Script(document.name_of(entry)?),
                "module" => ProfileProgram::Module(document.name_of(entry)?),
                "command" => {
                    let words = document.texts_of(entry)?;
                    if words.first().is_none_or(String::is_empty) {
                        return Err(document.wrong_type(
                            entry,
                            text!("a program and its arguments", "程序及其参数"),
                        ));
                    }
                    ProfileProgram::Command(words)
                }
                "args" => {
                    args_line = Some(entry.line);
                    self.args = document.texts_of(entry)?.into_iter().map(OsString::from).collect();
                    continue;
                }
                "args_if" => {
                    args_line.get_or_insert(entry.line);
                    for item in document.items(entry)? {
                        self.args_if.push(args_if(document, item)?);
                    }
                    continue;
                }
                "engine_args" => {
                    let words = document.texts_of(entry)?;
                    self.engine_args = Some(Sourced::new(words, document.source(entry.line)));
                    continue;
                }
                "conda_roots" => {
                    let roots = document.texts_of(entry)?.into_iter().map(PathBuf::from).collect();
                    self.conda_roots = Some(Sourced::new(roots, document.source(entry.line)));
                    continue;
                }
                _ => {
                    self.scalar(document, "job", entry, JOB_KEYS)?;
                    continue;
                }
            };
            if let Some(other) = &self.program {
                let (key, other) = (entry.key, &other.source);
                return Err(document.refuse(
                    entry.line,
                    text!(
                        "`{key}` names a second program; {other} names the first",
                        "`{key}` 是第二个程序，第一个见 {other}"
                    ),
                    text!(
                        "keep one of script, module and command",
                        "script、module、command 只保留一个"
                    ),
                ));
            }
            self.program = Some(Sourced::new(program, document.source(entry.line)));
        }
        match (args_line, &self.program) {
            (Some(line), None) if self.extends.is_none() => Err(document.refuse(
                line,
                text!("`args` needs a program", "有 `args` 但没有程序"),
                text!("name it: script = \"train.py\"", "请写明程序，例如 script = \"train.py\""),
            )),
            _ => Ok(()),
        }
    }

    fn layout(&mut self, document: Document<'_>, table: &DeTable<'_>) -> Result<(), Refusal> {
        for entry in document.entries(table) {
            match (entry.key, entry.value.as_table()) {
                ("heads", Some(heads)) => {
                    self.heads_table = Some(heads_table(document, entry, heads)?);
                }
                _ => self.scalar(document, "layout", entry, &[])?,
            }
        }
        Ok(())
    }

    /// A key that is a row of the table.
    fn scalar(
        &mut self,
        document: Document<'_>,
        table: &str,
        entry: Entry<'_>,
        more_keys: &[&str],
    ) -> Result<(), Refusal> {
        let Some(row) = rows_of(table).find(|row| row.key() == entry.key) else {
            let inside = format!("[{table}]");
            if let Some(home) = home(entry.key) {
                let hint = text!("it belongs in [{home}]", "它属于 [{home}]");
                return Err(document.refuse_key(entry, &inside, hint));
            }
            let known: Vec<String> = rows_of(table)
                .map(SettingRow::key)
                .chain(more_keys.iter().map(|key| (*key).to_owned()))
                .collect();
            return Err(document.unknown_key(entry, &inside, &known));
        };
        let value = match row.toml {
            Toml::Text => document.text_of(entry)?,
            Toml::Number => document.number_of(entry)?.to_string(),
            Toml::TextOrNumber => document.text_or_number_of(entry)?,
            Toml::List => {
                let source = document.source(entry.line);
                let entries = document.texts_of(entry)?.into_iter();
                let entries = entries.map(|value| Sourced::new(value, source.clone()));
                self.lists.entry(row.name).or_default().extend(entries);
                return Ok(());
            }
            Toml::Boolean => entry
                .value
                .as_bool()
                .ok_or_else(|| document.wrong_type(entry, text!("true or false", "true 或 false")))?
                .to_string(),
        };
        self.values.insert(row.name, Sourced::new(value, document.source(entry.line)));
        Ok(())
    }

    fn select(&mut self, document: Document<'_>, section: Entry<'_>) -> Result<(), Refusal> {
        for item in document.items(section)? {
            let line = item.line;
            let row = select(document, item)?;
            if let Some(other) = self.selects.iter().find(|one| one.total_gpus == row.total_gpus) {
                let (gpus, other) = (row.gpus(), &other.source);
                return Err(document.refuse(
                    line,
                    text!(
                        "total_gpus = {gpus} is already set at {other}",
                        "total_gpus = {gpus} 已在 {other} 给出"
                    ),
                    text!("keep one row for each size", "每种规模只保留一项"),
                ));
            }
            // Otherwise the placeholder would reach the script unreplaced, at one size only.
            if let Some(first) = self.selects.first()
                && let Some(name) = unshared(&first.values, &row.values)
            {
                let first = &first.source;
                return Err(document.refuse(
                    line,
                    text!(
                        "`{name}` is set either here or at {first}, but not in both rows",
                        "`{name}` 在本项与 {first} 中只出现了一次"
                    ),
                    text!("give every row the same names", "每一项都应包含相同的名称"),
                ));
            }
            self.selects.push(row);
        }
        Ok(())
    }

    fn env(&mut self, document: Document<'_>, table: &DeTable<'_>) -> Result<(), Refusal> {
        for entry in document.entries(table) {
            if !is_variable_name(entry.key) {
                let hint = text!("a name without blanks and =", "变量名不能含空白或 =");
                return Err(document.refuse_key(entry, "[env]", hint));
            }
            let value = OsString::from(document.text_or_number_of(entry)?);
            let source = document.source(entry.line);
            self.env.push(EnvSetting { name: entry.key.to_owned(), value, source });
        }
        Ok(())
    }

    /// `"shm.size" = "fail"`, or without quotes, as TOML parses it, `shm = { size = "fail" }`.
    fn severity(
        &mut self,
        document: Document<'_>,
        table: &DeTable<'_>,
        before: &str,
    ) -> Result<(), Refusal> {
        for entry in document.entries(table) {
            let id = format!("{before}{}", entry.key);
            if let Some(inner) = entry.value.as_table() {
                self.severity(document, inner, &format!("{id}."))?;
                continue;
            }
            let Some(check) = Id::check_named(&id) else {
                let known: Vec<String> = Id::checks().map(|id| id.to_string()).collect();
                let entry = Entry { key: &id, ..entry };
                return Err(document.unknown_key(entry, "[severity]", &known));
            };
            let severity = entry.value.as_str().and_then(named).ok_or_else(|| {
                document.wrong_type(entry, text!("fail, warn or off", "fail、warn 或 off"))
            })?;
            self.severities.insert(check, Sourced::new(severity, document.source(entry.line)));
        }
        Ok(())
    }

    fn exit(&mut self, document: Document<'_>, table: &DeTable<'_>) -> Result<(), Refusal> {
        for entry in document.entries(table) {
            let Some(verdict) = Verdict::ALL
                .iter()
                .map(|verdict| verdict.code())
                .find(|code| code.to_string() == entry.key)
            else {
                let known: Vec<String> =
                    Verdict::ALL.iter().map(|v| v.code().to_string()).collect();
                return Err(document.unknown_key(entry, "[exit]", &known));
            };
            let code = u8::try_from(document.number_of(entry)?).map_err(|_| {
                document.wrong_type(entry, text!("an exit code from 0 to 255", "0 到 255 的退出码"))
            })?;
            let code = Sourced::new(i32::from(code), document.source(entry.line));
            self.exit_codes.insert(verdict, code);
        }
        Ok(())
    }

    /// This profile's values, and those of `base` for all that this profile does not set.
    pub(super) fn over(self, mut base: Profile) -> Profile {
        let heads_table = match self.heads_table {
            None if self.values.contains_key("heads") => None,
            None => base.heads_table,
            own => {
                base.values.remove("heads");
                own
            }
        };
        let engine_of_args = match self.engine_args {
            Some(_) => self.engine_of_args.or_else(|| base.values.get(ENGINE).cloned()),
            None => base.engine_of_args,
        };
        // One of two rows that choose the same replaces the other of a weaker layer.
        for other in self.values.keys().flat_map(|name| table::others(name)) {
            base.values.remove(other);
        }
        base.values.extend(self.values);
        // An id moves from one list to the other.
        for list in base.lists.values_mut() {
            list.retain(|id| self.lists.values().flatten().all(|own| own.value != id.value));
        }
        for (name, own) in self.lists {
            base.lists.entry(name).or_default().extend(own);
        }
        if self.program.is_some() {
            (base.args, base.args_if) = (Vec::new(), Vec::new());
        }
        base.args.extend(self.args);
        base.args_if.extend(self.args_if);
        base.env.retain(|old| self.env.iter().all(|new| new.name != old.name));
        base.env.extend(self.env);
        base.severities.extend(self.severities);
        base.exit_codes.extend(self.exit_codes);
        base.diagnose.retain(|old| self.diagnose.iter().all(|new| new.value.id != old.value.id));
        base.diagnose.extend(self.diagnose);
        base.watch.retain(|old| self.watch.iter().all(|new| new.value.id != old.value.id));
        base.watch.extend(self.watch);
        // Every field by name, so that a new one does not compile without a decision here.
        Profile {
            extends: self.extends,
            locked: base.locked,
            values: base.values,
            lists: base.lists,
            program: self.program.or(base.program),
            args: base.args,
            args_if: base.args_if,
            engine_args: self.engine_args.or(base.engine_args),
            engine_of_args,
            conda_roots: self.conda_roots.or(base.conda_roots),
            heads_table,
            selects: if self.selects.is_empty() { base.selects } else { self.selects },
            env: base.env,
            severities: base.severities,
            exit_codes: base.exit_codes,
            diagnose: base.diagnose,
            watch: base.watch,
            platform: self.platform.or(base.platform),
        }
    }

    /// Whether a text is a profile with a value.
    pub(super) fn has_values(text: &str) -> bool {
        let is_given = |section: &DeValue<'_>| match section {
            DeValue::Table(keys) => !keys.is_empty(),
            DeValue::Array(rows) => !rows.is_empty(),
            _ => true,
        };
        Profile::read(FileLayer::Profile, "", text).is_ok()
            && DeTable::parse(text)
                .is_ok_and(|root| root.get_ref().values().any(|one| is_given(one.get_ref())))
    }
}

pub(super) fn rows_of(table: &str) -> impl Iterator<Item = &'static SettingRow> {
    TABLE.iter().filter(move |row| row.table == Some(table))
}

/// The section to which a key of the table belongs.
fn home(key: &str) -> Option<&'static str> {
    if JOB_KEYS.contains(&key) {
        return Some("job");
    }
    TABLE.iter().find(|row| row.key() == key).and_then(|row| row.table)
}
