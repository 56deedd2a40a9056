//! The subcommands that start no job, one file each, and their common output.

pub(super) mod check;
mod check_nodes;
pub(super) mod clean;
pub(super) mod completions;
pub(super) mod explain;
mod explain_logs;
pub(super) mod init;
pub(super) mod install;
pub(super) mod lint;
mod log_files;
mod log_streams;
pub(super) mod output;
mod own_end;
mod own_journal;
mod own_records;
pub(super) mod plan;
pub(super) mod profiles;
pub(super) mod wait;
