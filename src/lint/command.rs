//! Reads the programs that a container starts: the launcher in its command line, and the sizes given there.
//!
//! Takes the words of `command` and `args`; gives [`LaunchCommand`]es, and an [`Unread`] for each part
//! that is known only at run time. Launchers are the rows of [`settings::launchers`].

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::rc::Rc;

use super::inside::{self, InnerCommand};
use super::launches::{
    self, LaunchCommand, Launcher, LostWord, Profiles, StartedPrograms, Unread, base,
};
use adopt::shell::{self, EXPANDED, ShellCommand, Word, is_name};
use settings::cli;
use settings::launchers::{
    FlagField, Launcher as Row, LauncherKind, PythonProgram, PythonRun, command_at, is_ranklaunch,
};
use settings::{Nproc, Settings};
use text::lang::Text;
use text::text;
use text::yaml::Node;
use verdict::{Id, Refusal};

/// The command line of a container: its `command` and `args`, and its literal variables.
pub(super) fn of_container(
    words: &[(&str, &Node)],
    known: BTreeMap<String, String>,
    profiles: Profiles,
) -> StartedPrograms {
    let blocks =
        words.iter().filter(|(_, node)| node.is_block()).map(|(_, node)| node.line).collect();
    let mut reader = Reader { profiles, known, blocks, ..Reader::default() };
    let words: Vec<Word> = words
        .iter()
        .map(|(text, node)| reader.filled(&Word::of_container(text, node.line)))
        .collect();
    reader.command(&words, false, 0);
    reader.started
}

/// An entry point that is one text for a shell.
pub(super) fn of_script(script: &Node, profiles: Profiles) -> StartedPrograms {
    let mut reader = Reader { profiles, ..Reader::default() };
    reader.script(script.text().unwrap_or_default(), &|offset| script.line_of(offset), 0);
    reader.started
}

/// Nested shells that are followed.
const DEEPEST: usize = 3;

#[derive(Default)]
struct Reader {
    profiles: Profiles,
    known: BTreeMap<String, String>,
    /// Lines at which a literal block begins, whose text keeps its lines.
    blocks: BTreeSet<usize>,
    /// The launcher on all nodes whose command is read, with its options; or what starts it elsewhere.
    under: Vec<Word>,
    /// Containers and hosts around the command.
    elsewhere: usize,
    started: StartedPrograms,
}

impl Reader {
    fn filled(&self, word: &Word) -> Word {
        word.filled(|name| self.known.get(name).cloned())
    }

    fn unread(&mut self, line: usize, text: Text) {
        self.started.unread.push(Unread { line, text });
    }

    /// The options of `#SBATCH` lines; sbatch reads them above the first command.
    fn directives(&mut self, script: &str, line: &dyn Fn(usize) -> usize) {
        let rows = script.lines().enumerate();
        for (row, text) in rows.take_while(|(_, text)| text.is_empty() || text.starts_with('#')) {
            let Some(options) = text.strip_prefix("#SBATCH") else { continue };
            let words = options.split_whitespace().take_while(|word| !word.starts_with('#'));
            self.started.directives.extend(words.map(|word| Word::literal(word, line(row))));
        }
    }

    fn script(&mut self, script: &str, line: &dyn Fn(usize) -> usize, depth: usize) {
        self.directives(script, line);
        let commands = match shell::commands(script) {
            Ok(commands) => commands,
            Err(unclosed) => {
                self.unread(
                    line(unclosed.line),
                    text!(
                        "a quote or an expansion is never closed; the script is not checked",
                        "引号或展开没有闭合，未检查该脚本"
                    ),
                );
                return;
            }
        };
        // A shell that traps the signal may forward it.
        let traps = |command: &ShellCommand| {
            command.words.first().is_some_and(|word| word.text() == "trap")
        };
        let caught = commands.iter().any(traps);
        for command in commands {
            let words: Vec<Word> = command
                .words
                .iter()
                .map(|word| {
                    let mut word = self.filled(word);
                    word.line = line(word.line);
                    word
                })
                .collect();
            let program = self.without_prefixes(&words, command.may_not_run);
            if let Some(first) = program.first()
                && is_ranklaunch(first.text())
                && command.shell_stays
                && !caught
                && !words.iter().take(words.len() - program.len()).any(|word| word.text() == "exec")
            {
                self.started.behind_shell.push(first.line);
            }
            let known = self.started.launches.len();
            self.command(&words, command.may_not_run, depth);
            if let Some(at) = command.cut_at
                && self.started.launches.len() > known
            {
                self.started.cut.push(line(at));
            }
        }
    }

    fn command(&mut self, words: &[Word], may_not_run: bool, depth: usize) {
        let words = self.without_prefixes(words, may_not_run);
        let Some((first, rest)) = words.split_first() else { return };
        if !first.is_plain() {
            let shown = first.shown();
            self.unread(
                first.line,
                text!(
                    "the program of {shown} is known only at run time; what it starts is not checked",
                    "{shown} 在运行时才确定程序，未检查它启动的内容"
                ),
            );
            return;
        }
        match base(first.text()) {
            name if is_shell(name) => self.shell(first, rest, depth),
            "eval" => {
                let shown = rest.first().map(Word::shown).unwrap_or_default();
                self.unread(
                    first.line,
                    text!("eval {shown} is not checked", "未检查 eval {shown}"),
                );
            }
            // Environment scripts of conda or CUDA only set paths.
            "source" | "." => {}
            _ if is_ranklaunch(first.text()) => self.ranklaunch(first, rest, may_not_run, depth),
            name if name.ends_with(".sh") => self.file(first),
            "make" | "python-distributed" => self.opaque(first),
            _ if serves(words) => self.started.serves = true,
            _ => {
                let argv: Vec<&str> = words.iter().map(Word::text).collect();
                match Row::of_argv(&argv) {
                    Some((row, _)) if row.kind == LauncherKind::Anywhere => {
                        self.anywhere(words, may_not_run, depth);
                    }
                    Some((row, at)) => {
                        let rest = words.get(at..).unwrap_or_default();
                        self.launch(first, row, rest, may_not_run);
                    }
                    None => match inside::command_in(words) {
                        Some(inner) => self.elsewhere(words, inner, may_not_run, depth),
                        None => self.python(&argv, words, may_not_run),
                    },
                }
            }
        }
    }

    /// A launcher such as srun, which starts its command on all nodes. Only ranklaunch and a shell are looked for in it.
    fn anywhere(&mut self, words: &[Word], may_not_run: bool, depth: usize) {
        let Some(first) = words.first() else { return };
        let words = split(words);
        let is_name = |at: usize| {
            let before = at.checked_sub(1).and_then(|before| words.get(before));
            before.is_some_and(|before| ["-J", "--job-name"].contains(&before.text()))
        };
        let is_command = |word: &Word| {
            is_ranklaunch(word.text()) || (word.is_plain() && is_shell(base(word.text())))
        };
        let own = |(at, word): (usize, &Word)| (is_command(word) && !is_name(at)).then_some(at);
        let Some(at) = words.iter().enumerate().find_map(own) else { return self.opaque(first) };
        let (under, command) = words.split_at(at);
        self.under = under.to_vec();
        self.command(command, may_not_run, depth);
        self.under.clear();
    }

    /// The command that these words start in a container or on another host.
    fn elsewhere(&mut self, words: &[Word], inner: InnerCommand, may_not_run: bool, depth: usize) {
        let Some(first) = words.first() else { return };
        if self.elsewhere >= DEEPEST {
            return self.opaque(first);
        }
        self.elsewhere += 1;
        let is_outer = self.under.is_empty();
        if is_outer {
            self.under = words.to_vec();
        }
        let known = (!inner.keeps_variables).then(|| std::mem::take(&mut self.known));
        let given = inner.variables.iter().filter(|word| word.is_plain());
        let given = given.filter_map(|word| word.text().split_once('='));
        self.known.extend(given.map(|(name, value)| (name.to_owned(), value.to_owned())));
        match inner.is_text {
            true if may_not_run => self.uncertain(first, "ranklaunch"),
            true if depth < DEEPEST => {
                let text: Vec<String> = inner.words.iter().map(Word::shown).collect();
                self.script(&text.join(" "), &|_| first.line, depth + 1);
            }
            true => self.opaque(first),
            false => self.command(&split(&inner.words), may_not_run, depth),
        }
        if let Some(known) = known {
            self.known = known;
        }
        if is_outer {
            self.under.clear();
        }
        self.elsewhere -= 1;
    }

    /// The words after assignments and prefixes such as `nohup`; records the assignments.
    fn without_prefixes<'a>(&mut self, words: &'a [Word], may_not_run: bool) -> &'a [Word] {
        let exports = words.first().map(|first| base(first.text()));
        if matches!(exports, Some("export" | "declare" | "readonly")) {
            self.assigned(words, may_not_run);
            return &[];
        }
        // Flags for an entry point of the image, such as tini's, or `-m` of python.
        let is_flag = |word: &&Word| word.text().starts_with('-') && word.text() != "-m";
        let own = words.iter().take_while(is_flag).count();
        let words = words.get(own..).unwrap_or_default();
        let texts: Vec<&str> = words.iter().map(Word::text).collect();
        let (before, command) = words.split_at(command_at(&texts));
        self.assigned(before, may_not_run);
        command
    }

    /// Records the assignments among these words.
    fn assigned(&mut self, words: &[Word], may_not_run: bool) {
        for word in words {
            let Some((name, value)) = word.text().split_once('=').filter(|(name, _)| is_name(name))
            else {
                continue;
            };
            let value = word.part(value);
            if value.is_plain() && !may_not_run {
                self.known.insert(name.to_owned(), value.text().to_owned());
            } else {
                self.known.remove(name);
            }
            self.started.exports.push((name.to_owned(), value));
        }
    }

    fn shell(&mut self, first: &Word, rest: &[Word], depth: usize) {
        let mut words = rest.iter();
        while let Some(word) = words.next() {
            let text = word.text();
            // One letter for each option, in any order: -c, -lc, -cex, -euo pipefail.
            let letters = text.strip_prefix(['-', '+']).filter(|l| !l.starts_with('-'));
            let takes_word = letters.is_some_and(|letters| letters.contains(['o', 'O']));
            if text.starts_with('-') && letters.is_some_and(|letters| letters.contains('c')) {
                if takes_word {
                    words.next();
                }
                let Some(script) = words.next() else { return };
                if depth >= DEEPEST {
                    self.unread(script.line, text!("shells nested too deeply", "shell 嵌套过深"));
                    return;
                }
                if let Some(word) = unread_by(script, words.as_slice()) {
                    let (script, word) = (script.shown(), word.clone());
                    self.started.lost.push(LostWord { script, word });
                }
                let from = script.line;
                if !script.is_plain() && depth > 0 {
                    self.unread(
                        from,
                        text!("a script composed at run time", "脚本在运行时才拼接而成"),
                    );
                    return;
                }
                let several = self.blocks.contains(&from);
                let line = |offset| if several { from + offset } else { from };
                self.script(script.text(), &line, depth + 1);
                return;
            }
            if takes_word {
                words.next();
            } else if !text.starts_with(['-', '+']) {
                self.file(word);
                return;
            }
        }
        self.unread(first.line, text!("a shell without a script", "没有脚本的 shell"));
    }

    fn file(&mut self, file: &Word) {
        let shown = file.shown();
        self.unread(
            file.line,
            text!(
                "{shown} is not in the manifest; what it starts is not checked",
                "{shown} 不在清单中，未检查它启动的内容"
            ),
        );
    }

    /// Records a command whose children are not followed.
    fn opaque(&mut self, first: &Word) {
        let shown = first.shown();
        self.unread(
            first.line,
            text!("what {shown} starts is not checked", "未检查 {shown} 启动的内容"),
        );
    }

    /// A script or a module without a launcher.
    fn python(&mut self, argv: &[&str], words: &[Word], may_not_run: bool) {
        let Some(run) = PythonRun::of_command(argv).filter(|_| !may_not_run) else { return };
        let (Some(first), Some(word)) = (words.first(), words.get(run.at)) else { return };
        let program = match run.program {
            PythonProgram::Module(name) => word.part(&String::from_utf8_lossy(name)),
            PythonProgram::Script(_) => word.clone(),
        };
        let args = words.get(run.arguments..).unwrap_or_default().to_vec();
        let launch = LaunchCommand::of(Launcher::Python, first.line);
        self.started.launches.push(LaunchCommand { script: Some(program), args, ..launch });
    }

    /// Records a launcher that perhaps does not run.
    fn uncertain(&mut self, first: &Word, name: &str) {
        self.unread(
            first.line,
            text!(
                "this {name} is inside a branch, a loop or a function; it is not checked",
                "该 {name} 位于分支、循环或函数中，未检查"
            ),
        );
    }

    fn launch(&mut self, first: &Word, row: &Row, rest: &[Word], may_not_run: bool) {
        let Some(launcher) = Launcher::of(row.kind) else { return self.opaque(first) };
        if may_not_run {
            return self.uncertain(first, row.names.first().copied().unwrap_or_default());
        }
        let mut launch = LaunchCommand::of(launcher, first.line);
        let mut words = rest;
        while let Some((word, after)) = words.split_first() {
            words = after;
            let text = word.text();
            if !text.starts_with('-') || text == "-" {
                launch.script = Some(word.clone());
                launch.args = after.to_vec();
                break;
            }
            if text == "--" {
                continue;
            }
            let (flag, value) = match text.split_once('=') {
                Some((flag, value)) => (flag, Some(word.part(value))),
                None => (text, None),
            };
            let flag = flag.replace('_', "-");
            let value = match value {
                Some(value) => Some(value),
                None if row.switches.contains(&flag.as_str()) => None,
                None => match after.split_first() {
                    Some((next, more))
                        if !next.text().starts_with('-') && !next.text().ends_with(".py") =>
                    {
                        words = more;
                        Some(next.clone())
                    }
                    _ => None,
                },
            };
            if let Some((_, field)) = row.flags.iter().find(|(known, _)| *known == flag) {
                let stated = value.unwrap_or_else(|| word.part(""));
                launch.stated.insert(*field, stated);
            }
        }
        self.started.launches.push(launch);
    }

    /// The command line of ranklaunch, read by its own parser.
    fn ranklaunch(&mut self, first: &Word, rest: &[Word], may_not_run: bool, depth: usize) {
        if may_not_run {
            return self.uncertain(first, "ranklaunch");
        }
        if rest.first().is_some_and(|word| word.text() == "init") {
            let command = rest.iter().position(|word| word.text() == "--");
            let command = command.and_then(|at| rest.get(at + 1..)).unwrap_or_default();
            if depth < DEEPEST {
                self.command(command, may_not_run, depth + 1);
            }
            return;
        }
        let line_of = |text: &str| {
            rest.iter().find(|word| word.text().contains(text)).map_or(first.line, |word| word.line)
        };
        let words = std::iter::once(first).chain(rest).map(|word| word.text().into());
        let mut options = match cli::Command::parse(words) {
            Ok(cli::Command::Run(options)) => options,
            // Help and version start nothing.
            Ok(_) | Err(cli::Stop::Shown(_)) => return,
            Err(cli::Stop::Refused(refusal)) => {
                let named = refusal.text.en.split('`').nth(1).unwrap_or_default();
                let line = if named.is_empty() { first.line } else { line_of(named) };
                self.started.refused.push(Unread { line, text: refusal.text });
                return;
            }
        };
        let variables =
            self.known.iter().map(|(name, value)| (name.into(), value.into())).collect();
        let given = [
            (FlagField::Nproc, "--nproc-per-node", &mut options.nproc_per_node),
            (FlagField::Nnodes, "--nnodes", &mut options.nnodes),
            (FlagField::Spares, "--spares", &mut options.spares),
            (FlagField::NodeRank, "--node-rank", &mut options.node_rank),
            (FlagField::MasterAddr, "--master-addr", &mut options.master_addr),
            (FlagField::MasterPort, "--master-port", &mut options.master_port),
            (FlagField::Grace, "--grace", &mut options.grace),
            (FlagField::Heads, "--heads", &mut options.heads),
            (FlagField::Profile, "--profile", &mut options.profile),
        ]
        .map(|(field, flag, option)| {
            let value = option.as_ref().and_then(|value| value.to_str()).map(str::to_owned);
            let is_open = OPEN.contains(&field)
                && value.as_ref().is_some_and(|value| value.contains(EXPANDED));
            option.take_if(|_| is_open);
            (field, flag, value)
        });
        let settings = launches::settings(&options, variables, self.profiles);
        if let Err(refusal) = &settings
            && is_wrong_number(refusal)
        {
            let named = refusal.text.en.split(' ').next().unwrap_or_default();
            let unread = Unread { line: line_of(named), text: refusal.text.clone() };
            self.started.refused.push(unread);
        }
        let settings = settings.ok().map(Rc::new);
        let mut stated = BTreeMap::new();
        for (field, flag, value) in given {
            let variable = format!("RANKLAUNCH_{}", flag.trim_start_matches('-').replace('-', "_"))
                .to_ascii_uppercase();
            let of_settings = || settings.as_deref().and_then(|settings| said(settings, field));
            let value = match value {
                Some(value) => Some((value, line_of(flag))),
                None => {
                    let known = self.known.get(&variable).map(|value| (value.clone(), first.line));
                    known.or_else(|| Some((of_settings()?, line_of("--profile"))))
                }
            };
            if let Some((value, line)) = value {
                stated.insert(field, first.part(&value).at(line));
            }
        }
        let words: Vec<OsString> = rest.iter().map(|word| word.text().into()).collect();
        let program = cli::program_at(&words).and_then(|at| rest.get(at..)).unwrap_or_default();
        let (script, args) = match program.split_first() {
            Some((word, args)) if options.module.is_none() && !word.text().starts_with('-') => {
                (Some(word.clone()), args)
            }
            _ => (None, program),
        };
        let launch = LaunchCommand::of(Launcher::Ranklaunch, first.line);
        let (args, under) = (args.to_vec(), self.under.clone());
        let launch = LaunchCommand { stated, script, args, settings, under, ..launch };
        self.started.launches.push(launch);
    }
}

/// The words of a command; the shell splits a variable without quotes that holds it.
fn split(words: &[Word]) -> Vec<Word> {
    let split = |(at, word): (usize, &Word)| {
        let is_script = at.checked_sub(1).is_some_and(|before| words[before].text() == "-c");
        let mut parts = word.text().split_whitespace();
        match !is_script && parts.next().is_some_and(is_ranklaunch) {
            true => word.text().split_whitespace().map(|part| word.part(part)).collect(),
            false => vec![word.clone()],
        }
    };
    words.iter().enumerate().flat_map(split).collect()
}

/// Fields that the rules take from the command line alone: one that is known only at run time hides no other setting.
const OPEN: [FlagField; 4] =
    [FlagField::Nproc, FlagField::Nnodes, FlagField::NodeRank, FlagField::MasterPort];

/// Whether a number that the command line or a variable gives is refused, and no template or shell replaces it.
fn is_wrong_number(refusal: &Refusal) -> bool {
    const NUMBERS: &[Id] = &[
        Id::SettingsNnodes,
        Id::SettingsSpares,
        Id::SettingsNodeRank,
        Id::SettingsNprocPerNode,
        Id::SettingsMasterPort,
        Id::SettingsHeads,
        Id::SettingsMaxRestarts,
    ];
    NUMBERS.contains(&refusal.id) && !refusal.text.en.contains([EXPANDED, '$', '{', '<'])
}

/// A value of the settings for a launcher's field.
fn said(settings: &Settings, field: FlagField) -> Option<String> {
    match field {
        FlagField::Nnodes => {
            let count = settings.nnodes.as_ref().map(|nodes| nodes.value.to_string());
            // The list has the spares as well.
            let spares = usize::try_from(settings.spares.value).unwrap_or(usize::MAX);
            let seats = |hosts: &[String]| hosts.len().saturating_sub(spares).to_string();
            count.or(settings.nodes.as_ref().map(|list| seats(&list.value)))
        }
        FlagField::Spares => Some(settings.spares.value)
            .filter(|spares| *spares > 0)
            .map(|spares| spares.to_string()),
        FlagField::Nproc => match settings.nproc_per_node.value {
            Nproc::Count(count) => Some(count.to_string()),
            Nproc::Auto | Nproc::Gpu | Nproc::Cpu => None,
        },
        FlagField::NodeRank => settings.node_rank.as_ref().map(|rank| rank.value.to_string()),
        FlagField::MasterAddr => plan::stated_master(settings).map(|addr| addr.value.clone()),
        FlagField::MasterPort => settings.master_port.as_ref().map(|port| port.value.to_string()),
        _ => None,
    }
}

/// Whether the words start a model server, which starts its own processes.
fn serves(words: &[Word]) -> bool {
    const PROGRAMS: &str = "vllm sglang tritonserver trtllm-serve text-generation-launcher \
        lmdeploy ollama llama-server vllm-serve";
    const MODULES: &[&str] =
        &["vllm.entrypoints", "sglang.launch_server", "lmdeploy.serve", "fastchat.serve"];
    let Some((first, rest)) = words.split_first() else { return false };
    let name = base(first.text());
    if name == "trl" {
        return rest.first().is_some_and(|word| word.text() == "vllm-serve");
    }
    if !PythonRun::is_by(name) {
        return PROGRAMS.split(' ').any(|one| one == name);
    }
    let arguments: Vec<&str> = rest.iter().map(Word::text).collect();
    match PythonRun::of(&arguments).map(|run| run.program) {
        Some(PythonProgram::Module(name)) => {
            MODULES.iter().any(|module| name.starts_with(module.as_bytes()))
        }
        Some(PythonProgram::Script(path)) => {
            let path = String::from_utf8_lossy(path).to_ascii_lowercase();
            let name = base(&path);
            name.contains("server") || name.contains("serve.")
        }
        None => false,
    }
}

/// The first word behind the script of `sh -c` if the script reads none of these words. They are `$0`,
/// `$1`, …; a `$0` alone is often the name for messages.
fn unread_by<'a>(script: &Word, behind: &'a [Word]) -> Option<&'a Word> {
    // Commands that read the words without naming them.
    const READERS: &[&str] = &["source", ".", "shift", "getopts", "for", "set", "eval"];
    const NAMES: &[&str] = &["--", "-", "_"];
    let text = script.text();
    let names_one = |after: &str| {
        let after = after.strip_prefix('{').unwrap_or(after);
        after.starts_with(|c: char| c.is_ascii_digit() || "@*#".contains(c))
    };
    let reads = text.split(['$', EXPANDED]).skip(1).any(names_one)
        || text
            .split(|c: char| c.is_whitespace() || ";&|(".contains(c))
            .any(|w| READERS.contains(&w));
    let (first, others) = behind.split_first()?;
    let several = text.trim().contains(char::is_whitespace);
    let is_name = others.is_empty()
        && (NAMES.contains(&base(first.text()))
            || is_shell(first.text())
            || (several && !first.text().starts_with('-')));
    (!reads && !is_name).then_some(first)
}

/// Whether a program is a shell, which reads its script.
pub(super) fn is_shell(program: &str) -> bool {
    ["sh", "bash", "dash", "ash", "zsh"].contains(&base(program))
}
