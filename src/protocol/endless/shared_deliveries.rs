//! Events that other daemons have delivered: a machine that got no answer sends them again, to any daemon.
//!
//! A machine sends the oldest of its events first, and keeps all until one upload is answered. So an upload that follows one
//! whose answer was lost begins with the same event in each of its sections, and has as many or more of them. An upload's events
//! are therefore noted together, for each section, under the fingerprint of its first event.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use hashbrown::HashSet;

use super::dedup::{BuildIdentityHasher, Fingerprint};

/// What daemons share about delivered events.
pub trait SharedDeliveries: Send + Sync + 'static {
    /// The most events of a section that are noted.
    fn max_events(&self) -> usize;

    /// The events that were noted under any of these fingerprints. It takes a limited time, and knows none if they cannot be looked
    /// up.
    fn look_up(&self, first: Vec<Fingerprint>) -> Later<Vec<Fingerprint>>;

    /// Notes events that are delivered. It takes a limited time; what cannot be noted until then is noted later.
    fn note(&self, sections: Vec<Delivered>) -> Later<()>;
}

/// Something that is known later.
pub type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The events of one section of an upload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delivered {
    /// The fingerprint of the first one.
    pub first: Fingerprint,
    /// Those of all, this included.
    pub events: Vec<Fingerprint>,
}

/// The events of an upload that other daemons have delivered.
pub(super) type FingerprintSet = HashSet<Fingerprint, BuildIdentityHasher>;

/// A look-up.
pub(super) struct LookUp {
    answer: Later<Vec<Fingerprint>>,
    known: Option<FingerprintSet>,
}

impl LookUp {
    pub(super) fn new(answer: Later<Vec<Fingerprint>>) -> LookUp {
        LookUp { answer, known: None }
    }

    /// Whether it is answered; otherwise `context` is woken.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.known.is_none() {
            match self.answer.as_mut().poll(context) {
                Poll::Ready(events) => self.known = Some(events.into_iter().collect()),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    /// The answer.
    pub(super) fn take(&mut self) -> Option<FingerprintSet> {
        self.known.take()
    }
}

impl fmt::Debug for LookUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LookUp").field("known", &self.known).finish_non_exhaustive()
    }
}

/// Delivered events that are being noted.
#[derive(Default)]
pub(super) struct Noting(Option<Later<()>>);

impl Noting {
    pub(super) fn new(noted: Later<()>) -> Noting {
        Noting(Some(noted))
    }

    /// Whether they are noted; otherwise `context` is woken.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(noted) = &mut self.0 {
            match noted.as_mut().poll(context) {
                Poll::Ready(()) => self.0 = None,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for Noting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Noting").field(&self.0.is_some()).finish()
    }
}
