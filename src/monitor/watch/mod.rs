//! Watches a running job and its node.
//!
//! Takes the starts and ends of ranks; gives samples of them and of the node, their progress, and the ranks that hold
//! the others back. Runs in threads of its own, so that it never blocks the supervision.

mod awake;
mod connections;
mod control;
mod job_progress;
mod node;
mod progress;
mod pulse;
pub mod ras;
mod recorders;
mod rules;
mod sample;
mod sampler;
mod slow;

pub use awake::Awake;
pub use control::ControlSocket;
pub(crate) use control::asked;
pub use job_progress::{JobProgress, ProgressLines, Reported, StepReports};
pub use node::{GpuUse, NodeSources, Reason, ReasonKind};
pub(crate) use node::{NodeReader, NodeReading, Parts};
pub(crate) use progress::{Progress, Standing};
pub(crate) use pulse::{program, pulse, store_port};
pub use ras::{Behind, RasSource, RasVerdict};
pub(crate) use recorders::rank_record;
pub use recorders::{Cut, now_ns};
pub use rules::{Breach, Rules};
pub use sample::{
    GpuSample, HcaSample, InterfaceSample, MemorySample, RankSample, Sample, WatchedNode,
};
pub use sampler::{SampleSinks, Sampler, Sampling, SamplingPace};
pub use slow::{
    AskNodes, Clock, ClockedSample, NodeSample, SampledNode, Slow, SlowNews, SlowPace, SlowWatch,
};
