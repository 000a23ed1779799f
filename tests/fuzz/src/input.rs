//! Inputs: a setting, followed by a stream that is cut, or by parts with an order each.

use std::time::Duration;

use tributary::protocol::End;

/// The separator of the parts of an input. Unlike lengths, it keeps a part valid when a fuzzer changes its neighbors.
pub const MARK: [u8; 3] = [0xFA, 0xCE, 0x5E];

/// The first bytes of an input, which select limits and pauses. Zeros select the usual values.
#[derive(Clone, Copy, Debug)]
pub struct Setting([u8; Setting::BYTES]);

impl Setting {
    pub const BYTES: usize = 16;

    /// Splits the setting from an input; `None` if the input is too short.
    pub fn take(input: &[u8]) -> Option<(Setting, &[u8])> {
        let (setting, rest) = input.split_first_chunk()?;
        Some((Setting(*setting), rest))
    }

    pub fn byte(&self, at: usize) -> u8 {
        self.0[at]
    }

    /// One of the choices; the first is the usual one.
    pub fn pick<T: Copy>(&self, at: usize, choices: &[T]) -> T {
        choices[usize::from(self.0[at]) % choices.len()]
    }

    /// A bit of a byte; bit 0 is the lowest.
    pub fn flag(&self, at: usize, bit: u32) -> bool {
        self.0[at] >> bit & 1 == 1
    }

    /// How a connection ends.
    pub fn end(&self, at: usize) -> End {
        self.pick(at, &ENDS)
    }

    /// The pause after a piece; none if the byte is zero.
    pub fn pause(&self, at: usize, piece: usize) -> Duration {
        let byte = u64::from(self.0[at]);
        let often = byte & 3;
        if byte == 0 || !(piece as u64).is_multiple_of(often + 1) {
            return Duration::ZERO;
        }
        Duration::from_millis(byte * byte / 4)
    }
}

const ENDS: [End; 5] = [End::Closed, End::Reset, End::TimedOut, End::TooLarge, End::Stopped];

/// Cuts a stream: 0 does not cut, 1 cuts into single bytes, other values are the seed of random lengths.
pub fn pieces(mut bytes: &[u8], cut: u8) -> impl Iterator<Item = &[u8]> {
    let mut state = u64::from(cut) | 1 << 40;
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let most = 1 << (2 + cut % 10);
        let length = match cut {
            0 => bytes.len(),
            1 => 1,
            _ => 1 + state as usize % most,
        };
        let (piece, rest) = bytes.split_at(length.min(bytes.len()));
        bytes = rest;
        Some(piece)
    })
}

/// A part of an input.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Selects what happens with the part.
    pub order: u8,
    pub bytes: &'a [u8],
}

/// The parts of an input; each begins with its order.
pub fn parts(input: &[u8]) -> impl Iterator<Item = Part<'_>> {
    let mut rest = Some(input);
    let parts = std::iter::from_fn(move || {
        let input = rest?;
        let mark = input.windows(MARK.len()).position(|window| window == MARK);
        rest = mark.map(|at| &input[at + MARK.len()..]);
        Some(&input[..mark.unwrap_or(input.len())])
    });
    parts.filter_map(|part| part.split_first().map(|(&order, bytes)| Part { order, bytes })).take(MAX_PARTS)
}

const MAX_PARTS: usize = 64;
