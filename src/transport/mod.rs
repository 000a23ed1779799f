//! FLOOR 4 — the only files that touch sockets, tasks and clocks.
//!
//! A transport reads bytes, asks the clock, drives a session or exchange, hands its events over and sends its replies. It
//! knows no protocol; what differs between protocols is in what it is given to drive.

pub mod capture;
pub mod clock;
mod connection;
mod gathering;
pub mod http;
mod intake;
pub mod options;
mod proxy;
pub mod quarantine;
mod stream;
pub mod tcp;
pub mod tls;
mod watch;
pub mod zmq;
