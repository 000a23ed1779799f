//! One block of LZ4: tokens, literals, and matches in the previous output.

use std::ops::Range;

use super::super::inflate::InflateError;

/// A block being decoded.
#[derive(Debug)]
pub(super) struct Block {
    at: usize,
    end: usize,
    /// The first output byte that matches may refer to.
    window: usize,
    /// The longest allowed output.
    most: usize,
    next: Next,
}

#[derive(Clone, Copy, Debug)]
enum Next {
    Token,
    /// This many literal bytes are left, then the match of this token.
    Literals {
        left: usize,
        token: u8,
    },
    /// This many bytes of a match are left, at this distance.
    Match {
        left: usize,
        distance: usize,
    },
}

/// Added to the encoded length of a match.
const LEAST_MATCH: usize = 4;

impl Block {
    /// The block at this offset of the input. The output may have at most `most` bytes.
    pub(super) fn new(place: Range<usize>, window: usize, most: usize) -> Self {
        Block { at: place.start, end: place.end, window, most, next: Next::Token }
    }

    /// The current offset in the input.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The end of the block in the input.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// Continues until the output has `pause` bytes, or a few more. Returns `true` at the end of the block.
    pub(super) fn step(&mut self, input: &[u8], output: &mut Vec<u8>, pause: usize) -> Result<bool, InflateError> {
        let input = &input[..self.end];
        while output.len() < pause {
            self.next = match self.next {
                Next::Token => {
                    let token = self.byte(input)?;
                    let left = self.length(token >> 4, input)?;
                    Next::Literals { left, token }
                }
                Next::Literals { left, token } => {
                    let step = left.min(pause - output.len());
                    let literals = input.get(self.at..self.at + step).ok_or(InflateError::Truncated)?;
                    self.check_limit(step, output)?;
                    output.extend_from_slice(literals);
                    self.at += step;
                    if step < left {
                        Next::Literals { left: left - step, token }
                    } else if self.at == self.end {
                        return Ok(true);
                    } else {
                        self.begin_match(token, input, output)?
                    }
                }
                Next::Match { left: 0, .. } => Next::Token,
                Next::Match { left, distance } => {
                    let step = left.min(pause - output.len());
                    self.check_limit(step, output)?;
                    repeat(output, distance, step);
                    Next::Match { left: left - step, distance }
                }
            };
        }
        Ok(false)
    }

    fn begin_match(&mut self, token: u8, input: &[u8], output: &[u8]) -> Result<Next, InflateError> {
        let distance = u16::from_le_bytes([self.byte(input)?, self.byte(input)?]);
        let distance = usize::from(distance);
        if distance == 0 || distance > output.len() - self.window {
            return Err(InflateError::Corrupt { offset: self.at - 2, what: "a match before the start of the data" });
        }
        let left = LEAST_MATCH + self.length(token & 15, input)?;
        Ok(Next::Match { left, distance })
    }

    /// Reads the rest of a length with these first four bits. It is at most 255 times the length of the input.
    fn length(&mut self, nibble: u8, input: &[u8]) -> Result<usize, InflateError> {
        let mut length = usize::from(nibble);
        let mut more = nibble == 15;
        while more {
            let byte = self.byte(input)?;
            length += usize::from(byte);
            more = byte == 255;
        }
        Ok(length)
    }

    fn byte(&mut self, input: &[u8]) -> Result<u8, InflateError> {
        let byte = *input.get(self.at).ok_or(InflateError::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    fn check_limit(&self, step: usize, output: &[u8]) -> Result<(), InflateError> {
        if step > self.most - output.len() {
            return Err(InflateError::TooLarge { limit: self.most });
        }
        Ok(())
    }
}

/// Appends `count` bytes, each the one `distance` before it.
fn repeat(output: &mut Vec<u8>, distance: usize, count: usize) {
    let start = output.len() - distance;
    let end = output.len() + count;
    // The copied bytes repeat, so the amount that can be copied doubles each time.
    while output.len() < end {
        let step = (output.len() - start).min(end - output.len());
        output.extend_from_within(start..start + step);
    }
}
