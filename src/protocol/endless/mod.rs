//! Endless OS metrics: bundles of events as GVariant, one per HTTP request, protocol versions 0 to 3.
//!
//! "Rule" and "section" numbers in comments are those of the protocol's field notes, which `docs/protocols/endless.md`
//! retells for operators.

mod dedup;
mod exchange;
pub mod explain;
mod image;
mod normalize;
mod options;
mod payload;
mod reading;
mod registry;
mod texts;
pub mod wire;
mod work;

pub use exchange::EndlessExchange;
pub use options::*;
pub use work::EndlessWork;
