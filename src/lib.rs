//! tributary: a telemetry collector for agents whose own collectors are gone.
//!
//! The house, from the ground up; a floor imports only floors below it, and rooms of one floor never each other:
//!
//! ```text
//!   cli, server          the door, and the order in which everything starts and stops
//!   FLOOR 4  transport   sockets, tasks, clocks: reads bytes, drives sessions, hands batches over
//!   FLOOR 3  pipeline    queues, workers, verdicts, the accounting        sink   encoders, files, stdout
//!            store       registered agents, in files
//!   FLOOR 2  protocol    sessions: bytes and time in, events and replies out; no I/O
//!   FLOOR 1  codec       bounded readers that know no protocol
//!   FLOOR 0  event       the normalized event model: batch arena, views, names
//! ```
//!
//! Beside the floors: [`config`] (read by every component for itself), [`decode`] (sessions without sockets), [`commands`] (commands while the
//! daemon runs), [`explain`] (bytes named for people), [`profile`] (pictures and tables of events) and [`simulate`] (shares no code with the decoders).

pub mod admin;
pub mod capture;
pub mod cli;
pub mod codec;
pub mod commands;
pub mod config;
pub mod decode;
pub mod driver;
pub mod event;
pub mod explain;
pub mod health;
mod log_throttle;
pub mod memory;
pub mod options;
pub mod pipeline;
pub mod profile;
pub mod protocol;
pub mod server;
pub mod simulate;
pub mod sink;
pub mod transport;
pub mod zico_store;
