//! `engine_args` belong to the engine that their layer or a weaker one names.

use verdict::Id;

use super::site::Layers;
use super::*;

const ENGINES: [&str; 3] = ["torchrun", "accelerate", "deepspeed"];

/// `[job]` with these two keys, where they are given.
fn job(engine: Option<&str>, args: bool, own: &str) -> String {
    let engine = engine.map(|engine| format!("engine = '{engine}'\n")).unwrap_or_default();
    let args = if args { format!("engine_args = ['--of-{own}']\n") } else { String::new() };
    format!("[job]\n{engine}{args}")
}

/// An engine in any of the layers site, base, profile, variable and flag; arguments in the files among them.
fn layers(engines: &[Option<&str>; 5], args: [bool; 3], locked: bool) -> Layers {
    let lock = if locked { "locked = ['engine_args']\n" } else { "" };
    let site = lock.to_owned() + &job(engines[0], args[0], "site");
    let profile = format!("extends = './base.toml'\n{}", job(engines[2], args[2], "profile"));
    let mut layers = Layers::new(Some(&site), Some(&profile));
    std::fs::write(layers.path("base.toml"), job(engines[1], args[1], "base")).expect("written");
    if let Some(engine) = engines[3] {
        layers = layers.set("RANKLAUNCH_ENGINE", engine);
    }
    match engines[4] {
        Some(engine) => layers.typed(format!("--engine={engine}")),
        None => layers,
    }
}

proptest! {
    #[test]
    fn arguments_reach_only_the_engine_they_are_for(
        picks in prop::array::uniform5(prop::option::of(0..ENGINES.len())),
        args in prop::array::uniform3(any::<bool>()),
    ) {
        let engines = picks.map(|pick| pick.map(|pick| ENGINES[pick]));
        let settings = layers(&engines, args, false).read().expect("settings");
        let chosen = engines.iter().rev().flatten().next().copied().unwrap_or("torchrun");
        prop_assert_eq!(settings.engine.value.to_string(), chosen);
        let given = (0..3).rev().find(|at| args[*at]);
        let meant = given.and_then(|at| engines[..=at].iter().rev().flatten().next().copied());
        let is_for_it = meant.is_none_or(|meant| meant == chosen);
        let own = given.map(|at| format!("--of-{}", ["site", "base", "profile"][at]));
        let expected: Vec<String> = own.into_iter().filter(|_| is_for_it).collect();
        prop_assert_eq!(&settings.engine_args, &expected);
        let is_stated = settings.stated.iter().any(|one| one.key == "engine_args");
        prop_assert_eq!(is_stated, !expected.is_empty());
        let told: Vec<_> =
            settings.warnings.iter().filter(|one| one.id == Id::EngineArgs).collect();
        prop_assert_eq!(told.len(), usize::from(given.is_some() && !is_for_it));
        for warning in told {
            for text in [&warning.text.en, &warning.text.zh] {
                prop_assert!(text.contains(&format!("`{}`", meant.expect("one"))), "{}", text);
                prop_assert!(text.contains(chosen) && text.contains(".toml:"), "{}", text);
            }
        }
    }

    /// The platform's arguments that it locks are those of every job, or the job does not start.
    #[test]
    fn locked_arguments_refuse_another_engine(
        picks in prop::array::uniform4(prop::option::of(0..ENGINES.len())),
    ) {
        let [base, profile, variable, flag] = picks.map(|pick| pick.map(|pick| ENGINES[pick]));
        let engines = [Some("accelerate"), base, profile, variable, flag];
        let chosen = engines.iter().rev().flatten().next().copied();
        match layers(&engines, [true, false, false], true).read() {
            Ok(settings) => {
                prop_assert_eq!(chosen, Some("accelerate"));
                prop_assert_eq!(&settings.engine_args, &["--of-site"]);
            }
            Err(refusal) => {
                prop_assert_ne!(chosen, Some("accelerate"));
                prop_assert_eq!((refusal.verdict.code(), refusal.id), (64, Id::SettingsLocked));
                let parts = ["engine_args", "`accelerate`", "site.toml:1", "site.toml:4"];
                for text in [&refusal.text.en, &refusal.text.zh] {
                    prop_assert!(parts.iter().all(|part| text.contains(part)), "{}", text);
                }
            }
        }
    }
}
