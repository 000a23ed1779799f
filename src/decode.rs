//! Offline decoding: the sessions of the daemon, driven over bytes from anywhere instead of a socket.
//!
//! The same code as on a live connection, so a capture decodes to the same events, losses included.

use std::sync::Arc;

use bytes::{Buf, BytesMut};

use crate::event::{Batch, BatchBuilder, Origin};
use crate::pipeline::ledger::ListenerBooks;
use crate::protocol::{End, Flow, Now, Output, Session};

/// One recorded connection being decoded.
#[derive(Debug)]
pub struct Offline<S> {
    session: S,
    input: BytesMut,
    out: Output,
    books: Arc<ListenerBooks>,
}

impl<S: Session> Offline<S> {
    /// A connection from its first byte, booked in `books`.
    pub fn new(session: S, origin: Arc<Origin>, books: Arc<ListenerBooks>) -> Self {
        Offline { session, input: BytesMut::new(), out: Output::new(BatchBuilder::new(origin)), books }
    }

    /// The next bytes of the connection, in pieces of any size: the events do not depend on how it is cut.
    pub fn feed(&mut self, bytes: &[u8], now: Now, take: &mut impl FnMut(Batch)) {
        self.books.received(bytes.len() as u64);
        self.input.extend_from_slice(bytes);
        loop {
            let progress = self.session.receive(&self.input, now, &mut self.out);
            self.input.advance(progress.consumed);
            self.hand_over(take);
            if progress.flow != Flow::Again {
                return;
            }
        }
    }

    /// Time passes without a byte: what the session waits for until `now` happens.
    pub fn pass_time(&mut self, now: Now, take: &mut impl FnMut(Batch)) {
        while self.session.poll_timeout().is_some_and(|due| due <= now.elapsed) {
            let mut flow = Flow::Again;
            while flow == Flow::Again {
                flow = self.session.handle_timeout(now, &mut self.out);
                self.hand_over(take);
            }
        }
    }

    /// The connection ends.
    pub fn finish(mut self, end: End, now: Now, take: &mut impl FnMut(Batch)) {
        let rest = self.input.split();
        let mut rest: &[u8] = &rest;
        while self.session.finish(rest, end, now, &mut self.out) == Flow::Again {
            rest = &[];
            self.hand_over(take);
        }
        self.hand_over(take);
    }

    fn hand_over(&mut self, take: &mut impl FnMut(Batch)) {
        self.books.settle(&mut self.out);
        if !self.out.batch.is_empty() {
            let batch = self.out.batch.take();
            self.books.handed_over(&batch);
            take(batch);
        }
    }
}
