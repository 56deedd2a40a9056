//! Remarks on platforms: advice if a part of the evidence is missing, and warnings of unexpected
//! behaviour of the launcher.
//!
//! Data only. A remark is printed if none of the variables in `unless` is set and, if `on` names a
//! variable, that variable is set.

use text::lang::Text;
use verdict::Id;

/// Advice for a platform if a part of the evidence is missing.
pub(super) struct Advice {
    pub(super) platform: &'static str,
    en: &'static str,
    zh: &'static str,
}

/// A warning for every launch on this platform.
pub(super) struct Remark {
    pub(super) platform: &'static str,
    pub(super) on: Option<&'static str>,
    pub(super) unless: &'static [&'static str],
    pub(super) id: Id,
    text: (&'static str, &'static str),
    hint: (&'static str, &'static str),
}

impl Advice {
    pub(super) fn text(&self) -> Text {
        Text::new(self.en, self.zh)
    }
}

impl Remark {
    pub(super) fn text(&self) -> Text {
        Text::new(self.text.0, self.text.1)
    }

    pub(super) fn hint(&self) -> Text {
        Text::new(self.hint.0, self.hint.1)
    }
}

pub(super) const ADVICE: &[Advice] = &[
    Advice {
        platform: "slurm-allocation",
        en: "this is a batch script or a shell of salloc, which Slurm starts on one node; start all of them with srun --ntasks-per-node=1 ranklaunch …; --nnodes 1 for this node alone",
        zh: "当前位于批处理脚本或 salloc 的 shell 中，Slurm 只在一个节点上启动它；请用 srun --ntasks-per-node=1 ranklaunch … 在所有节点上启动；只用本节点时用 --nnodes 1",
    },
    Advice {
        platform: "pbs",
        en: "PBS runs a script on one host: hosts=$(sort -u $PBS_NODEFILE | paste -sd,); pbsdsh -- $(command -v ranklaunch) run --nodes $hosts -- … (one slot per host, Torque: pbsdsh -u); --nnodes 1 for this node alone",
        zh: "PBS 只在一台主机上运行脚本：hosts=$(sort -u $PBS_NODEFILE | paste -sd,); pbsdsh -- $(command -v ranklaunch) run --nodes $hosts -- …（每台主机一个槽位，Torque 用 pbsdsh -u）；只用本节点时用 --nnodes 1",
    },
    Advice {
        platform: "lsf",
        en: "LSF runs a script on one host: hosts=$(sort -u $LSB_DJOB_HOSTFILE); blaunch -z \"$hosts\" ranklaunch run --nodes $(echo $hosts | tr ' ' ,) -- … (jsrun: -r 1 and MASTER_ADDR); --nnodes 1 for this node alone",
        zh: "LSF 只在一台主机上运行脚本：hosts=$(sort -u $LSB_DJOB_HOSTFILE); blaunch -z \"$hosts\" ranklaunch run --nodes $(echo $hosts | tr ' ' ,) -- …（jsrun 用 -r 1 并设置 MASTER_ADDR）；只用本节点时用 --nnodes 1",
    },
    Advice {
        platform: "grid-engine",
        en: "Grid Engine runs a script on one host: start qrsh -inherit HOST ranklaunch run --nodes HOST,HOST,… -- … for each host of $PE_HOSTFILE; --nnodes 1 for this node alone",
        zh: "Grid Engine 只在一台主机上运行脚本：请对 $PE_HOSTFILE 中的每台主机执行 qrsh -inherit HOST ranklaunch run --nodes HOST,HOST,… -- …；只用本节点时用 --nnodes 1",
    },
    Advice {
        platform: "determined",
        en: "make it a part of the entrypoint of a trial, before which Determined writes the place of each container to /run/determined/info/rendezvous.json; or --nnodes N --node-rank K --master-addr HOST; --nnodes 1 for this container alone",
        zh: "请放在 trial 的 entrypoint 中启动，此前 Determined 会把各容器的位置写入 /run/determined/info/rendezvous.json；或给出 --nnodes N --node-rank K --master-addr HOST；只用本容器时用 --nnodes 1",
    },
    Advice {
        platform: "flux-tasks",
        en: "start one task per node: flux run -N 2 -n 2 ranklaunch …, with MASTER_ADDR; or --nnodes N and --node-rank K",
        zh: "请每节点只启动一个 task：flux run -N 2 -n 2 ranklaunch …，并设置 MASTER_ADDR；或给出 --nnodes N 和 --node-rank K",
    },
    Advice {
        platform: "pmix",
        en: "PMIx gives a rank and no count in the environment: use a launcher that sets both (mpirun, srun), or set --nnodes N, --node-rank K and --master-addr",
        zh: "PMIx 只在环境变量中给出编号而没有总数：请使用同时给出二者的启动器（mpirun、srun），或给出 --nnodes N、--node-rank K 和 --master-addr",
    },
    Advice {
        platform: "volcano-tasks",
        en: "add Volcano's pytorch plugin (plugins: {pytorch: [\"--master=master\", \"--worker=worker\"]}), which sets RANK and WORLD_SIZE, or set --nnodes N and --node-rank K",
        zh: "请启用 Volcano 的 pytorch 插件（plugins: {pytorch: [\"--master=master\", \"--worker=worker\"]}），它会设置 RANK 和 WORLD_SIZE；或给出 --nnodes N 和 --node-rank K",
    },
];

const ONE_SECOND: (&str, &str) = (
    "mpirun kills this command 1 s after TERM, so that a checkpoint at the end and the closing lines are lost",
    "mpirun 在 TERM 之后 1 秒就会强制终止本命令，结束时的检查点和末尾输出会丢失",
);
/// PRRTE, the launcher of Open MPI 5, has started the process.
const OF_5: &str = "PRTE_LAUNCHED";

pub(super) const REMARKS: &[Remark] = &[
    Remark {
        platform: "open-mpi",
        on: None,
        unless: &["OMPI_MCA_odls_base_sigkill_timeout", OF_5],
        id: Id::LauncherGrace,
        text: ONE_SECOND,
        hint: (
            "mpirun --mca odls_base_sigkill_timeout 30",
            "mpirun --mca odls_base_sigkill_timeout 30",
        ),
    },
    Remark {
        platform: "open-mpi",
        // PRRTE 3.0, the version in Open MPI 5.0, no longer has the option; tried with 5.0.7.
        on: Some(OF_5),
        unless: &[],
        id: Id::LauncherGrace,
        text: ONE_SECOND,
        hint: (
            "Open MPI 5.0 has no option for that time: send USR1 to mpirun, which forwards it, and save then",
            "Open MPI 5.0 没有调整该时间的选项：请向 mpirun 发送 USR1（它会转发），并在收到 USR1 时保存",
        ),
    },
];
