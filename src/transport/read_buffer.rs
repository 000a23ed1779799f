//! What a connection has read and not worked off yet: a buffer whose growth is leased from the memory that all share.
//!
//! A connection brings along what it takes to talk in small messages. A longer message, or faster reading, needs more; a
//! connection that does not get it reads less at a time, and when its buffer is full it does not read on. So its peer waits,
//! as it does for a full sink; but while memory is short nobody may wait for ever (see [`ReadBuffer::is_stuck`]).

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};

use crate::memory::{MemoryBudget, MemoryLease};
use crate::protocol::Output;

/// Reads are of this size at first, and grow with the traffic …
pub(super) const MIN_READ_BYTES: usize = 8 * 1024;
/// … up to this one.
const MAX_READ_BYTES: usize = 256 * 1024;
/// A message may be buffered up to `max_message_bytes` and so much for what is context them: its head, or all of it where
/// the protocol has messages that are small but longer than that limit.
const BUFFER_SLACK: u64 = 128 * 1024;
/// Room for the next batch that is not leased.
const SMALL_BATCH_BYTES: usize = 4 * 1024;

/// What a connection brings along: its task, its socket and its session's state …
const STATE_BYTES: u64 = 8 * 1024;
/// … and what TLS takes: what is half read and half written, and the keys.
pub(super) const TLS_BYTES: u64 = 40 * 1024;
/// What is taken of the memory of all for a connection when it is let in, without TLS: its state, the first room to read
/// into, and what every session may remember.
pub(super) const CONNECTION_BYTES: u64 = STATE_BYTES + MIN_READ_BYTES as u64 + MemoryLease::FLOOR;
/// How often who waits for memory asks again.
pub(super) const ROOM_RETRY: Duration = Duration::from_millis(100);

/// What of a message of so many bytes is here at most, with what was read along with it.
pub(super) fn most_bytes(max_message_bytes: u64) -> u64 {
    max_message_bytes.saturating_add(BUFFER_SLACK + MAX_READ_BYTES as u64)
}

/// The bytes that wait for the session, and the room for more.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    bytes: BytesMut,
    /// Length of the allocation behind `bytes`.
    allocated: usize,
    read_bytes: usize,
    max_bytes: u64,
    /// What is leased for the next batch.
    batch_bytes: usize,
    lease: MemoryLease,
    is_stuck: bool,
}

impl Deref for ReadBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl ReadBuffer {
    /// Of a connection whose messages have at most so many bytes.
    pub(super) fn new(max_message_bytes: u64, memory: &Arc<MemoryBudget>) -> Self {
        ReadBuffer {
            bytes: BytesMut::new(),
            allocated: 0,
            read_bytes: MIN_READ_BYTES,
            max_bytes: max_message_bytes.saturating_add(BUFFER_SLACK),
            batch_bytes: 0,
            lease: memory.passing(MIN_READ_BYTES as u64),
            is_stuck: false,
        }
    }

    /// The buffer, with room in it to read into. `None`: there is no memory for more than is here.
    pub(super) fn room(&mut self) -> Option<&mut BytesMut> {
        self.is_stuck = false;
        let spare = self.bytes.capacity() - self.bytes.len();
        let gone = self.allocated - self.bytes.capacity();
        if spare >= self.read_bytes {
            return Some(&mut self.bytes);
        }
        if gone >= self.bytes.len() && spare + gone >= self.read_bytes {
            // What is worked off makes room: nothing is allocated.
            self.bytes.reserve(self.read_bytes);
            return Some(&mut self.bytes);
        }
        let wanted = (self.bytes.len() + self.read_bytes).next_power_of_two();
        let most = usize::try_from(self.max_bytes).unwrap_or(usize::MAX).saturating_add(MAX_READ_BYTES);
        if self.resize(wanted.min(most)) {
            return Some(&mut self.bytes);
        }
        // Less at a time, as far as there is room; twice as much as is here may still be had when all that is read no more.
        self.read_bytes = MIN_READ_BYTES;
        let least = (self.bytes.len() + MIN_READ_BYTES).next_multiple_of(MIN_READ_BYTES);
        if spare == 0 && !self.resize(least) && !(gone > 0 && self.resize(self.allocated)) {
            self.is_stuck = true;
            return None;
        }
        Some(&mut self.bytes)
    }

    /// So many bytes were read into room for `room`: sizes follow the traffic.
    pub(super) fn read(&mut self, bytes: usize, room: usize) {
        if bytes >= room {
            self.read_bytes = (self.read_bytes * 2).min(MAX_READ_BYTES);
        } else if bytes < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(MIN_READ_BYTES);
        }
    }

    /// The first `bytes` are worked off.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes.min(self.bytes.len()));
    }

    /// All that is here, which is worked off herewith.
    pub(super) fn take(&mut self) -> BytesMut {
        self.allocated = 0;
        std::mem::take(&mut self.bytes)
    }

    /// Whether more is here than any message may have.
    pub(super) fn is_too_long(&self) -> bool {
        self.bytes.len() as u64 > self.max_bytes
    }

    /// There was no memory to read on when it was last tried. What is here is then half a message, or it would be gone:
    /// its connection has the time of one message to get on, and ends then, so that others do.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Whether it takes memory that others may be in want of.
    pub(super) fn is_large(&self) -> bool {
        self.lease.is_beyond_floor()
    }

    /// Whether it takes more memory than it needs for what is here.
    pub(super) fn has_spare(&self) -> bool {
        self.allocated > self.bytes.len().next_multiple_of(MIN_READ_BYTES)
            || self.bytes.is_empty() && self.allocated > 0
            || self.batch_bytes > 0
    }

    /// Nothing is here, and nothing at the moment to read: small room is not worth keeping.
    pub(super) fn rest(&mut self) {
        if self.bytes.is_empty() && self.allocated <= MIN_READ_BYTES {
            self.give_back();
        }
    }

    /// Gives back what is not needed for what is here.
    pub(super) fn give_back(&mut self) {
        self.read_bytes = MIN_READ_BYTES;
        // Less is always to be had.
        let _ = self.resize(self.bytes.len().next_multiple_of(MIN_READ_BYTES));
    }

    /// Sees that the room which `out` keeps for its next batch is leased, or gone.
    pub(super) fn keep_batch(&mut self, out: &mut Output) {
        let kept = match out.batch.memory_bytes() {
            small if small <= SMALL_BATCH_BYTES => 0,
            bytes => bytes.next_multiple_of(SMALL_BATCH_BYTES),
        };
        // Batches of about the same size change nothing.
        if kept <= self.batch_bytes && kept > self.batch_bytes / 2 || kept == self.batch_bytes {
            return;
        }
        self.batch_bytes = kept;
        if !self.lease(self.allocated) {
            out.batch.shrink();
            self.batch_bytes = 0;
            // That is less than before.
            let _ = self.lease(self.allocated);
        }
    }

    /// Moves what is here into a buffer of this length. `false`: there is no memory for it.
    fn resize(&mut self, length: usize) -> bool {
        if length == self.allocated && self.bytes.capacity() == length {
            return length > self.bytes.len();
        }
        if !self.lease(length) {
            return false;
        }
        let mut moved = BytesMut::with_capacity(length);
        moved.extend_from_slice(&self.bytes);
        self.allocated = moved.capacity();
        self.bytes = moved;
        true
    }

    fn lease(&mut self, length: usize) -> bool {
        self.lease.try_hold((length + self.batch_bytes) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    /// Reads so many bytes, as much at a time as there is room for; answers how many there was room for.
    fn read(intake: &mut ReadBuffer, mut bytes: usize) -> usize {
        let wanted = bytes;
        while bytes > 0
            && let Some(buffer) = intake.room()
        {
            let room = buffer.capacity() - buffer.len();
            let here = bytes.min(room);
            buffer.extend_from_slice(&vec![7; here]);
            intake.read(here, room);
            bytes -= here;
        }
        wanted - bytes
    }

    #[test]
    fn a_buffer_grows_with_what_comes_is_leased_to_the_byte_and_gives_everything_back() {
        let memory = MemoryBudget::new(64 << 20);
        let mut intake = ReadBuffer::new(16 << 20, &memory);
        assert_eq!(read(&mut intake, 8 * KIB), 8 * KIB);
        assert_eq!((memory.used(), intake.is_large()), (0, false), "so much it has brought along");
        assert_eq!(read(&mut intake, 1 << 20), 1 << 20);
        assert_eq!(memory.used() as usize, intake.allocated - MIN_READ_BYTES);
        assert!(intake.allocated <= 4 << 20 && intake.is_large());
        intake.advance(intake.len() - 10);
        assert_eq!(&*intake, [7; 10]);
        intake.give_back();
        assert_eq!((intake.allocated, memory.used()), (MIN_READ_BYTES, 0));
        intake.advance(10);
        intake.rest();
        assert_eq!((intake.allocated, intake.bytes.capacity()), (0, 0));
    }

    #[test]
    fn steady_traffic_allocates_and_leases_nothing_anew() {
        let memory = MemoryBudget::new(64 << 20);
        let mut intake = ReadBuffer::new(16 << 20, &memory);
        for _ in 0..20 {
            assert_eq!(read(&mut intake, 300 * KIB), 300 * KIB);
            intake.advance(intake.len());
        }
        let (allocated, used) = (intake.allocated, memory.used());
        for left in 0..1000 {
            let room = intake.room().unwrap();
            let bytes = room.capacity() - room.len();
            room.extend_from_slice(&vec![7; bytes]);
            intake.read(bytes, bytes);
            intake.advance(intake.len() - left);
            assert_eq!((intake.allocated, memory.used()), (allocated, used));
        }
    }

    #[test]
    fn without_memory_it_reads_what_it_has_room_for_is_stuck_and_goes_on_when_there_is_some() {
        let memory = MemoryBudget::new(100 * KIB as u64);
        let mut other = memory.passing(0);
        assert!(other.try_hold(100 * KIB as u64));
        let mut intake = ReadBuffer::new(16 << 20, &memory);
        assert_eq!(read(&mut intake, 50 * KIB), 8 * KIB);
        assert!(intake.is_stuck());
        // Room for a little is room.
        assert!(other.try_hold(84 * KIB as u64));
        assert_eq!(read(&mut intake, 50 * KIB), 16 * KIB);
        assert!(intake.is_stuck());
        // Working off makes room without any.
        intake.advance(KIB);
        assert_eq!(read(&mut intake, 50 * KIB), KIB);
        assert!(intake.is_stuck());
        drop(other);
        assert_eq!(read(&mut intake, 50 * KIB), 50 * KIB);
        assert!(!intake.is_stuck());
        drop(intake);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn no_buffer_is_larger_than_what_is_declared() {
        let memory = MemoryBudget::new(64 << 20);
        let mut intake = ReadBuffer::new(KIB as u64, &memory);
        while !intake.is_too_long() {
            let room = intake.room().unwrap();
            let bytes = room.capacity() - room.len();
            room.extend_from_slice(&vec![7; bytes]);
            intake.read(bytes, bytes);
        }
        assert!(intake.allocated as u64 <= most_bytes(KIB as u64), "{}", intake.allocated);
    }
}
