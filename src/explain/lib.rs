//! Annotated wire bytes in human-readable form: offset, bytes, field, value, and errors.
//!
//! Of `datadog` and `bytefrog` a layout is read in one place: the decoder in `protocol/*/wire.rs` reads the fields, and an
//! observer of its reader, [`SheetObserver`], writes them. Of the other protocols the items of the format are annotated here
//! and named in `protocol/*/explain.rs`. What a decoder could not decode is reported by its own `loss`, which [`Sheet`] shows
//! at its offset; the explainer annotates the bytes around it. Every byte is shown once and in order; tests compare this with
//! the offsets of the decoders, and the values with independent decoders.
#![forbid(unsafe_code)]

pub mod cbor;
pub mod depth;
pub mod gvariant;
pub mod http;
mod observer;
mod raw;
mod sheet;
pub mod value;
pub mod words;

pub use observer::{SheetObserver, number};
pub use raw::Raw;
pub use sheet::{DecoderError, Sheet};

/// Annotates the bytes of one connection or body, starting at the first byte of a message.
pub trait Explain: Send {
    /// Writes the complete messages at the front of `input` to the sheet and returns their number of bytes. The caller calls
    /// again with the rest and further bytes: the sheet does not depend on how the bytes are cut.
    fn explain(&mut self, input: &[u8], sheet: &mut Sheet) -> usize;

    /// The input has ended: writes `rest`, the bytes that [`Explain::explain`] left, as far as they can be annotated.
    fn finish(&mut self, rest: &[u8], sheet: &mut Sheet) {
        if !rest.is_empty() {
            sheet.raw(rest, "incomplete");
        }
    }
}
