//! The subcommands that start no job, one file each, and how they print.

pub(super) mod check;
mod check_nodes;
pub(super) mod clean;
pub(super) mod completions;
pub(super) mod explain;
pub(super) mod init;
pub(super) mod install;
pub(super) mod lint;
pub(super) mod output;
pub(super) mod plan;
pub(super) mod profiles;
pub(super) mod wait;
