//! What follows for the node that failed: it is remembered, and an admin hears what to do with it. Nothing is drained here.

use std::time::Duration;

use super::agree::Agreed;
use super::bad_nodes::{Incident, NAMES, append, identity};
use super::collect::hostname;
use super::context::Context;
use super::restart::FailedAttempt;
use linux::deadline::spawn_detached;
use linux::host::Host;
use logs::LogFolder;
use report::Ending;
use text::lang::Text;
use text::text;

/// Within so long of the first loss the other nodes are lost as well where somebody ends them all.
const OTHERS_END: Duration = Duration::from_secs(3);

/// An attempt has ended: remembers the node whose failure calls for another one, and says what an admin would do.
/// `ending`: that of the job. `goes_on`: another attempt follows.
pub(super) fn remember(
    context: &Context,
    ready: &Agreed,
    ending: &Ending,
    folder: Option<&LogFolder>,
    goes_on: bool,
) {
    let member = &ready.plan.membership;
    let own = member.member();
    let (node, failure, text, host) = match &ready.session {
        Some(session) => {
            let Some(cause) = session.cause() else { return };
            (cause.node, FailedAttempt::from(cause), &cause.text, cause.hostname.as_str())
        }
        None => (own, FailedAttempt::from(ending), &ending.text, ""),
    };
    let leads = ready.session.is_none() || ready.leader.unwrap_or(0) == own;
    // What a platform takes away is not bad.
    let is_taken = context.notices.reason().is_some();
    if !failure.calls_for_another_node() || is_taken || !(leads || node == own) {
        return;
    }
    let machine = match node == own {
        true => identity(&context.host, &hostname(&context.host)),
        false => ready.machines.get(&node).cloned(),
    };
    let (Some(name), id) = (machine, failure.name()) else { return };
    let incident = Incident {
        at: muster::now(),
        node: name.clone(),
        host: host.to_owned(),
        id: id.to_owned(),
        text: failure.said(text),
        run: ready.identity.run_id.clone(),
    };
    // Beside the folders of all runs. The mount may not answer, and nobody waits for the line.
    let runs = folder.and_then(|folder| Some(folder.node_path().parent()?.parent()?.to_owned()));
    if let Some(runs) = runs {
        // Who ends all nodes one after the other soon ends this one as well, and none of them is bad.
        let is_alone = goes_on && !failure.is_of_its_node();
        spawn_detached(move || {
            if is_alone {
                std::thread::sleep(OTHERS_END);
            }
            if let Err(error) = append(&runs, &incident) {
                tracing::warn!(folder = %runs.display(), %error, "a bad node cannot be remembered");
            }
        });
    }
    // A lost node may only have been switched off: nothing says that it is broken.
    let is_sure = leads && failure.is_of_its_node();
    if is_sure && context.bad_nodes.is_new(&name, id) {
        context.say(&advice(&context.host, &name, host, id));
    }
}

/// What an admin would do with the node.
fn advice(host: &Host, name: &str, hostname: &str, id: &str) -> Text {
    let is_set = |name: &str| host.variable(name).is_some();
    let (todo, todo_zh) = if is_set("SLURM_JOB_ID") {
        let drain = format!("scontrol update NodeName={name} State=DRAIN Reason={id}");
        let requeue = "sbatch --requeue=expedite";
        (
            format!("{drain}; a job of {requeue} (Slurm 25.11) starts again before others"),
            format!("{drain}；以 {requeue} 提交的任务（Slurm 25.11）会优先重新启动"),
        )
    } else if is_set("KUBERNETES_SERVICE_HOST") {
        let is_named = NAMES.iter().any(|name| is_set(name));
        let pod = format!("\"$(kubectl get pod {hostname} -o jsonpath={{.spec.nodeName}})\"");
        let cordon = format!("kubectl cordon {}", if is_named { name } else { &pod });
        (cordon.clone(), cordon)
    } else {
        ("take it out of service".to_owned(), "请将其停用检修".to_owned())
    };
    text!(
        "{name} is a bad node ({id}), and spares are preferred to it from now on; an admin would: {todo}",
        "{name} 是故障节点（{id}），今后优先使用备用节点；管理员可执行：{todo_zh}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_is_told_the_line_of_the_platform() {
        let of = |variables: &[(&str, &str)]| {
            let variables = variables.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            advice(&Host::replayed("/", variables.collect()), "n7", "worker-3", "xid_79").en
        };
        let pod = ("KUBERNETES_SERVICE_HOST", "10.0.0.1");
        let table: [(&[(&str, &str)], &str); 4] = [
            (
                &[("SLURM_JOB_ID", "7")],
                "scontrol update NodeName=n7 State=DRAIN Reason=xid_79; a job of sbatch --requeue=expedite",
            ),
            (&[pod, ("NODE_NAME", "n7")], ": kubectl cordon n7"),
            (
                &[pod],
                ": kubectl cordon \"$(kubectl get pod worker-3 -o jsonpath={.spec.nodeName})\"",
            ),
            (&[], ": take it out of service"),
        ];
        for (variables, expected) in table {
            let said = of(variables);
            assert!(said.contains(expected), "{said}");
        }
    }
}
