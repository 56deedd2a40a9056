//! Opens the host and reads the settings of a command within a deadline, with those about causes: further
//! rows of the catalogue of failures (`[[diagnose]]`), and the failures after which an attempt follows
//! (`--retry-on`, `--no-retry-on`).
//!
//! Gives a catalogue in which every pattern compiles and every example matches, and rules in which every id
//! exists; or the refusal that names the place and the value.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::commands::output::Refused;
use diagnose::{Catalogue, Row, RowFlaw, catalogue};
use linux::deadline::with_deadline;
use linux::host::Host;
use settings::cli::Options;
use settings::{Reaction, Settings, Source, Sourced};
use text::lang::{Text, cause};
use text::nearest::nearest;
use text::text;
use verdict::{Id, Refusal, Use};

/// Default time limit for reading the profile and the folders searched for it.
const PROFILE: Duration = Duration::from_secs(30);

/// Values with which every command with settings begins.
pub(super) struct Opened {
    pub(super) host: Host,
    pub(super) settings: Settings,
    /// The catalogue of failures, where the profile adds rows to the built-in one.
    pub(super) catalogue: Option<&'static Catalogue>,
    /// The rules of `--retry-on` and `--no-retry-on`.
    pub(super) retry_rules: RetryRules,
}

/// Opens both, or gives the refusal and the language to print it in.
#[tracing::instrument(name = "settings", skip_all)]
pub(super) fn open(options: &Options) -> Result<Opened, Refused> {
    let host = Host::live();
    let lang = options.language(&host);
    let timeout = options.deadline(&host).unwrap_or(PROFILE);
    let (reader, last_path) = host.traced();
    let asked = options.clone();
    let read = with_deadline(timeout, move || {
        let mut settings = Settings::read(&asked, &reader)?;
        enter(&mut settings, &reader)?;
        Ok(settings)
    });
    let settings = match read {
        Some(read) => read.map_err(|refusal| Refused { refusal, lang: Some(lang) })?,
        None => {
            return Err(Refused { refusal: unread(last_path.get(), timeout), lang: Some(lang) });
        }
    };
    let causes = catalogue_with(&settings.diagnose)
        .and_then(|catalogue| Ok((catalogue, RetryRules::of(&settings, catalogue)?)));
    let in_its_language = |refusal| Refused { refusal, lang: Some(settings.lang) };
    let (catalogue, retry_rules) = causes.map_err(in_its_language)?;
    let host = match &settings.host_root {
        Some(root) => host.with_root(root),
        None => host,
    };
    Ok(Opened { host, settings, catalogue, retry_rules })
}

/// Changes to the job's working folder, so that relative paths mean the same for us, the engine
/// and the ranks. A replayed node has no such folder.
fn enter(settings: &mut Settings, host: &Host) -> Result<(), Refusal> {
    let (Some(chdir), None) = (&mut settings.chdir, &settings.host_root) else { return Ok(()) };
    host.at(&chdir.value);
    let absolute = std::path::absolute(&chdir.value).unwrap_or_else(|_| chdir.value.clone());
    std::env::set_current_dir(&absolute).map_err(|error| {
        let (folder, source, Text { en, zh }) = (absolute.display(), &chdir.source, cause(&error));
        Refusal::new(
            Id::SettingsChdir,
            text!(
                "the working directory {folder} ({source}) cannot be entered: {en}",
                "无法进入工作目录 {folder}（{source}）：{zh}"
            ),
            text!(
                "mount the folder, or name another one with --chdir DIR",
                "请挂载该目录，或用 --chdir DIR 指定其他目录"
            ),
        )
    })?;
    chdir.value = absolute;
    Ok(())
}

fn unread(path: Option<PathBuf>, timeout: Duration) -> Refusal {
    let path = path.unwrap_or_default();
    let (path, seconds) = (path.display(), timeout.as_secs_f64());
    Refusal::new(
        Id::SettingsHung,
        text!(
            "{path}, where profile and program are searched for, does not answer within {seconds} s; its mount may be dead",
            "{path} 在 {seconds} 秒内无应答，而配置文件与程序需在此处查找；其挂载点可能已失效"
        ),
        text!(
            "name another profile with --profile, start in another folder, or take the folder out of PATH",
            "请用 --profile 指定其他配置文件、在其他目录中启动，或从 PATH 中去掉该目录"
        ),
    )
}

/// The catalogue with the rows of a profile; None if it has none, since the built-in one is
/// read only when a rank has written something. It lives as long as the process: threads that
/// read logs hold it, and a process has one profile.
///
/// # Errors
/// The first flaw of a row.
pub(super) fn catalogue_with(rows: &[Sourced<Row>]) -> Result<Option<&'static Catalogue>, Refusal> {
    if rows.is_empty() {
        return Ok(None);
    }
    let plain: Vec<Row> = rows.iter().map(|row| row.value.clone()).collect();
    match Catalogue::with(&plain) {
        Ok(catalogue) => Ok(Some(Box::leak(Box::new(catalogue)))),
        Err(flaw) => {
            let row = rows.iter().find(|row| row.value.id == flaw.id);
            Err(refused(&flaw, row.map(|row| &row.source)))
        }
    }
}

fn refused(flaw: &RowFlaw, source: Option<&Source>) -> Refusal {
    /// Characters of the value: an example may be a whole traceback.
    const SHOWN: usize = 200;
    let RowFlaw { id, key, value, problem, hint } = flaw;
    let place = source.map(Source::to_string).unwrap_or_default();
    let mut shown: String = value.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if value.chars().count() > SHOWN {
        shown.push('…');
    }
    let value = if shown.is_empty() { String::new() } else { format!("`{shown}` ") };
    let Text { en, zh } = problem;
    Refusal::new(
        Id::SettingsProfile,
        text!(
            "{place}: [[diagnose]] {id}: {key} {value}{en}",
            "{place}：[[diagnose]] {id}：{key} {value}{zh}"
        ),
        hint.clone(),
    )
}

/// Whether an attempt follows a cause, regardless of anything else known about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryRule {
    Always,
    Never,
    /// `--on-hang end`
    Ends,
}

/// The rules of `--retry-on` and `--no-retry-on` by the ids of causes and verdicts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RetryRules(BTreeMap<String, RetryRule>);

impl RetryRules {
    /// The rules of the settings. `extended`: the catalogue with the rows of a profile.
    ///
    /// # Errors
    /// An id that can end no attempt; an id for which one place says both.
    pub(super) fn of(
        settings: &Settings,
        extended: Option<&'static Catalogue>,
    ) -> Result<RetryRules, Refusal> {
        let of_hang = (settings.on_hang.value == Reaction::End)
            .then(|| (Id::Hang.as_str().to_owned(), RetryRule::Ends));
        if settings.retry_on.is_empty() && settings.no_retry_on.is_empty() {
            return Ok(RetryRules(of_hang.into_iter().collect()));
        }
        let catalogue = extended.unwrap_or_else(|| catalogue());
        let mut rules: BTreeMap<String, (RetryRule, &Source)> = BTreeMap::new();
        let all = settings
            .retry_on
            .iter()
            .map(|id| (RetryRule::Always, id))
            .chain(settings.no_retry_on.iter().map(|id| (RetryRule::Never, id)));
        for (rule, Sourced { value: id, source }) in all {
            if !is_cause(id, catalogue) {
                return Err(unknown(rule, id, source, catalogue));
            }
            match rules.get(id) {
                Some((_, at)) if at.is_stronger_than(source) => {}
                Some((other, at)) if *other != rule && !source.is_stronger_than(at) => {
                    return Err(both(id, at, source));
                }
                _ => {
                    rules.insert(id.clone(), (rule, source));
                }
            }
        }
        let stated = rules.into_iter().map(|(id, (rule, _))| (id, rule));
        Ok(RetryRules(of_hang.into_iter().chain(stated).collect()))
    }

    /// The rule for an id.
    pub(super) fn get(&self, id: &str) -> Option<RetryRule> {
        self.0.get(id).copied()
    }

    #[cfg(test)]
    pub(super) fn with(rules: &[(&str, RetryRule)]) -> RetryRules {
        RetryRules(rules.iter().map(|(id, rule)| ((*id).to_owned(), *rule)).collect())
    }
}

/// Ids of ends after which this process decides nothing, or that are not failures.
const NO_FAILURE: &[Id] = &[
    Id::Done,
    Id::StoppedSignal,
    Id::StoppedNotice,
    Id::InitExec,
    Id::AgentKilled,
    Id::AgentHung,
    Id::NodeOther,
];

/// The verdicts with which an attempt can fail.
fn verdicts() -> impl Iterator<Item = Id> {
    let ends = |id: &Id| {
        let uses = id.uses();
        uses.iter().any(|one| matches!(one, Use::Ends(_))) || *id == Id::EngineExec
    };
    Id::ALL.iter().copied().filter(ends).filter(|id| !NO_FAILURE.contains(id))
}

fn is_cause(id: &str, catalogue: &Catalogue) -> bool {
    catalogue.by_id(id).is_some() || verdicts().any(|verdict| verdict.as_str() == id)
}

fn unknown(rule: RetryRule, id: &str, source: &Source, catalogue: &Catalogue) -> Refusal {
    let (setting, key) = match rule {
        RetryRule::Always => (Id::SettingsRetryOn, "retry_on"),
        RetryRule::Never | RetryRule::Ends => (Id::SettingsNoRetryOn, "no_retry_on"),
    };
    let place = match source {
        _ if source.is_file() => format!("{source}: {key}"),
        _ => source.to_string(),
    };
    let rows = catalogue.rows().iter().map(|row| &*row.id);
    let hint = match nearest(id, rows.chain(verdicts().map(|id| -> &str { id.as_str() }))) {
        Some(near) => text!("did you mean {near}?", "是否想写 {near}？"),
        None => {
            let verdicts: Vec<&str> = verdicts().map(Id::as_str).collect();
            let verdicts = verdicts.join(", ");
            text!(
                "it takes the id of a cause, as ranklaunch explain LOG shows it (cuda_oom), of a row of [[diagnose]], or of a verdict: {verdicts}",
                "可用的有：原因的 ID（ranklaunch explain LOG 会显示，例如 cuda_oom）、[[diagnose]] 中的 id，或结论的 ID：{verdicts}"
            )
        }
    };
    Refusal::new(
        setting,
        text!(
            "{place} names `{id}`, which is not a cause of a failure",
            "{place} 中的 `{id}` 不是任何失败原因的 ID"
        ),
        hint,
    )
}

fn both(id: &str, one: &Source, other: &Source) -> Refusal {
    Refusal::new(
        Id::SettingsNoRetryOn,
        text!(
            "`{id}` is named both by {one} (start again) and by {other} (do not start again)",
            "`{id}` 同时出现在 {one}（重启）与 {other}（不重启）中"
        ),
        text!("name it in one of the two", "请只保留其中一个"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use settings::fixtures;

    #[test]
    fn flawed_row_is_refused_with_file_and_line() {
        let flaw = RowFlaw {
            id: "nan_loss".to_owned(),
            key: "patterns",
            value: "(\n".to_owned(),
            problem: text!("is not a regular expression", "不是合法的正则表达式"),
            hint: text!("write one", "请写一个"),
        };
        let source = Source::Profile { file: "job.toml".to_owned(), line: 7 };
        let refusal = refused(&flaw, Some(&source));
        assert_eq!(refusal.verdict.code(), 64);
        assert_eq!(
            refusal.text.en,
            "job.toml:7: [[diagnose]] nan_loss: patterns `(\\n` is not a regular expression"
        );
        let long = RowFlaw { value: "x".repeat(5000), ..flaw };
        assert!(refused(&long, Some(&source)).text.zh.chars().count() < 300);
    }

    fn rules(on: &[(&str, Source)], off: &[(&str, Source)]) -> Result<RetryRules, Refusal> {
        let list = |ids: &[(&str, Source)]| {
            ids.iter().map(|(id, source)| Sourced::new((*id).to_owned(), source.clone())).collect()
        };
        let (retry_on, no_retry_on) = (list(on), list(off));
        let settings = Settings { retry_on, no_retry_on, ..fixtures::undecided() };
        RetryRules::of(&settings, None)
    }

    #[test]
    fn retry_rule_from_the_stronger_source_wins() {
        let flag = |name: &str| Source::Flag(name.to_owned());
        let profile = || Source::Profile { file: "job.toml".to_owned(), line: 3 };
        let variable = || Source::Environment("RANKLAUNCH_RETRY_ON".to_owned());
        let found = rules(
            &[("cuda_oom", profile()), ("rank.exit", flag("--retry-on"))],
            &[
                ("cuda_oom", flag("--no-retry-on")),
                ("rank.exit", profile()),
                ("node.died", variable()),
            ],
        );
        let found = found.expect("sound rules");
        assert_eq!(found.get("cuda_oom"), Some(RetryRule::Never));
        assert_eq!(found.get("rank.exit"), Some(RetryRule::Always));
        assert_eq!(found.get("node.died"), Some(RetryRule::Never));
        assert_eq!(found.get("engine.exec"), None);

        let told = |refusal: Refusal| {
            assert_eq!(refusal.verdict.code(), 64);
            format!("{} [{}] {}", refusal.text.en, refusal.id, refusal.hint.en)
        };
        for (id, source, parts) in [
            (
                "cuda_ooom",
                flag("--retry-on"),
                ["--retry-on names `cuda_ooom`", "did you mean cuda_oom?"],
            ),
            ("rank-exit", profile(), ["job.toml:3: retry_on", "did you mean rank.exit?"]),
            ("rubbish", variable(), ["RANKLAUNCH_RETRY_ON names", "rank.exit, rank.signal"]),
            // Nothing starts again after these, or no process is left that could decide it.
            ("done", profile(), ["`done`, which is not a cause", ""]),
            ("agent.killed", profile(), ["not a cause", ""]),
        ] {
            let said = told(rules(&[(id, source)], &[]).expect_err(id));
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
            assert!(said.contains("[settings.retry_on]"), "{said}");
        }
        let twice = [("cuda_oom", flag("--retry-on"))];
        let said = told(rules(&twice, &[("cuda_oom", flag("--no-retry-on"))]).expect_err("both"));
        assert!(said.contains("--retry-on (start again) and by --no-retry-on"), "{said}");
    }
}
