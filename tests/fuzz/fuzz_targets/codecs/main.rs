//! The smaller codecs: text and framing.
#![cfg_attr(feature = "fuzzer", no_main)]

mod framing;
mod text;

tributary_fuzz::target!(property);

fn property(input: &[u8]) {
    match input.split_first() {
        Some((which, rest)) if which & 1 == 0 => text::property(rest),
        Some((_, rest)) => framing::property(rest),
        None => {}
    }
}
