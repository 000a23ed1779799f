//! ZICO: what Zorka agents post over HTTP, in three dialects of CBOR.
//!
//! "Rule" and "section" numbers in comments are those of the protocol's field notes, which `docs/protocols/zico.md`
//! retells for operators.

pub mod agents;
mod body;
mod clock;
mod definitions;
mod delivered;
mod exchange;
pub mod explain;
pub mod forms;
mod ids;
mod normalize;
mod options;
mod reading;
mod record;
mod sessions;
mod symbols;
mod trace;
mod value;
pub mod wire;
mod work;

pub use exchange::ZicoExchange;
pub use options::Options;
pub use work::ZicoWork;
