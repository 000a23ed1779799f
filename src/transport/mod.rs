//! FLOOR 4 — the only files that touch sockets, tasks and clocks.
//!
//! A transport reads bytes, asks the clock, drives a session or exchange, hands its events over and sends its replies. It
//! knows no protocol; what differs between protocols is in what it is given to drive.

mod body;
pub mod capture;
pub mod clock;
mod connection;
pub mod dialer;
pub mod http;
mod http_timeouts;
pub mod options;
mod proxy;
pub mod quarantine;
mod read_buffer;
mod stream;
pub mod tcp;
pub mod tls;
