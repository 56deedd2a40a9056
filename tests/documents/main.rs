//! Tests of documents: help, READMEs, docs, findings, manifests, lint rules, dependencies.

mod completions;
mod dependencies;
mod explain_logs;
mod explain_records;
mod findings;
mod help;
mod json_keys;
mod lint;
mod manifests;
mod readme;
mod references;
mod setup;
mod snapshots;
