//! The numbers in the names of checkpoints.

/// Words in front of the number of a step, in the names of checkpoints.
const STEPS: &[&str] =
    &["step", "iter", "iteration", "checkpoint", "ckpt", "global_step", "samples"];

/// The step in a name: the number behind one of [`STEPS`] (`epoch=3-step=1200.ckpt`, `checkpoint-500`, `iter_0001000`),
/// else the only number, if it is a word of its own (`model_12.pt`, not `resnet50.pt` or `llama-7b.safetensors`).
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let mut numbers: Vec<(&str, u64, &str)> = Vec::new();
    let mut rest = name;
    while let Some(at) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let (before, after) = rest.split_at(at);
        let end = after.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(after.len());
        let (digits, after) = after.split_at(end);
        numbers.extend(digits.parse().ok().map(|number| (before, number, after)));
        rest = after;
    }
    let is_step = |(before, ..): &&(&str, u64, &str)| {
        let word = before.trim_end_matches(['-', '_', '=', '.']).to_ascii_lowercase();
        STEPS.iter().any(|step| word.ends_with(step))
    };
    let is_apart = |(before, _, after): &(&str, u64, &str)| {
        !before.ends_with(char::is_alphabetic) && !after.starts_with(char::is_alphabetic)
    };
    match (numbers.iter().rev().find(is_step), numbers.as_slice()) {
        (Some((_, number, _)), _) => Some(*number),
        (None, [only]) if is_apart(only) => Some(only.1),
        (None, _) => None,
    }
}

/// Whether `name` is `before` and a number.
pub(crate) fn is_numbered(name: &str, before: &str) -> bool {
    let digits = name.strip_prefix(before).unwrap_or_default();
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}
