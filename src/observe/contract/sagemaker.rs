//! The hosts of a training job of SageMaker whose image has no training toolkit. Only the toolkit
//! sets SM_HOSTS; the platform itself writes a file on every host (developer guide, "Distributed
//! Training Configuration").
//!
//! Takes the file's text; adds the same evidence as the row `sagemaker` of [`super::table`].

use serde::Deserialize;

use crate::host::Host;
use crate::observe::{Claim, Contract, Evidence, Field, Reading, Strength};

const PLATFORM: &str = "sagemaker";
pub(super) const FILE: &str = "/opt/ml/input/config/resourceconfig.json";
/// As in the row of the toolkit's variables.
const PORT: u16 = 7777;

#[derive(Deserialize)]
struct ResourceConfig {
    current_host: String,
    /// In the same order on every host.
    hosts: Vec<String>,
}

/// The file's text, where a training job has not the toolkit's variables.
pub(super) fn text(host: &Host) -> Option<String> {
    host.variable("TRAINING_JOB_NAME")?;
    if host.variable("SM_HOSTS").is_some() {
        return None;
    }
    host.read(FILE).ok()
}

/// Adds the hosts of the file, which a launcher inside of the job and MASTER_ADDR win over.
pub(super) fn add(contract: &mut Contract, text: &str) {
    let Ok(ResourceConfig { current_host, hosts }) = serde_json::from_str(text) else { return };
    let Ok(list) = serde_json::to_string(&hosts) else { return };
    let claim = |name: &str, value: &str| Claim {
        variable: format!("{FILE}:{name}"),
        value: value.to_owned(),
    };
    let of = |field, reading, claim, beside| Evidence {
        platform: PLATFORM.to_owned(),
        field,
        claim,
        reading,
        beside,
        strength: Strength::Specific,
    };
    let hosts = claim("hosts", &list);
    let current = claim("current_host", &current_host);
    let has_master =
        |found: &Evidence| found.claim.variable == "MASTER_ADDR" && !found.claim.is_blank();
    let mut own = vec![
        of(Field::Nnodes, Reading::ListLength, hosts.clone(), None),
        of(Field::NodeRank, Reading::PositionInList, current, Some(hosts.clone())),
    ];
    if !contract.evidence.iter().any(has_master) {
        own.push(of(Field::MasterAddr, Reading::FirstOfList, hosts, None));
    }
    let at = contract.evidence.iter().take_while(|one| one.strength >= Strength::Specific).count();
    if at == 0 {
        contract.platform = PLATFORM.to_owned();
        contract.default_port = contract.default_port.or(Some(PORT));
    }
    contract.evidence.splice(at..at, own);
}
