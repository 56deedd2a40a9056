//! Jobs with spare nodes: every kind with every number of pods, and each policy that ends all pods with one.

use std::fmt::Write;

use super::{Manifest, Report, lint, plain};
use text::lang::Lang;
use verdict::Id;

/// The rules that this file is about.
const OWN: [Id; 4] = [Id::NodesCount, Id::NodesSingle, Id::SparesSeats, Id::SparesLost];

fn report(name: &str, text: &str) -> Report {
    let manifest = Manifest { name: name.to_owned(), bytes: text.as_bytes().to_vec() };
    lint(&[manifest], None, settings::EMBEDDED)
}

/// Id and line of our findings; in both languages each has a text and a hint.
fn found(name: &str, text: &str) -> Vec<(Id, usize)> {
    let report = report(name, text);
    assert!(report.refused.is_empty(), "{}\n{text}", plain(&report, Lang::En));
    let own: Vec<_> = report.findings.iter().filter(|one| OWN.contains(&one.id)).collect();
    for one in &own {
        assert!(!one.hint.en.is_empty() && !one.hint.zh.is_empty() && one.text.zh != one.text.en);
    }
    own.iter().map(|one| (one.id, one.line)).collect()
}

fn ids(name: &str, text: &str) -> Vec<Id> {
    let mut ids: Vec<Id> = found(name, text).into_iter().map(|(id, _)| id).collect();
    ids.dedup();
    ids
}

/// The ids of our findings in each of these manifests.
fn ids_of_kinds(kinds: &[(&'static str, String)]) -> Vec<(&'static str, Vec<Id>)> {
    let manifest = |(kind, text): &(&'static str, String)| Manifest {
        name: (*kind).to_owned(),
        bytes: text.as_bytes().to_vec(),
    };
    let manifests: Vec<Manifest> = kinds.iter().map(manifest).collect();
    let report = lint(&manifests, None, settings::EMBEDDED);
    assert!(report.refused.is_empty(), "{}", plain(&report, Lang::En));
    let of = |kind: &str| {
        let own = report.findings.iter().filter(|one| one.file == kind && OWN.contains(&one.id));
        let mut ids: Vec<Id> = own.map(|one| one.id).collect();
        ids.dedup();
        ids
    };
    kinds.iter().map(|(kind, _)| (*kind, of(kind))).collect()
}

/// A pod that starts ranklaunch with these words.
fn pod(words: &str, variable: &str) -> String {
    format!(
        "{{restartPolicy: Never, containers: [{{name: pytorch, image: a/b:1, command: [ranklaunch, run{words}, --, t.py], env: [{variable}], resources: {{limits: {{nvidia.com/gpu: 8}}}}}}]}}"
    )
}

/// Every kind whose pods are the nodes of one job, with its number of pods and further fields of its controller.
fn kinds(pods: u64, pod: &str, job: &str, controller: &str) -> Vec<(&'static str, String)> {
    let spec = format!("{{{controller}template: {{spec: {pod}}}}}");
    let counted = |key: &str| spec.replacen('{', &format!("{{{key}: {pods}, "), 1);
    let indexed = format!(
        "{{completionMode: Indexed, completions: {pods}, parallelism: {pods}, {}",
        spec.get(1..).unwrap_or_default()
    );
    let head = |api: &str, kind: &str| {
        format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: a}}\nspec:\n{job}")
    };
    let workers = spec.replacen('{', &format!("{{replicas: {}, ", pods - 1), 1);
    let master = spec.replacen('{', "{replicas: 1, ", 1);
    let jobs = |copies: u64| {
        let each = indexed.replace(&format!("completions: {pods}, parallelism: {pods}"), &{
            let each = pods / copies;
            format!("completions: {each}, parallelism: {each}")
        });
        format!(
            "  replicatedJobs: [{{name: node, replicas: {copies}, template: {{spec: {each}}}}}]\n"
        )
    };
    let runtime = format!(
        "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: ClusterTrainingRuntime\nmetadata: {{name: r}}\nspec: {{template: {{spec: {{replicatedJobs: [{{name: node, template: {{spec: {spec}}}}}]}}}}}}\n---\n"
    );
    let volcano = counted("replicas").replacen('{', "{name: node, ", 1);
    vec![
        (
            "Job",
            format!("apiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\nspec: {indexed}\n"),
        ),
        (
            "PyTorchJob",
            head("kubeflow.org/v1", "PyTorchJob")
                + &format!("  pytorchReplicaSpecs:\n    Master: {master}\n    Worker: {workers}\n"),
        ),
        (
            "TrainJob",
            runtime
                + &head("trainer.kubeflow.org/v1alpha1", "TrainJob")
                + &format!("  runtimeRef: {{name: r}}\n  trainer: {{numNodes: {pods}}}\n"),
        ),
        ("JobSet", head("jobset.x-k8s.io/v1alpha2", "JobSet") + &jobs(1)),
        ("JobSet of Jobs", head("jobset.x-k8s.io/v1alpha2", "JobSet") + &jobs(pods)),
        (
            "LeaderWorkerSet",
            head("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
                + &format!(
                    "  leaderWorkerTemplate: {{size: {pods}, restartPolicy: None, workerTemplate: {{spec: {pod}}}}}\n"
                ),
        ),
        (
            "Volcano",
            head("batch.volcano.sh/v1alpha1", "Job")
                + &format!("  plugins: {{pytorch: [], svc: []}}\n  tasks: [{volcano}]\n"),
        ),
    ]
}

/// `--nnodes` counts the seats, and the platform's number the spares as well.
#[test]
fn pods_are_seats_and_spares_in_every_kind() {
    let mut seen = 0;
    for pods in 2..7 {
        for spares in 0..3 {
            for seats in [None, Some(2), Some(4)] {
                let by_variable = pods % 2 == 0;
                let mut words = seats.map_or(String::new(), |n| format!(", --nnodes, '{n}'"));
                let mut variable = String::new();
                if by_variable {
                    variable = format!("{{name: RANKLAUNCH_SPARES, value: '{spares}'}}");
                } else {
                    let _ = write!(words, ", --spares, '{spares}'");
                }
                let fits = match seats {
                    Some(seats) => seats + spares == pods,
                    None => spares == 0 || pods >= spares + 2,
                };
                let unfit = if seats.is_some() { Id::NodesCount } else { Id::SparesSeats };
                let expected = if fits { vec![] } else { vec![unfit] };
                for (kind, ids) in ids_of_kinds(&kinds(pods, &pod(&words, &variable), "", "")) {
                    assert_eq!(ids, expected, "{kind}: {pods} {words}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen > 300, "{seen}");
}

#[test]
fn number_of_all_nodes_as_nnodes_is_corrected() {
    let counted = [
        ("PyTorchJob", "WORLD_SIZE"),
        ("Volcano", "WORLD_SIZE"),
        ("LeaderWorkerSet", "LWS_GROUP_SIZE"),
    ];
    let numbers = ["WORLD_SIZE", "LWS_GROUP_SIZE"].into_iter().flat_map(|variable| {
        let words = format!(", --nnodes, $({variable}), --spares, '2'");
        kinds(6, &pod(&words, ""), "", "")
            .into_iter()
            .map(move |(kind, text)| (kind, text, variable))
    });
    for (kind, text, variable) in numbers {
        let report = report("m.yaml", &text);
        let said = report.findings.iter().find(|one| one.id == Id::NodesCount);
        assert_eq!(
            said.is_some(),
            counted.contains(&(kind, variable)),
            "{kind} {variable}: {}",
            plain(&report, Lang::En)
        );
        if let Some(said) = said {
            assert!(
                said.text.en.starts_with("6 seats and 2 spares make 8 nodes"),
                "{}",
                said.text.en
            );
            assert!(said.hint.en.contains("--nnodes 4"), "{}", said.hint.en);
        }
    }
    for (kind, text) in kinds(6, &pod(", --nnodes, $(LWS_GROUP_SIZE), --spares, '0'", ""), "", "") {
        assert_eq!(ids("m.yaml", &text), [], "{kind}: without spares all nodes have seats");
    }
    let listed = pod(", --nodes, 'a,b,c,d', --spares, '1'", "");
    for (kind, text) in kinds(4, &listed, "", "") {
        assert_eq!(ids("m.yaml", &text), [], "{kind}: the list has the spares as well");
    }
}

#[test]
fn jobs_that_cannot_have_spares_are_refused() {
    for (words, above, expected) in [
        (", --spares, '2', --muster, 'off'", "", vec![Id::SparesSeats]),
        (", --spares, '2', --nnodes, '1'", "", vec![Id::SparesSeats]),
        (", --spares, '2'", "  elasticPolicy: {minReplicas: 1}\n", vec![Id::SparesSeats]),
        (", --spares, '2'", "", vec![]),
    ] {
        let all = kinds(6, &pod(words, ""), above, "");
        for (kind, text) in all.iter().filter(|(kind, _)| *kind == "PyTorchJob") {
            assert_eq!(ids("m.yaml", text), expected, "{kind}: {words} {above}");
        }
    }
}

/// A limit of failures, for each number of spares and restarts.
#[test]
fn failures_are_allowed_as_often_as_restarts() {
    let is_job = |kind: &str| ["Job", "TrainJob", "JobSet", "JobSet of Jobs"].contains(&kind);
    for spares in [0, 2] {
        for restarts in [None, Some(0), Some(4)] {
            let needed = restarts.unwrap_or(spares);
            let mut words = format!(", --spares, '{spares}'");
            if let Some(restarts) = restarts {
                let _ = write!(words, ", --max-restarts, '{restarts}'");
            }
            for (fields, allowed) in [
                ("", 6),
                ("backoffLimit: 0, ", 0),
                ("backoffLimit: 1, ", 1),
                ("backoffLimit: 4, ", 4),
                ("backoffLimitPerIndex: 0, ", u64::MAX),
                ("backoffLimitPerIndex: 0, maxFailedIndexes: 0, ", 0),
                ("backoffLimitPerIndex: 1, maxFailedIndexes: 0, ", 1),
                ("backoffLimitPerIndex: 0, maxFailedIndexes: 4, ", 4),
                ("backoffLimit: $N, ", u64::MAX),
            ] {
                let bad = spares > 0 && allowed < needed;
                let mut all = kinds(6, &pod(&words, ""), "", fields);
                all.retain(|(kind, _)| is_job(kind));
                for (kind, ids) in ids_of_kinds(&all) {
                    let expected = if bad { vec![Id::SparesLost] } else { vec![] };
                    assert_eq!(ids, expected, "{kind}: {words} {fields}");
                }
            }
        }
    }
}

/// What is known only in the pod hides nothing of what the manifest says.
#[test]
fn spares_are_known_beside_values_of_the_pod() {
    let rank = ", --node-rank, $(JOB_COMPLETION_INDEX)";
    for (words, expected) in [
        (format!("{rank}, --spares, '2'"), vec![Id::SparesLost]),
        (
            format!("{rank}, --nnodes, $(N), --master-port, $(P), --spares, '2'"),
            vec![Id::SparesLost],
        ),
        (format!("{rank}, --spares, '2', --max-restarts, '1'"), vec![]),
        (format!("{rank}, --spares, '2', --muster, 'off'"), vec![Id::SparesSeats, Id::SparesLost]),
        (format!("{rank}, --spares, $(S)"), vec![]),
    ] {
        let all = kinds(6, &pod(&words, ""), "", "backoffLimit: 1, ");
        for (kind, text) in all.iter().filter(|(kind, _)| *kind == "Job") {
            let mut ids = ids("m.yaml", text);
            ids.sort_by_key(|id| expected.iter().position(|one| one == id));
            assert_eq!(ids, expected, "{kind}: {words}");
        }
    }
}

#[test]
fn spares_that_are_no_number_are_refused() {
    let variable = |value: &str| format!("{{name: RANKLAUNCH_SPARES, value: '{value}'}}");
    for (words, variable, said) in [
        (", --spares, two", String::new(), Some("--spares is `two`, but must be a whole number")),
        (", --spares=1.5", String::new(), Some("--spares is `1.5`, but must be a whole number")),
        (", --nnodes, $(N), --spares, two", String::new(), Some("--spares is `two`")),
        ("", variable("two"), Some("RANKLAUNCH_SPARES is `two`")),
        (", --spares, '2'", String::new(), None),
        (", --spares, $(S)", String::new(), None),
        (", --spares, '{{ .Values.spares }}'", String::new(), None),
        (", --spares, ${SPARES}", String::new(), None),
    ] {
        let all = kinds(6, &pod(words, &variable), "", "");
        for (kind, text) in all.iter().filter(|(kind, _)| *kind == "Job") {
            let report = report("m.yaml", text);
            let refused = report.findings.iter().find(|one| one.id == Id::CommandRefused);
            assert_eq!(refused.is_some(), said.is_some(), "{kind}: {words} {refused:?}");
            assert!(refused.is_none_or(|one| one.text.en.contains(said.unwrap_or_default())));
        }
    }
}

/// Each policy that is for all pods, beside the same one for one of them, and beside a job without spares.
#[test]
fn policies_for_all_pods_are_found() {
    let code = "onExitCodes: {operator: In, values: [64, 143]}";
    let other = "onExitCodes: {operator: In, values: [64, 65]}";
    let not = "onExitCodes: {operator: NotIn, values: [0]}";
    let disrupted = "onPodConditions: [{type: DisruptionTarget}]";
    let rules = |rules: &[(&str, &str)]| {
        let rules: Vec<String> =
            rules.iter().map(|(action, of)| format!("{{action: {action}, {of}}}")).collect();
        format!("podFailurePolicy: {{rules: [{}]}}, ", rules.join(", "))
    };
    let policies =
        |event: &str, action: &str| format!("policies: [{{{event}, action: {action}}}], ");
    let job = ["Job", "TrainJob", "JobSet"].as_slice();
    let rows: Vec<(&[&str], String, String, bool)> = vec![
        (job, String::new(), rules(&[("FailJob", code)]), true),
        (job, String::new(), rules(&[("FailJob", other)]), false),
        (job, String::new(), rules(&[("FailJob", not)]), true),
        (job, String::new(), rules(&[("FailJob", disrupted)]), true),
        (job, String::new(), rules(&[("Ignore", disrupted), ("FailJob", other)]), false),
        (job, String::new(), rules(&[("Ignore", code), ("FailJob", code)]), false),
        (&["PyTorchJob"], String::new(), "restartPolicy: Never, ".to_owned(), true),
        (&["PyTorchJob"], String::new(), "restartPolicy: OnFailure, ".to_owned(), false),
        (&["PyTorchJob"], "  runPolicy: {backoffLimit: 0}\n".to_owned(), String::new(), true),
        (&["PyTorchJob"], "  runPolicy: {backoffLimit: 2}\n".to_owned(), String::new(), true),
        (&["PyTorchJob"], "  runPolicy: {backoffLimit: 3}\n".to_owned(), String::new(), false),
        (
            &["PyTorchJob"],
            "  runPolicy: {backoffLimit: 1}\n".to_owned(),
            "restartPolicy: ExitCode, ".to_owned(),
            false,
        ),
        (
            &["JobSet"],
            "  failurePolicy: {restartStrategy: InPlaceRestart}\n".to_owned(),
            String::new(),
            true,
        ),
        (&["JobSet"], "  failurePolicy: {maxRestarts: 0}\n".to_owned(), String::new(), false),
        (&["Volcano"], String::new(), policies("event: PodFailed", "RestartJob"), true),
        (&["Volcano"], String::new(), policies("events: [PodEvicted]", "AbortJob"), true),
        (&["Volcano"], String::new(), policies("event: '*'", "RestartTask"), true),
        (&["Volcano"], String::new(), policies("exitCode: 137", "TerminateJob"), true),
        (&["Volcano"], String::new(), policies("exitCode: 64", "AbortJob"), false),
        (&["Volcano"], String::new(), policies("event: TaskCompleted", "CompleteJob"), false),
        (&["Volcano"], String::new(), policies("event: PodFailed", "RestartPod"), false),
        (
            &["Volcano"],
            "  policies: [{event: '*', action: RestartJob}]\n".to_owned(),
            policies("events: [PodFailed, PodEvicted]", "RestartPod"),
            false,
        ),
    ];
    for (of, above, fields, bad) in rows {
        for spares in [0, 2] {
            let mut all = kinds(6, &pod(&format!(", --spares, '{spares}'"), ""), &above, &fields);
            all.retain(|(kind, _)| of.contains(kind));
            for (kind, ids) in ids_of_kinds(&all) {
                let expected = if bad && spares > 0 { vec![Id::SparesLost] } else { vec![] };
                assert_eq!(ids, expected, "{kind}: {above} {fields}");
            }
        }
    }
    for (policy, bad) in [
        ("", true),
        ("restartPolicy: RecreateGroupOnPodRestart, ", true),
        ("restartPolicy: RecreateGroupAfterStart, ", true),
        ("restartPolicy: Default, ", false),
    ] {
        let all = kinds(6, &pod(", --spares, '2'", ""), "", "");
        let sets = all.iter().filter(|(kind, _)| *kind == "LeaderWorkerSet");
        for (_, text) in sets {
            let text = text.replace("restartPolicy: None, ", policy);
            assert_eq!(ids("m.yaml", &text).contains(&Id::SparesLost), bad, "{policy}");
        }
    }
}

/// Every way to write an option of Slurm, in every place where it counts.
#[test]
fn slurm_keeps_the_nodes_of_a_job_with_spares() {
    let script = |directives: &str, before: &str, srun: &str, words: &str| {
        format!(
            "#!/bin/bash\n{directives}\n{before}\nexec srun {srun} ranklaunch run {words} -- t.py\n"
        )
    };
    let keep = "#SBATCH --no-kill";
    for nodes in 3..8_u64 {
        for (directives, srun) in [
            (format!("#SBATCH -N {nodes}"), String::new()),
            (format!("#SBATCH --nodes={nodes} # all"), String::new()),
            (format!("#SBATCH --nodes {nodes}"), String::new()),
            ("#SBATCH -N 9".to_owned(), format!("-N{nodes}")),
            (
                "#SBATCH -N 9".to_owned(),
                format!("--job-name ranklaunch --nodes={nodes} -n {nodes}"),
            ),
        ] {
            for (words, fits) in [
                ("--spares 2", nodes >= 4),
                ("--nnodes 4 --spares 2", nodes == 6),
                ("--nnodes $SLURM_NNODES --spares 2", false),
                ("--nnodes $N --spares 2", true),
                ("--nnodes 4 --spares $S", true),
                ("--nnodes 4", true),
            ] {
                let text =
                    script(&format!("{directives}\n{keep}"), "", &format!("{srun} -k"), words);
                assert_eq!(ids("a.sbatch", &text).is_empty(), fits, "{text}");
            }
        }
    }
    for (directives, before, srun, expected) in [
        (keep, "", "--no-kill", vec![]),
        ("#SBATCH -k", "", "-k", vec![]),
        (keep, "export SLURM_NO_KILL=1", "", vec![]),
        ("", "", "--no-kill", vec![]),
        (keep, "", "", vec![4]),
        ("#SBATCH -J a", "", "--no-kill", vec![2]),
        ("#SBATCH --no-kill=off", "", "--no-kill=off", vec![2, 4]),
        (keep, "", "-k --kill-on-bad-exit=0 --wait=0", vec![]),
        (keep, "", "-k -K0 -W0", vec![]),
        (keep, "", "-k -K", vec![]),
        (keep, "", "-k --kill-on-bad-exit=1", vec![]),
        (keep, "", "-k --wait 30", vec![]),
        (keep, "", "-k -W30", vec![]),
        (keep, "export SLURM_KILL_BAD_EXIT=1", "-k", vec![]),
        (keep, "export SLURM_WAIT=30", "-k -W 0", vec![]),
    ] {
        let text = script(directives, before, srun, "--spares 2");
        let lines: Vec<usize> = found("a.sh", &text).into_iter().map(|(_, line)| line).collect();
        assert_eq!(lines, expected, "{text}");
        let without = script(directives, before, srun, "");
        assert_eq!(found("a.sh", &without), [], "{without}");
    }
    // The command in a variable or a shell, as many scripts have it.
    let run = "ranklaunch run --spares 2";
    for command in [
        format!("srun K bash -c '{run} -- t.py'"),
        format!("srun K bash -lc 'export A=1; exec {run} -- t.py'"),
        format!("C=\"{run} -- t.py\"\nsrun K $C"),
        format!("L=\"{run}\"\nsrun K $L -- t.py"),
        format!("C=\"{run} -- t.py\"\nsrun K bash -c \"$C\" 2>&1 | tee log"),
    ] {
        for (keeps, lost) in [("--no-kill", false), ("", true)] {
            let text =
                format!("#!/bin/bash\n#SBATCH -N 6\n{keep}\n{}\n", command.replace('K', keeps));
            let ids: Vec<Id> = found("a.sbatch", &text).into_iter().map(|(id, _)| id).collect();
            assert_eq!(ids.contains(&Id::SparesLost), lost, "{text}: {ids:?}");
        }
    }
    // Two launches, one after the other, are no services of one job.
    let twice = format!(
        "#!/bin/bash\n#SBATCH -N 6\n{keep}\nsrun -k {run} -- a.py\nsrun -k {run} -- b.py\n"
    );
    assert_eq!(found("a.sbatch", &twice), []);
    for (directives, srun, refused) in [
        ("--ntasks-per-node=8 -N 6", "", true),
        ("--ntasks=48 --nodes=6", "", true),
        ("-n48 -N6", "", true),
        ("-n 48 -N 6", "", true),
        ("-n 7 -N 6", "", true),
        ("", "-n 48 -N 6", true),
        ("-N 6", "--ntasks 48", true),
        ("-n 6 -N 6", "", false),
        ("-n 48", "", false),
        ("-n 48 -N 4-6", "", false),
        ("-n 48 -N 6", "-n 6", false),
        ("-n 48 -N 6", "-n $TASKS", false),
        ("-n 48 -N 6", "--ntasks-per-node=1", false),
        ("--ntasks-per-node=8 -N 6", "-n 6", false),
        ("--ntasks-per-node=8 -n 6 -N 6", "", false),
    ] {
        let tasks =
            script(&format!("#SBATCH -k {directives}"), "", &format!("-k {srun}"), "--spares 2");
        let expected = if refused { vec![Id::SparesSeats] } else { vec![] };
        assert_eq!(ids("a.sh", &tasks), expected, "{tasks}");
    }
    let one_by_one = script(keep, "", "-N1 -n1 -w n3 -k", "--nnodes 4 --spares 2 --node-rank 3");
    assert_eq!(ids("a.sh", &one_by_one), []);
    let mpi = "mpirun -n 6 --map-by ppr:1:node ranklaunch --spares 2 -- t.py\n";
    assert_eq!(found("a.sh", mpi), [(Id::SparesLost, 1)]);
}

/// A command in a container or on another host is read as one that stands alone.
#[test]
fn commands_in_containers_and_on_hosts_are_read() {
    for (command, refused) in [
        ("ranklaunch run O -- t.py", true),
        ("docker run --gpus all -v /a:/b img:1 ranklaunch run O -- t.py", true),
        ("sudo docker exec -it c1 ranklaunch run O -- t.py", true),
        ("podman run --rm img bash -c 'ranklaunch run O -- t.py'", true),
        ("apptainer exec --nv a.sif ranklaunch run O -- t.py", true),
        ("singularity exec a.sif ranklaunch run O -- t.py", true),
        ("enroot start name ranklaunch run O -- t.py", true),
        ("C='ranklaunch run O -- t.py'\ndocker run img $C", true),
        ("ssh n1 ranklaunch run O -- t.py", true),
        ("ssh n1 docker exec c1 ranklaunch run O -- t.py", true),
        ("ssh n1 \"cd '$PWD' && ranklaunch run O -- t.py\" &", true),
        // The remote shell reads the words again: they are no script any more.
        ("ssh n1 bash -c 'ranklaunch run O -- t.py'", false),
        ("for n in 1 2; do ssh n$n ranklaunch run O -- t.py; done", false),
        ("docker run --new=1 -Zx img ranklaunch run O -- t.py", false),
        ("docker build -t ranklaunch .", false),
    ] {
        for (words, bad) in [("--nnodes 1 --spares 2", true), ("--nnodes 4 --spares 2", false)] {
            let text = format!("#!/bin/bash\n{}\n", command.replace('O', words));
            let expected = if bad && refused { vec![Id::SparesSeats] } else { vec![] };
            assert_eq!(ids("a.sh", &text), expected, "{text}");
        }
    }
    let deep =
        format!("{}ranklaunch run --nnodes 1 --spares 2 -- t.py\n", "docker run i ".repeat(20_000));
    assert_eq!(ids("a.sh", &format!("#!/bin/bash\n{deep}")), []);
    // Variables reach a command in a container only by an option.
    for (command, known) in [
        ("export RANKLAUNCH_SPARES=2\napptainer exec a.sif CMD", true),
        ("export RANKLAUNCH_SPARES=2\napptainer exec -e a.sif CMD", false),
        ("export RANKLAUNCH_SPARES=2\ndocker run img CMD", false),
        ("export RANKLAUNCH_SPARES=2\nssh n1 CMD", false),
        ("docker run -e RANKLAUNCH_SPARES=2 img CMD", true),
        ("docker run -e RANKLAUNCH_SPARES=2 img true; CMD", false),
    ] {
        let run = "ranklaunch run --nnodes 1 -- t.py";
        let text = format!("#!/bin/bash\n{}\n", command.replace("CMD", run));
        let expected = if known { vec![Id::SparesSeats] } else { vec![] };
        assert_eq!(ids("a.sh", &text), expected, "{text}");
    }
}

#[test]
fn services_of_a_compose_file_are_counted() {
    let file = |services: u64, variables: &str| {
        let service = |n: u64| {
            format!(
                "  node{n}: {{command: ranklaunch run -- t.py, environment: {{{variables}}}}}\n"
            )
        };
        format!("services:\n{}", (0..services).map(service).collect::<String>())
    };
    let counted = "RANKLAUNCH_NNODES: '2', RANKLAUNCH_SPARES: '1'";
    let listed = "RANKLAUNCH_NODES: 'node0,node1,node2', RANKLAUNCH_SPARES: '1'";
    for variables in [counted, listed] {
        for services in 1..6 {
            // One service may be this host's part of the job.
            let expected = if [1, 3].contains(&services) { vec![] } else { vec![Id::NodesCount] };
            assert_eq!(ids("compose.yaml", &file(services, variables)), expected, "{services}");
        }
    }
    assert_eq!(ids("compose.yaml", &file(4, "RANKLAUNCH_NNODES: '2'")), []);
}
