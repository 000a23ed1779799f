//! A simulated machine with Endless OS: its agent collects events and uploads them as bundles.
//!
//! Bundles are written by a library that shares no code with our reader. The mix of events is that of a desktop in use:
//! programs opened and refused, updates, now and then a start of the system, and counts of the days before. Some event ids
//! are unknown.

mod events;

use std::collections::BTreeMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use ring::digest::{SHA512, digest};
use zgvariant::serialized::{Context, Data};
use zgvariant::{LE, Variant, to_bytes};

use super::rng::Rng;
use super::{Counts, http};

/// The protocol version of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AgentVersion {
    /// Systems from 2.1.5 to 3.9: machine and user ids, sequences, payloads wrapped twice.
    V2,
    /// Systems since 4.0.
    #[default]
    V3,
}

/// One bundle, ready to be sent.
#[derive(Debug)]
pub struct Upload {
    /// The uncompressed bundle.
    pub bundle: Vec<u8>,
    /// Its content, in requests and in the events that the daemon makes of it.
    pub counts: Counts,
}

/// One machine. Equal arguments give equal bundles.
#[derive(Debug)]
pub struct Machine {
    rng: Rng,
    version: AgentVersion,
    machine_id: [u8; 16],
    /// The difference between the calendar clock and the agent's monotonic clock.
    behind_nanos: i64,
    /// The calendar time of the latest event.
    last_nanos: i64,
    now_nanos: i64,
    send_number: i32,
    /// The number of aggregates sent; each is different.
    counted: u32,
}

/// One of this many events is an aggregate (version 3), or a sequence of two elements (version 2).
const RARE: u64 = 20;

type Singular2 = (u32, Vec<u8>, i64, Option<Variant<'static>>);
type Aggregate2 = (u32, Vec<u8>, i64, i64, Option<Variant<'static>>);
type Sequence2 = (u32, Vec<u8>, Vec<(i64, Option<Variant<'static>>)>);
type Singular3 = (Vec<u8>, String, i64, Option<Variant<'static>>);
type Aggregate3 = (Vec<u8>, String, String, u32, Option<Variant<'static>>);

const OS_VERSION: &str = "6.0.4";
const IMAGE: &str = "eos-eos6.0-amd64-amd64.240115-103012.base";

impl http::Uploader for Machine {
    fn set_clock(&mut self, unix_nanos: u64) {
        Machine::set_clock(self, unix_nanos);
    }

    fn upload(&mut self, events: u64, host: &str) -> io::Result<http::Upload> {
        let upload = Machine::upload(self, events)?;
        Ok(http::Upload { request: self.request(&upload, host)?, counts: upload.counts })
    }
}

impl Machine {
    /// A machine that has not sent anything. `seed` and `connection` (its number in a run) determine everything but the
    /// time; it starts at `now_unix_nanos`.
    pub fn new(seed: u64, connection: u64, now_unix_nanos: u64, version: AgentVersion) -> Self {
        let mut rng = Rng::new(seed, connection);
        let machine_id = events::bytes16(&mut rng);
        let now_nanos = i64::try_from(now_unix_nanos).unwrap_or(i64::MAX);
        // The monotonic clock is up to a year.
        let behind_nanos = now_nanos.saturating_sub(rng.below(365 * 86_400 * 1_000_000_000) as i64);
        Machine { rng, version, machine_id, behind_nanos, last_nanos: now_nanos, now_nanos, send_number: 0, counted: 0 }
    }

    /// Advances the time; a step back is ignored.
    pub fn set_clock(&mut self, unix_nanos: u64) {
        self.now_nanos = self.now_nanos.max(i64::try_from(unix_nanos).unwrap_or(i64::MAX));
    }

    /// A bundle of this many events.
    ///
    /// # Errors
    /// Errors of the library that writes it.
    pub fn upload(&mut self, events: u64) -> io::Result<Upload> {
        let bundle = match self.version {
            AgentVersion::V2 => self.version2(events)?,
            AgentVersion::V3 => self.version3(events)?,
        };
        self.send_number = self.send_number.wrapping_add(1);
        Ok(Upload { bundle, counts: Counts { messages: 1, events } })
    }

    /// The request with a bundle, as the agent sends it.
    ///
    /// # Errors
    /// Errors of the compression.
    pub fn request(&self, upload: &Upload, host: &str) -> io::Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(&upload.bundle)?;
        let body = encoder.finish()?;
        let version = if self.version == AgentVersion::V2 { 2 } else { 3 };
        let mut hash = String::with_capacity(128);
        for byte in digest(&SHA512, &upload.bundle).as_ref() {
            hash.push_str(&format!("{byte:02x}"));
        }
        let head = format!(
            "PUT /{version}/{hash} HTTP/1.1\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\n\
             Accept-Encoding: gzip, deflate\r\nConnection: Keep-Alive\r\nHost: {host}\r\n\
             X-Endless-Content-Encoding: gzip\r\n\r\n",
            body.len()
        );
        Ok([head.as_bytes(), &body].concat())
    }

    fn version3(&mut self, events: u64) -> io::Result<Vec<u8>> {
        let (mut singular, mut aggregate): (Vec<Singular3>, Vec<Aggregate3>) = Default::default();
        for _ in 0..events {
            if self.rng.one_in(RARE) {
                aggregate.push(self.aggregate3());
            } else {
                let (id, payload) = events::singular3(&mut self.rng);
                singular.push((id, OS_VERSION.to_owned(), self.next_moment(), payload));
            }
        }
        let site = BTreeMap::from([("city", "Guatemala"), ("facility", "Escuela Central"), ("id", "site-42")]);
        let flags = u8::from(self.machine_id[0] & 7 == 0);
        let (relative, absolute) = self.clocks();
        let bundle = (relative, absolute, IMAGE, site, flags, singular, aggregate);
        written(to_bytes(Context::new(LE, 0), &bundle))
    }

    fn aggregate3(&mut self) -> Aggregate3 {
        self.counted = self.counted.wrapping_add(1);
        // Yesterday, the day before, and so on: each day is sent once.
        let day = jiff::Timestamp::from_nanosecond(i128::from(self.now_nanos)).unwrap_or_default();
        let back = jiff::Span::new().days(1 + i64::from(self.counted % 3650));
        let date = day.to_zoned(jiff::tz::TimeZone::UTC).date().saturating_sub(back);
        let (id, payload) = events::aggregate3(&mut self.rng);
        (id, OS_VERSION.to_owned(), date.to_string(), self.counted, payload)
    }

    fn version2(&mut self, events: u64) -> io::Result<Vec<u8>> {
        let (mut singular, mut aggregate, mut sequence): (Vec<Singular2>, Vec<Aggregate2>, Vec<Sequence2>) =
            Default::default();
        const USER: u32 = 1000;
        let mut left = events;
        while left > 0 {
            if left >= 2 && self.rng.one_in(RARE) {
                let (id, payload) = events::sequence2(&mut self.rng);
                let items = vec![(self.next_moment(), Some(payload)), (self.next_moment(), None)];
                sequence.push((USER, id, items));
                left -= 2;
            } else if self.rng.one_in(RARE) {
                let (id, payload) = events::aggregate2(&mut self.rng);
                let count = self.rng.below(100) as i64;
                aggregate.push((USER, id, count, self.next_moment(), Some(twice(payload))));
                left -= 1;
            } else {
                let (id, payload) = events::singular2(&mut self.rng);
                singular.push((USER, id, self.next_moment(), payload.map(twice)));
                left -= 1;
            }
        }
        let (relative, absolute) = self.clocks();
        let id = self.machine_id.to_vec();
        let bundle = (self.send_number, relative, absolute, id, singular, aggregate, sequence);
        written(to_bytes(Context::new(LE, 0), &bundle))
    }

    /// The time of the next event on the monotonic clock: after the latest event, and not after now.
    fn next_moment(&mut self) -> i64 {
        let span = u64::try_from(self.now_nanos - self.last_nanos).unwrap_or(0);
        let step = 1 + self.rng.below(span.min(1_000_000)) as i64;
        self.last_nanos = self.last_nanos.saturating_add(step);
        self.last_nanos.saturating_sub(self.behind_nanos)
    }

    /// The monotonic clock and the calendar clock.
    fn clocks(&mut self) -> (i64, i64) {
        self.now_nanos = self.now_nanos.max(self.last_nanos);
        (self.now_nanos.saturating_sub(self.behind_nanos), self.now_nanos)
    }
}

/// Agents of version 2 wrap payloads twice.
fn twice(payload: Variant<'static>) -> Variant<'static> {
    Variant::Variant(Box::new(payload))
}

/// The bytes of a bundle.
fn written(data: zgvariant::Result<Data<'static>>) -> io::Result<Vec<u8>> {
    Ok(data.map_err(io::Error::other)?.bytes().to_vec())
}
