//! The shared secret of a job (`RANKLAUNCH_SECRET`), as a key.

use std::fmt;
use std::path::Path;

use blake2::{Blake2s256, Digest};

use linux::host::Host;
use text::lang::{Text, cause};
use text::text;
use verdict::{Id, Refusal, Verdict};

/// The variable that holds the secret itself.
pub const VARIABLE: &str = "RANKLAUNCH_SECRET";
const FILE: &str = "RANKLAUNCH_SECRET_FILE";
/// Minimum bytes of a secret. A shorter secret can be guessed off-line from a recorded handshake.
const SHORTEST: usize = 16;

/// 32 bytes derived from the user's secret; never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Secret(…)")
    }
}

impl Secret {
    /// Reads the secret from RANKLAUNCH_SECRET, or from the file that RANKLAUNCH_SECRET_FILE names.
    ///
    /// # Errors
    /// If one of the variables is set but empty, the secret is shorter than 16 bytes, or the file cannot be read.
    pub fn read(host: &Host) -> Result<Option<Secret>, Refusal> {
        if let Some(value) = host.variable(VARIABLE) {
            let secret = without_newline(value.as_bytes());
            return set(secret.is_empty(), VARIABLE)
                .and_then(|()| Secret::new(secret, VARIABLE))
                .map(Some);
        }
        let Some(path) = host.variable(FILE) else { return Ok(None) };
        set(path.is_empty(), FILE)?;
        let bytes = std::fs::read(Path::new(&path)).map_err(|error| {
            let Text { en, zh } = cause(&error);
            refuse(
                text!("{FILE}={path} cannot be read: {en}", "{FILE}={path} 无法读取：{zh}"),
                text!(
                    "mount the secret there, readable by this user",
                    "请将密钥挂载到该路径，并允许当前用户读取"
                ),
            )
        })?;
        Secret::new(without_newline(&bytes), FILE).map(Some)
    }

    fn new(bytes: &[u8], source: &str) -> Result<Secret, Refusal> {
        let length = bytes.len();
        if length < SHORTEST {
            return Err(refuse(
                text!(
                    "{source} gives a secret of {length} bytes; the minimum is {SHORTEST}",
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

    #[cfg(any(test, feature = "fixtures"))]
    pub fn of_test(byte: u8) -> Secret {
        Secret([byte; 32])
    }

    pub fn key(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The bytes without the final newline that editors and `echo` add, and that a Kubernetes Secret made from such a file
/// keeps. So a variable and a file give the same secret.
fn without_newline(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'));
    end.and_then(|end| bytes.get(..=end)).unwrap_or_default()
}

/// Refuses an empty value. It does not mean "no secret", since after a failed substitution the channel would be
/// unencrypted.
fn set(is_empty: bool, variable: &str) -> Result<(), Refusal> {
    if !is_empty {
        return Ok(());
    }
    Err(refuse(
        text!("{variable} is set but empty", "{variable} 已设置但为空"),
        text!(
            "give it a value, or unset it on all nodes for an unencrypted channel; a substitution may have failed",
            "请赋值；若不需要加密，请在所有节点取消该变量；也可能是变量替换失败"
        ),
    ))
}

fn refuse(text: Text, hint: Text) -> Refusal {
    Refusal::with(Verdict::Usage, Id::MusterSecret, text, hint)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn host(name: &str, value: &str) -> Host {
        Host::replayed("/", BTreeMap::from([(name.into(), value.into())]))
    }

    #[test]
    fn file_and_variable_give_the_same_secret() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().to_string_lossy().into_owned();
        let plain = Secret::read(&host(VARIABLE, "0123456789abcdef")).expect("a secret");
        assert!(plain.is_some());
        for end in ["", "\n", "\r\n", "\n\n"] {
            let words = format!("0123456789abcdef{end}");
            std::fs::write(file.path(), &words).expect("written");
            assert_eq!(Secret::read(&host(FILE, &path)).as_ref(), Ok(&plain), "{end:?}");
            assert_eq!(Secret::read(&host(VARIABLE, &words)).as_ref(), Ok(&plain), "{end:?}");
        }
        assert!(!format!("{plain:?}").contains("0123"));
    }

    #[test]
    fn a_short_empty_or_missing_secret_is_refused() {
        for (name, value) in [
            (VARIABLE, "0123456789abcde"),
            (VARIABLE, "0123456789abcde\n\n"),
            (VARIABLE, ""),
            (VARIABLE, "\n"),
            (FILE, "/no/such/file"),
            (FILE, ""),
        ] {
            let refusal = Secret::read(&host(name, value)).expect_err(name);
            assert_eq!((refusal.verdict.code(), refusal.id), (64, Id::MusterSecret));
            let is_empty = value.trim().is_empty();
            assert_eq!(refusal.text.en.contains("is set but empty"), is_empty, "{value:?}");
        }
        assert_eq!(Secret::read(&host("OTHER", "x")), Ok(None));
    }
}
