//! The reason why bytes are no readable record, and the entries of ranks, in words.

use super::dump::Unreadable;
use super::judge::Entered;
use super::pickle::PickleFlaw;
use text::lang::Text;
use text::ranges::listed;
use text::text;

impl Unreadable {
    /// The finding, its place, and the allowed values.
    pub fn text(&self) -> Text {
        match self {
            Unreadable::Pickle(flaw) => pickle(flaw),
            Unreadable::Json(error) => text!(
                "as a flight recorder dump it is not valid JSON: {error}",
                "作为 flight recorder 转储，它不是有效的 JSON：{error}"
            ),
            Unreadable::Shape { field, found, allowed } if found.is_empty() => text!(
                "it is not a flight recorder dump: `{field}` is missing (expected: {allowed})",
                "不是 flight recorder 转储：缺少 `{field}`（应为 {allowed}）"
            ),
            Unreadable::Shape { field: "", found, allowed } => text!(
                "it is not a flight recorder dump: it is {found}, not {allowed}",
                "不是 flight recorder 转储：内容是 {found}，而不是 {allowed}"
            ),
            Unreadable::Shape { field, found, allowed } => text!(
                "it is not a flight recorder dump that is known here: `{field}` is {found}, allowed: {allowed}",
                "无法识别的 flight recorder 转储：`{field}` 为 {found}，允许的值：{allowed}"
            ),
        }
    }
}

impl Entered {
    /// `rank 0 entered barrier, rank 1 all_reduce [4] Float`, for sides without an odd one.
    pub fn sides(sides: &[(Vec<u32>, String)]) -> Text {
        let (mut en, mut zh) = (Vec::new(), Vec::new());
        for (ranks, shown) in sides {
            let list = listed(ranks.iter().copied(), '-');
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            let verb = if en.is_empty() { "entered " } else { "" };
            en.push(format!("{noun} {list} {verb}{shown}"));
            zh.push(format!("rank {list} 进入了 {shown}"));
        }
        Text::new(en.join(", "), zh.join("，"))
    }
}

fn pickle(flaw: &PickleFlaw) -> Text {
    match flaw {
        PickleFlaw::Cut { offset } => text!(
            "the pickle is cut off or damaged at byte {offset}; torch may still have been writing it",
            "pickle 在第 {offset} 字节处被截断或损坏；torch 可能尚未写完"
        ),
        PickleFlaw::Refused { opcode, name, offset } => {
            let shown = if name.is_empty() {
                format!("0x{opcode:02x}")
            } else {
                format!("{name} (0x{opcode:02x})")
            };
            text!(
                "the pickle holds the opcode {shown} at byte {offset}; only plain values are read and nothing is executed, and a flight recorder dump holds nothing else",
                "pickle 在第 {offset} 字节处含有操作码 {shown}；这里只读取普通值，不执行任何代码，而 flight recorder 转储只含普通值"
            )
        }
        PickleFlaw::Protocol { protocol } => text!(
            "the pickle has protocol {protocol}; 2 to 5 are read",
            "pickle 协议为 {protocol}；支持 2 到 5"
        ),
        PickleFlaw::NotText { offset } => text!(
            "the pickle holds a text at byte {offset} that is not UTF-8",
            "pickle 在第 {offset} 字节处的文本不是 UTF-8"
        ),
        PickleFlaw::More { offset } => text!(
            "the pickle ends at byte {offset}, and more bytes follow",
            "pickle 在第 {offset} 字节处结束，但其后还有内容"
        ),
        PickleFlaw::TooMany => {
            text!("the dump holds more than 8 million values", "转储中的值超过 800 万个")
        }
        PickleFlaw::TooDeep { offset } => text!(
            "the pickle is nested deeper than 256 levels at byte {offset}",
            "pickle 在第 {offset} 字节处的嵌套超过 256 层"
        ),
    }
}
