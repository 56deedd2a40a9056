//! `engine_args`: which engine they are for.
//!
//! Takes the merged files and the chosen engine; gives the arguments to the settings, or says that they are dropped: a
//! layer writes them for the engine that it or a weaker one names, and a stronger layer may choose another one.

use super::Settings;
use super::locks::ENGINE_ARGS;
use super::profile::Profile;
use super::refuse::{quoted, usage};
use text::text;
use verdict::{Id, Refusal, Warning};

/// # Errors
/// The platform's file locks the arguments, and they are not those of the chosen engine.
pub(super) fn put(
    profile: &Profile,
    settings: &mut Settings,
    warnings: &mut Vec<Warning>,
) -> Result<(), Refusal> {
    let args = profile.engine_args.as_ref().filter(|args| !args.value.is_empty());
    let Some(args) = args else { return Ok(()) };
    let (chosen, chooser) = (settings.engine.value, &settings.engine.source);
    let meant = profile.engine_of_args.as_ref().map(|engine| engine.value.as_str());
    let Some(meant) = meant.filter(|meant| *meant != chosen.to_string()) else {
        settings.engine_args.clone_from(&args.value);
        return Ok(());
    };
    let (meant, place) = (quoted(meant.as_ref()), &args.source);
    if let Some(lock) = profile.locked.iter().find(|lock| lock.value == ENGINE_ARGS) {
        let lock = &lock.source;
        return Err(usage(
            Id::SettingsLocked,
            text!(
                "{chooser} sets engine to `{chosen}`, but {place} sets {ENGINE_ARGS} for {meant}, and {lock} locks them",
                "{chooser} 将 engine 设为 `{chosen}`，但 {place} 为 {meant} 设置了 {ENGINE_ARGS}，并由 {lock} 锁定"
            ),
            text!(
                "use the engine {meant}, or ask the platform's team to unlock {ENGINE_ARGS}",
                "请使用引擎 {meant}，或请平台团队解锁 {ENGINE_ARGS}"
            ),
        ));
    }
    warnings.push(Warning::new(
        Id::EngineArgs,
        text!(
            "{ENGINE_ARGS} of {place} are left out: they are for the engine {meant}, and {chooser} chooses {chosen}",
            "未采用 {place} 的 {ENGINE_ARGS}：它们用于引擎 {meant}，而 {chooser} 选择了 {chosen}"
        ),
        text!(
            "write the arguments for {chosen} beside its name: engine = \"{chosen}\", {ENGINE_ARGS} = […]",
            "请把 {chosen} 的参数与引擎写在一起：engine = \"{chosen}\"，{ENGINE_ARGS} = […]"
        ),
    ));
    settings.stated.retain(|one| one.key != ENGINE_ARGS);
    Ok(())
}
