//! One log.

use crate::{LogScan, Origin, Scanned, catalogue, diagnose};

/// Reads the same log whole and in pieces; panics if the results differ. The first byte gives the
/// size of the pieces.
pub fn log(data: &[u8]) -> bool {
    let Some((size, log)) = data.split_first() else { return false };
    let whole = read(std::iter::once(log));
    let cut = read(log.chunks(usize::from(*size) + 1));
    assert_eq!((whole.lines, whole.bytes), (cut.lines, cut.bytes));
    assert_eq!(whole.last_lines(20), cut.last_lines(20));
    let diagnosis = diagnose(catalogue(), &[whole], false);
    assert_eq!(diagnosis, diagnose(catalogue(), &[cut], false));
    !diagnosis.findings.is_empty()
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Scanned {
    let mut scan = LogScan::new(catalogue(), 0, Origin::default());
    pieces.for_each(|piece| scan.feed(piece));
    scan.finish()
}
