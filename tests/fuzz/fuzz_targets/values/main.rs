//! Self-describing formats, compared with other libraries.
#![cfg_attr(feature = "fuzzer", no_main)]

mod cbor;
mod msgpack;

tributary_fuzz::target!(property);

fn property(input: &[u8]) {
    match input.split_first() {
        Some((which, rest)) if which & 1 == 0 => cbor::property(rest),
        Some((_, rest)) => msgpack::property(rest),
        None => {}
    }
}
