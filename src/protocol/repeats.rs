//! Bodies that are sent again: a peer that waits in vain for an answer sends the same body once more.

use std::collections::VecDeque;
use std::hash::BuildHasher as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use foldhash::quality::RandomState;
use hashbrown::HashMap;
use twox_hash::XxHash3_128;

/// The memory of a body that is remembered.
pub const REPEAT_BYTES: u64 = 160;

/// Stands for a path and its body.
pub type Digest = u128;

/// The bodies of a listener that are being worked on, or were delivered a short time ago.
#[derive(Debug)]
pub struct Repeats {
    time: Duration,
    limit: usize,
    /// Of the digests.
    seed: u64,
    known: Mutex<KnownBodies>,
}

#[derive(Debug, Default)]
struct KnownBodies {
    bodies: HashMap<Digest, BodyState, RandomState>,
    /// When bodies were delivered, in this order.
    delivered: VecDeque<(Duration, Digest)>,
}

#[derive(Debug)]
enum BodyState {
    /// Who waits for its outcome.
    InProgress(Vec<Waker>),
    /// The number of its events.
    Delivered(u64),
}

/// A body that was not known: it is forgotten if it is not delivered.
#[derive(Debug)]
pub struct FirstBody {
    repeats: Arc<Repeats>,
    digest: Digest,
    is_delivered: bool,
}

/// What is known of a body.
#[derive(Debug)]
pub enum BodyLookup {
    /// It is new.
    First(FirstBody),
    /// It was delivered; the number of its events.
    Repeat(u64),
    /// The same body is being worked on.
    InProgress,
}

impl Repeats {
    /// None is remembered if `time` is 0.
    pub fn new(time: Duration, limit: usize) -> Repeats {
        Repeats { time, limit, seed: RandomState::default().hash_one(()), known: Mutex::default() }
    }

    /// The digest of a body. `None`: its repeats are not recognised.
    ///
    /// It is no cryptographic one, which would take ten times as long. Equal digests of different bodies do not occur by chance, and a
    /// peer gains nothing by making them: who knows a body can also send that body first.
    pub fn digest(&self, path: &str, body: &[u8]) -> Option<Digest> {
        if self.time.is_zero() {
            return None;
        }
        let of_path = XxHash3_128::oneshot_with_seed(self.seed, path.as_bytes());
        Some(XxHash3_128::oneshot_with_seed(self.seed, body) ^ of_path.rotate_left(1))
    }

    /// Looks for a body, and adds it if it is new.
    pub fn find(self: &Arc<Self>, digest: Digest, elapsed: Duration) -> BodyLookup {
        let mut known = self.lock();
        known.forget(elapsed.saturating_sub(self.time), self.limit);
        match known.bodies.get(&digest) {
            Some(BodyState::Delivered(events)) => BodyLookup::Repeat(*events),
            Some(BodyState::InProgress(_)) => BodyLookup::InProgress,
            None => {
                known.bodies.insert(digest, BodyState::InProgress(Vec::new()));
                BodyLookup::First(FirstBody { repeats: self.clone(), digest, is_delivered: false })
            }
        }
    }

    /// Whether the same body is no longer being worked on; else `context` is woken when that is so.
    pub fn poll_ended(&self, digest: Digest, context: &mut Context<'_>) -> Poll<()> {
        match self.lock().bodies.get_mut(&digest) {
            Some(BodyState::InProgress(waiting)) => {
                if !waiting.iter().any(|known| known.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, KnownBodies> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownBodies {
    /// Forgets bodies that were delivered before `oldest`, and those beyond the limit.
    fn forget(&mut self, oldest: Duration, limit: usize) {
        while let Some((at, digest)) = self.delivered.front().copied() {
            if at >= oldest && self.delivered.len() < limit {
                return;
            }
            self.delivered.pop_front();
            self.bodies.remove(&digest);
        }
    }
}

impl FirstBody {
    /// Its events are delivered: it is remembered from now on.
    pub fn delivered(mut self, events: u64, elapsed: Duration) {
        self.is_delivered = true;
        let mut known = self.repeats.lock();
        known.delivered.push_back((elapsed, self.digest));
        wake(known.bodies.insert(self.digest, BodyState::Delivered(events)));
    }
}

impl Drop for FirstBody {
    fn drop(&mut self) {
        if !self.is_delivered {
            wake(self.repeats.lock().bodies.remove(&self.digest));
        }
    }
}

fn wake(state: Option<BodyState>) {
    if let Some(BodyState::InProgress(waiting)) = state {
        waiting.into_iter().for_each(Waker::wake);
    }
}
