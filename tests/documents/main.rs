//! What is written: help, READMEs, documents, findings, manifests, lint rules, dependencies.

mod completions;
mod dependencies;
mod findings;
mod help;
mod lint;
mod manifests;
mod readme;
mod references;
mod setup;
mod snapshots;
