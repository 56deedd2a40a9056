//! The kind of a file and its text: the one place where `adopt` and `lint` tell a script from a manifest.

use text::lang::Text;
use text::text;
use text::yaml;

/// How the lines begin that a batch system reads: Slurm, PBS, LSF, Grid Engine.
pub(crate) const DIRECTIVES: &[&str] = &["#SBATCH", "#PBS", "#BSUB", "#$ "];

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// A shell script, perhaps for a batch system.
    Script,
    /// A Compose file.
    Compose,
    /// Objects of Kubernetes, or another YAML file with command lines.
    Manifest,
    /// A file of `accelerate config`.
    AccelerateConfig,
    /// A profile of ranklaunch.
    Profile,
    /// Neither the name nor the text says it.
    Unknown,
}

impl InputKind {
    /// By the end of its name, else by its first line, else by the lines that only one kind has.
    pub fn of(name: &str, text: &str) -> InputKind {
        let file = name.rsplit('/').next().unwrap_or(name);
        let end = file.rsplit_once('.').map(|(_, end)| end).unwrap_or_default();
        let first = text.lines().next().unwrap_or_default();
        let has_line = |starts: &[&str]| {
            text.lines().any(|line| starts.iter().any(|start| line.starts_with(start)))
        };
        match end {
            "sh" | "bash" | "sbatch" | "slurm" | "pbs" | "lsf" => InputKind::Script,
            "yaml" | "yml" | "json" => of_yaml(text),
            "toml" => InputKind::Profile,
            _ if first.starts_with("#!") && first.contains("sh") => InputKind::Script,
            _ if has_line(DIRECTIVES) => InputKind::Script,
            _ if has_line(&["apiVersion:", "services:", "distributed_type:"]) => of_yaml(text),
            _ if has_line(&["[job]"]) => InputKind::Profile,
            _ => InputKind::Unknown,
        }
    }
}

fn of_yaml(text: &str) -> InputKind {
    let documents = yaml::documents(text);
    let first = documents.roots.first().filter(|root| root.get("kind").is_none());
    let has = |key: &str| first.is_some_and(|root| root.get(key).is_some());
    match (has("services"), has("distributed_type")) {
        (true, _) => InputKind::Compose,
        (false, true) => InputKind::AccelerateConfig,
        (false, false) => InputKind::Manifest,
    }
}

/// The text of a file without its byte order mark; else the line (from 1) at which it is none, and why.
pub fn text_of(bytes: &[u8]) -> Result<&str, (usize, Text)> {
    let line_at = |at: usize| 1 + bytes.iter().take(at).filter(|byte| **byte == b'\n').count();
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        let why = text!(
            "a NUL byte, which no text has: is the file UTF-16, or a program?",
            "含有 NUL 字节，文本中不应出现：是否为 UTF-16 文件或程序？"
        );
        return Err((line_at(at), why));
    }
    let text = std::str::from_utf8(bytes);
    let text =
        text.map_err(|error| (line_at(error.valid_up_to()), text!("not UTF-8", "不是 UTF-8")))?;
    Ok(text.strip_prefix('\u{FEFF}').unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_told_by_name_then_text() {
        use InputKind::{AccelerateConfig, Compose, Manifest, Profile, Script, Unknown};
        for (name, text, kind) in [
            ("a.sh", "services:\n", Script),
            ("/x.d/a", "#!/usr/bin/env bash\ncat <<E\napiVersion: v1\nE\n", Script),
            ("a", "hostname\n#SBATCH -N 2\n", Script),
            ("a", "#PBS -l nodes=1\n", Script),
            ("a.yaml", "kind: Pod\nservices: {}\n", Manifest),
            ("a.yml", "services:\n  a: {image: b}\n", Compose),
            ("-", "version: '3'\nservices:\n  a: {image: b}\n", Compose),
            ("-", "apiVersion: v1\nkind: Pod\n", Manifest),
            ("a.json", "{\"distributed_type\": \"FSDP\"}", AccelerateConfig),
            ("default_config", "distributed_type: FSDP\n", AccelerateConfig),
            ("a.toml", "", Profile),
            ("a", "# mine\n[job]\nscript = \"a.py\"\n", Profile),
            ("a", "torchrun a.py\n", Unknown),
            ("a.b/c", "", Unknown),
        ] {
            assert_eq!(InputKind::of(name, text), kind, "{name} {text}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_have_their_line() {
        assert_eq!(text_of("\u{FEFF}a\n".as_bytes()).expect("a text"), "a\n");
        for (bytes, line) in [(&b"a\nb\0c\n"[..], 2), (b"a\n\nb\xff", 3), (b"t\0o\0", 1)] {
            assert_eq!(text_of(bytes).expect_err("no text").0, line, "{bytes:?}");
        }
    }
}
