//! Evidence of schedulers that have no row: variables whose names and values only a member of
//! several nodes or processes has.
//!
//! One rule, over the parts of names in [`WORDS`] and over values:
//!
//! - A number within a count: `ACME_NODE_INDEX=1` beside `ACME_NUM_NODES=2`. Both names without the
//!   parts of the table must be equal (here ACME), and one of them must be about members of a job. If
//!   nothing is left of the names, both must be about nodes, or the index about members while another
//!   variable names their meeting point.
//! - A list of several hosts: `ACME_NODEFILE`, `ACME_HOSTS`.
//!
//! Names that are only partly about members (`ACME_INDEX` beside `ACME_COUNT`, `ACME_HOSTS`) are
//! evidence if another variable shows that ACME runs jobs; a list also if it has this host. So lists
//! of services, whose clusters have masters and leaders too, are not evidence. Letter case does not
//! matter. [`APART`] has names that look the same and mean separate jobs, [`STARTERS`] the programs that
//! start separate jobs with names of their users' choice.
//!
//! Decides nothing: `plan` uses the evidence only if no other variable counts nodes.

use std::collections::BTreeMap;

use crate::contract::{Claim, Evidence, Field, Reading, Strength};
use crate::hostlist;
use linux::host::Host;
use text::order::InOrder;

/// The platform of this evidence in messages.
const UNKNOWN: &str = "unknown";
/// Most bytes of a file of hosts, enough for some 100 000 names.
const LONGEST_FILE: usize = 4 << 20;

/// The meaning of a part of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    /// The number of a member, whatever else the name says.
    Rank,
    /// A number of something.
    Index,
    /// The number of a member, but only in a name with a member: an id may be anything.
    Id,
    Count,
    /// A count only beside the number of a member.
    Size,
    /// A count before the counted thing: NUM_NODES.
    Number,
    /// Members of a job.
    Member,
    Members,
    /// Members that are nodes; evidence also without the name of a scheduler.
    Node,
    Nodes,
    /// Members of a job, or of a service.
    Peer,
    Peers,
    /// A whole job. An index of jobs numbers separate jobs.
    Job,
    /// A whole job or a whole service.
    Cluster,
    /// Tells a scheduler from another only if nothing else does.
    Filler,
    HostFile,
    /// A file or a list, behind the word for its entries: NODE_FILE.
    File,
    Hosts,
}

#[rustfmt::skip]
const WORDS: &[(Word, &[&str])] = &[
    (Word::Rank, &[
        "RANK", "RANKID", "PROCNO", "PROCID", "PROCNUM", "TASKNUM", "TASKNO", "TASKID", "NODENUM", "NODENO",
        "NODEID", "VNODENUM", "WORKERID", "REPLICAID",
    ]),
    (Word::Index, &["INDEX", "IDX", "ORDINAL"]),
    (Word::Id, &["ID", "NO", "NUMBER"]),
    (Word::Count, &["COUNT", "TOTAL"]),
    (Word::Size, &["SIZE"]),
    (Word::Number, &["NUM", "N"]),
    (Word::Member, &["TASK", "PROC", "PROCESS", "WORKER", "TRAINER", "WORLD"]),
    (Word::Members, &[
        "NPROCS", "NPROC", "NTASKS", "NWORKERS", "NRANKS", "NUMPROC", "NUMPROCS", "NUMTASKS", "TASKS", "PROCS",
        "PROCESSES", "WORKERS", "TRAINERS", "RANKS",
    ]),
    (Word::Peer, &["REPLICA", "MEMBER", "PEER"]),
    (Word::Peers, &["REPLICAS", "MEMBERS", "PEERS"]),
    (Word::Node, &["NODE", "HOST", "MACHINE", "INSTANCE", "POD"]),
    (Word::Nodes, &[
        "NNODES", "NHOSTS", "NUMNODES", "NODECOUNT", "NODES", "MACHINES", "INSTANCES", "PODS",
    ]),
    (Word::Job, &["JOB", "JOBID", "JOBNAME", "ALLOC", "ALLOCATION"]),
    (Word::Cluster, &["CLUSTER", "MASTER", "LEADER", "HEAD"]),
    (Word::Filler, &["CURRENT", "THIS", "OWN", "ALL", "GLOBAL", "ROLE"]),
    (Word::HostFile, &["NODEFILE", "NODELIST", "NODEINF", "HOSTFILE", "HOSTLIST", "MACHINEFILE", "RANKFILE"]),
    (Word::File, &["FILE", "LIST"]),
    (Word::Hosts, &["HOSTS", "HOSTNAMES"]),
];

/// Names that look like those of members. An entry matches a part of a name; with `_` at its end it
/// matches the beginning of a name.
#[rustfmt::skip]
const APART: &[&str] = &[
    // Members of an array of jobs (Slurm, PBS, AWS Batch, NGC), tasks of Cloud Run, which have no
    // address, and of Google Batch, which have one only with a file of hosts.
    "ARRAY", "CLOUD_RUN_", "BATCH_TASK_",
    // Parts of the work; each process does its own.
    "SHARD", "SHARDS", "SPLIT", "FOLD", "CHUNK", "PARTITION", "TRIAL", "SWEEP", "RETRY", "ATTEMPT", "RESTART",
    "PIPELINE", "STRATEGY", "MATRIX", "PARALLEL", "TEST", "TESTS", "BUILD", "LAYER", "DATA", "DATALOADER", "LOADER",
    // Ranks of matrices.
    "LORA", "QLORA", "DORA", "ADALORA", "RSLORA", "LOHA", "LOKR", "ADAPTER", "PEFT", "GALORE", "SVD", "TENSOR", "MODEL",
    // Parts of one host.
    "LOCAL", "NUMA", "GPU", "GPUS", "CPU", "CPUS", "CORE", "CORES", "SOCKET", "THREAD", "THREADS", "DEVICE", "MIG",
    // Workers of a server or a framework that gives them work one by one.
    "SPARK", "CELERY", "GUNICORN", "UVICORN", "DASK", "AIRFLOW", "PREFECT", "DAGSTER", "TEMPORAL", "SIDEKIQ",
    "RESQUE", "DRAMATIQ", "FLINK", "PUMA", "UWSGI", "PASSENGER", "SUPERVISOR", "CIRCUS", "HONCHO", "VLLM", "SGLANG",
    // Hosts that may be built on or logged in to, and clients that may be served.
    "DISTCC", "ICECC", "SCCACHE", "ANSIBLE", "PDSH", "PSSH", "DSH", "SSH", "KNOWN", "ALLOWED", "TRUSTED", "DENIED",
    "PROXY", "CORS", "VIRTUAL", "EXTRA", "ETC",
    // Services, and links to them in Kubernetes (NAME_SERVICE_HOST, NAME_PORT_80_TCP_ADDR).
    "SERVICE", "SERVER", "BROKER", "TCP", "UDP", "CACHE", "SEARCH", "DATABASE", "DB", "POSTGRES", "POSTGRESQL", "PG",
    "PGPOOL", "PATRONI", "MYSQL", "MARIADB", "GALERA", "COCKROACH", "TIDB", "YUGABYTE", "MONGO", "MONGODB", "CASSANDRA",
    "SCYLLA", "COUCHBASE", "COUCHDB", "AEROSPIKE", "NEO4J", "CLICKHOUSE", "DRUID", "TRINO", "PRESTO", "HBASE", "HDFS",
    "HADOOP", "REDIS", "SENTINEL", "VALKEY", "KEYDB", "MEMCACHED", "HAZELCAST", "IGNITE", "ELASTIC", "ELASTICSEARCH",
    "ES", "OPENSEARCH", "SOLR", "QDRANT", "MILVUS", "WEAVIATE", "VESPA", "KAFKA", "REDPANDA", "PULSAR", "ROCKETMQ",
    "RABBITMQ", "ACTIVEMQ", "NATS", "MQTT", "ETCD", "ZK", "ZOOKEEPER", "CONSUL", "NACOS", "VAULT", "KEYCLOAK", "LDAP",
    "MINIO", "CEPH", "WEKA", "LUSTRE", "BEEGFS", "GLUSTER", "SEAWEEDFS", "JUICEFS", "ALLUXIO", "INFLUX", "INFLUXDB",
    "PROMETHEUS", "LOKI", "SELENIUM",
    // Requests to a launcher that did not start this process (srun -m arbitrary, MPICH and Intel MPI).
    "SLURM_HOSTFILE", "I_MPI_", "HYDRA",
];

/// A program that starts its command several times, each a job of its own: parts of a pipeline, which
/// share a test suite or a matrix, workers of a runner of tests, processes of a process manager.
///
/// First the beginning of the names of its own variables; they count only beside a witness, if it has one.
/// Then its witnesses, variables that only it sets, in every process that it starts. Indices and counts
/// beside a witness may have any name: its users choose them (`instance_var` of PM2, `$CIRCLE_NODE_INDEX`
/// passed on as NODE_INDEX).
type Starter = (&'static str, &'static [&'static str]);

/// The variables are those of the manuals; many are listed by `ci-info` (its vendors.json). A variable that
/// users also set by themselves (GITHUB_TOKEN), that images have for their build (CI, PM2_HOME), or that the init of a
/// container sets for everything below it (SUPERVISOR_ENABLED), is no witness.
#[rustfmt::skip]
const STARTERS: &[Starter] = &[
    // Pipelines. GitLab, Cirrus and Heroku share CI_NODE_INDEX.
    ("CI", &[]),
    ("APPVEYOR", &["APPVEYOR"]),
    ("BAMBOO", &["bamboo_planKey"]),
    ("BITBUCKET", &["BITBUCKET_BUILD_NUMBER", "BITBUCKET_COMMIT"]),
    ("BITRISE", &["BITRISE_IO"]),
    ("BUDDY", &["BUDDY_WORKSPACE_ID"]),
    ("BUILDBOT", &[]),
    ("BUILDKITE", &["BUILDKITE"]),
    ("CIRCLE", &["CIRCLECI"]),
    ("CIRRUS", &["CIRRUS_CI"]),
    ("CODEBUILD", &["CODEBUILD_BUILD_ARN", "CODEBUILD_BUILD_ID"]),
    ("CODEFRESH", &["CF_BUILD_ID"]),
    ("CODESHIP", &[]),
    ("CONCOURSE", &[]),
    ("DRONE", &["DRONE"]),
    ("DSARI", &["DSARI"]),
    ("FORGEJO", &["FORGEJO_ACTIONS"]),
    ("GITEA", &["GITEA_ACTIONS"]),
    ("GITHUB", &["GITHUB_ACTIONS"]),
    ("GITLAB", &["GITLAB_CI"]),
    ("GO_JOB_", &["GO_PIPELINE_LABEL"]),
    ("HARNESS", &["HARNESS_BUILD_ID"]),
    ("HEROKU", &["HEROKU_TEST_RUN_ID"]),
    ("HUDSON", &["HUDSON_URL"]),
    ("JENKINS", &["JENKINS_URL"]),
    ("KOCHIKU", &["KOCHIKU_WORKER_CHUNK"]),
    ("MAGNUM", &["MAGNUM"]),
    ("NETLIFY", &["NETLIFY"]),
    ("NEVERCODE", &["NEVERCODE"]),
    ("PROW", &["PROW_JOB_ID"]),
    ("SAIL", &["SAILCI"]),
    ("SCREWDRIVER", &["SCREWDRIVER"]),
    ("SEMAPHORE", &["SEMAPHORE"]),
    ("SHIPPABLE", &["SHIPPABLE"]),
    ("STRIDER", &["STRIDER"]),
    ("SYSTEM_", &["TF_BUILD", "SYSTEM_TEAMFOUNDATIONCOLLECTIONURI"]),
    ("TASKCLUSTER", &["TASKCLUSTER_ROOT_URL"]),
    ("TDDIUM", &["TDDIUM"]),
    ("TEAMCITY", &["TEAMCITY_VERSION"]),
    ("TRAVIS", &["TRAVIS"]),
    ("VELA", &["VELA"]),
    ("VERCEL", &["NOW_BUILDER"]),
    ("WERCKER", &["WERCKER", "WERCKER_ROOT"]),
    ("WOODPECKER", &[]),
    ("ZUUL", &[]),
    // Runners of tests, and of load.
    ("BAZEL", &["BAZEL_TEST"]),
    ("CUCUMBER", &["CUCUMBER_PARALLEL"]),
    ("CYPRESS", &[]),
    ("GINKGO", &[]),
    ("JEST", &["JEST_WORKER_ID"]),
    ("KNAPSACK", &[]),
    ("LOCUST", &[]),
    ("MOCHA", &["MOCHA_WORKER_ID"]),
    ("NEXTEST", &["NEXTEST"]),
    ("PABOT", &[]),
    ("PERCY", &[]),
    ("PLAYWRIGHT", &["TEST_PARALLEL_INDEX"]),
    ("PYTEST", &["PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST"]),
    ("VITEST", &["VITEST"]),
    ("WDIO", &["WDIO_WORKER_ID"]),
    // Process managers, and instances of a web application.
    ("CF_INSTANCE_", &["VCAP_APPLICATION"]),
    ("PM2", &["pm_id", "NODE_APP_INSTANCE"]),
];

/// Words of the place at which others are met.
const PLACES: &[&str] = &["ADDR", "ADDRESS", "ENDPOINT", "HOST", "HOSTNAME", "IP"];

/// The kind of evidence that the name of a variable can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Index,
    Count,
    List,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Shape {
    role: Role,
    /// The rest of the name, which identifies the scheduler.
    scheduler: Vec<String>,
    /// The name is about members of a job, and not only of anything.
    is_of_members: bool,
    is_of_nodes: bool,
    /// The name is a count only beside the number of a member: a size may be that of a file.
    is_size: bool,
}

/// The evidence of names and values that no row of a platform knows.
pub(super) fn evidence(host: &Host) -> Vec<Evidence> {
    let names = host.environment().keys().filter_map(|name| name.to_str());
    let all: Vec<(Shape, Claim)> = names
        .filter_map(|name| {
            let claim = Claim::of(host, name)?;
            Some((shape(host, name)?, claim))
        })
        .collect();
    let indices = all.iter().filter(|(shape, _)| shape.role == Role::Index);
    let numbered = indices.filter_map(|(shape, index)| {
        let count = all.iter().find(|count| is_within(host, (shape, index), (&count.0, &count.1)));
        let (_, count) = count?;
        // A job on one node whose scheduler numbers its tasks, such as a script with several slots.
        let is_one_node = |(of, nodes): &(Shape, Claim)| {
            of.role == Role::Count
                && of.is_of_nodes
                && of.scheduler == shape.scheduler
                && nodes.value.trim() == "1"
        };
        let is_first = number(index) == Some(0);
        let is_alone = is_first && all.iter().any(is_one_node);
        (!is_alone).then(|| found(index, Reading::IndexOfCount, Some(count.clone())))
    });
    let lists = all.iter().filter(|(shape, _)| shape.role == Role::List);
    let listed = lists.filter_map(|(shape, list)| {
        let is_file = list.value.trim().starts_with('/');
        let runs_jobs = || shape.is_of_members || runs_jobs(host, &shape.scheduler);
        if !shape.is_of_members && has_ports(&list.value) {
            return None;
        }
        let reading = match (is_file, !shape.scheduler.is_empty() && runs_jobs()) {
            (true, true) => Reading::HostFile,
            (true, false) => return None,
            (false, true) => Reading::Hosts,
            (false, false) => Reading::OwnHosts,
        };
        Some(found(list, reading, None))
    });
    numbered.chain(listed).collect()
}

impl Evidence {
    /// Whether it is that of a known platform or of the profile's.
    pub fn is_of_a_platform(&self) -> bool {
        self.platform != UNKNOWN
    }
}

fn found(claim: &Claim, reading: Reading, beside: Option<Claim>) -> Evidence {
    Strength::Hint.evidence(UNKNOWN, Field::Several, reading, claim.clone(), beside)
}

/// Whether a list has ports, as a list of services does.
fn has_ports(list: &str) -> bool {
    list.split(':').skip(1).any(|rest| {
        let end = rest.find(|letter: char| ",;&+".contains(letter) || letter.is_whitespace());
        rest.get(..end.unwrap_or(rest.len())).is_some_and(|port| port.parse::<u32>().is_ok())
    })
}

fn number(claim: &Claim) -> Option<u32> {
    claim.value.trim().parse().ok()
}

/// Whether `index` is the number of a member and `count` the number of these members. Some schedulers
/// count from one.
fn is_within(
    host: &Host,
    (of_index, index): (&Shape, &Claim),
    (of_count, count): (&Shape, &Claim),
) -> bool {
    let is_pair = of_count.role == Role::Count && of_index.scheduler == of_count.scheduler;
    let within = number(index).zip(number(count));
    if !is_pair || !within.is_some_and(|(index, count)| count > 1 && index <= count) {
        return false;
    }
    if of_count.is_size && !of_index.is_of_members {
        return false;
    }
    if of_index.scheduler.is_empty() {
        // No program that starts separate jobs gives them ranks.
        let is_rank = index.variable.to_ascii_uppercase().ends_with("RANK");
        let are_nodes = of_index.is_of_nodes && of_count.is_of_nodes;
        return (are_nodes && (is_rank || !is_started_apart(host)))
            || (of_index.is_of_members && has_meeting_point(host));
    }
    of_index.is_of_members || of_count.is_of_members || runs_jobs(host, &of_index.scheduler)
}

/// Whether the program with these witnesses started this process.
fn has_started(host: &Host, witnesses: &[&str]) -> bool {
    witnesses.iter().any(|name| {
        let value = host.variable(name).unwrap_or_default().trim().to_ascii_lowercase();
        !value.is_empty() && value != "false"
    })
}

/// Whether a program of [`STARTERS`] started this process, and nothing shows that it meets others: a master, or a list
/// of hosts.
fn is_started_apart(host: &Host) -> bool {
    let names = || host.environment().keys().filter_map(|name| name.to_str());
    let is_master = |name: &str| {
        let name = name.to_ascii_uppercase();
        let mut parts = parts(&name);
        let leads = matches!(parts.next(), Some("MASTER" | "HEAD" | "LEADER" | "MAIN"));
        leads && parts.any(|part| PLACES.contains(&part) || part == "PORT")
    };
    let is_list = |name: &str| {
        let is_nameless = |shape: Shape| shape.role == Role::List && shape.scheduler.is_empty();
        let value = host.variable(name).unwrap_or_default();
        shape(host, name).is_some_and(is_nameless) && value.trim().contains([',', ';', ' ', '\n'])
    };
    STARTERS.iter().any(|(_, witnesses)| has_started(host, witnesses))
        && !has_meeting_point(host)
        && !names().any(|name| is_master(name) || is_list(name))
}

/// Whether a variable names the meeting point of processes that number themselves: COORDINATOR_ADDRESS.
fn has_meeting_point(host: &Host) -> bool {
    let names = host.environment().keys().filter_map(|name| name.to_str());
    names.map(str::to_ascii_uppercase).any(|name| {
        let has = |wanted: &[&str]| parts(&name).any(|part| wanted.contains(&part));
        has(&["COORDINATOR", "RENDEZVOUS", "RDZV", "CHIEF"])
            && has(PLACES)
            && !is_apart(host, &name)
    })
}

/// Whether a variable with this beginning is about jobs or their members.
fn runs_jobs(host: &Host, scheduler: &[String]) -> bool {
    let names = host.environment().keys().filter_map(|name| name.to_str());
    let is_link = |name: &str| host.variable(name).is_some_and(|value| value.contains("://"));
    let names = names.filter(|name| !is_link(name)).map(str::to_ascii_uppercase);
    names.filter(|name| !is_apart(host, name)).any(|name| {
        let mut parts = parts(&name);
        scheduler.iter().all(|part| parts.next() == Some(part.as_str()))
            // A single HOST may also be the host of a service.
            && parts.filter(|part| *part != "HOST").any(|part| {
                matches!(
                    word(part),
                    Some(Word::Job | Word::Rank | Word::Node | Word::Nodes)
                        | Some(Word::Member | Word::Members | Word::HostFile)
                )
            })
    })
}

fn parts(name: &str) -> impl Iterator<Item = &str> {
    name.split('_').filter(|part| !part.is_empty())
}

fn word(part: &str) -> Option<Word> {
    WORDS.iter().find(|(_, parts)| parts.contains(&part)).map(|(word, _)| *word)
}

fn is_apart(host: &Host, name: &str) -> bool {
    let begins = |with: &str| {
        let rest = name.strip_prefix(with);
        rest.is_some_and(|rest| with.ends_with('_') || rest.is_empty() || rest.starts_with('_'))
    };
    APART.contains(&name)
        || parts(name).any(|part| APART.contains(&part))
        || APART.iter().any(|apart| apart.ends_with('_') && name.starts_with(apart))
        || STARTERS.iter().any(|(own, witnesses)| {
            begins(own) && (witnesses.is_empty() || has_started(host, witnesses))
        })
}

/// The evidence that a name may be; None for nearly all names.
fn shape(host: &Host, name: &str) -> Option<Shape> {
    let name = name.to_ascii_uppercase();
    let is_letter = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'_';
    // Names whose last part has no meaning are most, and need no search for the others.
    word(parts(&name).last()?)?;
    if !name.bytes().all(is_letter) || is_apart(host, &name) {
        return None;
    }
    let words: Vec<(&str, Option<Word>)> = parts(&name).map(|part| (part, word(part))).collect();
    let has = |wanted: &[Word]| {
        words.iter().any(|(_, word)| word.is_some_and(|word| wanted.contains(&word)))
    };
    let is_of_nodes = has(&[Word::Node, Word::Nodes]);
    let is_of_members = is_of_nodes || has(&[Word::Rank, Word::Member, Word::Members]);
    let is_of_any = is_of_members || has(&[Word::Peer, Word::Peers]);
    let (_, last) = words.last()?;
    let role = match (*last)? {
        Word::Rank => Role::Index,
        // An index of jobs numbers whole jobs, not members of one.
        Word::Index | Word::Id if has(&[Word::Job, Word::Cluster]) && !is_of_any => return None,
        Word::Index => Role::Index,
        Word::Id if is_of_any => Role::Index,
        Word::Count | Word::Members | Word::Nodes | Word::Peers | Word::Size => Role::Count,
        Word::Number if is_of_any || has(&[Word::Job, Word::Cluster]) => Role::Count,
        Word::Member | Word::Node | Word::Peer if has(&[Word::Number, Word::Count]) => Role::Count,
        Word::HostFile | Word::Hosts => Role::List,
        Word::File if is_of_nodes || has(&[Word::Hosts]) => Role::List,
        _ => return None,
    };
    let of = |wanted: Option<Word>| words.iter().filter(move |(_, word)| *word == wanted);
    let fillers = of(Some(Word::Filler)).filter(|_| of(None).next().is_none());
    let scheduler = of(None).chain(fillers).map(|(part, _)| (*part).to_owned()).collect();
    // Hosts of replicas may be those of a service.
    let is_of_members = match role {
        Role::List => is_of_members || has(&[Word::HostFile, Word::File]),
        Role::Index | Role::Count => is_of_any,
    };
    let is_size = *last == Some(Word::Size);
    Some(Shape { role, scheduler, is_of_members, is_of_nodes, is_size })
}

/// By path: the hosts, `n1,n2`, of each file that a variable of hosts names.
pub(super) fn host_files(host: &Host) -> BTreeMap<String, String> {
    let names = host.environment().keys().filter_map(|name| name.to_str());
    let lists =
        names.filter(|name| shape(host, name).is_some_and(|shape| shape.role == Role::List));
    let paths = lists.filter_map(|name| host.variable(name));
    let hosts = |path: String| {
        let text = text(host, &path)?;
        let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        let hosts: Vec<String> = lines.filter_map(first).collect();
        Some((path, hostlist::whole(&hosts.join(",")).join(",")))
    };
    paths.filter(|path| path.starts_with('/')).filter_map(hosts).in_map()
}

/// The text of a regular file that is small enough. Other files may never end.
pub(super) fn text(host: &Host, path: &str) -> Option<String> {
    let size = host.metadata(path).filter(|found| found.is_file())?.len();
    let is_short = usize::try_from(size).is_ok_and(|size| size <= LONGEST_FILE);
    is_short.then(|| host.read(path).ok())?
}
