//! Bytefrog and Code Pulse agents: method calls of Java programs, protocol versions 1 to 4, over TCP.
//!
//! Sections and rules in comments are those of `docs/protocols/bytefrog.md`: section 1.4 lists what harms the traced
//! program, and a *rule* is what a collector must do.
#![forbid(unsafe_code)]

mod agent;
mod agent_log;
mod breaks;
mod calls;
mod clock;
mod command;
pub mod configuration;
mod coverage;
mod dictionary;
mod explain;
mod hq;
mod java_regex;
mod messages;
mod normalize;
mod options;
mod profile;
mod queue;
mod run;
mod run_table;
mod sequence;
mod session;
mod slots;
mod wire;

pub use command::{BytefrogCommand, BytefrogCommandError, Mode};
pub use dictionary::DictionaryLimits;
pub use explain::explainer;
pub use hq::{AgentStatus, Hq};
pub use options::*;
pub use session::BytefrogSession;
