//! The key by which nodes recognise their job.
//!
//! The key is the platform's id of the job if both sides have one, otherwise the port and the number of nodes. It is
//! checked before any other content of a connection.

use serde::{Deserialize, Serialize};

use super::sanitize::sanitize;
use text::lang::Text;
use text::text;

/// The key of a job. It is never a secret, since greetings and the store of a running job contain it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobKey {
    pub job: Option<String>,
    /// The port on which node 0 gathers.
    pub port: u16,
    pub nnodes: u32,
}

impl JobKey {
    /// Whether `other` is the key of another job. If both have ids, the ports are ignored: one job may be reached
    /// through two ports.
    pub(crate) fn is_of_other_job(&self, other: &JobKey) -> bool {
        match (&self.job, &other.job) {
            (Some(ours), Some(theirs)) => ours != theirs,
            _ => (self.port, self.nnodes) != (other.port, other.nnodes),
        }
    }

    /// `job 4711`, `the job of 2 nodes on port 29500`.
    pub fn text(&self) -> Text {
        let JobKey { job, port, nnodes } = self;
        match job {
            Some(job) => text!("job {job}", "任务 {job}"),
            None => text!(
                "the job of {nnodes} nodes on port {port}",
                "端口 {port} 上 {nnodes} 个节点的任务"
            ),
        }
    }

    /// The key as bytes for a store.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn decode(bytes: &[u8]) -> Option<JobKey> {
        let mut key: JobKey = serde_json::from_slice(bytes).ok()?;
        key.job.iter_mut().for_each(sanitize);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_key_compares_ids_or_port_and_count() {
        let key =
            |job: Option<&str>, port, nnodes| JobKey { job: job.map(str::to_owned), port, nnodes };
        let table = [
            (key(Some("a"), 1, 2), key(Some("a"), 9, 3), false),
            (key(Some("a"), 1, 2), key(Some("b"), 1, 2), true),
            (key(None, 1, 2), key(None, 1, 2), false),
            (key(None, 1, 2), key(None, 2, 2), true),
            (key(None, 1, 2), key(None, 1, 3), true),
            (key(Some("a"), 1, 2), key(None, 1, 2), false),
            (key(None, 1, 2), key(Some("a"), 1, 3), true),
        ];
        for (one, two, other) in table {
            assert_eq!(one.is_of_other_job(&two), other, "{one:?} {two:?}");
            assert_eq!(two.is_of_other_job(&one), other, "{two:?} {one:?}");
            assert_eq!(JobKey::decode(&one.encode()), Some(one));
        }
        assert_eq!(JobKey::decode(b"{}"), None);
    }
}
