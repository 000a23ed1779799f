//! The checked option reader: sections of a TOML document, units, memory bounds, and errors with their place.
//!
//! This module knows no component. Each component reads its options from a [`Section`] beside its code, and declares its
//! memory in [`Bounds`]. The module `config` knows which components exist.
#![forbid(unsafe_code)]

mod attributes;
pub mod bounds;
mod client_tls;
pub mod diagnostic;
pub(crate) mod document;
mod endpoint;
mod include;
mod parsed;
mod secret;
pub mod section;
mod setting;
mod table;
pub mod units;
mod value;

pub use bounds::Bounds;
pub use client_tls::ClientTls;
pub use diagnostic::{ConfigErrors, Diagnostic};
pub use document::SourceText;
pub use endpoint::Endpoint;
pub use include::{Files, read_sources};
pub use secret::Secret;
pub use section::{Section, defaults, describe};
pub use setting::{Description, Setting, ValueKind};
pub use units::{ByteSize, LONGEST};
pub use value::Whole;
