//! The profile in place of a script: TOML.

use std::fmt::Write;

use crate::adopted::AdoptedProfile;
use crate::script::Script;

/// The name of the profile for an input.
pub(crate) fn file_of(name: &str) -> String {
    let base = name.rsplit('/').next().unwrap_or(name);
    let stem = base
        .split('.')
        .next()
        .filter(|stem| !stem.is_empty() && *stem != "-" && !name.starts_with("/dev/"))
        .unwrap_or("ranklaunch");
    format!("{stem}.toml")
}

/// The name of the profile for one of several containers of an input.
pub(crate) fn file_of_container(file: &str, container: &str) -> String {
    let stem = file.strip_suffix(".toml").unwrap_or(file);
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let container: String = container.chars().map(plain).collect();
    format!("{stem}-{container}.toml")
}

/// The profile of a script: all of it where nothing else remains, else the arguments of the engine. None: the line says
/// it all.
pub(crate) fn of(script: &Script, file: &str) -> Option<AdoptedProfile> {
    let launch = script
        .launches
        .iter()
        .find(|launch| !launch.engine_args.is_empty())
        .or(script.launches.first())?;
    // Every node reads the same profile.
    let numbered = launch.sizes.several && launch.sizes.nodes.is_some();
    let argv = launch.argv.as_ref().filter(|_| script.only_a_job && !numbered);
    let engine = launch.launcher.starts_with("accelerate");
    if argv.is_none() && launch.engine_args.is_empty() {
        return None;
    }
    let mut job = Vec::new();
    let mut program: &[String] = &[];
    if let Some(argv) = argv {
        let dashes = argv.iter().position(|word| word == "--").unwrap_or(argv.len());
        let mut options = argv.iter().take(dashes);
        while let Some(option) = options.next() {
            let Some(value) = options.next() else { break };
            let key = option.trim_start_matches('-').replace('-', "_");
            match key.as_str() {
                "profile" | "engine" | "node_rank" => {}
                _ if value.parse::<u32>().is_ok() => job.push(format!("{key} = {value}")),
                _ => job.push(format!("{key} = {}", string(value))),
            }
        }
        program = argv.get(dashes + 1..).unwrap_or_default();
    }
    let mut text = String::from("[job]\n");
    let args = match program.split_first() {
        Some((dash, rest)) if dash == "-m" => {
            let (module, args) = rest.split_first()?;
            let _ = writeln!(text, "module = {}", string(module));
            args
        }
        Some(_) if launch.is_command => {
            text.push_str(&list("command", program));
            &[]
        }
        Some((script, args)) => {
            let _ = writeln!(text, "script = {}", string(script));
            args
        }
        None => &[],
    };
    if !args.is_empty() {
        text.push_str(&list("args", args));
    }
    if engine {
        text.push_str("engine = \"accelerate\"\n");
    }
    if !launch.engine_args.is_empty() {
        text.push_str(&list("engine_args", &launch.engine_args));
    }
    let is_setting =
        |line: &&String| !line.starts_with("max_restarts") && !line.starts_with("log_dir");
    for line in job.iter().filter(is_setting) {
        text.push_str(line);
        text.push('\n');
    }
    if argv.is_some() {
        if let Some(folder) = &script.folder {
            let _ = writeln!(text, "workdir = {}", string(folder));
        }
        for (section, key) in [("launch", "max_restarts"), ("logs", "log_dir")] {
            for line in job.iter().filter(|line| line.starts_with(key)) {
                let _ = writeln!(text, "\n[{section}]\n{line}");
            }
        }
        if !script.environment.is_empty() {
            text.push_str("\n[env]\n");
            for (name, value) in &script.environment {
                let _ = writeln!(text, "{name} = {}", string(value));
            }
        }
    }
    Some(AdoptedProfile { file: file.to_owned(), text, is_all: argv.is_some() })
}

/// One option and its value on a line, as people read them.
fn list(key: &str, words: &[String]) -> String {
    const WIDE: usize = 80;
    let words: Vec<String> = words.iter().map(|word| string(word)).collect();
    let line = format!("{key} = [{}]\n", words.join(", "));
    if line.len() <= WIDE {
        return line;
    }
    let mut out = format!("{key} = [\n");
    for (at, word) in words.iter().enumerate() {
        let begins = word.starts_with("\"-") || at == 0;
        let after_flag =
            at > 0 && words.get(at - 1).is_some_and(|before| before.starts_with("\"-"));
        match begins || !after_flag {
            true => out.push_str("    "),
            false => {
                out.pop();
                out.push(' ');
            }
        }
        out.push_str(word);
        out.push_str(",\n");
    }
    out.push_str("]\n");
    out
}

/// A string of TOML.
fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            control if control.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
    out
}
