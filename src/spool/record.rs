//! A record in a segment: a head of 44 bytes and the payload.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `TRec` |
//! | 4 | 4 | length of the payload |
//! | 8 | 8 | number of the record, from 1, without gaps |
//! | 16 | 8 | events in all records with smaller numbers |
//! | 24 | 4 | events in this record |
//! | 28 | 8 | when it was appended, milliseconds since 1970 |
//! | 36 | 4 | CRC-32C of the payload |
//! | 40 | 4 | CRC-32C of the segment's salt and of bytes 0 to 39 |
//!
//! Integers are big-endian. Each head counts the events before it, so a missing record is counted exactly by the next one
//! that is whole. A payload that contains a head is not taken for a record: its sender does not know the salt.

/// Length of a head in bytes.
pub(super) const HEAD_BYTES: usize = 44;
/// The first bytes of each head.
pub(super) const MAGIC: [u8; 4] = *b"TRec";

/// A place between two records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    /// The number of the record that follows.
    pub number: u64,
    /// The events in all records before it.
    pub events: u64,
}

impl Position {
    /// Before the first record of a new spool.
    pub const START: Position = Position { number: 1, events: 0 };
}

impl Default for Position {
    fn default() -> Self {
        Position::START
    }
}

/// The head of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RecordHead {
    /// Where the record is.
    pub(super) position: Position,
    pub(super) events: u32,
    pub(super) length: u32,
    /// Milliseconds since 1970.
    pub(super) time: u64,
    payload_crc: u32,
}

impl RecordHead {
    /// The head of a record with this payload, of at most `u32::MAX` bytes.
    pub(super) fn of(position: Position, events: u32, time: u64, payload: &[u8]) -> RecordHead {
        RecordHead { position, events, length: payload.len() as u32, time, payload_crc: crc32c::crc32c(payload) }
    }

    /// The head's bytes.
    pub(super) fn encode(&self, salt: u64) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.length.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.position.number.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.position.events.to_be_bytes());
        bytes[24..28].copy_from_slice(&self.events.to_be_bytes());
        bytes[28..36].copy_from_slice(&self.time.to_be_bytes());
        bytes[36..40].copy_from_slice(&self.payload_crc.to_be_bytes());
        let crc = head_crc(salt, &bytes[..40]);
        bytes[40..].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    /// Reads a head. `None`: these bytes are none, or a damaged one.
    pub(super) fn decode(bytes: &[u8; HEAD_BYTES], salt: u64) -> Option<RecordHead> {
        let u32_at = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
        if bytes[..4] != MAGIC || u32_at(40) != head_crc(salt, &bytes[..40]) {
            return None;
        }
        Some(RecordHead {
            position: Position { number: u64_at(8), events: u64_at(16) },
            events: u32_at(24),
            length: u32_at(4),
            time: u64_at(28),
            payload_crc: u32_at(36),
        })
    }

    /// The place behind this record.
    pub(super) fn next(&self) -> Position {
        let Position { number, events } = self.position;
        Position { number: number.saturating_add(1), events: events.saturating_add(u64::from(self.events)) }
    }

    /// Length of the record in the file, with its head.
    pub(super) fn record_bytes(&self) -> u64 {
        HEAD_BYTES as u64 + u64::from(self.length)
    }

    /// Whether these bytes are the payload.
    pub(super) fn is_payload(&self, bytes: &[u8]) -> bool {
        bytes.len() as u64 == u64::from(self.length) && crc32c::crc32c(bytes) == self.payload_crc
    }
}

fn head_crc(salt: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_be_bytes()), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_back_and_any_changed_bit_or_other_salt_makes_it_invalid() {
        let head = RecordHead::of(Position { number: 7, events: 1 << 40 }, 3, 5, b"payload");
        let bytes = head.encode(99);
        assert_eq!(RecordHead::decode(&bytes, 99), Some(head));
        assert_eq!(RecordHead::decode(&bytes, 98), None);
        for bit in 0..HEAD_BYTES * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHead::decode(&changed, 99), None, "bit {bit}");
        }
        assert_eq!(head.next(), Position { number: 8, events: (1 << 40) + 3 });
        assert!(head.is_payload(b"payload") && !head.is_payload(b"paYload") && !head.is_payload(b"payloa"));
    }
}
