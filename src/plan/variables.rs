//! Looks up the variables of the ranks, each with its source.
//!
//! Owns the order of strength: `--env` and `RANKLAUNCH_ENV`, the environment of the interpreter, the
//! container, NCCL's own configuration files. The profile only fills gaps of the container and these
//! files, before the interpreter's environment. Sets nothing itself.
//!
//! The container's variables are those of [`Facts::environment`], which must have every name
//! that the settings use.

use node::observe::Facts;
use settings::{EnvSetting, Settings, Source};

/// A variable of the ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    pub value: String,
    /// `environment`, `/etc/nccl.conf`, `--env`, `wan22.toml:3`.
    pub source: String,
}

/// Looks variables up in their order of strength.
#[derive(Debug, Clone, Copy)]
pub struct Variables<'a> {
    settings: &'a Settings,
    facts: &'a Facts,
}

impl<'a> Variables<'a> {
    pub fn new(settings: &'a Settings, facts: &'a Facts) -> Variables<'a> {
        Variables { settings, facts }
    }

    /// The variable `name`, an empty value included.
    pub fn get(&self, name: &str) -> Option<Variable> {
        let of = |setting: &EnvSetting| Variable {
            value: setting.value.to_string_lossy().into_owned(),
            source: setting.source.to_string(),
        };
        let outside = self.outside(name);
        let filled = self.setting(name, false).filter(|_| outside.is_none());
        let set = self.setting(name, true).or(filled).map(of);
        set.or_else(|| self.activated(name)).or(outside)
    }

    /// The value that activating the interpreter's environment sets; it replaces the container's value.
    fn activated(&self, name: &str) -> Option<Variable> {
        let python = &self.facts.python;
        let value = python.activation.get(name)?.clone();
        Some(Variable { value, source: python.found_by.clone() })
    }

    /// The value of the container or of NCCL's configuration files, regardless of our settings.
    pub fn outside(&self, name: &str) -> Option<Variable> {
        if let Some(value) = self.facts.environment.get(name) {
            return Some(Variable { value: value.clone(), source: "environment".to_owned() });
        }
        let setting = self.facts.network.nccl.iter().find(|setting| setting.name == name)?;
        Some(Variable { value: setting.value.clone(), source: setting.source.clone() })
    }

    /// The last setting of `name`, among those that override the container or those that do not.
    fn setting(&self, name: &str, overriding: bool) -> Option<&'a EnvSetting> {
        self.settings
            .env
            .iter()
            .rev()
            .find(|setting| setting.name == name && overrides(setting) == overriding)
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
}

/// Whether this setting wins over the container's; a profile's only fills gaps.
pub fn overrides(setting: &EnvSetting) -> bool {
    matches!(setting.source, Source::Flag(_) | Source::Environment(_))
}
