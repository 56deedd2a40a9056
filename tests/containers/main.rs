//! Jobs in containers of a real Docker engine.

mod hosts;
mod jobs;
mod start;
