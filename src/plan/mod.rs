//! What will be run: membership, layout, devices, network, environment, command line.
//!
//! Takes [`Settings`](crate::settings::Settings) and [`Facts`](crate::observe::Facts);
//! gives a [`Plan`] or a [`Refusal`](crate::verdict::Refusal). Pure functions: no
//! file, no socket, no clock.

mod arguments;
pub mod heads;
pub mod layout;
mod notes;
pub mod placeholders;
mod types;

pub use notes::{Notes, severity};
pub use types::*;
