//! One node under faults: whichever process is killed or stopped, nothing of the job is left.

mod agent_socket;
mod clouds;
mod few_resources;
mod hidden_processes;
mod inherited;
mod kill;
mod notices;
mod orphans;
mod restart;
mod resume;
mod saves;
mod spares;
mod stale_processes;
mod stop;
mod torchrun;
