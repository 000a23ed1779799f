//! The send buffers of an agent. Its memory budget limits their number.

use super::super::Counts;

/// Whole messages to be sent.
#[derive(Debug, Default)]
pub struct Buffer {
    /// The messages.
    pub bytes: Vec<u8>,
    /// Their counts; the events are the numbered messages.
    pub counts: Counts,
}

impl Buffer {
    /// Appends a message.
    #[inline]
    pub(super) fn put(&mut self, message: &[u8]) {
        self.bytes.extend_from_slice(message);
        self.counts.messages += 1;
    }

    /// Clears it and keeps the memory.
    pub(super) fn emptied(mut self) -> Self {
        self.bytes.clear();
        self.counts = Counts::default();
        self
    }
}

/// The buffers of an agent. Some are open, and any thread may write to any open one; full ones wait to be sent.
#[derive(Debug)]
pub(super) struct Buffers {
    open: Vec<Buffer>,
    free: Vec<Buffer>,
    full: Vec<Buffer>,
    /// The size from which a buffer is full: nine tenths, as in real agents.
    full_bytes: usize,
}

/// The size of a buffer, if the budget allows it.
const BUFFER_BYTES: usize = 8192;

/// The least number of buffers, if necessary smaller ones.
const FEWEST: usize = 10;

/// The size and number of buffers for a budget: 8192 bytes, halved until there are ten.
pub(super) fn cut(budget_bytes: usize) -> (usize, usize) {
    let mut bytes = BUFFER_BYTES;
    while bytes > 1 && budget_bytes / bytes < FEWEST {
        bytes /= 2;
    }
    (bytes, budget_bytes / bytes)
}

impl Buffers {
    /// The buffers of a budget; `open` of them (at least one) are open.
    pub(super) fn new(budget_bytes: usize, open: usize) -> Self {
        let (bytes, count) = cut(budget_bytes);
        let buffer = || Buffer { bytes: Vec::with_capacity(bytes + BUFFER_BYTES / 16), counts: Counts::default() };
        let open = open.clamp(1, count.max(2) / 2);
        Buffers {
            open: (0..open).map(|_| buffer()).collect(),
            free: (open..count.max(open)).map(|_| buffer()).collect(),
            full: Vec::new(),
            full_bytes: bytes * 9 / 10,
        }
    }

    /// The number of open buffers.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// An open buffer.
    #[inline]
    pub(super) fn at(&mut self, place: usize) -> &mut Buffer {
        &mut self.open[place]
    }

    /// Whether the open buffer at `place` has space. A full one is replaced if another is free.
    #[inline]
    pub(super) fn has_space(&mut self, place: usize) -> bool {
        if self.open[place].bytes.len() < self.full_bytes {
            return true;
        }
        let Some(free) = self.free.pop() else { return false };
        self.full.push(std::mem::replace(&mut self.open[place], free));
        true
    }

    /// Takes out the open buffer at `place`, which its writer keeps for now. `None`: it is empty, or no other is free.
    pub(super) fn hold(&mut self, place: usize) -> Option<Buffer> {
        if self.open[place].bytes.is_empty() {
            return None;
        }
        let free = self.free.pop()?;
        Some(std::mem::replace(&mut self.open[place], free))
    }

    /// Returns a buffer that was held: it is sent next.
    pub(super) fn release(&mut self, buffer: Buffer) {
        self.full.push(buffer);
    }

    /// Whether no buffer is free.
    pub(super) fn are_used_up(&self) -> bool {
        self.free.is_empty()
    }

    /// The full ones.
    pub(super) fn take_full(&mut self) -> impl Iterator<Item = Buffer> {
        self.full.drain(..)
    }

    /// Marks every open buffer with content as full, the last one first, while others are free.
    pub(super) fn close_partial(&mut self) {
        for place in (0..self.open.len()).rev() {
            if self.open[place].bytes.is_empty() {
                continue;
            }
            let Some(free) = self.free.pop() else { return };
            self.full.push(std::mem::replace(&mut self.open[place], free));
        }
    }

    /// All remaining buffers, at the end.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Buffer> {
        let rest = self.open.drain(..).rev().filter(|buffer| !buffer.bytes.is_empty());
        self.full.drain(..).chain(rest)
    }

    /// Returns a buffer that was sent.
    pub(super) fn give_back(&mut self, buffer: Buffer) {
        self.free.push(buffer.emptied());
    }

    /// The number of buffers with content.
    pub(super) fn readable(&self) -> usize {
        self.full.len() + self.open.iter().filter(|buffer| !buffer.bytes.is_empty()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_cut_as_agents_cut_it() {
        assert_eq!(cut(25_600), (2048, 12));
        assert_eq!(cut(4 << 20), (8192, 512));
        assert_eq!(cut(640), (64, 10));
    }

    #[test]
    fn a_full_buffer_is_replaced_only_while_another_is_free() {
        let mut buffers = Buffers::new(25_600, 2);
        let mut made = 0;
        while buffers.has_space(0) {
            buffers.at(0).put(&[0; 21]);
            made += 1;
        }
        // Twelve buffers, one of them open at the other place: eleven of 88 messages.
        assert_eq!(made, 11 * 88);
        let taken: Vec<_> = buffers.take_full().collect();
        assert_eq!((taken.len(), buffers.readable()), (10, 1));
        taken.into_iter().for_each(|buffer| buffers.give_back(buffer));
        assert!(buffers.has_space(0));
    }
}
