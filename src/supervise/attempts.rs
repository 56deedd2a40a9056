//! Variables that show the attempts to a rank: the same with every engine.
//!
//! torchrun counts only its own restarts, which occur only in an elastic job; the launcher starts
//! all nodes again. So the shim, which comes after the engine, adds the launcher's numbers to
//! torchrun's variables, by which programs decide whether they resume.

use super::message::{AGENT_SOCKET, RESTARTS};

/// The number of the attempt, from 0; the folders of the logs contain it too.
pub(crate) const ATTEMPT: &str = "RANKLAUNCH_ATTEMPT";
const COUNT: &str = "TORCHELASTIC_RESTART_COUNT";
const MOST: &str = "TORCHELASTIC_MAX_RESTARTS";

/// The variables of a rank whose shim has these. A command of the user's gets none: its own launcher
/// counts for its ranks.
pub(super) fn for_rank(variable: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, String)> {
    let number = |name: &str| variable(name)?.trim().parse::<u32>().ok();
    let words = variable(AGENT_SOCKET).unwrap_or_default();
    let most = words.split(' ').find_map(|word| word.strip_prefix(RESTARTS)?.parse::<u32>().ok());
    let Some((attempt, most)) = number(ATTEMPT).zip(most) else { return Vec::new() };
    let added = |name: &'static str, own: u32| {
        (name, number(name).unwrap_or(0).saturating_add(own).to_string())
    };
    vec![added(COUNT, attempt), added(MOST, most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launcher_attempts_are_added_to_engine_restarts() {
        let of = |set: &[(&str, &str)]| {
            let seen = for_rank(|name| {
                set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
            });
            seen.into_iter().map(|(_, value)| value).collect::<Vec<_>>().join(" ")
        };
        let agent = |words: &'static str| (AGENT_SOCKET, words);
        let ours = agent("name token 28000 restarts=3");
        assert_eq!(of(&[ours, (ATTEMPT, "2")]), "2 3");
        assert_eq!(of(&[ours, (ATTEMPT, "2"), (COUNT, "0"), (MOST, "0")]), "2 3");
        let elastic = agent("name token 28000 restarts=0 free-engine");
        assert_eq!(of(&[elastic, (ATTEMPT, "0"), (COUNT, "1"), (MOST, "3")]), "1 3");
        assert_eq!(of(&[agent("name token 28000"), (ATTEMPT, "1")]), "", "a command");
        assert_eq!(of(&[(ATTEMPT, "1"), (COUNT, "4")]), "", "no agent");
    }
}
