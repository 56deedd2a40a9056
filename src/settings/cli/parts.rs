//! Tells the parts of a command line: the words of this program, and those of the program that it starts.
//!
//! As in torchrun the first word that is a `.py` file, or the module of `-m`, ends the options: what stands behind it
//! is the program's, whatever it looks like. `--` does the same for any program. Only an option's value may stand in
//! between. Reads no file: a name decides.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, Command};

use super::foreign::{self, Meaning};

/// The commands that take a program, the one without a subcommand first.
const LAUNCHING: &[&str] = &["ranklaunch", "run", "plan", "check", "clean"];

/// The parts of the words behind the name of this program.
#[derive(Debug)]
pub(super) struct Parts<'c> {
    /// Where the words of this program end.
    pub(super) end: usize,
    /// Where the program begins: behind `--`, at a script, or behind a module's name. None if no word names one.
    pub(super) program: Option<usize>,
    /// The command that the words name.
    pub(super) command: &'c Command,
    pub(super) subcommand: Option<usize>,
    /// `-m`, as the switch that it is for torchrun, and the module's name behind other options.
    pub(super) apart: Option<(usize, usize)>,
    /// The option that lacks its value at the end.
    pub(super) awaits: Option<String>,
}

impl<'c> Parts<'c> {
    pub(super) fn of(words: &[OsString], root: &'c Command) -> Parts<'c> {
        let dashes = words.iter().position(|word| word == "--");
        let mut parts = Parts {
            end: dashes.unwrap_or(words.len()),
            program: dashes.map(|at| at + 1),
            command: root,
            subcommand: None,
            apart: None,
            awaits: None,
        };
        let mut switch = None;
        let mut is_named = false;
        let mut at = 0;
        while let Some(word) = words.get(at).filter(|_| at < parts.end) {
            at += 1;
            let launching = launches(parts.command);
            let Some(given) = TypedOption::of(word) else {
                let below = word.to_str().and_then(|word| parts.command.find_subcommand(word));
                match (switch, below) {
                    (Some(switch), _) => {
                        parts.apart = Some((switch, at - 1));
                        return parts.with_module(words, at);
                    }
                    (None, Some(below)) if !is_named => {
                        parts.command = below;
                        parts.subcommand = parts.subcommand.or(Some(at - 1));
                    }
                    _ if !launching => is_named = true,
                    _ if !is_named && word.as_bytes().ends_with(b".py") => {
                        (parts.end, parts.program) = (at - 1, Some(at - 1));
                        return parts;
                    }
                    _ => is_named = true,
                }
                continue;
            };
            let name = given.ours(root);
            let is_module = launching && !is_named && matches!(&*name, "m" | "module");
            let next = words.get(at).filter(|_| at < parts.end);
            if launching && !is_named && is_attached_module(word)
                || is_module && given.value.is_some()
            {
                return parts.with_module(words, at);
            }
            if given.value.is_some() || !takes_value(parts.command, root, &name) {
                continue;
            }
            match next {
                // The module's name stands behind `--`.
                None if is_module && dashes.is_some() => switch = Some(at - 1),
                None => parts.awaits = Some(name),
                Some(next) if is_module && next.as_bytes().starts_with(b"-") => {
                    switch = Some(at - 1)
                }
                Some(_) if is_module => return parts.with_module(words, at + 1),
                Some(_) => at += 1,
            }
        }
        if let (Some(switch), Some(name)) = (switch, parts.program.filter(|at| *at < words.len())) {
            (parts.apart, parts.program) = (Some((switch, name)), Some(name + 1));
        }
        parts
    }

    /// The options end here, behind a module's name. A `--` that follows only separates.
    fn with_module(self, words: &[OsString], end: usize) -> Parts<'c> {
        let separates = words.get(end).is_some_and(|word| word == "--");
        Parts { end, program: Some(end + usize::from(separates)), ..self }
    }
}

pub(super) fn launches(command: &Command) -> bool {
    LAUNCHING.contains(&command.get_name())
}

/// `-mpackage.train`
fn is_attached_module(word: &OsStr) -> bool {
    let name = word.as_bytes().strip_prefix(b"-m").and_then(<[u8]>::first);
    name.is_some_and(|first| *first != b'=')
}

fn takes_value(command: &Command, root: &Command, name: &str) -> bool {
    let known = option(command, name).or_else(|| option(root, name));
    known.is_some_and(|known| known.get_action().takes_values())
}

/// An option as typed.
#[derive(Debug)]
pub(super) struct TypedOption {
    /// With its dashes, without its value.
    pub(super) typed: String,
    /// `nproc-per-node`, or the letter of a short one.
    pub(super) name: String,
    /// After `=`.
    pub(super) value: Option<OsString>,
}

impl TypedOption {
    pub(super) fn of(word: &OsStr) -> Option<TypedOption> {
        let bytes = word.as_bytes();
        let name = bytes.strip_prefix(b"--").or_else(|| bytes.strip_prefix(b"-"))?;
        let end = name.iter().position(|byte| *byte == b'=').unwrap_or(name.len());
        let (name, value) = name.split_at_checked(end)?;
        let typed = bytes.get(..bytes.len() - value.len())?;
        let value = value.strip_prefix(b"=").map(|value| OsStr::from_bytes(value).to_owned());
        let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
        let typed = String::from_utf8_lossy(typed).into_owned();
        Some(TypedOption { typed, name: name.replace('_', "-"), value })
    }

    /// The name of our option that it means, or of one that takes a value as it does.
    fn ours(&self, root: &Command) -> String {
        match foreign::meaning(&self.name) {
            Some(Meaning::Is(name)) if option(root, &self.name).is_none() => name.to_owned(),
            Some(Meaning::Endpoint | Meaning::Unused) => "master-addr".to_owned(),
            _ => self.name.clone(),
        }
    }

    /// The form for clap.
    pub(super) fn spelled(&self) -> OsString {
        let dashes = if self.name.len() == 1 { "-" } else { "--" };
        let mut word = format!("{dashes}{}", self.name).into_bytes();
        if let Some(value) = &self.value {
            word.push(b'=');
            word.extend_from_slice(value.as_bytes());
        }
        OsString::from_vec(word)
    }
}

pub(super) fn option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let mut letters = name.chars();
    let short = letters.next().filter(|_| letters.next().is_none());
    command
        .get_arguments()
        .find(|one| one.get_long() == Some(name) || (short.is_some() && one.get_short() == short))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use clap::CommandFactory;
    use proptest::prelude::*;

    use super::super::line::{Check, Clean, Command as Typed, Line, Plan};
    use super::super::{Stop, language_of, own_words};
    use super::*;

    /// The program of a line, and the module.
    fn started(line: &[&str]) -> (Vec<OsString>, Option<OsString>) {
        let words = std::iter::once("ranklaunch").chain(line.iter().copied()).map(OsString::from);
        match Typed::parse(words) {
            Ok(Typed::Run(options))
            | Ok(Typed::Plan(Plan { options, .. }))
            | Ok(Typed::Check(Check { options, .. }))
            | Ok(Typed::Clean(Clean { options, .. })) => (options.program, options.module),
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn first_script_or_module_ends_our_options() {
        for (line, program, module) in [
            (&["train.py", "--lr", "1"][..], &["train.py", "--lr", "1"][..], None),
            (&["./my runs/train.py", "-h"], &["./my runs/train.py", "-h"], None),
            (&["--log-dir", "x.py", "train.py"], &["train.py"], None),
            (&["--log_dir=x.py", "plan", "train.py", "plan"], &["train.py", "plan"], None),
            (&["plan.py"], &["plan.py"], None),
            (&["train.py", "--", "--version"], &["train.py", "--", "--version"], None),
            (&["--nnodes", "2", "--", "sh", "train.py"], &["sh", "train.py"], None),
            (&["-m", "a.b", "--lr", "1"], &["--lr", "1"], Some("a.b")),
            (
                &["check", "--module=a.b", "train.py", "--", "x"],
                &["train.py", "--", "x"],
                Some("a.b"),
            ),
            (&["-ma.b", "--nnodes", "2"], &["--nnodes", "2"], Some("a.b")),
            (&["-m", "a.b", "--", "--lr", "1"], &["--lr", "1"], Some("a.b")),
            // For torchrun -m is a switch.
            (&["-m", "--nproc_per_node", "2", "a.b", "-m", "x"], &["-m", "x"], Some("a.b")),
            (&["run", "--module", "--standalone", "a.b", "--"], &[], Some("a.b")),
            (&["-m", "--standalone", "--", "a.b", "--x"], &["--x"], Some("a.b")),
            (&["plan", "-m", "--", "a.b", "--", "x"], &["--", "x"], Some("a.b")),
            // The value of an option that is not ours is no program.
            (&["--rdzv_id", "7", "train.py", "--lr", "1"], &["train.py", "--lr", "1"], None),
            (&["--rdzv-id=x.py", "-m", "a.b"], &[], Some("a.b")),
        ] {
            let program: Vec<OsString> = program.iter().map(OsString::from).collect();
            assert_eq!(started(line), (program, module.map(OsString::from)), "{line:?}");
        }
        let of = |line: &str| {
            let words = line.split(' ').map(OsString::from);
            Typed::parse(std::iter::once(OsString::from("ranklaunch")).chain(words))
        };
        assert!(matches!(of("explain train.py --format json"), Ok(Typed::Explain(_))));
        assert!(matches!(of("lint a.py"), Ok(Typed::Lint(_))));
        assert!(matches!(of("-m"), Err(Stop::Refused(_))));
        assert!(matches!(of("-m --"), Err(Stop::Refused(_))));
        assert!(matches!(of("--module --nnodes 2"), Err(Stop::Refused(_))));
    }

    #[test]
    fn language_of_a_wrong_line_is_not_that_of_the_script() {
        let of = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            language_of(&words)
        };
        assert_eq!(of("ranklaunch --lang zh --x t.py --lang en"), Some("zh".into()));
        assert_eq!(of("ranklaunch --x t.py --lang zh"), None);
        assert_eq!(of("ranklaunch --x -m t --lang zh"), None);
    }

    /// Options of a launch in both forms, those of torchrun too, and perhaps a subcommand among them.
    fn option_lists() -> impl Strategy<Value = Vec<OsString>> {
        let line = Line::command();
        let own = |arg: &&Arg| arg.get_long().is_some_and(|long| long != "module");
        let ours = line.get_arguments().filter(own).filter(|arg| arg.get_help_heading().is_some());
        let name = |arg: &Arg| (format!("--{}", arg.get_id()), arg.get_action().takes_values());
        let mut names: Vec<(String, bool)> = ours.map(name).collect();
        assert!(names.len() > 45, "{names:?}");
        let dashed: Vec<_> =
            names.iter().map(|(name, has)| (name.replace('_', "-"), *has)).collect();
        names.extend(dashed);
        names.extend(
            ["--rdzv_backend", "--rdzv-endpoint", "--nproc", "--num_machines"]
                .map(|name| (name.to_owned(), true)),
        );
        names.push(("--rdzv_id".to_owned(), true));
        names.extend([("--standalone".to_owned(), false), ("-v".to_owned(), false)]);
        let value = "[^-]{1,4}|x\\.py|plan|run|-m|-[0-9]|a=b|.{0,3}\\.py";
        let one = (proptest::sample::select(names), value, any::<bool>());
        let one =
            one.prop_map(|((name, takes_value), value, attached)| match (takes_value, attached) {
                (false, _) => vec![name],
                // What looks like an option is none behind =.
                (true, false) if !value.starts_with('-') => vec![name, value],
                (true, _) => vec![format!("{name}={value}")],
            });
        let subcommand = proptest::sample::select(vec!["", "run", "plan", "check", "clean"]);
        (proptest::collection::vec(one, 0..6), subcommand, any::<proptest::sample::Index>())
            .prop_map(|(mut options, subcommand, at)| {
                if !subcommand.is_empty() {
                    options.insert(at.index(options.len() + 1), vec![subcommand.to_owned()]);
                }
                options.into_iter().flatten().map(OsString::from).collect()
            })
    }

    /// Arguments of a program: any words, above all those that mean something here.
    fn arguments() -> impl Strategy<Value = Vec<OsString>> {
        let word = prop_oneof![
            "--|-h|--help|--version|-m|--module|plan|help|x\\.py|--nnodes|--lang=zh|"
                .prop_map(OsString::from),
            ".{0,6}".prop_map(OsString::from),
            proptest::collection::vec(1_u8.., 0..5).prop_map(OsString::from_vec),
        ];
        proptest::collection::vec(word, 0..6)
    }

    /// A script's path: any bytes.
    fn scripts() -> impl Strategy<Value = OsString> {
        let any = proptest::collection::vec(1_u8.., 1..8);
        let known = prop_oneof!["train|plan|\\./a b|/x/y", ".{0,5}"].prop_map(String::into_bytes);
        prop_oneof![
            any.prop_filter("an option", |path| path[0] != b'-'),
            known.prop_filter("an option", |path| path.first() != Some(&b'-'))
        ]
        .prop_map(|path| OsString::from_vec([&path[..], b".py"].concat()))
    }

    fn parsed(words: &[&[OsString]]) -> Result<Typed, Stop> {
        Typed::parse(std::iter::once(OsString::from("ranklaunch")).chain(words.concat()))
    }

    proptest! {
        #[test]
        fn script_and_dashes_before_it_are_the_same_line(
            options in option_lists(), script in scripts(), arguments in arguments()
        ) {
            let short = parsed(&[&options, std::slice::from_ref(&script), &arguments]);
            let dashes = parsed(&[&options, &["--".into(), script.clone()], &arguments]);
            prop_assert!(dashes.is_ok(), "{dashes:?}");
            prop_assert_eq!(&short, &dashes);
            let all = [&options[..], &[script], &arguments].concat();
            prop_assert_eq!(own_words(&all), &options[..]);
        }

        #[test]
        fn module_and_dashes_behind_it_are_the_same_line(
            options in option_lists(), attached in any::<bool>(), arguments in arguments()
        ) {
            prop_assume!(arguments.first().is_none_or(|first| first != "--"));
            let module: &[OsString] = match attached {
                true => &["--module=a.b".into()],
                false => &["-m".into(), "a.b".into()],
            };
            let dashes = parsed(&[&options, module, &["--".into()], &arguments]);
            prop_assert!(dashes.is_ok(), "{dashes:?}");
            prop_assert_eq!(parsed(&[&options, module, &arguments]), dashes);
        }
    }
}
