//! Layouts, kinds, manifests of other projects, and input that is no manifest.

use std::fmt::Write as _;

use harness::skipped;
use lint::{self, LintSeverity, Manifest};
use text::lang::Lang;

use super::samples::*;
use super::{check, ids};

/// A layout of ulysses × ring: sizes that the planner accepts give no finding.
#[test]
fn ring_layout_is_judged_by_its_own_rule() {
    const RING: &str = "[job]\nscript = \"ring.py\"\nargs = [\"--ulysses\", \"{ulysses_size}\", \"--ring\", \"{ring_size}\"]\n[layout]\nrule = \"ulysses-ring\"\nheads = 40\nulysses_argument = \"--ulysses\"\nring_argument = \"--ring\"\n";
    let found = |rest: &str| {
        let text = pytorchjob("", &[("Master", 1), ("Worker", 2)], rest);
        let manifest = Manifest { name: "m.yaml".into(), bytes: text.into_bytes() };
        let report = lint::lint(&[manifest], None, &[("ring", RING)]);
        let mut ids: Vec<_> = report.findings.iter().map(|found| found.id.as_str()).collect();
        ids.dedup();
        (ids, lint::plain(&report, Lang::En))
    };
    let torchrun = |args: &str| {
        format!(
            "command: [bash, -c, 'torchrun --nnodes=3 --nproc_per_node=8 --node_rank=$RANK --master_addr=$MASTER_ADDR ring.py {args}']"
        )
    };
    for (rest, expected) in [
        // 3 nodes × 8 GPUs, 40 heads: ulysses 8 × ring 3.
        ("command: [ranklaunch, --profile, ring]".to_owned(), vec![]),
        (
            "command: [ranklaunch, --profile, ring, --, ring.py, --ulysses, '4', --ring, '6']"
                .to_owned(),
            vec![],
        ),
        (
            "command: [ranklaunch, --profile, ring, --, ring.py, --ulysses, '16']".to_owned(),
            vec!["layout.heads"],
        ),
        (
            "command: [ranklaunch, --profile, ring, ring.py, --ulysses, '16']".to_owned(),
            vec!["layout.heads"],
        ),
        (
            "command: [ranklaunch, --profile, ring, -m, ring, --ulysses, '16']".to_owned(),
            vec!["layout.heads"],
        ),
        (torchrun("--ulysses 8 --ring 3"), vec![]),
        (torchrun("--ulysses 8 --ring 2"), vec!["layout.world"]),
        (torchrun("--ulysses 3 --ring 8"), vec!["layout.heads"]),
    ] {
        let (ids, said) = found(&rest);
        assert_eq!(ids, expected, "{rest}\n{said}");
    }
}

/// The name of a value, and its absence, are reported in the reader's language.
#[test]
fn value_without_variable_is_named_in_both_languages() {
    let ranks = [("Master", 1), ("Worker", 2)];
    let alike = pytorchjob(
        "",
        &ranks,
        "command: [torchrun, --nnodes=3, --nproc_per_node=8, --node_rank=0, --master_addr=localhost, t.py]",
    );
    let requested = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: m, image: x, command: [torchrun, --nproc_per_node=8, t.py], resources: {requests: {nvidia.com/gpu: 8}}}]}\n";
    let manifests = [alike, requested.to_owned()]
        .map(|text| Manifest { name: "m.yaml".into(), bytes: text.into_bytes() });
    let report = lint::lint(&manifests, None, settings::EMBEDDED);
    for (lang, names) in [
        (Lang::En, ["the node rank is 0", "the master's address is localhost", "limit nothing;"]),
        (Lang::Zh, ["node rank 在同一模板", "Master 在每个节点上都是 localhost", "limit 未设置；"]),
    ] {
        let said = lint::plain(&report, lang);
        for name in names {
            assert!(said.contains(name), "{name}\n{said}");
        }
    }
}

/// The findings on manifests of other projects, compared with those of a human reviewer.
#[test]
fn real_manifests_are_judged_like_by_a_reviewer() {
    const EXPECTED: &str = include_str!("real.txt");
    let folder = std::env::var_os("RANKLAUNCH_MANIFESTS").filter(|folder| !folder.is_empty());
    let Some(folder) = folder.map(std::path::PathBuf::from).filter(|folder| folder.is_dir()) else {
        skipped("RANKLAUNCH_MANIFESTS names no folder with the manifests of tests/lint/real.txt");
        return;
    };
    let mut expected: std::collections::BTreeMap<&str, Vec<String>> = Default::default();
    let mut name = "";
    for line in EXPECTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let finding = line.split("  #").next().unwrap_or_default();
        if line.starts_with(' ') {
            expected.entry(name).or_default().push(finding.trim().to_owned());
        } else {
            name = finding;
            expected.entry(name).or_default();
        }
    }
    assert!(expected.len() > 50, "{}", expected.len());
    let mut wrong = String::new();
    for (name, expected) in &expected {
        let bytes =
            std::fs::read(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let manifest = Manifest { name: (*name).to_owned(), bytes };
        let report = lint::lint(&[manifest], None, settings::EMBEDDED);
        let json = lint::json(&report, Lang::En);
        let found = json["findings"].as_array().expect("a list").iter();
        let found: Vec<String> = found
            .map(|one| {
                let word = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
                format!("{} {} {}", one["line"], word("severity"), word("id"))
            })
            .collect();
        if found != *expected || !report.refused.is_empty() {
            let refused: Vec<_> = report.refused.iter().map(|refused| &refused.text.en).collect();
            let _ = writeln!(wrong, "{name}\n  is  {found:?}\n  not {expected:?} {refused:?}");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let unknown = std::fs::read_dir(&folder).expect("a folder").flatten().filter(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        name.ends_with(".yaml") && !expected.contains_key(name.as_str())
    });
    assert_eq!(unknown.count(), 0, "a manifest without an expectation");
}

#[test]
fn objects_without_training_are_left_alone() {
    let text = r#"apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: PersistentVolumeClaim
    metadata: {name: zimdb-data-pvc}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Gi}}}
  - apiVersion: apps/v1
    kind: Deployment
    metadata: {name: tensorboard}
    spec:
      replicas: 2
      template:
        spec:
          containers:
            - {name: tensorboard, image: tb, command: [tensorboard], args: [--logdir=/mnt]}
---
# nothing
---
apiVersion: v1
kind: ConfigMap
metadata: {name: training-config}
data: {config.json: "{}"}
"#;
    let report = check(text, None);
    assert_eq!((ids(&report), report.exit_code()), (vec![], 0));
}

#[test]
fn kinds_keep_their_pods_where_we_look() {
    // A kind, and the depth of its pod template. A finding of the shm rule proves that the template
    // was found.
    let pod = "{containers: [{name: pytorch, image: i, command: [torchrun, --nproc_per_node=2, --nnodes=1, t.py], resources: {limits: {nvidia.com/gpu: 2, memory: 8Gi, cpu: 4}}}]}";
    for head in [
        "apiVersion: v1\nkind: Pod\nspec: POD",
        "apiVersion: batch/v1\nkind: CronJob\nspec: {jobTemplate: {spec: {template: {spec: OF_JOB}}}}",
        "apiVersion: sagemaker.amazonaws.com/v1\nkind: HyperPodPyTorchJob\nspec: {replicaSpecs: [{name: pods, replicas: 1, template: {spec: POD}}]}",
        "apiVersion: kubeflow.org/v1\nkind: MPIJob\nspec: {mpiReplicaSpecs: {Launcher: {template: {spec: {containers: [{name: l, image: i, command: [deepspeed, t.py]}]}}}, Worker: {template: {spec: POD}}}}",
        "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nspec: {mpiReplicaSpecs: {Launcher: {template: {spec: {containers: [{name: l, image: i, command: [mpirun, -np, '4', python, t.py]}]}}}, Worker: {template: {spec: POD}}}}",
        "apiVersion: kubebrain.io/v1\nkind: TrainingJob\nspec: {replicaSpecs: {Worker: {template: {spec: POD}}}}",
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nspec: {tasks: [{name: master, replicas: 1, template: {spec: POD}}]}",
        "apiVersion: batch.volcano.sh/v1alpha1\nkind: CronJob\nspec: {jobTemplate: {spec: {tasks: [{replicas: 1, template: {spec: POD}}]}}}",
        "apiVersion: flow.volcano.sh/v1alpha1\nkind: JobTemplate\nspec: {tasks: [{replicas: 1, template: {spec: POD}}]}",
        "apiVersion: jobset.x-k8s.io/v1alpha2\nkind: JobSet\nspec: {replicatedJobs: [{name: w, template: {spec: {template: {spec: POD}}}}]}",
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nspec: {leaderWorkerTemplate: {size: 1, workerTemplate: {spec: POD}}}",
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainingRuntime\nspec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {spec: POD}}}}]}}}",
        "apiVersion: apps/v1\nkind: StatefulSet\nspec: {replicas: 1, template: {spec: POD}}",
        "apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 3, template: {spec: POD}}",
    ] {
        let of_job = pod.replacen('{', "{restartPolicy: Never, ", 1);
        let report = check(&head.replace("OF_JOB", &of_job).replace("POD", pod), None);
        assert_eq!(
            ids(&report),
            [("shm.missing", 3)],
            "{head}\n{}",
            lint::plain(&report, Lang::En)
        );
    }
    let report = check("apiVersion: a/v1\nkind: Stranger\nspec: {}", None);
    assert_eq!((ids(&report), report.exit_code()), (vec![("kind.unknown", 1)], 0));
}

#[test]
fn trainjob_without_runtime_is_judged_alone() {
    let alone = TRAINJOB.split_once("---\n").expect("two documents").1;
    let report = check(alone, None);
    assert!(
        report.findings.iter().all(|found| found.importance == LintSeverity::Info),
        "{report:?}"
    );
}

#[test]
fn other_yaml_is_refused_with_its_line() {
    for (text, line) in [
        ("a: [1\nb: 2\n", "m.yaml:2: "),
        ("kind: Job\nspec: {{ .Values.x }}\n", "m.yaml:"),
        ("- 1\n- 2\n", "m.yaml:1: "),
        ("kind: Job\n---\nfoo: bar\n", "m.yaml:3: "),
        ("", "m.yaml:1: "),
        ("# only words\n", "m.yaml:1: "),
        // Tabs do not indent.
        ("kind: Job\nspec:\n\ttemplate: {}\n", "m.yaml:3: "),
        ("kind: Job\r\nspec:\r\n\ttemplate: {}\r\n", "m.yaml:3: "),
    ] {
        let report = check(text, None);
        let refused = report.refused.first().map(|r| r.text.en.to_string()).unwrap_or_default();
        assert!(refused.starts_with(line), "{text}: {refused}");
        assert_eq!(report.exit_code(), 64);
    }
    let bytes = b"kind: Job\nx: \xff\n".to_vec();
    let manifest = Manifest { name: "m.yaml".into(), bytes };
    let report = lint::lint(&[manifest], None, settings::EMBEDDED);
    assert!(report.refused.iter().any(|r| r.text.en.starts_with("m.yaml:2: not UTF-8")));
}
