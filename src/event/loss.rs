//! Loss: the event kind for bytes and events that did not become events, so that all bytes are accounted for.

/// Why bytes or events did not become events. The names are those of `loss.reason` in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Reason {
    /// Violates its format.
    Malformed,
    /// Well formed, but of an unknown version or type.
    Unsupported,
    /// Over a limit.
    TooLarge,
    /// The stream ended inside a message.
    Truncated,
    /// Ids that were never defined.
    Unresolved,
    /// Numbers that the peer skipped.
    Gap,
    /// Already delivered; recognised as a repetition.
    Duplicate,
    /// The peer is not authorized.
    Unauthorized,
    /// Dropped by a full queue, as configured.
    Shed,
    /// A sink or this program failed.
    Failed,
}

impl Reason {
    /// Every reason, in the order of [`Reason::index`].
    pub const ALL: [Reason; 10] = [
        Reason::Malformed,
        Reason::Unsupported,
        Reason::TooLarge,
        Reason::Truncated,
        Reason::Unresolved,
        Reason::Gap,
        Reason::Duplicate,
        Reason::Unauthorized,
        Reason::Shed,
        Reason::Failed,
    ];

    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Malformed => "malformed",
            Reason::Unsupported => "unsupported",
            Reason::TooLarge => "too_large",
            Reason::Truncated => "truncated",
            Reason::Unresolved => "unresolved",
            Reason::Gap => "gap",
            Reason::Duplicate => "duplicate",
            Reason::Unauthorized => "unauthorized",
            Reason::Shed => "shed",
            Reason::Failed => "failed",
        }
    }

    /// Position in [`Reason::ALL`], for counters kept per reason.
    pub fn index(self) -> usize {
        self as usize
    }
}

/// The data of a loss event.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    /// Why.
    pub reason: Reason,
    /// Bytes of the peer that are in no event; 0 where none are missing (gap, unresolved).
    pub bytes: u64,
    /// Number of events that were not written or are incomplete; `None`: unknown.
    pub events: Option<u64>,
    /// One sentence: what was found where, and what is allowed.
    pub detail: &'a str,
    /// The first bytes of what was lost; cut to [`Loss::EXCERPT`].
    pub excerpt: &'a [u8],
}

impl Loss<'_> {
    /// The most bytes an excerpt shows.
    pub const EXCERPT: usize = 64;
}
