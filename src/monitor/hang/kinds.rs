//! The kinds of hangs. Their names are a contract: run.json, agent.jsonl and alerts contain them.

use serde::{Serialize, Serializer};

use text::lang::Text;
use text::text;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Ended,
    Stopped,
    BlockedIo,
    WorkerDied,
    Deadlock,
    OtherCollective,
    OtherShape,
    NeverEntered,
    Link,
    /// The rank is at work. This is no hang.
    Slow,
    Unknown,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Ended => "ended",
            Kind::Stopped => "stopped",
            Kind::BlockedIo => "blocked_io",
            Kind::WorkerDied => "worker_died",
            Kind::Deadlock => "deadlock",
            Kind::OtherCollective => "other_collective",
            Kind::OtherShape => "other_shape",
            Kind::NeverEntered => "never_entered",
            Kind::Link => "link",
            Kind::Slow => "slow",
            Kind::Unknown => "unknown",
        }
    }

    pub fn hint(self) -> Text {
        match self {
            Kind::Ended => text!(
                "every rank must take part in every collective: give all ranks equally many batches (drop_last, a DistributedSampler, join()), or end all of them together",
                "每个 rank 都必须参与每一次集合通信：让各 rank 的 batch 数相同（drop_last、DistributedSampler、join()），或让它们一起结束"
            ),
            Kind::Stopped => text!(
                "find who stopped it: kill -CONT continues it",
                "请查明是谁暂停了它：kill -CONT 可使其继续"
            ),
            Kind::BlockedIo => text!(
                "look at that file system and its server (mount, dmesg, nfsstat); the rank cannot be killed before it answers",
                "请检查该文件系统及其服务端（mount、dmesg、nfsstat）；在其应答之前该 rank 无法被终止"
            ),
            Kind::WorkerDied => text!(
                "find what ended that worker: the memory limit, a small /dev/shm, or its own exit; num_workers=0 shows its exception",
                "请查明该 worker 为何结束：内存限制、/dev/shm 过小，或自行退出；num_workers=0 可看到其异常"
            ),
            Kind::Deadlock => text!(
                "take locks, and call the collectives of different groups, in the same order everywhere; release a lock before a wait; give each receive its send",
                "各处应以相同顺序获取锁、调用不同通信组的集合通信；等待之前先释放锁；每次接收都应有对应的发送"
            ),
            Kind::OtherCollective => text!(
                "all ranks must call the same collectives in the same order: look for a branch on the rank, on the data or on an exception",
                "所有 rank 必须以相同顺序调用相同的集合通信：请检查依赖 rank、数据或异常的分支"
            ),
            Kind::OtherShape => text!(
                "all ranks must pass tensors of the same size and type: pad the last batch, or gather the sizes first",
                "所有 rank 必须传入大小和类型相同的张量：请填充最后一个 batch，或先交换大小"
            ),
            Kind::NeverEntered => text!(
                "look at that line: what does it wait for on this rank alone?",
                "请查看该行代码：它为何只在这个 rank 上等待？"
            ),
            Kind::Link => text!(
                "look at the network between these nodes: ranklaunch check on all of them at once, error counters of the HCAs, a firewall that forgets idle connections",
                "请检查这些节点之间的网络：在所有节点上同时执行 ranklaunch check、HCA 错误计数、会丢弃空闲连接的防火墙"
            ),
            Kind::Slow => text!(
                "collectives that wait longer than their timeout fail; where that line takes so long for no good reason, look at it: ranklaunch stacks",
                "集合通信的等待一旦超过其超时时间就会失败；若该行代码不应耗时这么久，请检查该处：ranklaunch stacks"
            ),
            Kind::Unknown => text!(
                "look at the stacks of all ranks: ranklaunch stacks",
                "请查看所有 rank 的调用栈：ranklaunch stacks"
            ),
        }
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    const ALL: [Kind; 11] = [
        Kind::Ended,
        Kind::Stopped,
        Kind::BlockedIo,
        Kind::WorkerDied,
        Kind::Deadlock,
        Kind::OtherCollective,
        Kind::OtherShape,
        Kind::NeverEntered,
        Kind::Link,
        Kind::Slow,
        Kind::Unknown,
    ];

    #[test]
    fn commands_in_hints_can_be_parsed() {
        let mut typed = 0;
        for Text { en, zh } in ALL.map(Kind::hint) {
            for command in
                [&*en, &*zh].into_iter().flat_map(|hint| hint.split("ranklaunch ").skip(1))
            {
                let part = command.split([',', ';', '、', '，', '；']).next().unwrap_or_default();
                let mut words = part.split(' ');
                let subcommand = words.next().into_iter();
                let options = words.take_while(|word| word.starts_with("--"));
                let line = ["ranklaunch"].into_iter().chain(subcommand).chain(options);
                let parsed = settings::cli::Command::parse(line.map(OsString::from));
                assert!(parsed.is_ok(), "{part}: {parsed:?}");
                typed += 1;
            }
        }
        assert!(typed > 2, "{typed}");
    }
}
