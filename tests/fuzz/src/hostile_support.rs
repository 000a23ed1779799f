//! Readers of wire and output that the tests have too, under their name there. They share nothing with the code under test.

#[path = "../../hostile_support/raw.rs"]
pub mod raw;
#[path = "../../hostile_support/wire.rs"]
pub mod wire;
