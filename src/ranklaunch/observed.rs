//! The first phase: reads the facts of this node, after its NVSwitch fabric is up or its wait
//! timed out.

use std::time::Duration;

use super::collect;
use super::context::Context;
use node::observe::Facts;
use preflight::check;
use text::text;
use verdict::{Id, Severity};

/// Time limit of the wait for a fabric that is being set up, and the interval between two queries.
const FABRIC: Duration = Duration::from_secs(30);
const FABRIC_PAUSE: Duration = Duration::from_secs(1);

/// The facts of this node before the launch.
pub(super) struct Observed {
    pub(super) facts: Facts,
}

/// Reads all facts, after the fabric is up or its wait timed out.
pub(super) async fn observe(context: &Context) -> Observed {
    let mut facts = collect::observe(&context.host, &context.settings).await;
    wait_for_fabric(context, &mut facts).await;
    Observed { facts }
}

/// The fabric manager registers GPUs for some seconds after a node's start. This wait counts
/// against --wait-timeout as any other.
async fn wait_for_fabric(context: &Context, facts: &mut Facts) {
    if plan::severity(&context.settings, Id::GpuFabric, Severity::Fail) != Severity::Fail {
        return;
    }
    let most = FABRIC.min(context.settings.wait_timeout.value);
    let deadline = tokio::time::Instant::now() + most;
    let mut said = false;
    while check::fabric_is_pending(facts) && tokio::time::Instant::now() < deadline {
        if !said {
            said = true;
            let seconds = most.as_secs();
            context.say(&text!(
                "the NVSwitch fabric is not ready yet: waiting for it, at most {seconds} s",
                "NVSwitch Fabric 尚未就绪：等待中，最多 {seconds} 秒"
            ));
        }
        tokio::time::sleep(FABRIC_PAUSE).await;
        facts.gpus = collect::gpus(&context.host, &context.settings).await;
    }
}
