//! The structs of a packet (section 6.3). A head is checked to its end here, so reading a [`Range`] of it again cannot fail.

use std::borrow::Cow;
use std::ops::Range;

use tributary_codec::fressian::{
    Definitions as FressianDefinitions, Extended, FressianError, FressianErrorKind, FressianItem, FressianReader,
    joined,
};
use tributary_event::Number;

use super::super::value::check_attributes;

/// What every tag of the agents begins with.
const PREFIX: &[u8] = b"com.jitlogic.zorka.";

/// A struct, by its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Tag {
    Hello,
    Symbol,
    Record,
    Marker,
    Exception,
    Frame,
    Tagged,
    Perf,
    Sample,
    Metric,
    Template,
    Unknown,
}

impl Tag {
    /// The struct with this tag.
    pub fn of(tag: &[u8]) -> Tag {
        match tag.strip_prefix(PREFIX) {
            // 0.9.8 and 0.9.9 have a letter less.
            Some(b"HelloRequest_v1" | b"HelloRquest_v1") => Tag::Hello,
            Some(b"Symbol_v1") => Tag::Symbol,
            Some(b"TraceRecord_v1") => Tag::Record,
            Some(b"TraceMarker_v1") => Tag::Marker,
            Some(b"SymbolicException_v1") => Tag::Exception,
            Some(b"SymbolicStackElement_v1") => Tag::Frame,
            Some(b"TaggedValue_v1") => Tag::Tagged,
            Some(b"PerfRecord_v1") => Tag::Perf,
            Some(b"PerfSample_v1") => Tag::Sample,
            Some(b"Metric_v1") => Tag::Metric,
            Some(b"MetricTemplate_v1") => Tag::Template,
            _ => Tag::Unknown,
        }
    }
}

/// The content of a hello. Its `Debug` shows no pass phrase, because it has none.
pub struct Hello<'a> {
    /// The host. `None`: null.
    pub host: Option<Cow<'a, [u8]>>,
    /// The pass phrase. `None`: null.
    pub pass_phrase: Option<Cow<'a, [u8]>>,
}

/// Everything of a record but its children, which follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordHead {
    /// Ids of class, method and signature.
    pub parts: [u64; 3],
    /// Its flags.
    pub flags: u64,
    /// How long it took, in nanoseconds.
    pub nanos: u64,
    /// Calls in it, itself included.
    pub calls: u64,
    /// Those that threw.
    pub errors: u64,
    /// That it begins a trace.
    pub marker: Option<Marker>,
    /// Where its exception stands.
    pub exception: Option<Range<usize>>,
    /// Where the map of its attributes stands.
    pub attributes: Option<Range<usize>>,
    /// The number of its children; `None`: up to an end.
    pub children: Option<u64>,
}

/// The begin of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marker {
    /// The symbol of its type.
    pub trace_type: u64,
    /// When it began, in milliseconds since 1970.
    pub clock: i64,
    /// Its flags.
    pub flags: u64,
}

/// A part of an exception.
#[derive(Debug)]
pub enum ExceptionPart<'a> {
    /// The exception, or its cause; its frames follow.
    Thrown {
        /// The symbol of its class.
        class: u64,
        /// Its message.
        message: Option<Cow<'a, [u8]>>,
        /// It caused the one before.
        is_cause: bool,
    },
    /// A frame of its stack, by symbols.
    Frame {
        /// Its class.
        class: u64,
        /// Its method.
        method: u64,
        /// Its file.
        file: u64,
        /// Its line: −2 native, −1 unknown.
        line: i64,
    },
}

/// A sample of a metric.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample<'a> {
    /// The agent's number of the metric.
    pub metric: u64,
    /// Its value.
    pub value: Number,
    /// Symbols of keys, and values.
    pub attributes: Vec<(u64, Cow<'a, [u8]>)>,
}

/// The definition of a metric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetricHead<'a> {
    /// The agent's number.
    pub id: u64,
    /// Its name.
    pub name: Option<Cow<'a, [u8]>>,
    /// Its description, from 1.0.13 on.
    pub description: Option<Cow<'a, [u8]>>,
    /// Keys and values.
    pub attributes: Vec<(JavaText<'a>, JavaText<'a>)>,
}

/// The bytes of a text of Java, joined if it was sent in chunks.
type JavaText<'a> = Cow<'a, [u8]>;
type Defined<'k> = &'k mut FressianDefinitions;
type Parsed<T> = Result<T, FressianError>;

/// The fault of an item that is another one than `what`.
pub fn expected(offset: usize, what: &'static str) -> FressianError {
    FressianError { offset, fault: FressianErrorKind::Expected(what) }
}

/// Whether a further value follows in a list with `left` values, or up to an end, which is consumed.
///
/// # Errors
/// The bytes end.
pub fn next_of(reader: &mut FressianReader<'_>, left: &mut Option<u64>) -> Parsed<bool> {
    match left {
        Some(0) => Ok(false),
        Some(left) => {
            *left -= 1;
            Ok(true)
        }
        None => match reader.peek() {
            None => Err(FressianError { offset: reader.offset(), fault: FressianErrorKind::End }),
            Some(0xFD) => {
                *reader = FressianReader::at(reader.whole(), reader.offset() + 1);
                Ok(false)
            }
            Some(_) => Ok(true),
        },
    }
}

/// Reads the values of a hello.
///
/// # Errors
/// They have another type, or end.
pub fn hello<'a>(reader: &mut FressianReader<'a>, known: Defined<'_>) -> Parsed<Hello<'a>> {
    integer(reader, known)?;
    Ok(Hello { host: text(reader, known)?, pass_phrase: text(reader, known)? })
}

/// Reads the values of a symbol: its id, and where its text begins and ends.
///
/// # Errors
/// They have another type, or end.
pub fn symbol<'a>(reader: &mut FressianReader<'a>, known: Defined<'_>) -> Parsed<(u64, Cow<'a, [u8]>)> {
    let id = id(reader, known)?;
    let offset = reader.offset();
    Ok((id, text(reader, known)?.ok_or(expected(offset, "a text"))?))
}

/// Reads the values of a record up to its children.
///
/// # Errors
/// They have another type, or end.
pub fn record_head(reader: &mut FressianReader<'_>, known: Defined<'_>) -> Parsed<RecordHead> {
    let parts = [id(reader, known)?, id(reader, known)?, id(reader, known)?];
    let flags = unsigned(reader, known)?;
    let nanos = unsigned(reader, known)?;
    let (calls, errors) = (unsigned(reader, known)?, unsigned(reader, known)?);
    let marker =
        if optional(reader, known, Tag::Marker, "a marker or null")? { Some(marker(reader, known)?) } else { None };
    let start = reader.offset();
    let has_exception = optional(reader, known, Tag::Exception, "an exception or null")?;
    let exception = if has_exception {
        exception_values(reader, known, &mut |_| {})?;
        Some(start..reader.offset())
    } else {
        None
    };
    let start = reader.offset();
    let attributes = if take_null(reader) {
        None
    } else {
        check_attributes(reader, known)?;
        Some(start..reader.offset())
    };
    let offset = reader.offset();
    let children = match reader.item(known)? {
        FressianItem::Null => Some(0),
        FressianItem::List(children) => children,
        _ => return Err(expected(offset, "a list of records or null")),
    };
    Ok(RecordHead { parts, flags, nanos, calls, errors, marker, exception, attributes, children })
}

fn marker(reader: &mut FressianReader<'_>, known: Defined<'_>) -> Parsed<Marker> {
    let trace_type = id(reader, known)?;
    let clock = integer(reader, known)?;
    integer(reader, known)?;
    Ok(Marker { trace_type, clock, flags: unsigned(reader, known)? })
}

/// Reads an exception and its causes, and gives their parts to `take`.
///
/// # Errors
/// They have another type, or end.
pub fn exception<'a>(
    reader: &mut FressianReader<'a>,
    known: Defined<'_>,
    mut take: impl FnMut(ExceptionPart<'a>),
) -> Parsed<()> {
    if optional(reader, known, Tag::Exception, "an exception")? {
        exception_values(reader, known, &mut take)?;
    }
    Ok(())
}

/// A cause is the last value of an exception, so there is no recursion.
fn exception_values<'a>(
    reader: &mut FressianReader<'a>,
    known: Defined<'_>,
    take: &mut dyn FnMut(ExceptionPart<'a>),
) -> Parsed<()> {
    let mut is_cause = false;
    loop {
        take(ExceptionPart::Thrown { class: id(reader, known)?, message: text(reader, known)?, is_cause });
        let offset = reader.offset();
        let mut left = match reader.item(known)? {
            FressianItem::Null => Some(0),
            FressianItem::List(left) => left,
            _ => return Err(expected(offset, "a list of frames")),
        };
        while next_of(reader, &mut left)? {
            let offset = reader.offset();
            if !optional(reader, known, Tag::Frame, "a frame of a stack")? {
                return Err(expected(offset, "a frame of a stack"));
            }
            let [class, method, file] = [id(reader, known)?, id(reader, known)?, id(reader, known)?];
            take(ExceptionPart::Frame { class, method, file, line: integer(reader, known)? });
        }
        if !optional(reader, known, Tag::Exception, "a cause or null")? {
            return Ok(());
        }
        is_cause = true;
    }
}

/// Reads the values of a perf record up to its samples: its clock, its scanner, and the number of samples.
///
/// # Errors
/// They have another type, or end.
pub fn perf_head(reader: &mut FressianReader<'_>, known: Defined<'_>) -> Parsed<(i64, u64, Option<u64>)> {
    let clock = integer(reader, known)?;
    let scanner = id(reader, known)?;
    let offset = reader.offset();
    match reader.item(known)? {
        FressianItem::Null => Ok((clock, scanner, Some(0))),
        FressianItem::List(samples) => Ok((clock, scanner, samples)),
        _ => Err(expected(offset, "a list of samples")),
    }
}

/// Reads the values of a sample.
///
/// # Errors
/// They have another type, or end.
pub fn sample<'a>(reader: &mut FressianReader<'a>, known: Defined<'_>) -> Parsed<Sample<'a>> {
    let metric = id(reader, known)?;
    let offset = reader.offset();
    let value = match reader.item(known)? {
        FressianItem::Integer(number) => Number::I64(number),
        FressianItem::Double(number) => Number::F64(number),
        FressianItem::Float(number) => Number::F64(f64::from(number)),
        _ => return Err(expected(offset, "a number")),
    };
    let mut attributes = Vec::new();
    if !take_null(reader) {
        let mut left = pairs(reader, known)?;
        while next_of(reader, &mut left)? {
            let key = id(reader, known)?;
            next_of(reader, &mut left)?;
            if let Some(value) = text(reader, known)? {
                attributes.push((key, value));
            }
        }
    }
    Ok(Sample { metric, value, attributes })
}

/// Reads the values of a metric, five or six, whatever its type declares.
///
/// # Errors
/// They have another type, or end.
pub fn metric<'a>(reader: &mut FressianReader<'a>, known: Defined<'_>) -> Parsed<MetricHead<'a>> {
    let id = id(reader, known)?;
    integer(reader, known)?;
    integer(reader, known)?;
    let name = text(reader, known)?;
    // A description that is null is followed by the map.
    let rest = reader.whole().get(reader.offset()..).unwrap_or_default();
    let description = if matches!(rest, [0xC0, ..] | [0xF7]) || matches!(rest, [0xF7, next, ..] if *next != 0xC0) {
        None
    } else {
        text(reader, known)?
    };
    let mut attributes = Vec::new();
    if take_null(reader) {
        return Ok(MetricHead { id, name, description, attributes });
    }
    let mut left = pairs(reader, known)?;
    while next_of(reader, &mut left)? {
        let key = text(reader, known)?;
        next_of(reader, &mut left)?;
        if let (Some(key), Some(value)) = (key, text(reader, known)?) {
            attributes.push((key, value));
        }
    }
    Ok(MetricHead { id, name, description, attributes })
}

/// Passes over the values of a template, eight or nine, whatever its type declares. Agents send none, because of a bug.
///
/// # Errors
/// They have another type, or end.
pub fn template(reader: &mut FressianReader<'_>, known: Defined<'_>) -> Parsed<()> {
    id(reader, known)?;
    integer(reader, known)?;
    // Name, maybe a description, units, nominator, divider.
    for _ in 0..5 {
        let before = *reader;
        match reader.item(known)? {
            FressianItem::Text(_) | FressianItem::TextChunks(_) | FressianItem::Null => {}
            _ => {
                *reader = before;
                break;
            }
        }
    }
    let offset = reader.offset();
    match reader.item(known)? {
        FressianItem::Double(_) | FressianItem::Float(_) | FressianItem::Integer(_) => {}
        _ => return Err(expected(offset, "a multiplier")),
    }
    reader.skip(4, known)
}

/// The head of a map that follows: the number of keys and values together; `None`: up to an end.
///
/// # Errors
/// It is no map, or a value is missing.
pub fn pairs(reader: &mut FressianReader<'_>, known: Defined<'_>) -> Parsed<Option<u64>> {
    let offset = reader.offset();
    if reader.item(known)? != FressianItem::Extended(Extended::Map) {
        return Err(expected(offset, "a map"));
    }
    let offset = reader.offset();
    match reader.item(known)? {
        FressianItem::List(Some(values)) if values % 2 == 1 => Err(expected(offset, "keys with values")),
        FressianItem::List(values) => Ok(values),
        _ => Err(expected(offset, "the list of a map")),
    }
}

/// Whether null follows, which is consumed.
fn take_null(reader: &mut FressianReader<'_>) -> bool {
    let is_null = reader.peek() == Some(0xF7);
    if is_null {
        *reader = FressianReader::at(reader.whole(), reader.offset() + 1);
    }
    is_null
}

/// Reads the head of a struct with this tag: `true`; or null.
fn optional(reader: &mut FressianReader<'_>, known: Defined<'_>, tag: Tag, what: &'static str) -> Parsed<bool> {
    let offset = reader.offset();
    match reader.item(known)? {
        FressianItem::Null => Ok(false),
        FressianItem::Struct(found, _) if Tag::of(found) == tag => Ok(true),
        _ => Err(expected(offset, what)),
    }
}

fn integer(reader: &mut FressianReader<'_>, known: Defined<'_>) -> Parsed<i64> {
    let offset = reader.offset();
    match reader.item(known)? {
        FressianItem::Integer(number) => Ok(number),
        _ => Err(expected(offset, "an integer")),
    }
}

fn unsigned(reader: &mut FressianReader<'_>, known: Defined<'_>) -> Parsed<u64> {
    let offset = reader.offset();
    u64::try_from(integer(reader, known)?).map_err(|_| expected(offset, "an integer that is not negative"))
}

/// The id of a symbol or a metric: a 32-bit number of Java.
fn id(reader: &mut FressianReader<'_>, known: Defined<'_>) -> Parsed<u64> {
    let offset = reader.offset();
    let number = integer(reader, known)?;
    let id = i32::try_from(number).ok().and_then(|id| u64::try_from(id).ok());
    id.ok_or(expected(offset, "an id of 31 bits"))
}

fn text<'a>(reader: &mut FressianReader<'a>, known: Defined<'_>) -> Parsed<Option<Cow<'a, [u8]>>> {
    let offset = reader.offset();
    match reader.item(known)? {
        FressianItem::Null => Ok(None),
        FressianItem::Text(text) => Ok(Some(Cow::Borrowed(text))),
        FressianItem::TextChunks(chunks) => Ok(Some(Cow::Owned(joined(chunks)))),
        _ => Err(expected(offset, "a text or null")),
    }
}
