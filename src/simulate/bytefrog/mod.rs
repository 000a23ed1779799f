//! A Java agent that traces method calls: the traffic of a small web shop, in protocol versions 1 to 4.
//!
//! It behaves like the original agents where that matters to a collector: it connects, sends its hello, waits for the
//! configuration and for `start`, opens the configured number of data connections and handles commands. Threads of the
//! traced program share buffers, and one that does not get the processor keeps its buffer while others number hundreds
//! of thousands of events: numbers are out of order, and names follow the events that need them. After `stop` the data
//! connections close one heartbeat interval later, once heartbeats count no buffer: a thread that returns its buffer after that
//! makes the program hang at its exit. An agent that is paused after `stop` reports an error, and waits for no buffer.
//! Sections are those of `docs/protocols/bytefrog.md`.
//!
//! If the collector does something that harms a real program ([`Harm`]), the agent reports it and fails.

mod agent;
mod buffers;
mod configuration;
mod control;
mod data;
mod harm;
mod json;
mod modes;
mod observations;
mod program;
mod shop;
mod tally;
mod thread;
mod trace;
mod wire;

use std::io;
use std::time::Duration;

pub use agent::run_alone;
pub use buffers::Buffer;
pub use configuration::Configuration;
pub use harm::Harm;
pub use observations::Observations;
pub use program::Program;

pub(super) use agent::AgentTask;

/// The options of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The protocol version: 1 to 4.
    pub version: u8,
    /// Threads of the traced program, 1 to 65535.
    pub threads: u16,
    /// The project that a version 4 agent belongs to; 0: none.
    pub project: i32,
    /// Numbers in order and names before they are used, all over the first data connection. Real agents do neither.
    pub in_order: bool,
    /// One buffer in this many is dropped with all its events, as when a write fails in a real agent; 0: none.
    pub gaps: u32,
    /// How long the agent waits for the configuration, for `start` and for the answer to a data hello. A real agent
    /// waits without a limit. Also how long a collector may leave a buffer unread.
    pub timeout: Duration,
    /// How long it takes from `start` to its first data connection: 18 to 350 ms in real agents.
    pub start_up: Duration,
    /// How long the agent does not run at its critical moments, as during a garbage collection or on a busy machine: between
    /// opening a connection and its hello, and before it handles commands.
    pub pause: Duration,
    /// Whether the first error of a connection ends the thread that reports it (`ClassCircularityError`), as in some
    /// runs of real agents. Then the program's threads continue to write events. In other runs the trace
    /// ends, and what its buffers hold is lost.
    pub error_handling_fails: bool,
    /// How long a thread keeps the buffer that it holds when the agent is suspended, as one does that loads classes on a busy
    /// machine. Heartbeats do not count this buffer. Zero: no thread keeps one for long.
    pub late_buffer: Duration,
}

impl Default for Options {
    /// A version 4 agent with four threads.
    fn default() -> Self {
        Options {
            version: 4,
            threads: 4,
            project: 0,
            in_order: false,
            gaps: 0,
            timeout: Duration::from_secs(60),
            start_up: Duration::from_millis(20),
            pause: Duration::ZERO,
            error_handling_fails: true,
            late_buffer: Duration::ZERO,
        }
    }
}

impl Options {
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`]: a value is out of its bounds.
    pub(super) fn check(&self) -> io::Result<()> {
        let fault = match self {
            Options { version: 1..=4, threads: 1.., project: 0, .. } => return Ok(()),
            Options { version: 4, threads: 1.., .. } => return Ok(()),
            Options { version: 1..=3, threads: 1.., .. } => "only agents of version 4 belong to a project",
            Options { threads: 0, .. } => "a program takes a thread",
            Options { version, .. } => &format!("there are agents of version 1 to 4, and none of {version}"),
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, fault))
    }
}
