//! Protocol `rbkit`: recorded, simulated and hostile Ruby processes, over ZeroMQ and from files, and their profiles.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

#[path = "../support/growth/mod.rs"]
mod growth_support;
#[path = "../support/hostile/mod.rs"]
mod hostile_support;
#[path = "../support/live/mod.rs"]
mod live;
#[path = "../support/rbkit_law/mod.rs"]
mod rbkit_law_support;
#[path = "../support/rbkit/mod.rs"]
mod rbkit_support;

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
