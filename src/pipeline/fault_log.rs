//! The log line that destinations of a sink cannot be written.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tracing::{info, warn};

use tributary_memory::log_throttle::LogThrottle;

/// Logs which destinations of a sink cannot be written: once a minute as long as there are any, and immediately when one more has
/// a fault.
#[derive(Debug, Default)]
pub(super) struct FaultLog {
    throttle: LogThrottle,
    /// The faults that the line has named since it was last due.
    named: Mutex<BTreeSet<String>>,
}

impl FaultLog {
    /// The present faults of a sink. `is_buffering`: it holds events until it can write them.
    pub(super) fn log(&self, sink: &str, faults: &[String], is_buffering: bool) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.is_empty() {
            if !std::mem::take(&mut *named).is_empty() {
                info!(sink, "every destination can be written again");
            }
            return;
        }
        let suppressed = match self.throttle.permit() {
            Some(suppressed) => {
                named.clear();
                suppressed
            }
            None if faults.iter().all(|fault| named.contains(fault)) => return,
            None => None,
        };
        named.extend(faults.iter().cloned());
        let error = faults.join("; ");
        if is_buffering {
            warn!(sink, %error, suppressed, "cannot write; buffering and retrying");
        } else {
            warn!(sink, %error, suppressed, "cannot write; trying again");
        }
    }
}
