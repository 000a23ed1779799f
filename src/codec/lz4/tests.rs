//! Compared with the encoders of a library.

use std::io::Write;

use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
use proptest::prelude::*;

use super::*;

type Unpacked = Result<(Vec<u8>, Lz4Layout, usize), InflateError>;

fn unpack(input: &[u8], limit: usize) -> Unpacked {
    let mut unlz4 = Unlz4::new(input, limit);
    while !unlz4.step(input)? {
        assert!(unlz4.memory_bytes() <= 2 * (limit + STEP_BYTES));
    }
    let (layout, consumed) = (unlz4.layout(), unlz4.consumed());
    Ok((unlz4.into_output(), layout, consumed))
}

fn framed(bytes: &[u8], info: FrameInfo) -> Vec<u8> {
    let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
    // In pieces, so that linked blocks have a previous block.
    bytes.chunks(40_000).for_each(|piece| encoder.write_all(piece).unwrap());
    encoder.finish().unwrap()
}

fn infos() -> [FrameInfo; 4] {
    let info = FrameInfo::new;
    [
        info(),
        info().block_mode(BlockMode::Linked).content_checksum(true),
        info().block_checksums(true).block_size(BlockSize::Max256KB),
        info().block_mode(BlockMode::Linked).block_checksums(true).content_checksum(true),
    ]
}

/// A stream as lz4-java writes it, in blocks of 1 KiB.
fn java(bytes: &[u8]) -> Vec<u8> {
    let mut stream = Vec::new();
    let mut block = |kind: u8, data: &[u8], original: &[u8]| {
        let sizes = [data.len() as u32, original.len() as u32];
        let checksum = if original.is_empty() { 0 } else { Xxh32::of(original, JAVA_SEED) & JAVA_CHECKSUM_MASK };
        stream.extend_from_slice(&JAVA_MAGIC);
        stream.push(kind);
        [sizes[0], sizes[1], checksum].iter().for_each(|word| stream.extend_from_slice(&word.to_le_bytes()));
        stream.extend_from_slice(data);
    };
    for piece in bytes.chunks(1024) {
        let packed = lz4_flex::block::compress(piece);
        if packed.len() < piece.len() { block(0x20, &packed, piece) } else { block(0x10, piece, piece) }
    }
    block(0x10, &[], &[]);
    stream
}

/// Repetitive enough to be compressed, and long enough for several blocks and steps.
fn text(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (at * at % 251 % (1 + at % 7)) as u8).collect()
}

#[test]
fn frames_of_every_kind_are_decompressed_and_bytes_after_them_are_not_consumed() {
    for bytes in [0, 1, 1000, 3 * STEP_BYTES + 5] {
        let text = text(bytes);
        for info in infos() {
            let frame = framed(&text, info);
            let input = [frame.as_slice(), b"more"].concat();
            assert!(unpack(&input, bytes) == Ok((text.clone(), Lz4Layout::Frame, frame.len())), "{bytes}");
            if bytes > 0 {
                assert_eq!(unpack(&frame, bytes - 1).unwrap_err(), InflateError::TooLarge { limit: bytes - 1 });
            }
        }
    }
}

#[test]
fn errors_of_frames_name_their_offset() {
    let frame = framed(&text(500), FrameInfo::new().block_checksums(true).content_checksum(true));
    let at = |place: usize, bit: u8| {
        let mut damaged = frame.clone();
        damaged[place] ^= bit;
        unpack(&damaged, 999).unwrap_err()
    };
    let corrupt = |offset, what| InflateError::Corrupt { offset, what };
    assert_eq!(at(4, 1), corrupt(4, "a frame that needs a dictionary"));
    assert_eq!(at(4, 2), corrupt(4, "flags that a frame does not have"));
    assert_eq!(at(6, 1), corrupt(6, "a checksum that does not match the frame's head"));
    assert_eq!(at(12, 1), corrupt(7, "a checksum that does not match its block"));
    assert_eq!(at(frame.len() - 1, 1), corrupt(frame.len() - 8, "a checksum that does not match the content"));
    for place in 4..frame.len() {
        assert!(matches!(at(place, 0x10), InflateError::Corrupt { .. } | InflateError::Truncated), "{place}");
    }
}

#[test]
fn a_bomb_stops_at_the_limit() {
    let zeros = vec![0; 8 << 20];
    let limit = 1 << 20;
    let packed = lz4_flex::block::compress(&zeros);
    assert_eq!(unpack(&packed, limit), Err(InflateError::TooLarge { limit }));
    assert_eq!(unpack(&framed(&zeros, FrameInfo::new()), limit), Err(InflateError::TooLarge { limit }));
    let mut sized = (8u32 << 20).to_le_bytes().to_vec();
    sized.extend_from_slice(&packed);
    assert!(unpack(&sized, limit).is_err());
}

#[test]
fn a_declared_size_takes_no_memory() {
    // Each would need gigabytes: a frame whose content is 2^60 bytes long, a block of lz4-java, a size before a block.
    let mut frame = vec![0x04, 0x22, 0x4D, 0x18, 0x68, 0x70];
    frame.extend_from_slice(&(1u64 << 60).to_le_bytes());
    frame.push((Xxh32::of(&frame[4..], 0) >> 8) as u8);
    frame.extend_from_slice(&[0; 4]);
    let java = [b"LZ4Block\x2F".as_slice(), &[9, 0, 0, 0, 0, 0, 0, 2, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat();
    for input in [frame.as_slice(), &java, &[0xFF, 0xFF, 0xFF, 0x7F, 0x10, b'a']] {
        let mut unlz4 = Unlz4::new(input, 1 << 30);
        loop {
            match unlz4.step(input) {
                Ok(false) => assert!(unlz4.memory_bytes() < 1 << 20),
                Ok(true) => panic!("accepted"),
                Err(_) => break,
            }
        }
    }
}

#[test]
fn matches_stay_inside_the_output() {
    assert_eq!(unpack(&[0x10, b'a', 2, 0, 0], 99), Err(InflateError::Corrupt { offset: 2, what: OUTSIDE }));
    assert_eq!(unpack(&[0x10, b'a', 0, 0, 0], 99), Err(InflateError::Corrupt { offset: 2, what: OUTSIDE }));
    assert_eq!(unpack(&[0x12, b'a', 1, 0, 0x10, b'b'], 99).unwrap().0, b"aaaaaaab");
}

const OUTSIDE: &str = "a match before the start of the data";

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn what_a_library_packs_is_unpacked(bytes in prop::collection::vec(prop_oneof![3 => Just(b'a'), 1 => any::<u8>()], 1..5000)) {
        let block = lz4_flex::block::compress(&bytes);
        let size = bytes.len() as u32;
        let le = [&size.to_le_bytes(), block.as_slice()].concat();
        let be = [&size.to_be_bytes(), block.as_slice()].concat();
        for (input, layout) in [
            (le, Lz4Layout::SizeLe), (be, Lz4Layout::SizeBe), (block, Lz4Layout::Block), (java(&bytes), Lz4Layout::Java),
            (framed(&bytes, FrameInfo::new()), Lz4Layout::Frame),
        ] {
            let length = input.len();
            prop_assert!(unpack(&input, bytes.len()) == Ok((bytes.clone(), layout, length)), "{layout:?}");
        }
    }

    #[test]
    fn arbitrary_blocks_are_read_as_a_library_reads_them(block in prop::collection::vec(any::<u8>(), 1..60)) {
        let mut ours = Unlz4 { layout: Lz4Layout::Block, ..Unlz4::new(&block, 4000) };
        let ours = loop {
            match ours.step(&block) {
                Ok(false) => {}
                Ok(true) => break Some(ours.into_output()),
                Err(_) => break None,
            }
        };
        let theirs = lz4_flex::block::decompress(&block, 4000).ok();
        prop_assert!(ours == theirs, "{ours:?} {theirs:?}");
    }

    #[test]
    fn a_stream_that_is_cut_off_is_truncated(bytes in prop::collection::vec(any::<u8>(), 1..300), cut in any::<prop::sample::Index>()) {
        for packed in [java(&bytes), framed(&bytes, FrameInfo::new().content_checksum(true))] {
            let cut = cut.index(packed.len() - 8) + 8;
            prop_assert!(unpack(&packed[..cut], 999) == Err(InflateError::Truncated));
        }
    }
}
