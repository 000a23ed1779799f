//! tributary: a telemetry collector for agents whose own collectors are gone.

pub mod codec;
pub mod decode;
pub mod event;
pub mod pipeline;
pub mod protocol;
pub mod simulate;
pub mod sink;
pub mod transport;
