//! Random bytes from the kernel.
//!
//! getrandom(2) needs no file and no descriptor; Linux has it since 3.17. Before that,
//! and where a container refuses the call, /dev/urandom gives the same bytes.

use std::fs::File;
use std::io::{self, Read};

/// Fills `bytes`.
///
/// # Errors
/// getrandom(2)'s error, if neither the call nor the file is available.
pub fn fill(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes).or_else(|error| {
        let file = File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
        file.map_err(|_| io::Error::other(format!("getrandom: {error}")))
    })
}

/// Random bytes in hexadecimal.
///
/// # Errors
/// As [`fill`].
pub fn hex<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0u8; BYTES];
    fill(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_values_differ() {
        let one = hex::<12>().expect("the kernel has some");
        assert_eq!(one.len(), 24);
        assert_ne!(one, hex::<12>().expect("more"));
    }
}
