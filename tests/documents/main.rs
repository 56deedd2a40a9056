//! Tests of documents: help, READMEs, docs, findings, manifests, lint rules, dependencies, changelogs.

mod chinese;
mod completions;
mod contributing;
mod dependencies;
mod explain_layers;
mod explain_logs;
mod explain_records;
mod findings;
mod help;
mod json_keys;
mod lint;
mod manifests;
mod migration;
mod readme;
mod references;
mod release;
mod schemas;
mod setup;
mod snapshots;
mod unit;
