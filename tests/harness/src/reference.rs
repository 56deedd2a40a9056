//! config/reference.toml, and the profile that results from it with all of its keys in force.

pub const REFERENCE: &str = include_str!("../../../config/reference.toml");

/// The profile without the base, whose values would replace its own.
pub fn in_force() -> String {
    let key = |line: &'static str| {
        let bare = line.strip_prefix('#').filter(|rest| !rest.starts_with([' ', '#']));
        bare.filter(|rest| !rest.is_empty()).unwrap_or(line)
    };
    let lines = REFERENCE.lines().map(key).filter(|line| !line.starts_with("extends"));
    lines.collect::<Vec<_>>().join("\n")
}
