//! A simulated Java program with a Zorka agent: its calls become traces, and names are defined before they are used.
//!
//! Records are those of a small shop: pages, queries, a job that counts the stock, now and then an exception that passes
//! through its callers. As in real agents, the local tracers (1.90.6, gen2 and Fressian here) submit an inner trace that is slow enough
//! by itself when it ends, and again inside each enclosing trace: with other ids, unless there is a distributed context, and in
//! gen1 with times that are counted from the start of the trace that is submitted. Each record counts once.

mod conversation;
mod fressian;
mod packets;
mod shop;
mod write;

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::rng::Rng;

pub(super) use conversation::run;
use shop::{Call, Visit};
use write::Ids;
use write::{Symbols, Writer};

/// The dialect of an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ZicoDialect {
    /// The specification's: symbols in forms, with each compression in turn. No known agent sends it.
    Doc,
    /// Agents from 1.90.1 to 1.90.6. Half of them are 1.90.5 with the streaming tracer, in base64, and sometimes post traces
    /// in parts; the others are 1.90.6 with the local tracer.
    Gen1,
    /// Agents since 1.90.7.
    #[default]
    Gen2,
    /// Agents up to 1.90.6: packets of Fressian over TCP. Every second one begins without a hello, and one of 50 packets is sent
    /// again.
    Fressian,
}

/// One JVM. Equal arguments give equal traces, except for times.
#[derive(Debug)]
pub struct Jvm {
    rng: Rng,
    dialect: ZicoDialect,
    is_streaming: bool,
    /// The difference between the calendar clock and its monotonic clock.
    behind_nanos: u64,
    symbols: Symbols,
    /// Symbols that were sent in forms.
    forms: u64,
}

/// A trace to be sent.
#[derive(Clone, Debug)]
pub struct SimulatedTrace {
    root: Call,
    /// The number of records and exceptions.
    pub events: u64,
    /// Whether it is sent in parts, if it can be divided.
    is_cut: bool,
    /// Inner traces are submitted by themselves, too.
    is_local: bool,
    context: Option<DistributedContext>,
}

/// A distributed context (gen2).
#[derive(Clone, Debug)]
struct DistributedContext {
    trace: String,
    /// The span of the caller, in another process.
    parent: Option<i64>,
}

/// What an agent submits of a trace in one or several bodies: an inner trace by itself, or the whole.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    call: &'a Call,
    /// The span that encloses it.
    parent: Option<i64>,
    is_cut: bool,
    context: Option<&'a DistributedContext>,
    /// The number of records and exceptions that were not submitted before.
    pub events: u64,
}

impl SimulatedTrace {
    /// What an agent submits, in its order: inner traces before those that enclose them.
    pub fn submissions(&self) -> Vec<Submission<'_>> {
        let mut inner = Vec::new();
        if self.is_local {
            self.root.submitted(None, &mut inner);
        }
        let context = self.context.as_ref();
        let inner = inner.into_iter().map(|(call, outer)| Submission {
            call,
            parent: outer,
            is_cut: false,
            context,
            events: call.events(),
        });
        let events = if self.is_local { self.root.events() } else { self.events };
        let parent = context.and_then(|context| context.parent);
        inner.chain([Submission { call: &self.root, parent, is_cut: self.is_cut, context, events }]).collect()
    }
}

impl Submission<'_> {
    /// The id of the trace, if it has a distributed context.
    pub fn trace(&self) -> Option<&str> {
        self.context.map(|context| &*context.trace)
    }
}

/// The bodies of a submission.
#[derive(Clone, Debug)]
pub struct Bodies {
    /// Definitions for the trace; empty if all were sent before.
    pub symbols: Vec<u8>,
    /// The trace, in one part or several.
    pub parts: Vec<Vec<u8>>,
}

/// One of this many traces is sent in parts, by agents that do so.
const CUT: u64 = 4;

impl Jvm {
    /// A program that just started. `seed` and `connection` (its number in a run) determine everything but the time; it starts
    /// at `now_unix_nanos`.
    pub fn new(seed: u64, connection: u64, now_unix_nanos: u64, dialect: ZicoDialect) -> Self {
        let mut rng = Rng::new(seed, connection);
        // nanoTime counts from the start of the machine.
        let behind_nanos = now_unix_nanos.saturating_sub(1 + rng.below(30 * 86_400 * 1_000_000_000));
        // The documented dialect has one tracer.
        let is_streaming = dialect == ZicoDialect::Doc || dialect == ZicoDialect::Gen1 && connection.is_multiple_of(2);
        Jvm { rng, dialect, is_streaming, behind_nanos, symbols: Symbols::default(), forms: 0 }
    }

    /// The next trace, which ends at `unix_nanos`, with one to `left` events.
    pub fn trace(&mut self, left: u64, unix_nanos: u64) -> SimulatedTrace {
        let left = left.max(1);
        // The local tracer of gen1 sends no exception twice, and the documented dialect cannot.
        let passes = self.dialect == ZicoDialect::Gen2 || self.dialect == ZicoDialect::Gen1 && self.is_streaming;
        let is_local = !self.is_streaming;
        let mut visit = Visit::new(&mut self.rng, left, passes, is_local);
        let root = visit.call_tree(unix_nanos);
        let events = left - visit.left;
        let is_cut = self.dialect == ZicoDialect::Gen1 && self.is_streaming && self.rng.one_in(CUT);
        let has_context = self.dialect == ZicoDialect::Gen2 && self.rng.one_in(2);
        let context = has_context.then(|| DistributedContext {
            trace: self.uuid(),
            parent: self.rng.one_in(2).then(|| self.rng.next() as i64),
        });
        SimulatedTrace { root, events, is_cut, is_local, context }
    }

    /// The bodies of a submission, as CBOR.
    pub fn bodies(&mut self, submission: &Submission<'_>) -> Bodies {
        let ids = match submission.context {
            Some(_) => Ids::Of(submission.parent),
            // An agent without a distributed context takes other ids for each copy.
            None => Ids::Random(&mut self.rng),
        };
        let mut writer = Writer {
            dialect: self.dialect,
            is_streaming: self.is_streaming,
            symbols: &mut self.symbols,
            behind_nanos: self.behind_nanos,
            ids,
            cuts: Vec::new(),
        };
        let mut whole = Vec::new();
        writer.trace(submission.call, &mut whole);
        let cuts = if submission.is_cut { std::mem::take(&mut writer.cuts) } else { Vec::new() };
        let mut parts = Vec::new();
        for cut in cuts.into_iter().rev() {
            parts.push(whole.split_off(cut));
        }
        parts.push(whole);
        parts.reverse();
        Bodies { symbols: std::mem::take(&mut self.symbols.definitions), parts }
    }

    /// After a failure all names are sent to the collector again.
    pub fn forget(&mut self) {
        self.symbols.forget(self.dialect);
    }

    /// A random uuid.
    fn uuid(&mut self) -> String {
        let digits = format!("{:016x}{:016x}", self.rng.next(), self.rng.next());
        format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
    }

    /// Symbols in the documented form, each time with another compression.
    fn form(&mut self, host: &str, symbols: &[u8]) -> io::Result<Vec<u8>> {
        self.forms += 1;
        let (name, packed) = match self.forms % 3 {
            0 => ("data", symbols.to_vec()),
            1 => {
                let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(symbols)?;
                ("zdata", encoder.finish()?)
            }
            _ => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
                encoder.write_all(symbols)?;
                ("ldata", encoder.finish().map_err(io::Error::other)?)
            }
        };
        let escaped = base64(&packed).replace('+', "%2B").replace('/', "%2F").replace('=', "%3D");
        Ok(format!("host={host}&{name}={escaped}").into_bytes())
    }
}

/// Padded, without line breaks.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: [u8; 64] = *b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| bits << 8 | u32::from(group.get(at).copied().unwrap_or(0)));
        for digit in 0..4 {
            let is_padding = digit > group.len();
            let value = DIGITS[(bits >> (18 - 6 * digit)) as usize & 63];
            text.push(char::from(if is_padding { b'=' } else { value }));
        }
    }
    text
}
