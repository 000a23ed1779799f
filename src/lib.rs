//! tributary: a telemetry collector for agents whose own collectors are gone.

pub mod codec;
pub mod event;
pub mod protocol;
pub mod simulate;
pub mod sink;
