//! The run id, which names the log folder and marks the processes of a run.

use time::OffsetDateTime;
use time::macros::format_description;

use linux::random;
use plan::{Plan, RunIdentity};
use settings::contract::{Contract, Field};
use verdict::Refusal;

/// `<job>-<UTC time>-<4 hex>`. Before the nodes agree on one, it is the same on all nodes only
/// if the platform names the job.
pub(super) fn run_identity(plan: &Plan, contract: &Contract) -> Result<RunIdentity, Refusal> {
    let mut random = [0u8; 2];
    random::fill(&mut random).map_err(|error| Refusal::internal(&error.to_string()))?;
    let now = OffsetDateTime::now_utc();
    let timestamp = now
        .format(format_description!("[year][month][day]-[hour][minute][second]"))
        .map_err(|error| Refusal::internal(&error.to_string()))?;
    let job = contract.first(Field::JobId).map_or("run", |claim| claim.value.as_str());
    let job: String = job
        .chars()
        .take(48)
        .enumerate()
        // A first dot would hide the folder of the run.
        .map(|(at, letter)| match letter {
            '.' if at > 0 => letter,
            _ if letter.is_ascii_alphanumeric() => letter,
            _ => '-',
        })
        .collect();
    let [high, low] = random;
    Ok(RunIdentity {
        run_id: format!("{job}-{timestamp}-{high:02x}{low:02x}"),
        timestamp,
        master_port: plan.membership.master_port,
    })
}
