//! Reads how a job is started today (a script, an sbatch file, a launcher's line, a manifest's command), and gives what
//! replaces it.
//!
//! Takes texts; gives the line or the profile of ranklaunch, and a class with its reason for every line of the input,
//! so that none is lost. Owns the reading of shell commands ([`shell`]), which `lint` uses as well. Runs nothing and
//! reads no file.

#![deny(unsafe_code)]

mod accelerate;
mod adopted;
mod classes;
mod commands;
mod exports;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod launch;
mod manifest;
mod profile;
mod programs;
mod remains;
mod render;
mod script;
pub mod shell;
mod sizes;
mod stays;
#[cfg(test)]
mod tests;
mod values;
mod words;

pub use adopted::Adopted;

use serde_json::Value;
use text::lang::Lang;

use adopted::{configs_of, launches_of, lines_of, uncovered};
use script::Script;
use words::quoted;

impl Adopted {
    /// A shell script or an sbatch file. None: it holds no launch line.
    pub fn of_script(name: &str, text: &str) -> Option<Adopted> {
        let text = text.strip_prefix('\u{FEFF}').unwrap_or(text).replace("\r\n", "\n");
        let file = profile::file_of(name);
        let script = Script::read(&text, &file);
        if script.launches.is_empty() {
            return None;
        }
        let mut lines = lines_of(&script, &text, 0);
        uncovered(&text, &mut lines);
        let profile = profile::of(&script, &file);
        let (launches, configs) = (launches_of(&script, 0), configs_of(&script));
        Some(Adopted {
            name: name.to_owned(),
            launches,
            profile,
            script: script.text,
            lines,
            configs,
        })
    }

    /// A command line, in words; gives also the line of a shell.
    pub fn of_command(words: &[String]) -> Option<(Adopted, String)> {
        let line: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let line = line.join(" ");
        let mut adopted = Adopted::of_script("ranklaunch", &line)?;
        let launcher = adopted.launches.first().map(|launch| launch.launcher);
        launcher.unwrap_or_default().clone_into(&mut adopted.name);
        Some((adopted, line))
    }

    /// A Kubernetes manifest or a Compose file. None: no command in it is a launch.
    pub fn of_manifest(name: &str, text: &str) -> Option<Adopted> {
        manifest::read(name, text)
    }

    /// For people: the replacement first, then every line with its class and why.
    pub fn plain(&self, lang: Lang) -> String {
        render::plain(self, lang)
    }

    /// `{"schema":1,"file":…,"launches":[…],"profile":…,"script":…,"lines":[…]}`
    pub fn json(&self, lang: Lang) -> Value {
        render::json(self, lang)
    }
}
