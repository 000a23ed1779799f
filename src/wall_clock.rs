//! The wall clock, for what is not given the time: sinks, stores, and the admin endpoint.
//!
//! Sessions get their time as an argument, from the clock of `transport`.

use std::time::SystemTime;

use crate::event::UnixNanos;

/// The time. A time before 1970 is 1970.
pub(crate) fn now() -> UnixNanos {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixNanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
