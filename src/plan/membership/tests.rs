//! Environments of real platforms and of their traps, down to the membership or the refusal.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;

use proptest::prelude::*;

use super::claims::MOST_NODES;
use super::*;
use crate::host::Host;
use crate::observe::{Field, GpuFacts, VisibleGpu, contract};
use crate::plan::Task;
use crate::settings::fixtures::undecided;
use crate::settings::{Engine, Nproc, Rendezvous, Source, Sourced, WorldSizeCounts};
use crate::verdict::Id;

/// What came out: the membership with what was said on the way, or the refusal.
pub(super) struct Told {
    pub(super) result: Result<Membership, Refusal>,
    pub(super) notes: Notes,
}

impl Told {
    /// What was decided, as which value, and who said so.
    pub(super) fn sources(&self) -> Vec<(&str, &str, &str)> {
        let decisions = self.notes.decisions.iter();
        decisions.map(|one| (&*one.what, &*one.value, &*one.source)).collect()
    }

    /// `platform nnodes rank addr:port [free] [min:max] [task RANK/WORLD LOCAL/OF] [warning ids]`,
    /// or `refused id`.
    pub(super) fn line(&self) -> String {
        match &self.result {
            Err(refusal) => format!("refused {}", refusal.id),
            Ok(member) => {
                let mut line = format!(
                    "{} {} {} {}:{}",
                    member.platform,
                    member.nnodes,
                    member.node_rank,
                    member.master_addr,
                    member.master_port
                );
                if member.master_port_free {
                    line.push_str(" free");
                }
                if let Some((least, most)) = member.elastic {
                    line = format!("{line} {least}..{most}");
                }
                if let Some(task) = &member.task {
                    let Task { rank, world, local, of, .. } = task;
                    line = format!("{line} task {rank}/{world} {local}/{of}");
                }
                for warning in &self.notes.warnings {
                    line.push(' ');
                    line.push_str(warning.id.as_str());
                }
                line
            }
        }
    }

    pub(super) fn text(&self) -> String {
        self.result.as_ref().err().map(|refusal| refusal.text.en.to_string()).unwrap_or_default()
    }
}

pub(super) fn host(pairs: &str) -> Host {
    let environment: BTreeMap<OsString, OsString> = pairs
        .split_whitespace()
        .filter_map(|pair| pair.split_once('='))
        // Values of the tables hold no blanks; `~` stands for a line feed.
        .map(|(name, value)| (name.into(), value.replace('~', "\n").into()))
        .collect();
    Host::replayed("/nonexistent", environment)
}

pub(super) fn gpus(count: usize) -> GpuFacts {
    let visible = (0..count).map(|gpu| VisibleGpu { gpu, token: gpu.to_string() }).collect();
    GpuFacts { visible, ..GpuFacts::default() }
}

pub(super) fn tell(settings: &Settings, host: &Host, gpus: &GpuFacts) -> Told {
    let mut notes = Notes::default();
    let contract = contract(host, None);
    let result = membership(settings, &contract, gpus, &mut notes);
    Told { result, notes }
}

pub(super) fn of(pairs: &str) -> Told {
    tell(&undecided(), &host(pairs), &gpus(8))
}

pub(super) fn check(table: &[(&str, &str)]) {
    let wrong: Vec<String> = table
        .iter()
        .filter_map(|(pairs, expected)| {
            let told = of(pairs);
            let line = told.line();
            (line != *expected)
                .then(|| format!("{pairs}\n  want {expected}\n  have {line} {}", told.text()))
        })
        .collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

pub(super) fn flag<T>(name: &str, value: T) -> Option<Sourced<T>> {
    Some(Sourced::new(value, Source::Flag(name.to_owned())))
}

#[test]
fn generic_variables_count_nodes() {
    check(&[
        ("", "none 1 0 127.0.0.1:29500 free"),
        (
            "WORLD_SIZE=2 RANK=1 MASTER_ADDR=jo-x-worker-0 MASTER_PORT=29500",
            "generic 2 1 jo-x-worker-0:29500",
        ),
        ("WORLD_SIZE=8 RANK=0 MASTER_ADDR=a", "generic 8 0 a:29500"),
        ("WORLD_SIZE=1 RANK=0", "generic 1 0 127.0.0.1:29500 free"),
        (
            "WORLD_SIZE=1 RANK=0 MASTER_ADDR=None MASTER_PORT=None",
            "generic 1 0 127.0.0.1:29500 free",
        ),
        ("WORLD_SIZE=1 RANK=0 MASTER_ADDR=", "generic 1 0 127.0.0.1:29500 free"),
        ("WORLD_SIZE=1 RANK=0 MASTER_ADDR=job-0 MASTER_PORT=12345", "generic 1 0 job-0:12345 free"),
        ("WORLD_SIZE=1 RANK=0 MASTER_ADDR=$(X)", "generic 1 0 127.0.0.1:29500 free master.addr"),
        ("MASTER_ADDR=127.0.0.1 MASTER_PORT=29500", "generic 1 0 127.0.0.1:29500 free"),
        ("MASTER_PORT=29600", "generic 1 0 127.0.0.1:29600 free"),
        ("MASTER_PORT=tcp://10.0.0.1:1", "none 1 0 127.0.0.1:29500 free"),
        ("WORLD_SIZE= RANK= MASTER_ADDR=", "generic 1 0 127.0.0.1:29500 free"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=[fd00::1] MASTER_PORT=1", "generic 2 0 fd00::1:1"),
        (
            "WORLD_SIZE=2 RANK=1 MASTER_ADDR=localhost",
            "generic 2 1 localhost:29500 master.localhost",
        ),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=localhost", "generic 2 0 localhost:29500"),
        (
            "WORLD_SIZE=2 RANK=1 MASTER_ADDR=127.0.0.5",
            "generic 2 1 127.0.0.5:29500 master.localhost",
        ),
    ]);
}

#[test]
fn half_given_and_out_of_range_evidence_is_refused() {
    check(&[
        ("WORLD_SIZE=2 RANK=1 MASTER_ADDR=None", "refused membership.master-addr"),
        ("WORLD_SIZE=2 RANK=1", "refused membership.master-addr"),
        ("WORLD_SIZE=2 MASTER_ADDR=a", "refused membership.half-given"),
        ("RANK=1 MASTER_ADDR=a", "refused membership.half-given"),
        ("RANK=0 MASTER_ADDR=10.0.0.1", "refused membership.half-given"),
        ("WORLD_SIZE=2 RANK=2 MASTER_ADDR=a", "refused membership.rank"),
        ("WORLD_SIZE=1 RANK=1", "refused membership.rank"),
        ("WORLD_SIZE=0 RANK=0", "refused membership.number"),
        ("WORLD_SIZE=-2 RANK=0", "refused membership.number"),
        ("WORLD_SIZE=two RANK=0", "refused membership.number"),
        ("WORLD_SIZE=99999999999 RANK=0", "refused membership.number"),
        ("WORLD_SIZE=2 RANK=-1 MASTER_ADDR=a", "refused membership.number"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=0", "refused membership.master-port"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=70000", "refused membership.master-port"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=http", "refused membership.master-port"),
        ("WORLD_SIZE=1 RANK=0 MASTER_PORT=70000", "refused membership.master-port"),
        (
            "WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=tcp://10.0.0.1:29500",
            "refused membership.master-port",
        ),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=tcp://10.0.0.1:29500", "refused membership.master-addr"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=10.0.0.1:29500", "refused membership.master-addr"),
        ("WORLD_SIZE=2 RANK=0 MASTER_ADDR=${HEAD}", "refused membership.master-addr"),
    ]);
    // A Service called `master` in the namespace is no reason to stop a single node.
    check(&[(
        "WORLD_SIZE=1 RANK=0 MASTER_PORT=tcp://10.0.0.1:29500",
        "generic 1 0 127.0.0.1:29500 free master.port",
    )]);
}

#[test]
fn refusals_quote_the_variable_and_name_the_flag() {
    let table = [
        ("WORLD_SIZE=2 RANK=7 MASTER_ADDR=a", "RANK=7", "--node-rank"),
        ("WORLD_SIZE=2 RANK=1 MASTER_ADDR=None", "MASTER_ADDR=None", "--master-addr"),
        ("WORLD_SIZE=0", "WORLD_SIZE=0", "--nnodes"),
        (
            "WORLD_SIZE=2 RANK=0 MASTER_ADDR=a MASTER_PORT=tcp://10.0.0.1:1",
            "Service link",
            "--master-port",
        ),
        ("KUBEBRAIN_REPLICA_TOTAL=4 NODE_COUNT=2", "KUBEBRAIN_REPLICA_TOTAL=4", "--nnodes"),
    ];
    for (pairs, quoted, named) in table {
        let refusal = of(pairs).result.expect_err(pairs);
        assert_eq!(refusal.verdict.code(), 65);
        assert!(refusal.text.en.contains(quoted), "{pairs}: {}", refusal.text.en);
        assert!(
            refusal.text.zh.contains(quoted) || quoted == "Service link",
            "{}",
            refusal.text.zh
        );
        assert!(refusal.hint.en.contains(named), "{pairs}: {}", refusal.hint.en);
        assert!(refusal.hint.zh.contains(named), "{pairs}: {}", refusal.hint.zh);
    }
}

#[test]
fn pytorchjob_of_every_version() {
    let v1_3 = "PYTHONUNBUFFERED=0 MASTER_PORT=23456 WORLD_SIZE=3";
    let v1_7 = "PYTHONUNBUFFERED=1 MASTER_PORT=23456 MASTER_ADDR=j-master-0 PET_MASTER_ADDR=j-master-0 PET_MASTER_PORT=23456";
    check(&[
        (
            &format!("{v1_3} MASTER_ADDR=localhost RANK=0"),
            "kubeflow-pytorchjob 3 0 localhost:23456",
        ),
        (
            &format!("{v1_3} MASTER_ADDR=j-master-0 RANK=2"),
            "kubeflow-pytorchjob 3 2 j-master-0:23456",
        ),
        (
            &format!("{v1_3} MASTER_ADDR=j-master-0 RANK=0"),
            "kubeflow-pytorchjob 3 0 j-master-0:23456",
        ),
        // 1.7 and later, nprocPerNode unset.
        (
            &format!(
                "{v1_7} WORLD_SIZE=2 RANK=1 PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto"
            ),
            "kubeflow-pytorchjob 2 1 j-master-0:23456",
        ),
        // nprocPerNode = 8: WORLD_SIZE counts processes, RANK still nodes.
        (
            &format!(
                "{v1_7} WORLD_SIZE=16 RANK=1 PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=8"
            ),
            "kubeflow-pytorchjob 2 1 j-master-0:23456",
        ),
        (
            &format!("{v1_7} WORLD_SIZE=2 RANK=0 PET_NNODES=2:2 PET_NODE_RANK=0"),
            "kubeflow-pytorchjob 2 0 j-master-0:23456",
        ),
        // A real dump: endpoint without a backend is static.
        (
            "WORLD_SIZE=3 RANK=0 PET_NODE_RANK=0 PET_NPROC_PER_NODE=1 PET_NNODES=3 PET_RDZV_ENDPOINT=j-master-0:29400",
            "kubeflow-pytorchjob 3 0 j-master-0:29400",
        ),
        (
            &format!("{v1_7} WORLD_SIZE=1 RANK=0 PET_NNODES=1 PET_NODE_RANK=0"),
            "kubeflow-pytorchjob 1 0 j-master-0:23456 free",
        ),
        (
            &format!("{v1_7} WORLD_SIZE=5 RANK=0 PET_NNODES=2 PET_NODE_RANK=0"),
            "kubeflow-pytorchjob 2 0 j-master-0:23456 membership.world-size",
        ),
        (
            &format!("{v1_7} WORLD_SIZE=2 RANK=1 PET_NNODES=2 PET_NODE_RANK=2"),
            "refused membership.rank",
        ),
    ]);
}

#[test]
fn elastic_pytorchjob_is_passed_through() {
    let c10d = "PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=j-worker-0:23456";
    check(&[
        (&format!("{c10d} PET_NNODES=1:4"), "kubeflow-pytorchjob 4 0 j-worker-0:23456 1..4"),
        (
            &format!(
                "{c10d} PET_NNODES=2:4 WORLD_SIZE=4 RANK=3 MASTER_ADDR=j-master-0 MASTER_PORT=23456"
            ),
            "kubeflow-pytorchjob 4 0 j-worker-0:23456 2..4",
        ),
        (
            "PET_RDZV_BACKEND=c10d PET_RDZV_ENDPOINT=j-worker-0 PET_NNODES=1:4",
            "kubeflow-pytorchjob 4 0 j-worker-0:29400 1..4",
        ),
        // No minimum and maximum, no Master replica: only the rendezvous gives ranks.
        (&format!("{c10d} PET_NNODES=3"), "kubeflow-pytorchjob 3 0 j-worker-0:23456 3..3"),
        // The same with a Master replica, which PET_NNODES leaves out.
        (
            &format!(
                "{c10d} PET_NNODES=2 WORLD_SIZE=3 RANK=2 MASTER_ADDR=j-master-0 MASTER_PORT=23456"
            ),
            "kubeflow-pytorchjob 3 2 j-worker-0:23456",
        ),
        (
            &format!(
                "{c10d} PET_NNODES=2 PET_NPROC_PER_NODE=8 WORLD_SIZE=24 RANK=2 MASTER_ADDR=j-master-0"
            ),
            "kubeflow-pytorchjob 3 2 j-worker-0:23456",
        ),
        (
            &format!("{c10d} PET_NNODES=2 WORLD_SIZE=2 RANK=1 MASTER_ADDR=j-master-0"),
            "kubeflow-pytorchjob 2 1 j-worker-0:23456",
        ),
        // standalone: true arrives as an empty string, on which torchrun itself dies.
        (
            &format!("{c10d} PET_NNODES=1:2 PET_STANDALONE="),
            "kubeflow-pytorchjob 1 0 127.0.0.1:23456 free",
        ),
        (
            &format!("{c10d} PET_NNODES=1 PET_STANDALONE= WORLD_SIZE=2 RANK=1"),
            "kubeflow-pytorchjob 1 0 127.0.0.1:23456 free",
        ),
        (
            &format!("{c10d} PET_NNODES=1:2 PET_STANDALONE=0"),
            "kubeflow-pytorchjob 2 0 j-worker-0:23456 1..2",
        ),
        (&format!("{c10d} PET_NNODES=4:1"), "refused membership.number"),
        (&format!("{c10d} PET_NNODES=1:x"), "refused membership.number"),
        (&format!("{c10d} PET_NNODES=0:2"), "refused membership.number"),
        ("PET_NNODES=1:2 PET_RDZV_ENDPOINT=j:70000", "refused membership.master-port"),
        ("PET_NNODES=1:2", "refused membership.master-addr"),
    ]);
    let mut settings = undecided();
    settings.rdzv = Sourced::new(Rendezvous::Static, Source::Flag("--rdzv".to_owned()));
    let told = tell(&settings, &host(&format!("{c10d} PET_NNODES=1:4")), &gpus(8));
    assert_eq!(told.line(), "refused membership.elastic");
}

#[test]
fn trainer_v2_needs_no_generic_variables() {
    check(&[
        (
            "PET_NNODES=2 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto PET_MASTER_ADDR=j-node-0-0.j PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=1",
            "kubeflow-trainer-v2 2 1 j-node-0-0.j:29500",
        ),
        (
            "PET_NNODES=1 PET_NODE_RANK=0 PET_NPROC_PER_NODE=4 JOB_COMPLETION_INDEX=0",
            "kubeflow-trainer-v2 1 0 127.0.0.1:29500 free",
        ),
    ]);
}

#[test]
fn kubebrain_in_all_spellings() {
    check(&[
        (
            "KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=4 MASTER_ADDR=10.1.2.3 PORT_0=9205",
            "kubebrain 4 1 10.1.2.3:9205",
        ),
        (
            "KUBEBRAIN_REPLICA=0 KUBEBRAIN_REPLICA_TOTAL=1 NODE_RANK=0 NODE_COUNT=1 PROC_PER_NODE=8 MASTER_ADDR=10.1.2.3 PORT_0=9205 GPU_COUNT=8",
            "kubebrain 1 0 10.1.2.3:9205 free",
        ),
        (
            "DISTRIBUTED_JOB_ENVS_INITIALIZED=true NODE_RANK=1 NODE_COUNT=2 MASTER_ADDR=10.1.2.3",
            "kubebrain 2 1 10.1.2.3:29500",
        ),
        (
            "RLAUNCH_REPLICA=1 RLAUNCH_REPLICA_TOTAL=2 MASTER_ADDR=10.1.2.3",
            "kubebrain 2 1 10.1.2.3:29500",
        ),
        (
            "RJOB_REPLICA=1 RJOB_REPLICA_TOTAL=2 MASTER_ADDR=10.1.2.3",
            "kubebrain 2 1 10.1.2.3:29500",
        ),
        ("RJOB_TASK_INDEX=1 NODE_COUNT=2 MASTER_ADDR=10.1.2.3", "kubebrain 2 1 10.1.2.3:29500"),
        (
            "KUBEBRAIN_NAMESPACE=n WORLD_SIZE=2 RANK=1 MASTER_ADDR=jo-worker-0 MASTER_PORT=29500 PORT_0=9205",
            "kubebrain 2 1 jo-worker-0:29500",
        ),
        (
            "KUBEBRAIN_REPLICA=0 KUBEBRAIN_REPLICA_TOTAL=2 WORLD_SIZE=2 RANK=1 MASTER_ADDR=h",
            "kubebrain 2 0 h:29500 membership.rank",
        ),
        // A number of processes beside the number of nodes.
        (
            "KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=2 WORLD_SIZE=16 RANK=1 MASTER_ADDR=10.1.2.3",
            "kubebrain 2 1 10.1.2.3:29500",
        ),
        (
            "KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=2 NODE_COUNT=4 MASTER_ADDR=10.1.2.3",
            "refused membership.contradiction",
        ),
        (
            "KUBEBRAIN_REPLICA=1 NODE_RANK=0 NODE_COUNT=2 MASTER_ADDR=10.1.2.3",
            "refused membership.contradiction",
        ),
        ("KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=2", "refused membership.master-addr"),
        ("KUBEBRAIN_REPLICA=1 KUBEBRAIN_REPLICA_TOTAL=x", "refused membership.number"),
    ]);
    let job = contract(&host("KUBEBRAIN_REPLICA=0 JOB_ID=rj-1 GPU_COUNT=8 PROC_PER_NODE=8"), None);
    let first = |field| job.first(field).map(ToString::to_string);
    assert_eq!(first(Field::JobId).as_deref(), Some("JOB_ID=rj-1"));
    assert_eq!(first(Field::GpuCount).as_deref(), Some("GPU_COUNT=8"));
    assert_eq!(first(Field::Offered).as_deref(), Some("PROC_PER_NODE=8"));
}

#[test]
fn other_platforms_are_table_rows() {
    check(&[
        (
            "VC_TASK_INDEX=0 WORLD_SIZE=3 RANK=1 MASTER_ADDR=j-master-0.j",
            "volcano 3 1 j-master-0.j:23456",
        ),
        ("VC_TASK_INDEX=0 WORLD_SIZE=3 MASTER_ADDR=j-master-0.j", "refused membership.half-given"),
        (
            "MLP_WORKER_NUM=2 MLP_ROLE_INDEX=1 MLP_WORKER_GPU=8 MLP_WORKER_0_HOST=10.0.0.2 MLP_WORKER_0_PORT=2222",
            "volcengine-mlp 2 1 10.0.0.2:2222",
        ),
        (
            "NUM_NODES=2 NUM_TRAINERS=8 NODE_RANK=1 WORLD_SIZE=16 PRIMARY_ADDR=10.65.0.2 PRIMARY_PORT=29500 MASTER_ADDR=10.65.0.2 MASTER_PORT=29500",
            "runpod 2 1 10.65.0.2:29500",
        ),
        (
            "SM_HOSTS=[\"algo-1\",\"algo-2\"] SM_CURRENT_HOST=algo-2 SM_NUM_GPUS=8",
            "sagemaker 2 1 algo-1:7777",
        ),
        ("SM_HOSTS=[\"algo-1\"] SM_CURRENT_HOST=algo-3", "refused membership.rank"),
        (
            "AWS_BATCH_JOB_NUM_NODES=3 AWS_BATCH_JOB_NODE_INDEX=1 AWS_BATCH_JOB_MAIN_NODE_INDEX=1",
            "aws-batch 3 0 127.0.0.1:29500",
        ),
        (
            "AWS_BATCH_JOB_NUM_NODES=3 AWS_BATCH_JOB_NODE_INDEX=0 AWS_BATCH_JOB_MAIN_NODE_INDEX=1 AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.9",
            "aws-batch 3 1 10.0.0.9:29500",
        ),
        (
            "AWS_BATCH_JOB_NUM_NODES=3 AWS_BATCH_JOB_NODE_INDEX=2 AWS_BATCH_JOB_MAIN_NODE_INDEX=1 AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.9",
            "aws-batch 3 2 10.0.0.9:29500",
        ),
        (
            "SKYPILOT_NUM_NODES=2 SKYPILOT_NODE_RANK=1 SKYPILOT_NODE_IPS=10.0.0.1~10.0.0.2~",
            "skypilot 2 1 10.0.0.1:8008",
        ),
        (
            "LWS_GROUP_SIZE=2 LWS_WORKER_INDEX=1 LWS_LEADER_ADDRESS=lws-0.lws.default",
            "leader-worker-set 2 1 lws-0.lws.default:29500",
        ),
        (
            "SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=4 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_STEP_NODELIST=n[03-04] SLURM_JOB_NODELIST=n[01-04] SLURM_STEP_TASKS_PER_NODE=1(x2)",
            "slurm 2 1 n03:27446",
        ),
        (
            "SLURM_JOB_ID=7 SLURM_NNODES=2 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=0 SLURM_JOB_NODELIST=n[1,3] MASTER_ADDR=n1-ib MASTER_PORT=1234 WORLD_SIZE=16 RANK=0",
            "slurm 2 0 n1-ib:1234",
        ),
        (
            "SLURM_JOB_ID=7 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=0 SLURM_STEP_NODELIST=n[1-2] SLURM_STEP_TASKS_PER_NODE=8(x2)",
            "refused membership.tasks",
        ),
        ("SLURM_JOB_ID=7 SLURM_NNODES=2 SLURM_NODELIST=n[1-2]", "refused membership.half-given"),
        (
            "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 MASTER_ADDR=h0",
            "open-mpi 2 1 h0:29500",
        ),
        (
            "OMPI_COMM_WORLD_SIZE=16 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=8 MASTER_ADDR=h0",
            "refused membership.tasks",
        ),
        (
            "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=1 AZ_BATCH_MASTER_NODE=10.0.0.4:6000",
            "azure-ml 2 1 10.0.0.4:29500",
        ),
        ("NNODES=2 NODE_RANK=1 MASTER_ADDR=a", "node-variables 2 1 a:29500"),
        ("JOB_COMPLETION_INDEX=3", "kubernetes-indexed-job 1 0 127.0.0.1:29500 free"),
        (
            "RAY_CLUSTER_NAME=r RAY_NODE_TYPE_NAME=g FQ_RAY_IP=r-head RAY_ADDRESS=r-head:6379",
            "kuberay 1 0 127.0.0.1:29500 free",
        ),
    ]);
}

#[test]
fn flags_beat_the_platform() {
    let env = "WORLD_SIZE=4 RANK=3 MASTER_ADDR=j-worker-0 MASTER_PORT=23456";
    let told = |change: &dyn Fn(&mut Settings), env: &str| {
        let mut settings = undecided();
        change(&mut settings);
        tell(&settings, &host(env), &gpus(8)).line()
    };
    let two = |s: &mut Settings| {
        s.nnodes = flag("--nnodes", 2);
        s.node_rank = flag("--node-rank", 1);
    };
    assert_eq!(told(&two, env), "flags 2 1 j-worker-0:23456");
    let addr = |s: &mut Settings| {
        s.master_addr = flag("--master-addr", "10.0.0.9".to_owned());
        s.master_port = flag("--master-port", 1234);
    };
    assert_eq!(told(&addr, env), "generic 4 3 10.0.0.9:1234");
    assert_eq!(
        told(&addr, "WORLD_SIZE=2 RANK=0 MASTER_ADDR=None MASTER_PORT=x"),
        "generic 2 0 10.0.0.9:1234"
    );
    // Every pod for itself, whatever the platform says.
    let alone = |s: &mut Settings| s.nnodes = flag("--nnodes", 1);
    assert_eq!(told(&alone, env), "flags 1 0 127.0.0.1:29500 free");
    // The index of an indexed Job is a node rank only once the count is known.
    let three = |s: &mut Settings| s.nnodes = flag("--nnodes", 3);
    assert_eq!(told(&three, "JOB_COMPLETION_INDEX=2 MASTER_ADDR=j-0.j"), "generic 3 2 j-0.j:29500");
    assert_eq!(told(&three, "JOB_COMPLETION_INDEX=3 MASTER_ADDR=j-0.j"), "refused membership.rank");
    assert_eq!(
        told(&three, "PET_NNODES=1:4 PET_RDZV_ENDPOINT=a:1 PET_RDZV_BACKEND=c10d"),
        "refused membership.half-given"
    );
    let ray = |s: &mut Settings| {
        s.nnodes = flag("--nnodes", 2);
        s.node_rank = flag("--node-rank", 1);
    };
    assert_eq!(
        told(&ray, "RAY_CLUSTER_NAME=r RAY_NODE_TYPE_NAME=g FQ_RAY_IP=r-head"),
        "flags 2 1 r-head:29500"
    );
    // What a person at a bare host sets: the port of this job, beside flags.
    let by_hand = |s: &mut Settings| {
        two(s);
        s.master_addr = flag("--master-addr", "10.0.0.9".to_owned());
    };
    assert_eq!(told(&by_hand, "MASTER_PORT=29600"), "flags 2 1 10.0.0.9:29600");
    assert_eq!(told(&by_hand, "MASTER_PORT=tcp://10.0.0.1:1"), "flags 2 1 10.0.0.9:29500");
    let none = |s: &mut Settings| s.nnodes = flag("--nnodes", 0);
    assert_eq!(told(&none, env), "refused membership.number");
    let port = |s: &mut Settings| s.master_port = flag("--master-port", 0);
    assert_eq!(told(&port, env), "refused membership.master-port");
    let rank = |s: &mut Settings| s.node_rank = flag("--node-rank", 4);
    assert_eq!(told(&rank, env), "refused membership.rank");
}

#[test]
fn world_size_counts_processes_when_told_so() {
    let env = "WORLD_SIZE=16 RANK=1 MASTER_ADDR=a";
    let told = |nproc: Option<u32>, visible: usize, env: &str| {
        let mut settings = undecided();
        settings.world_size_counts.value = WorldSizeCounts::Processes;
        if let Some(n) = nproc {
            settings.nproc_per_node =
                Sourced::new(Nproc::Count(n), Source::Flag("--nproc-per-node".to_owned()));
        }
        tell(&settings, &host(env), &gpus(visible)).line()
    };
    assert_eq!(told(None, 8, env), "generic 2 1 a:29500");
    assert_eq!(told(Some(4), 8, env), "generic 4 1 a:29500");
    assert_eq!(told(None, 5, env), "refused membership.processes");
    assert_eq!(told(None, 0, env), "refused membership.processes");
    assert_eq!(told(Some(0), 8, env), "refused membership.processes");
    assert_eq!(told(None, 8, "WORLD_SIZE=4 RANK=0 MASTER_ADDR=a"), "refused membership.processes");
    assert_eq!(told(None, 8, "WORLD_SIZE=16 RANK=8 MASTER_ADDR=a"), "refused membership.rank");
    assert_eq!(
        told(None, 8, "WORLD_SIZE=16 RANK=1 MASTER_ADDR=a NPROC_PER_NODE=4"),
        "generic 4 1 a:29500"
    );
}

#[test]
fn every_value_has_a_reason() {
    let told =
        of("PET_NNODES=2 PET_NODE_RANK=1 WORLD_SIZE=16 RANK=1 MASTER_ADDR=a MASTER_PORT=23456");
    assert_eq!(
        told.sources(),
        [
            ("nnodes", "2", "PET_NNODES=2"),
            ("world_size_counts", "processes", "WORLD_SIZE=16"),
            ("node_rank", "1", "PET_NODE_RANK=1"),
            ("master_addr", "a", "MASTER_ADDR=a"),
            ("master_port", "23456", "MASTER_PORT=23456"),
        ]
    );
    let plain = of("WORLD_SIZE=8 RANK=0 MASTER_ADDR=a");
    let because = &plain.notes.decisions.first().expect("nnodes is decided").because;
    assert!(because.en.contains("--world-size-counts processes"), "{}", because.en);
    assert!(because.zh.contains("--world-size-counts processes"), "{}", because.zh);
}

/// Only a WORLD_SIZE that counts processes waits for the GPUs, and only where nothing else says
/// how many a node has.
#[test]
fn a_node_is_known_before_its_gpus_are_counted() {
    let processes = |count| {
        let mut settings = undecided();
        settings.world_size_counts = Sourced::new(WorldSizeCounts::Processes, Source::Default);
        settings.nproc_per_node = match count {
            Some(n) => Sourced::new(Nproc::Count(n), Source::Flag("--nproc-per-node".to_owned())),
            None => settings.nproc_per_node,
        };
        settings
    };
    let job = "WORLD_SIZE=16 RANK=1 MASTER_ADDR=a";
    for (settings, pairs, before, after) in [
        (undecided(), job, Ok(16), Ok(16)),
        (undecided(), "", Ok(1), Ok(1)),
        (processes(None), job, Err("membership.processes"), Ok(2)),
        (processes(Some(4)), job, Ok(4), Ok(4)),
        (processes(None), &format!("{job} NPROC_PER_NODE=2"), Ok(8), Ok(8)),
    ] {
        let contract = contract(&host(pairs), None);
        let nodes = |member: Result<Membership, Refusal>| match member {
            Ok(member) => Ok(member.nnodes),
            Err(refusal) => Err(refusal.id),
        };
        let (mut early, mut late) = (Notes::default(), Notes::default());
        let known = nodes(identity(&settings, &contract, &mut early));
        assert_eq!(known.map_err(Id::as_str), before, "{pairs}");
        let counted = nodes(membership(&settings, &contract, &gpus(8), &mut late));
        assert_eq!(counted.map_err(Id::as_str), after, "{pairs}");
        if known.is_ok() {
            assert_eq!(early.decisions, late.decisions, "{pairs}");
        }
    }
}

#[test]
fn inside_torchrun_is_refused_and_leftovers_are_not() {
    let mut contract = contract(&host(""), None);
    contract.inside_torchrun = Some((41, "python -m torch.distributed.run a.py".to_owned()));
    let run = |settings: &Settings, contract: &Contract| {
        let mut notes = Notes::default();
        membership(settings, contract, &gpus(0), &mut notes)
    };
    let refusal = run(&undecided(), &contract).expect_err("nested");
    assert_eq!(refusal.id, Id::Nested);
    assert!(refusal.text.en.contains("41") && refusal.hint.en.contains("--nested"));
    let nested = Settings { nested: true, ..undecided() };
    assert_eq!(run(&nested, &contract).map(|member| member.nnodes), Ok(1));

    // A shell left inside an earlier job's rank: its own node count is still right.
    let leftovers = "LOCAL_RANK=3 LOCAL_WORLD_SIZE=8 GROUP_RANK=0 GROUP_WORLD_SIZE=1 RANK=3 WORLD_SIZE=8 TORCHELASTIC_RUN_ID=x MASTER_ADDR=127.0.0.1";
    assert_eq!(of(leftovers).line(), "torchrun-worker 1 0 127.0.0.1:29500 free env.stale-rank");
}

#[test]
fn processes_asked_for() {
    let asked = |nproc: Option<Nproc>, env: &str| {
        let mut settings = undecided();
        if let Some(value) = nproc {
            settings.nproc_per_node =
                Sourced::new(value, Source::Flag("--nproc-per-node".to_owned()));
        }
        match asked_nproc(&settings, &contract(&host(env), None)) {
            Ok(AskedNproc::Count { n, source }) => format!("{n} {source}"),
            Ok(other) => format!("{other:?}"),
            Err(refusal) => format!("refused {}", refusal.id),
        }
    };
    let pet = |value: &str| format!("PET_NNODES=1 PET_NPROC_PER_NODE={value}");
    assert_eq!(asked(None, ""), "Auto");
    assert_eq!(asked(None, &pet("8")), "8 PET_NPROC_PER_NODE=8");
    assert_eq!(asked(None, &pet("auto")), "Auto");
    assert_eq!(asked(None, &pet("gpu")), "Gpus");
    assert_eq!(asked(None, &pet("cpu")), "Cpu");
    assert_eq!(asked(None, &pet("")), "Auto");
    for bad in ["0", "-1", "xpu", "5000"] {
        assert_eq!(asked(None, &pet(bad)), "refused membership.nproc", "{bad}");
    }
    assert_eq!(asked(Some(Nproc::Count(5)), &pet("8")), "5 --nproc-per-node");
    assert_eq!(asked(Some(Nproc::Auto), &pet("8")), "Auto");
    // What KubeBrain offers is room, not a wish: two nodes of 8 and 40 heads need 5.
    let kubebrain = "KUBEBRAIN_REPLICA=0 PROC_PER_NODE=8";
    assert_eq!(asked(None, kubebrain), "Auto");
    assert_eq!(
        offered_nproc(&contract(&host(kubebrain), None)),
        Some((8, "PROC_PER_NODE=8".to_owned()))
    );
}

/// Every variable that any contract reads, so that a new row is covered without a thought.
fn names() -> impl Strategy<Value = &'static str> {
    prop::sample::select(crate::observe::known_variables())
}

fn values() -> impl Strategy<Value = Vec<u8>> {
    let plain = prop::sample::select(vec![
        "",
        "0",
        "1",
        "2",
        "3",
        "4",
        "8",
        "16",
        "-1",
        "None",
        "null",
        "auto",
        "gpu",
        "1:4",
        "2:2",
        "4:1",
        ":",
        "localhost",
        "127.0.0.1",
        "10.0.0.1",
        "j-master-0",
        "j-master-0:23456",
        "[::1]:5",
        "fd00::1",
        "tcp://10.0.0.1:29500",
        "29500",
        "70000",
        "4294967295",
        "99999999999999999999",
        "[\"a\",\"b\"]",
        "a,b",
        "n[01-02,",
        "n[",
        "8(x2)",
        "é",
        "c10d",
        "static",
        "$(X)",
        " 2 ",
        "2.0",
    ]);
    prop_oneof![
        8 => plain.prop_map(|value| value.as_bytes().to_vec()),
        1 => prop::collection::vec(1u8.., 0..12),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_environment_gives_a_valid_membership_or_a_refusal(
        pairs in prop::collection::btree_map(names(), values(), 0..24),
        visible in 0usize..10,
        counts in prop::sample::select(vec![
            WorldSizeCounts::Auto, WorldSizeCounts::Nodes, WorldSizeCounts::Processes,
        ]),
        nodes in prop::option::weighted(0.2, 0u32..5),
        engine in prop::sample::select(vec![Engine::Torchrun, Engine::Direct]),
    ) {
        let environment = pairs
            .into_iter()
            .map(|(name, value)| (OsString::from(name), OsString::from_vec(value)))
            .collect();
        let mut settings = undecided();
        settings.world_size_counts.value = counts;
        settings.engine.value = engine;
        settings.nnodes = nodes.and_then(|nodes| flag("--nnodes", nodes));
        let told = tell(&settings, &Host::replayed("/nonexistent", environment), &gpus(visible));
        match told.result {
            Ok(member) => {
                prop_assert!(member.node_rank < member.nnodes);
                prop_assert!(member.nnodes <= MOST_NODES);
                prop_assert!(member.master_port != 0);
                if let Some(task) = &member.task {
                    prop_assert!(engine == Engine::Direct);
                    prop_assert!(task.rank.0 < task.world && task.local.0 < task.of);
                    prop_assert!(task.of <= task.world);
                }
                prop_assert!(claims::host_problem(&member.master_addr).is_none());
                prop_assert_eq!(member.master_port_free, member.members() == 1 && member.elastic.is_none());
                for what in ["nnodes", "master_addr", "master_port"] {
                    let given = told.notes.decisions.iter().filter(|one| one.what == what).count();
                    prop_assert_eq!(given, 1, "{}", what);
                }
            }
            Err(refusal) => {
                prop_assert!(!refusal.text.en.is_empty() && refusal.hint.en.contains("--"));
                prop_assert_eq!(refusal.verdict.code(), 65);
            }
        }
    }
}
