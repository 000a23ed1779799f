//! Readers of wire and output, shared with the tests under the same name. They share no code with the code under test.

#[path = "../../support/hostile/raw.rs"]
pub mod raw;
#[path = "../../support/hostile/wire.rs"]
pub mod wire;
