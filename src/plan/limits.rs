//! Limits of the container that decide whether the ranks live.
//!
//! Takes the limits that were read and the size of the plan; gives warnings, or
//! a refusal where the user or a profile made the check fail.

use crate::observe::Limits;
use crate::plan::notes::{Notes, severity};
use crate::settings::Settings;
use crate::text;
use crate::verdict::{Refusal, Severity, Verdict, Warning};

const MIB: u64 = 1 << 20;

/// What Docker and Kubernetes give a container that asks for nothing.
const SHM_DEFAULT: u64 = 64 * MIB;

/// Below this, registering NCCL's buffers with an HCA is likely to fail.
const MEMLOCK_ENOUGH: u64 = 1 << 30;

/// Checks `shm.size` and, where RDMA is used, `memlock`.
pub fn check(
    settings: &Settings,
    limits: &Limits,
    nproc: u32,
    uses_rdma: bool,
    notes: &mut Notes,
) -> Result<(), Refusal> {
    if let Some(total) = limits.shm_total.filter(|total| *total <= SHM_DEFAULT && nproc > 1) {
        let mib = total / MIB;
        notes.raise(
            severity(settings, "shm.size", Severity::Warn),
            Verdict::Limit,
            Warning::new(
                "shm.size",
                text!(
                    "/dev/shm holds {mib} MiB, too little for {nproc} ranks: NCCL and data loaders then fail with \"No space left on device\"",
                    "/dev/shm 只有 {mib} MiB，不够 {nproc} 个进程使用：NCCL 与数据加载会报 \"No space left on device\""
                ),
                text!(
                    "mount an emptyDir with medium Memory on /dev/shm, or docker run --shm-size 16g (or --ipc host); --severity shm.size=warn goes on",
                    "请将 medium 为 Memory 的 emptyDir 挂载到 /dev/shm，或使用 docker run --shm-size 16g（或 --ipc host）；--severity shm.size=warn 可继续启动"
                ),
            ),
        )?;
    }
    if let Some(limit) = limits.memlock.filter(|limit| *limit < MEMLOCK_ENOUGH && uses_rdma) {
        let kib = limit / 1024;
        notes.raise(
            severity(settings, "memlock", Severity::Warn),
            Verdict::Limit,
            Warning::new(
                "memlock",
                text!(
                    "locked memory is limited to {kib} KiB, and RDMA needs to register far more",
                    "可锁定内存上限为 {kib} KiB，而 RDMA 需要注册的内存远大于此"
                ),
                text!(
                    "docker run --ulimit memlock=-1, or the capability IPC_LOCK; --severity memlock=off silences this",
                    "请使用 docker run --ulimit memlock=-1，或授予 IPC_LOCK 权限；--severity memlock=off 可关闭此检查"
                ),
            ),
        )?;
    }
    Ok(())
}
