//! The bytes that may be read ahead for the warmed interpreter, or the reason why nothing is: never beside a job that
//! runs on this node, and never more than a part of the free memory.

use linux::host::Host;
use node::observe::{Facts, Limits};
use plan::devices::IDLE;
use text::lang::{Text, bytes};
use text::text;

/// The part of the free memory that may be filled, as 1/N. The pages can be dropped, but older pages would be dropped
/// with them.
const PART: u64 = 4;
/// Fewer bytes are not worth a process.
const LEAST: u64 = 64 << 20;

/// Bytes that may be read.
///
/// # Errors
/// The reason why nothing is read.
pub(super) fn bound(host: &Host, facts: &Facts) -> Result<u64, Text> {
    let busy = |used: &u64| *used > IDLE;
    let in_use = facts.gpus.gpus.iter().find_map(|gpu| Some((gpu, gpu.memory_used.filter(busy)?)));
    if let Some((gpu, used)) = in_use {
        let (gpu, used) = (gpu.index, bytes(used));
        return Err(text!("GPU {gpu} is in use ({used})", "GPU {gpu} 正在使用中（{used}）"));
    }
    if supervise::have_ranks(&host.read("/proc/self/net/unix").unwrap_or_default()) {
        return Err(text!("another job runs on this node", "本节点上有其他任务正在运行"));
    }
    let Some(free) = Limits::memory_available(host) else {
        return Err(text!(
            "/proc/meminfo does not tell how much memory is free",
            "/proc/meminfo 中没有可用内存大小"
        ));
    };
    let room = Limits::memory_in_use(host).map(|(used, limit)| limit.saturating_sub(used));
    let free = room.map_or(free, |room| room.min(free));
    if free / PART < LEAST {
        let free = bytes(free);
        return Err(text!("only {free} of memory are free", "仅剩 {free} 可用内存"));
    }
    Ok(free / PART)
}

/// The text for `plan`.
pub(super) fn outlook(bound: &Result<u64, Text>) -> Text {
    match bound {
        Ok(bound) => {
            let bound = bytes(*bound);
            text!(
                "files of these modules that are not in the page cache are read ahead, up to {bound}, a quarter of the free memory",
                "这些模块的文件若不在页缓存中则提前读入，最多 {bound}，即可用内存的四分之一"
            )
        }
        Err(Text { en, zh }) => text!("nothing is read ahead: {en}", "不提前读入文件：{zh}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::fixtures::facts;

    fn asked(files: &[(&str, &str)], facts: &Facts) -> Result<u64, String> {
        let (_root, host) = Host::of_files(files);
        bound(&host, facts).map_err(|why| why.en.into_owned())
    }

    const FREE: (&str, &str) = ("proc/meminfo", "MemAvailable:   8388608 kB\n");
    const NO_JOB: (&str, &str) = (
        "proc/self/net/unix",
        "0: 00000002 00000000 00010000 0005 01 4713 @ranklaunch-warm-0123456789abcdef01234567\n\
         0: 00000002 00000000 00010000 0001 01 4711 @ranklaunch-stacks-12-0123456789abcdef01234567\n",
    );

    #[test]
    fn read_ahead_uses_a_quarter_of_free_memory() {
        assert_eq!(asked(&[FREE, NO_JOB], &facts(8)), Ok(2 << 30));
        let group = [
            FREE,
            ("proc/self/cgroup", "0::/pod\n"),
            ("sys/fs/cgroup/pod/memory.max", "4294967296\n"),
            ("sys/fs/cgroup/pod/memory.current", "3221225472\n"),
            // Page cache of which the kernel can take back this much.
            ("sys/fs/cgroup/pod/memory.stat", "anon 0\ninactive_file 1073741824\n"),
        ];
        assert_eq!(asked(&group, &facts(0)), Ok(512 << 20));
        let little = [("proc/meminfo", "MemAvailable:   131072 kB\n")];
        let said = asked(&little, &facts(0)).expect_err("too little");
        assert_eq!(said, "only 128 MiB of memory are free");
        assert!(asked(&[], &facts(0)).is_err());
    }

    #[test]
    fn read_ahead_is_refused_beside_a_running_job() {
        let mut busy = facts(8);
        busy.gpus.gpus[3].memory_used = Some(2 << 30);
        let said = asked(&[FREE], &busy).expect_err("a GPU is in use");
        assert!(said.contains("GPU 3 is in use"), "{said}");
        let ranks = (
            "proc/self/net/unix",
            "0: 00000002 00000000 00010000 0005 01 4713 @ranklaunch-0123456789abcdef01234567\n",
        );
        let said = asked(&[FREE, ranks], &facts(8)).expect_err("ranks");
        assert_eq!(said, "another job runs on this node");
    }
}
