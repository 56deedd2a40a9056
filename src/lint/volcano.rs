//! The variables that Volcano sets in the containers of its jobs, by the plugins and tasks of a job.
//!
//! Source: pkg/controllers/job/plugins and pkg/webhooks/admission/jobs/mutate of volcano-sh/volcano.

use text::yaml::Node;

/// The plugins that set variables, and those variables. TASK stands for the name of each task in
/// capitals, with `_` for `-`.
const PLUGINS: &[(&str, &[&str])] = &[
    ("env", &["VC_TASK_INDEX", "VK_TASK_INDEX"]),
    ("svc", &["VC_TASK_HOSTS", "VC_TASK_NUM"]),
    ("pytorch", &["MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"]),
    ("tensorflow", &["TF_CONFIG"]),
    ("mpi", &["MPI_HOST"]),
    ("ssh", &[]),
];
/// The plugins to which the admission webhook adds `svc`.
const WITH_SVC: &[&str] = &["pytorch", "tensorflow", "mpi"];
/// Prefixes of variables that only Volcano sets.
const OWN: &[&str] = &["VC_", "VK_"];

/// Whether the variable is Volcano's by its name.
pub(super) fn is_own(name: &str) -> bool {
    OWN.iter().any(|prefix| name.starts_with(prefix))
}

/// The names that a job sets; None if the job has a plugin that the table lacks.
pub(super) fn sets(object: &Node) -> Option<Vec<String>> {
    let spec = [["spec"].as_slice(), &["spec", "jobTemplate", "spec"]]
        .into_iter()
        .filter_map(|path| object.at(path))
        .find(|spec| spec.get("tasks").is_some())?;
    let plugins = spec.get("plugins").map(|node| node.entries().map(|(name, ..)| name).collect());
    let plugins: Vec<&str> = plugins.unwrap_or_default();
    let tasks = spec.get("tasks").map(Node::list).unwrap_or_default();
    let tasks: Vec<String> = tasks
        .iter()
        .filter_map(|task| task.get("name")?.text())
        .map(|name| name.to_uppercase().replace('-', "_"))
        .collect();
    let implied = plugins.iter().any(|name| WITH_SVC.contains(name)).then_some("svc");
    let mut names = Vec::new();
    for plugin in plugins.into_iter().chain(implied) {
        let (_, variables) = PLUGINS.iter().find(|(name, _)| *name == plugin)?;
        for variable in *variables {
            match variable.strip_prefix("VC_TASK_").filter(|_| plugin == "svc") {
                Some(what) => names.extend(tasks.iter().map(|task| format!("VC_{task}_{what}"))),
                None => names.push((*variable).to_owned()),
            }
        }
    }
    Some(names)
}
