//! The `RANKLAUNCH_*` variables: empty ones count as unset, unknown ones get a warning. The default grace
//! period, which is that of the pod, less a margin: a platform gives it to a container in a variable.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

use super::layer::SITE_VARIABLE;
use super::refuse::{empty_variable, quoted, unknown_variable};
use super::table::{SettingRow, TABLE};
use super::value::duration;
use super::{Source, Sourced};
use linux::host::Host;
use text::nearest::nearest;
use text::text;
use verdict::{Id, Warning};

/// Variables that are not settings: those of our own processes, and those that other rooms read.
#[rustfmt::skip]
const OUR_OWN: &[&str] = &[
    "RANKLAUNCH_SECRET", "RANKLAUNCH_SECRET_FILE", "RANKLAUNCH_NVML_LIBRARY",
    "RANKLAUNCH_AGENT_SOCKET", "RANKLAUNCH_ATTEMPT", "RANKLAUNCH_CPUS", "RANKLAUNCH_CONTROL",
    "RANKLAUNCH_INIT", "RANKLAUNCH_INJECTED", "RANKLAUNCH_JOB", "RANKLAUNCH_SLOT",
];

/// The variables that are set and not empty.
#[derive(Debug)]
pub(super) struct OwnVariables(BTreeMap<OsString, OsString>);

impl OwnVariables {
    pub(super) fn read(host: &Host, warnings: &mut Vec<Warning>) -> OwnVariables {
        let rows = TABLE.iter().filter_map(SettingRow::variable);
        let known: Vec<String> = rows.chain([SITE_VARIABLE.to_owned()]).collect();
        let mut set = host.environment().clone();
        set.retain(|name, value| {
            let shown = name.to_string_lossy();
            if !shown.starts_with("RANKLAUNCH_") {
                return !value.is_empty();
            }
            if OUR_OWN.contains(&&*shown)
                || (is_service_link(&shown, value) && !known.iter().any(|k| **k == *shown))
            {
                return false;
            }
            if !known.iter().any(|known| **known == *shown) {
                let near = nearest(&shown, known.iter().map(String::as_str));
                warnings.push(unknown_variable(&shown.escape_debug().to_string(), near));
                return false;
            }
            if value.is_empty() {
                warnings.push(empty_variable(&shown));
            }
            !value.is_empty()
        });
        OwnVariables(set)
    }

    pub(super) fn get(&self, name: &str) -> Option<&OsStr> {
        self.0.get(OsStr::new(name)).map(OsString::as_os_str)
    }
}

/// For a Service called `ranklaunch…` the kubelet sets variables such as RANKLAUNCH_SERVICE_HOST
/// and RANKLAUNCH_PORT_29500_TCP_ADDR, and RANKLAUNCH_PORT=tcp://10.0.0.1:29500. A port without a
/// protocol is a setting, and a misspelt setting gets a warning.
fn is_service_link(name: &str, value: &OsStr) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.ends_with("_PORT") && value.to_string_lossy().contains("://"))
        || ["_TCP", "_UDP", "_SCTP"].iter().any(|protocol| name.contains(protocol))
}

const GRACE_VARIABLE: &str = "TerminationGracePeriodSeconds";
/// Kubernetes' default of `terminationGracePeriodSeconds`.
pub const GRACE_OF_A_POD: Duration = Duration::from_secs(30);

/// The default in a container with these variables.
pub fn grace_in_container<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Duration {
    grace_within(variable(GRACE_VARIABLE).and_then(duration).unwrap_or(GRACE_OF_A_POD))
}

/// The part of a pod's grace period that we use.
pub(super) fn grace_within(period: Duration) -> Duration {
    period.saturating_sub(Duration::from_secs(2).min(period / 2))
}

/// The pod's grace period if the container has its variable, else Kubernetes' default, less a margin.
///
/// The kubelet counts from its TERM, runs a preStop hook within the same time and then kills
/// everything, including us. So our last KILL must come before the period ends, with time left
/// to write the verdict.
pub(super) fn grace_of_pod(
    variables: &OwnVariables,
    warnings: &mut Vec<Warning>,
) -> Sourced<Duration> {
    let Some(raw) = variables.get(GRACE_VARIABLE) else {
        return Sourced::default_value(grace_within(GRACE_OF_A_POD));
    };
    match raw.to_str().and_then(|text| duration(text.trim())).filter(|p| !p.is_zero()) {
        Some(period) => {
            Sourced::new(grace_within(period), Source::Environment(GRACE_VARIABLE.to_owned()))
        }
        None => {
            let value = quoted(raw);
            warnings.push(Warning::new(
                Id::SettingsGrace,
                text!(
                    "{GRACE_VARIABLE} is {value}, not a number of seconds; 30 s are assumed",
                    "{GRACE_VARIABLE} 的值为 {value}，不是秒数；按 30 秒处理"
                ),
                text!("say it with --grace 30s", "请用 --grace 30s 指定"),
            ));
            Sourced::default_value(grace_within(GRACE_OF_A_POD))
        }
    }
}
