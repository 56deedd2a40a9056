//! NCCL's configuration file as a function that a fuzzer feeds. Not part of the program.

use std::collections::BTreeMap;

use super::{Stage, decide};
use node::observe::network::conf_lines;
use node::observe::{NcclSetting, NetworkFacts};
use plan::Scope;

/// Reads a file as NCCL does, and plans below it.
///
/// A second reader, written after NCCL's own, finds the same settings, and they stay the same when they are written and
/// read again. Below them a node gets a plan that overrides none of them, or a refusal.
pub fn nccl_conf(data: &[u8]) -> bool {
    let text = String::from_utf8_lossy(data);
    let found: Vec<(&str, &str)> = conf_lines(&text).collect();
    let second = by_letters(&text);
    let named: Vec<(&str, &str)> =
        second.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(found, named);
    let written: String = found.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    assert_eq!(conf_lines(&written).collect::<Vec<_>>(), found);
    if found.is_empty() {
        return false;
    }
    let of = |(name, value): &(&str, &str)| NcclSetting {
        name: (*name).to_owned(),
        value: (*value).to_owned(),
        source: "/etc/nccl.conf".to_owned(),
    };
    let mut facts = plan::fixtures::facts(2);
    facts.network =
        NetworkFacts { nccl: found.iter().map(of).collect(), ..NetworkFacts::default() };
    let mut settings = plan::fixtures::settings(&[]);
    settings.nnodes = Some(plan::fixtures::flag(2, "--nnodes"));
    settings.node_rank = Some(plan::fixtures::flag(0, "--node-rank"));
    settings.master_addr = Some(plan::fixtures::flag("10.0.0.1".to_owned(), "--master-addr"));
    let Ok(plan) = decide(&settings, &facts, Scope::Alone).plan(Stage::BeforeStart) else {
        return true;
    };
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    found.iter().for_each(|(name, value)| {
        first.entry(name).or_insert(value);
    });
    for (name, value) in first {
        let Some(planned) = plan.env.get(name) else { continue };
        let same = planned.to_string_lossy() == value;
        let warned = plan.warnings.iter().any(|one| one.text.en.contains(name));
        assert!(same || warned, "{name}={value} became {planned:?} in silence");
    }
    true
}

/// Goes through a file letter by letter, like src/misc/param.cc of NCCL.
fn by_letters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut letters = text.chars().peekable();
    while letters.peek().is_some() {
        let (mut name, mut value, mut has_value, mut at) = (String::new(), String::new(), false, 0);
        let mut is_comment = false;
        for letter in letters.by_ref() {
            if letter == '\n' {
                break;
            }
            is_comment |= at == 0 && letter == '#';
            at += 1;
            match (has_value, letter) {
                (false, '=') => has_value = true,
                (false, letter) => name.push(letter),
                (true, letter) => value.push(letter),
            }
        }
        // Names that are almost NCCL's are kept, so that the mistake is reported.
        let meant = name.trim_start();
        let meant = meant.strip_prefix("export").map_or(meant, str::trim_start);
        if has_value && !is_comment && meant.starts_with("NCCL_") {
            found.push((name, value));
        }
    }
    found
}
