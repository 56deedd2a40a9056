//! The newest whole checkpoint is the newest one that loads, whenever its writer is killed.
//!
//! Real frameworks write (tests/checkpoint/writers.py) and load (tests/checkpoint/loaders.py). `make judge-checkpoints`
//! runs all of them with KILLS=20, FULL=9 and LOST=9 rounds each, JOBS=2 side by side, or those that ONLY names; SEED
//! repeats a run. Its short form is an ordinary test, with the formats for which torch and accelerate suffice.

mod faults;
mod judge;
mod kills;
mod servers;
