//! The shared secret of a job, as a key.

use std::fmt;
use std::path::Path;

use blake2::{Blake2s256, Digest};

use crate::host::Host;
use crate::text;
use crate::verdict::{Refusal, Verdict};

const VARIABLE: &str = "RANKLAUNCH_SECRET";
const FILE: &str = "RANKLAUNCH_SECRET_FILE";
/// Shorter ones can be guessed off-line from a recorded handshake.
const SHORTEST: usize = 16;

/// 32 bytes made of what the user gave; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(…)")
    }
}

impl Secret {
    /// From RANKLAUNCH_SECRET, or from the file that RANKLAUNCH_SECRET_FILE names.
    ///
    /// # Errors
    /// When it is shorter than 16 bytes, or the file cannot be read.
    pub fn read(host: &Host) -> Result<Option<Secret>, Refusal> {
        let variable = host.variable(VARIABLE).filter(|value| !value.is_empty());
        if let Some(value) = variable {
            return Secret::new(value.as_bytes(), VARIABLE).map(Some);
        }
        let Some(path) = host.variable(FILE).filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let bytes = std::fs::read(Path::new(&path)).map_err(|error| {
            refuse(
                text!("{FILE}={path} cannot be read: {error}", "{FILE}={path} 无法读取：{error}"),
                text!(
                    "mount the secret there, readable by this user",
                    "请将密钥挂载到该路径，并允许当前用户读取"
                ),
            )
        })?;
        // Editors and `echo` end a file with a newline, `kubectl create secret` does not.
        let end =
            bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |at| at + 1);
        Secret::new(bytes.get(..end).unwrap_or_default(), FILE).map(Some)
    }

    fn new(bytes: &[u8], source: &str) -> Result<Secret, Refusal> {
        let length = bytes.len();
        if length < SHORTEST {
            return Err(refuse(
                text!(
                    "{source} gives a secret of {length} bytes, and {SHORTEST} are the least",
                    "{source} 给出的密钥只有 {length} 字节，至少需要 {SHORTEST} 字节"
                ),
                text!(
                    "make one with: head -c 32 /dev/urandom | base64",
                    "可用以下命令生成：head -c 32 /dev/urandom | base64"
                ),
            ));
        }
        let mut hash = Blake2s256::new();
        hash.update(b"ranklaunch muster key 1");
        hash.update(bytes);
        Ok(Secret(hash.finalize().into()))
    }

    #[cfg(any(test, fuzzing))]
    pub(super) fn of_test(byte: u8) -> Secret {
        Secret([byte; 32])
    }

    pub(super) fn key(&self) -> &[u8; 32] {
        &self.0
    }
}

fn refuse(text: crate::lang::Text, hint: crate::lang::Text) -> Refusal {
    Refusal::new(Verdict::Usage, "muster.secret", text, hint)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn host(name: &str, value: &str) -> Host {
        Host::replayed("/", BTreeMap::from([(name.into(), value.into())]))
    }

    #[test]
    fn a_file_and_a_variable_of_the_same_words_agree() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "0123456789abcdef\n").expect("written");
        let path = file.path().to_string_lossy().into_owned();
        let from_file = Secret::read(&host(FILE, &path)).expect("a secret");
        let from_variable = Secret::read(&host(VARIABLE, "0123456789abcdef")).expect("a secret");
        assert!(from_file.is_some());
        assert_eq!(from_file, from_variable);
        assert!(!format!("{from_file:?}").contains("0123"));
    }

    #[test]
    fn a_short_or_missing_secret_is_refused() {
        for (name, value) in [(VARIABLE, "0123456789abcde"), (FILE, "/no/such/file")] {
            let refusal = Secret::read(&host(name, value)).expect_err(name);
            assert_eq!((refusal.verdict.code(), refusal.id.as_str()), (64, "muster.secret"));
        }
        assert_eq!(Secret::read(&host("OTHER", "x")), Ok(None));
    }
}
