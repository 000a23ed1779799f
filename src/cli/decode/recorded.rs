//! Decoding of captures: the recorded times are the clock, and connections are played in the order of their times.

use std::time::Duration;

use crate::cli::captures::{Captures, Step};
use crate::cli::{Failure, say};
use crate::decode;
use crate::event::UnixNanos;
use crate::protocol::{Exchange, Now, Session};

use super::{Decoded, Decoder, Named, sum_up};

/// A connection with requests.
struct Carrier {
    named: Named,
    /// The bytes of an incomplete request.
    bytes: Vec<u8>,
    requests: u64,
}

impl Decoder<'_> {
    /// Plays the captures of `connections`.
    pub(super) fn play<S: Session>(
        &mut self,
        mut captures: Captures,
        connections: Vec<Decoded<S>>,
    ) -> Result<(), Failure> {
        let mut playing: Vec<_> = connections.into_iter().map(Some).collect();
        let start = captures.start();
        while let Some((number, at, step)) = captures.next()? {
            let now = moment(start, at);
            self.pass_time(&mut playing, start, now.elapsed);
            self.played = Some(now);
            match step {
                Step::Bytes(bytes) => {
                    if let Some(decoded) = &mut playing[number] {
                        decoded.offline.feed(&bytes, now, &mut |batch| self.output.write(&batch));
                    }
                    self.output.flush()?;
                }
                Step::End(end) => {
                    if let Some(decoded) = playing[number].take() {
                        self.finish(decoded, end)?;
                    }
                }
            }
            if self.output.is_closed() {
                break;
            }
        }
        Ok(())
    }

    /// Runs the timers of sessions that are due before `until`, in order.
    fn pass_time<S: Session>(&mut self, playing: &mut [Option<Decoded<S>>], start: UnixNanos, until: Duration) {
        let mut last = self.played.map_or(Duration::ZERO, |now| now.elapsed);
        loop {
            let due = playing.iter_mut().flatten().filter_map(|decoded| Some((decoded.offline.due()?, decoded)));
            let Some((due, decoded)) = due.min_by_key(|(due, _)| *due).filter(|(due, _)| *due < until) else { return };
            // A timer fires after it is due, never before.
            last = last.max(due + Duration::from_nanos(1));
            let now = Now { unix: UnixNanos(start.0.saturating_add(nanos(last))), elapsed: last };
            decoded.offline.pass_time(now, &mut |batch| self.output.write(&batch));
        }
    }

    /// Plays captures of connections with requests. A request is decoded when its last byte is played.
    pub(super) fn play_requests<E: Exchange>(
        &mut self,
        exchange: &E,
        mut captures: Captures,
        connections: Vec<Named>,
    ) -> Result<(), Failure> {
        let carrier = |named| Carrier { named, bytes: Vec::new(), requests: 0 };
        let mut carriers: Vec<_> = connections.into_iter().map(carrier).collect();
        let start = captures.start();
        while let Some((number, at, step)) = captures.next()? {
            let now = moment(start, at);
            self.played = Some(now);
            let Carrier { named: Named { name, origin, counters }, bytes, requests } = &mut carriers[number];
            match step {
                Step::Bytes(more) => {
                    bytes.extend_from_slice(&more);
                    while let Some((request, size)) = decode::whole_request(bytes, *requests + 1) {
                        *requests += 1;
                        bytes.drain(..size);
                        decode::tick(exchange, origin.clone(), counters, now, &mut |batch| self.output.write(&batch));
                        self.answer(exchange, request, name, origin, counters, now);
                    }
                    self.output.flush()?;
                }
                Step::End(_) => {
                    let rest = std::mem::take(bytes);
                    if !rest.is_empty() {
                        say(format_args!("{name}: the last {} bytes are an incomplete request", rest.len()));
                        decode::cut(&rest, origin.clone(), counters, now, &mut |batch| self.output.write(&batch));
                        self.output.flush()?;
                    }
                    sum_up(name, counters);
                }
            }
            if self.output.is_closed() {
                break;
            }
        }
        Ok(())
    }
}

/// The time `at`, with the time since the first capture was opened at `start`.
fn moment(start: UnixNanos, at: UnixNanos) -> Now {
    Now { unix: at, elapsed: Duration::from_nanos(at.0.saturating_sub(start.0)) }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
