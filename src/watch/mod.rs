//! Watches a running job and its node.
//!
//! Takes the starts and ends of ranks; gives samples of them and of the node, whether they make
//! progress, what shows why they make none, and who holds the others back. Runs in threads of its
//! own, so that it never blocks the supervision.

mod awake;
mod collectives;
mod connections;
mod control;
mod dump_pipe;
mod faulthandler;
mod gather;
mod job_progress;
mod node;
mod program;
mod progress;
mod pulse;
pub(crate) mod ras;
mod readings;
mod records;
mod rules;
mod sample;
mod sampler;
mod slow;
mod surroundings;

pub(crate) use awake::Awake;
pub(crate) use control::ControlSocket;
pub(crate) use gather::{evidence, gives_up_ns};
pub(crate) use job_progress::{JobProgress, ProgressLines};
pub(crate) use node::{GpuUse, NodeSources};
pub(crate) use node::{Reason, ReasonKind};
pub(crate) use progress::{Progress, Standing};
pub(crate) use pulse::pulse;
pub(crate) use ras::{Behind, RasSource, RasVerdict};
pub(crate) use readings::WatchedNode;
pub(crate) use records::{Cut, now_ns};
pub(crate) use rules::{Breach, Rules};
#[cfg(test)]
pub(crate) use sample::RankSample;
pub(crate) use sample::Sample;
pub use sample::{GpuSample, HcaSample, InterfaceSample, MemorySample};
pub(crate) use sampler::{SampleSinks, Sampler, Sampling, SamplingPace};
pub(crate) use slow::{
    AskNodes, Clock, ClockedSample, NodeSample, SampledNode, Slow, SlowNews, SlowPace, SlowWatch,
};
pub(crate) use surroundings::{Surroundings, node_document, ras_report};
