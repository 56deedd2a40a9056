//! Files in which a platform describes a job, if its variables do not.
//!
//! - SageMaker, in an image without its training toolkit: only the toolkit sets SM_HOSTS; the platform
//!   itself writes a file on every host (developer guide, "Distributed Training Configuration").
//! - Determined, whose containers ask its master for the addresses and ranks of all before the entry
//!   point of a trial starts (`harness/determined/exec/prep_container.py`, `_info.py`).
//!
//! Takes the text of such a file; adds the same evidence as a row of [`super::table`] would.

use serde::Deserialize;

use crate::contract::{Claim, Contract, Evidence, Field, Reading, Strength};
use linux::host::Host;

use super::shapes;

struct JobFile {
    platform: &'static str,
    path: &'static str,
    default_port: Option<u16>,
    /// One of these variables shows that the file is of this job, and not left in the image.
    of_job: &'static [&'static str],
    /// A variable that gives the same facts. If it is set, the file is not read.
    unless: Option<&'static str>,
    parse: fn(&str) -> Option<Place>,
}

/// The hosts of a job, in the same order on each, and the place of this host.
struct Place {
    hosts: (&'static str, Vec<String>),
    own: (&'static str, String),
    /// The reading of `own`.
    reading: Reading,
}

const FILES: &[JobFile] = &[
    JobFile {
        platform: "sagemaker",
        path: "/opt/ml/input/config/resourceconfig.json",
        // The same port as in the row of the toolkit's variables.
        default_port: Some(7777),
        of_job: &["TRAINING_JOB_NAME"],
        unless: Some("SM_HOSTS"),
        parse: sagemaker,
    },
    JobFile {
        platform: "determined",
        path: "/run/determined/info/rendezvous.json",
        default_port: None,
        of_job: &["DET_AGENT_ID", "DET_ALLOCATION_ID"],
        unless: None,
        parse: determined,
    },
];

fn sagemaker(text: &str) -> Option<Place> {
    #[derive(Deserialize)]
    struct ResourceConfig {
        current_host: String,
        hosts: Vec<String>,
    }
    let ResourceConfig { current_host, hosts } = serde_json::from_str(text).ok()?;
    let own = ("current_host", current_host);
    Some(Place { hosts: ("hosts", hosts), own, reading: Reading::PositionInList })
}

fn determined(text: &str) -> Option<Place> {
    #[derive(Deserialize)]
    struct Rendezvous {
        container_addrs: Vec<String>,
        container_rank: u32,
    }
    let Rendezvous { container_addrs, container_rank } = serde_json::from_str(text).ok()?;
    let own = ("container_rank", container_rank.to_string());
    Some(Place { hosts: ("container_addrs", container_addrs), own, reading: Reading::Plain })
}

/// The texts of the files of this job, by path.
pub(super) fn texts(host: &Host) -> impl Iterator<Item = (String, String)> {
    let is_set = |name: &&str| host.variable(name).is_some();
    let of_job =
        move |file: &&JobFile| file.of_job.iter().any(&is_set) && !file.unless.iter().any(is_set);
    let text = |file: &JobFile| Some((file.path.to_owned(), shapes::text(host, file.path)?));
    FILES.iter().filter(of_job).filter_map(text)
}

/// Adds the hosts of these files. A launcher inside of the job and MASTER_ADDR win over them.
pub(super) fn add(contract: &mut Contract, texts: &std::collections::BTreeMap<String, String>) {
    for file in FILES {
        if let Some(place) = texts.get(file.path).and_then(|text| (file.parse)(text)) {
            file.add(contract, place);
        }
    }
}

impl JobFile {
    fn add(&self, contract: &mut Contract, place: Place) {
        let Place { hosts: (list, hosts), own: (name, own), reading } = place;
        let Ok(hosts) = serde_json::to_string(&hosts) else { return };
        let claim =
            |name: &str, value: String| Claim { variable: format!("{}:{name}", self.path), value };
        let of = |field, reading, claim, beside| Evidence {
            platform: self.platform.to_owned(),
            field,
            claim,
            reading,
            beside,
            strength: Strength::Specific,
        };
        let hosts = claim(list, hosts);
        let beside = (reading == Reading::PositionInList).then(|| hosts.clone());
        let has_master =
            |found: &Evidence| found.claim.variable == "MASTER_ADDR" && !found.claim.is_blank();
        let mut found = vec![
            of(Field::Nnodes, Reading::ListLength, hosts.clone(), None),
            of(Field::NodeRank, reading, claim(name, own), beside),
        ];
        if !contract.evidence.iter().any(has_master) {
            found.push(of(Field::MasterAddr, Reading::FirstOfList, hosts, None));
        }
        let is_stronger = |one: &&Evidence| one.strength >= Strength::Specific;
        let at = contract.evidence.iter().take_while(is_stronger).count();
        if at == 0 {
            contract.platform = self.platform.to_owned();
            contract.default_port = contract.default_port.or(self.default_port);
        }
        contract.evidence.splice(at..at, found);
    }
}
