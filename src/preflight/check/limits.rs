//! Checks of limits: host memory, shared memory, locked memory, files, processes, CPUs, time.

use super::finding::{CheckFinding, CheckInput, Judge, bad, doubtful, hinted, info, ok, or};
use settings::contract::Strength;
use text::lang::bytes;
use text::text;
use verdict::Id;

pub(super) const JUDGES: &[Judge] = &[
    (Id::ShmSize, shm),
    (Id::Memlock, memlock),
    (Id::Nofile, nofile),
    (Id::PidsLimit, pids),
    (Id::StackSize, stack),
    (Id::MemoryLimit, memory),
    (Id::CpuLimit, cpus),
    (Id::ClockSync, clock),
];

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Default of Docker and Kubernetes.
const SHM_DEFAULT: u64 = 64 * MIB;

/// Shared memory for NCCL's segments and the queues of data loaders, per rank on a GPU.
const SHM_PER_GPU: u64 = GIB;

/// With less, registering NCCL's buffers with an HCA is likely to fail.
const MEMLOCK_ENOUGH: u64 = GIB;

/// Number of sockets, libraries and files of one rank of a large job.
const FILES_ENOUGH: u64 = 65536;

/// Number of threads of NCCL, OpenMP and data loaders.
const PIDS_PER_GPU: u64 = 1000;
const PIDS_PER_CPU_RANK: u64 = 100;

/// Host memory that loading a checkpoint takes for a data-centre GPU.
const MEMORY_PER_GPU: u64 = 32 * GIB;

fn shm(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let nproc = input.nproc();
    let Some(total) = input.facts.limits.shm_total else {
        return vec![info(text!("/dev/shm: unknown", "/dev/shm：未知"))];
    };
    let size = bytes(total);
    let hint = text!(
        "mount an emptyDir with medium Memory on /dev/shm, or docker run --shm-size 16g (or --ipc host); --severity shm.size=warn starts anyway",
        "请将 medium 为 Memory 的 emptyDir 挂载到 /dev/shm，或使用 docker run --shm-size 16g（或 --ipc host）；--severity shm.size=warn 可继续启动"
    );
    if total <= SHM_DEFAULT && nproc > 1 {
        let text = text!(
            "/dev/shm has {size}, too little for {nproc} ranks: NCCL and data loaders then fail with \"No space left on device\"",
            "/dev/shm 只有 {size}，不够 {nproc} 个进程使用：NCCL 与数据加载会报 \"No space left on device\""
        );
        return vec![bad((text, hint))];
    }
    let gpus = u64::from(input.on_gpus());
    if nproc > 1 && total < SHM_PER_GPU.saturating_mul(gpus) {
        let text = text!(
            "/dev/shm has {size} for {gpus} GPU ranks; at least 1 GiB per rank is recommended",
            "/dev/shm 为 {size}，供 {gpus} 个 GPU 进程使用；建议每个至少 1 GiB"
        );
        return vec![doubtful((text, hint))];
    }
    let free = input.facts.limits.shm_free.map(bytes);
    vec![ok(match free {
        Some(free) => text!("/dev/shm {size}, {free} free", "/dev/shm {size}，空闲 {free}"),
        None => text!("/dev/shm {size}", "/dev/shm {size}"),
    })]
}

fn memlock(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let limits = &input.facts.limits;
    let Some(limit) = limits.memlock else {
        return vec![ok(text!("unlimited", "无限制"))];
    };
    if limits.ipc_lock {
        return vec![ok(text!(
            "the capability IPC_LOCK lifts the limit",
            "已由 capability IPC_LOCK 解除限制"
        ))];
    }
    let rdma = input
        .outline()
        .is_some_and(|plan| plan.membership.nnodes > 1 && !plan.network.hcas.is_empty());
    let kib = limit / KIB;
    if !rdma {
        return vec![ok(text!("{kib} KiB, enough without RDMA", "{kib} KiB，未使用 RDMA，已足够"))];
    }
    if limit >= MEMLOCK_ENOUGH {
        return vec![ok(text!("{kib} KiB", "{kib} KiB"))];
    }
    vec![bad(hinted!(
        "locked memory is limited to {kib} KiB, but RDMA must register far more",
        "可锁定内存上限为 {kib} KiB，而 RDMA 需要注册的内存远大于此",
        "docker run --ulimit memlock=-1, or the capability IPC_LOCK; --severity memlock=off silences this",
        "请使用 docker run --ulimit memlock=-1，或授予 capability IPC_LOCK；--severity memlock=off 可关闭此检查"
    ))]
}

fn nofile(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let (soft, hard) = (input.facts.limits.nofile_soft, input.facts.limits.nofile_hard);
    if hard < FILES_ENOUGH {
        return vec![bad(hinted!(
            "at most {hard} open files per process; NCCL holds tens of thousands in large jobs",
            "每个进程最多打开 {hard} 个文件；大型任务中 NCCL 会占用数万个",
            "docker run --ulimit nofile=1048576, or LimitNOFILE of containerd",
            "请使用 docker run --ulimit nofile=1048576，或调整 containerd 的 LimitNOFILE"
        ))];
    }
    let [soft, hard] = [soft, hard].map(|limit| match limit {
        u64::MAX => "unlimited".to_owned(),
        limit => limit.to_string(),
    });
    vec![ok(text!(
        "soft {soft}, hard {hard}; a launch raises the soft limit",
        "软限制 {soft}，硬限制 {hard}；启动时会提升软限制"
    ))]
}

fn stack(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    if !input.facts.limits.stack_unlimited {
        return vec![ok(text!("limited, as it should be", "有限制，符合预期"))];
    }
    let text = text!(
        "the stack is unlimited (ulimit -s): NCCL before 2.28 then gives its threads 2 MiB, which can overflow",
        "栈大小无限制（ulimit -s）：2.28 之前的 NCCL 此时只给线程 2 MiB 栈，可能溢出"
    );
    if input.on_gpus() == 0 {
        return vec![info(text)];
    }
    vec![bad((
        text,
        text!(
            "docker run --ulimit stack=8388608, or ulimit -s 8192 before the start",
            "请使用 docker run --ulimit stack=8388608，或在启动前执行 ulimit -s 8192"
        ),
    ))]
}

fn pids(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let limits = &input.facts.limits;
    let wanted = match u64::from(input.on_gpus()) {
        0 => u64::from(input.nproc()).saturating_mul(PIDS_PER_CPU_RANK),
        gpus => gpus.saturating_mul(PIDS_PER_GPU),
    };
    // This limit counts everything that this user runs on the machine.
    if let Some(most) = limits.nproc_soft.filter(|most| *most < wanted) {
        return vec![bad(hinted!(
            "this user may have {most} processes and threads (ulimit -u), but the ranks may need {wanted}",
            "该用户最多允许 {most} 个进程和线程（ulimit -u），而各进程可能需要 {wanted} 个",
            "docker run --ulimit nproc=-1, or raise nproc in limits.conf",
            "请使用 docker run --ulimit nproc=-1，或提高 limits.conf 中的 nproc"
        ))];
    }
    let Some(most) = limits.pids_max else {
        return vec![ok(text!("unlimited", "无限制"))];
    };
    let now = limits.pids_current.unwrap_or(0);
    if most.saturating_sub(now) < wanted {
        return vec![bad(hinted!(
            "the cgroup allows {most} processes and threads, {now} are in use, but the ranks may need {wanted}",
            "cgroup 允许 {most} 个进程和线程，已用 {now} 个，而各进程可能需要 {wanted} 个",
            "raise the pod's pids limit (podPidsLimit, docker run --pids-limit)",
            "请提高 pids 限制（podPidsLimit、docker run --pids-limit）"
        ))];
    }
    vec![ok(text!("{most}, {now} in use", "{most}，已用 {now}"))]
}

/// Settings that make the kernel refuse memory that is free.
fn refused_memory(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let limits = &input.facts.limits;
    let mut found = Vec::new();
    if let Some(most) = limits.address_space {
        let size = bytes(most);
        let text = text!(
            "the address space is limited to {size} (ulimit -v), but CUDA reserves far more than it uses",
            "地址空间上限为 {size}（ulimit -v），而 CUDA 预留的远多于实际使用"
        );
        let hint =
            text!("remove the limit: ulimit -v unlimited", "请解除限制：ulimit -v unlimited");
        found.push(if input.on_gpus() > 0 { bad((text, hint)) } else { info(text) });
    }
    const NEVER: u8 = 2;
    if limits.overcommit == Some(NEVER) {
        found.push(doubtful(hinted!(
            "strict memory overcommit is on (vm.overcommit_memory=2): large reservations and forks of data loaders fail although memory is free",
            "内核禁止内存超额分配（vm.overcommit_memory=2）：即使内存空闲，大块预留和数据加载进程的 fork 也会失败",
            "run sysctl vm.overcommit_memory=0 on the host",
            "请在宿主机执行 sysctl vm.overcommit_memory=0"
        )));
    }
    found
}

fn memory(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let limits = &input.facts.limits;
    let mut found = refused_memory(input);
    let Some(most) = [limits.memory_limit, limits.memory_total].into_iter().flatten().min() else {
        return or(found, || info(text!("not known", "未知")));
    };
    let size = bytes(most);
    let gpus = u64::from(input.on_gpus());
    let mut sizes = input.facts.gpus.gpus.iter().filter_map(|gpu| gpu.memory_total);
    if sizes.any(|size| size >= MEMORY_PER_GPU) && most < MEMORY_PER_GPU.saturating_mul(gpus) {
        let short = bad(hinted!(
            "{size} of memory for {gpus} GPUs; loading a checkpoint on every rank can cause an OOM kill; /dev/shm counts towards the limit",
            "{gpus} 个 GPU 只有 {size} 内存；各进程加载权重时可能被 OOM 终止，/dev/shm 也计入其中",
            "raise the container's memory limit to 32 GiB per GPU or more",
            "请将容器内存限制提高到每个 GPU 32 GiB 以上"
        ));
        found.insert(0, short);
    }
    let swap = limits.swap_total.filter(|swap| *swap > 0).map(bytes);
    let (en, zh) = swap.map_or_else(Default::default, |swap| {
        (format!(", {swap} of swap"), format!("，交换空间 {swap}"))
    });
    or(found, || {
        ok(match limits.memory_limit {
            Some(limit) if limit == most => {
                text!("{size}, by the cgroup{en}", "{size}，由 cgroup 限定{zh}")
            }
            _ => text!("{size}, no cgroup limit{en}", "{size}，无 cgroup 限制{zh}"),
        })
    })
}

fn cpus(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let (cpus, nproc) = (input.facts.limits.cpus, input.nproc());
    // A replayed root may lack the file.
    if cpus <= 1 && input.facts.limits.allowed.is_empty() {
        return vec![info(text!("not known", "未知"))];
    }
    let mut launchers = input.facts.contract.evidence.iter();
    let launcher = launchers.find(|found| found.strength == Strength::Launcher);
    let allowed = &input.facts.limits.allowed;
    if let (Some(launcher), 1) = (launcher, allowed.len()) {
        let platform = &launcher.platform;
        return vec![bad(hinted!(
            "the launcher ({platform}) binds this command to CPU {allowed}: {nproc} ranks and all their threads would share it",
            "启动器（{platform}）把本命令绑定到 CPU {allowed}，{nproc} 个进程及其全部线程都只能使用它",
            "use mpirun --bind-to none (Intel MPI: I_MPI_PIN=0)",
            "请使用 mpirun --bind-to none（Intel MPI：I_MPI_PIN=0）"
        ))];
    }
    if cpus < nproc {
        return vec![bad(hinted!(
            "{cpus} CPUs for {nproc} ranks, by the cgroup's quota and the affinity mask",
            "按 cgroup 配额与亲和性，{nproc} 个进程只有 {cpus} 个 CPU",
            "raise the container's CPU limit to one per rank or more",
            "请将容器的 CPU 限制提高到每个进程至少一个"
        ))];
    }
    vec![ok(text!("{cpus} CPUs for {nproc} ranks", "{nproc} 个进程可用 {cpus} 个 CPU"))]
}

fn clock(input: &CheckInput<'_>) -> Vec<CheckFinding> {
    let Some(clock) = input.facts.state.clock else {
        return vec![info(text!("not known", "未知"))];
    };
    let error = clock.error_micros as f64 / 1e6;
    let text = if clock.unsynchronised {
        text!("the kernel's clock is not synchronised (adjtimex)", "内核时钟未同步（adjtimex）")
    } else if error > 1.0 {
        text!(
            "the clock may be wrong by {error:.1} s (adjtimex)",
            "时钟误差可能达 {error:.1} 秒（adjtimex）"
        )
    } else {
        return vec![ok(text!(
            "synchronised, within {error:.3} s",
            "已同步，误差不超过 {error:.3} 秒"
        ))];
    };
    let hint = text!(
        "start chrony, ntpd or systemd-timesyncd on the host: logs of several nodes are ordered by time",
        "请在宿主机启用 chrony、ntpd 或 systemd-timesyncd：多节点日志按时间排序"
    );
    vec![bad((text, hint))]
}
