//! Values in the program's own arguments, read as argparse would read them.
//!
//! Takes the argument list as bytes; gives the value of one named argument in
//! either spelling (`--task x`, `--task=x`), the last occurrence winning. Never
//! changes an argument and never guesses abbreviations.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// The last value given to the argument `name`, if any.
pub(crate) fn value_of<'a>(args: &'a [OsString], name: &str) -> Option<&'a OsStr> {
    if name.is_empty() {
        return None;
    }
    let mut found = None;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        if arg.as_bytes() == name.as_bytes() {
            // `--a --b`: an argument without a value is argparse's to report.
            if let Some(value) = rest.clone().next() {
                found = Some(value.as_os_str());
                rest.next();
            }
        } else if let Some(value) =
            arg.as_bytes().strip_prefix(name.as_bytes()).and_then(|tail| tail.strip_prefix(b"="))
        {
            found = Some(OsStr::from_bytes(value));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_are_read_and_the_last_one_wins() {
        let cases: [(&[&str], Option<&str>); 7] = [
            (&["--task", "a"], Some("a")),
            (&["--task=a"], Some("a")),
            (&["--task", "a", "--task=b"], Some("b")),
            (&["--task=b", "--task", "a"], Some("a")),
            (&["--task"], None),
            (&["--tasks=b", "x"], None),
            (&["--task="], Some("")),
        ];
        for (args, expected) in cases {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            assert_eq!(value_of(&args, "--task"), expected.map(OsStr::new), "{args:?}");
        }
    }
}
