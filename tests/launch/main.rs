//! Launches on one node: engines, readiness, logs, the terminal, `init`, and the causes of failures.

mod binding;
mod causes;
mod direct;
mod init;
mod interactive;
mod kernel_log;
mod last_words;
mod logs;
mod nested;
mod old_kernels;
mod one_file;
mod ranks_begun;
mod readiness;
mod secrets;
mod signal_to_all;
mod tasks;
mod torchrun;
mod xids;
