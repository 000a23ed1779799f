//! Sockets, tasks and clocks of listeners.
//!
//! A transport reads bytes, takes the time, passes both to a session or an exchange (through `tributary_driver`), hands the
//! events over and sends the replies. It knows no protocol.
#![forbid(unsafe_code)]

mod admission;
mod body;
pub mod capture;
pub mod clock;
mod connection;
pub mod context;
pub mod datagrams;
mod decode_buffers;
pub mod descriptors;
pub mod dialer;
pub mod http;
mod http1;
mod http2;
mod http_head;
mod http_state;
mod http_timeouts;
mod http_version;
mod in_flight;
pub mod nats;
pub mod options;
mod packets;
pub mod port_holder;
mod proxy;
pub mod quarantine;
mod read_buffer;
mod request;
mod request_memory;
mod response;
mod standstill;
mod stream;
pub mod tcp;
mod ticker;
pub mod tls;
pub mod unix_socket;
mod validity;
