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
mod containers;
mod directives;
mod exports;
#[cfg(any(test, feature = "fixtures"))]
pub mod fuzz;
mod input;
mod launch;
mod lines;
mod manifest;
mod nested;
mod options;
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
pub use containers::{ContainerWord, Service, services};
pub use input::{InputKind, text_of};

use serde_json::Value;
use text::lang::{Lang, Text};
use text::text;

use adopted::{Answer, launches_of, lines_of, uncovered};
use programs::no_launch;
use script::Script;
use sizes::Files;
use words::quoted;

impl Adopted {
    /// Any file. `files` gives the text of a file of accelerate that a launch line names, or why there is none.
    ///
    /// # Errors
    /// No line of it is a launch, or the file starts nothing by its kind.
    pub fn of(name: &str, text: &str, files: Files<'_>) -> Result<Adopted, Text> {
        match InputKind::of(name, text) {
            InputKind::Script | InputKind::Unknown => Adopted::of_script(name, text, files),
            InputKind::Compose | InputKind::Manifest => Adopted::of_manifest(name, text, files),
            InputKind::Profile => Err(text!(
                "a profile is what a start-up script becomes: ranklaunch --profile {name} starts it",
                "启动脚本改写后就是配置文件：ranklaunch --profile {name} 即可启动"
            )),
            InputKind::AccelerateConfig => Err(text!(
                "a file of accelerate config starts nothing, and no launch line that was given names it",
                "accelerate config 的文件本身不启动任务，给出的启动命令也没有用到它"
            )),
        }
    }

    /// A shell script or an sbatch file.
    pub(crate) fn of_script(name: &str, text: &str, files: Files<'_>) -> Result<Adopted, Text> {
        let text = text.replace("\r\n", "\n");
        let file = profile::file_of(name);
        let script = Script::read(&text, &file, files);
        if script.launches.is_empty() {
            return Err(match script.unclosed {
                Some(unclosed) => {
                    let (line, open) = (unclosed.line + 1, unclosed.open);
                    text!(
                        "the {open} on line {line} is never closed, so nothing from there on is read; no line before it is a launch",
                        "第 {line} 行的 {open} 没有闭合，其后内容均未读取；此前没有启动命令"
                    )
                }
                None => no_launch(&text),
            });
        }
        let mut lines = lines_of(&script, 0);
        uncovered(&text, &mut lines);
        let profile = profile::of(&script, &file);
        let launches = launches_of(&script, 0);
        let answer = Answer { containers: Vec::new(), script: script.text, profile };
        Ok(Adopted { name: name.to_owned(), launches, answers: vec![answer], lines })
    }

    /// A command line, in words; gives also the line of a shell.
    ///
    /// # Errors
    /// It is no launch.
    pub fn of_command(words: &[String], files: Files<'_>) -> Result<(Adopted, String), Text> {
        let line: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let line = line.join(" ");
        let mut adopted = Adopted::of_script("ranklaunch", &line, files)?;
        let launcher = adopted.launches.first().map(|launch| launch.launcher);
        launcher.unwrap_or_default().clone_into(&mut adopted.name);
        Ok((adopted, line))
    }

    /// A Kubernetes manifest or a Compose file.
    pub(crate) fn of_manifest(name: &str, text: &str, files: Files<'_>) -> Result<Adopted, Text> {
        manifest::read(name, text, files)
    }

    /// For people: the replacement first, then every line with its class and why.
    pub fn plain(&self, lang: Lang) -> String {
        render::plain(self, lang)
    }

    /// `{"schema":1,"file":…,"launches":[…],"answers":[{"containers":…,"script":…,"profile":…}],"lines":[…]}`
    pub fn json(&self, lang: Lang) -> Value {
        render::json(self, lang)
    }
}
