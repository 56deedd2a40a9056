//! What a checkpoint lacks, in words.

use std::collections::BTreeSet;

use text::lang::Text;
use text::order::InOrder;
use text::text;

/// A part that is not there, or not whole. Names are those of files below the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Lack {
    /// A file that belongs to it.
    Missing(String),
    Empty(String),
    /// A file that begins with zeros: its content never reached the disk.
    Zeros(String),
    /// A file that ends before its own index or its metadata says.
    Short {
        file: String,
        has: u64,
        needs: u64,
    },
    /// A file with more bytes than its own index says, which its reader refuses.
    Long {
        file: String,
        has: u64,
        needs: u64,
    },
    /// The end of a zip file or of a pickle.
    Cut(String),
    /// A record of a zip file that its own objects name: an exception ended the save.
    Record {
        file: String,
        record: String,
    },
    Damaged(String),
    Unread {
        file: String,
        error: String,
    },
    /// A temporary name: the last rename did not happen.
    NotRenamed(String),
    /// Files of these ranks or parts, by number.
    Parts(Vec<u32>),
    /// The writer names its last whole checkpoint in this file, and it is another one.
    NotNamed {
        file: String,
        names: String,
    },
    /// Its writer leaves no mark by which the end of the file could be known.
    NoEnd(String),
    /// An index that lists nothing.
    Nothing(String),
    /// An index of so many bytes, more than are read.
    Large {
        file: String,
        has: u64,
        most: u64,
    },
}

impl Lack {
    /// The same of files in a folder of this name.
    pub(crate) fn within(mut self, folder: &str) -> Lack {
        match &mut self {
            Lack::Missing(file)
            | Lack::Empty(file)
            | Lack::Zeros(file)
            | Lack::Short { file, .. }
            | Lack::Long { file, .. }
            | Lack::Cut(file)
            | Lack::Record { file, .. }
            | Lack::Damaged(file)
            | Lack::Unread { file, .. }
            | Lack::NotRenamed(file)
            | Lack::NotNamed { file, .. }
            | Lack::NoEnd(file)
            | Lack::Nothing(file)
            | Lack::Large { file, .. } => *file = format!("{folder}/{file}"),
            Lack::Parts(_) => {}
        }
        self
    }

    pub fn words(&self) -> Text {
        match self {
            Lack::Missing(file) => text!("{file} is missing", "缺少 {file}"),
            Lack::Empty(file) => text!("{file} is empty", "{file} 是空文件"),
            Lack::Zeros(file) => text!(
                "{file} holds zeros: its content did not reach the disk",
                "{file} 内容全为零：数据未写入磁盘"
            ),
            Lack::Short { file, has, needs } => text!(
                "{file} ends after {has} of {needs} bytes",
                "{file} 只有 {has} 字节，应有 {needs} 字节"
            ),
            Lack::Long { file, has, needs } => text!(
                "{file} has {has} bytes and should have {needs}: it was written over another file",
                "{file} 有 {has} 字节，应有 {needs} 字节：覆盖写入了另一个文件"
            ),
            Lack::Cut(file) => text!("{file} is cut off", "{file} 被截断"),
            Lack::Record { file, record } => text!(
                "{file} lacks its record {record}: its save ended early",
                "{file} 缺少记录 {record}：保存中途终止"
            ),
            Lack::Damaged(file) => text!("{file} is damaged", "{file} 已损坏"),
            Lack::Unread { file, error } => {
                text!("{file} cannot be read: {error}", "无法读取 {file}：{error}")
            }
            Lack::NotRenamed(file) => {
                text!(
                    "{file} is still there: it was being written or deleted",
                    "{file} 仍在：尚未写完或未删完"
                )
            }
            Lack::Parts(parts) => {
                let parts = text::ranges::listed(parts.iter().copied(), '-');
                text!("the files of parts {parts} are missing", "缺少第 {parts} 部分的文件")
            }
            Lack::NotNamed { file, names } => text!(
                "{file} names {names}: it was not finished",
                "{file} 记录的是 {names}：该检查点未写完"
            ),
            Lack::NoEnd(file) => text!(
                "{file} is of a format without a mark at its end, so nobody can see whether it is whole",
                "{file} 的格式没有结束标记，无法判断是否完整"
            ),
            Lack::Nothing(file) => text!(
                "{file} lists no file: nothing was saved",
                "{file} 未列出任何文件：没有保存任何内容"
            ),
            Lack::Large { file, has, most } => text!(
                "{file} has {has} bytes, at most {most} are read, so nobody can see whether it is whole; save in fewer items or parts",
                "{file} 有 {has} 字节，最多读取 {most} 字节，无法判断是否完整；请减少保存的条目或分片"
            ),
        }
    }
}

/// The parts that are missing below the highest one.
pub(crate) fn gaps(numbers: Vec<u32>, least: u32) -> Vec<Lack> {
    first_gaps(numbers, 0, least, 4096)
}

/// So many of them, counted from `first` on.
pub(crate) fn first_gaps(numbers: Vec<u32>, first: u32, least: u32, most: usize) -> Vec<Lack> {
    let numbers: BTreeSet<u32> = numbers.into_iter().in_set();
    let count = numbers.last().map_or(0, |last| last.saturating_add(1)).max(least);
    let missing: Vec<u32> =
        (first..count).filter(|one| !numbers.contains(one)).take(most).collect();
    if missing.is_empty() { Vec::new() } else { vec![Lack::Parts(missing)] }
}
