//! The expansion of host lists and the parsing of a command line as functions that a fuzzer feeds. Not part
//! of the program.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::cli::{Command, Stop, language_of};
use crate::hostlist::{
    LONGEST_NAME, MOST, expand, is_whole, items, of_daemons, of_prterun, position,
};
use text::fuzzing::Choices;
use text::lang::Lang;
use verdict::Verdict;

/// Expands a list. The first byte chooses between any text and a list that is made of the bytes, whose hosts are known.
pub fn nodelist(data: &[u8]) -> bool {
    let [mode, rest @ ..] = data else { return false };
    if mode.is_multiple_of(3) {
        known(&mut Choices(rest));
        return true;
    }
    let Ok(list) = std::str::from_utf8(rest) else { return false };
    let hosts = if mode % 3 == 1 { expand(list) } else { of_daemons(list) };
    bounded(&hosts);
    if mode % 3 == 1 {
        let parts: Vec<&str> = items(list).collect();
        assert_eq!(parts.join(","), list.trim());
        let whole = parts.iter().all(|part| is_whole(part));
        // Whole lists leave no bracket in a name. Names without brackets and commas expand to themselves.
        if whole {
            assert!(!hosts.iter().any(|host| host.contains(['[', ']'])), "{hosts:?}");
        }
        if hosts.len() < 50 && !hosts.iter().any(|host| host.contains(['[', ']', ','])) {
            let trimmed: Vec<&str> = hosts.iter().map(String::as_str).collect();
            if trimmed.iter().all(|host| *host == host.trim()) {
                assert_eq!(expand(&hosts.join(",")), hosts);
            }
        }
    }
    for host in hosts.iter().take(3) {
        let first = hosts.iter().position(|other| other == host.trim());
        if mode % 3 == 1 {
            assert_eq!(position(list, host), first, "{host}");
        }
    }
    if let Some(host) = of_prterun(list) {
        assert!(!host.is_empty() && list.contains(host));
    }
    !hosts.is_empty()
}

fn bounded(hosts: &[String]) {
    assert!(hosts.len() <= MOST, "{} hosts", hosts.len());
    for host in hosts {
        assert!(!host.is_empty() && host.len() <= LONGEST_NAME, "{} bytes", host.len());
    }
}

/// Expands a list whose hosts are known, since the list is written independently of the parser.
fn known(choices: &mut Choices<'_>) {
    let (mut list, mut hosts) = (Vec::new(), Vec::new());
    while !choices.is_empty() && list.len() < 6 {
        let name = choices.of(&["n", "gpu-", "rack", "a.b", "节", "x_"]);
        let tail = choices.of(&["", "", "-ib", ".lan"]);
        let width = choices.below(4);
        let mut group = Vec::new();
        for _ in 0..choices.below(3) {
            let first = choices.below(120);
            let last = first + choices.below(12);
            let numbers: Vec<String> = (first..=last).map(|n| format!("{n:0width$}")).collect();
            group.push(match numbers.as_slice() {
                [one] => one.clone(),
                // The first number gives the width.
                [one, .., end]
                    if one.len() >= width && (one.len() == end.len() || !one.starts_with('0')) =>
                {
                    format!("{one}-{end}")
                }
                _ => numbers.join(","),
            });
            hosts.extend(numbers.iter().map(|number| format!("{name}{number}{tail}")));
        }
        if group.is_empty() {
            list.push(format!("{name}{tail}"));
            hosts.push(format!("{name}{tail}"));
        } else {
            list.push(format!("{name}[{}]{tail}", group.join(",")));
        }
    }
    let text = list.join(",");
    assert!(list.iter().all(|item| is_whole(item)), "{text}");
    assert_eq!(expand(&text), hosts, "{text}");
}

/// Words, parted by line ends, behind the program's name.
///
/// They give a command, a text to show, or a refusal of usage that says in both languages what is wrong; the same words
/// give the same.
pub fn words(data: &[u8]) -> bool {
    let mut line: Vec<OsString> = vec!["ranklaunch".into()];
    let given = data.split(|byte| *byte == b'\n').filter(|word| !word.contains(&0));
    line.extend(given.map(|word| OsString::from_vec(word.to_vec())));
    let parsed = Command::parse(line.iter().cloned());
    assert_eq!(format!("{parsed:?}"), format!("{:?}", Command::parse(line.iter().cloned())));
    language_of(&line);
    match parsed {
        Ok(_) => true,
        Err(Stop::Shown(text)) => {
            assert!(!text.is_empty());
            assert!(!Command::shown(text, &line, Lang::Zh).is_empty());
            true
        }
        Err(Stop::Refused(refusal)) => {
            assert_eq!(refusal.verdict, Verdict::Usage, "{refusal:?}");
            for text in [&refusal.text, &refusal.hint] {
                assert!(!text.en.trim().is_empty() && !text.zh.trim().is_empty(), "{refusal:?}");
            }
            false
        }
    }
}
