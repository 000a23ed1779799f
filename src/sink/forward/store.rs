//! Where requests wait: in memory, or in a spool.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::ops::Range;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::EncodedRequest;
use tributary_sink::AckLevel;
use tributary_spool::{self as spool, AppendError, Dropped, Refused, Spool};

/// Requests that are not settled.
#[derive(Debug)]
pub(crate) enum RequestStore {
    /// In memory, without a limit of its own: the sink waits until they are settled before it takes more events.
    Memory(Memory),
    /// On disk.
    Spool(Box<Spool>, WhenFull),
}

/// What happens to a request when the spool has no space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WhenFull {
    /// It is not appended, and the sink waits.
    #[default]
    Block,
    /// The oldest requests are dropped.
    DropOldest,
    /// It is dropped.
    DropNewest,
}

/// Whether the destination takes requests now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reach {
    /// The last attempt has succeeded, or there was none.
    Good,
    /// The last attempt has failed, and further requests can be tried at once.
    Doubtful,
    /// As many attempts as are made at the same time have failed, and none has succeeded since.
    Away,
}

/// Requests in memory.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Part of their ids.
    salt: u64,
    last_number: u64,
    waiting: VecDeque<(u64, EncodedRequest)>,
    /// Requests in flight, with their events.
    taken: BTreeMap<u64, u64>,
    events: u64,
}

/// What is taken from a store.
#[derive(Debug)]
pub(super) enum StoreItem {
    /// A request and its number.
    Request(u64, EncodedRequest),
    /// The destination had this many events before their request was written. Only a loss of power forgets that.
    Settled(u64),
    /// Requests that cannot be read.
    Damaged(Damaged),
}

/// Requests that cannot be read.
#[derive(Debug)]
pub(super) struct Damaged {
    pub(super) numbers: Range<u64>,
    pub(super) events: u64,
    /// What is damaged.
    pub(super) why: String,
}

/// What became of a request that was to be appended.
#[derive(Debug, Default)]
pub(super) struct Appended {
    /// It was dropped.
    pub(super) is_dropped: bool,
    /// It was not appended, and why.
    pub(super) fault: Option<io::Error>,
    /// Older requests that were dropped for it.
    pub(super) dropped: Vec<Dropped>,
}

/// What became of the requests of a store that is closed.
#[derive(Debug, Default)]
pub(super) struct Closed {
    /// Why not everything was saved.
    pub(super) fault: Option<io::Error>,
    /// Requests that were dropped because the disk had no space for all.
    pub(super) dropped: Vec<Dropped>,
    /// The events of requests that the disk has not taken, although none is to be dropped.
    pub(super) lost: u64,
    /// The events that still wait.
    pub(super) waiting: u64,
}

impl RequestStore {
    /// An empty store in memory.
    pub(crate) fn memory() -> RequestStore {
        let salt = RandomState::new().hash_one(0);
        RequestStore::Memory(Memory {
            salt,
            last_number: 0,
            waiting: VecDeque::new(),
            taken: BTreeMap::new(),
            events: 0,
        })
    }

    /// Events that are not settled.
    pub(super) fn waiting(&self) -> u64 {
        match self {
            RequestStore::Memory(memory) => memory.events,
            RequestStore::Spool(spool, _) => spool.waiting().events,
        }
    }

    /// Whether all requests are settled.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            RequestStore::Memory(memory) => memory.waiting.is_empty() && memory.taken.is_empty(),
            RequestStore::Spool(spool, _) => spool.waiting().records == 0,
        }
    }

    /// The number of the last request; 0: none.
    pub(super) fn last_number(&self) -> u64 {
        match self {
            RequestStore::Memory(memory) => memory.last_number,
            RequestStore::Spool(spool, _) => spool.last_number(),
        }
    }

    /// Requests that are not settled, and the bytes that they take on the disk.
    pub(super) fn size(&self) -> (u64, u64) {
        match self {
            RequestStore::Memory(memory) => ((memory.waiting.len() + memory.taken.len()) as u64, 0),
            RequestStore::Spool(spool, _) => {
                let waiting = spool.waiting();
                (waiting.records, waiting.bytes)
            }
        }
    }

    /// When the oldest request that is being sent was made.
    pub(super) fn oldest(&self) -> Option<SystemTime> {
        match self {
            RequestStore::Memory(_) => None,
            RequestStore::Spool(spool, _) => spool.oldest(),
        }
    }

    /// Events that an operator has removed between the last start and this one.
    pub(super) fn dropped(&self) -> u64 {
        match self {
            RequestStore::Memory(_) => 0,
            RequestStore::Spool(spool, _) => spool.dropped().events,
        }
    }

    /// Appends a request. While the destination takes requests, it waits in memory, and on the disk only if that has space. While
    /// it is away, the request is written; if the disk does not take it, it or others are dropped, as configured.
    pub(super) fn append(&mut self, payload: Bytes, events: u32, reach: Reach) -> io::Result<Appended> {
        let (spool, when_full) = match self {
            RequestStore::Memory(memory) => {
                memory.append(payload, events);
                return Ok(Appended::default());
            }
            RequestStore::Spool(spool, when_full) => (spool, *when_full),
        };
        let mut appended = Appended::default();
        if reach != Reach::Away {
            spool.hold(payload, events).map_err(described)?;
            if reach == Reach::Doubtful {
                // What the disk does not take stays in memory.
                let _ = spool.write_out();
            }
            return Ok(appended);
        }
        loop {
            match spool.append(payload.clone(), events) {
                Ok(()) => return Ok(appended),
                Err(error) if when_full == WhenFull::Block => return Err(described(error)),
                Err(AppendError::Full(why)) if when_full == WhenFull::DropOldest => match spool.drop_oldest() {
                    Ok(Some(dropped)) => appended.dropped.push(dropped),
                    // Not even a spool with nothing but what is being sent has space for it.
                    Ok(None) => {
                        tracing::warn!(events, why, "a request was dropped");
                        return Ok(Appended { is_dropped: true, ..appended });
                    }
                    Err(error) => return Ok(Appended { fault: Some(error), ..appended }),
                },
                Err(_) => return Ok(Appended { is_dropped: true, ..appended }),
            }
        }
    }

    /// Appends a request that was on the disk and is to be sent again, if the disk takes it.
    pub(super) fn append_again(&mut self, payload: Bytes, events: u32) -> io::Result<()> {
        match self {
            RequestStore::Memory(memory) => memory.append(payload, events),
            RequestStore::Spool(spool, _) => spool.append(payload, events).map_err(described)?,
        }
        Ok(())
    }

    /// Writes what is only in memory to the disk, if it is kept there.
    pub(super) fn write_out(&mut self) -> io::Result<()> {
        match self {
            RequestStore::Memory(_) => Ok(()),
            RequestStore::Spool(spool, _) => spool.write_out().map_err(described),
        }
    }

    /// Forces what was appended to the disk, if it is kept there.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        match self {
            RequestStore::Memory(_) => Ok(()),
            RequestStore::Spool(spool, _) => spool.sync().map_err(described),
        }
    }

    /// The same, if a request has been waiting for `longest`.
    pub(super) fn sync_waiting(&mut self, longest: Duration) -> io::Result<()> {
        match self {
            RequestStore::Memory(_) => Ok(()),
            RequestStore::Spool(spool, _) => spool.sync_waiting(longest).map_err(described),
        }
    }

    /// Whether each of these requests is settled, or is kept on the disk at this level.
    pub(super) fn has_kept(&self, numbers: Range<u64>, level: AckLevel) -> bool {
        match self {
            RequestStore::Memory(_) => false,
            RequestStore::Spool(spool, _) => spool.has_kept(numbers, level == AckLevel::Durable),
        }
    }

    /// Why the disk has not taken a request, if the last attempt has failed.
    pub(super) fn shortage(&self) -> Option<&str> {
        match self {
            RequestStore::Memory(_) => None,
            RequestStore::Spool(spool, _) => spool.shortage(),
        }
    }

    pub(super) fn take(&mut self) -> io::Result<Option<StoreItem>> {
        let spool = match self {
            RequestStore::Memory(memory) => return Ok(memory.take()),
            RequestStore::Spool(spool, _) => spool,
        };
        Ok(spool.take()?.map(|item| match item {
            spool::SpoolItem::Record(record) if record.payload.is_empty() => {
                spool.acknowledge(record.position.number);
                StoreItem::Settled(record.events.into())
            }
            spool::SpoolItem::Record(record) => {
                let request = EncodedRequest { id: record.id, events: record.events, payload: record.payload };
                StoreItem::Request(record.position.number, request)
            }
            spool::SpoolItem::Damaged(damage) => {
                let (records, events) = (damage.records(), damage.events());
                let place = format!("{} at {}", damage.path.display(), damage.offset);
                let why = format!("{records} requests with {events} events cannot be read: {place}");
                StoreItem::Damaged(Damaged { numbers: damage.start.number..damage.end.number, events, why })
            }
        }))
    }

    pub(super) fn settle(&mut self, number: u64) {
        match self {
            RequestStore::Memory(memory) => memory.events -= memory.taken.remove(&number).unwrap_or(0),
            RequestStore::Spool(spool, _) => spool.acknowledge(number),
        }
    }

    pub(super) fn tidy(&mut self) -> io::Result<()> {
        match self {
            RequestStore::Memory(_) => Ok(()),
            RequestStore::Spool(spool, _) => spool.tidy(),
        }
    }

    /// Keeps a refused request; returns where, for the log.
    pub(super) fn keep_refused(&mut self, request: &EncodedRequest, why: &str) -> io::Result<String> {
        match self {
            RequestStore::Memory(_) => Ok(String::new()),
            RequestStore::Spool(spool, _) => {
                let path = spool.keep_refused(&request.id, request.events, why, &request.payload)?;
                Ok(path.map_or_else(
                    || "; refused/ is full".to_owned(),
                    |path| format!("; it is kept in {}", path.display()),
                ))
            }
        }
    }

    /// The next refused request that an operator wants to be sent again.
    pub(super) fn take_retried(&self) -> io::Result<Option<Refused>> {
        match self {
            RequestStore::Memory(_) => Ok(None),
            RequestStore::Spool(spool, ..) => spool.take_retried(),
        }
    }

    /// Such a request is appended, or waits until it can be.
    pub(super) fn end_retried(&mut self, request: &Refused, is_appended: bool) -> io::Result<()> {
        match self {
            RequestStore::Memory(_) => Ok(()),
            RequestStore::Spool(spool, ..) if is_appended => {
                spool.sync().map_err(described)?;
                spool.forget_retried(request)
            }
            RequestStore::Spool(spool, ..) => spool.put_back(request),
        }
    }

    /// Saves what waits and what is settled. What the disk does not take is dropped as configured, or lost.
    pub(super) fn close(&mut self) -> Closed {
        let (spool, when_full) = match self {
            RequestStore::Memory(memory) => return Closed { waiting: memory.events, ..Closed::default() },
            RequestStore::Spool(spool, when_full) => (spool, *when_full),
        };
        let mut closed = Closed::default();
        loop {
            closed.fault = match spool.sync() {
                Ok(()) => None,
                Err(AppendError::Full(_)) if when_full == WhenFull::DropOldest => match spool.drop_oldest() {
                    Ok(Some(dropped)) => {
                        closed.dropped.push(dropped);
                        continue;
                    }
                    // Not even a spool with nothing but what was being sent has space for the rest.
                    Ok(None) => None,
                    Err(error) => Some(error),
                },
                Err(AppendError::Full(_)) if when_full == WhenFull::DropNewest => None,
                Err(error) => Some(described(error)),
            };
            break;
        }
        let unwritten = spool.unwritten();
        closed.waiting = spool.waiting().events - unwritten.events;
        if when_full == WhenFull::Block {
            closed.lost = unwritten.events;
        } else {
            closed.dropped.push(unwritten);
        }
        closed.fault = spool.tidy().err().or(closed.fault);
        closed
    }
}

fn described(error: AppendError) -> io::Error {
    let kind = match &error {
        AppendError::Full(_) => io::ErrorKind::StorageFull,
        AppendError::Io(_, error) => error.kind(),
    };
    io::Error::new(kind, error)
}

impl Memory {
    fn append(&mut self, payload: Bytes, events: u32) {
        self.last_number += 1;
        let id = format!("{:016x}-{}", self.salt, self.last_number);
        self.events += u64::from(events);
        self.waiting.push_back((self.last_number, EncodedRequest { id, events, payload }));
    }

    fn take(&mut self) -> Option<StoreItem> {
        let (number, request) = self.waiting.pop_front()?;
        self.taken.insert(number, u64::from(request.events));
        Some(StoreItem::Request(number, request))
    }
}
