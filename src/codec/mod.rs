//! FLOOR 1 — bytes, knowing no protocol: bounded readers that name what they could not read.

pub mod base64;
pub mod cbor;
pub mod digest;
pub mod edn;
pub mod gvariant;
pub mod inflate;
pub mod lru;
pub mod lz4;
pub mod msgpack;
pub mod mutf8;
pub mod proxy;
pub mod reader;
pub(crate) mod terminal;
pub mod text;
pub mod zmtp;
