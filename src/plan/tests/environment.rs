//! Variables that a plan sets, keeps and removes.

use crate::AskedNproc;
use crate::fixtures::{facts, flag, planned, profile, settings};
use linux::host::Host;
use settings::contract::{Claim, Contract};
use settings::{Engine, Source};

use super::{env, set};

#[test]
fn nothing_that_is_set_is_replaced_silently() {
    let mut settings = settings(&[]);
    let flag = || Source::Flag("--env".into());
    settings.env = vec![
        set("HF_HOME", "/profile", profile(4)),
        set("FROM_PROFILE", "1", profile(5)),
        set("NCCL_DEBUG", "INFO", flag()),
        set("OMP_NUM_THREADS", "3", flag()),
    ];
    let mut node = facts(8);
    node.environment.insert("HF_HOME".into(), "/container".into());
    node.environment.insert("NCCL_DEBUG".into(), "WARN".into());
    node.python.activation.insert("CONDA_PREFIX".into(), "/opt/conda".into());
    let plan = planned(&settings, &node, 1, &AskedNproc::Auto).expect("a plan");
    let expected = [
        ("HF_HOME", None),
        ("FROM_PROFILE", Some("1")),
        ("NCCL_DEBUG", Some("INFO")),
        ("OMP_NUM_THREADS", Some("3")),
        ("CONDA_PREFIX", Some("/opt/conda")),
        ("PYTHONUNBUFFERED", Some("1")),
        ("MASTER_ADDR", None),
    ];
    for (name, value) in expected {
        assert_eq!(env(&plan, name), value, "{name}");
    }
    assert_eq!(plan.decision("NCCL_DEBUG").map(|d| d.value.as_str()), Some("INFO"));
    assert_eq!(plan.decision("HF_HOME").map(|d| d.value.as_str()), Some("/container"));
    let plain = planned(&crate::fixtures::settings(&[]), &node, 1, &AskedNproc::Auto);
    assert_eq!(plain.as_ref().ok().and_then(|p| env(p, "OMP_NUM_THREADS")), Some("4"));
}

/// The variables are those that `conda env config vars set` stores.
#[test]
fn variables_of_the_interpreters_environment_stay() {
    let mut node = facts(8);
    let conda = [("OMP_NUM_THREADS", "6"), ("TORCH_FR_DUMP_TEMP_FILE", "/mine"), ("A", "conda")];
    let conda = conda.map(|(name, value)| (name.to_owned(), value.to_owned()));
    node.python.activation.extend(conda);
    node.environment.insert("A".into(), "container".into());
    let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "OMP_NUM_THREADS"), Some("6"));
    assert_eq!((env(&plan, "A"), plan.recorder_file), (Some("conda"), None));
    assert_eq!(plan.decision("OMP_NUM_THREADS"), None);
}

/// Slurm without a task plugin binds nothing, so all CPUs of the node seem to be ours.
#[test]
fn threads_keep_to_the_cpus_that_slurm_gave() {
    let threads = |pairs: &[(&str, &str)]| {
        let environment =
            pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let mut node = facts(2);
        node.contract = Contract::read(&Host::replayed("/nonexistent", environment), None, None);
        let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto);
        let plan = plan.expect("a plan");
        let decision = plan.decision("OMP_NUM_THREADS").expect("a decision");
        format!("{} {}", decision.value, decision.source)
    };
    let step = [("SLURM_JOB_ID", "7"), ("SLURM_STEP_NUM_NODES", "1"), ("SLURM_NODEID", "0")];
    let with = |more: &[(&'static str, &'static str)]| threads(&[&step[..], more].concat());
    assert_eq!(with(&[]), "16 detected");
    assert_eq!(with(&[("SLURM_CPUS_PER_TASK", "4")]), "2 SLURM_CPUS_PER_TASK=4");
    assert_eq!(with(&[("SLURM_CPUS_ON_NODE", "8")]), "4 SLURM_CPUS_ON_NODE=8");
    let both = [("SLURM_CPUS_ON_NODE", "8"), ("SLURM_CPUS_PER_TASK", "4")];
    assert_eq!(with(&both), "2 SLURM_CPUS_PER_TASK=4");
    assert_eq!(with(&[("SLURM_CPUS_PER_TASK", "64")]), "16 detected");
    // The step of mpirun's daemon does not describe this task.
    let mpi = [("SLURM_CPUS_PER_TASK", "1"), ("OMPI_COMM_WORLD_SIZE", "1")];
    assert_eq!(with(&mpi), "16 detected");
}

#[test]
fn platform_variables_of_torchrun_never_reach_it() {
    let mut node = facts(2);
    node.contract.pet_variables = vec![Claim { variable: "PET_NNODES".into(), value: "1".into() }];
    node.contract.stale_rank_variables = vec!["TORCHELASTIC_SOMETHING".into()];
    let plan = planned(&settings(&[]), &node, 1, &AskedNproc::Auto).expect("a plan");
    for name in ["PET_NNODES", "TORCHELASTIC_SOMETHING", "LOCAL_RANK", "RANK", "WORLD_SIZE"] {
        assert!(plan.env_remove.iter().any(|removed| removed == name), "{name}");
    }
}

/// A launcher that meets elsewhere than the other nodes would wait for them in vain.
#[test]
fn command_gets_the_meeting_point_of_the_plan() {
    let mut settings = settings(&[]);
    settings.engine = flag(Engine::Command, "--engine");
    settings.env = vec![set("NNODES", "7", Source::Flag("--env".into()))];
    let plan = planned(&settings, &facts(8), 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!(env(&plan, "NNODES"), Some("1"));
    let told = plan.decision("NNODES").expect("a decision");
    assert_eq!((told.value.as_str(), told.source.as_str()), ("1", "--env"));
    settings.env = vec![set("NNODES", "1", Source::Flag("--env".into()))];
    let plan = planned(&settings, &facts(8), 1, &AskedNproc::Auto).expect("a plan");
    assert_eq!(plan.decision("NNODES"), None);
}
