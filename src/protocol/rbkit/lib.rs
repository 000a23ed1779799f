//! Rbkit: Ruby processes publish their allocations, garbage collections and CPU samples over ZeroMQ. The daemon connects to
//! them.
//!
//! Sources: the specification of the message protocol, version 2.1 (cited by the names of its sections), and the field notes
//! (cited by the numbers of sections and rules), which describe its four dialects and the behaviour of real agents.
#![forbid(unsafe_code)]

mod agent;
mod command;
mod control;
mod dump;
mod explain;
mod handshake;
mod heap_sums;
mod link;
mod message;
mod normalize;
mod object_counts;
mod options;
mod recording;
mod snapshot;
mod subscription;
mod texts;
mod undo;
mod wire;

pub use agent::{AgentStatus, RbkitAgent};
pub use command::{CommandCallback, RbkitCommand, RbkitCommandError};
pub use control::Control;
pub use explain::Explainer;
pub use options::{AgentOptions, Clock, HeapDumps, Objects, Options, ProfileKind, Reconnect, SummaryLimits};
pub use recording::Player;
pub use subscription::Subscription;
pub use undo::{PendingUndo, ProcessId, UndoStore};
pub use wire::Channel;
