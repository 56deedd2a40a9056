//! Classifies single words of a command: an option, or a program that takes a command line.

/// Language of the text after `-c`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Shell,
    Code,
}

/// `--name`, `-n`, `--name=…`; not a negative number, nor a PEM block.
pub(super) fn is_option(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    let dashes = word.len() - name.len();
    let name = name.split('=').next().unwrap_or(name);
    (1..=2).contains(&dashes)
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// An option rather than the value of the secret before it: `--lr` and not `--S3CR3T`, which may be
/// either.
pub(super) fn is_clearly_option(word: &str) -> bool {
    let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
    is_option(word) && (name.len() <= 2 || name.chars().any(|c| c.is_ascii_lowercase()))
}

/// A program's name: `/usr/bin/python3.11` → python
pub(super) fn program(word: &str) -> &str {
    let name = word.rsplit('/').next().unwrap_or(word);
    name.trim_start_matches('-').trim_end_matches(|c: char| c.is_ascii_digit() || c == '.')
}

/// Programs that take a command line or code after `-c` or `-e`.
pub(super) fn language(program: &str) -> Option<Language> {
    match program {
        "sh" | "bash" | "dash" | "ash" | "zsh" | "ksh" | "mksh" | "fish" | "csh" | "tcsh"
        | "busybox" | "su" | "runuser" | "script" | "flock" => Some(Language::Shell),
        "python" | "pypy" | "perl" | "ruby" | "node" => Some(Language::Code),
        _ => None,
    }
}

const PROGRAMS: &[&str] = &[
    "env",
    "export",
    "cd",
    "source",
    "set",
    "sudo",
    "exec",
    "curl",
    "wget",
    "git",
    "pip",
    "wandb",
    "huggingface-cli",
    "hf",
    "aws",
    "gsutil",
    "ssh",
    "srun",
    "sbatch",
    "mpirun",
    "docker",
    "kubectl",
    "nohup",
    "timeout",
    "time",
    "echo",
    "cat",
    "ray",
    "conda",
    "torchrun",
    "accelerate",
    "deepspeed",
    "ranklaunch",
    "uv",
    "numactl",
    "nice",
    "test",
];

/// Whether a word is a program or a script.
pub(super) fn is_command(word: &str) -> bool {
    let name = program(word);
    PROGRAMS.contains(&name)
        || language(name).is_some()
        || [".py", ".sh"].iter().any(|end| word.ends_with(end))
}

/// Whether a text with spaces is a command line rather than a sentence, by its first word.
pub(super) fn is_command_line(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    let assigns = first.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    });
    let name = program(first);
    is_option(first)
        || assigns
        || PROGRAMS.contains(&name)
        || language(name).is_some_and(|_| text.contains(" -"))
        || [".py", ".sh"].iter().any(|end| first.ends_with(end))
        || first.contains('/') && first.starts_with(['/', '.', '~'])
        || ["&&", "||", ";HF_", "$("].iter().any(|operator| text.contains(operator))
}
