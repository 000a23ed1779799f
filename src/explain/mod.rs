//! Annotated wire bytes, for people: offset, bytes, field, value, and at a fault what was wrong.
//!
//! The layouts stand a second time here and in `protocol/*/explain.rs`, beside the decoders and apart from them: what a
//! decoder gave up is told by its own `loss`, which [`Sheet`] shows at its place; the explainer names the bytes around it.
//! Every byte is shown once and in order, which the tests hold against the decoders' offsets.

pub(crate) mod cbor;
pub(crate) mod depth;
mod fields;
pub(crate) mod gvariant;
pub mod http;
mod raw;
mod sheet;
pub mod value;
pub(crate) mod words;

pub use fields::Fields;
pub use raw::Raw;
pub use sheet::{Fault, Sheet};

/// What names the bytes of one connection or body, from a message's first byte on.
pub trait Explain: Send {
    /// Writes the complete messages at the front of `input` onto the sheet, and says how many bytes they took. Call
    /// again with the rest and what has come since: the sheet does not depend on how the bytes are cut.
    fn explain(&mut self, input: &[u8], sheet: &mut Sheet) -> usize;

    /// No more comes: `rest`, what [`Explain::explain`] left, is written as far as it can be named.
    fn finish(&mut self, rest: &[u8], sheet: &mut Sheet) {
        if !rest.is_empty() {
            sheet.raw(rest, "not whole");
        }
    }
}
