//! Imports of a program before its first statement that could change anything, found by `scout.py`.
//!
//! Takes a [`Warming`]: a command line, an environment, and the program in it. Gives a [`Scouted`], without the modules
//! after whose import the interpreter could not be forked in earlier runs of the program: a later run leaves them to the
//! ranks, and forks with the others. This knowledge ([`Learned`]) is one JSON file in the user's cache folder. A file
//! that is missing, broken or without an owner counts as empty; a file that cannot be written is done without.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::reasons;
use linux::deadline::{io_with_deadline, with_deadline};
use linux::regular_file;
use linux::sys::Dispositions;
use node::probe::run_tool;
use text::lang::Text;
use text::letters::is_hidden;
use text::text;

/// The program of the ranks.
#[derive(Debug, Clone)]
pub enum Target {
    Script(OsString),
    Module(OsString),
}

/// Settings for reading files ahead.
#[derive(Debug)]
pub struct ReadAhead {
    /// Bytes that may be read.
    pub bound: u64,
    /// A module that is imported after all others, that of the engine; may be empty.
    pub after: String,
}

/// Input of a warm start.
#[derive(Debug)]
pub struct Warming {
    /// The whole command line of a rank, interpreter and options first.
    pub argv: Vec<OsString>,
    pub target: Target,
    /// Modules that are imported as well, and modules that are left out, each with its contents.
    pub added: Vec<String>,
    pub left_out: Vec<String>,
    /// A file for the knowledge of this run that later runs use, if there is a place for it.
    pub memory: Option<PathBuf>,
    pub ahead: Option<ReadAhead>,
    /// An engine that is Python starts the ranks.
    pub below_python: bool,
    /// The environment of the ranks, as far as it is known.
    pub environment: BTreeMap<OsString, OsString>,
    pub dispositions: Dispositions,
    /// A folder for the files that the interpreter imports, which does not exist yet.
    pub folder: PathBuf,
}

impl Warming {
    /// The command line without the arguments of the program, which may name the run, or values that the nodes
    /// agree on.
    pub(super) fn program(&self) -> &[OsString] {
        let words = match self.target {
            Target::Script(_) => 3,
            Target::Module(_) => 4,
        };
        self.argv.get(..words).unwrap_or(&self.argv)
    }

    /// The environment of the ranks with our folder before PYTHONPATH.
    pub(super) fn environment(&self) -> BTreeMap<OsString, OsString> {
        let mut environment = self.environment.clone();
        let mut path = self.folder.clone().into_os_string();
        // An empty PYTHONPATH names no folder, but an empty entry would be the working directory.
        let users = environment.get(std::ffi::OsStr::new("PYTHONPATH"));
        if let Some(users) = users.filter(|users| !users.is_empty()) {
            path.push(":");
            path.push(users);
        }
        environment.insert("PYTHONPATH".into(), path);
        environment
    }
}

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
        reasons::of_end(&words(&self.why))
    }
}

impl Scouted {
    /// Reasons from earlier runs, one line for each module that is left to the ranks because of them.
    pub fn learned(&self) -> impl Iterator<Item = Text> {
        self.learned.iter().map(|LeftOut { module, why, .. }| {
            let Text { en, zh } = reasons::of(&words(why));
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
            return Err(reasons::of(&words(why)));
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
    let mut learned = Learned::of(warming).left_out();
    learned.retain(|one| !warming.added.contains(&one.module));
    let left_out = warming.left_out.iter().chain(learned.iter().map(|one| &one.module));
    let left_out = left_out.map(String::as_str).collect::<Vec<_>>().join(" ");
    let ahead = warming.ahead.as_ref().map(|ReadAhead { bound, after }| format!("{bound} {after}"));
    for (name, value) in [
        ("RANKLAUNCH_WARM_SCOUT", Some("1".into())),
        (name, Some(program.clone())),
        ("RANKLAUNCH_WARM_ADDED", Some(warming.added.join(" ").into())),
        ("RANKLAUNCH_WARM_LEFT_OUT", Some(left_out.into())),
        ("RANKLAUNCH_WARM_AHEAD", ahead.map(OsString::from)),
    ] {
        environment.extend(value.map(|value| (name.into(), value)));
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

fn words(why: &[String]) -> Vec<&str> {
    why.iter().map(String::as_str).collect()
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

/// Time for which a module is left out. The next run tries the module again, since it may be another version by then.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of programs that are remembered, the latest ones.
const MOST: usize = 100;
/// Time limit for the file: its mount may be dead.
const ANSWERS: Duration = Duration::from_secs(2);
/// Maximum bytes that are read.
const LARGEST: u64 = 1 << 20;

/// A module that is left to the ranks.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct LeftOut {
    module: String,
    /// The reason in the words of `sitecustomize.py`.
    why: Vec<String>,
    /// Time in seconds since 1970.
    at: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Known {
    interpreter: PathBuf,
    /// The path of the script, or the name of the module.
    program: PathBuf,
    left_out: Vec<LeftOut>,
}

/// The knowledge about one program below one interpreter.
#[derive(Debug, Clone)]
pub(super) struct Learned {
    file: Option<PathBuf>,
    interpreter: PathBuf,
    program: PathBuf,
}

impl Learned {
    pub(super) fn of(warming: &Warming) -> Learned {
        let program = match &warming.target {
            Target::Script(path) => std::path::absolute(path).unwrap_or_else(|_| path.into()),
            Target::Module(name) => name.into(),
        };
        // A link tells the environment to which it belongs.
        let interpreter = warming.argv.first().map(PathBuf::from).unwrap_or_default();
        Learned { file: warming.memory.clone(), interpreter, program }
    }

    fn left_out(&self) -> Vec<LeftOut> {
        let Some(file) = self.file.clone() else { return Vec::new() };
        let known = with_deadline(ANSWERS, move || known(&file)).unwrap_or_default();
        known.into_iter().find(|known| self.is_of(known)).map_or(Vec::new(), |known| known.left_out)
    }

    /// Leaves out these modules from the next run on.
    ///
    /// # Errors
    /// The reason why the knowledge cannot be kept.
    pub(super) fn leave_out(&self, modules: &[String], why: &[&str]) -> io::Result<()> {
        let Some(file) = self.file.clone().filter(|_| !modules.is_empty()) else { return Ok(()) };
        let why: Vec<String> = why.iter().map(|word| (*word).to_owned()).collect();
        let one = |module: &String| LeftOut { module: module.clone(), why: why.clone(), at: now() };
        let (of, new) = (self.clone(), modules.iter().map(one).collect());
        io_with_deadline(ANSWERS, move || of.write(&file, new))
    }

    fn write(self, file: &Path, new: Vec<LeftOut>) -> io::Result<()> {
        let mut known = known(file);
        let at = known.iter().position(|known| self.is_of(known));
        let mut left_out = at.map_or(Vec::new(), |at| known.remove(at).left_out);
        left_out.retain(|one| new.iter().all(|new| new.module != one.module));
        left_out.extend(new);
        let Learned { interpreter, program, .. } = self;
        known.insert(0, Known { interpreter, program, left_out });
        known.truncate(MOST);
        fs::create_dir_all(file.parent().ok_or(io::ErrorKind::NotFound)?)?;
        regular_file::replace(file, &serde_json::to_vec(&known)?)
    }

    fn is_of(&self, known: &Known) -> bool {
        known.interpreter == self.interpreter && known.program == self.program
    }
}

fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

fn known(file: &Path) -> Vec<Known> {
    let text = regular_file::read(file, LARGEST).unwrap_or_default();
    let mut known: Vec<Known> = serde_json::from_slice(&text).unwrap_or_default();
    let is_young = |one: &LeftOut| now().saturating_sub(one.at) < KEPT.as_secs();
    // A name in the file may be anything, and is printed.
    let is_name = |one: &LeftOut| !one.module.contains(is_hidden);
    for known in &mut known {
        known.left_out.retain(|one| is_young(one) && is_name(one));
        let words = known.left_out.iter_mut().flat_map(|one| &mut one.why);
        words.for_each(|word| *word = word.replace(is_hidden, " "));
    }
    known.retain(|known| !known.left_out.is_empty());
    known
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

    #[test]
    fn empty_pythonpath_adds_no_working_directory() {
        let path = |users: &str| {
            let warming = Warming {
                argv: Vec::new(),
                target: Target::Module("train".into()),
                added: Vec::new(),
                left_out: Vec::new(),
                memory: None,
                ahead: None,
                below_python: false,
                environment: [("PYTHONPATH".into(), users.into())].into(),
                dispositions: Dispositions::inherited(),
                folder: "/ours".into(),
            };
            warming.environment().remove(std::ffi::OsStr::new("PYTHONPATH"))
        };
        assert_eq!(path(""), Some("/ours".into()));
        assert_eq!(path("/a:/b"), Some("/ours:/a:/b".into()));
    }
}
