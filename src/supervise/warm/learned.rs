//! Knowledge from earlier runs of a program: modules after whose import the interpreter could not be forked. A later
//! run leaves them to the ranks, and forks with the others.
//!
//! One JSON file in the user's cache folder. A file that is missing, broken or without an owner counts as empty; a
//! file that cannot be written is done without.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::warming::{Target, Warming};
use linux::deadline::{io_with_deadline, with_deadline};
use linux::regular_file;
use text::letters::is_hidden;

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
pub(super) struct LeftOut {
    pub(super) module: String,
    /// The reason in the words of `sitecustomize.py`.
    pub(super) why: Vec<String>,
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

    pub(super) fn left_out(&self) -> Vec<LeftOut> {
        let Some(file) = self.file.clone() else { return Vec::new() };
        let known = with_deadline(ANSWERS, move || read(&file)).unwrap_or_default();
        known.into_iter().find(|known| self.is_of(known)).map_or(Vec::new(), |known| known.left_out)
    }

    /// Leaves out these modules from the next run on.
    ///
    /// # Errors
    /// The reason why the knowledge cannot be kept.
    pub(super) fn leave_out(&self, modules: &[String], why: &[&str]) -> io::Result<()> {
        let Some(file) = self.file.clone().filter(|_| !modules.is_empty()) else { return Ok(()) };
        let (of, modules) = (self.clone(), modules.to_vec());
        let why: Vec<String> = why.iter().map(|word| (*word).to_owned()).collect();
        io_with_deadline(ANSWERS, move || of.write(&file, &modules, &why))
    }

    fn write(&self, file: &Path, modules: &[String], why: &[String]) -> io::Result<()> {
        let mut known = read(file);
        let mut left_out = match known.iter().position(|known| self.is_of(known)) {
            Some(at) => known.remove(at).left_out,
            None => Vec::new(),
        };
        left_out.retain(|one| !modules.contains(&one.module));
        let one =
            |module: &String| LeftOut { module: module.clone(), why: why.to_vec(), at: now() };
        left_out.extend(modules.iter().map(one));
        let (interpreter, program) = (self.interpreter.clone(), self.program.clone());
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

fn read(file: &Path) -> Vec<Known> {
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
