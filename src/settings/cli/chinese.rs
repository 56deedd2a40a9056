//! Translates the help and the manual page to Chinese.
//!
//! Owns the Chinese text of every command and option, by their ids, and of clap's own words.
//! Takes the English definition of the command line; gives it in Chinese. The options are
//! defined only there.

use clap::{Arg, Command};

use super::options;
use super::parts::launches;
use text::columns::fold;

/// By id; an id of two options has the command before it.
pub(super) const OPTIONS: &[(&str, &str)] = &[
    ("plan.format", "输出格式：供人阅读（text）、JSON（json），或可直接粘贴的 shell 命令（shell）"),
    ("plan.assume", "为另一个节点（而非本机）做计划：gpus=8，或 gpus=8,name=H100,memory=80GiB"),
    ("check.format", "输出格式：供人阅读的表格（text），或 JSON（json）"),
    ("check.all", "同时列出正常的检查项"),
    ("check.report", "同时将 JSON 报告写入该文件"),
    ("check.torch", "同时运行一次简短的 all-reduce：CPU 上用 gloo 和两个 rank，GPU 上用 NCCL"),
    (
        "check.capture",
        "将读取到的本节点信息保存到该目录，提交问题报告时可用 --host-root 重放。敏感信息会隐去",
    ),
    ("clean.dry_run", "只显示 --stale kill 与 --stale force 会结束哪些进程及原因，不发送信号"),
    ("clean.format", "输出格式：供人阅读的表格（text），或 JSON（json）"),
    ("wait.target", "主机名或地址加端口，例如 job-master-0:29500 或 [fd00::1]:29500"),
    ("wait.timeout", "最长等待时间：90s、30m、1h30m，或秒数 [默认：30m]"),
    ("init.grace", "命令的遗留进程从收到 TERM 到被 KILL 的时间：10s、1m [默认：5s]"),
    ("init.command", "命令及其参数，写在 -- 之后"),
    ("lint.manifests", "要检查的清单、脚本与 Compose 文件；- 表示标准输入"),
    ("lint.format", "输出格式：供人阅读（text）、JSON（json），或 GitHub 工作流的注解（github）"),
    ("lint.node_memory", "单个节点可分配给 Pod 的内存，例如 256Gi；超过该值的 Pod 会被指出"),
    ("checkpoint.dir", "程序保存检查点的目录，或其上级目录"),
    ("checkpoint.format", "输出格式：供人阅读（text）或 JSON"),
    ("adopt.files", "要读取的脚本与清单，以及它们用到的 accelerate config 文件；- 表示标准输入"),
    ("adopt.format", "输出格式：供人阅读（text）或 JSON"),
    ("adopt.command", "目前启动任务的命令，写在 -- 之后"),
    (
        "explain.ids",
        "同一任务的日志（文件、目录，- 表示标准输入），或 ID 与退出码，例如 gpu.count 或 86 [默认：列出全部 ID]",
    ),
    (
        "explain.format",
        "输出格式：供人阅读（text）、JSON（json），日志还可输出为 GitHub 工作流的注解（github）",
    ),
    ("explain.profile", "同时识别该配置文件 [[diagnose]] 中的故障"),
    (
        "stacks.run",
        "任务，取运行 ID、其开头或其目录 [默认：当前目录的任务，或此处唯一正在运行的任务]",
    ),
    ("stacks.node", "仅显示该编号的节点"),
    ("stacks.rank", "仅显示该 rank"),
    ("stacks.format", "输出格式：供人阅读（text）或 JSON"),
    (
        "top.run",
        "任务，取运行 ID、其开头或其 agent 的 pid；或某个节点提供状态的地址 [默认：当前目录的任务，或此处唯一正在运行的任务]",
    ),
    ("ps.all", "同时列出日志目录中已结束的运行"),
    ("ps.log_dir", "--all 查看的目录 [默认：与 run 相同]"),
    ("ps.format", "输出格式：供人阅读（text）或 JSON"),
    ("nodes.forget", "该节点已修复：今后与其他节点同等对待"),
    ("nodes.log_dir", "日志目录 [默认：与 run 相同]"),
    ("nodes.format", "输出格式：供人阅读（text）或 JSON"),
    ("logs.run", "运行 ID 或其开头，或其目录"),
    ("logs.follow", "同时输出此后写入的内容，直到任务结束"),
    ("logs.rank", "仅这些 rank：3，或 0,4-7"),
    ("logs.since", "仅此后写入的内容：10m 表示最近 10 分钟，或 2026-11-23T18:00:00Z"),
    ("logs.grep", "仅匹配该正则表达式的行"),
    ("logs.timestamps", "在每行开头显示其写入时间"),
    ("logs.log_dir", "查找运行的目录 [默认：与 run 相同]"),
    (
        "dump.run",
        "任务，取运行 ID、其开头或其目录 [默认：当前目录的任务，或此处唯一正在运行的任务]",
    ),
    ("dump.log_dir", "该日志目录中最新一次运行的任务"),
    ("stacks.log_dir", "该日志目录中最新一次运行的任务"),
    ("dump.output", "输出目录，不存在时会创建 [默认：当前目录下的 ranklaunch-dump-RUN]"),
    ("report.runs", "运行的目录、其各节点的目录、日志目录（取其中最新的一次运行），或运行 ID"),
    ("report.output", "要写入的文件；- 表示标准输出 [默认：运行目录中的 report.html]"),
    ("compare.first", "运行的目录、日志目录（取其中最新的一次运行），或运行 ID"),
    ("compare.second", "与之比较的运行"),
    ("compare.format", "输出格式：供人阅读（text）或 JSON"),
    ("profile show.name", "内置配置文件的名称，或 TOML 文件"),
    ("profile check.name", "内置配置文件的名称，或 TOML 文件"),
    ("install.folder", "目标目录；不存在时会自动创建"),
    ("man.output", "把各命令的手册页分别写入该目录，而不是输出一页"),
    ("completions.shell", "为哪种 shell 生成"),
    ("help.topic", "子命令，或主题：layout、membership、hangs、exit-codes"),
    (
        "profile",
        "从配置文件读取设置：内置配置文件的名称（wan22、taehv、zimdb）或 TOML 文件 [默认：若存在，取可执行文件所在目录、工作目录或 /etc/ranklaunch 中的 ranklaunch.toml]",
    ),
    ("module", "运行 Python 模块而不是脚本，同 python -m"),
    (
        "engine",
        "用什么启动各 rank：torchrun、accelerate、deepspeed、direct（由 ranklaunch 直接启动），或 command（任务自己的启动器，每个节点运行一次） [默认：torchrun]",
    ),
    ("python", "Python 解释器 [默认：conda 环境、virtualenv 或 PATH 中的解释器]"),
    (
        "chdir",
        "切换到该目录：相对路径（脚本、参数、启动引擎的文件、日志）均以此为起点；只有配置文件在切换之前查找 [默认：启动 ranklaunch 时所在的目录]",
    ),
    ("conda_env", "使用该 conda 环境，无需事先激活"),
    ("env", "为各 rank 设置变量，覆盖容器中的同名变量；可重复使用"),
    ("interactive", "将终端交给唯一的 rank，以便使用 pdb"),
    ("nnodes", "节点数 [默认：由平台给出]"),
    (
        "spares",
        "平台启动的节点中，有这么多个起初没有席位：它们待命，并接替失去的节点。若给出 --nnodes（其节点均有席位），则备用节点在其之外 [默认：0]",
    ),
    (
        "nodes",
        "任务的全部主机，按顺序：host0,host1 或 host[0-3]。每台主机使用相同的命令，各自找到自己的位置；代替 --nnodes、--node-rank 和 --master-addr",
    ),
    ("node_rank", "本节点的编号，从 0 开始 [默认：由平台给出]"),
    ("master_addr", "节点 0 的主机名或地址 [默认：由平台给出]"),
    ("master_port", "各 rank 在节点 0 上会合的端口 [默认：由平台给出，否则为 29500]"),
    (
        "world_size_counts",
        "没有其他变量可判断时，WORLD_SIZE 表示什么：auto（自动判断）、nodes（节点数）或 processes（进程数） [默认：auto]",
    ),
    ("rdzv", "torchrun 的 rendezvous 方式：static（rank 按节点顺序排列）或 c10d [默认：static]"),
    (
        "nested",
        "允许在 torchrun 或类似的启动器内运行：作为本节点上的独立任务启动，忽略外层启动器的变量",
    ),
    (
        "nproc_per_node",
        "每个节点的进程数：auto（在 GPU 数量和布局允许的范围内取最大值，没有 GPU 时为 1）、gpu（最多每张 GPU 一个）、cpu（最多每个 CPU 一个）或具体数字 [默认：auto]",
    ),
    ("min_nproc", "每个节点的进程数少于该值时拒绝启动"),
    ("device", "各 rank 的计算设备：auto、gpu 或 cpu [默认：auto]"),
    (
        "bind",
        "rank 可以使用哪些 CPU：none（容器的全部 CPU）或 numa（其 GPU 所在 NUMA 节点的 CPU） [默认：none]",
    ),
    (
        "layout",
        "各并行度与总进程数的关系：none、ulysses-world（Wan2.2）或 ulysses-ring（Wan2.1、HunyuanVideo） [默认：none]",
    ),
    ("heads", "模型的注意力头数，必须能被 ulysses 并行度整除"),
    (
        "inject",
        "是否让 rank 的 Python 启动 torch 自带的 worker server，供其卡死时查询：auto 或 off [默认：auto]",
    ),
    (
        "warm",
        "是否在每个节点上只导入一次程序所需的模块，再从该解释器 fork 出各 rank：off、auto（在安全时）或 required [默认：off]",
    ),
    ("warm_modules", "--warm 额外导入的模块，或不导入的模块：diffusers、-apex；可重复使用"),
    ("hang_after", "任务在这段时间内没有任何进展即视为卡死：5m、1h 或 off [默认：5m]"),
    (
        "on_hang",
        "任务卡死时如何处理：report（任务继续）、end（退出码 91）或 restart（受 --max-restarts 限制） [默认：report]",
    ),
    (
        "notice",
        "得知本节点或本任务即将结束，通知所有 rank 并显示剩余时间：auto（Slurm 任务的结束时间，以及本机所属的云）、off，或用逗号分隔的 slurm、gcp、aws、azure、alibaba、file:/PATH、signal:NAME [默认：auto]",
    ),
    (
        "notice_signal",
        "收到通知时发给各 rank 主进程、让其保存的信号：TERM、USR1、USR2、INT、HUP 或 RTMIN+N [默认：TERM]",
    ),
    (
        "notice_lead",
        "在已知的结束时间（例如 Slurm 任务的）之前多久发出通知；默认不短于宽限期 [默认：2m]",
    ),
    (
        "checkpoint_dir",
        "程序保存检查点的目录：所有节点都能读取的最新检查点即参数中的 {checkpoint} 和环境变量 RANKLAUNCH_RESUME_FROM",
    ),
    ("checkpoint_format", "只考虑该格式的检查点 [默认：auto]"),
    (
        "checkpoint_missing",
        "没有检查点时：omit（去掉引用它的参数和变量）或 refuse（拒绝启动） [默认：omit]",
    ),
    (
        "max_restarts_without_progress",
        "连续这么多次尝试都没有产生更新的检查点时，以退出码 93 结束任务 [默认：3]",
    ),
    (
        "stale",
        "如何处理以前运行留下的进程：kill（结束确认为残留的进程）、force（结束所有运行该脚本的进程，同 pkill -f）、report（只报告）或 off [默认：kill]",
    ),
    ("muster", "启动前各节点是否商定同一计划：auto、off 或 required [默认：auto]"),
    ("muster_port", "集结时使用节点 0 的该端口 [默认：Master 端口，即 --master-port]"),
    ("wait_timeout", "等待节点 0 和其他节点的最长时间：90s、30m、1h30m [默认：30m]"),
    ("rdma", "RDMA：auto（可用则用）、required（不可用则拒绝启动）或 off [默认：auto]"),
    ("probe", "查询 GPU 驱动的方式：auto、file、memfd、nvidia-smi 或 off [默认：auto]"),
    (
        "deadline",
        "每项节点信息查询（驱动、文件系统、域名解析）的超时：10s、2m [默认：驱动 60s，文件 30s]",
    ),
    (
        "severity",
        "设置检查项的严重级别：fail（拒绝启动）、warn（警告）或 off，例如 shm.size=fail；可重复使用",
    ),
    (
        "grace",
        "宽限期，即从第一次 TERM 到最后一次 KILL 的时间 [默认：略小于 TerminationGracePeriodSeconds，未设置时略小于 30s]",
    ),
    ("max_restarts", "所有节点一起重启的最多次数 [默认：0，或 --spares 的数目]"),
    (
        "retry_on",
        "因该原因失败后仍重启，即使重启后结果相同；取结论中的 ID，例如 cuda_oom 或 rank.exit；可重复使用",
    ),
    ("no_retry_on", "因该原因失败后不再重启；可重复使用"),
    (
        "log_dir",
        "日志目录 [默认：./ranklaunch-logs，否则 $TMPDIR/ranklaunch-<uid>，否则 /tmp/ranklaunch-<uid>]",
    ),
    ("log_cap_rank", "每个 rank 的输出最多占用的磁盘空间，例如 256MiB [默认：256MiB]"),
    ("log_cap_node", "本节点的输出最多占用的磁盘空间，例如 4GiB [默认：4GiB]"),
    (
        "log_keep",
        "日志目录中保留哪些以前的运行：运行数、时长、大小，或其组合，例如 20,14d,50GiB；正在运行的始终保留 [默认：all]",
    ),
    ("console", "控制台显示哪些 rank 的输出：all、rank0、errors（仅 stderr）或 none [默认：all]"),
    ("console_prefix", "控制台每行的前缀：rank 或 none [默认：rank]"),
    ("color", "颜色：auto（在终端上显示，除非设置了 NO_COLOR）、always 或 never [默认：auto]"),
    ("verbose", "同时显示计划的细节：硬件、变量、全部提示"),
    ("termination_log", "同时将结论写入该文件 [默认：若存在，则为 /dev/termination-log]"),
    (
        "progress",
        "rank 0 的哪些行表示任务进度，用于 goodput、top 与 Kubeflow TrainJob 的状态：auto、off，或带有分组 step 与 total（或 percent）的正则表达式 [默认：auto]",
    ),
    (
        "http",
        "在回环地址的该端口（或 ADDRESS:PORT）提供本节点的 /metrics、/status、/healthz 和 /readyz",
    ),
    ("lang", "所有消息的语言：en 或 zh [默认：取自 LC_ALL、LC_MESSAGES、LANG]"),
    ("host_root", "从该目录而不是 / 读取本节点的文件（用于问题报告和测试）"),
    (
        "program",
        "程序及其参数\n\n.py 文件、-m MODULE，或写在 -- 之后的任何其他命令。{ulysses_size}、{ring_size}、{world_size}、{nproc_per_node}、{nnodes}、{node_rank}、{run_id}、{timestamp}、{checkpoint}、{checkpoint_step} 以及配置文件 [[select]] 中定义的名称会被替换；{{name}} 表示原样的 {name}。使用配置文件时，若 -- 之后只有参数而没有程序，这些参数会追加到配置文件的参数之后。",
    ),
];

/// By the words of the command: summary, then details.
pub(super) const COMMANDS: &[(&str, &str, &str)] = &[
    (
        "",
        "启动分布式 PyTorch 任务在本节点上的部分",
        "ranklaunch 在每个节点上运行：读取平台给出的任务信息，检查本节点，确定进程数和各并行度，等待节点 0，启动 torchrun；随后监管所有进程，保存全部输出，并给出一个结论。",
    ),
    (
        "run",
        "启动任务在本节点上的部分（不写子命令时也是如此）",
        "读取平台给出的任务信息，检查本节点，清理以前运行的残留进程，等待节点 0，运行启动引擎；随后监管所有进程，保存全部输出，并给出一个结论。",
    ),
    ("plan", "显示 run 会做什么以及原因；不做任何改动", ""),
    (
        "check",
        "检查本节点及其网络；不启动任何程序",
        "检查 GPU、资源限制、网络、RDMA、Python 和存储，并逐项说明启动时会失败、警告还是通过。退出码为第一个失败检查项的退出码。",
    ),
    (
        "clean",
        "只结束以前运行残留的进程",
        "结束确认为残留的进程：带有 ranklaunch 任务标记而其 agent 已经退出的进程，以及脚本、用户、容器均相同而启动器已经退出的 rank。--stale force 会结束该脚本、用户和容器的所有进程，包括启动器。",
    ),
    ("wait", "只等待 HOST:PORT 可以连接", ""),
    (
        "init",
        "作为容器的 init 运行任意命令，不留下任何进程",
        "转发信号，回收孤儿进程，移交终端，并返回命令的退出码（126 和 127 与 shell 相同，信号 n 为 128 + n）。命令的遗留进程先收到 TERM，宽限期过后收到 KILL。没有配置，也没有 agent。第一次中断至少 1 秒之后的第二次中断等同于 KILL。",
    ),
    (
        "lint",
        "找出清单、启动脚本与 Compose 文件中运行时才会暴露的错误",
        "读取 shell 脚本、sbatch 文件、Compose 文件，以及 Pod、Job、PyTorchJob、HyperPodPyTorchJob、TrainJob、MPIJob、RayJob、Volcano Job、KubeBrain TrainingJob、JobSet、LeaderWorkerSet 和 Pod 模板，以及其命令中的启动器。发现问题时退出码为 1（无法读取的部分会列出，但不计入），清单不是 YAML 时为 64。",
    ),
    (
        "adopt",
        "逐行说明用什么取代现有的启动脚本或启动器命令，以及原因",
        "读取 shell 脚本、sbatch 文件、Kubernetes 清单、Compose 文件，以及 -- 之后的 torchrun、accelerate、deepspeed、mpirun、srun 或 python -m torch.distributed.launch 命令。输出取代它们的配置文件或 ranklaunch 命令，并说明输入的每一行是被替换、保留、不再需要、有误，还是未能理解。不运行也不修改任何内容。",
    ),
    (
        "checkpoint",
        "列出目录下的检查点，并指出哪些是完整的",
        "支持 torch.save 文件、torch.distributed.checkpoint、safetensors、transformers 的 Trainer、accelerate、DeepSpeed、Lightning、Megatron 与 NeMo。只读取文件名、大小、文件头和索引，不读取权重；不执行也不修改任何内容。会说明缺少什么：缺失、被截断、全为零或尚未重命名的文件，或某个 rank 的部分。",
    ),
    (
        "explain",
        "从日志中找出失败的根本原因，或解释 ID 与退出码",
        "文件、日志目录或 -（标准输入）会作为同一任务的日志读取，无论任务由什么启动：torchrun、accelerate、Ray、Slurm、kubectl logs、kubectl describe；也支持 gzip 与 zstd。每个检查项、拒绝启动、警告、结束原因和 lint 规则都有 ID，显示在消息中退出码之后的括号里。不带参数时列出本程序的全部 ID。",
    ),
    (
        "stacks",
        "显示正在运行的任务在所有节点上各 rank 的 Python 栈",
        "栈相同的 rank 归为一组，成员最少的组排在最前。各 rank 照常运行：不附加、不暂停、不发送信号，Python 中也无需安装任何包。支持 CPython 3.8 至 3.15；其他进程显示内核状态。请在任务的容器中以其用户或 root 运行。",
    ),
    (
        "top",
        "实时查看任务在所有节点上的状态：rank、GPU、日志、调用栈",
        "显示每个 rank 的状态、CPU、内存与 GPU，每个节点的频率、功耗与流量，各 rank 的最后一行输出及其时间、重启次数和发现的问题。可跟随某个 rank 的日志，查看其调用栈，以及计划及其理由。只读：退出或杀掉它都不影响任务。按 ? 显示按键。",
    ),
    ("ps", "列出此处正在运行的任务及其全部节点", ""),
    (
        "nodes",
        "列出最近七天发生过故障的节点",
        "启动器把它们记录在日志旁边：失联的节点，以及故障表明需要换节点的节点。使用 --spares 的任务会优先选用备用节点。不会排空节点，也不删除任何内容。",
    ),
    (
        "logs",
        "按时间顺序输出一次运行中所有 rank 的输出",
        "任务正在运行时涵盖其所有节点；已结束的运行取自其日志目录。不写 RUN 时，为此处正在运行的任务，有多个时为当前目录中的那个，否则为日志目录中最新的一次运行。",
    ),
    (
        "dump",
        "将正在运行的任务的证据写入目录，用于报告问题",
        "涵盖所有节点：调用栈、torch 的飞行记录、计划、日志记录、各 rank 的最后若干行输出，以及内核给出的状态。敏感信息会被隐去。各 rank 照常运行。可用 ranklaunch explain DIR 读取其中的飞行记录。请在任务的容器中以其用户或 root 运行。",
    ),
    (
        "report",
        "为已结束或中断的运行写出报告",
        "取自日志目录：一个 HTML 文件，包含全部内容，不发出任何请求：结论与日志中的相关行、时间线、利用率、计划及其理由、检查结果，以及时间去向。每次运行都会自行写出：run.json 旁的 report.html，以及节点 0 上运行目录中的整个任务的报告。本命令用于被杀死的运行，或由拷贝到一处的多个节点的目录生成报告。",
    ),
    ("compare", "显示两次运行的差异：结果、计划、环境变量等", ""),
    ("profile", "列出、显示、新建或检查配置文件", ""),
    ("profile list", "列出 --profile 在此处能找到的配置文件及其位置", ""),
    (
        "profile show",
        "输出一个配置文件，以便阅读或修改：ranklaunch profile show taehv > ranklaunch.toml",
        "",
    ),
    ("profile new", "输出自建配置文件的开头几行", ""),
    ("profile check", "按 run 的方式读取配置文件，显示其内容或指出问题", ""),
    (
        "install",
        "将本程序复制到目录中，用于没有 cp 的镜像",
        "用于 init 容器，把可执行文件放到 Pod 的卷中。文件名为 ranklaunch，写入是原子的，会替换旧文件。",
    ),
    ("completions", "输出 shell 的补全脚本", ""),
    ("man", "输出手册页（troff）", ""),
    ("help", "说明子命令或主题，例如 layout 或 hangs", "不带参数时列出全部子命令和主题。"),
];

pub(super) const HEADINGS: &[(&str, &str)] = &[
    (options::COMMON, "常用选项"),
    (options::PROGRAM, "程序"),
    (options::PYTHON, "Python 与环境"),
    (options::NODES, "节点"),
    (options::LAYOUT, "进程与布局"),
    (options::CHECKS, "检查与残留进程"),
    (options::RESTARTS, "卡死、重启与停止"),
    (options::LOGS, "日志与控制台"),
    (options::STATUS, "供其他程序读取的状态"),
    (options::MESSAGES, "语言与问题报告"),
];

const AFTER: &str = "ranklaunch --help 显示全部选项，ranklaunch help 列出主题。";

const AFTER_LONG: &str = "每个选项同时也是变量：--master-port 对应 RANKLAUNCH_MASTER_PORT。命令行选项优先于变量，变量优先于配置文件，配置文件优先于平台给出的信息。\n\n示例：";

/// clap's own words, in the order of appearance.
const OF_CLAP: &[(&str, &str)] = &[
    ("Usage: ", "用法："),
    ("\n       ranklaunch", "\n      ranklaunch"),
    ("[OPTIONS]", "[选项]"),
    ("<COMMAND>", "<子命令>"),
    ("[COMMAND]", "[子命令]"),
    ("\nCommands:\n", "\n子命令：\n"),
    ("\nArguments:\n", "\n参数：\n"),
    ("\nOptions:\n", "\n选项：\n"),
    ("[default: ", "[默认："),
    ("[possible values: ", "[可选值："),
    ("Possible values:", "可选值："),
    ("Print help (see a summary with '-h')", "显示帮助（-h 为简略版）"),
    ("Print help (see more with '--help')", "显示帮助（--help 为完整版）"),
    ("Print help (see a summary with \\*(Aq\\-h\\*(Aq)", "显示帮助（\\-h 为简略版）"),
    ("Print help", "显示帮助"),
    ("Print version", "显示版本"),
];

const OF_MAN: &[(&str, &str)] = &[
    (".SH NAME\n", ".SH 名称\n"),
    (".SH OPTIONS\n", ".SH 选项\n"),
    (".SH VERSION\n", ".SH 版本\n"),
];

/// The definition with Chinese texts. For help the lines are wrapped at `wide` columns, since
/// clap wraps only at blanks.
pub(super) fn command(line: Command, wide: Option<usize>) -> Command {
    let examples = line.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let examples = examples.split_once("Examples:").map_or("", |(_, examples)| examples);
    let long = format!("{}{examples}", broken(AFTER_LONG, wide));
    described(line, "", wide).after_help(AFTER).after_long_help(long)
}

fn described(command: Command, path: &str, wide: Option<usize>) -> Command {
    let command = match COMMANDS.iter().find(|(name, ..)| *name == path) {
        Some((_, about, "")) => command.about(*about),
        Some((_, about, more)) => {
            let long = format!("{about}\n\n{}", broken(more, wide));
            command.about(*about).long_about(long)
        }
        None => command,
    };
    // In the help of these every option has lines of its own anyway, and commands fit beside their names.
    let below = !launches(&command);
    command.next_line_help(below).mut_args(|arg| argument(arg, path, wide)).mut_subcommands(
        |below| {
            let path = format!("{path} {}", below.get_name());
            described(below, path.trim_start(), wide)
        },
    )
}

fn argument(arg: Arg, path: &str, wide: Option<usize>) -> Arg {
    let arg = match arg.get_help_heading().and_then(heading) {
        Some(heading) => arg.help_heading(heading),
        None => arg,
    };
    let Some(text) = text_of(path, arg.get_id().as_str()) else { return arg };
    match text.split_once("\n\n") {
        Some((first, _)) => arg.help(broken(first, wide)).long_help(broken(text, wide)),
        None => arg.help(broken(text, wide)),
    }
}

pub(super) fn heading(english: &str) -> Option<&'static str> {
    HEADINGS.iter().find(|(known, _)| *known == english).map(|(_, heading)| *heading)
}

pub(super) fn text_of(path: &str, id: &str) -> Option<&'static str> {
    let own = format!("{path}.{id}");
    let of = |key: &str| OPTIONS.iter().find(|(known, _)| *known == key).map(|(_, text)| *text);
    of(&own).or_else(|| of(id))
}

/// clap's output, with its own words in Chinese.
pub(super) fn help(rendered: &str) -> String {
    let translated = replaced(rendered, OF_CLAP);
    // clap puts its own colon behind a heading.
    HEADINGS.iter().fold(translated, |text, (_, heading)| {
        text.replace(&format!("\n{heading}:\n"), &format!("\n{heading}：\n"))
    })
}

/// In a folder of Chinese pages man loads groff's zh.tmac, whose rule for breaks between letters makes
/// groff 1.22 loop for ever over a long synopsis.
const NO_CJK_BREAKS: &str = r".if d locale .if '\*[locale]'chinese' .cflags 0 \C'[CJKnormal]'";

/// The same for the manual page.
pub(super) fn man(page: &str) -> String {
    let page = replaced(&replaced(page, OF_MAN), OF_CLAP);
    page.replacen("\n.SH ", &format!("\n{NO_CJK_BREAKS}\n.SH "), 1)
}

fn replaced(text: &str, words: &[(&str, &str)]) -> String {
    words.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Wraps text at `wide` columns.
fn broken(text: &str, wide: Option<usize>) -> String {
    let mut out = String::new();
    text.split('\n').for_each(|line| fold(&mut out, line, 0, wide));
    out.truncate(out.len() - 1);
    out
}
