//! The `RANKLAUNCH_*` variables: empty ones count as unset, unknown ones get a warning.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};

use super::refuse::{empty_variable, unknown_variable};
use super::table::{SettingRow, TABLE};
use linux::host::Host;
use text::nearest::nearest;
use verdict::Warning;

/// Variables that are not settings: those of our own processes, and those that other rooms read.
const OUR_OWN: &[&str] = &[
    "RANKLAUNCH_SECRET",
    "RANKLAUNCH_SECRET_FILE",
    "RANKLAUNCH_NVML_LIBRARY",
    "RANKLAUNCH_AGENT_SOCKET",
    "RANKLAUNCH_ATTEMPT",
    "RANKLAUNCH_CPUS",
    "RANKLAUNCH_CONTROL",
    "RANKLAUNCH_INIT",
    "RANKLAUNCH_INJECTED",
    "RANKLAUNCH_JOB",
    "RANKLAUNCH_SLOT",
];

/// The variables that are set and not empty.
#[derive(Debug)]
pub(super) struct OwnVariables(BTreeMap<OsString, OsString>);

impl OwnVariables {
    pub(super) fn read(host: &Host, warnings: &mut Vec<Warning>) -> OwnVariables {
        let known: Vec<String> = TABLE.iter().filter_map(SettingRow::variable).collect();
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
