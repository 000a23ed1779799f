//! ZICO: what Zorka agents post over HTTP, in three dialects of CBOR.
//!
//! "Rule" and "section" numbers in comments are those of the protocol's field notes, which `docs/protocols/zico.md`
//! retells for operators.

pub mod agents;
pub mod forms;
