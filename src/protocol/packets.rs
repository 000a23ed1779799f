//! Requests and answers in packets over TCP, without HTTP, on the port of an [`Exchange`].
//!
//! A peer sends a packet and waits for the answer. Packets are decoded, delivered and acknowledged as requests are; only how they
//! are framed and answered differs. One value of [`Packets`] belongs to one connection.
//!
//! [`Exchange`]: super::Exchange

use std::sync::Arc;

use bytes::Bytes;

use tributary_event::Reason;
use tributary_memory::MemoryBudget;

use super::{Now, Output, Request, Response};

/// The packets of one connection.
pub trait Packets<W>: Send {
    /// What the bytes at the front of a packet say about it. Called again whenever more of them were received.
    fn frame(&self, input: &[u8]) -> Frame;

    /// What losses and taps may show of a packet, or of its front: not its secrets.
    fn shown<'a>(&self, input: &'a [u8]) -> &'a [u8];

    /// A packet as a request, for the quarantine and for taps. Its body is the packet.
    fn request(&self, packet: Bytes, number: u64) -> Request;

    /// A packet was received completely. What it needs beside its bytes it takes of `memory`, that of the peer's address. `None`:
    /// of the memory of the exchange.
    fn take(
        &mut self,
        packet: Request,
        memory: Option<&Arc<MemoryBudget>>,
        now: Now,
        out: &mut Output,
    ) -> PacketAction<W>;

    /// A packet waited while the process stood still. Whether it is dropped: its sender, which may no longer wait for the answer, would
    /// take it for that of its next packet. It is decoded then, and the connection is closed, so that the sender connects again.
    fn drop_late(&mut self, packet: &Request, out: &mut Output) -> bool;

    /// The answer in the form of the protocol. It is sent by one write.
    fn answer(&self, response: &Response) -> Vec<u8>;
}

/// What the front of a packet says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Frame {
    /// It is incomplete: this many bytes are needed in all.
    Needs(usize),
    /// The packet has this length, and all of it is there.
    Whole(usize),
    /// It is no packet that can be taken: the peer gets the answer, then the connection is closed.
    Refused {
        /// The answer.
        answer: Vec<u8>,
        /// Why the bytes are lost.
        reason: Reason,
        /// The detail of the loss.
        detail: String,
    },
}

/// What to do with a packet.
#[derive(Debug)]
pub enum PacketAction<W> {
    /// Send this answer at once. The output has its events, and every byte of the packet is decoded or lost.
    Answer {
        /// The answer.
        answer: Vec<u8>,
        /// The connection is closed then, and what follows on it is lost for this reason.
        closes: Option<Reason>,
    },
    /// Decode and deliver it, then answer.
    Work(W),
}
