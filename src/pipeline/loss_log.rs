//! Losses that a peer causes, in the log: one line per listener and reason, once a minute at most. A client of another protocol,
//! or a port that was confused, is found by them.

use tracing::warn;

use tributary_event::{Origin, Reason};
use tributary_memory::log_throttle::LogThrottle;
use tributary_protocol::End;

/// The losses of one listener, by reason.
#[derive(Debug, Default)]
pub(super) struct LossLog([LogThrottle; Reason::ALL.len()]);

impl LossLog {
    /// Logs a loss if a peer has caused it.
    pub(super) fn log(&self, origin: &Origin, reason: Reason, bytes: u64, detail: &str) {
        let hint = match reason {
            Reason::Malformed | Reason::Unsupported => {
                "if the peer is none of this protocol, find the program that connects to this port, or set the `protocol` of the \
                 listener"
            }
            Reason::TooLarge => "the detail names the limit; an option of the listener sets it",
            Reason::Truncated => "the peer ended inside a message, or a time limit of the listener passed",
            Reason::Unauthorized => "the detail has the reason",
            // Not caused by the bytes of a peer, or logged where they are decided.
            Reason::Unresolved | Reason::Gap | Reason::Duplicate | Reason::Shed | Reason::Failed => return,
        };
        // A stop cuts messages off, which is nothing to look for.
        if reason == Reason::Truncated && detail.contains(End::Stopped.as_str()) {
            return;
        }
        if let Some(suppressed) = self.0[reason.index()].permit() {
            warn!(
                listener = &*origin.listener,
                protocol = origin.protocol,
                peer = &*origin.peer,
                reason = reason.as_str(),
                bytes,
                detail,
                hint,
                suppressed,
                "what a peer has sent is lost; a loss event reports it"
            );
        }
    }
}
