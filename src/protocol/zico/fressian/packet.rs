//! Packets: a header of 18 bytes, and content (section 6.1).

use tributary_codec::crc::crc32;
use tributary_event::Reason;
use tributary_protocol::Frame;

/// The first bytes of each packet: the port 8640 in hexadecimal digits, and two more.
pub const MAGIC: [u8; 4] = [0x21, 0xC0, 0xBA, 0xBE];
/// Magic, type, length of the content, and CRC-32 of the content as 64 bits.
pub const HEADER_BYTES: usize = 18;

/// Types of packets, and statuses of answers.
pub mod code {
    #![allow(missing_docs)]
    pub const OK: u16 = 0;
    pub const DATA: u16 = 1;
    pub const BAD_CHECKSUM: u16 = 3;
    pub const PING: u16 = 4;
    pub const PONG: u16 = 5;
    pub const UNAUTHORIZED: u16 = 6;
    pub const INTERNAL: u16 = 7;
    pub const BAD_REQUEST: u16 = 8;
    pub const BAD_MAGIC: u16 = 9;
    pub const HELLO: u16 = 0x10;
}

/// The header of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PacketHeader {
    /// Its type.
    pub kind: u16,
    /// The number of bytes that follow.
    pub length: i32,
    /// The checksum of the content.
    pub checksum: u64,
}

impl PacketHeader {
    /// The header at the front of a packet, whose magic is right. `None`: it is incomplete.
    pub fn read(packet: &[u8]) -> Option<PacketHeader> {
        let rest = packet.strip_prefix(&MAGIC)?;
        let (kind, rest) = rest.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (checksum, _) = rest.split_first_chunk()?;
        Some(PacketHeader {
            kind: u16::from_be_bytes(*kind),
            length: i32::from_be_bytes(*length),
            checksum: u64::from_be_bytes(*checksum),
        })
    }

    /// Whether the checksum is that of the content.
    pub fn is_intact(&self, content: &[u8]) -> bool {
        let expected = u64::from(crc32(content));
        // The high half is 0.
        self.checksum == expected
    }
}

/// An answer.
pub fn answer(status: u16) -> Vec<u8> {
    let mut packet = MAGIC.to_vec();
    packet.extend_from_slice(&status.to_be_bytes());
    packet.resize(HEADER_BYTES, 0);
    packet
}

/// A packet with this content.
pub fn packet(kind: u16, content: &[u8]) -> Vec<u8> {
    let checksum = u64::from(crc32(content));
    let mut packet = MAGIC.to_vec();
    packet.extend_from_slice(&kind.to_be_bytes());
    packet.extend_from_slice(&u32::try_from(content.len()).unwrap_or(u32::MAX).to_be_bytes());
    packet.extend_from_slice(&checksum.to_be_bytes());
    packet.extend_from_slice(content);
    packet
}

/// The frame of a packet of at most `limits` bytes of content: of a hello, and of others.
pub(super) fn frame(input: &[u8], limits: FrameLimits) -> Frame {
    let known = input.len().min(MAGIC.len());
    if input[..known] != MAGIC[..known] {
        let detail = "these bytes are not the magic of a packet".to_owned();
        return Frame::Refused { answer: answer(code::BAD_MAGIC), reason: Reason::Malformed, detail };
    }
    let Some(header) = PacketHeader::read(input) else { return Frame::Needs(HEADER_BYTES) };
    let (limit, key) = match header.kind {
        code::HELLO => (limits.hello, "max_registration_bytes"),
        _ => (limits.data, "max_packet_bytes"),
    };
    match usize::try_from(header.length) {
        Ok(length) if length <= limit && input.len() >= HEADER_BYTES + length => Frame::Whole(HEADER_BYTES + length),
        Ok(length) if length <= limit => Frame::Needs(HEADER_BYTES + length),
        _ => {
            let detail = format!("a packet declares {} bytes of content; the limit is {limit} ({key})", header.length);
            Frame::Refused { answer: answer(code::BAD_REQUEST), reason: Reason::TooLarge, detail }
        }
    }
}

/// The most bytes of content.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameLimits {
    pub(super) hello: usize,
    pub(super) data: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: FrameLimits = FrameLimits { hello: 10, data: 100 };

    #[test]
    fn a_packet_is_recognised_in_pieces_of_any_size() {
        let whole = packet(code::DATA, b"abc");
        for cut in 0..HEADER_BYTES {
            assert_eq!(frame(&whole[..cut], LIMITS), Frame::Needs(HEADER_BYTES), "{cut}");
        }
        for cut in HEADER_BYTES..whole.len() {
            assert_eq!(frame(&whole[..cut], LIMITS), Frame::Needs(whole.len()));
        }
        assert_eq!(frame(&whole, LIMITS), Frame::Whole(21));
        let header = PacketHeader::read(&whole).unwrap();
        assert_eq!(header, PacketHeader { kind: 1, length: 3, checksum: 0x3524_41C2 });
        assert!(header.is_intact(b"abc") && !header.is_intact(b"abd"));
        assert!(!PacketHeader { checksum: header.checksum | 1 << 63, ..header }.is_intact(b"abc"));
    }

    #[test]
    fn what_cannot_become_a_packet_is_refused_with_its_first_wrong_byte() {
        let refused = |bytes: &[u8]| match frame(bytes, LIMITS) {
            Frame::Refused { answer, reason, .. } => Some((answer[5], reason)),
            _ => None,
        };
        assert_eq!(refused(&[0x21, 0xC1]), Some((9, Reason::Malformed)));
        assert_eq!(refused(b"G"), Some((9, Reason::Malformed)));
        let mut long = packet(code::DATA, &[0; 101]);
        assert_eq!(refused(&long[..HEADER_BYTES]), Some((8, Reason::TooLarge)));
        long[6] = 0xFF;
        assert_eq!(refused(&long[..HEADER_BYTES]), Some((8, Reason::TooLarge)), "a negative length");
        assert_eq!(refused(&packet(code::HELLO, &[0; 11])), Some((8, Reason::TooLarge)));
        assert_eq!(answer(6), b"\x21\xC0\xBA\xBE\x00\x06\0\0\0\0\0\0\0\0\0\0\0\0");
    }
}
