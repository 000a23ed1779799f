//! Protocol `bytefrog`: recorded and simulated agents, commands, and what would harm a traced program.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

#[path = "../support/bytefrog_law/mod.rs"]
mod bytefrog_law_support;
#[path = "../support/bytefrog/mod.rs"]
mod bytefrog_support;
#[path = "../support/growth/mod.rs"]
mod growth_support;
#[path = "../support/hostile/mod.rs"]
mod hostile_support;
#[path = "../support/live/mod.rs"]
mod live;

mod calls;
mod commands;
mod decode;
mod disorder;
mod growth;
mod hazards;
mod hazards_running;
mod hostile;
mod hostile_live;
mod hostile_memory;
mod law;
mod load;
mod order;
mod recordings;
mod replay;
mod run_ids;
mod simulated;
mod simulated_agent;
mod times;
