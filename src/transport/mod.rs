//! FLOOR 4 — the only files that touch sockets, tasks and clocks.
//!
//! A transport reads bytes, asks the clock, drives a session, hands its events over and sends its replies. It knows no
//! protocol; what differs between protocols is in the session it is given.

pub mod clock;
mod connection;
pub mod options;
mod stream;
pub mod tcp;
pub mod tls;
