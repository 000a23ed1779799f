//! What the fuzz targets share: how an input is read, and the law that holds of whatever comes out.
//!
//! Every target of a session reads its input as a [`Setting`] of a few bytes and then what peers send. A setting of zeros
//! is the usual case (default limits, no cuts, no time passing), so that a recorded stream behind zeros is a seed.

pub mod bytefrog;
pub mod hostile_support;
mod input;
mod told;

pub use input::{MARK, Part, Setting, parts, pieces};
pub use told::{Line, Told, books, now, origin};
