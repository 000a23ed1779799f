//! Codecs that know no protocol. Readers are bounded, and their errors name the field that they could not read.
#![forbid(unsafe_code)]

pub mod base64;
pub mod cbor;
pub mod crc;
pub mod decompress;
pub mod digest;
pub mod edn;
pub mod fressian;
pub mod gvariant;
pub mod http;
pub mod inflate;
pub mod key_filter;
pub mod lru;
pub mod lz4;
pub mod mix;
pub mod msgpack;
pub mod multipart;
pub mod mutf8;
pub mod pprof;
pub mod protobuf;
pub mod proxy;
pub mod reader;
pub mod terminal;
pub mod text;
pub mod zmtp;
