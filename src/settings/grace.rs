//! The default grace period: that of the pod, less a margin.
//!
//! Takes the variable in which a platform gives a container that period.

use std::time::Duration;

use super::refuse::quoted;
use super::types::{Source, Sourced};
use super::value::duration;
use super::variables::OwnVariables;
use text::text;
use verdict::{Id, Warning};

const VARIABLE: &str = "TerminationGracePeriodSeconds";
/// Kubernetes' default of `terminationGracePeriodSeconds`.
pub const OF_A_POD: Duration = Duration::from_secs(30);

/// The default in a container with these variables.
pub fn in_container<'a>(variable: impl Fn(&str) -> Option<&'a str>) -> Duration {
    of_period(variable(VARIABLE).and_then(duration).unwrap_or(OF_A_POD))
}

/// The part of a pod's grace period that we use.
pub(super) fn of_period(period: Duration) -> Duration {
    period.saturating_sub(Duration::from_secs(2).min(period / 2))
}

/// The pod's grace period if the container has its variable, else Kubernetes' default, less a margin.
///
/// The kubelet counts from its TERM, runs a preStop hook within the same time and then kills
/// everything, including us. So our last KILL must come before the period ends, with time left
/// to write the verdict.
pub(super) fn of_pod(variables: &OwnVariables, warnings: &mut Vec<Warning>) -> Sourced<Duration> {
    let Some(raw) = variables.get(VARIABLE) else {
        return Sourced::default_value(of_period(OF_A_POD));
    };
    match raw.to_str().and_then(|text| duration(text.trim())).filter(|p| !p.is_zero()) {
        Some(period) => Sourced::new(of_period(period), Source::Environment(VARIABLE.to_owned())),
        None => {
            let value = quoted(raw);
            warnings.push(Warning::new(
                Id::SettingsGrace,
                text!(
                    "{VARIABLE} is {value}, not a number of seconds; 30 s are assumed",
                    "{VARIABLE} 的值为 {value}，不是秒数；按 30 秒处理"
                ),
                text!("say it with --grace 30s", "请用 --grace 30s 指定"),
            ));
            Sourced::default_value(of_period(OF_A_POD))
        }
    }
}
