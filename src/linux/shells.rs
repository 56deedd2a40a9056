//! Shells by the names of their files.

/// Shells that take `-c SCRIPT`.
const SHELLS: [&[u8]; 7] = [b"bash", b"sh", b"dash", b"ash", b"zsh", b"ksh", b"mksh"];

/// Whether a file of this name is a shell that takes `-c SCRIPT`.
pub fn is_shell(name: &[u8]) -> bool {
    SHELLS.contains(&name)
}
