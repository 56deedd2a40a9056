//! `[platform]` of a profile: a platform that the program does not know, read like the program's own
//! rows.

use harness::node::{Node, Planned};

/// A platform with its own names: a list of hosts and this host's name, processes per node, and a
/// head with a port. Its containers also have WORLD_SIZE, which counts processes, and RANK.
const ACME: &str = "[job]\nscript = 'train.py'\n\
    [platform]\nname = 'acme'\nproofs = ['ACME_JOB', '!ACME_DEBUG']\n\
    nnodes = { variable = 'ACME_HOSTS', reading = 'list-length' }\n\
    node_rank = { variable = 'ACME_SELF', reading = 'position-in-list', beside = 'ACME_HOSTS' }\n\
    master_addr = ['MASTER_ADDR', { variable = 'ACME_HOSTS', reading = 'first-of-list' }]\n\
    master_port = { variable = 'ACME_HEAD', reading = 'port-part' }\n\
    offered = 'ACME_SLOTS'\ngpu_count = 'ACME_GPUS'\njob_id = 'ACME_JOB'\n";

const POD: &str = "ACME_JOB=j-17 ACME_HOSTS=h,n03 ACME_SELF=n03 ACME_HEAD=h:4242 ACME_SLOTS=8 \
    ACME_GPUS=8 WORLD_SIZE=16 RANK=9";

/// The node, and the path of its profile.
fn node(profile: &str, environment: &str) -> (Node, String) {
    let node = Node::with_gpus(8).file("/etc/ranklaunch/acme.toml", profile).platform(environment);
    let path = node.inside("/etc/ranklaunch/acme.toml").display().to_string();
    (node, path)
}

fn planned(profile: &str, environment: &str, args: &[&str]) -> Planned {
    let (node, path) = node(profile, environment);
    node.json(&[&["--profile", &path], args].concat())
}

fn line(planned: &Planned) -> String {
    if planned.code != 0 {
        return planned.refusal();
    }
    let of = |name: &str| planned.at(&format!("/membership/{name}"));
    let (platform, nnodes, rank) = (of("platform"), of("nnodes"), of("node_rank"));
    format!("{platform} {nnodes} {rank} {}:{}", of("master_addr"), of("master_port"))
}

/// `VARIABLE used because` of each variable that was examined.
fn evidence(planned: &Planned) -> Vec<String> {
    let list = planned.json["evidence"].as_array().cloned().unwrap_or_default();
    let text = |one: &serde_json::Value, key: &str| one[key].as_str().unwrap_or("-").to_owned();
    list.iter()
        .map(|one| format!("{} {} {}", text(one, "variable"), one["used"], text(one, "because")))
        .collect()
}

#[test]
fn a_private_platform_needs_no_code() {
    let found = planned(ACME, POD, &[]);
    assert_eq!(line(&found), "acme 2 1 h:4242", "{:#}", found.json);
    let list = evidence(&found);
    for expected in [
        "ACME_HOSTS true nnodes, master_addr, by acme",
        "ACME_SELF true node_rank, by acme",
        "ACME_HEAD true master_port, by acme",
        "RANK false ACME_SELF=n03 of acme decides node_rank: the profile's platform before a generic name",
    ] {
        assert!(list.iter().any(|one| one == expected), "{expected}\n{list:#?}");
    }
    // WORLD_SIZE is a multiple of the nodes, so it is read as a number of processes.
    assert!(
        list.iter().any(|one| one.starts_with("WORLD_SIZE true world_size_counts")),
        "{list:#?}"
    );
    let decisions = found.json["decisions"].to_string();
    assert!(decisions.contains("its proofs hold"), "{decisions}");
}

/// The control: without the proof, the same variables say nothing, and the plan gives the reason.
#[test]
fn unproven_platform_is_not_read() {
    for (environment, missing) in [
        (POD.replace("ACME_JOB=", "OTHER="), "ACME_JOB"),
        (format!("{POD} ACME_DEBUG=1"), "!ACME_DEBUG"),
    ] {
        let environment = environment.replace(" WORLD_SIZE=16 RANK=9", "");
        let found = planned(ACME, &environment, &[]);
        assert_eq!(line(&found), "none 1 0 127.0.0.1:29500", "{:#}", found.json);
        let expected = format!("ACME_HOSTS false acme is not proven: it needs {missing}");
        let list = evidence(&found);
        assert!(list.contains(&expected), "{expected}\n{list:#?}");
    }
    // The platform is named even if none of its variables is set.
    let found = planned(ACME, "", &[]);
    let expected = "- false acme is not proven: it needs ACME_JOB";
    assert_eq!(evidence(&found), [expected]);
}

/// Rows of a profile are refused like the program's own: by variable and value.
#[test]
fn impossible_values_are_refused_by_name() {
    for (environment, expected, words) in [
        ("ACME_JOB=1 ACME_HOSTS=h,n03 ACME_SELF=n04", "65 membership.rank", "ACME_SELF=n04"),
        ("ACME_JOB=1 ACME_HOSTS=h,n03", "65 membership.half-given", "ACME_HOSTS=h,n03"),
        (
            "ACME_JOB=1 ACME_HOSTS=h,n03 ACME_SELF=h ACME_HEAD=h:99999",
            "65 membership.master-port",
            "ACME_HEAD=h:99999",
        ),
    ] {
        let found = planned(ACME, environment, &[]);
        assert_eq!(line(&found), expected, "{environment} {:#}", found.json);
        let text = found.at("/refused/text");
        assert!(text.contains(words), "{text}");
        assert!(!evidence(&found).is_empty(), "a refusal shows what was read");
    }
}

/// Order of precedence: settings, then a launcher inside the platform, then the profile's platform,
/// then a platform that the program knows, then generic names.
#[test]
fn the_stronger_evidence_decides() {
    let kubebrain = "KUBEBRAIN_REPLICA=0 KUBEBRAIN_REPLICA_TOTAL=4 MASTER_ADDR=h";
    let found = planned(ACME, &format!("{POD} {kubebrain}"), &[]);
    assert_eq!(line(&found), "acme 2 1 h:4242", "{:#}", found.json);
    let list = evidence(&found);
    let weaker = "KUBEBRAIN_REPLICA_TOTAL false ACME_HOSTS=h,n03 of acme decides nnodes: the \
        profile's platform before a variable of one platform";
    assert!(list.iter().any(|one| one == weaker), "{list:#?}");

    let mpirun = "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 \
        OMPI_COMM_WORLD_LOCAL_RANK=0";
    let found = planned(ACME, &format!("{POD} {mpirun}"), &[]);
    assert_eq!(line(&found), "open-mpi 4 2 h:4242", "{:#}", found.json);

    let found = planned(ACME, POD, &["--nnodes", "3", "--node-rank", "2"]);
    assert_eq!(line(&found), "flags 3 2 h:4242", "{:#}", found.json);
    let list = evidence(&found);
    assert!(
        list.iter().any(|one| one == "ACME_SELF false node_rank is 2 (--node-rank)"),
        "{list:#?}"
    );
}

/// A number of processes with the number of each node, alternatives, and a platform that starts its
/// command once per rank.
#[test]
fn profile_supports_every_way_of_counting() {
    let processes = "[job]\nscript = 'train.py'\n[platform]\nname = 'acme'\n\
        proofs = [['ACME_JOB'], ['ACME_KIND=train']]\n\
        nnodes = { variable = 'ACME_WORLD', reading = 'per-node', beside = 'ACME_LOCAL' }\n\
        node_rank = 'ACME_NODE'\nmaster_addr = 'ACME_HEAD'\ndefault_port = 5678\nnproc = 'ACME_LOCAL'\n";
    let pod = "ACME_KIND=train ACME_WORLD=8 ACME_LOCAL=4 ACME_NODE=1 ACME_HEAD=h";
    let found = planned(processes, pod, &[]);
    assert_eq!(line(&found), "acme 2 1 h:5678", "{:#}", found.json);
    assert_eq!(found.at("/nproc_per_node"), "4");
    let odd = planned(processes, &pod.replace("WORLD=8", "WORLD=9"), &[]);
    assert_eq!(line(&odd), "65 membership.processes");

    let tasks = "[job]\nscript = 'train.py'\nengine = 'direct'\n[platform]\nname = 'acme'\n\
        proofs = ['ACME_JOB']\nmaster_addr = 'ACME_HEAD'\ntasks = 'ACME_SIZE'\n\
        task_rank = 'ACME_RANK'\ntask_local = 'ACME_LOCAL'\ntasks_per_node = 'ACME_LOCAL_SIZE'\n";
    let pod = "ACME_JOB=1 ACME_HEAD=h ACME_SIZE=8 ACME_RANK=5 ACME_LOCAL=1 ACME_LOCAL_SIZE=4";
    let found = planned(tasks, pod, &[]);
    assert_eq!(line(&found), "acme 2 1 h:29500", "{:#}", found.json);
    let half = planned(tasks, &pod.replace("ACME_SIZE=8", ""), &[]);
    assert_eq!(line(&half), "65 membership.half-given");
    assert!(half.at("/refused/text").contains("ACME_SIZE"), "{:#}", half.json);
}

/// `check` and `plan` agree, and `profile check` refuses impossible rows.
#[test]
fn check_agrees_and_a_wrong_section_is_refused() {
    let (node, path) = node(ACME, POD);
    let ended = node.launcher("check", &["--format", "json", "--profile", &path]).run();
    let report: serde_json::Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!(report["plan"]["membership"]["platform"], "acme", "{:#}", report["refused"]);
    assert_eq!(report["plan"]["membership"]["nnodes"], 2);
    let wrong = ACME.replace("list-length", "list-lenght");
    let found = planned(&wrong, POD, &[]);
    assert_eq!(found.refusal(), "64 settings.profile");
    let text = found.at("/refused/text");
    assert!(text.contains("acme.toml:6") && text.contains("list-length"), "{text}");
}
