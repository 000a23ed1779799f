//! Decoding of captures: the recorded times are the clock, and connections are played in the order of their times.

use std::io::{self, Cursor, Read};
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use crate::cli::captures::{Captures, ConnectionStep, FileContent};
use crate::cli::input::Input;
use crate::cli::{CommandLineError, say};
use tributary_driver::decode::{self, OfflinePackets};
use tributary_event::UnixNanos;
use tributary_protocol::{Exchange, Now, Session};
use tributary_rbkit::Player;

use super::{Decoded, Decoder, OpenedFile, START_BYTES, has_events, sum_up};

/// A connection with requests.
struct Carrier<E: Exchange> {
    named: OpenedFile,
    /// The connection has packets instead.
    packets: Option<OfflinePackets<E>>,
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
    ) -> Result<(), CommandLineError> {
        let mut playing: Vec<_> = connections.into_iter().map(Some).collect();
        let start = captures.start();
        while let Some((number, at, step)) = captures.next()? {
            let now = moment(start, at);
            self.pass_time(&mut playing, start, now.elapsed);
            self.played = Some(now);
            match step {
                ConnectionStep::Bytes(bytes) => {
                    if let Some(decoded) = &mut playing[number] {
                        decoded.offline.feed(&bytes, now, &mut |batch| self.output.write(&batch));
                    }
                    self.output.flush()?;
                }
                ConnectionStep::End(end) => {
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

    /// Decodes recordings of one conversation with a process. Each file of bytes continues the file before; captures are played
    /// after them, together, in the order of their times.
    pub(super) fn recordings(&mut self, play: impl Fn(&[u8], bool) -> Player) -> Result<(), CommandLineError> {
        let files = take(&mut self.files);
        let last = files.len() as u64;
        let mut recorded = Vec::new();
        for (number, mut file) in (1..).zip(files) {
            let mut bytes = Vec::new();
            let read = file.open().and_then(|mut input| input.read_to_end(&mut bytes));
            let failed = |error: io::Error| CommandLineError::Failed(format!("{}: {error}", file.path.display()));
            read.map_err(failed)?;
            // The first bytes say from which socket they came.
            let start = bytes[..bytes.len().min(START_BYTES)].to_vec();
            let start = Input { path: file.path.clone(), opened: Some(Box::new(Cursor::new(start))) };
            match FileContent::of(start).map_err(failed)? {
                FileContent::Events => return Err(has_events(&file.path.display().to_string(), self.protocol)),
                FileContent::Wire(_) => {
                    let player = play(&bytes, number == last && recorded.is_empty());
                    file.opened = Some(Box::new(Cursor::new(bytes)));
                    self.whole(number, file, player)?;
                }
                FileContent::Capture(mut reader) => {
                    let player = play(&reader.start().map_err(failed)?, false);
                    if !file.path.is_file() {
                        file.opened = Some(Box::new(Cursor::new(bytes)));
                    }
                    recorded.push((number, file, player));
                }
            }
            if self.output.is_closed() {
                return Ok(());
            }
        }
        let (mut captures, mut playing, left) = (Captures::default(), Vec::new(), Arc::default());
        for (number, file, player) in recorded {
            let (named, source) = self.open(number, file)?;
            if let FileContent::Capture(reader) = source {
                captures.add(named.name.clone(), reader)?;
                playing.push(Decoded::new(named, player.together(&left)));
            }
        }
        self.played = None;
        self.play(captures, playing)
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
        connections: Vec<OpenedFile>,
    ) -> Result<(), CommandLineError> {
        let carrier = |named| Carrier { named, packets: None, bytes: Vec::new(), requests: 0 };
        let mut carriers: Vec<Carrier<E>> = connections.into_iter().map(carrier).collect();
        let start = captures.start();
        while let Some((number, at, step)) = captures.next()? {
            let now = moment(start, at);
            self.played = Some(now);
            let Carrier { named: OpenedFile { name, origin, counters }, packets, bytes, requests } =
                &mut carriers[number];
            match step {
                ConnectionStep::Bytes(more) => {
                    bytes.extend_from_slice(&more);
                    if *requests == 0 && packets.is_none() {
                        *packets = OfflinePackets::of(exchange, bytes, origin.clone(), counters.clone());
                    }
                    if let Some(packets) = packets {
                        decode::tick(exchange, origin.clone(), counters, now, &mut |batch| self.output.write(&batch));
                        self.packets(packets, &take(bytes), name, now);
                        self.output.flush()?;
                        continue;
                    }
                    while let Some((request, size)) = decode::whole_request(bytes, *requests + 1) {
                        *requests += 1;
                        bytes.drain(..size);
                        decode::tick(exchange, origin.clone(), counters, now, &mut |batch| self.output.write(&batch));
                        self.answer(exchange, request, name, origin, counters, now);
                    }
                    self.output.flush()?;
                }
                ConnectionStep::End(_) => {
                    if let Some(packets) = packets.take() {
                        packets.finish(now, &mut |batch| self.output.write(&batch));
                        self.output.flush()?;
                    }
                    let rest = take(bytes);
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
