//! Shared by the fuzz targets: reading of inputs, and checks of the output.
//!
//! Every session target reads its input as a [`Setting`] of a few bytes, followed by the bytes that peers send. A setting of
//! zeros is the usual case (default limits, no cuts, no pauses), so that a recorded stream after zeros is a seed.

pub mod bytefrog;
pub mod hostile;
mod input;
mod output;

use std::fs;
use std::io;

pub use input::{MARK, Part, Setting, parts, pieces};
pub use output::{Line, Output, counters, now, origin};

/// Defines the program of a property: a target of libFuzzer.
#[cfg(feature = "fuzzer")]
#[macro_export]
macro_rules! target {
    ($property:ident) => {
        ::libfuzzer_sys::fuzz_target!(|input: &[u8]| $property(input));
    };
}

/// Defines the program of a property: it builds with any toolchain and checks the files in its arguments.
#[cfg(not(feature = "fuzzer"))]
#[macro_export]
macro_rules! target {
    ($property:ident) => {
        fn main() -> std::io::Result<()> {
            $crate::try_files($property)
        }
    };
}

/// Checks a property with the files in the arguments.
///
/// # Errors
/// A file cannot be read.
pub fn try_files(property: fn(&[u8])) -> io::Result<()> {
    std::env::args_os().skip(1).try_for_each(|path| {
        property(&fs::read(path)?);
        Ok(())
    })
}
