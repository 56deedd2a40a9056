//! The users of this machine, as its user database names them.

use std::path::Path;

use crate::regular_file;

/// Larger than any user database, in bytes.
const LARGEST: u64 = 1 << 20;

/// The fields of a user in the text of /etc/passwd: name, password, uid, gid, comment, home, shell.
pub fn fields(passwd: &str, uid: u32) -> Option<Vec<&str>> {
    let uid = uid.to_string();
    let mut all = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
    all.find(|fields| fields.get(2).is_some_and(|of| *of == uid))
}

/// `bob (1000)`, or the number alone.
pub fn named(uid: u32) -> String {
    let passwd = regular_file::read(Path::new("/etc/passwd"), LARGEST).unwrap_or_default();
    let passwd = String::from_utf8_lossy(&passwd);
    match fields(&passwd, uid).as_deref() {
        Some([name, ..]) if !name.is_empty() => format!("{name} ({uid})"),
        _ => uid.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_number() {
        let passwd = "root:x:0:0::/root:/bin/sh\n# x\nbob:x:1000:0::/home/bob:/bin/sh\n";
        assert_eq!(fields(passwd, 1000).and_then(|all| all.first().copied()), Some("bob"));
        assert_eq!(fields(passwd, 100), None);
        assert_eq!(named(u32::MAX - 7), (u32::MAX - 7).to_string());
    }
}
