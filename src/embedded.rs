//! Texts that build.rs has deflated: a quarter of their size, and read only where a person asks or a job has failed.

use std::io::{self, Read};

use flate2::read::ZlibDecoder;

/// The text of a deflated file. Fails if it is none, or no UTF-8.
pub(crate) fn inflated(bytes: &[u8]) -> io::Result<String> {
    let mut text = String::new();
    ZlibDecoder::new(bytes).read_to_string(&mut text)?;
    Ok(text)
}

/// The files of a deflated folder, each a name and a text.
pub(crate) fn files(bytes: &[u8]) -> io::Result<Vec<(String, String)>> {
    let all = inflated(bytes)?;
    let mut parts = all.split_terminator('\0').map(str::to_owned);
    Ok(std::iter::from_fn(|| Some((parts.next()?, parts.next()?))).collect())
}
