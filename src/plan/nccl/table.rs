//! The table of NCCL settings without effect or with harm.
//!
//! Add a row for another variable. Sources: nccl src/misc/{socket,param}.cc,
//! src/transport/net_ib, docs/userguide/source/env.rst.

/// The condition under which a row of the table applies to a value.
pub(super) enum When {
    Always,
    NotEmpty,
    Is(&'static str),
    /// Only where the node has RDMA devices that can be opened.
    IsWithHcas(&'static str),
    /// A number in place of a word.
    Number,
    OtherThan(&'static [&'static str]),
    /// `^` or `=` inside the list, where they become part of a name.
    InnerMark,
    /// White space, which becomes a part of the name.
    Blank,
    /// More items than NCCL reads.
    LongerThan(usize),
    /// One of these values, in a job of this many ranks or more.
    InLargeJob(&'static [&'static str], u32),
    /// Neither a number nor exactly one of these words.
    UnknownWord(&'static [&'static str]),
    /// A number outside of this range.
    Outside(std::ops::RangeInclusive<u32>),
    /// The value has a colon.
    Colon,
    /// A file that every rank of a node would write, since its name is the same for all.
    SharedFile,
    /// The value names a missing file, or a file in a missing folder.
    NoSuchFile,
}

pub(super) struct NcclRow {
    /// Separated by blanks.
    pub(super) names: &'static str,
    pub(super) when: When,
    /// The effect, and what to do instead, in both languages.
    pub(super) effect: (&'static str, &'static str),
    pub(super) advice: (&'static str, &'static str),
}

const fn row(
    names: &'static str,
    when: When,
    effect: (&'static str, &'static str),
    advice: (&'static str, &'static str),
) -> NcclRow {
    NcclRow { names, when, effect, advice }
}

const NEVER_EXISTED: (&str, &str) = (
    "is not a variable of NCCL or PyTorch and does nothing",
    "不是 NCCL 或 PyTorch 的变量，不起作用",
);
const REMOVED: (&str, &str) =
    ("is no longer read by NCCL and does nothing", "NCCL 已不再读取，不起作用");
const RENAMED: (&str, &str) = ("is an old name", "是旧名称");
const SLOW: (&str, &str) = (
    "turns a fast path off, usually a leftover of debugging",
    "关闭了一条快速通路，通常是调试后的遗留",
);
const BLANK: (&str, &str) =
    ("has white space, which becomes a part of the name", "含有空白，会被当作名称的一部分");
const NO_BLANKS: (&str, &str) = ("write the list without blanks: a,b", "列表中不要有空白：a,b");
const UNKNOWN_WORD: (&str, &str) =
    ("is no level that NCCL knows, and is ignored", "不是 NCCL 认识的级别，会被忽略");
const TOOL: (&str, &str) = (
    "loads or starts a debugging tool in every rank, usually a leftover",
    "会在每个进程中启用调试工具，通常是遗留设置",
);
/// nccl src/graph/topo.cc, topoPathTypeStr; capitals only.
const PATHS: &[&str] =
    &["LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NET", "DIS"];
const ABSENT: (&str, &str) = ("names a file that does not exist", "指向不存在的文件");
const REMOVE: (&str, &str) = ("remove it", "请删除");
const TIMEOUT: (&str, &str) = (
    "set the timeout in the script: init_process_group(timeout=…)",
    "请在脚本中设置超时：init_process_group(timeout=…)",
);
const TORCH_NAME: (&str, &str) =
    ("the name today begins with TORCH_NCCL_", "现名以 TORCH_NCCL_ 开头");

pub(super) const TABLE: &[NcclRow] = &[
    row("NCCL_TIMEOUT TORCH_DISTRIBUTED_TIMEOUT", When::Always, NEVER_EXISTED, TIMEOUT),
    row(
        "NCCL_NSOCKS",
        When::Always,
        NEVER_EXISTED,
        ("NCCL_NSOCKS_PERTHREAD is meant", "应为 NCCL_NSOCKS_PERTHREAD"),
    ),
    row("NCCL_TEMP_DIR", When::Always, NEVER_EXISTED, REMOVE),
    row(
        "NCCL_MIN_NRINGS",
        When::Always,
        RENAMED,
        ("use NCCL_MIN_CTAS, or leave it to NCCL", "请改用 NCCL_MIN_CTAS，或交由 NCCL 决定"),
    ),
    row(
        "NCCL_MAX_NRINGS",
        When::Always,
        RENAMED,
        ("use NCCL_MAX_CTAS, or leave it to NCCL", "请改用 NCCL_MAX_CTAS，或交由 NCCL 决定"),
    ),
    row(
        "NCCL_IB_GDR_LEVEL",
        When::Always,
        REMOVED,
        ("since 2.4 it is NCCL_NET_GDR_LEVEL", "自 2.4 起为 NCCL_NET_GDR_LEVEL"),
    ),
    row(
        "NCCL_IB_CUDA_SUPPORT NCCL_TREE_THRESHOLD NCCL_SINGLE_RING_THRESHOLD \
         NCCL_LL_THRESHOLD NCCL_CHECKS_DISABLE",
        When::Always,
        REMOVED,
        REMOVE,
    ),
    row(
        "NCCL_ASYNC_ERROR_HANDLING NCCL_BLOCKING_WAIT NCCL_DESYNC_DEBUG NCCL_ENABLE_TIMING",
        When::Always,
        RENAMED,
        TORCH_NAME,
    ),
    row(
        "NCCL_SOCKET_FAMILY",
        When::OtherThan(&["AF_INET", "AF_INET6"]),
        (
            "is ignored, since only AF_INET and AF_INET6 are known",
            "会被忽略，NCCL 只识别 AF_INET 与 AF_INET6",
        ),
        ("use AF_INET or AF_INET6", "请使用 AF_INET 或 AF_INET6"),
    ),
    row(
        "NCCL_SOCKET_IFNAME",
        When::InnerMark,
        (
            "has ^ or = inside the list, where it becomes part of a name",
            "列表中间的 ^ 或 = 会被当作名称的一部分",
        ),
        ("write the mark once, at the front: ^=a,b", "标记只写一次，放在最前：^=a,b"),
    ),
    row(
        "NCCL_IB_HCA",
        When::InnerMark,
        (
            "has ^ or = inside the list, where it becomes part of a name",
            "列表中间的 ^ 或 = 会被当作名称的一部分",
        ),
        ("write the mark once, at the front: =a,b", "标记只写一次，放在最前：=a,b"),
    ),
    row(
        "NCCL_IB_DISABLE",
        When::IsWithHcas("1"),
        (
            "turns RoCE off as well as InfiniBand, and this node has usable RDMA devices",
            "会同时关闭 RoCE 与 InfiniBand，而本节点有可用的 RDMA 设备",
        ),
        ("remove it unless sockets are meant", "除非确实要用以太网 socket，否则请删除"),
    ),
    row(
        "NCCL_NET",
        When::IsWithHcas("Socket"),
        SLOW,
        ("remove it unless sockets are meant", "除非确实要用以太网 socket，否则请删除"),
    ),
    row("NCCL_P2P_DISABLE", When::Is("1"), SLOW, ("remove it", "请删除")),
    row(
        "NCCL_SHM_DISABLE",
        When::Is("1"),
        SLOW,
        ("remove it; give /dev/shm more room instead", "请删除，并改为增大 /dev/shm"),
    ),
    row(
        "NCCL_IB_GID_INDEX",
        When::Number,
        (
            "fixes a table position, which can differ between pods and between hosts",
            "固定了 GID 表下标，而它在各 Pod、各宿主机上可能不同",
        ),
        ("remove it: NCCL finds the GID itself since 2.21", "请删除：NCCL 自 2.21 起自行查找 GID"),
    ),
    row(
        "NCCL_P2P_LEVEL NCCL_NET_GDR_LEVEL",
        When::Number,
        ("is a number whose meaning changed between versions", "为数字，其含义随版本变化"),
        ("use a word: LOC, PIX, PXB, PHB, SYS", "请使用单词：LOC、PIX、PXB、PHB、SYS"),
    ),
    row(
        "NCCL_COMM_ID",
        When::Always,
        (
            "makes bootstrap demand an interface in that subnet; PyTorch passes the id through its own store",
            "会使引导过程强制要求该网段的网卡，而 PyTorch 通过自身的 store 传递该标识",
        ),
        REMOVE,
    ),
    row(
        "NCCL_LAUNCH_MODE",
        When::Is("GROUP"),
        ("is deprecated since NCCL 2.9", "自 NCCL 2.9 起已弃用"),
        REMOVE,
    ),
    row(
        "NCCL_CHECK_POINTERS",
        When::Always,
        RENAMED,
        ("since 2.29.7 it is NCCL_CHECK_MODE", "自 2.29.7 起为 NCCL_CHECK_MODE"),
    ),
    row(
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        When::Is("0"),
        (
            "leaves the other ranks hanging after an error of one",
            "会使某个进程出错后其余进程一直挂起",
        ),
        REMOVE,
    ),
    row(
        "CUDA_LAUNCH_BLOCKING",
        When::Is("1"),
        (
            "makes every kernel wait for the one before, usually a leftover of debugging",
            "使每个核函数等待前一个完成，通常是调试后的遗留",
        ),
        REMOVE,
    ),
    row(
        "NCCL_P2P_LEVEL",
        When::UnknownWord(PATHS),
        UNKNOWN_WORD,
        ("use one of LOC, NVL, PIX, PXB, PHB, SYS", "请使用 LOC、NVL、PIX、PXB、PHB、SYS 之一"),
    ),
    row(
        "NCCL_NET_GDR_LEVEL",
        When::UnknownWord(PATHS),
        UNKNOWN_WORD,
        ("use one of LOC, PIX, PXB, PHB, SYS", "请使用 LOC、PIX、PXB、PHB、SYS 之一"),
    ),
    row(
        "NCCL_IB_TIMEOUT",
        When::Outside(1..=31),
        ("makes an HCA wait for ever for a peer that is gone", "会使 HCA 无限期等待已消失的对端"),
        (
            "use 1 to 31; each step doubles, and 20 is the default",
            "请使用 1 到 31；每加一翻倍，默认 20",
        ),
    ),
    row(
        "NCCL_SOCKET_IFNAME",
        When::Colon,
        (
            "has a colon, and NCCL takes what follows it for a port: the label of an address is lost",
            "含有冒号，NCCL 会将其后内容当作端口：地址标签丢失",
        ),
        ("name the interface itself: eth0, not eth0:1", "请写网卡本身：eth0，而非 eth0:1"),
    ),
    row("CUDA_INJECTION64_PATH CUDA_INJECTION32_PATH", When::NotEmpty, TOOL, REMOVE),
    row("CUDA_PROFILE COMPUTE_PROFILE CUDA_DEVICE_WAITS_ON_EXCEPTION", When::Is("1"), TOOL, REMOVE),
    row(
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
        When::Is("1"),
        (
            "writes the memory of each failed GPU to a file, which takes minutes and tens of gigabytes",
            "会在 GPU 出错时将其内存写入文件，耗时数分钟、占用数十 GB",
        ),
        REMOVE,
    ),
    row("NCCL_SOCKET_IFNAME NCCL_IB_HCA GLOO_SOCKET_IFNAME", When::Blank, BLANK, NO_BLANKS),
    row(
        "NCCL_SOCKET_IFNAME",
        When::LongerThan(16),
        (
            "has more than 16 items, and NCCL reads the first 16",
            "超过 16 项，而 NCCL 只读取前 16 项",
        ),
        ("shorten the list", "请缩短列表"),
    ),
    row(
        "NCCL_IB_HCA",
        When::LongerThan(32),
        (
            "has more than 32 items, and NCCL reads the first 32",
            "超过 32 项，而 NCCL 只读取前 32 项",
        ),
        ("shorten the list", "请缩短列表"),
    ),
    row(
        "NCCL_DEBUG",
        When::InLargeJob(&["INFO", "TRACE", "info", "trace"], 64),
        (
            "writes thousands of lines per rank in a job of this size",
            "在此规模的任务中每个进程会输出数千行",
        ),
        (
            "use WARN, or send it to files with NCCL_DEBUG_FILE",
            "请使用 WARN，或用 NCCL_DEBUG_FILE 写入文件",
        ),
    ),
    row("NCCL_TOPO_FILE NCCL_GRAPH_FILE NCCL_CONF_FILE", When::NoSuchFile, ABSENT, REMOVE),
    row(
        "NCCL_DEBUG_FILE",
        When::NoSuchFile,
        (
            "names a folder that does not exist, and NCCL makes none",
            "所在目录不存在，而 NCCL 不会创建",
        ),
        ("make the folder, or remove the variable", "请创建该目录，或删除该变量"),
    ),
    row(
        "NCCL_DEBUG_FILE",
        When::SharedFile,
        (
            "is one file for all ranks of a node, each of which empties it at its start",
            "是同一节点所有进程共用的文件，每个进程启动时都会将其清空",
        ),
        ("tell them apart: /path/nccl.%h.%p", "请加以区分：/path/nccl.%h.%p"),
    ),
];

/// Names that users set by hand, and so may mistype.
pub(super) const COMMON: &str = "\
    NCCL_ALGO NCCL_BUFFSIZE NCCL_CONF_FILE NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_CUMEM_HOST_ENABLE \
    NCCL_DEBUG NCCL_DEBUG_FILE NCCL_DEBUG_SUBSYS NCCL_IB_ADDR_FAMILY NCCL_IB_ADDR_RANGE \
    NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_QPS_PER_CONNECTION NCCL_IB_RETRY_CNT \
    NCCL_IB_TIMEOUT NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS NCCL_NET \
    NCCL_NET_GDR_LEVEL NCCL_NET_GDR_READ NCCL_NET_PLUGIN NCCL_NSOCKS_PERTHREAD NCCL_NTHREADS \
    NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_PROTO NCCL_SHM_DISABLE \
    NCCL_SOCKET_FAMILY NCCL_SOCKET_IFNAME NCCL_SOCKET_NTHREADS NCCL_TOPO_FILE";
