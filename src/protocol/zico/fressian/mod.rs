//! The binary protocol of agents up to 1.90.6: packets of Fressian over TCP (section 6).

pub(super) mod connection;
pub(super) mod digest;
pub(super) mod metrics;
pub mod packet;
pub(super) mod reading;
pub(super) mod resends;
pub mod structs;
