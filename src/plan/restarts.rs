//! Checks whether `--max-restarts` is possible.
//!
//! Takes the settings and the membership; gives a warning if nothing could restart all nodes
//! together, since a single restarted node would only wait for the others.

use crate::notes::Notes;
use crate::{Membership, Scope};
use settings::Settings;
use text::text;
use verdict::Id;

/// Number of times that the engine itself starts its ranks again; above 0 only for an elastic job, whose
/// nodes agree on a restart in the engine's own rendezvous.
pub(crate) fn of_engine(settings: &Settings, membership: &Membership) -> u32 {
    let by_itself = membership.elastic.is_some() && settings.engine.value.row().has_c10d;
    if by_itself { settings.max_restarts.value } else { 0 }
}

/// Warns before the launch that restarts are impossible.
pub(crate) fn check(settings: &Settings, membership: &Membership, scope: Scope, notes: &mut Notes) {
    let most = &settings.max_restarts;
    let (count, source, nnodes) = (most.value, &most.source, membership.members());
    if count == 0 {
        return;
    }
    if of_engine(settings, membership) > 0 {
        let because = text!(
            "torchrun starts the ranks of an elastic job again",
            "弹性任务的 rank 由 torchrun 重启"
        );
        notes.decide("max_restarts", count, because, source);
    } else if membership.elastic.is_some() {
        notes.warn(
            Id::RestartsElastic,
            text!(
                "max_restarts {count} [{source}] has no effect: the nodes of an elastic job change, so no node can tell all of them to start again",
                "max_restarts {count} [{source}] 不起作用：弹性任务的节点会变化，没有节点能通知全部节点重新启动"
            ),
            text!(
                "--engine torchrun starts an elastic job again by itself",
                "使用 --engine torchrun 时，弹性任务由它自行重启"
            ),
        );
    } else if nnodes > 1 && !scope.has_muster(settings) {
        notes.warn(
            Id::RestartsMuster,
            text!(
                "max_restarts {count} [{source}] has no effect on {nnodes} nodes without a muster: no node can tell the others to start again",
                "在没有集结的 {nnodes} 个节点上，max_restarts {count} [{source}] 不起作用：没有节点能通知其他节点重新启动"
            ),
            text!(
                "use --muster auto or required, with ranklaunch on every node; else let the platform restart the job",
                "请使用 --muster auto 或 required，并在每个节点上运行 ranklaunch；否则由平台重启任务"
            ),
        );
    }
}
