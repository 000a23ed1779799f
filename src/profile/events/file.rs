//! The items of event files.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use jiff::Timestamp;
use lz4_flex::frame::FrameDecoder;
use serde::Deserialize;

use super::{Attributes, Clock, Parts, PartsData, ProfileFrame, ProfileItem, SampleParts, Site, SpanParts, is_wanted};
use tributary_event::AgentFacts;

/// Longer lines of an event file are skipped. An object with a million references has a third of this length.
const MAX_LINE_BYTES: usize = 64 << 20;

/// An event file, decompressed.
pub struct EventFile(Box<dyn BufRead>);

/// The lines that were read from an event file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// All lines.
    pub read: u64,
    /// Lines that are not events, for example incomplete ones.
    pub skipped: u64,
    /// The number of the first of them, from 1.
    pub first_skipped: Option<u64>,
}

impl EventFile {
    /// Opens an event file, which begins with `{`, or with the magic of gzip, LZ4 or zstd if the file sink has compressed it.
    /// Recorded wire bytes begin with none of these; such an input is returned as it is.
    ///
    /// # Errors
    /// The input cannot be read.
    pub fn open(input: impl Read + 'static) -> io::Result<Result<EventFile, Box<dyn Read>>> {
        let mut input = BufReader::with_capacity(256 * 1024, input);
        skip_frames(&mut input)?;
        let file: Box<dyn BufRead> = match input.fill_buf()? {
            start if is_start(start, b"{") => Box::new(input),
            start if is_start(start, &[0x1F, 0x8B]) => Box::new(BufReader::new(MultiGzDecoder::new(input))),
            start if is_start(start, &[0x04, 0x22, 0x4D, 0x18]) => Box::new(BufReader::new(Lz4Frames::new(input))),
            start if is_start(start, &[0x28, 0xB5, 0x2F, 0xFD]) => {
                Box::new(BufReader::new(zstd::Decoder::with_buffer(input)?))
            }
            _ => return Ok(Err(Box::new(input))),
        };
        Ok(Ok(EventFile(file)))
    }

    /// An input that does not begin as an event file, as one: its first lines are no events, or none is.
    pub fn of_lines(input: Box<dyn Read>) -> EventFile {
        EventFile(Box::new(BufReader::new(input)))
    }

    /// Reads the items of the file to its end.
    ///
    /// # Errors
    /// The file cannot be read or decompressed. The items before the error have been passed to `take`.
    pub fn read(self, mut take: impl FnMut(ProfileItem<'_>)) -> io::Result<LineCounts> {
        let mut sources = Sources::default();
        self.read_lines(|line| {
            sources.item(line)?.map(&mut take);
            Ok(true)
        })
    }

    /// Reads the lines of the file until `take` returns `false`, or to its end. An error of `take`: the line is no event.
    ///
    /// # Errors
    /// The file cannot be read or decompressed.
    pub fn read_lines(mut self, mut take: impl FnMut(&[u8]) -> Result<bool, ()>) -> io::Result<LineCounts> {
        let mut lines = LineCounts::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            let Some(is_whole) = read_line(&mut *self.0, &mut line)? else { return Ok(lines) };
            lines.read += 1;
            match if is_whole { take(&line) } else { Err(()) } {
                Ok(true) => {}
                Ok(false) => return Ok(lines),
                Err(()) => {
                    lines.skipped += 1;
                    lines.first_skipped.get_or_insert(lines.read);
                }
            }
        }
    }
}

/// The content of LZ4 frames that follow each other.
struct Lz4Frames<R: BufRead>(FrameDecoder<R>);

impl<R: BufRead> Lz4Frames<R> {
    fn new(input: R) -> Self {
        Lz4Frames(FrameDecoder::new(input))
    }
}

impl<R: BufRead> Read for Lz4Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // 0: the end of a frame.
            let bytes = self.0.read(buffer)?;
            if bytes > 0 || buffer.is_empty() {
                return Ok(bytes);
            }
            let input = self.0.get_mut();
            skip_frames(input)?;
            if input.fill_buf()?.is_empty() {
                return Ok(0);
            }
        }
    }
}

/// Skips frames that have no content, as some compressors write them: zstd and LZ4 have the same.
fn skip_frames(input: &mut impl BufRead) -> io::Result<()> {
    while let [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] = input.fill_buf()? {
        let mut head = [0; 8];
        input.read_exact(&mut head)?;
        let [.., a, b, c, d] = head;
        let bytes = u64::from(u32::from_le_bytes([a, b, c, d]));
        if io::copy(&mut input.take(bytes), &mut io::sink())? < bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Whether what has arrived of an input is the start of `magic`, or begins with it.
fn is_start(bytes: &[u8], magic: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().zip(magic).all(|(byte, expected)| byte == expected)
}

/// Reads the next line. `None`: the end; `Some(false)`: the line was too long and is incomplete.
fn read_line(input: &mut dyn BufRead, line: &mut Vec<u8>) -> io::Result<Option<bool>> {
    let mut is_whole = true;
    loop {
        let bytes = match input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            bytes => bytes?,
        };
        if bytes.is_empty() {
            return Ok(if line.is_empty() { None } else { Some(is_whole) });
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let piece = &bytes[..end.unwrap_or(bytes.len())];
        is_whole &= line.len() + piece.len() <= MAX_LINE_BYTES;
        if is_whole {
            line.extend_from_slice(piece);
        }
        let read = end.map_or(bytes.len(), |end| end + 1);
        input.consume(read);
        if end.is_some() {
            return Ok(Some(is_whole));
        }
    }
}

/// The fields of every line. Of most lines only these are needed.
#[derive(Deserialize)]
struct LineHead<'a> {
    /// `None`: the line defines a source.
    #[serde(borrow)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
struct EventLine {
    time: Option<String>,
    sample: Option<JsonSample>,
    span: Option<JsonSpan>,
    #[serde(default)]
    attributes: Attributes<'static>,
    #[serde(default)]
    resource: AgentFacts<'static>,
    #[serde(default)]
    origin: JsonOrigin,
    /// Of a compact line, in the place of a resource and an origin, with its sequence, offset and length.
    source: Option<String>,
    position: Option<(Option<u64>, u64, u64)>,
}

/// A line that defines a source.
#[derive(Deserialize)]
struct Definition {
    source: String,
    #[serde(default)]
    resource: AgentFacts<'static>,
    origin: JsonOrigin,
}

/// The sources that compact lines name, by their ids.
#[derive(Default)]
struct Sources(HashMap<String, (AgentFacts<'static>, JsonOrigin)>);

#[derive(Deserialize)]
struct JsonSample {
    #[serde(rename = "type")]
    sample_type: String,
    value: u64,
    frames: Vec<JsonFrame>,
    period_ns: Option<u64>,
    clock: Option<String>,
}

#[derive(Deserialize)]
struct JsonFrame {
    function: Option<String>,
    file: Option<String>,
    line: Option<u64>,
}

#[derive(Deserialize)]
struct JsonSpan {
    trace_id: String,
    span_id: String,
    parent_span_id: Option<String>,
    duration_ns: Option<u64>,
}

#[derive(Clone, Deserialize, Default)]
struct JsonOrigin {
    #[serde(default)]
    protocol: String,
    #[serde(default)]
    listener: String,
    #[serde(default)]
    peer: String,
    #[serde(default)]
    connection: u64,
    sequence: Option<u64>,
}

/// The item of a line with every field, if it has one.
///
/// # Errors
/// The line is not an event, or lacks the fields that events of its name have.
#[expect(clippy::result_unit_err, reason = "there is nothing to tell but that the line is skipped")]
pub fn item(line: &[u8]) -> Result<Option<ProfileItem<'static>>, ()> {
    Sources::default().item(line)
}

impl Sources {
    /// The item of a line of an event file, if it has one. Remembers a source that the line defines.
    fn item(&mut self, line: &[u8]) -> Result<Option<ProfileItem<'static>>, ()> {
        let LineHead { kind, name } = serde_json::from_slice(line).map_err(|_| ())?;
        let Some(kind) = kind else {
            let Definition { source, resource, origin } = serde_json::from_slice(line).map_err(|_| ())?;
            self.0.insert(source, (resource, origin));
            return Ok(None);
        };
        if !is_wanted(&kind, &name) {
            return Ok(None);
        }
        let mut line: EventLine = serde_json::from_slice(line).map_err(|_| ())?;
        if let Some(source) = &line.source {
            (line.resource, line.origin) = self.0.get(source).ok_or(())?.clone();
            line.origin.sequence = line.position.and_then(|(sequence, ..)| sequence);
        }
        let EventLine { time, sample, span, attributes, resource, origin, .. } = line;
        let data = match &*kind {
            "sample" => PartsData::Sample(json_sample(sample.ok_or(())?)),
            "span" => PartsData::Span(json_span(&span.ok_or(())?)?),
            _ => PartsData::Log,
        };
        let time = time.and_then(|time| time.parse::<Timestamp>().ok());
        let time = time.and_then(|time| u64::try_from(time.as_nanosecond()).ok());
        let JsonOrigin { protocol, listener, peer, connection, sequence } = origin;
        let agent = resource.in_words(&protocol, &listener, &peer);
        let (pid, name) = (resource.pid, name.into_owned().into());
        Parts { name, time, data, attributes, agent, peer: peer.into(), connection, pid, sequence }.item()
    }
}

fn json_sample(sample: JsonSample) -> SampleParts<'static> {
    let JsonSample { sample_type, value, frames, period_ns, clock } = sample;
    let frames = frames.into_iter().map(|JsonFrame { function, file, line }| ProfileFrame {
        function: function.map(Cow::Owned),
        site: Site { file: file.map(Cow::Owned), line },
    });
    let clock = match clock.as_deref() {
        Some("cpu") => Some(Clock::Cpu),
        Some("wall") => Some(Clock::Wall),
        _ => None,
    };
    SampleParts { sample_type: sample_type.into(), value, frames: frames.collect(), period: period_ns, clock }
}

fn json_span(span: &JsonSpan) -> Result<SpanParts, ()> {
    let id = |text: &str| u64::from_str_radix(text, 16).map_err(|_| ());
    Ok(SpanParts {
        trace: u128::from_str_radix(&span.trace_id, 16).map_err(|_| ())?,
        id: id(&span.span_id)?,
        parent: span.parent_span_id.as_deref().map(id).transpose()?,
        duration: span.duration_ns,
    })
}
