//! Protocol `zico`: all recorded traces as profiles, and the memory of traces of any size and shape.

mod memory;
mod projections;
