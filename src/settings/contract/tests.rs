//! Tests of the reader and of the table's form; the meaning of platforms is tested with
//! membership.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::*;

fn host(root: &Path, pairs: &[(&str, &str)]) -> Host {
    let environment: BTreeMap<_, _> =
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Host::replayed(root, environment)
}

fn contract(host: &Host) -> Contract {
    Contract::read(host, Contract::torchrun_above(host), None)
}

fn process(root: &Path, pid: &str, parent: i32, argv: &[&str]) {
    let folder = root.join("proc").join(pid);
    fs::create_dir_all(&folder).expect("fake /proc");
    let number = if pid == "self" { "40" } else { pid };
    let stat = format!("{number} (x) S {parent} 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0\n");
    fs::write(folder.join("stat"), stat).expect("stat");
    fs::write(folder.join("cmdline"), argv.join("\0") + "\0").expect("cmdline");
}

#[test]
fn mpiexec_host_is_master_unless_rank_0_elsewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    process(root, "self", 7, &["ranklaunch"]);
    process(
        root,
        "7",
        6,
        &["/usr/bin/hydra_pmi_proxy", "--control-port", "n1:34897", "--rmk", "user"],
    );
    fs::create_dir_all(root.join("proc/sys/kernel")).expect("a folder");
    let master = |own: &str, pairs: &[(&str, &str)]| {
        fs::write(root.join("proc/sys/kernel/hostname"), format!("{own}\n")).expect("a file");
        let host = host(root, pairs);
        let mut found = contract(&host);
        found.add_mpiexec(&host, Contract::mpiexec_above(&host));
        found.first(Field::MasterAddr).map(ToString::to_string)
    };
    let rank = |rank| [("PMI_SIZE", "4"), ("PMI_RANK", rank), ("MPI_LOCALNRANKS", "2")];
    let mpiexec = Some("hydra_pmi_proxy --control-port=n1:34897".to_owned());
    assert_eq!(master("n1.cluster", &rank("1")), mpiexec);
    assert_eq!(master("n2", &rank("2")), mpiexec);
    // mpiexec runs on another host than rank 0.
    assert_eq!(master("n3", &rank("0")), None);
    assert_eq!(master("n1", &rank("2")), None);
    // The port is derived from mpiexec's address in any case, so that two jobs on one host do not meet.
    let host = host(root, &rank("0"));
    let mut found = contract(&host);
    found.add_mpiexec(&host, Contract::mpiexec_above(&host));
    assert_eq!(found.first(Field::MasterPort).map(ToString::to_string), mpiexec);
    assert_eq!(found.first(Field::JobId).map(ToString::to_string), mpiexec);
    let mut named = rank("2").to_vec();
    named.push(("MASTER_ADDR", "n9"));
    assert_eq!(master("n2", &named), Some("MASTER_ADDR=n9".to_owned()));
    named.push(("OMPI_COMM_WORLD_SIZE", "2"));
    assert_eq!(master("n2", &named), Some("MASTER_ADDR=n9".to_owned()));
}

#[test]
fn living_torchrun_above_leaves_no_stale_variables() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    process(root, "self", 30, &["ranklaunch"]);
    process(root, "30", 20, &["bash", "torchrun"]);
    process(root, "20", 1, &["/opt/venv/bin/python3.11", "/opt/venv/bin/torchrun", "a.py"]);
    let found = contract(&host(root, &[("LOCAL_RANK", "0")]));
    let line = "/opt/venv/bin/python3.11 /opt/venv/bin/torchrun a.py".to_owned();
    assert_eq!(found.inside_torchrun, Some((20, line)));
    assert!(found.stale_rank_variables.is_empty());

    process(root, "20", 1, &["/bin/sh"]);
    process(root, "1", 0, &["sleep"]);
    let found = contract(&host(root, &[("LOCAL_RANK", "0"), ("TORCHELASTIC_ERROR_FILE", "/x")]));
    assert_eq!(found.inside_torchrun, None);
    assert_eq!(found.stale_rank_variables, ["LOCAL_RANK"]);
}

/// A rank of ours counts as a rank; the program of the engine `command` does not.
#[test]
fn own_rank_above_counts_as_torchrun() {
    let root = tempfile::tempdir().expect("a folder");
    let root = root.path();
    process(root, "self", 30, &["ranklaunch", "run"]);
    process(root, "30", 20, &["python", "train.py"]);
    process(root, "20", 1, &["/opt/ranklaunch", "rank", "--", "python", "train.py"]);
    process(root, "1", 0, &["ranklaunch", "run", "--", "train.py"]);
    let above = |pairs: &[(&str, &str)]| contract(&host(root, pairs)).inside_torchrun;
    let line = "/opt/ranklaunch rank -- python train.py".to_owned();
    assert_eq!(above(&[("RANK", "0"), ("LOCAL_RANK", "0")]), Some((20, line)));
    assert_eq!(above(&[("NODE_RANK", "0"), ("NNODES", "1")]), None);
}

#[test]
fn endless_parent_chain_ends_the_search() {
    let root = tempfile::tempdir().expect("a folder");
    process(root.path(), "self", 7, &["ranklaunch"]);
    process(root.path(), "7", 7, &["bash"]);
    assert_eq!(contract(&host(root.path(), &[])).inside_torchrun, None);
}

#[test]
fn our_own_parents_can_be_read() {
    // The only expectation is that the walk ends.
    let _ = contract(&Host::live());
}

#[test]
fn pet_variables_are_listed_with_any_value() {
    let found =
        contract(&host(Path::new("/nonexistent"), &[("PET_STANDALONE", ""), ("PETS", "1")]));
    let listed: Vec<String> = found.pet_variables.iter().map(ToString::to_string).collect();
    assert_eq!(listed, ["PET_STANDALONE="]);
}

#[test]
fn blank_claim_yields_to_a_filled_one() {
    let at = Path::new("/nonexistent");
    let addr = |pairs: &[(&str, &str)]| {
        contract(&host(at, pairs)).first(Field::MasterAddr).map(|claim| claim.to_string())
    };
    let job = [("MLP_WORKER_NUM", "2"), ("MLP_ROLE_INDEX", "0"), ("MASTER_ADDR", "None")];
    assert_eq!(addr(&job).as_deref(), Some("MASTER_ADDR=None"));
    let with_host = [job.as_slice(), &[("MLP_WORKER_0_HOST", "h")]].concat();
    assert_eq!(addr(&with_host).as_deref(), Some("MLP_WORKER_0_HOST=h"));
}

#[test]
fn every_row_has_a_unique_name_and_proof() {
    let ids: BTreeSet<&str> = platforms(None).map(|platform| platform.id).collect();
    assert_eq!(ids.len(), platforms(None).count());
    let named = ADVICE.iter().map(|(platform, ..)| *platform);
    for id in named.chain(REMARKS.iter().map(|remark| remark.platform)) {
        assert!(ids.contains(id), "{id} is no platform");
    }
    for platform in platforms(None) {
        assert!(!platform.proofs.is_empty(), "{}", platform.id);
        for group in platform.proofs {
            let positive = group.iter().any(|test| !matches!(test, Test::Unset(_)));
            assert!(positive, "{} is proven by an empty environment", platform.id);
        }
        for row in platform.rows() {
            let readings = readings_of(row.field);
            let is_own = matches!(row.field, Field::WorldSize | Field::Rank | Field::Several)
                || row.reading == Reading::FirstReplica;
            assert!(
                is_own || readings.contains(&row.reading),
                "{}: {:?} of {:?}",
                platform.id,
                row.reading,
                row.field
            );
            let needs = beside_of(row.reading) == Beside::Always;
            assert!(!needs || row.beside.is_some(), "{} {:?}", platform.id, row.reading);
        }
    }
}
