//! The form of a contract: what proves a platform, and which variable gives which field.
//!
//! The program's own rows are in [`super::table`], [`super::launchers`] and
//! [`super::conventions`]; a profile may add one (`[platform]`). All are read by the same code.

use std::borrow::Cow;
use std::fmt;

use crate::contract::{Field, Reading, Strength};
use linux::host::Host;

/// One contract.
#[derive(Debug)]
pub struct Platform {
    pub id: &'static str,
    pub strength: Strength,
    /// The platform is proven when all tests of any one group hold.
    pub proofs: &'static [&'static [Test]],
    pub claims: &'static [PlatformRow],
    /// The master port if the contract does not give it.
    pub default_port: Option<u16>,
}

#[derive(Debug, Clone, Copy)]
pub enum Test {
    Set(&'static str),
    Unset(&'static str),
    Is(&'static str, &'static str),
    Ends(&'static str, &'static str),
    /// A property of several variables, by the name of one of them.
    Holds(&'static str, fn(&Host) -> bool),
    /// A port, but not the tcp://… of a Kubernetes Service link.
    Port(&'static str),
}

#[derive(Debug, Clone, Copy)]
pub struct PlatformRow {
    pub field: Field,
    /// `{OTHER}` in the name stands for the value of another variable.
    pub variable: &'static str,
    pub reading: Reading,
    pub beside: Option<&'static str>,
    /// Read only if the rows before it give no value for the field.
    pub fallback: bool,
    /// Read only if this test holds.
    pub only: Option<fn(&Host) -> bool>,
}

pub(super) const fn is(field: Field, variable: &'static str) -> PlatformRow {
    PlatformRow {
        field,
        variable,
        reading: Reading::Plain,
        beside: None,
        fallback: false,
        only: None,
    }
}

pub(super) const fn also(field: Field, variable: &'static str) -> PlatformRow {
    is(field, variable)
}

pub(super) const fn or(field: Field, variable: &'static str) -> PlatformRow {
    PlatformRow { fallback: true, ..is(field, variable) }
}

pub(super) const fn as_(row: PlatformRow, reading: Reading) -> PlatformRow {
    PlatformRow { reading, ..row }
}

pub(super) const fn only(row: PlatformRow, test: fn(&Host) -> bool) -> PlatformRow {
    PlatformRow { only: Some(test), ..row }
}

pub(super) const fn beside(row: PlatformRow, variable: &'static str) -> PlatformRow {
    PlatformRow { beside: Some(variable), ..row }
}

impl PlatformRow {
    /// The name of the row's variable; None if a part of the name is not known.
    pub(super) fn name(&self, host: &Host) -> Option<Cow<'static, str>> {
        let Some((before, rest)) = self.variable.split_once('{') else {
            return Some(Cow::Borrowed(self.variable));
        };
        let (other, after) = rest.split_once('}')?;
        Some(Cow::Owned(format!("{before}{}{after}", host.variable(other)?.trim())))
    }
}

impl Test {
    pub(super) const fn variable(&self) -> &'static str {
        match self {
            Test::Set(name)
            | Test::Unset(name)
            | Test::Is(name, _)
            | Test::Ends(name, _)
            | Test::Holds(name, _)
            | Test::Port(name) => name,
        }
    }

    pub(super) fn holds(&self, host: &Host) -> bool {
        let value = host.variable(self.variable());
        match self {
            Test::Set(_) => value.is_some(),
            Test::Unset(_) => value.is_none(),
            Test::Is(_, wanted) => value.is_some_and(|found| found == *wanted),
            Test::Ends(_, end) => value.is_some_and(|found| found.ends_with(end)),
            Test::Holds(_, test) => test(host),
            Test::Port(_) => value.is_some_and(|found| found.parse::<u16>().is_ok()),
        }
    }
}

/// As a profile writes it: `NAME`, `!NAME`, `NAME=VALUE`, `NAME=*END`.
impl fmt::Display for Test {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Set(name) | Test::Holds(name, _) | Test::Port(name) => out.write_str(name),
            Test::Unset(name) => write!(out, "!{name}"),
            Test::Is(name, value) => write!(out, "{name}={value}"),
            Test::Ends(name, end) => write!(out, "{name}=*{end}"),
        }
    }
}

impl Platform {
    pub(super) fn is_proven(&self, host: &Host) -> bool {
        self.proofs.iter().any(|group| group.iter().all(|test| test.holds(host)))
    }

    /// The failing tests of the group that is nearest to a proof; empty if the platform is proven.
    pub(super) fn missing(&self, host: &Host) -> Vec<&'static Test> {
        let failing = |group: &&'static [Test]| -> Vec<&'static Test> {
            group.iter().filter(|test| !test.holds(host)).collect()
        };
        self.proofs.iter().map(failing).min_by_key(Vec::len).unwrap_or_default()
    }
}
