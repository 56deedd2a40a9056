//! packaging/: every manifest matches its schema, has no finding of `lint`, and gives the
//! documented sizes with the variables of its platform.

use std::path::{Path, PathBuf};
use std::process::Command;

use harness::node::{Node, PYTHON};
use harness::{executable, skipped};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PodTemplateSpec, Service};
use serde_json::Value;
use verdict::Verdict;

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging")
}

/// Every manifest by file name.
fn manifests() -> Vec<(String, String)> {
    let folder = std::fs::read_dir(packaging().join("kubernetes")).expect("packaging/kubernetes");
    let mut found: Vec<(String, String)> = folder
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(path).expect("text"))
        })
        .collect();
    found.sort();
    assert!(found.len() >= 10, "{}", found.len());
    found
}

fn documents(text: &str) -> Vec<Value> {
    serde_saphyr::from_multiple(text).expect("YAML")
}

fn kind(object: &Value) -> String {
    let text = |key: &str| object[key].as_str().unwrap_or_default();
    format!("{} {}", text("apiVersion"), text("kind"))
}

#[test]
fn every_kind_and_job_has_a_manifest() {
    let names: Vec<String> = manifests().into_iter().map(|(name, _)| name).collect();
    let kinds: std::collections::BTreeSet<String> = manifests()
        .iter()
        .flat_map(|(_, text)| documents(text))
        .map(|object| kind(&object))
        .collect();
    for kind in [
        "kubeflow.org/v1 PyTorchJob",
        "trainer.kubeflow.org/v1alpha1 TrainJob",
        "trainer.kubeflow.org/v1alpha1 TrainingRuntime",
        "batch/v1 Job",
        "jobset.x-k8s.io/v1alpha2 JobSet",
        "v1 Service",
        "ray.io/v1 RayJob",
        "batch.volcano.sh/v1alpha1 Job",
        "kubebrain.io/v1 TrainingJob",
    ] {
        assert!(kinds.contains(kind), "{kind} is missing in {kinds:?}");
    }
    for job in ["wan22", "taehv", "zimdb"] {
        assert!(names.iter().any(|name| name.starts_with(job)), "{job}");
    }
}

#[test]
fn every_manifest_is_silent_under_lint() {
    for (name, _) in manifests() {
        let path = packaging().join("kubernetes").join(&name);
        let output = Command::new(executable())
            .args(["lint", "--lang", "en", "--node-memory", "1Ti"])
            .arg(&path)
            .output()
            .expect("it runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said == "1 manifest, nothing found\n", "{name}: {said}");
    }
}

/// The scripts and the Compose file beside the manifests.
#[test]
fn every_script_is_silent_under_lint() {
    let files =
        ["slurm/train.sbatch", "slurm/spares.sbatch", "hosts/spares.sh", "compose/compose.yaml"];
    for name in files {
        let lint = |path: &Path| {
            let mut command = Command::new(executable());
            let output = command.args(["lint", "--lang", "en"]).arg(path).output();
            String::from_utf8(output.expect("it runs").stdout).expect("UTF-8")
        };
        let path = packaging().join(name);
        assert_eq!(lint(&path), "1 manifest, nothing found\n", "{name}");
        let text = std::fs::read_to_string(&path).expect("text");
        let folder = tempfile::tempdir().expect("a folder");
        let broken = folder.path().join(path.file_name().expect("a name"));
        let broken_text = text.replace("--no-kill", "").replace("n[1-6]", "n[1-3]");
        std::fs::write(&broken, &broken_text).expect("written");
        let said = lint(&broken);
        assert_eq!(said.contains("(spares."), broken_text != text, "{name}: {said}");
    }
}

/// Paths of fields that the schema does not know; the API server would drop them silently.
fn strangers(schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return;
    }
    match value {
        Value::Object(map) => {
            let properties = schema["properties"].as_object();
            let others = &schema["additionalProperties"];
            // The server itself checks the types of metadata.
            if properties.is_none() && !others.is_object() && path.ends_with(".metadata") {
                return;
            }
            for (key, value) in map {
                let path = format!("{path}.{key}");
                match properties.and_then(|properties| properties.get(key)) {
                    Some(schema) => strangers(schema, value, &path, found),
                    None if others.is_object() => strangers(others, value, &path, found),
                    None if others == true => {}
                    None => found.push(path),
                }
            }
        }
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                strangers(&schema["items"], item, &format!("{path}[{at}]"), found);
            }
        }
        _ => {}
    }
}

/// The schema of an object's version; `None` if the folder of schemas is missing.
fn schema(crds: &Path, object: &Value) -> Option<Value> {
    let file = match kind(object).as_str() {
        "kubeflow.org/v1 PyTorchJob" => "kubeflow.org_pytorchjobs.v1.9.0.yaml",
        "trainer.kubeflow.org/v1alpha1 TrainJob" => "trainer.kubeflow.org_trainjobs.yaml",
        "trainer.kubeflow.org/v1alpha1 TrainingRuntime" => {
            "trainer.kubeflow.org_trainingruntimes.yaml"
        }
        "ray.io/v1 RayJob" => "ray.io_rayjobs.yaml",
        "batch.volcano.sh/v1alpha1 Job" => "batch.volcano.sh_jobs.yaml",
        _ => return None,
    };
    let text = std::fs::read_to_string(crds.join(file)).expect(file);
    let version = object["apiVersion"].as_str()?.rsplit('/').next()?;
    let definition = documents(&text).into_iter().next()?;
    let versions = definition["spec"]["versions"].as_array()?;
    let version = versions.iter().find(|known| known["name"] == version).expect("the version");
    Some(version["schema"]["openAPIV3Schema"].clone())
}

fn problems(schema: &Value, object: &Value) -> Vec<String> {
    let validator = jsonschema::validator_for(schema).expect("a schema");
    let mut found: Vec<String> = validator
        .iter_errors(object)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    for (key, value) in object.as_object().expect("an object") {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            strangers(&schema["properties"][key], value, key, &mut found);
        }
    }
    found
}

#[test]
fn custom_resources_fit_their_schemas() {
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/crds");
    if !crds.is_dir() {
        skipped(format_args!("{} is missing", crds.display()));
        return;
    }
    let mut checked = 0;
    for (name, text) in manifests() {
        for object in documents(&text) {
            let Some(schema) = schema(&crds, &object) else { continue };
            assert_eq!(problems(&schema, &object), Vec::<String>::new(), "{name}");
            checked += 1;

            // The control: the same check finds an unknown field and a value of the wrong type.
            let mut broken = object.clone();
            broken["spec"]["replicaz"] = 1.into();
            assert_eq!(problems(&schema, &broken), ["spec.replicaz"], "{name}");
            broken["spec"] = "no map".into();
            assert!(!problems(&schema, &broken).is_empty(), "{name}");
        }
    }
    assert!(checked >= 9, "{checked}");
}

/// An object after a round trip through its type, which drops unknown fields.
fn through<T>(object: &Value) -> Value
where
    T: serde::de::DeserializeOwned + serde::Serialize,
{
    let typed: T = serde_json::from_value(object.clone())
        .unwrap_or_else(|error| panic!("{error}: {object:#}"));
    serde_json::to_value(typed).expect("JSON")
}

#[test]
fn core_objects_and_pods_fit_their_types() {
    let mut pods = 0;
    for (name, text) in manifests() {
        for object in documents(&text) {
            match kind(&object).as_str() {
                "batch/v1 Job" => assert_eq!(through::<Job>(&object), object, "{name}"),
                "v1 Service" => assert_eq!(through::<Service>(&object), object, "{name}"),
                _ => {}
            }
            for template in templates(&object) {
                assert_eq!(&through::<PodTemplateSpec>(template), template, "{name}");
                pods += 1;
            }
        }
    }
    assert!(pods >= 14, "{pods}");
    let stranger =
        serde_json::json!({ "spec": { "containers": [{ "name": "a", "imagee": "b" }] } });
    assert_ne!(through::<PodTemplateSpec>(&stranger), stranger, "a stranger is noticed");
}

/// The pod templates of an object: maps that hold a spec with containers.
fn templates(value: &Value) -> Vec<&Value> {
    let mut found = Vec::new();
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if key == "template" && value["spec"]["containers"].is_array() {
                    found.push(value);
                } else {
                    found.extend(templates(value));
                }
            }
        }
        Value::Array(items) => found.extend(items.iter().flat_map(templates)),
        _ => {}
    }
    found
}

/// Each pod of every manifest has the memory, grace period and secret that its job needs.
#[test]
fn every_pod_has_room_time_and_the_secret() {
    for (name, text) in manifests() {
        for object in documents(&text) {
            for template in templates(&object) {
                let spec = &template["spec"];
                let container = &spec["containers"][0];
                assert_eq!(spec["terminationGracePeriodSeconds"], 120, "{name}");
                let memory = &container["resources"]["limits"]["memory"];
                assert!(
                    memory.is_string() && container["resources"]["requests"]["cpu"].is_string()
                );
                let env = container["env"].as_array().expect("variables");
                let secret = env.iter().find(|one| one["name"] == "RANKLAUNCH_SECRET");
                let secret = &secret.expect("the secret")["valueFrom"]["secretKeyRef"];
                assert_eq!(secret["optional"], true, "{name}");
                let volumes = spec["volumes"].as_array().expect("volumes");
                let shm = volumes.iter().find(|one| one["name"] == "shm").expect("shm");
                assert_eq!(shm["emptyDir"]["medium"], "Memory", "{name}");
            }
        }
    }
}

/// Our own exit codes for which a retry is useless. Faults of a node (80 to 83), and names, ports and
/// nodes that may appear later, justify a retry.
const FOR_GOOD: [Verdict; 9] = [
    Verdict::Usage,
    Verdict::Membership,
    Verdict::Layout,
    Verdict::Python,
    Verdict::EngineStart,
    Verdict::Internal,
    Verdict::Limit,
    Verdict::Rdma,
    Verdict::OtherNode,
];

/// Every kind that supports it defines the action for our exit codes.
#[test]
fn every_job_maps_our_exit_codes() {
    let for_good = FOR_GOOD.map(|verdict| Value::from(verdict.code()));
    let pod_policy = |name: &str, spec: &Value| {
        let rules = spec["podFailurePolicy"]["rules"].as_array();
        let rules = rules.unwrap_or_else(|| panic!("{name} has no podFailurePolicy"));
        assert_eq!(rules[0]["action"], "FailJob", "{name}");
        let codes = &rules[0]["onExitCodes"];
        assert_eq!(codes["values"].as_array().expect(name)[..], for_good, "{name}");
        let containers = &spec["template"]["spec"]["containers"];
        assert_eq!(codes["containerName"], containers[0]["name"], "{name}");
        // The Job controller applies the policy only with this restartPolicy.
        assert_eq!(spec["template"]["spec"]["restartPolicy"], "Never", "{name}");
        assert_eq!(rules[1]["onPodConditions"][0]["type"], "DisruptionTarget", "{name}");
        // A pod whose node is at fault is replaced, and does not count as a failure.
        assert_eq!(rules[2]["action"], "Ignore", "{name}");
        let codes = &rules[2]["onExitCodes"];
        assert_eq!(codes["values"][0], Verdict::ReplaceNode.code(), "{name}");
        assert_eq!(codes["containerName"], containers[0]["name"], "{name}");
    };
    let mut seen = std::collections::BTreeSet::new();
    for (name, text) in manifests() {
        for object in documents(&text) {
            let spec = &object["spec"];
            match kind(&object).as_str() {
                "kubeflow.org/v1 PyTorchJob" => {
                    let replicas = spec["pytorchReplicaSpecs"].as_object().expect("replicas");
                    assert!(replicas.values().all(|one| one["restartPolicy"] == "ExitCode"));
                }
                "batch/v1 Job" => pod_policy(&name, spec),
                "jobset.x-k8s.io/v1alpha2 JobSet" => {
                    pod_policy(&name, &spec["replicatedJobs"][0]["template"]["spec"]);
                }
                "trainer.kubeflow.org/v1alpha1 TrainingRuntime" => {
                    pod_policy(
                        &name,
                        &spec["template"]["spec"]["replicatedJobs"][0]["template"]["spec"],
                    );
                }
                "batch.volcano.sh/v1alpha1 Job" => {
                    let ends: Vec<_> = spec["policies"]
                        .as_array()
                        .expect("policies")
                        .iter()
                        .filter(|policy| policy["action"] == "AbortJob")
                        .map(|policy| policy["exitCode"].clone())
                        .collect();
                    // A shell's and torchrun's codes are added to ours.
                    let mut expected: Vec<Value> =
                        for_good.iter().cloned().chain([2, 126, 127].map(Value::from)).collect();
                    expected.sort_by_key(Value::as_i64);
                    assert_eq!(ends, expected, "{name}");
                }
                // Neither distinguishes codes: Ray starts the job once, and KubeBrain decides itself.
                "ray.io/v1 RayJob" => assert_eq!(spec["backoffLimit"], 0, "{name}"),
                _ => continue,
            }
            seen.insert(kind(&object));
        }
    }
    assert_eq!(seen.len(), 6, "{seen:?}");
}

/// The action of a Job's controller for a pod that ended with `code`, by the first matching rule.
fn pod_rule(spec: &Value, code: i32) -> String {
    let fits = |rule: &&Value| {
        let codes = &rule["onExitCodes"];
        codes["operator"] == "In"
            && codes["values"].as_array().is_some_and(|values| values.contains(&code.into()))
    };
    let rules = spec["podFailurePolicy"]["rules"].as_array().expect("rules");
    let found = rules.iter().find(fits).map(|rule| rule["action"].as_str().expect("an action"));
    found.unwrap_or("Count").to_owned()
}

/// The action of Volcano for the first pod that it sees end, with `code`, by the first matching policy.
fn volcano_policy(spec: &Value, code: i32) -> &str {
    let fits = |policy: &&Value| policy["exitCode"] == code || policy["event"] == "PodFailed";
    let policies = spec["policies"].as_array().expect("policies");
    policies.iter().find(fits).map_or("SyncJob", |policy| policy["action"].as_str().expect("one"))
}

/// The exit codes of both nodes of a real job whose rank 1 runs this script.
fn codes_of(script: &str) -> [i32; 2] {
    let port = harness::free_port();
    let mut args = harness::run_args("direct", 1);
    let script = format!("test $RANK = 1 || exec sleep 300; {script}");
    args.extend(["--", "sh", "-c", &script].map(Into::into));
    let nodes = [0, 1].map(|rank| harness::Launcher::new(&args).node(rank, 2, port).start());
    nodes.map(|node| node.wait().expect_nothing_left().code)
}

/// A failure that a retry may help is retried with several nodes as with one, and counts once for each
/// pod. A permanent failure ends the job.
#[test]
fn operators_retry_only_retryable_failures() {
    const RAISES: &str = "printf 'Traceback (most recent call last):\n  File \"a.py\", line 9, in <module>\n    main()\n%s\n'";
    let missing =
        format!("{RAISES} \"ModuleNotFoundError: No module named 'flash_attn'\" >&2; exit 1");
    let scenarios = [
        ("exit 3", [143, 3], true),
        ("kill -KILL $$", [143, 137], true),
        ("exit 2", [92, 2], false),
        (missing.as_str(), [92, 1], false),
    ];
    let ran: Vec<_> =
        scenarios.map(|(script, codes, helps)| (codes_of(script), codes, helps)).to_vec();
    // The cases are a hang on node 1 with `--on-hang end`, and a node that has to be replaced. Both have
    // the shared verdict of `src/ranklaunch/job_verdict.rs`.
    let judged = [([143, 91], [143, 91], true), ([143, 90], [143, 90], true)];
    let mut seen = 0;
    for (codes, expected, helps) in ran.into_iter().chain(judged) {
        assert_eq!(codes, expected);
        for (name, text) in manifests() {
            for spec in documents(&text).iter().map(|object| &object["spec"]) {
                if spec["podFailurePolicy"].is_object() && spec["completions"] == 2 {
                    let rules = codes.map(|code| pod_rule(spec, code));
                    let fails = rules.iter().any(|rule| rule == "FailJob");
                    assert_eq!(fails, !helps, "{name} {codes:?}: {rules:?}");
                    let counted = rules.iter().filter(|rule| *rule == "Count").count() as u64;
                    let limit = spec["backoffLimit"].as_u64().expect("a number");
                    assert!(!helps || 3 * counted <= limit, "{name} {codes:?}: {limit}");
                    seen += 1;
                }
                if spec["schedulerName"] == "volcano" {
                    let actions = codes.map(|code| volcano_policy(spec, code));
                    // Only ranklaunch knows whether a retry helps after the program's own 1. If Volcano
                    // sees the culprit's code first, it starts the job again, as with one node.
                    let own = if helps || codes[1] == 1 { "RestartJob" } else { "AbortJob" };
                    let others = if helps { "RestartJob" } else { "AbortJob" };
                    assert_eq!(actions, [others, own], "{name} {codes:?}");
                    assert!(spec["maxRetry"].as_u64().is_some_and(|most| most < 10), "{name}");
                    seen += 1;
                }
                if spec["pytorchReplicaSpecs"].is_object() {
                    // With ExitCode, 1 to 127 end the job. Only the node with the fault may do that.
                    let ends = codes.map(|code| (1..128).contains(&code));
                    assert!(!ends[0] || (!helps && ends[1]), "{name} {codes:?}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen >= 36, "{seen}");
}

/// All pods of a job are equal, so a test of one covers the others.
#[test]
fn pods_of_one_job_are_equal() {
    for (name, text) in manifests() {
        for object in documents(&text) {
            let pods = templates(&object);
            assert!(pods.windows(2).all(|two| two[0]["spec"] == two[1]["spec"]), "{name}");
        }
    }
}

/// A manifest's first working container: its arguments and literal variables.
fn launch(name: &str) -> (Vec<String>, Vec<(String, String)>, u32) {
    let (_, text) = manifests().into_iter().find(|(known, _)| known == name).expect("a manifest");
    let objects = documents(&text);
    let template = objects.iter().flat_map(templates).next().expect("a pod").clone();
    let container = &template["spec"]["containers"][0];
    let entry = objects.iter().find_map(|object| object["spec"]["entrypoint"].as_str());
    let words: Vec<String> = match entry {
        Some(line) => line.split_whitespace().map(str::to_owned).collect(),
        None => ["command", "args"]
            .iter()
            .flat_map(|key| container[*key].as_array().cloned().unwrap_or_default())
            .map(|word| word.as_str().expect("a word").to_owned())
            .collect(),
    };
    let gpus = &container["resources"]["limits"]["nvidia.com/gpu"];
    let gpus: u32 = gpus.as_str().and_then(|text| text.parse().ok()).expect("GPUs");
    // Ray starts one program on the head, and our script starts the words after its -- in every pod.
    let words = match words.iter().position(|word| word.ends_with("/ranklaunch_ray.py")) {
        Some(at) => {
            let pods = objects.iter().flat_map(templates).count().to_string();
            let own = ["--nodes", &pods, "--gpus-per-node", &gpus.to_string(), "--"];
            assert_eq!(words[at + 1..][..own.len()], own, "{name}");
            words[at + 1 + own.len()..].to_vec()
        }
        None => words,
    };
    let (program, args) = words.split_first().expect("a command");
    assert_eq!(program, "/usr/local/bin/ranklaunch", "{name}");
    let args = args.strip_prefix(&["run".to_owned()]).unwrap_or(args);
    let env = container["env"].as_array().expect("variables").iter().filter_map(|one| {
        Some((one["name"].as_str()?.to_owned(), one["value"].as_str()?.to_owned()))
    });
    (args.to_vec(), env.collect(), gpus)
}

/// The nodes of a manifest that wait for a seat.
fn spares(name: &str) -> u32 {
    let (args, ..) = launch(name);
    let at = args.iter().position(|word| word == "--spares");
    at.and_then(|at| args.get(at + 1)).map_or(0, |count| count.parse().expect("a number"))
}

#[test]
fn every_manifest_plans_what_it_promises() {
    let pytorchjob = |nodes: u32| {
        format!(
            "PYTHONUNBUFFERED=1 MASTER_ADDR=j-master-0 MASTER_PORT=23456 WORLD_SIZE={nodes} RANK=0 \
             PET_NNODES={nodes} PET_NPROC_PER_NODE=auto PET_NODE_RANK=0 \
             PET_MASTER_ADDR=j-master-0 PET_MASTER_PORT=23456"
        )
    };
    let trainer = |nodes: u32| {
        format!(
            "PET_NNODES={nodes} PET_NPROC_PER_NODE=auto PET_NODE_RANK=0 \
             PET_MASTER_ADDR=j-node-0-0.j PET_MASTER_PORT=29500"
        )
    };
    let volcano = "MASTER_ADDR=j-master-0 MASTER_PORT=23456 WORLD_SIZE=2 RANK=0 VC_TASK_INDEX=0 \
        VC_MASTER_HOSTS=j-master-0 VC_MASTER_NUM=1 VC_WORKER_HOSTS=j-worker-0 VC_WORKER_NUM=1"
        .to_owned();
    let kubebrain = |gpus: u32| {
        format!(
            "KUBEBRAIN_REPLICA_TOTAL=2 KUBEBRAIN_REPLICA=0 DISTRIBUTED_JOB_ENVS_INITIALIZED=true \
             NODE_COUNT=2 NODE_RANK=0 PROC_PER_NODE={gpus} GPU_COUNT={gpus} MASTER_ADDR=10.0.0.1 \
             PORT_0=9205 HOST_NETWORK=true"
        )
    };
    let indexed = "JOB_COMPLETION_INDEX=0".to_owned();
    let ray = "RAY_CLUSTER_NAME=j RAY_PORT=6379 RAY_ADDRESS=127.0.0.1:6379 \
        RAY_USAGE_STATS_KUBERAY_IN_USE=1 KUBERAY_GEN_RAY_START_CMD=ray"
        .to_owned();
    // These variables are added by packaging/ray/ranklaunch_ray.py.
    let ray_entry = format!(
        "{ray} RANKLAUNCH_NNODES=2 RANKLAUNCH_NODE_RANK=0 RANKLAUNCH_MASTER_ADDR=10.0.0.1 \
         RANKLAUNCH_MASTER_PORT=20000"
    );
    // Manifest, variables of its platform, nodes, processes per node, ulysses, a word of the command line.
    let table: &[(&str, String, u32, u32, u32, &str)] = &[
        ("wan22-pytorchjob.yaml", pytorchjob(2), 2, 4, 8, "generate.py"),
        ("wan22-spares-pytorchjob.yaml", pytorchjob(3), 2, 4, 8, "generate.py"),
        ("taehv-pytorchjob.yaml", pytorchjob(2), 2, 8, 1, "deepspeed_16gpu.yaml"),
        ("zimdb-pytorchjob.yaml", pytorchjob(1), 1, 4, 1, "train.py"),
        ("wan22-trainjob.yaml", trainer(2), 2, 4, 8, "generate.py"),
        ("zimdb-trainjob.yaml", trainer(1), 1, 4, 1, "train.py"),
        ("wan22-indexed-job.yaml", indexed.clone(), 2, 4, 8, "generate.py"),
        ("wan22-spares-jobset.yaml", indexed.clone(), 2, 4, 8, "generate.py"),
        ("taehv-indexed-job.yaml", indexed, 2, 8, 1, "taehv_config_16gpu_h100.py"),
        ("zimdb-job.yaml", String::new(), 1, 4, 1, "train.py"),
        ("wan22-volcano.yaml", volcano.clone(), 2, 4, 8, "generate.py"),
        ("taehv-volcano.yaml", volcano, 2, 8, 1, "deepspeed_16gpu.yaml"),
        ("wan22-kubebrain.yaml", kubebrain(4), 2, 4, 8, "generate.py"),
        ("taehv-kubebrain.yaml", kubebrain(8), 2, 8, 1, "deepspeed_16gpu.yaml"),
        ("wan22-rayjob.yaml", ray_entry, 2, 4, 8, "generate.py"),
        ("zimdb-rayjob.yaml", ray, 1, 4, 1, "train.py"),
    ];
    let planned: Vec<&str> = table.iter().map(|row| row.0).collect();
    for (name, _) in manifests() {
        assert!(planned.contains(&name.as_str()), "{name} is not planned");
    }
    // A node without a seat plans the same.
    let ranks =
        |row: &(&'static str, String, u32, u32, u32, &'static str)| 0..row.2 + spares(row.0);
    for (row, rank) in table.iter().flat_map(|row| ranks(row).map(move |rank| (row, rank))) {
        let (name, platform, nodes, nproc, ulysses, word) = row;
        let platform = ["RANK=", "JOB_COMPLETION_INDEX=", "KUBEBRAIN_REPLICA="]
            .iter()
            .fold(platform.clone(), |all, name| {
                all.replace(&format!("{name}0"), &format!("{name}{rank}"))
            });
        let (args, env, gpus) = launch(name);
        let hosts = "10.0.0.1 j-master-0 j-node-0-0.j wan22-0.wan22 taehv-0.taehv j-worker-0 \
            wan22-spares-node-0-0.wan22-spares\n";
        let mut node = Node::with_gpus(gpus)
            .file("/etc/hosts", hosts)
            .platform(&platform)
            .env("RANKLAUNCH_PYTHON", PYTHON);
        for (name, value) in &env {
            node = node.env(name, value);
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let planned = node.json(&args);
        assert_eq!(planned.code, 0, "{name}: {:#}", planned.json);
        let found =
            ["/membership/nnodes", "/nproc_per_node", "/world_size", "/layout/ulysses_size"]
                .map(|pointer| planned.at(pointer));
        let world = nodes * nproc;
        assert_eq!(found, [*nodes, *nproc, world, *ulysses].map(|n| n.to_string()), "{name}");
        assert_eq!(planned.at("/membership/node_rank"), rank.to_string(), "{name}");
        if spares(name) > 0 {
            assert_eq!(planned.at("/membership/spares"), spares(name).to_string(), "{name}");
        }
        let argv = planned.words("/argv");
        assert!(argv.iter().any(|one| one == word), "{name}: {argv:?}");
        let beside: Vec<String> = planned
            .warning_ids()
            .into_iter()
            .filter(|id| {
                id.starts_with("gpu.") || id.starts_with("membership") || id.starts_with("layout")
            })
            .collect();
        assert_eq!(beside, Vec::<String>::new(), "{name}");
    }
}
