//! tributary: a telemetry collector for agents whose own collectors are discontinued.
//!
//! The modules form layers. A module imports modules of lower layers only; `tests/cli/architecture.rs` checks that.
//!
//! ```text
//!   7  cli                                   commands, arguments, exit codes
//!   6  server  admin  config                 start, reload and stop; the admin endpoint; which components there are
//!   5  transport  driver  decode             sockets, tasks and clocks; sessions driven with and without sockets
//!   4  pipeline  sink                        queues and accounting; encoders, files, streams
//!      select                                what a sink takes, and what it may show
//!      zico_store  rbkit_store               registered agents; profiles that were switched on
//!      endless_store                         delivered events that daemons share
//!      nats                                  servers of NATS: connections, JetStream's API
//!   3  protocol                              sessions: bytes and time in, events and replies out; no I/O
//!   2  explain  profile                      annotated bytes; flame graphs and heap tables
//!   1  codec  memory  options                bounded readers; the memory budget; the checked option reader
//!      stored                                events that were stored, made events of a batch again
//!   0  event                                 the normalized event model: batch arena, views, names
//! ```
//!
//! Beside the layers: [`simulate`], agents that share no code with the decoders.
#![forbid(unsafe_code)]

pub mod admin;
mod blocking;
pub mod capture;
pub mod cli;
pub mod codec;
pub mod commands;
pub mod config;
pub mod decode;
mod directories;
pub mod driver;
pub mod endless_store;
pub mod event;
pub mod explain;
pub mod health;
pub mod histogram;
mod log_throttle;
pub mod memory;
pub mod nats;
pub mod options;
pub mod pipeline;
pub mod profile;
pub mod protocol;
pub mod quarantine;
pub mod rbkit_store;
pub mod select;
pub mod server;
pub mod simulate;
pub mod sink;
pub mod spool;
pub mod stored;
pub mod transport;
mod wall_clock;
pub mod zico_store;
