//! Extracts the items of profiles from events: from batches, and from event files as the JSON encoder writes them.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use lz4_flex::frame::FrameDecoder;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};

use super::{Counted, Dump, Frame, Item, Object, Sample, Site};
use crate::event::{
    Batch, DataView, EventView, Number, Resource, ResourceValue, SampleView, ValueView, semconv as names,
};

const CPU: &str = "cpu";
const ALLOCATIONS: &str = "alloc_objects";
const HEAP_OBJECT: &str = names::RBKIT_HEAP_OBJECT.as_str();
const HEAP_DUMP: &str = names::RBKIT_HEAP_DUMP.as_str();
const PID: &str = names::PROCESS_PID.as_str();
const OBJECT_ID: &str = names::RBKIT_OBJECT_ID.as_str();
const CLASS: &str = names::RBKIT_CLASS_NAME.as_str();
const REFERENCES: &str = names::RBKIT_OBJECT_REFERENCES.as_str();
const FILE: &str = names::CODE_FILE_PATH.as_str();
const LINE: &str = names::CODE_LINE_NUMBER.as_str();
const SIZE: &str = names::RBKIT_OBJECT_SIZE.as_str();
const DUMP_ID: &str = names::RBKIT_DUMP_ID.as_str();
const OBJECT_COUNT: &str = names::RBKIT_DUMP_OBJECT_COUNT.as_str();

/// Longer lines of an event file are skipped. An object with a million references has a third of this length.
const MAX_LINE_BYTES: usize = 64 << 20;

/// The items of a batch, in its order.
pub fn items(batch: &Batch) -> impl Iterator<Item = Item<'_>> {
    batch.events().filter_map(item)
}

fn item(event: EventView<'_>) -> Option<Item<'_>> {
    match event.data() {
        DataView::Sample(view) => sample(event, view).map(Item::Sample),
        DataView::Log { .. } if event.name().text() == HEAP_OBJECT => Some(Item::Object(object(event))),
        DataView::Log { .. } if event.name().text() == HEAP_DUMP => Some(Item::DumpEnd(object(event).dump)),
        _ => None,
    }
}

fn sample<'a>(event: EventView<'a>, view: SampleView<'a>) -> Option<Sample<'a>> {
    let value = match view.data.value {
        Number::U64(value) => value,
        Number::I64(value) => u64::try_from(value).unwrap_or(0),
        Number::F64(value) => value as u64,
    };
    let frames = view.frames().map(|frame| Frame {
        function: frame.function.map(|text| text.text().into()),
        site: Site { file: frame.file.map(|text| text.text().into()), line: frame.line },
    });
    let counted = counted(view.data.sample_type)?;
    let Object { class, site, .. } = object(event);
    Some(Sample { counted, value, frames: frames.collect(), site, class })
}

fn counted(sample_type: &str) -> Option<Counted> {
    match sample_type {
        CPU => Some(Counted::Cpu),
        ALLOCATIONS => Some(Counted::Allocations),
        _ => None,
    }
}

/// Reads the attributes of an event as those of an object of a dump. Missing ones are None or 0.
fn object(event: EventView<'_>) -> Object<'_> {
    let origin = event.origin();
    let dump = Dump {
        peer: Cow::Borrowed(&*origin.peer),
        connection: origin.connection,
        pid: pid(event.resource()),
        ..Dump::default()
    };
    let mut object = Object { dump, id: 0, class: None, site: Site::default(), size: None, references: 0 };
    for (key, value) in event.attributes() {
        match (key.text(), value) {
            (OBJECT_ID, ValueView::U64(id)) => object.id = id,
            (CLASS, ValueView::Text(class)) => object.class = Some(class.text().into()),
            (REFERENCES, ValueView::Array(ids)) => object.references = ids.count() as u64,
            (FILE, ValueView::Text(file)) => object.site.file = Some(file.text().into()),
            (LINE, ValueView::U64(line)) => object.site.line = Some(line),
            (SIZE, ValueView::U64(size)) => object.size = Some(size),
            (DUMP_ID, ValueView::U64(id)) => object.dump.id = id,
            (OBJECT_COUNT, ValueView::U64(count)) => object.dump.object_count = Some(count),
            _ => {}
        }
    }
    object
}

fn pid(resource: &Resource) -> Option<u64> {
    resource.attributes().iter().find_map(|(key, value)| match value {
        ResourceValue::U64(pid) if key == PID => Some(*pid),
        ResourceValue::I64(pid) if key == PID => u64::try_from(*pid).ok(),
        _ => None,
    })
}

/// An event file, decompressed.
pub struct EventFile(Box<dyn BufRead>);

/// The lines that were read from an event file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// All lines.
    pub read: u64,
    /// Lines that are not events, for example incomplete ones.
    pub skipped: u64,
    /// The number of the first of them, from 1.
    pub first_skipped: Option<u64>,
}

impl EventFile {
    /// Opens an event file, which begins with `{`, or with the first byte of gzip or LZ4 if the file sink has compressed it.
    /// Recorded wire bytes begin with none of these; such an input is returned as it is.
    ///
    /// # Errors
    /// The input cannot be read.
    pub fn open(input: impl Read + 'static) -> io::Result<Result<EventFile, Box<dyn Read>>> {
        let mut input = BufReader::with_capacity(256 * 1024, input);
        let file: Box<dyn BufRead> = match input.fill_buf()?.first() {
            Some(b'{') => Box::new(input),
            Some(0x1F) => Box::new(BufReader::new(MultiGzDecoder::new(input))),
            Some(0x04) => Box::new(BufReader::new(FrameDecoder::new(input))),
            _ => return Ok(Err(Box::new(input))),
        };
        Ok(Ok(EventFile(file)))
    }

    /// Reads the file to its end.
    ///
    /// # Errors
    /// The file cannot be read or decompressed. The items before the error have been passed to `take`.
    pub fn read(mut self, mut take: impl FnMut(Item<'_>)) -> io::Result<Lines> {
        let mut lines = Lines::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            let Some(is_whole) = read_line(&mut *self.0, &mut line)? else { return Ok(lines) };
            lines.read += 1;
            match if is_whole { parse(&line) } else { Err(()) } {
                Ok(Some(item)) => take(item),
                Ok(None) => {}
                Err(()) => {
                    lines.skipped += 1;
                    lines.first_skipped.get_or_insert(lines.read);
                }
            }
        }
    }
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
struct Named<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Line {
    sample: Option<JsonSample>,
    #[serde(default)]
    attributes: Attributes,
    #[serde(default)]
    resource: JsonResource,
    #[serde(default)]
    origin: JsonOrigin,
}

#[derive(Deserialize)]
struct JsonSample {
    #[serde(rename = "type")]
    sample_type: String,
    value: u64,
    frames: Vec<JsonFrame>,
}

#[derive(Deserialize)]
struct JsonFrame {
    function: Option<String>,
    file: Option<String>,
    line: Option<u64>,
}

#[derive(Deserialize, Default)]
struct Attributes {
    #[serde(rename = "rbkit.object.id")]
    id: Option<u64>,
    #[serde(rename = "rbkit.class.name")]
    class: Option<String>,
    #[serde(rename = "rbkit.object.references", default)]
    references: Count,
    #[serde(rename = "code.file.path")]
    file: Option<String>,
    #[serde(rename = "code.line.number")]
    line: Option<u64>,
    #[serde(rename = "rbkit.object.size")]
    size: Option<u64>,
    #[serde(rename = "rbkit.dump.id")]
    dump: Option<u64>,
    #[serde(rename = "rbkit.dump.object_count")]
    object_count: Option<u64>,
}

/// The number of elements of a list. There may be a million, so they are not kept.
#[derive(Default)]
struct Count(u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Count, D::Error> {
        struct Counting;

        impl<'de> Visitor<'de> for Counting {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }
        }

        deserializer.deserialize_seq(Counting)
    }
}

#[derive(Deserialize, Default)]
struct JsonResource {
    #[serde(rename = "process.pid")]
    pid: Option<u64>,
}

#[derive(Deserialize, Default)]
struct JsonOrigin {
    #[serde(default)]
    peer: String,
    #[serde(default)]
    connection: u64,
}

/// The item of a line, if it has one. An error: the line is not an event, or lacks the fields that events of its name have.
fn parse(line: &[u8]) -> Result<Option<Item<'_>>, ()> {
    let Named { kind, name } = serde_json::from_slice(line).map_err(|_| ())?;
    let is_wanted = match &*kind {
        "sample" => true,
        "log" => name == HEAP_OBJECT || name == HEAP_DUMP,
        _ => false,
    };
    if !is_wanted {
        return Ok(None);
    }
    let Line { sample, attributes, resource, origin } = serde_json::from_slice(line).map_err(|_| ())?;
    let Attributes { id, class, references, file, line, size, dump, object_count } = attributes;
    let (class, site) = (class.map(Cow::Owned), Site { file: file.map(Cow::Owned), line });
    if let Some(JsonSample { sample_type, value, frames }) = sample {
        let frames = frames.into_iter().map(|JsonFrame { function, file, line }| Frame {
            function: function.map(Cow::Owned),
            site: Site { file: file.map(Cow::Owned), line },
        });
        let sample = |counted| Sample { counted, value, frames: frames.collect(), site, class };
        return Ok(counted(&sample_type).map(sample).map(Item::Sample));
    }
    let (peer, connection) = (Cow::Owned(origin.peer), origin.connection);
    let dump = Dump { peer, connection, pid: resource.pid, id: dump.ok_or(())?, object_count };
    if name == HEAP_DUMP {
        return Ok(Some(Item::DumpEnd(dump)));
    }
    let references = references.0;
    Ok(Some(Item::Object(Object { dump, id: id.ok_or(())?, class, site, size, references })))
}
