//! Settings and host of a command, read within a deadline.

use std::path::PathBuf;
use std::time::Duration;

use crate::cli::Options;
use crate::deadline::with_deadline;
use crate::host::Host;
use crate::lang::Lang;
use crate::settings::{self, Settings};
use crate::text;
use crate::verdict::{Id, Refusal};

/// How long a profile and the places where one may lie may take to answer, without
/// a `--deadline`.
const PROFILE: Duration = Duration::from_secs(30);

/// The host and the settings, or the refusal and the language to say it in.
#[tracing::instrument(name = "settings", skip_all)]
pub(super) fn open(options: &Options) -> Result<(Host, Settings), (Refusal, Lang)> {
    let host = Host::live();
    let lang = settings::language(options, &host);
    let patience = settings::deadline(options, &host).unwrap_or(PROFILE);
    let (reader, trail) = host.traced();
    let asked = options.clone();
    let read = with_deadline(patience, move || {
        let mut settings = settings::read(&asked, &reader)?;
        enter(&mut settings, &reader)?;
        Ok(settings)
    });
    let settings = match read {
        Some(read) => read.map_err(|refusal| (refusal, lang))?,
        None => return Err((unread(trail.last(), patience), lang)),
    };
    let host = match &settings.host_root {
        Some(root) => host.with_root(root),
        None => host,
    };
    Ok((host, settings))
}

/// Goes to the folder in which the job works: whatever is relative counts from there, for
/// us, for the engine and for the ranks. A copied node has no such folder.
fn enter(settings: &mut Settings, host: &Host) -> Result<(), Refusal> {
    let (Some(chdir), None) = (&mut settings.chdir, &settings.host_root) else { return Ok(()) };
    host.at(&chdir.value);
    let absolute = std::path::absolute(&chdir.value).unwrap_or_else(|_| chdir.value.clone());
    std::env::set_current_dir(&absolute).map_err(|error| {
        let (folder, source) = (absolute.display(), &chdir.source);
        Refusal::new(
            Id::SettingsChdir,
            text!(
                "the working directory {folder} ({source}) cannot be entered: {error}",
                "无法进入工作目录 {folder}（{source}）：{error}"
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

fn unread(path: Option<PathBuf>, patience: Duration) -> Refusal {
    let path = path.unwrap_or_default();
    let (path, seconds) = (path.display(), patience.as_secs_f64());
    Refusal::new(
        Id::SettingsHung,
        text!(
            "{path} does not answer within {seconds} s, and profile and program are looked for there: is its mount dead?",
            "{path} 在 {seconds} 秒内无应答，而配置与程序需在此处查找：其挂载点是否失效？"
        ),
        text!(
            "name another profile with --profile, start in another folder, or take the folder out of PATH",
            "请用 --profile 指定其他配置、在其他目录中启动，或从 PATH 中去掉该目录"
        ),
    )
}
