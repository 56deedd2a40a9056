//! Conditions on the solved sizes: `world_size > 1`; and the placeholders, which have the names of the sizes.
//!
//! Takes the text of a profile; gives a checked [`Condition`]. A name, a comparison and a
//! whole number, nothing else: a profile is no program.

use std::fmt;

/// A size of a solved layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedSize {
    WorldSize,
    Nnodes,
    NprocPerNode,
    UlyssesSize,
    RingSize,
}

/// `world_size > 1`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    size: PlannedSize,
    /// A sign of [`COMPARISONS`].
    sign: &'static str,
    number: u32,
}

/// The names of the sizes; placeholders have the same names.
pub(super) const SIZES: [(&str, PlannedSize); 5] = [
    ("world_size", PlannedSize::WorldSize),
    ("nnodes", PlannedSize::Nnodes),
    ("nproc_per_node", PlannedSize::NprocPerNode),
    ("ulysses_size", PlannedSize::UlyssesSize),
    ("ring_size", PlannedSize::RingSize),
];

type Comparison = fn(&u32, &u32) -> bool;

/// The longer signs first, since they begin with the shorter ones; the two signs of equality last.
const COMPARISONS: [(&str, Comparison); 7] = [
    ("<=", PartialOrd::le),
    (">=", PartialOrd::ge),
    ("!=", PartialEq::ne),
    ("<", PartialOrd::lt),
    (">", PartialOrd::gt),
    ("==", PartialEq::eq),
    ("=", PartialEq::eq),
];

impl Condition {
    /// None if the text is no condition.
    pub(super) fn read(text: &str) -> Option<Condition> {
        let text = text.trim();
        let at = text.find(['<', '>', '=', '!'])?;
        let (name, rest) = text.split_at(at);
        let size = SIZES.iter().find(|(known, _)| *known == name.trim())?.1;
        let (sign, _) = COMPARISONS.iter().find(|(sign, _)| rest.starts_with(sign))?;
        let number = rest.strip_prefix(sign)?.trim();
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse().ok().filter(|_| is_number)?;
        let sign = if *sign == "==" { "=" } else { sign };
        Some(Condition { size, sign, number })
    }

    pub fn size(&self) -> PlannedSize {
        self.size
    }

    /// Whether the condition holds for the size `value`.
    pub fn holds(&self, value: u32) -> bool {
        let row = COMPARISONS.iter().find(|(sign, _)| *sign == self.sign);
        row.is_some_and(|(_, holds)| holds(&value, &self.number))
    }
}

impl PlannedSize {
    pub fn name(self) -> &'static str {
        SIZES.iter().find(|(_, size)| *size == self).map_or("", |(name, _)| name)
    }
}

impl fmt::Display for PlannedSize {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} {}", self.size, self.sign, self.number)
    }
}

/// The placeholders of every plan. A `[[select]]` must not use these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placeholder {
    Size(PlannedSize),
    NodeRank,
    /// Known only at the launch, as is the timestamp.
    RunId,
    Timestamp,
    /// The checkpoint from which the program goes on; known only at the launch, as is its step.
    Checkpoint,
    CheckpointStep,
}

impl Placeholder {
    pub fn all() -> impl Iterator<Item = Placeholder> {
        let sizes = SIZES.into_iter().map(|(_, size)| Placeholder::Size(size));
        sizes.chain([
            Placeholder::NodeRank,
            Placeholder::RunId,
            Placeholder::Timestamp,
            Placeholder::Checkpoint,
            Placeholder::CheckpointStep,
        ])
    }

    pub fn name(self) -> &'static str {
        match self {
            Placeholder::Size(size) => size.name(),
            Placeholder::NodeRank => "node_rank",
            Placeholder::RunId => "run_id",
            Placeholder::Timestamp => "timestamp",
            Placeholder::Checkpoint => "checkpoint",
            Placeholder::CheckpointStep => "checkpoint_step",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn condition_has_size_comparison_and_number() {
        // Text, as it is shown, and whether it holds for 1, 2, 3.
        let table = [
            ("world_size > 1", "world_size > 1", [false, true, true]),
            ("nnodes=2", "nnodes = 2", [false, true, false]),
            (" nproc_per_node == 2 ", "nproc_per_node = 2", [false, true, false]),
            ("ulysses_size!=2", "ulysses_size != 2", [true, false, true]),
            ("ring_size <=2", "ring_size <= 2", [true, true, false]),
            ("world_size>= 2", "world_size >= 2", [false, true, true]),
            ("world_size < 2", "world_size < 2", [true, false, false]),
        ];
        for (text, shown, holds) in table {
            let condition = Condition::read(text).expect(text);
            assert_eq!(condition.to_string(), shown);
            assert_eq!([1, 2, 3].map(|value| condition.holds(value)), holds, "{text}");
        }
        for text in [
            "",
            "world_size",
            "> 1",
            "world_size >",
            "world_size > 1.5",
            "world > 1",
            "world_size > -1",
            "world_size > +1",
            "world_size => 1",
            "world_size > 1 && nnodes = 1",
            "world_size > 99999999999",
            "world_size <> 1",
        ] {
            assert_eq!(Condition::read(text), None, "{text}");
        }
    }
}
