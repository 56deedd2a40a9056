//! `plan`, `check` and `profile` on replayed nodes, with fake GPUs and in namespaces.

mod accelerators;
mod adopt;
mod any_input;
mod capture;
mod check;
mod engine_modules;
mod gpu_fallback;
mod gpu_probe;
mod gpu_states;
mod hung_sources;
mod interactive;
mod interfaces;
mod layouts;
mod limits;
mod nccl_settings;
mod operators;
mod own_platform;
mod pasted;
mod platforms;
mod probe_places;
mod profiles;
mod refusals;
mod schedulers;
mod site;
mod topology;
mod visible_devices;
