//! Protocol `bytefrog`: recorded and simulated agents, commands, and what would harm a traced program.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

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
mod log;
mod order;
mod recordings;
mod replay;
mod run_ids;
mod simulated;
mod simulated_agent;
mod times;

use tributary_testing::{
    bytefrog as bytefrog_support, bytefrog_law as bytefrog_law_support, growth as growth_support,
    hostile as hostile_support, live,
};
