//! What a connection has read and its session has not consumed yet: a buffer whose growth is leased from the shared memory.
//!
//! The lease with which a connection is admitted includes what small messages need. A longer message, or faster reading,
//! needs more. Without more memory the connection reads less at a time, and stops reading when its buffer is full: then its
//! peer waits, as it does for a full sink. While memory is short, that wait has a limit (see [`ReadBuffer::is_stuck`]).

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};

use tributary_memory::{MemoryBudget, MemoryLease};

/// Reads are of this size at first, and grow with the traffic …
pub(super) const MIN_READ_BYTES: usize = 8 * 1024;
/// … up to this one, while little of the shared memory is in use …
const MAX_READ_BYTES: usize = 256 * 1024;
/// … and otherwise up to this one: long reads save little, and a hundred busy connections have a hundred buffers.
const MAX_READ_BYTES_OF_MANY: usize = 32 * 1024;
/// The shared memory counts as little used up to this size.
const LITTLE_MEMORY: u64 = 4 << 20;
/// A message may be buffered up to `max_message_bytes` and this much more, for its head, and for protocols whose smallest
/// messages are longer than that limit.
const BUFFER_SLACK: u64 = 128 * 1024;

/// What the task, the socket and the session of a connection take …
const STATE_BYTES: u64 = 8 * 1024;
/// … and what TLS takes: its buffers and keys.
pub(super) const TLS_BYTES: u64 = 40 * 1024;
/// The lease with which a connection is admitted, without TLS: its state, its first read buffer, and the state that every
/// session may have.
pub(super) const CONNECTION_BYTES: u64 = STATE_BYTES + MIN_READ_BYTES as u64 + MemoryLease::FLOOR;
/// A connection that waits for memory asks for it again after this time.
pub(super) const MEMORY_RETRY: Duration = Duration::from_millis(100);

/// The most that is buffered of a message of `max_message_bytes`, with the bytes that were read together with it.
pub(super) fn most_bytes(max_message_bytes: u64) -> u64 {
    max_message_bytes.saturating_add(BUFFER_SLACK + MAX_READ_BYTES as u64)
}

/// The bytes that the session has not consumed, and capacity for more.
#[derive(Debug)]
pub(super) struct ReadBuffer {
    bytes: BytesMut,
    /// Length of the allocation behind `bytes`.
    allocated: usize,
    read_bytes: usize,
    max_bytes: u64,
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
    /// A buffer for messages of at most `max_message_bytes`.
    pub(super) fn new(max_message_bytes: u64, memory: &Arc<MemoryBudget>) -> Self {
        ReadBuffer {
            bytes: BytesMut::new(),
            allocated: 0,
            read_bytes: MIN_READ_BYTES,
            max_bytes: max_message_bytes.saturating_add(BUFFER_SLACK),
            lease: memory.passing(MIN_READ_BYTES as u64),
            is_stuck: false,
        }
    }

    /// The buffer, with capacity to read into. `None`: there is no memory for more than is buffered.
    pub(super) fn free_space(&mut self) -> Option<&mut BytesMut> {
        self.is_stuck = false;
        let spare = self.bytes.capacity() - self.bytes.len();
        let consumed = self.allocated - self.bytes.capacity();
        if spare >= self.read_bytes {
            return Some(&mut self.bytes);
        }
        if consumed >= self.bytes.len() && spare + consumed >= self.read_bytes / 2 {
            // The buffered bytes move to the front, into the space of consumed ones: nothing is allocated. A read that
            // is a little shorter costs less than a buffer of twice the size.
            self.bytes.reserve(spare + consumed);
            return Some(&mut self.bytes);
        }
        let wanted = (self.bytes.len() + self.read_bytes).next_power_of_two();
        let most = usize::try_from(self.max_bytes).unwrap_or(usize::MAX).saturating_add(MAX_READ_BYTES);
        if self.resize(wanted.min(most)) {
            return Some(&mut self.bytes);
        }
        // Reads less at a time into the capacity that is left; then tries the smallest growth, and moving within the
        // same size.
        self.read_bytes = MIN_READ_BYTES;
        let least = (self.bytes.len() + MIN_READ_BYTES).next_multiple_of(MIN_READ_BYTES);
        if spare == 0 && !self.resize(least) && !(consumed > 0 && self.resize(self.allocated)) {
            self.is_stuck = true;
            return None;
        }
        Some(&mut self.bytes)
    }

    /// `bytes` were read, and `free_space` bytes were free before: the size of the next read follows the traffic.
    pub(super) fn read(&mut self, bytes: usize, free_space: usize) {
        if bytes >= free_space {
            let is_little_used = self.lease.budget().used() <= LITTLE_MEMORY;
            let most = if is_little_used { MAX_READ_BYTES } else { MAX_READ_BYTES_OF_MANY };
            self.read_bytes = (self.read_bytes * 2).min(most).max(self.read_bytes);
        } else if bytes < self.read_bytes / 4 {
            self.read_bytes = (self.read_bytes / 2).max(MIN_READ_BYTES);
        }
    }

    /// The session has consumed the first `bytes`.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes.min(self.bytes.len()));
    }

    /// Takes everything that is buffered.
    pub(super) fn take(&mut self) -> BytesMut {
        self.allocated = 0;
        std::mem::take(&mut self.bytes)
    }

    /// Whether more is buffered than any message may have.
    pub(super) fn is_too_long(&self) -> bool {
        self.bytes.len() as u64 > self.max_bytes
    }

    /// Whether there was no memory to read on at the last attempt. The buffer then contains half a message. Its connection
    /// ends when the time for one message has passed, so that other connections make progress.
    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Remembers that memory was refused at this time.
    pub(super) fn note_refusal(&self, elapsed: Duration) {
        self.lease.note_refusal(elapsed);
    }

    /// Whether it has memory that others may need.
    pub(super) fn is_large(&self) -> bool {
        self.lease.is_beyond_floor()
    }

    /// Whether it has more memory than the buffered bytes need.
    pub(super) fn has_spare(&self) -> bool {
        self.allocated > self.bytes.len().next_multiple_of(MIN_READ_BYTES)
            || self.bytes.is_empty() && self.allocated > 0
    }

    /// Releases an empty, small buffer of a connection that waits: it is allocated again faster than it is worth.
    pub(super) fn release_if_empty(&mut self) {
        if self.bytes.is_empty() && self.allocated <= MIN_READ_BYTES {
            self.release();
        }
    }

    /// Releases the memory that the buffered bytes do not need.
    pub(super) fn release(&mut self) {
        self.read_bytes = MIN_READ_BYTES;
        // A smaller size always succeeds.
        let _ = self.resize(self.bytes.len().next_multiple_of(MIN_READ_BYTES));
    }

    /// Moves the buffered bytes into a buffer of this length. `false`: there is no memory for it.
    fn resize(&mut self, length: usize) -> bool {
        if length == self.allocated && self.bytes.capacity() == length {
            return length > self.bytes.len();
        }
        if !self.lease.try_resize(length as u64) {
            return false;
        }
        let mut moved = BytesMut::with_capacity(length);
        moved.extend_from_slice(&self.bytes);
        self.allocated = moved.capacity();
        self.bytes = moved;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1024;

    /// Reads `bytes`, as many at a time as the buffer takes; returns how many it has taken.
    fn read(buffer: &mut ReadBuffer, mut bytes: usize) -> usize {
        let wanted = bytes;
        while bytes > 0
            && let Some(bytes_mut) = buffer.free_space()
        {
            let free_space = bytes_mut.capacity() - bytes_mut.len();
            let here = bytes.min(free_space);
            bytes_mut.extend_from_slice(&vec![7; here]);
            buffer.read(here, free_space);
            bytes -= here;
        }
        wanted - bytes
    }

    #[test]
    fn a_buffer_grows_with_the_traffic_leases_every_byte_and_gives_everything_back() {
        let memory = MemoryBudget::new(64 << 20);
        let mut buffer = ReadBuffer::new(16 << 20, &memory);
        assert_eq!(read(&mut buffer, 8 * KIB), 8 * KIB);
        assert_eq!((memory.used(), buffer.is_large()), (0, false), "the lease of the connection includes it");
        assert_eq!(read(&mut buffer, 1 << 20), 1 << 20);
        assert_eq!(memory.used() as usize, buffer.allocated - MIN_READ_BYTES);
        assert!(buffer.allocated <= 4 << 20 && buffer.is_large());
        buffer.advance(buffer.len() - 10);
        assert_eq!(&*buffer, [7; 10]);
        buffer.release();
        assert_eq!((buffer.allocated, memory.used()), (MIN_READ_BYTES, 0));
        buffer.advance(10);
        buffer.release_if_empty();
        assert_eq!((buffer.allocated, buffer.bytes.capacity()), (0, 0));
    }

    #[test]
    fn steady_traffic_allocates_and_leases_nothing_more() {
        let memory = MemoryBudget::new(64 << 20);
        let mut buffer = ReadBuffer::new(16 << 20, &memory);
        for _ in 0..20 {
            assert_eq!(read(&mut buffer, 300 * KIB), 300 * KIB);
            buffer.advance(buffer.len());
        }
        let (allocated, used) = (buffer.allocated, memory.used());
        for left in 0..1000 {
            let free_space = buffer.free_space().unwrap();
            let bytes = free_space.capacity() - free_space.len();
            free_space.extend_from_slice(&vec![7; bytes]);
            buffer.read(bytes, bytes);
            buffer.advance(buffer.len() - left);
            assert_eq!((buffer.allocated, memory.used()), (allocated, used));
        }
    }

    #[test]
    fn while_others_use_memory_reads_stay_short() {
        let memory = MemoryBudget::new(64 << 20);
        let mut other = memory.passing(0);
        assert!(other.try_resize(LITTLE_MEMORY + 1));
        let (mut buffer, mut most) = (ReadBuffer::new(16 << 20, &memory), 0);
        for _ in 0..100 {
            let free_space = buffer.free_space().unwrap();
            let bytes = free_space.capacity() - free_space.len();
            free_space.extend_from_slice(&vec![7; bytes]);
            buffer.read(bytes, bytes);
            // A part of a message is left.
            buffer.advance(buffer.len() - 10);
            most = most.max(buffer.allocated);
        }
        assert_eq!(most, MAX_READ_BYTES_OF_MANY);
        drop(other);
        assert_eq!(read(&mut buffer, 1 << 20), 1 << 20);
        assert!(buffer.allocated >= 1 << 20);
    }

    #[test]
    fn without_memory_it_fills_its_space_gets_stuck_and_continues_when_there_is_memory() {
        let memory = MemoryBudget::new(100 * KIB as u64);
        let (mut other, mut third) = (memory.passing(0), memory.passing(0));
        assert!(third.try_resize(50 * KIB as u64) && other.try_resize(50 * KIB as u64));
        let mut buffer = ReadBuffer::new(16 << 20, &memory);
        assert_eq!(read(&mut buffer, 50 * KIB), 8 * KIB);
        assert!(buffer.is_stuck());
        // A little memory is used, too.
        assert!(other.try_resize(34 * KIB as u64));
        assert_eq!(read(&mut buffer, 50 * KIB), 16 * KIB);
        assert!(buffer.is_stuck());
        // Consumed bytes free capacity without further memory.
        buffer.advance(KIB);
        assert_eq!(read(&mut buffer, 50 * KIB), KIB);
        assert!(buffer.is_stuck());
        drop((other, third));
        assert_eq!(read(&mut buffer, 50 * KIB), 50 * KIB);
        assert!(!buffer.is_stuck());
        drop(buffer);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn no_buffer_is_larger_than_what_is_declared() {
        let memory = MemoryBudget::new(64 << 20);
        let mut buffer = ReadBuffer::new(KIB as u64, &memory);
        while !buffer.is_too_long() {
            let free_space = buffer.free_space().unwrap();
            let bytes = free_space.capacity() - free_space.len();
            free_space.extend_from_slice(&vec![7; bytes]);
            buffer.read(bytes, bytes);
        }
        assert!(buffer.allocated as u64 <= most_bytes(KIB as u64), "{}", buffer.allocated);
    }
}
