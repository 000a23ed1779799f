//! Captures being decoded: their times are the clock, and connections of one time are played together.

use std::time::Duration;

use crate::cli::captures::{Captures, Step};
use crate::cli::{Failure, say};
use crate::decode;
use crate::event::UnixNanos;
use crate::protocol::{Exchange, Now, Session};

use super::{Decoded, Decoder, Named, sum_up};

/// A connection that carries requests.
struct Carrier {
    named: Named,
    /// What has come of a request that is not whole.
    bytes: Vec<u8>,
    requests: u64,
}

impl Decoder<'_> {
    /// Plays the captures that `connections` are of.
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

    /// What sessions wait for until then happens, each when it is due.
    fn pass_time<S: Session>(&mut self, playing: &mut [Option<Decoded<S>>], start: UnixNanos, until: Duration) {
        let mut last = self.played.map_or(Duration::ZERO, |now| now.elapsed);
        loop {
            let due = playing.iter_mut().flatten().filter_map(|decoded| Some((decoded.offline.due()?, decoded)));
            let Some((due, decoded)) = due.min_by_key(|(due, _)| *due).filter(|(due, _)| *due < until) else { return };
            // A moment after it is due, as timers are.
            last = last.max(due + Duration::from_nanos(1));
            let now = Now { unix: UnixNanos(start.0.saturating_add(nanos(last))), elapsed: last };
            decoded.offline.pass_time(now, &mut |batch| self.output.write(&batch));
        }
    }

    /// Plays captures of connections that carry requests; each is worked on when its last byte is here.
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
                        say(format_args!("{name}: {} bytes at the end are no whole request", rest.len()));
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

/// A moment of captures of which the first began at `start`.
fn moment(start: UnixNanos, at: UnixNanos) -> Now {
    Now { unix: at, elapsed: Duration::from_nanos(at.0.saturating_sub(start.0)) }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
