//! Protocol `zico`: recorded, simulated and hostile Zorka agents, and the store of registered agents.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "tests print figures, and what they skip")]

mod agent_store;
mod attack;
mod bodies;
mod cli_agents;
mod decode;
mod durable;
mod floods;
mod fressian;
mod growth;
mod hostile;
mod http;
mod kill;
mod law;
mod meaning;
mod packets;
mod simulate;
mod simulated;

use tributary_testing::{growth as growth_support, hostile as hostile_support, live, zico as zico_support};
