//! Imports of a program before its first statement that could change anything, found by `scout.py`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use super::learned::{Learned, LeftOut};
use super::reasons;
use super::warming::{ReadAhead, Target, Warming};
use node::probe::run_tool;
use text::lang::Text;
use text::letters::is_hidden;
use text::text;

/// The result of `scout.py`.
#[derive(Debug, Clone, Deserialize)]
pub struct Scouted {
    /// `module`, or `module:name,name`, in the order of the program.
    pub modules: Vec<String>,
    /// The same with the program's actions between two imports, in the form that `sitecustomize.py` takes. It holds
    /// values of variables, so it is never shown.
    #[serde(default)]
    pub(super) steps: Vec<String>,
    /// The first statement that was not examined further; None if the program was read to its end.
    pub ends: Option<Ends>,
    aside: Option<Vec<String>>,
    /// Modules that earlier runs leave to the ranks.
    #[serde(skip)]
    learned: Vec<LeftOut>,
    /// Variables that the start of an interpreter sets for the programs that it starts.
    #[serde(default)]
    pub(super) coerced: BTreeMap<String, String>,
    /// The first folder of the program's `sys.path`; empty: none.
    #[serde(default)]
    pub(super) folder: String,
    /// The file of the program.
    #[serde(default)]
    pub(super) file: String,
}

/// A statement of the program.
#[derive(Debug, Clone, Deserialize)]
pub struct Ends {
    pub file: String,
    pub line: u32,
    why: Vec<String>,
}

impl Ends {
    pub fn why(&self) -> Text {
        reasons::of_end(&self.why.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

impl Scouted {
    /// Reasons from earlier runs, one line for each module that is left to the ranks because of them.
    pub fn learned(&self) -> impl Iterator<Item = Text> {
        self.learned.iter().map(|LeftOut { module, why, .. }| {
            let Text { en, zh } = reasons::of(&why.iter().map(String::as_str).collect::<Vec<_>>());
            text!(
                "each rank imports {module} by itself: in an earlier run, {en}",
                "{module} 由各 rank 自行导入：在之前的运行中，{zh}"
            )
        })
    }

    /// The imports in the form that `sitecustomize.py` takes.
    ///
    /// # Errors
    /// The reason why the interpreter cannot be warmed, or that there is nothing to import.
    pub(super) fn imports(&self) -> Result<String, Text> {
        if let Some(why) = &self.aside {
            return Err(reasons::of(&why.iter().map(String::as_str).collect::<Vec<_>>()));
        }
        if self.modules.is_empty() || self.steps.is_empty() {
            return Err(nothing_to_import(self.ends.as_ref()));
        }
        Ok(self.steps.join(" "))
    }
}

/// Asks an interpreter that runs nothing of the program. This also shows that the interpreter reads our files:
/// otherwise it would run the program itself where it is to be warmed.
///
/// # Errors
/// The reason why it did not answer.
pub(super) fn scout(warming: &Warming, within: Duration) -> Result<Scouted, Text> {
    let Some((interpreter, rest)) = warming.argv.split_first() else {
        return Err(reasons::no_answer());
    };
    // Every rank has -u, and no other option.
    let options = rest.iter().take(1).filter(|word| *word == "-u").map(|_| "-u");
    let args: Vec<&str> = options.chain(["-c", "pass"]).collect();
    let mut environment: Vec<(OsString, OsString)> = warming.environment().into_iter().collect();
    let (name, program) = match &warming.target {
        Target::Script(path) => ("RANKLAUNCH_WARM_SCRIPT", path),
        Target::Module(name) => ("RANKLAUNCH_WARM_MODULE", name),
    };
    // The answer goes to standard output, which nothing else uses.
    environment.push(("RANKLAUNCH_WARM_SCOUT".into(), "1".into()));
    environment.push((name.into(), program.clone()));
    environment.push(("RANKLAUNCH_WARM_ADDED".into(), warming.added.join(" ").into()));
    let mut learned = Learned::of(warming).left_out();
    learned.retain(|one| !warming.added.contains(&one.module));
    let left_out: Vec<&str> = warming.left_out.iter().map(String::as_str).collect();
    let left_out = left_out.into_iter().chain(learned.iter().map(|one| one.module.as_str()));
    let left_out = left_out.collect::<Vec<_>>().join(" ");
    environment.push(("RANKLAUNCH_WARM_LEFT_OUT".into(), left_out.into()));
    if let Some(ReadAhead { bound, after }) = &warming.ahead {
        environment.push(("RANKLAUNCH_WARM_AHEAD".into(), format!("{bound} {after}").into()));
    }
    let answer = run_tool(Path::new(interpreter), &args, &environment, within)
        .map_err(|error| reasons::not_started(error.text()))?;
    let mut scouted = read(&answer).ok_or_else(reasons::no_answer)?;
    scouted.learned = learned;
    Ok(scouted)
}

/// The answer of `scout.py`; None for anything else. A module is one word of a variable, in which blanks separate the
/// words.
pub(super) fn read(answer: &[u8]) -> Option<Scouted> {
    let scouted: Scouted = serde_json::from_slice(answer).ok()?;
    let is_word = |module: &String| {
        !module.is_empty() && !module.contains(|c: char| c.is_whitespace() || is_hidden(c))
    };
    scouted.modules.iter().chain(&scouted.steps).all(is_word).then_some(scouted)
}

fn nothing_to_import(ends: Option<&Ends>) -> Text {
    let Some(ends) = ends else {
        return text!("the program imports nothing", "程序没有导入任何模块");
    };
    let (file, line, Text { en, zh }) = (&ends.file, ends.line, ends.why());
    text!(
        "nothing is imported before {file}:{line} ({en})",
        "在 {file}:{line}（{zh}）之前没有导入任何模块"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_with_malformed_module_names_is_refused() {
        let answer =
            |modules: &str| format!(r#"{{"modules":[{modules}],"ends":null,"aside":null}}"#);
        let read = |modules: &str| read(answer(modules).as_bytes()).map(|one| one.modules);
        assert_eq!(read(r#""torch","a.b:c,d""#), Some(vec!["torch".into(), "a.b:c,d".into()]));
        for odd in [r#""a b""#, r#""torch","""#, r#""a\u0000""#, r#""a\n""#, "3"] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
