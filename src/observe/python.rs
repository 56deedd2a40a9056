use super::PythonFacts;
use crate::host::Host;
use crate::settings::Settings;
use std::path::PathBuf;
pub fn python(_host: &Host, _settings: &Settings) -> PythonFacts {
    PythonFacts::default()
}
pub fn checkpoint_heads(_host: &Host, _settings: &Settings) -> Option<(u32, PathBuf)> {
    None
}
