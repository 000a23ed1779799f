//! Readers of wire and output that the tests have too, under their name there. They share nothing with the code under test.

#[path = "../../support/hostile/raw.rs"]
pub mod raw;
#[path = "../../support/hostile/wire.rs"]
pub mod wire;
