//! ZICO: what Zorka agents post over HTTP, in three dialects of CBOR.
//!
//! "Rule" and "section" numbers in comments refer to `docs/protocols/zico.md`.
#![forbid(unsafe_code)]

pub mod agents;
mod body;
mod clock;
mod definitions;
mod delivered;
mod exchange;
pub mod explain;
pub mod forms;
pub mod fressian;
mod ids;
mod normalize;
mod options;
mod profile;
mod reading;
mod record;
pub mod registrations;
mod reserved;
mod route;
mod sessions;
mod shared;
mod symbols;
mod trace;
mod value;
pub mod wire;
mod work;

pub use exchange::ZicoExchange;
pub use options::{Options, Records};
pub use work::ZicoWork;
