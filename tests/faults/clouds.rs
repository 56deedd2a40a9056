//! Clouds that take their machine back when they are asked to: what their metadata services say before and after.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use harness::cloud::{
    ALIBABA, AWS, AZURE, GCP, LINK_LOCAL, Machine, OF_ALIBABA, Reply, Service, google, none, ok,
    on_machine,
};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A cloud by the name of its source of notices.
pub(crate) struct Cloud {
    pub(crate) name: &'static str,
    machine: Machine<'static>,
    address: &'static str,
    /// What it answers to the head of a request, and whether it takes the machine back.
    says: fn(&str, bool) -> Reply,
}

pub(crate) const CLOUDS: &[Cloud] = &[
    Cloud { name: "aws", machine: AWS, address: LINK_LOCAL, says: aws },
    Cloud { name: "gcp", machine: GCP, address: LINK_LOCAL, says: gcp },
    Cloud { name: "azure", machine: AZURE, address: LINK_LOCAL, says: azure },
    Cloud { name: "alibaba", machine: ALIBABA, address: OF_ALIBABA, says: alibaba },
];

impl Cloud {
    /// Does `work` on a machine of this cloud; `work` gets what takes it back. None if no machine can be made here.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce(&AtomicBool) -> T + Send) -> Option<T> {
        let mut done = None;
        let says = self.says;
        on_machine(self.machine, || {
            let taken = Arc::new(AtomicBool::new(false));
            let seen = Arc::clone(&taken);
            let _service =
                Service::at(self.address, move |head| says(head, seen.load(Ordering::Relaxed)));
            done = Some(work(&taken));
        });
        done
    }
}

fn after(seconds: u64) -> String {
    let at = OffsetDateTime::from(SystemTime::now() + Duration::from_secs(seconds));
    at.replace_nanosecond(0).expect("a second").format(&Rfc3339).expect("a time")
}

fn aws(head: &str, is_taken: bool) -> Reply {
    match head {
        head if head.starts_with("PUT /latest/api/token ") => ok("token"),
        head if is_taken && head.contains("spot/instance-action ") => {
            ok(format!(r#"{{"action": "terminate", "time": "{}"}}"#, after(120)))
        }
        head if head.contains("events/maintenance/scheduled ") => ok("[]"),
        _ => none(),
    }
}

fn gcp(head: &str, is_taken: bool) -> Reply {
    match head {
        head if head.contains("instance/preempted ") => {
            google(if is_taken { "TRUE" } else { "FALSE" })
        }
        head if head.contains("instance/maintenance-event ") => google("NONE"),
        _ => none(),
    }
}

fn azure(head: &str, is_taken: bool) -> Reply {
    match head {
        head if head.contains("/metadata/instance/compute/name?") => ok("gpu_3"),
        head if is_taken && head.contains("/metadata/scheduledevents?") => ok(format!(
            r#"{{"DocumentIncarnation": 2, "Events": [{{"EventId": "f020ba2e", "EventStatus": "Scheduled",
            "EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": ["gpu_3"],
            "NotBefore": "{}", "EventSource": "Platform", "DurationInSeconds": -1}}]}}"#,
            after(30)
        )),
        head if head.contains("/metadata/scheduledevents?") => {
            ok(r#"{"DocumentIncarnation": 1, "Events": []}"#)
        }
        _ => none(),
    }
}

fn alibaba(head: &str, is_taken: bool) -> Reply {
    match head {
        head if head.starts_with("PUT /latest/api/token ") => ok("token"),
        head if is_taken && head.contains("spot/termination-time ") => ok(after(300)),
        _ => none(),
    }
}
