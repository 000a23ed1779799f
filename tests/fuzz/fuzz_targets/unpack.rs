//! gzip, zlib, deflate and LZ4: data packed by other libraries is unpacked completely or rejected for its size, and any bytes
//! unpack to the same data as with other libraries.
#![cfg_attr(feature = "fuzzer", no_main)]

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use lz4_flex::block;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use tributary::codec::inflate::{Gunzip, Inflate, InflateError, STEP_BYTES};
use tributary::codec::lz4::{Lz4Layout, Unlz4};

tributary_fuzz::target!(property);

fn property(input: &[u8]) {
    let Some((&[how, limit, damage, place], content)) = input.split_first_chunk() else { return };
    let limit = if limit == 0 { 1 << 20 } else { usize::from(limit) * usize::from(limit) };
    let packed = match how >> 4 {
        0 => None,
        // Repeated text, which compresses.
        often => Some(content.repeat(usize::from(often))),
    };
    let packed = packed.map(|content| (pack(how, &content), content));
    match packed {
        None => {
            let _ = unpack(how, content, limit);
        }
        Some((mut bytes, content)) => {
            let is_damaged = damage != 0 && !bytes.is_empty();
            if is_damaged {
                let at = usize::from(place) * bytes.len() / 256;
                bytes[at] ^= damage;
            }
            let unpacked = unpack(how, &bytes, limit);
            // A block without a size may look like a block with a size.
            if !is_damaged && how % KINDS != BLOCK && (!content.is_empty() || how % KINDS < SIZED) {
                match unpacked {
                    Ok(unpacked) => assert!(unpacked == content && content.len() <= limit),
                    Err(InflateError::TooLarge { .. }) => assert!(content.len() > limit),
                    // A size over the limit is not taken as a size.
                    Err(error) => assert!(how % KINDS >= SIZED && content.len() > limit, "{error}"),
                }
            }
        }
    }
}

const KINDS: u8 = 7;
const GZIP: u8 = 0;
const ZLIB: u8 = 1;
const RAW: u8 = 2;
const FRAME: u8 = 3;
const LINKED: u8 = 4;
const SIZED: u8 = 5;
const BLOCK: u8 = 6;

fn pack(how: u8, content: &[u8]) -> Vec<u8> {
    let level = Compression::new(u32::from(how >> 4).min(9));
    let frame = |mode| {
        let info = FrameInfo::new()
            .block_mode(mode)
            .block_size(BlockSize::Max64KB)
            .block_checksums(how & 0x10 != 0)
            .content_checksum(how & 0x20 != 0)
            .content_size((how & 0x40 != 0).then_some(content.len() as u64));
        let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(content).expect("memory takes everything");
        encoder.finish().expect("memory takes everything")
    };
    match how % KINDS {
        GZIP => {
            // Two members make one stream.
            let (one, other) = content.split_at(content.len() / 2);
            let member = |part: &[u8]| {
                let mut encoder = GzEncoder::new(Vec::new(), level);
                encoder.write_all(part).expect("memory takes everything");
                encoder.finish().expect("memory takes everything")
            };
            if how & 0x20 != 0 { [member(one), member(other)].concat() } else { member(content) }
        }
        ZLIB => {
            let mut encoder = ZlibEncoder::new(Vec::new(), level);
            encoder.write_all(content).expect("memory takes everything");
            encoder.finish().expect("memory takes everything")
        }
        RAW => {
            let mut encoder = DeflateEncoder::new(Vec::new(), level);
            encoder.write_all(content).expect("memory takes everything");
            encoder.finish().expect("memory takes everything")
        }
        FRAME => frame(BlockMode::Independent),
        LINKED => frame(BlockMode::Linked),
        SIZED => block::compress_prepend_size(content),
        _ => block::compress(content),
    }
}

/// Unpacks bytes, and compares with another library if unpacking succeeds.
fn unpack(how: u8, bytes: &[u8], limit: usize) -> Result<Vec<u8>, InflateError> {
    match how % KINDS {
        GZIP => {
            let mut gunzip = Gunzip::new(limit);
            let ours = steps(limit, || Ok((gunzip.step(bytes)?, gunzip.memory_bytes())));
            let ours = ours.map(|()| gunzip.into_output());
            // Only our reader accepts padding.
            let padding = bytes.iter().rev().take_while(|byte| **byte == 0).count();
            let theirs = |end: usize| read(MultiGzDecoder::new(&bytes[..end]), limit);
            agree(&ours, || (0..=padding).find_map(|padding| theirs(bytes.len() - padding)));
            ours
        }
        ZLIB | RAW => {
            let is_zlib = how % KINDS == ZLIB;
            let mut inflate = if is_zlib { Inflate::zlib(limit) } else { Inflate::raw(limit) };
            let ours = steps(limit, || Ok((inflate.step(bytes)?, inflate.memory_bytes())));
            let ours = ours.map(|()| inflate.into_output());
            agree(&ours, || match is_zlib {
                true => read(ZlibDecoder::new(bytes), limit),
                false => read(DeflateDecoder::new(bytes), limit),
            });
            ours
        }
        _ => {
            let mut unlz4 = Unlz4::new(bytes, limit);
            let ours = steps(limit, || Ok((unlz4.step(bytes)?, unlz4.memory_bytes())));
            let (layout, end) = (unlz4.layout(), unlz4.consumed());
            let ours = ours.map(|()| unlz4.into_output());
            if let Ok(output) = &ours {
                let theirs = match layout {
                    Lz4Layout::Frame => read(FrameDecoder::new(&bytes[..end]), limit),
                    Lz4Layout::SizeLe => block::decompress_size_prepended(bytes).ok(),
                    Lz4Layout::SizeBe => block::decompress(&bytes[4..], output.len()).ok(),
                    Lz4Layout::Block => block::decompress(bytes, output.len()).ok(),
                    Lz4Layout::Java => return ours,
                };
                assert!(
                    theirs.as_ref() == Some(output),
                    "{layout:?}: {:?} of {}",
                    theirs.map(|it| it.len()),
                    output.len()
                );
            }
            ours
        }
    }
}

/// Unpacks to the end, in bounded steps and memory.
fn steps(limit: usize, mut step: impl FnMut() -> Result<(bool, usize), InflateError>) -> Result<(), InflateError> {
    for _ in 0..100_000 {
        let (is_done, memory_bytes) = step()?;
        assert!(memory_bytes <= 2 * limit + 4 * STEP_BYTES, "{memory_bytes} bytes of memory for {limit}");
        if is_done {
            return Ok(());
        }
    }
    panic!("it does not end");
}

/// The result of another library, if the data is complete and within the limit.
fn read(from: impl Read, limit: usize) -> Option<Vec<u8>> {
    let mut output = Vec::new();
    from.take(limit as u64 + 1).read_to_end(&mut output).ok().filter(|_| output.len() <= limit)?;
    Some(output)
}

fn agree(ours: &Result<Vec<u8>, InflateError>, theirs: impl FnOnce() -> Option<Vec<u8>>) {
    match (ours, theirs()) {
        (Ok(ours), Some(theirs)) => assert!(*ours == theirs, "{} bytes, not {}", ours.len(), theirs.len()),
        (Err(_), None) => {}
        (Ok(ours), None) => panic!("{} bytes of what others refuse", ours.len()),
        (Err(error), Some(theirs)) => panic!("{error}, where others read {} bytes", theirs.len()),
    }
}
