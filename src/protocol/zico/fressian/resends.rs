//! Records that come again: an agent that gets no answer connects again and sends the same records first (section 6.5).
//!
//! Of each connection of a host only the latest packet can come again, because the agent waits for each answer. So the records of
//! that packet are remembered, and compared with those of a packet of another connection.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::super::sessions::SessionSlot;
use super::digest::RecordDigest;

/// The most connections of a host whose latest packet is remembered.
const MAX_PACKETS: usize = 256;
/// The approximate memory of a packet beside its records, in bytes.
const PACKET_BYTES: usize = 64;

/// The latest packets of the connections of one host, the oldest first.
#[derive(Debug)]
pub(in super::super) struct Resends {
    time: Duration,
    /// The most records.
    limit: usize,
    packets: VecDeque<SentPacket>,
    records: usize,
    waiting: Vec<Waker>,
}

#[derive(Debug)]
struct SentPacket {
    connection: u64,
    /// When it was delivered, and its records. `None`: it is being worked on.
    delivered: Option<(Duration, Vec<RecordDigest>)>,
}

impl Resends {
    /// Records are remembered for `time`, `limit` of them at most.
    pub(in super::super) fn new(time: Duration, limit: usize) -> Self {
        Resends { time, limit, packets: VecDeque::new(), records: 0, waiting: Vec::new() }
    }

    pub(in super::super) fn memory_bytes(&self) -> usize {
        self.packets.len() * PACKET_BYTES + self.records * size_of::<RecordDigest>()
    }

    /// Whether a packet of another connection is being worked on.
    pub(in super::super) fn has_others(&self, connection: u64) -> bool {
        self.packets.iter().any(|packet| packet.connection != connection && packet.delivered.is_none())
    }

    /// Whether no packet of another connection is being worked on; else `context` is woken when one has ended.
    pub(in super::super) fn poll_others(&mut self, connection: u64, context: &mut Context<'_>) -> Poll<()> {
        if !self.has_others(connection) {
            return Poll::Ready(());
        }
        if !self.waiting.iter().any(|known| known.will_wake(context.waker())) {
            self.waiting.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// A packet of this connection is being worked on: the agent has read the answer to the one before.
    pub(super) fn begin(&mut self, connection: u64) {
        self.remove(connection);
        self.packets.push_back(SentPacket { connection, delivered: None });
        while self.packets.len() > MAX_PACKETS {
            self.pop();
        }
    }

    /// The packet of this connection was delivered with these records, or was not.
    pub(in super::super) fn end(&mut self, connection: u64, delivered: Option<(Duration, Vec<RecordDigest>)>) {
        self.remove(connection);
        if let Some((at, mut records)) = delivered.filter(|_| !self.time.is_zero()) {
            records.truncate(self.limit);
            self.records += records.len();
            self.packets.push_back(SentPacket { connection, delivered: Some((at, records)) });
            while self.records > self.limit && self.packets.len() > 1 {
                self.pop();
            }
        }
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// The records of the longest packet of another connection that begins with this record: what came again is the beginning of what is
    /// sent now, and may have been sent as several packets.
    pub(super) fn beginning_with(
        &self,
        first: RecordDigest,
        connection: u64,
        now: Duration,
    ) -> Option<&[RecordDigest]> {
        let others = self.packets.iter().filter(|packet| packet.connection != connection);
        let found = others.filter_map(|packet| {
            let (at, records) = packet.delivered.as_ref()?;
            let is_it = records.first() == Some(&first) && now.saturating_sub(*at) <= self.time;
            is_it.then_some(records.as_slice())
        });
        found.max_by_key(|records| records.len())
    }

    /// The records of each packet that may come again.
    pub(in super::super) fn delivered(&self) -> impl Iterator<Item = &[RecordDigest]> {
        self.packets.iter().filter_map(|packet| Some(packet.delivered.as_ref()?.1.as_slice()))
    }

    fn remove(&mut self, connection: u64) {
        if let Some(place) = self.packets.iter().position(|packet| packet.connection == connection)
            && let Some(SentPacket { delivered: Some((_, records)), .. }) = self.packets.remove(place)
        {
            self.records -= records.len();
        }
    }

    fn pop(&mut self) {
        if let Some(SentPacket { delivered: Some((_, records)), .. }) = self.packets.pop_front() {
            self.records -= records.len();
        }
    }
}

/// That a packet of a connection is being worked on. If it is dropped, the packet was not delivered.
#[derive(Debug)]
pub(in super::super) struct Resend {
    slot: Arc<SessionSlot>,
    connection: u64,
    is_ended: bool,
}

impl Resend {
    pub(in super::super) fn begin(slot: Arc<SessionSlot>, resends: &mut Resends, connection: u64) -> Self {
        resends.begin(connection);
        Resend { slot, connection, is_ended: false }
    }

    /// When it was delivered, and its records; `None`: it was not.
    pub(in super::super) fn end(mut self, delivered: Option<(Duration, Vec<RecordDigest>)>) {
        self.is_ended = true;
        self.slot.lock().resends.end(self.connection, delivered);
    }
}

impl Drop for Resend {
    fn drop(&mut self) {
        if !self.is_ended {
            self.slot.lock().resends.end(self.connection, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use super::*;

    const A: RecordDigest = [1; 16];
    const B: RecordDigest = [2; 16];

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_latest_packet_of_another_connection_is_found_by_its_first_record_for_a_time() {
        let mut resends = Resends::new(seconds(600), 10);
        resends.begin(1);
        resends.end(1, Some((seconds(1), vec![A, B])));
        assert_eq!(resends.beginning_with(A, 2, seconds(601)), Some(&[A, B][..]));
        assert_eq!(resends.beginning_with(A, 2, seconds(602)), None);
        assert_eq!(resends.beginning_with(B, 2, seconds(2)), None);
        assert_eq!(resends.beginning_with(A, 1, seconds(2)), None, "equal records of one connection are events");
        resends.end(3, Some((seconds(1), vec![A])));
        assert_eq!(resends.beginning_with(A, 2, seconds(2)), Some(&[A, B][..]), "a shorter one hides no longer one");
        resends.end(3, None);
        resends.begin(1);
        assert_eq!(resends.beginning_with(A, 2, seconds(2)), None, "the agent has read the answer");
        resends.end(1, None);
        assert_eq!(resends.memory_bytes(), 0);
    }

    #[test]
    fn a_packet_that_is_being_worked_on_is_waited_for() {
        let mut resends = Resends::new(seconds(600), 10);
        let mut context = Context::from_waker(Waker::noop());
        resends.begin(1);
        assert!(resends.poll_others(2, &mut context).is_pending());
        assert!(resends.poll_others(1, &mut context).is_ready());
        resends.end(1, Some((seconds(1), vec![A])));
        assert!(resends.poll_others(2, &mut context).is_ready());
        assert!(resends.waiting.is_empty());
    }

    #[test]
    fn packets_and_records_are_bounded() {
        let mut resends = Resends::new(seconds(600), 10);
        for connection in 0..1000 {
            resends.end(connection, Some((seconds(1), vec![A; 4])));
            assert!(resends.records <= 10);
        }
        resends.end(1000, Some((seconds(1), vec![B; 40])));
        assert_eq!((resends.packets.len(), resends.records), (1, 10));
        for connection in 0..1000 {
            resends.begin(connection);
        }
        assert_eq!(resends.packets.len(), MAX_PACKETS);
        let mut none = Resends::new(Duration::ZERO, 10);
        none.end(1, Some((seconds(1), vec![A])));
        assert_eq!(none.memory_bytes(), 0);
    }
}
