//! Files that build.rs has deflated: texts to a quarter of their size, read only where a person asks or a job has failed,
//! and the node-probe to less than a half, read once where there may be a driver to ask.

use std::io::{self, Read};

use flate2::read::ZlibDecoder;

/// A deflated file. Fails if it is none.
pub(crate) fn bytes(deflated: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(3 * deflated.len());
    ZlibDecoder::new(deflated).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a deflated file. Fails if it is none, or no UTF-8.
pub(crate) fn inflated(deflated: &[u8]) -> io::Result<String> {
    String::from_utf8(bytes(deflated)?).map_err(io::Error::other)
}

/// The files of a deflated folder, each a name and a text.
pub(crate) fn files(bytes: &[u8]) -> io::Result<Vec<(String, String)>> {
    let all = inflated(bytes)?;
    let mut parts = all.split_terminator('\0').map(str::to_owned);
    Ok(std::iter::from_fn(|| Some((parts.next()?, parts.next()?))).collect())
}
