//! Input of a warm start: a command line, an environment, and the program in it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use linux::sys::Dispositions;

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

#[cfg(test)]
mod tests {
    use super::*;

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
