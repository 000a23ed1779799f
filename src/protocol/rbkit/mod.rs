//! Rbkit: Ruby processes that publish what they allocate, collect and run, over ZeroMQ. We dial them.
//!
//! Sources: the specification of the message protocol, version 2.1 (sections by name), and the field notes (sections and
//! rules by number), which know four dialects of it and what agents do.

mod agent;
mod control;
mod dump;
mod explain;
mod handshake;
mod message;
mod normalize;
mod options;
mod recording;
mod snapshot;
mod subscription;
mod texts;
mod wire;

pub use agent::{Agent, AgentStatus, Answer, Command, Refusal};
pub use control::Control;
pub use explain::Explainer;
pub use options::{AgentOptions, Clock, Options, Profile, Reconnect};
pub use recording::{Channel, Player};
pub use subscription::Subscription;

/// Frames of a message, and bytes of a command, that no peer needs more of (field notes, section 5).
const MAX_MESSAGE_FRAMES: u32 = 16;
const MAX_COMMAND_BYTES: u64 = 4096;
