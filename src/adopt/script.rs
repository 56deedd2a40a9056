//! Reads a whole script: every command gets a class and a reason, every launch its line, and the script is written anew
//! with only what stays.
//!
//! Order of the work: each command by itself, with the values of the variables before it; then the assignments that
//! nothing uses any more; then the new text.

use std::ops::Range;

use text::lang::Text;
use text::order::Ordered;
use text::text;

use crate::classes::Class;
use crate::commands::{composed, never_closed, of_command, of_variable};
use crate::exports::Exports;
use crate::launch::{self, Launch};
use crate::lines::Lines;
use crate::programs::{begins_a_launch, names_a_launcher, shell_script, starts_programs};
use crate::shell::{self, ShellCommand, Unclosed, is_name};
use crate::sizes::{Around, Files};
use crate::values::{Value, Values};
use crate::words::base;

/// Nested scripts that are followed.
pub(crate) const DEEPEST: usize = 3;

/// A command of the script, or a line that Slurm reads.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) span: Range<usize>,
    pub(crate) class: Class,
    pub(crate) why: Text,
    /// The launches in it.
    pub(crate) launches: Vec<usize>,
    /// Names that it assigns, if it does nothing else.
    pub(crate) assigns: Vec<String>,
    pub(crate) exports: bool,
    pub(crate) depth: usize,
    pub(crate) operator: String,
    /// It runs the launch line of a variable.
    pub(crate) runs_launch: bool,
    /// A program of Python that is no rank.
    pub(crate) runs_python: bool,
    /// It does more than what its class is about.
    pub(crate) pinned: bool,
    /// Sets up an environment: the option of ranklaunch for it.
    pub(crate) environment: Option<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Script {
    pub(crate) items: Vec<Item>,
    pub(crate) launches: Vec<Launch>,
    /// Line of each launch, and whether it may not run or several times.
    pub(crate) places: Vec<(usize, bool)>,
    /// The script with ranklaunch in it.
    pub(crate) text: String,
    /// Values that stay set for the ranks.
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) folder: Option<String>,
    /// Nothing but what a profile can say remains.
    pub(crate) only_a_job: bool,
    pub(crate) slurm: Slurm,
    pub(crate) edits: Vec<(Range<usize>, String)>,
    pub(crate) values: Values,
    pub(crate) sourced: bool,
    pub(crate) exports: Exports,
    /// The first quote or expansion that is never closed; nothing behind it is read.
    pub(crate) unclosed: Option<Unclosed>,
    pub(crate) lines: Lines,
}

/// What `#SBATCH` lines ask for.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Slurm {
    /// 0 outside of Slurm.
    pub(crate) nodes: u32,
    pub(crate) tasks_per_node: u32,
}

/// A part of a script that is read, which may stand in a word of another part.
#[derive(Clone, Copy)]
pub(crate) struct Part<'t> {
    pub(crate) text: &'t str,
    /// Its place in the whole.
    pub(crate) offset: usize,
    pub(crate) whole: &'t str,
    /// Name of the profile's file.
    pub(crate) profile: &'t str,
    pub(crate) files: Files<'t>,
    /// It stands in double quotes.
    pub(crate) is_quoted: bool,
    /// Number of parts around it.
    pub(crate) deep: usize,
}

impl<'t> Part<'t> {
    /// A range of this part as a script of its own.
    pub(crate) fn inside(self, range: Range<usize>, is_quoted: bool) -> Part<'t> {
        let (offset, deep) = (self.offset + range.start, self.deep + 1);
        let text = self.text.get(range).unwrap_or_default();
        Part { text, offset, is_quoted, deep, ..self }
    }
}

impl Script {
    pub(crate) fn read(text: &str, profile: &str, files: Files<'_>) -> Script {
        let mut script = Script { lines: Lines::of(text), ..Script::default() };
        script.directives(text);
        let (offset, deep) = (0, 0);
        let whole = Part { text, offset, whole: text, profile, files, is_quoted: false, deep };
        script.commands(whole);
        script.pipelines();
        script.wait_loops(text);
        script.keep(text);
        script.settle(text);
        script.write(text);
        script.items.order_by_key(|item| item.span.start);
        script
    }

    pub(crate) fn commands(&mut self, part: Part<'_>) {
        let Part { text: inner, offset, whole, profile, files, is_quoted: quoted, deep } = part;
        let (commands, unclosed) = shell::commands_before(inner);
        for command in &commands {
            let (Some(first), Some(last)) = (command.spans.first(), command.spans.last()) else {
                continue;
            };
            let mut span = first.start + offset..last.end + offset;
            let structure = ["if", "while", "until", "elif"];
            let skip = command
                .words
                .iter()
                .take_while(|word| structure.contains(&word.text()) || word.text() == "!");
            let spans = command.spans.get(skip.count()..).unwrap_or_default();
            let engine_args = self.launches.iter().map(|launch| launch.engine_args.as_slice());
            let engine_args = engine_args.into_iter().find(|args| !args.is_empty());
            let around = Around {
                values: &self.values,
                slurm_nodes: self.slurm.nodes,
                profile,
                engine_args: engine_args.unwrap_or_default(),
                files,
                quoted,
            };
            let launch = launch::read(inner, spans, around);
            let mut item = match launch {
                Some(mut launch) => {
                    // What runs the text around it is elsewhere.
                    launch.is_carried |= deep > 0;
                    self.launched(part, command, launch)
                }
                None => self.other(part, command),
            };
            if item.launches.is_empty() && deep < DEEPEST {
                self.substitutions(part, command, &mut item);
            }
            if let Some(document) = &command.document {
                let end = document.end + offset;
                let rest = whole.get(end..).unwrap_or_default();
                span.end = end + rest.find('\n').unwrap_or(rest.len());
                if names_a_launcher(inner.get(document.clone()).unwrap_or_default()) {
                    item.class = Class::NotUnderstood;
                    item.why = text!(
                        "the here-document is a script of its own: write it to a file and adopt that",
                        "here-document 是另一个脚本：请写成文件后再 adopt"
                    );
                }
            }
            item.span = span;
            if deep == 0 {
                self.items.push(item);
            } else if let Some(outer) = self.items.last_mut() {
                outer.launches.append(&mut item.launches);
            }
        }
        let Some(unclosed) = unclosed.filter(|_| deep == 0) else { return };
        let why = never_closed(unclosed.open);
        self.items.push(Item::new(unclosed.at..inner.len(), Class::NotUnderstood, why, 0));
        self.unclosed = Some(unclosed);
    }

    fn launched(&mut self, part: Part<'_>, command: &ShellCommand, mut launch: Launch) -> Item {
        let offset = part.offset;
        let replaces = launch.replaces.start + offset..launch.replaces.end + offset;
        self.places.push((self.lines.at(replaces.start), command.may_not_run));
        self.edits.push((replaces, launch.line.clone()));
        let redirected = self.without_redirections(part, command);
        launch.notes.extend(redirected.note);
        // A profile has no place for a file or an input.
        let plain = !redirected.stay && command.document.is_none();
        launch.argv = launch.argv.filter(|_| plain);
        let (from, to) = (launch.launcher, launch.line.trim_end());
        let why = match command.may_not_run {
            true => text!(
                "{from} becomes `{to} …`, in its branch, loop or function",
                "{from} 改为 `{to} …`（仍在原分支、循环或函数中）"
            ),
            false => text!("{from} becomes `{to} …`", "{from} 改为 `{to} …`"),
        };
        let mut item = Item::new(0..0, Class::Replaced, why, command.depth);
        item.launches.push(self.launches.len());
        item.operator.clone_from(&command.operator);
        self.launches.push(launch);
        item
    }

    fn other(&mut self, part: Part<'_>, command: &ShellCommand) -> Item {
        let words: Vec<String> = command.words.iter().map(|word| word.shown()).collect();
        let source = |at: usize| {
            command.spans.get(at).and_then(|span| part.text.get(span.clone())).unwrap_or_default()
        };
        let first = words.first().map(|word| base(word)).unwrap_or_default().to_owned();
        let declares =
            ["export", "declare", "readonly", "local", "typeset"].contains(&first.as_str());
        let assignments: Vec<usize> = (usize::from(declares)..words.len())
            .filter(|at| !(declares && words.get(*at).is_some_and(|word| word.starts_with('-'))))
            .collect();
        let name_of = |at: &usize| {
            let (name, _) = source(*at).split_once('=')?;
            let name = name.strip_suffix('+').unwrap_or(name);
            is_name(name).then(|| name.to_owned())
        };
        let names: Vec<String> = assignments.iter().filter_map(name_of).collect();
        if !names.is_empty() && (declares || names.len() == assignments.len()) {
            let exports = self.exports.declared(&first, &words) | self.exports.has(&names);
            return self.assigned(part, command, &names, exports);
        }
        let (class, why) = of_command(&words);
        let mut item = Item::new(0..0, class, why, command.depth);
        item.operator.clone_from(&command.operator);
        match first.as_str() {
            // The name that is exported has its value elsewhere, which it keeps.
            "export" | "declare" | "typeset" if self.exports.declared(&first, &words) => {
                item.exports = true;
                self.exported(&words);
                let (rows, others): (Vec<_>, Vec<_>) = words
                    .iter()
                    .skip(1)
                    .filter(|word| is_name(word))
                    .partition(|name| of_variable(name, None).is_some());
                if let (Some(name), true) = (rows.first(), others.is_empty())
                    && let Some((class, why)) = of_variable(name, None)
                {
                    (item.class, item.why) = (class, why);
                    item.assigns = rows.into_iter().cloned().collect();
                    item.pinned = true;
                }
            }
            "set" => self.exports.set(&words),
            "read" | "mapfile" | "readarray" | "for" | "select" | "getopts" => {
                for word in words.iter().skip(1) {
                    self.values.set(word, Value::Unknown);
                }
            }
            "cd" if command.depth == 0 => {
                self.folder = self.values.value(source(1)).filter(|_| words.len() == 2);
            }
            "source" | "." => self.sources(&words, source(1), &mut item),
            "conda" | "mamba" | "micromamba"
                if words.get(1).is_some_and(|verb| verb == "activate") =>
            {
                self.activates(source(2), &mut item);
            }
            "eval" if !words.iter().any(|word| word.contains("conda")) => {
                self.values.forget();
                self.sourced = true;
                (item.class, item.why) = composed();
            }
            _ => {}
        }
        item.runs_python = ["python", "python3", "pip", "pip3"].contains(&first.as_str());
        let program = command.words.first().is_some_and(|word| !word.is_plain());
        let composes = program || first == "eval";
        let starts = ["srun", "mpirun", "mpiexec", "bash", "sh", "nohup", "exec", "ssh"];
        let runs = (composes || starts.contains(&first.as_str()))
            && self.runs_a_variable(part.whole, &words);
        if runs {
            item.class = Class::Kept;
            item.runs_launch = true;
            item.why = text!("runs the launch line of a variable", "运行变量中的启动命令");
        } else if composes {
            if item.class == Class::Kept {
                (item.class, item.why) = composed();
            }
        } else if let Some((at, script)) = shell_script(&words, &first, &source) {
            self.nested(part, command, at, script, &mut item);
        } else if (first == "alias" && names_a_launcher(&words.join(" ").replace('=', " ")))
            || (names_a_launcher(&words.join(" "))
                && (starts_programs(&first) || words.get(1).is_some_and(|word| word == "-c")))
        {
            (item.class, item.why) = composed();
        }
        item
    }

    fn assigned(
        &mut self,
        part: Part<'_>,
        command: &ShellCommand,
        names: &[String],
        exports: bool,
    ) -> Item {
        let (inner, deep) = (part.text, part.deep);
        let why = text!("a variable of the script", "脚本的变量");
        let mut item = Item::new(0..0, Class::Kept, why, command.depth);
        item.assigns = names.to_vec();
        item.exports = exports;
        item.operator.clone_from(&command.operator);
        for (at, span) in command.spans.iter().enumerate() {
            let source = inner.get(span.clone()).unwrap_or_default();
            let Some((name, text)) = source.split_once('=') else { continue };
            let (name, appends) = match name.strip_suffix('+') {
                Some(name) => (name, true),
                None => (name, false),
            };
            if !is_name(name) {
                continue;
            }
            let items = command.items.as_ref().filter(|_| text.starts_with('('));
            let value = match items {
                Some(items) => {
                    let sources = items.iter().filter_map(|item| inner.get(item.clone()));
                    Value::Array(sources.map(str::to_owned).collect())
                }
                None => Value::Scalar(text.to_owned()),
            };
            let literal = self.values.value(text);
            if exports {
                self.environment.retain(|(known, _)| known != name);
                self.environment.extend(literal.clone().map(|text| (name.to_owned(), text)));
            }
            if let Some((class, why)) = of_variable(name, literal.as_deref()) {
                (item.class, item.why) = (class, why);
            }
            // A launch line in a variable, which another line runs.
            let start = text.find(['"', '\'']).map(|quote| source.len() - text.len() + quote + 1);
            if let Some(start) = start
                && items.is_none()
                && deep < DEEPEST
                && crate::values::unwrapped(text).len() + 2 == text.len()
                && begins_a_launch(crate::values::unwrapped(text))
            {
                let length = crate::values::unwrapped(text).len();
                self.nested(part, command, at, start..start + length, &mut item);
            }
            // The launch in it has become another text.
            let changed = !item.launches.is_empty();
            match (command.may_not_run || changed, appends) {
                (true, _) => self.values.set(name, Value::Unknown),
                (false, true) => self.values.append(name, value),
                (false, false) => self.values.set(name, value),
            }
        }
        item
    }

    /// `export NAME` is about the value before it.
    fn exported(&mut self, names: &[String]) {
        let assigns = |item: &Item| item.assigns.iter().any(|name| names.contains(name));
        self.items.iter_mut().filter(|item| assigns(item)).for_each(|item| item.exports = true);
        for name in names.iter().filter(|name| is_name(name)) {
            if let Some(value) = self.values.value(&format!("${name}")) {
                self.environment.retain(|(known, _)| known != name);
                self.environment.push((name.clone(), value));
            }
        }
    }

    fn sources(&mut self, words: &[String], source: &str, item: &mut Item) {
        let path = words.get(1).cloned().unwrap_or_default();
        if base(&path) == "activate" && path.ends_with("bin/activate") {
            let folder = source.trim_end_matches("/activate");
            let environment = words.get(2).map(|name| format!("--conda-env {name}"));
            item.environment = environment.or_else(|| Some(format!("--python {folder}/python")));
            item.why = text!("prepares the environment", "准备环境");
        } else if path == "activate" {
            self.activates(words.get(2).map(String::as_str).unwrap_or_default(), item);
        } else if path.contains("conda") || path.contains(".bashrc") || path.contains("profile") {
            item.why = text!("prepares the environment", "准备环境");
            item.environment = path.contains("conda").then(String::new);
        } else {
            self.values.forget();
            self.sourced = true;
            item.class = Class::NotUnderstood;
            item.why = text!(
                "{path} is a script of its own, which may set variables of this one; adopt it as well",
                "{path} 是另一个脚本，可能设置本脚本的变量；请一并 adopt"
            );
        }
    }

    fn activates(&mut self, name: &str, item: &mut Item) {
        item.environment = Some(format!("--conda-env {name}"));
        item.why = text!("prepares the environment", "准备环境");
    }
}

impl Item {
    pub(crate) fn new(span: Range<usize>, class: Class, why: Text, depth: usize) -> Item {
        Item {
            span,
            class,
            why,
            launches: Vec::new(),
            assigns: Vec::new(),
            exports: false,
            depth,
            operator: String::new(),
            runs_launch: false,
            runs_python: false,
            pinned: false,
            environment: None,
        }
    }
}
