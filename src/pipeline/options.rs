//! What an operator can set on every sink.

use crate::protocol::Protocol;
use crate::sink::Kinds;

/// The lane of a sink.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct LaneOptions {
    pub buffer_batches: usize,
    pub buffer_bytes: u64,
    pub when_full: WhenFull,
    pub on_failure: OnFailure,
    pub protocols: Vec<Protocol>,
    pub kinds: Kinds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum WhenFull {
    #[default]
    Block,
    Shed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum OnFailure {
    #[default]
    Restart,
    Fatal,
}

impl Default for LaneOptions {
    fn default() -> Self {
        LaneOptions {
            buffer_batches: 256,
            buffer_bytes: 16 << 20,
            when_full: WhenFull::Block,
            on_failure: OnFailure::Restart,
            protocols: Vec::new(),
            kinds: Kinds::ALL,
        }
    }
}
