//! Rules about jobs with spare nodes: enough seats, and nothing that ends all nodes where one is lost.
//!
//! What a controller does with the other pods when one fails is written in its documentation or its source; each
//! function says where.

use super::sizes::{StatedSize, handed, several_tasks, spares, stated_nodes};
use crate::launches::{base, option};
use crate::pods::Layers;
use crate::scene::{Findings, LaunchSite, Scene};
use crate::workload::Workload;
use adopt::shell::Word;
use settings::Need;
use settings::launchers::FlagField;
use text::lang::Text;
use text::text;
use text::yaml::Node;
use verdict::Verdict;

/// Every launcher with spares, those beside the GPUs as well (the launcher of an MPIJob).
fn with_spares<'a>(scene: &Scene<'a>) -> impl Iterator<Item = (LaunchSite<'a>, u64, usize)> {
    let job = scene.job;
    let sites = job.containers().flat_map(|(group, container)| {
        let launches = container.started.launches.iter();
        launches.map(move |launch| LaunchSite { group, container, launch })
    });
    sites.filter_map(|place| match spares(job, &place) {
        StatedSize::Known(spares, line) => Some((place, spares, line)),
        _ => None,
    })
}

pub(super) fn seats(scene: &Scene<'_>, findings: &mut Findings) {
    for (place, spares, line) in with_spares(scene) {
        let by = place.launch.source(FlagField::Spares);
        let mut refused = |why: Text, hint: Text| {
            let Text { en, zh } = why;
            findings.error(
                line,
                text!(
                    "{spares} spares{by}, but {en}: ranklaunch refuses to start (membership.spares)",
                    "备用节点数为 {spares}{by}，而{zh}：ranklaunch 会拒绝启动（membership.spares）"
                ),
                hint,
            );
        };
        let least = spares.saturating_add(2);
        let enough = text!(
            "a job with spares has 2 seats or more: start {least} nodes or more, or ask for fewer spares",
            "带备用节点的任务至少有 2 个席位：请启动至少 {least} 个节点，或减少备用节点"
        );
        match (stated_nodes(scene, &place), handed(scene, &place)) {
            (StatedSize::Known(seats, _), _) if seats < 2 => {
                refused(text!("the number of seats is {seats}", "席位数为 {seats}"), enough)
            }
            (StatedSize::Open, Some(nodes)) if nodes < least => {
                refused(text!("only {nodes} nodes come", "总共只有 {nodes} 个节点"), enough)
            }
            _ => {}
        }
        let settings = place.launch.settings.as_deref();
        if settings.is_some_and(|settings| settings.muster.value == Need::Off) {
            refused(
                text!(
                    "the muster is off, so no node knows of the others",
                    "集结已关闭，各节点互不知晓"
                ),
                text!("use --muster auto", "请使用 --muster auto"),
            );
        }
        let several = several_tasks(&place).map(|several| match several {
            (tasks, Some(nodes)) => text!(
                "Slurm starts {tasks} tasks on {nodes} nodes, each for one rank",
                "Slurm 在 {nodes} 个节点上启动 {tasks} 个 task，每个对应一个 rank"
            ),
            (tasks, None) => text!(
                "Slurm starts {tasks} tasks on each node, each for one rank",
                "Slurm 在每个节点上启动 {tasks} 个 task，每个对应一个 rank"
            ),
        });
        if let Some(several) = several {
            refused(
                several,
                text!(
                    "a spare is a whole node: --ntasks-per-node=1, without another --ntasks",
                    "备用以节点为单位：--ntasks-per-node=1，且不要另设 --ntasks"
                ),
            );
        }
        let policy = scene.job.object.at(&["spec", "elasticPolicy"]);
        if policy.is_some() && place.launch.get(FlagField::Nnodes).is_none() {
            refused(
                text!(
                    "elasticPolicy gives the number of nodes as a range",
                    "elasticPolicy 以范围给出节点数"
                ),
                text!(
                    "remove elasticPolicy: with spares the number of nodes is fixed",
                    "请删除 elasticPolicy：有备用节点的任务，节点数是固定的"
                ),
            );
        }
    }
}

/// Anything that ends or replaces all nodes where one is lost.
pub(super) fn lost(scene: &Scene<'_>, findings: &mut Findings) {
    let job = scene.job;
    for (place, spares, _) in with_spares(scene) {
        let restarts = place.launch.settings.as_deref().map(|settings| settings.restarts().into());
        let mut case = Case { job, place, restarts: restarts.unwrap_or(spares), findings };
        match place.launch.under.first().map(|word| base(word.text())) {
            Some("srun") => case.slurm(),
            Some(program) if program.contains("run") || program.contains("exec") => {
                case.mpi(program)
            }
            _ => {}
        }
        match job.kind.kind {
            "LeaderWorkerSet" => case.leader_worker_set(),
            "PyTorchJob" => case.pytorchjob(),
            _ if job.kind.owns("VC_") => case.volcano(),
            "JobSet" => {
                case.job();
                case.in_place();
            }
            "Job" | "CronJob" | "TrainJob" | "TrainingRuntime" | "ClusterTrainingRuntime" => {
                case.job()
            }
            _ => {}
        }
    }
}

/// A launcher with spares.
struct Case<'a, 'f> {
    job: &'a Workload<'a>,
    place: LaunchSite<'a>,
    /// Nodes that may be lost, one after the other.
    restarts: u64,
    findings: &'f mut Findings,
}

/// Exit codes of the launcher on a node that is lost: killed, asked to end, to be replaced.
fn codes_of_lost() -> [u64; 3] {
    [137, 143, u64::try_from(Verdict::ReplaceNode.code()).unwrap_or_default()]
}

impl<'a> Case<'a, '_> {
    /// The object of the controller that makes the pods again.
    fn controller(&self) -> &'a Layers<'a> {
        &self.place.group.controller
    }

    fn say(&mut self, line: usize, what: Text, hint: Text) {
        let Text { en, zh } = what;
        self.findings.warning(
            line,
            text!(
                "{en}, so no spare can take a lost node's seat",
                "{zh}，备用节点无法接替丢失的节点"
            ),
            hint,
        );
    }

    /// A field that limits failures, and how many of them leave the job alive.
    fn limited(&mut self, line: usize, said: Text, allowed: u64, hint: Text) {
        let (restarts, Text { en, zh }) = (self.restarts, said);
        if allowed < restarts {
            self.say(
                line,
                text!(
                    "{en} all pods end after more than {allowed} failures, fewer than the {restarts} restarts",
                    "{zh} 失败超过 {allowed} 次后所有 Pod 都会结束，少于允许的 {restarts} 次重启"
                ),
                hint,
            );
        }
    }

    /// A JobSpec: kubernetes.io, "Jobs", pod backoff failure policy and pod failure policy.
    fn job(&mut self) {
        const DEFAULT: u64 = 6;
        let spec = self.controller();
        let number = |key: &str| {
            let node = spec.get(key)?;
            Some((node.text()?.parse::<u64>().ok()?, node.line))
        };
        let restarts = self.restarts;
        let hint = text!(
            "set backoffLimit: {restarts} or more",
            "请将 backoffLimit 设为 {restarts} 或更大"
        );
        match (number("backoffLimit"), number("backoffLimitPerIndex"), number("maxFailedIndexes")) {
            (Some((limit, line)), ..) => {
                let said = text!("with backoffLimit {limit}", "backoffLimit 为 {limit}，");
                self.limited(line, said, limit, hint);
            }
            (None, Some((each, _)), Some((most, line))) => {
                let said = text!(
                    "with maxFailedIndexes {most} and backoffLimitPerIndex {each}",
                    "maxFailedIndexes 为 {most}、backoffLimitPerIndex 为 {each}，"
                );
                let failures = each.saturating_add(1).saturating_mul(most.saturating_add(1));
                let hint =
                    text!("remove maxFailedIndexes, or raise it", "请删除或调大 maxFailedIndexes");
                self.limited(line, said, failures - 1, hint);
            }
            (None, None, _) if spec.get("backoffLimit").is_none() && !spec.layers.is_empty() => {
                let said = text!(
                    "with the default backoffLimit {DEFAULT}",
                    "backoffLimit 默认为 {DEFAULT}，"
                );
                self.limited(spec.line(), said, DEFAULT, hint);
            }
            _ => {}
        }
        let rules = spec.at(&["podFailurePolicy", "rules"]).map(Node::list).unwrap_or_default();
        let text_of =
            |node: &Node, key: &str| node.get(key).and_then(Node::text).map(str::to_owned);
        let disrupts = |rule: &Node| {
            let conditions = rule.get("onPodConditions").map(Node::list).unwrap_or_default();
            conditions.iter().any(|one| text_of(one, "type").as_deref() == Some("DisruptionTarget"))
        };
        let exits = |rule: &Node, code: u64| {
            rule.get("onExitCodes").is_some_and(|codes| {
                let values = codes.get("values").map(Node::list).unwrap_or_default();
                let named = values.iter().any(|value| value.text() == Some(&code.to_string()));
                named == (text_of(codes, "operator").as_deref() == Some("In"))
            })
        };
        let first = |fits: &dyn Fn(&Node) -> bool| {
            let rule = rules.iter().find(|rule| fits(rule))?;
            rule.get("action")
                .filter(|action| action.text() == Some("FailJob"))
                .map(|node| node.line)
        };
        let by_code =
            codes_of_lost().map(|code| (first(&|rule| exits(rule, code)), code.to_string()));
        let by_condition = (first(&disrupts), "DisruptionTarget".to_owned());
        for (line, why) in by_code.into_iter().chain([by_condition]) {
            let Some(line) = line else { continue };
            self.say(
                line,
                text!(
                    "podFailurePolicy fails the whole Job where the pod of a lost node ends ({why})",
                    "丢失节点的 Pod 结束时（{why}），podFailurePolicy 会使整个 Job 失败"
                ),
                text!("leave {why} out of this rule, or let a rule above it say Ignore", "请从该规则中去掉 {why}，或在其上方用 Ignore 规则处理"),
            );
        }
    }

    /// sigs.k8s.io/jobset, api/jobset/v1alpha2, JobSetRestartStrategy.
    fn in_place(&mut self) {
        let path = ["spec", "failurePolicy", "restartStrategy"];
        let strategy =
            self.job.object.at(&path).filter(|node| node.text() == Some("InPlaceRestart"));
        let Some(line) = strategy.map(|node| node.line) else { return };
        self.say(
            line,
            text!(
                "InPlaceRestart restarts the pods of all nodes with that of one",
                "InPlaceRestart 会让所有节点的 Pod 随一个 Pod 一起重启"
            ),
            text!(
                "use restartStrategy: Recreate, which acts only where a Job has failed",
                "请使用 restartStrategy: Recreate，它只在某个 Job 失败后才起作用"
            ),
        );
    }

    /// sigs.k8s.io/lws, api/leaderworkerset/v1, RestartPolicyType; the default since 0.4.
    fn leader_worker_set(&mut self) {
        const DEFAULT: &str = "RecreateGroupOnPodRestart";
        let path = ["spec", "leaderWorkerTemplate"];
        let Some(template) = self.job.object.at(&path) else { return };
        let stated = template.get("restartPolicy");
        let (policy, line) = (
            stated.and_then(Node::text).unwrap_or(DEFAULT),
            stated.map_or(template.line, |node| node.line),
        );
        if ["None", "Default"].contains(&policy) {
            return;
        }
        self.say(
            line,
            text!(
                "restartPolicy {policy} replaces the whole group with one of its pods",
                "restartPolicy 为 {policy}，一个 Pod 重启会使整组 Pod 都重建"
            ),
            text!("set restartPolicy: None", "请设置 restartPolicy: None"),
        );
    }

    /// kubeflow/training-operator 1.9: pkg/controller.v1/common/{pod,job}.go, pkg/core/job.go. Without a policy it is OnFailure.
    fn pytorchjob(&mut self) {
        let policy = self.controller().get("restartPolicy");
        let (policy, line) = (
            policy.and_then(Node::text).unwrap_or("OnFailure").to_owned(),
            policy.map_or(1, |node| node.line),
        );
        if policy == "Never" {
            self.say(
                line,
                text!(
                    "restartPolicy Never fails the PyTorchJob with one of its pods",
                    "restartPolicy 为 Never，一个 Pod 失败会使整个 PyTorchJob 失败"
                ),
                text!(
                    "use ExitCode or OnFailure, which replace the one pod",
                    "请使用 ExitCode 或 OnFailure，只替换该 Pod"
                ),
            );
        }
        let paths = [["spec", "runPolicy", "backoffLimit"].as_slice(), &["spec", "backoffLimit"]];
        let limit = paths.into_iter().find_map(|path| self.job.object.at(path));
        let Some((limit, line)) =
            limit.and_then(|node| Some((node.text()?.parse::<u64>().ok()?, node.line)))
        else {
            return;
        };
        // Restarts of a container in its pod count, and the limit itself is one too many. With ExitCode there are none.
        let (allowed, least) = match policy.as_str() {
            "ExitCode" if limit > 0 => return,
            "ExitCode" => (0, 1),
            _ => (limit.saturating_sub(1), self.restarts.saturating_add(1)),
        };
        self.limited(
            line,
            text!(
                "with backoffLimit {limit} and restartPolicy {policy}",
                "backoffLimit 为 {limit}、restartPolicy 为 {policy}，"
            ),
            allowed,
            text!(
                "set backoffLimit: {least} or more, or leave it out",
                "请将 backoffLimit 设为 {least} 或更大，或去掉它"
            ),
        );
    }

    /// volcano.sh, "VolcanoJob", policies: those of the task come first, and the first that fits acts.
    fn volcano(&mut self) {
        const FOR_ALL: &[&str] =
            &["AbortJob", "RestartJob", "TerminateJob", "CompleteJob", "RestartTask"];
        let own = self.controller().get("policies").map(Node::list).unwrap_or_default();
        let paths = [["spec", "policies"].as_slice(), &["spec", "jobTemplate", "spec", "policies"]];
        let of_job = paths.into_iter().find_map(|path| self.job.object.at(path));
        let policies = own.iter().chain(of_job.map(Node::list).unwrap_or_default());
        let fits = |policy: &Node, event: &str, code: Option<u64>| {
            let several = policy.get("events").map(Node::list).unwrap_or_default();
            let mut events = several
                .iter()
                .map(|node| &**node)
                .chain(policy.get("event"))
                .filter_map(Node::text);
            let exit = policy.get("exitCode").and_then(|node| node.text()?.parse::<u64>().ok());
            events.any(|one| one == event || one == "*") || (exit.is_some() && exit == code)
        };
        let failed = codes_of_lost().map(|code| ("PodFailed", Some(code)));
        let mut found = Vec::new();
        for (event, code) in failed.into_iter().chain([("PodEvicted", None)]) {
            let first = policies.clone().find(|policy| fits(policy, event, code));
            let Some(action) = first.and_then(|policy| policy.get("action")) else { continue };
            let name = action.text().unwrap_or_default();
            if FOR_ALL.contains(&name) {
                found.push((action.line, name.to_owned(), event));
            }
        }
        for (line, action, event) in found {
            self.say(
                line,
                text!(
                    "{action} is for all pods where one is lost ({event})",
                    "一个 Pod 丢失（{event}）时，{action} 作用于所有 Pod"
                ),
                text!("use action: RestartPod, or none", "请使用 action: RestartPod，或不写策略"),
            );
        }
    }

    /// slurm.schedmd.com: srun and sbatch, --no-kill, with which --kill-on-bad-exit and --wait have no effect.
    fn slurm(&mut self) {
        let (started, launch) = (&self.place.container.started, self.place.launch);
        let exported = |name: &str| {
            let (_, value) = started.exports.iter().rev().find(|(known, _)| known == name)?;
            Some(value.clone())
        };
        let stays = |words: &[Word]| {
            option(words, "-k", "--no-kill", false).is_some_and(|word| word.text() != "off")
        };
        let (srun, directives) = (&launch.under, &started.directives);
        if !stays(srun) && exported("SLURM_NO_KILL").is_none() {
            self.say(
                launch.line,
                text!(
                    "srun without --no-kill ends the step when one of its nodes fails",
                    "srun 没有 --no-kill，一个节点故障会结束整个 step"
                ),
                text!("srun --no-kill", "请使用 srun --no-kill"),
            );
        }
        if let Some(first) = directives.first()
            && !stays(directives)
        {
            self.say(
                first.line,
                text!(
                    "without --no-kill Slurm ends the job when one of its nodes fails",
                    "没有 --no-kill，一个节点故障时 Slurm 会结束整个任务"
                ),
                text!("add #SBATCH --no-kill", "请加上 #SBATCH --no-kill"),
            );
        }
    }

    /// docs.open-mpi.org, mpirun(1): where a process dies, the rest of the job is killed.
    fn mpi(&mut self, program: &str) {
        self.say(
            self.place.launch.line,
            text!(
                "{program} ends the launchers of all nodes with that of one",
                "{program} 会在一个节点的启动器结束时结束所有节点"
            ),
            text!(
                "start ranklaunch on each node by ssh, pdsh or Slurm",
                "请用 ssh、pdsh 或 Slurm 在各节点上启动 ranklaunch"
            ),
        );
    }
}
