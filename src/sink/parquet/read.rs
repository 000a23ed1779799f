//! A Parquet file of ours to events.

mod metric;

use std::io;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parquet::basic::{LogicalType, Repetition};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, FileReader as _, SerializedFileReader};
use parquet::schema::types::Type;
use serde_json::Value as Json;

use super::cells::{Cell, Leaf, failed, invalid};
use super::contained::contained;
use super::lossless_json;
use super::schema::{FORM_KEY, FORMS, KIND_KEY, TIME_KEY, is_free, nanos_of, times_of};
use tributary_event::{
    Batch, DroppedCounts, Frame, Header, Key, Kind, Link, Number, Position, ResourceValue, SampleClock, SampleData,
    SeverityNumber, Span32, SpanData, SpanEvent, SpanExtras, SpanId, SpanKind, SpanLink, Status, TraceContext, TraceId,
    UnixNanos, Value, hex_array, hex_bytes, semconv,
};
use tributary_stored::{OriginParts, Rebuilder, StoredData, reason, severity};

/// The rows that are in memory at a time, with all columns.
const PIECE_ROWS: usize = 4096;

/// Reads the events of a file in their order, until `take` returns `false`.
///
/// # Errors
/// It is not a file of a sink `parquet`, or damaged; those of `take`.
pub fn read<R: ChunkReader + 'static>(input: R, take: &mut dyn FnMut(Batch) -> io::Result<bool>) -> io::Result<()> {
    // The parquet crate panics where numbers in a footer or a page contradict each other.
    contained(|| read_file(input, take)).unwrap_or_else(|why| Err(invalid(format!("it is damaged: {why}"))))
}

fn read_file<R: ChunkReader + 'static>(input: R, take: &mut dyn FnMut(Batch) -> io::Result<bool>) -> io::Result<()> {
    let bytes = input.len();
    let file = SerializedFileReader::new(input).map_err(failed)?;
    for group in file.metadata().row_groups() {
        check(group, bytes)?;
    }
    let metadata = file.metadata().file_metadata();
    let value = |key: &str| {
        let entry = metadata.key_value_metadata()?.iter().find(|entry| entry.key == key)?;
        entry.value.as_deref()
    };
    let foreign = || invalid("it is not a file of a sink of type parquet");
    let form = value(FORM_KEY).ok_or_else(foreign)?;
    if !FORMS.contains(&form) {
        let known = FORMS.join(" and ");
        return Err(invalid(format!("its tables have form {form}; this program reads the forms {known}")));
    }
    let has_micros = form == FORMS[1];
    let kind = value(KIND_KEY).and_then(|name| Kind::ALL.into_iter().find(|kind| kind.as_str() == name));
    let kind = kind.ok_or_else(foreign)?;
    let mut table = FileColumns::new(kind, has_micros, metadata.schema_descr().root_schema());
    let mut rebuilder = Rebuilder::default();
    for group in 0..file.num_row_groups() {
        let group = file.get_row_group(group).map_err(failed)?;
        let mut readers = (0..table.leaves.len())
            .map(|leaf| group.get_column_reader(leaf))
            .collect::<Result<Vec<_>, _>>()
            .map_err(failed)?;
        let mut left = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        while left > 0 {
            let rows = left.min(PIECE_ROWS);
            for (leaf, reader) in table.leaves.iter_mut().zip(&mut readers) {
                leaf.fill(reader, rows)?;
            }
            left -= rows;
            for _ in 0..rows {
                table.event(&mut rebuilder)?;
                if rebuilder.is_full() && !take(rebuilder.take())? {
                    return Ok(());
                }
            }
        }
    }
    take(rebuilder.take()).map(drop)
}

/// Checks the places that a footer names, before anything is allocated for what stands there.
fn check(group: &RowGroupMetaData, file_bytes: u64) -> io::Result<()> {
    for column in group.columns() {
        let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
        let (start, bytes) = (u64::try_from(start).ok(), u64::try_from(column.compressed_size()).ok());
        let end = start.zip(bytes).and_then(|(start, bytes)| start.checked_add(bytes));
        if end.is_none_or(|end| end > file_bytes) || column.num_values() < 0 || group.num_rows() < 0 {
            return Err(invalid(format!("its footer is damaged: column {} is not in the file", column.column_path())));
        }
    }
    Ok(())
}

/// The columns of a file.
struct FileColumns {
    kind: Kind,
    /// Times have microseconds, and their nanoseconds a column of their own.
    has_micros: bool,
    leaves: Vec<Leaf>,
    /// The first leaf of each part of the event.
    parts: HashMap<String, usize, RandomState>,
    attributes: Vec<Attribute>,
}

/// The column of an attribute.
struct Attribute {
    name: String,
    leaf: usize,
    is_list: bool,
}

impl FileColumns {
    fn new(kind: Kind, has_micros: bool, schema: &Type) -> FileColumns {
        let (leaves, parts, attributes) = (Vec::new(), HashMap::default(), Vec::new());
        let mut table = FileColumns { kind, has_micros, leaves, parts, attributes };
        // In the older form an attribute can have such a column.
        let is_of_time = |name: &str| !has_micros && times_of(kind).any(|time| nanos_of(time) == name);
        for field in schema.get_fields() {
            let (name, leaf) = (field.name().to_owned(), table.leaves.len());
            push_leaves(field, 0, 0, &mut table.leaves);
            if is_free(kind, &name) || is_of_time(&name) {
                let is_list = field.get_basic_info().logical_type_ref() == Some(&LogicalType::List);
                table.attributes.push(Attribute { name, leaf, is_list });
            } else {
                table.parts.insert(name, leaf);
            }
        }
        table
    }

    /// The next value of a part of the event; `None`: it has none.
    fn cell(&mut self, part: &str) -> Option<Cell> {
        self.parts.get(part).and_then(|leaf| self.leaves[*leaf].next())
    }

    fn text(&mut self, part: &str) -> io::Result<Option<String>> {
        self.cell(part).map(Cell::text).transpose()
    }

    fn int(&mut self, part: &str) -> Option<i64> {
        match self.cell(part) {
            Some(Cell::Int(number)) => Some(number),
            _ => None,
        }
    }

    /// An integer without sign has the same bits.
    fn uint(&mut self, part: &str) -> Option<u64> {
        self.int(part).map(|number| number as u64)
    }

    /// A time in nanoseconds.
    fn time(&mut self, part: &str) -> Option<u64> {
        let time = self.uint(part);
        if !self.has_micros {
            return time;
        }
        let nanos = self.uint(&nanos_of(part)).unwrap_or(0);
        time.map(|micros| micros.wrapping_mul(1_000).wrapping_add(nanos))
    }

    /// The next entries of a list or map: a cell of each of `N` leaves.
    fn entries<const N: usize>(&mut self, part: &str) -> Vec<[Option<Cell>; N]> {
        let Some(first) = self.parts.get(part).copied() else { return Vec::new() };
        let mut leaves: [_; N] = std::array::from_fn(|leaf| self.leaves[first + leaf].next_entries().into_iter());
        let mut entries = Vec::new();
        while let Some(entry) = next_of_each(&mut leaves) {
            entries.push(entry);
        }
        entries
    }

    /// Adds the event of the next row.
    fn event(&mut self, out: &mut Rebuilder) -> io::Result<()> {
        let (time, observed) = (self.time("time"), self.time("observed_time"));
        let name = self.text("name")?.unwrap_or_default();
        let (protocol, version) = (self.text("protocol")?.unwrap_or_default(), self.text("version")?);
        let (listener, peer) = (self.text("listener")?.unwrap_or_default(), self.text("peer")?.unwrap_or_default());
        let connection = self.uint("connection").unwrap_or(0);
        let (sequence, offset, length) = (self.uint("sequence"), self.uint("offset"), self.uint("length"));
        let service = self.text("service_name")?;

        let mut resource = self.map("resource")?;
        let mut stored = self.map("attributes")?;
        let beyond = match stored.iter().position(|(key, _)| key == TIME_KEY) {
            Some(at) => Beyond::read(&stored.remove(at).1),
            None => Beyond::default(),
        };
        let is_service =
            |(key, value): &(String, Stored)| key == semconv::SERVICE_NAME.as_str() && matches!(value, Stored::Text(_));
        if let Some(service) = service
            && !stored.iter().any(is_service)
        {
            resource.push((semconv::SERVICE_NAME.as_str().to_owned(), Stored::Text(service)));
        }
        let resource =
            resource.into_iter().map(|(key, value)| Some((key, value.scalar()?))).collect::<Option<Vec<_>>>();
        out.set_origin(OriginParts {
            protocol: &protocol,
            version: version.as_deref(),
            listener: &listener,
            peer: &peer,
            connection,
        });
        out.set_resource(resource.ok_or_else(|| invalid("a resource has a value that resources do not have"))?);

        let data = self.data(&beyond, out)?;
        let mut attributes: Vec<(Key, Value)> = Vec::new();
        for index in 0..self.attributes.len() {
            let Attribute { leaf, is_list, .. } = self.attributes[index];
            let value = if is_list {
                self.leaves[leaf].next_list().map(|items| {
                    let items: Vec<_> = items.into_iter().map(Value::I64).collect();
                    out.builder().array(&items)
                })
            } else {
                match self.leaves[leaf].next() {
                    Some(cell) => Some(cell.value(out)?),
                    None => None,
                }
            };
            if let Some(value) = value {
                attributes.push((out.key(&self.attributes[index].name), value));
            }
        }
        for (key, value) in stored {
            let key = out.key(&key);
            let value = value.value(out).ok_or_else(|| invalid("attributes_json has a text that is not JSON"))?;
            attributes.push((key, value));
        }
        let header = Header {
            name: out.key(&name),
            time: time.or(beyond.get("time")).map(UnixNanos),
            observed: UnixNanos(observed.or(beyond.get("observed_time")).unwrap_or(0)),
            position: Position { sequence, offset: offset.unwrap_or(0), length: length.unwrap_or(0) },
        };
        out.push(header, &attributes, data);
        Ok(())
    }

    /// The entries of all maps of attributes or of the resource.
    fn map(&mut self, of: &str) -> io::Result<Vec<(String, Stored)>> {
        let mut all = Vec::new();
        for shape in ["string", "int", "double", "bool", "json"] {
            for [key, value] in self.entries::<2>(&format!("{of}_{shape}")) {
                let (Some(key), Some(value)) = (key, value) else { continue };
                let value = match value {
                    Cell::Int(number) => Stored::Number(Number::I64(number)),
                    Cell::Double(number) => Stored::Number(Number::F64(number)),
                    Cell::Bool(value) => Stored::Bool(value),
                    Cell::Text(_) if shape == "json" => Stored::Json(value.text()?),
                    Cell::Text(_) => Stored::Text(value.text()?),
                };
                all.push((key.text()?, value));
            }
        }
        Ok(all)
    }

    fn span_extras(&mut self, out: &mut Rebuilder) -> io::Result<SpanExtras> {
        let trace_state = self.text("trace_state")?.map(|text| out.builder().push_text(&text));
        let mut number = |part| self.uint(part).and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
        let flags = number("flags");
        let dropped = DroppedCounts {
            attributes: number("dropped_attributes"),
            events: number("dropped_events"),
            links: number("dropped_links"),
        };
        Ok(SpanExtras { trace_state, flags, dropped })
    }

    fn links(&mut self, out: &mut Rebuilder) -> io::Result<Vec<SpanLink>> {
        // Files of earlier versions have no events, and of links the ids only.
        let entries = if self.parts.contains_key("events") {
            self.entries::<5>("links")
        } else {
            self.entries::<2>("links")
                .into_iter()
                .map(|[trace_id, span_id]| [trace_id, span_id, None, None, None])
                .collect()
        };
        let mut links = Vec::new();
        for [trace_id, span_id, attributes, state, flags] in entries {
            let [trace_id, span_id] = [trace_id, span_id].map(|id| id.map(Cell::text).transpose());
            let (trace_id, span_id) = (trace_id?.and_then(|id| hex_array(&id)), span_id?.and_then(|id| hex_array(&id)));
            let (Some(trace_id), Some(span_id)) = (trace_id, span_id) else {
                return Err(invalid("`links` has no ids"));
            };
            let trace_state = state.map(Cell::text).transpose()?.map(|text| out.builder().push_text(&text));
            let flags = if let Some(Cell::Int(flags)) = flags { u32::try_from(flags).ok() } else { None };
            let to = Link { trace_id: TraceId(trace_id), span_id: SpanId(span_id) };
            links.push(SpanLink { to, attributes: own_attributes(attributes, out)?, trace_state, flags });
        }
        Ok(links)
    }

    fn span_events(&mut self, out: &mut Rebuilder) -> io::Result<Vec<SpanEvent>> {
        let mut events = Vec::new();
        for [time, name, attributes] in self.entries::<3>("events") {
            let time = if let Some(Cell::Int(nanos)) = time { Some(UnixNanos(nanos as u64)) } else { None };
            let name = out.key(&name.map(Cell::text).transpose()?.unwrap_or_default());
            events.push(SpanEvent { time, name, attributes: own_attributes(attributes, out)? });
        }
        Ok(events)
    }

    fn data(&mut self, beyond: &Beyond, out: &mut Rebuilder) -> io::Result<StoredData> {
        let wrong = |part: &str| invalid(format!("`{part}` is not as this kind has it"));
        Ok(match self.kind {
            Kind::Log => {
                let name = self.text("severity")?.unwrap_or_default();
                let trace_id = self.text("trace_id")?;
                let span_id = self.text("span_id")?;
                let context = match trace_id {
                    Some(id) => {
                        let trace_id = TraceId(hex_array(&id).ok_or_else(|| wrong("trace_id"))?);
                        Some(TraceContext { trace_id, span_id: span_id.and_then(|id| hex_array(&id)).map(SpanId) })
                    }
                    None => None,
                };
                let body = match self.cell("body") {
                    Some(Cell::Text(text)) => Some(lossless_json::read(text.data(), out).ok_or_else(|| wrong("body"))?),
                    _ => None,
                };
                let severity = severity(&name).ok_or_else(|| wrong("severity"))?;
                let severity = match self.uint("severity_number") {
                    None => severity.into(),
                    Some(number) => SeverityNumber::of(severity, number).ok_or_else(|| wrong("severity_number"))?,
                };
                StoredData::Log { severity, context, body }
            }
            Kind::Span => {
                let [trace_id, span_id, parent] = ["trace_id", "span_id", "parent_span_id"].map(|part| self.text(part));
                let end = self.time("end_time").or(beyond.get("end_time"));
                let duration = self.uint("duration_ns").or(beyond.get("duration_ns"));
                let status = match self.text("status")?.as_deref() {
                    Some("ok") => Status::Ok,
                    Some("error") => Status::Error,
                    _ => Status::Unset,
                };
                let links = self.links(out)?;
                let kind = self.text("kind")?.and_then(|name| SpanKind::of(&name));
                let status_message = self.text("status_message")?.map(|text| out.builder().push_text(&text));
                let events = self.span_events(out)?;
                let span = SpanData {
                    trace_id: trace_id?.and_then(|id| hex_array(&id)).map(TraceId).ok_or_else(|| wrong("trace_id"))?,
                    span_id: span_id?.and_then(|id| hex_array(&id)).map(SpanId).ok_or_else(|| wrong("span_id"))?,
                    parent: parent?.and_then(|id| hex_array(&id)).map(SpanId),
                    end: end.map(UnixNanos),
                    duration_nanos: duration,
                    kind,
                    status,
                    status_message,
                };
                StoredData::Span { span, extras: self.span_extras(out)?, links, events }
            }
            Kind::Metric => self.metric(beyond, out)?,
            Kind::Sample => {
                let (of, unit) = (self.text("type")?.unwrap_or_default(), self.text("unit")?.unwrap_or_default());
                let bits = beyond.get("value_bits").map(|bits| Number::F64(f64::from_bits(bits)));
                let value = self.int("value").map(Number::I64).or(beyond.get("value").map(Number::U64)).or(bits);
                let period_nanos = self.uint("period_ns");
                let clock = self.text("clock")?.map(|clock| match &*clock {
                    "cpu" => SampleClock::Cpu,
                    _ => SampleClock::Wall,
                });
                let mut frames = Vec::new();
                for [function, file, line] in self.entries::<3>("frames") {
                    let mut text = |cell: Option<Cell>| -> io::Result<_> {
                        Ok(match cell {
                            Some(cell) => Some(out.builder().push_text(&cell.text()?)),
                            None => None,
                        })
                    };
                    let line = match line {
                        Some(Cell::Int(line)) => Some(line as u64),
                        _ => None,
                    };
                    frames.push(Frame { function: text(function)?, file: text(file)?, line });
                }
                let value = value.ok_or_else(|| wrong("value"))?;
                let (sample_type, unit) = (out.builder().push_text(&of).into(), out.builder().push_text(&unit).into());
                let sample = SampleData { sample_type, unit, value, period_nanos, clock };
                StoredData::Sample { sample, frames }
            }
            Kind::Loss => {
                let name = self.text("reason")?.unwrap_or_default();
                let (bytes, events) = (self.uint("bytes").unwrap_or(0), self.uint("events"));
                let detail = self.text("detail")?.unwrap_or_default();
                let excerpt = hex_bytes(&self.text("excerpt")?.unwrap_or_default()).ok_or_else(|| wrong("excerpt"))?;
                StoredData::Loss {
                    reason: reason(&name).ok_or_else(|| wrong("reason"))?,
                    bytes,
                    events,
                    detail,
                    excerpt,
                }
            }
        })
    }
}

/// The attributes of an entry of a list.
fn own_attributes(cell: Option<Cell>, out: &mut Rebuilder) -> io::Result<Span32> {
    let Some(Cell::Text(text)) = cell else { return Ok(Span32::default()) };
    match lossless_json::read(text.data(), out) {
        Some(Value::Map(attributes)) => Ok(attributes),
        _ => Err(invalid("`attributes_json` is no object")),
    }
}

fn next_of_each<I: Iterator, const N: usize>(iterators: &mut [I; N]) -> Option<[I::Item; N]> {
    let items: Vec<_> = iterators.iter_mut().map_while(Iterator::next).collect();
    items.try_into().ok()
}

/// The leaves of a field, in their order.
fn push_leaves(field: &Type, definition: i16, repetition: i16, leaves: &mut Vec<Leaf>) {
    let (definition, repetition) = match field.get_basic_info().repetition() {
        Repetition::REQUIRED => (definition, repetition),
        Repetition::OPTIONAL => (definition + 1, repetition),
        Repetition::REPEATED => (definition + 1, repetition + 1),
    };
    if field.is_primitive() {
        leaves.push(Leaf::new(field.get_physical_type(), definition, repetition > 0));
    } else {
        field.get_fields().iter().for_each(|field| push_leaves(field, definition, repetition, leaves));
    }
}

/// An entry of the maps.
enum Stored {
    Text(String),
    Json(String),
    Number(Number),
    Bool(bool),
}

impl Stored {
    /// `None`: a text that is not JSON.
    fn value(self, out: &mut Rebuilder) -> Option<Value> {
        Some(match self {
            Stored::Text(text) => Value::Text(out.builder().push_text(&text)),
            Stored::Json(text) => return lossless_json::read(text.as_bytes(), out),
            Stored::Number(Number::I64(number)) => Value::I64(number),
            Stored::Number(Number::U64(number)) => Value::U64(number),
            Stored::Number(Number::F64(number)) => Value::F64(number),
            Stored::Bool(value) => Value::Bool(value),
        })
    }

    /// Resources have integers beyond i64 as JSON, and no other JSON.
    fn scalar(self) -> Option<ResourceValue> {
        Some(match self {
            Stored::Text(text) => ResourceValue::Text(text),
            Stored::Json(text) => ResourceValue::U64(text.parse().ok()?),
            Stored::Number(Number::I64(number)) => ResourceValue::I64(number),
            Stored::Number(Number::U64(number)) => ResourceValue::U64(number),
            Stored::Number(Number::F64(number)) => ResourceValue::F64(number),
            Stored::Bool(value) => ResourceValue::Bool(value),
        })
    }
}

/// Parts of an event that their column cannot have.
#[derive(Default)]
struct Beyond(HashMap<String, u64, RandomState>);

impl Beyond {
    fn read(stored: &Stored) -> Beyond {
        let Stored::Json(text) = stored else { return Beyond::default() };
        let Ok(Json::Object(members)) = serde_json::from_str(text) else { return Beyond::default() };
        Beyond(members.into_iter().filter_map(|(name, value)| Some((name, value.as_u64()?))).collect())
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }
}
