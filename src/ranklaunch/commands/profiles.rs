//! `ranklaunch profile`: lists, shows, creates and checks profiles.

use std::ffi::OsString;

use super::output::{print, refuse};
use crate::causes::{RetryRules, catalogue_with};
use linux::host::Host;
use plan::placeholders;
use report::closing;
use settings::cli::{Options, ProfileAction};
use settings::{KnownProfile, LayoutRule, Program, Settings};
use text::lang::Lang;
use text::text;

/// The text that `profile new` prints.
const BEGINNING: &str = include_str!("../../../config/new.toml");

pub(crate) fn profile(action: &ProfileAction) -> i32 {
    let host = Host::live();
    let lang = Options::default().language(&host);
    match action {
        ProfileAction::List => list(&host, lang),
        ProfileAction::New => print(BEGINNING),
        ProfileAction::Show { name } => match KnownProfile::text_of(&name.to_string_lossy(), &host)
        {
            Ok(text) => print(text),
            Err(refusal) => return refuse(&refusal, lang),
        },
        ProfileAction::Check { name } => {
            let options = Options { profile: Some(name.clone()), ..Options::default() };
            let read = Settings::read(&options, &host);
            match read.and_then(|read| {
                catalogue_with(&read.diagnose)
                    .and_then(|known| RetryRules::of(&read, known))
                    .map(|_| read)
            }) {
                Ok(settings) => print(said(&settings)),
                Err(refusal) => return refuse(&refusal, lang),
            }
        }
    }
    0
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
