//! The launchers that a container starts, with the sizes that their commands give.
//!
//! Owns the results of [`super::command`], and the layout rules of scripts in the embedded
//! profiles.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::rc::Rc;

use adopt::shell::Word;
use settings::arguments::OptionPosition;
use settings::cli;
use settings::launchers::{FlagField, LauncherKind};
use settings::{LayoutRule, Program, Settings};
use text::lang::Text;
use verdict::Refusal;

/// The embedded profiles, by name.
pub(super) type Profiles = &'static [(&'static str, &'static str)];

/// The launchers that lint distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Launcher {
    Torchrun,
    Accelerate,
    Deepspeed,
    Ranklaunch,
    /// A Python script without any launcher.
    Python,
}

impl Launcher {
    /// None for launchers whose flags are not read.
    pub(super) fn of(kind: LauncherKind) -> Option<Launcher> {
        match kind {
            LauncherKind::Torchrun => Some(Launcher::Torchrun),
            LauncherKind::Accelerate => Some(Launcher::Accelerate),
            LauncherKind::Deepspeed => Some(Launcher::Deepspeed),
            LauncherKind::PerGpu | LauncherKind::Anywhere | LauncherKind::Daemon => None,
        }
    }
}

/// The command of a launcher.
#[derive(Debug, Clone)]
pub(super) struct LaunchCommand {
    pub(super) launcher: Launcher,
    pub(super) line: usize,
    pub(super) stated: BTreeMap<FlagField, Word>,
    pub(super) script: Option<Word>,
    /// The script's own arguments.
    pub(super) args: Vec<Word>,
    /// The settings of ranklaunch from its command line and profile; None if they are known only
    /// in the running pod.
    pub(super) settings: Option<Rc<Settings>>,
    /// What starts this one: srun and its options on all nodes, or a program for a container or another host.
    pub(super) under: Vec<Word>,
}

impl LaunchCommand {
    pub(super) fn of(launcher: Launcher, line: usize) -> LaunchCommand {
        let (stated, args) = (BTreeMap::new(), Vec::new());
        let under = Vec::new();
        LaunchCommand { launcher, line, stated, script: None, args, settings: None, under }
    }

    pub(super) fn get(&self, field: FlagField) -> Option<&Word> {
        self.stated.get(&field)
    }

    /// The source of a value, if it is not the command line: ` (zimdb.toml:11)`.
    pub(super) fn source(&self, field: FlagField) -> String {
        // Beside a value that is known only at run time the settings have that of the profile, which it replaces.
        let is_settings = self.get(field).is_none_or(Word::is_plain);
        let Some(settings) = self.settings.as_ref().filter(|_| is_settings) else {
            return String::new();
        };
        let source = match field {
            FlagField::Nnodes => {
                let count = settings.nnodes.as_ref().map(|nodes| &nodes.source);
                count.or(settings.nodes.as_ref().map(|list| &list.source))
            }
            FlagField::Nproc => Some(&settings.nproc_per_node.source),
            FlagField::Spares => Some(&settings.spares.source),
            _ => None,
        };
        match source {
            Some(source) if source.is_file() => format!(" ({source})"),
            _ => String::new(),
        }
    }

    /// The value of one of the script's own arguments, as argparse reads them.
    pub(super) fn argument(&self, names: &[&str], is_value: fn(&OsStr) -> bool) -> Option<Word> {
        let words = self.words();
        let OptionPosition { value, from, .. } = OptionPosition::of(&words, names, is_value)?;
        let word = self.args.get(value)?;
        Some(word.part(word.text().get(from..)?))
    }

    /// The script's own arguments, up to a bare `--`.
    pub(super) fn words(&self) -> Vec<&str> {
        self.args.iter().map(Word::text).take_while(|word| *word != "--").collect()
    }
}

/// A part that is decided at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unread {
    pub(super) line: usize,
    pub(super) text: Text,
}

/// Everything that a container starts.
#[derive(Debug, Default)]
pub(super) struct StartedPrograms {
    pub(super) launches: Vec<LaunchCommand>,
    pub(super) unread: Vec<Unread>,
    /// Variables that a script sets: name, value, line.
    pub(super) exports: Vec<(String, Word)>,
    /// Arguments that ranklaunch itself refuses, with its text.
    pub(super) refused: Vec<Unread>,
    /// The container starts a model server, which loads no training data and needs no launcher.
    pub(super) serves: bool,
    /// Lines of comments that cut a launcher's command before its options.
    pub(super) cut: Vec<usize>,
    /// Lines of ranklaunch commands that do not receive the container's signals because of a
    /// shell.
    pub(super) behind_shell: Vec<usize>,
    /// Words behind the script of `sh -c` that the script does not read.
    pub(super) lost: Vec<LostWord>,
    /// The options that Slurm reads in the script (`#SBATCH --nodes=2`).
    pub(super) directives: Vec<Word>,
}

/// The first word behind the one item that `sh -c` runs.
#[derive(Debug)]
pub(super) struct LostWord {
    pub(super) script: String,
    pub(super) word: Word,
}

/// A profile with a layout rule.
#[derive(Debug)]
pub(super) struct ProfileLayout {
    profile: String,
    script: String,
    pub(super) settings: Settings,
}

/// The profiles with a layout rule, so that a script's assertion is written in only one place.
pub(super) fn layouts(profiles: Profiles) -> Vec<ProfileLayout> {
    profiles.iter().filter_map(|(name, _)| layout(name, profiles)).collect()
}

/// The layout of a launch's script.
pub(super) fn layout_of<'a>(
    layouts: &'a [ProfileLayout],
    launch: &LaunchCommand,
    profile: Option<&str>,
) -> Option<&'a ProfileLayout> {
    let script = launch.script.as_ref().map(|script| base(script.text()));
    layouts.iter().find(|layout| {
        script.map_or(profile == Some(layout.profile.as_str()), |script| script == layout.script)
    })
}

/// The layout of a profile alone.
fn layout(name: &str, profiles: Profiles) -> Option<ProfileLayout> {
    let options = cli::Options { profile: Some(name.into()), ..cli::Options::default() };
    let settings = settings(&options, BTreeMap::new(), profiles).ok()?;
    if settings.layout.rule.value == LayoutRule::None {
        return None;
    }
    let script = match &settings.program.as_ref()?.value {
        Program::Script { path, .. } => Path::new(path).file_name()?.to_str()?.to_owned(),
        _ => return None,
    };
    Some(ProfileLayout { profile: name.to_owned(), script, settings })
}

/// The settings of ranklaunch from a command line and literal variables, without the files of the
/// pod. Refused as well if these sources are not enough, such as with a profile in the image.
pub(super) fn settings(
    options: &cli::Options,
    variables: BTreeMap<OsString, OsString>,
    profiles: Profiles,
) -> Result<Settings, Refusal> {
    Settings::without_files(options, variables, profiles)
}

/// The value of the last option of this name, as getopt reads it: `-N 6`, `-N6`, `--nodes 6`, `--nodes=6`. Empty where it
/// has none.
pub(super) fn option(words: &[Word], short: &str, long: &str, is_valued: bool) -> Option<Word> {
    let (at, word) = words.iter().enumerate().rev().find(|(_, word)| {
        let name = word.text().split('=').next().unwrap_or_default();
        name == long || (!short.is_empty() && word.text().starts_with(short))
    })?;
    let text = word.text();
    let attached = match text.strip_prefix(long) {
        Some(rest) => rest,
        None => text.strip_prefix(short).unwrap_or_default(),
    };
    let attached = word.part(attached.trim_start_matches('='));
    let next = words.get(at + 1).filter(|_| is_valued && attached.text().is_empty());
    Some(next.cloned().unwrap_or(attached))
}

/// The file name of a path.
pub(super) fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
