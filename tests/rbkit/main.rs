//! Protocol `rbkit`: recorded, simulated and hostile Ruby processes, over ZeroMQ and from files, and their profiles.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

mod decode;
mod greedy;
mod growth;
mod heaps;
mod hostile;
mod law;
mod libzmq;
mod oneshots;
mod profiles;
mod reconnect;
mod recordings;
mod replay;
mod rules;
mod simulated;
mod summaries;
mod undo;
mod zmtp;

use tributary_testing::{
    growth as growth_support, hostile as hostile_support, live, rbkit as rbkit_support, rbkit_law as rbkit_law_support,
};
