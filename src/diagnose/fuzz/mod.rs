//! Fuzz targets for logs and for rows of a profile. Not part of the program.

mod log;
pub mod rows;

pub use log::log;
