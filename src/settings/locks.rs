//! `locked`: parses the keys of the platform's file that no profile, variable or flag may change.

use super::Sourced;
use super::document::{Document, Entry};
use super::refuse::suggest;
use super::table::{TABLE, Take, is_variable_name, others};
use text::nearest::nearest;
use verdict::{Id, Refusal, Verdict};

/// The keys of a profile that have one value or one list, each with its section.
fn keys() -> impl Iterator<Item = (&'static str, String)> {
    let rows = TABLE.iter().filter(|row| !matches!(row.take, Take::Apart));
    let rows = rows.filter_map(|row| Some((row.table?, row.key())));
    rows.chain(OTHERS.iter().map(|(section, key)| (*section, (*key).to_owned())))
}

/// Keys without a row in the table of settings.
const OTHERS: &[(&str, &str)] =
    &[("job", ENGINE_ARGS), ("job", CONDA_ROOTS), ("", PLATFORM), ("", SELECT)];
pub(super) const ENGINE_ARGS: &str = "engine_args";
pub(super) const CONDA_ROOTS: &str = "conda_roots";
pub(super) const PLATFORM: &str = "platform";
pub(super) const SELECT: &str = "select";

/// Keys that give what a locked one gives as well, each with the locked key.
const GIVES: &[(&str, &str)] = &[("nodes", "nnodes"), ("nodes", "master_addr")];

/// Whether a value of `key` changes what the locked key does.
pub(super) fn changes(key: &str, locked: &str) -> bool {
    let row = TABLE.iter().find(|row| row.key() == locked);
    let mut others = row.into_iter().flat_map(|row| others(row.name));
    key == locked || GIVES.contains(&(key, locked)) || others.any(|it| it.replace('-', "_") == key)
}

/// The tables whose keys are free names.
const FREE: &[&str] = &["env.", "watch.", "diagnose."];

/// The keys that can be locked, but for those of [`FREE`].
fn known() -> Vec<String> {
    let checks = Id::checks().map(|id| format!("severity.{id}"));
    let codes = Verdict::ALL.iter().map(|verdict| format!("exit.{}", verdict.code()));
    keys().map(|(_, key)| key).chain(checks).chain(codes).collect()
}

/// The key by its only name: `logs.log_keep` is `log_keep`.
fn named(text: &str) -> String {
    let qualified = |(section, key): &(&str, String)| {
        text.strip_prefix(section).and_then(|rest| rest.strip_prefix('.')) == Some(key)
    };
    keys().find(qualified).map_or_else(|| text.to_owned(), |(_, key)| key)
}

/// The list of the key `locked`.
pub(super) fn read(
    document: Document<'_>,
    section: Entry<'_>,
) -> Result<Vec<Sourced<String>>, Refusal> {
    let names = document.texts_of(section)?;
    let items = document.items(section)?;
    let lock = |(name, item): (String, Entry<'_>)| {
        let key = named(&name);
        let is_free =
            FREE.iter().any(|table| key.strip_prefix(table).is_some_and(is_variable_name));
        let known = known();
        if !is_free && !known.contains(&key) {
            let near = nearest(&key, known.iter().map(String::as_str));
            let entry = Entry { key: &name, ..item };
            let examples = "log_keep, severity.nofile, env.NAME, exit.64, watch.ID, diagnose.ID";
            return Err(document.refuse_key(entry, "`locked`", suggest(near, examples)));
        }
        Ok(Sourced::new(key, document.source(item.line)))
    };
    names.into_iter().zip(items).map(lock).collect()
}
