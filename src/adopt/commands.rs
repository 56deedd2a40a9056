//! The table of commands and variables of start-up scripts: what stays, what ranklaunch does by itself, and why.

use text::lang::Text;
use text::text;

use crate::classes::Class;
use crate::words::base;

struct Row {
    names: &'static [&'static str],
    class: Class,
    en: &'static str,
    zh: &'static str,
}

const fn row(
    names: &'static [&'static str],
    class: Class,
    en: &'static str,
    zh: &'static str,
) -> Row {
    Row { names, class, en, zh }
}

use Class::{Kept, NotUnderstood, Unnecessary, Wrong};

#[rustfmt::skip]
const COMMANDS: &[Row] = &[
    row(&["pkill", "killall", "fuser", "kill"], Unnecessary,
        "what is proven to be left over is ended before the start; `ranklaunch clean --stale force` ends all that run the script",
        "启动前会结束确认遗留的进程；`ranklaunch clean --stale force` 会结束运行该脚本的所有进程"),
    row(&["sleep"], Unnecessary,
        "the nodes wait for each other, and for a port to be free",
        "各节点会互相等待，也会等待端口释放"),
    row(WAITS, Unnecessary,
        "the nodes wait for node 0 and say who is missing; alone: `ranklaunch wait HOST:PORT`",
        "各节点会等待节点 0 并指出缺少谁；单独使用：`ranklaunch wait HOST:PORT`"),
    row(&["nvidia-smi", "rocm-smi", "ibstat", "ibdev2netdev", "ibv_devinfo", "ifconfig", "ip", "hostname", "ss", "netstat", "lsof"], Unnecessary,
        "`ranklaunch check` and `plan` show the GPUs, the network and who holds a port",
        "`ranklaunch check` 与 `plan` 会显示 GPU、网络以及占用端口的进程"),
    row(&["tee"], Unnecessary,
        "each rank's output goes to its own file and to the console; the exit code is that of the job, not of tee",
        "每个 rank 的输出各存一个文件并显示在控制台；退出码是任务的，而不是 tee 的"),
    row(&["ps", "pgrep"], Unnecessary,
        "`ranklaunch ps`; `ranklaunch clean --dry-run` shows what is left over",
        "`ranklaunch ps`；`ranklaunch clean --dry-run` 会显示遗留进程"),
    row(&["trap"], Unnecessary,
        "one TERM reaches every rank, and KILL those that stay; nothing survives",
        "每个 rank 会收到一次 TERM，未退出的再收到 KILL；不会有进程残留"),
    row(&["cd", "pushd", "popd"], Kept,
        "the folder of the job; `--chdir`, or workdir in a profile, says the same",
        "任务的工作目录；也可用 `--chdir` 或配置文件中的 workdir"),
    row(&["set", "shopt", "ulimit", "umask", "exec", "stty"], Kept,
        "a setting of the shell", "shell 的设置"),
    row(&["pip", "pip3", "apt", "apt-get", "yum", "apk", "npm", "poetry"], Kept,
        "installs software; better done once, in the image", "安装软件；最好在镜像中一次完成"),
    row(&["module", "ml", "spack"], Kept, "loads software of the cluster", "加载集群的软件"),
    row(&["conda", "mamba", "micromamba", "workon"], Kept, "prepares the environment", "准备环境"),
    row(&["echo", "printf", "date", "env", "printenv", "which", "whoami", "uname", "pwd", "ls", "cat", "nproc", "lscpu", "free", "df", "tail", "head"], Kept,
        "prints", "打印信息"),
    row(&["mkdir", "cp", "mv", "rm", "ln", "touch", "chmod", "chown", "tar", "unzip", "wget", "curl", "git", "rsync", "aws", "gsutil", "sed", "awk", "find", "ossutil", "hdfs", "huggingface-cli", "hf", "du", "mount", "xargs", "sort", "grep"], Kept,
        "prepares files", "准备文件"),
    row(&["wandb", "tensorboard", "ray"], Kept, "another program of the script", "脚本中的其他程序"),
    row(&["if", "for", "while", "until", "case", "select", "[", "[[", "test", "elif", "in", "fi", "done", "esac", ";;", "true", "false", ":", "break", "continue", "exit", "return", "shift", "getopts", "read", "local", "let", "function", "{", "}", "wait", "unset", "declare", "typeset", "readonly", "export", "mapfile", "readarray"], Kept,
        "decides what the script does", "决定脚本的流程"),
];

const WAITS: &[&str] =
    &["nc", "ncat", "netcat", "ping", "telnet", "getent", "nslookup", "nmap", "wait-for-it.sh"];

/// Whether these words of a loop's condition ask whether another node answers.
pub(crate) fn asks_for_a_peer(words: &[String]) -> bool {
    words.iter().any(|word| WAITS.contains(&base(word)) || word.contains("/dev/tcp/"))
}

/// The row of a command that is no launch.
pub(crate) fn of_command(words: &[String]) -> (Class, Text) {
    let first = words.first().map(|word| base(word)).unwrap_or_default();
    if let Some(row) = COMMANDS.iter().find(|row| row.names.contains(&first)) {
        return (row.class, Text::new(row.en, row.zh));
    }
    if first.starts_with("python") || first.ends_with(".py") {
        return (Kept, Text::new("another program of the script", "脚本中的其他程序"));
    }
    (
        Kept,
        Text::new(
            "a command of the script; ranklaunch changes nothing about it",
            "脚本中的命令；ranklaunch 对其没有影响",
        ),
    )
}

/// Variables that say who takes part in a job; a launch has them as options, or the platform sets them.
#[rustfmt::skip]
pub(crate) const MEMBERSHIP: &[&str] = &[
    "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "NNODES", "LOCAL_WORLD_SIZE",
    "RDZV_ENDPOINT",
];

#[rustfmt::skip]
const VARIABLES: &[Row] = &[
    row(MEMBERSHIP, Unnecessary,
        "ranklaunch reads who takes part from the platform or from its options, and sets this for each rank",
        "ranklaunch 从平台或选项得知哪些节点参与，并为每个 rank 设置该变量"),
    row(&["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_NET_GDR_LEVEL"], Unnecessary,
        "interfaces and RDMA devices are found on each node; what is set all the same is kept, and `check` says if it does harm",
        "网卡与 RDMA 设备会在每个节点上查找；仍然设置的值会保留，有害时 `check` 会指出"),
    row(&["NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"], Unnecessary,
        "the log of each rank grows by thousands of lines; set it when NCCL is to be examined",
        "每个 rank 的日志会多出几千行；需要检查 NCCL 时再设置"),
    row(&["NCCL_ALGO", "NCCL_PROTO"], Unnecessary,
        "NCCL chooses it by the size of a message", "NCCL 会按消息大小自行选择"),
    row(&["NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_BLOCKING_WAIT"], Unnecessary,
        "the default of torch; a hang is reported long before a time limit",
        "torch 的默认值；卡死会远早于超时被报告"),
    row(&["NCCL_TIMEOUT", "TORCH_DISTRIBUTED_TIMEOUT", "NCCL_MIN_NRINGS", "NCCL_MAX_NRINGS"], Unnecessary,
        "it has no effect", "没有任何作用"),
    row(&["PYTHONUNBUFFERED"], Unnecessary,
        "ranks run as `python -u`", "rank 以 `python -u` 运行"),
];

/// The row of a variable; None: it stays, as an export or while something uses it.
pub(crate) fn of_variable(name: &str, value: Option<&str>) -> Option<(Class, Text)> {
    let text = |row: &Row| (row.class, Text::new(row.en, row.zh));
    if name == "NCCL_IB_DISABLE" && value == Some("0") {
        return Some((Unnecessary, Text::new("the default of NCCL", "NCCL 的默认值")));
    }
    if name == "CUDA_VISIBLE_DEVICES" && value == Some("0,1,2,3,4,5,6,7") {
        return Some((
            Unnecessary,
            Text::new("all GPUs of a node: the default", "节点的全部 GPU：默认值"),
        ));
    }
    if matches!(name, "MASTER_ADDR" | "NODE_RANK" | "RANK")
        && matches!(value, Some("None" | "null" | ""))
    {
        return Some((
            Wrong,
            Text::new(
                "empty, or the word for nothing: no node can be reached by it",
                "为空或表示“无”的词：无法据此连接任何节点",
            ),
        ));
    }
    VARIABLES.iter().find(|row| row.names.contains(&name)).map(text)
}

/// What a line that prints sizes is for.
pub(crate) fn shown_by_plan() -> Text {
    Text::new(
        "`ranklaunch plan` and the first lines of a run show it, with the reason",
        "`ranklaunch plan` 和运行开头的几行会显示它及其原因",
    )
}

/// The text for commands that no table can know.
pub(crate) fn composed() -> (Class, Text) {
    (
        NotUnderstood,
        Text::new(
            "the command is composed while the script runs; look what it starts",
            "该命令在脚本运行时才拼接而成；请查看它启动了什么",
        ),
    )
}

/// Why the rest of a script is not read.
pub(crate) fn never_closed(open: &str) -> Text {
    text!(
        "the {open} that begins here is never closed: nothing from here on is read",
        "此处开始的 {open} 没有闭合：其后内容均未读取"
    )
}
