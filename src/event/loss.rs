//! Loss: the event kind that keeps the counters honest.

/// Why bytes or events did not become events. The names are those of `loss.reason` in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Reason {
    /// Breaks its format.
    Malformed,
    /// Well formed, but of a version or type that we do not know.
    Unsupported,
    /// Over a limit.
    TooLarge,
    /// The stream ended inside a message.
    Truncated,
    /// Ids that never got their text.
    Unresolved,
    /// Numbers that the peer skipped.
    Gap,
    /// Already delivered, recognised as a repeat.
    Duplicate,
    /// The peer may not say this.
    Unauthorized,
    /// A full queue let it go, as configured.
    Shed,
    /// We failed: a sink, or this program.
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

/// What a loss event says, as its reporter knows it.
#[derive(Clone, Copy, Debug)]
pub struct Loss<'a> {
    /// Why.
    pub reason: Reason,
    /// Bytes of the peer that no event stands for; 0 where none are missing (gap, unresolved).
    pub bytes: u64,
    /// Events that did not go out, or went out incomplete; `None` when it cannot be known.
    pub events: Option<u64>,
    /// One sentence: what was found where, and what would have been right.
    pub detail: &'a str,
    /// The first bytes of what was lost; cut to [`Loss::EXCERPT`].
    pub excerpt: &'a [u8],
}

impl Loss<'_> {
    /// The most bytes an excerpt shows.
    pub const EXCERPT: usize = 64;
}
