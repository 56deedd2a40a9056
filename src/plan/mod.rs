//! What will be run: membership, layout, devices, network, environment, command line.
//!
//! Takes [`Settings`](crate::settings::Settings) and [`Facts`](crate::observe::Facts);
//! gives a [`Plan`] or a [`Refusal`](crate::verdict::Refusal). Pure functions: no
//! file, no socket, no clock.

mod membership;
mod types;

pub use membership::{AskedNproc, asked_nproc, membership, offered_nproc};
pub use types::*;
