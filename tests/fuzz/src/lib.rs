//! What the fuzz targets share: how an input is read, and the law that holds of whatever comes out.
//!
//! Every target of a session reads its input as a [`Setting`] of a few bytes and then what peers send. A setting of zeros
//! is the usual case (default limits, no cuts, no time passing), so that a recorded stream behind zeros is a seed.

pub mod bytefrog;
pub mod hostile_support;
mod input;
mod told;

use std::fs;
use std::io;

pub use input::{MARK, Part, Setting, parts, pieces};
pub use told::{Line, Told, counters, now, origin};

/// Makes a program of a property: a target of libFuzzer.
#[cfg(feature = "fuzzer")]
#[macro_export]
macro_rules! target {
    ($property:ident) => {
        ::libfuzzer_sys::fuzz_target!(|input: &[u8]| $property(input));
    };
}

/// Makes a program of a property: one that any toolchain builds, and that tries the files that it is given.
#[cfg(not(feature = "fuzzer"))]
#[macro_export]
macro_rules! target {
    ($property:ident) => {
        fn main() -> std::io::Result<()> {
            $crate::try_files($property)
        }
    };
}

/// Tries a property on the files that the command line names.
///
/// # Errors
/// Those of reading them.
pub fn try_files(property: fn(&[u8])) -> io::Result<()> {
    std::env::args_os().skip(1).try_for_each(|path| {
        property(&fs::read(path)?);
        Ok(())
    })
}
