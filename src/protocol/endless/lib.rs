//! Endless OS metrics: bundles of events as GVariant, one per HTTP request, protocol versions 0 to 3.
//!
//! "Rule" and "section" numbers in comments refer to `docs/protocols/endless.md`.
#![forbid(unsafe_code)]

mod dedup;
mod exchange;
pub mod explain;
mod image;
mod normalize;
mod options;
mod payload;
mod period;
mod reading;
mod registry;
mod repeats;
mod shared;
pub mod shared_deliveries;
mod target;
mod texts;
pub mod wire;
mod work;

pub use dedup::{Dedup, Fingerprint};
pub use exchange::EndlessExchange;
pub use options::Options;
pub use work::EndlessWork;
