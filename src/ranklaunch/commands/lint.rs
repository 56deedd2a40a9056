//! `ranklaunch lint MANIFEST…`: reports mistakes in manifests that would fail at run time; `ranklaunch profile`:
//! lists, shows, creates and checks profiles.

use std::ffi::OsString;
use std::io::Read;

use super::output::{print, say, show};
use crate::open::{RetryRules, catalogue_with};
use linux::host::Host;
use plan::placeholders;
use report::closing;
use settings::cli::{Options, ProfileAction};
use settings::{KnownProfile, LayoutRule, Program, Settings, cli};
use text::lang::{Lang, cause};
use text::text;
use verdict::{Id, Refusal};

pub(crate) fn lint(asked: &cli::Lint, lang: Lang) -> Result<i32, Refusal> {
    Options { color: asked.color.clone(), ..Options::default() }.checked_color(&Host::live())?;
    let size = |raw: &OsString| {
        raw.to_str().and_then(lint::size).ok_or_else(|| {
            let shown = raw.to_string_lossy();
            Refusal::new(
                Id::SettingsValue,
                text!(
                    "--node-memory is '{shown}', not a size",
                    "--node-memory 的值为 '{shown}'，不是容量"
                ),
                text!("write a size such as 256Gi", "请写容量，例如 256Gi"),
            )
        })
    };
    let node_memory = asked.node_memory.as_ref().map(size).transpose()?;
    let knowledge = lint::Knowledge { misuse: plan::nccl::misuse, profiles: settings::EMBEDDED };
    let mut manifests = Vec::new();
    let mut unopened = Vec::new();
    for path in &asked.manifests {
        let name = path.to_string_lossy().into_owned();
        match read_manifest(path) {
            Ok(bytes) => manifests.push(lint::Manifest { name, bytes }),
            Err(error) => unopened.push(Refusal::new(
                Id::LintUnreadable,
                cause(&error).about(&name),
                text!(
                    "name a manifest, or - for standard input",
                    "请指定清单文件，或用 - 表示标准输入"
                ),
            )),
        }
    }
    let mut report = lint::lint(&manifests, lint::LintLimits { node_memory }, knowledge);
    report.refused.extend(unopened);
    match asked.format {
        cli::AnnotatedFormat::Text => show(&lint::plain(&report, lang)),
        cli::AnnotatedFormat::Json => print(format!("{:#}\n", lint::json(&report, lang))),
        cli::AnnotatedFormat::Github => print(lint::github(&report, lang)),
    }
    let code = report.exit_code();
    for refusal in &report.refused {
        say(&closing::refusal(refusal, code, lang));
    }
    Ok(code)
}

/// Reads one byte more than the limit, so that a file that is too large is recognised.
fn read_manifest(path: &std::ffi::OsStr) -> std::io::Result<Vec<u8>> {
    const MOST: u64 = lint::LARGEST as u64 + 1;
    let mut bytes = Vec::new();
    if path == "-" {
        std::io::stdin().lock().take(MOST).read_to_end(&mut bytes)?;
    } else {
        std::fs::File::open(path)?.take(MOST).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// The text that `profile new` prints.
const BEGINNING: &str = include_str!("../../../config/new.toml");

pub(crate) fn profile(action: &ProfileAction, lang: Lang) -> Result<i32, Refusal> {
    let host = Host::live();
    match action {
        ProfileAction::List => list(&host, lang),
        ProfileAction::New => print(BEGINNING),
        ProfileAction::Show { name } => {
            print(KnownProfile::text_of(&name.to_string_lossy(), &host)?);
        }
        ProfileAction::Check { name } => {
            let options = Options { profile: Some(name.clone()), ..Options::default() };
            let settings = Settings::read(&options, &host)?;
            RetryRules::of(&settings, catalogue_with(&settings.diagnose)?)?;
            print(said(&settings));
        }
    }
    Ok(0)
}

fn list(host: &Host, lang: Lang) {
    let known = KnownProfile::all(host);
    let wide = known.iter().map(|one| one.name.len()).max().unwrap_or(0);
    for KnownProfile { name, path, summary, is_default } in known {
        let place = match path {
            Some(path) => path.display().to_string(),
            None => text!("inside the executable", "内置").get(lang).to_owned(),
        };
        let mark = match is_default {
            true => text!(", used where no profile is named", "，未指定配置时使用"),
            false => text!("", ""),
        };
        print(format!("{name:wide$}  {place}{}\n", mark.get(lang)));
        if !summary.is_empty() {
            print(format!("{:wide$}  {summary}\n", ""));
        }
    }
}

/// The settings of a profile, together with the profiles that it extends.
fn said(settings: &Settings) -> String {
    let lang = settings.lang;
    let name = settings.profile.clone().unwrap_or_default();
    let program = match settings.program.as_ref().map(|program| &program.value) {
        Some(Program::Script { path, .. }) => path.to_string_lossy().into_owned(),
        Some(Program::Module { name, .. }) => format!("-m {name}"),
        Some(Program::Command { argv }) => {
            argv.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default()
        }
        None => text!("none; it is given after --", "无，由 -- 之后给出").get(lang).to_owned(),
    };
    let engine = settings.engine.value.to_string();
    let layout = match settings.layout.rule.value {
        LayoutRule::None => "none",
        LayoutRule::UlyssesWorld => "ulysses-world",
        LayoutRule::UlyssesRing => "ulysses-ring",
    };
    let mut out = text!(
        "{name} can be used: program {program}, engine {engine}, layout {layout}\n",
        "{name} 可用：程序 {program}，启动引擎 {engine}，布局 {layout}\n"
    )
    .get(lang)
    .to_owned();
    let program = settings.program.iter().flat_map(|program| program.value.args());
    let conditional = settings.args_if.rows.iter().flat_map(|row| &row.args);
    let mut words: Vec<OsString> = program.chain(conditional).cloned().collect();
    words.extend(settings.engine_args.iter().map(OsString::from));
    words.extend(settings.env.iter().map(|setting| setting.value.clone()));
    let names = settings.selects.iter().flat_map(|row| row.values.keys()).map(String::as_str);
    for warning in settings.warnings.iter().chain(&placeholders::unknown_in(&words, names)) {
        out.push_str(&closing::warning(warning, lang));
    }
    out
}
