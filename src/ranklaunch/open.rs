//! Opens the host and reads the settings of a command within a deadline.

use std::path::PathBuf;
use std::time::Duration;

use super::causes::{RetryRules, catalogue_with};
use diagnose::Catalogue;
use linux::deadline::with_deadline;
use linux::host::Host;
use settings::Settings;
use settings::cli::Options;
use text::lang::{Lang, Text, cause};
use text::text;
use verdict::{Id, Refusal};

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
pub(super) fn open(options: &Options) -> Result<Opened, (Refusal, Lang)> {
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
        Some(read) => read.map_err(|refusal| (refusal, lang))?,
        None => return Err((unread(last_path.get(), timeout), lang)),
    };
    let causes = catalogue_with(&settings.diagnose)
        .and_then(|catalogue| Ok((catalogue, RetryRules::of(&settings, catalogue)?)));
    let (catalogue, retry_rules) = causes.map_err(|refusal| (refusal, settings.lang))?;
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
