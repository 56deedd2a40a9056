//! The reading of an answer as a function that a fuzzer feeds. Not part of the program.

use super::view::{RasView, read};
use crate::rank::GlobalRank;

/// Reads bytes as the report of NCCL and judges it.
pub fn ras(data: &[u8]) {
    let Ok(view) = read(data) else { return };
    let ranks = [(GlobalRank(0), 17), (GlobalRank(1), 18)];
    let _: (bool, _) = (RasView::knows(&view, &ranks), view.verdict(Some(2), &ranks));
}
