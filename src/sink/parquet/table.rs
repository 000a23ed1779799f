//! Events to the columns of a row group.

mod metric;

use std::io::Write;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parquet::errors::Result;
use parquet::file::writer::SerializedFileWriter;

use super::column::{Leaf, write_leaves};
use super::lossless_json;
use super::schema::{Column, EventLeaf, Map, Role, Shape, TIME_KEY};
use tributary_event::{
    DataView, EventView, KeyView, Member, Members, Name, Number, Resource, ResourceValue, SpanExtrasView, SpanView,
    Status, TextView, UnixNanos, ValueView, Values, semconv, write_hex,
};

/// The columns of a row group, while it is collected.
#[derive(Debug)]
pub(super) struct RowGroup {
    leaves: Vec<Leaf>,
    rows: usize,
    /// The first leaf of the maps.
    maps: usize,
    /// The first leaf of the nanoseconds of times, if times have microseconds.
    nanos: Option<usize>,
    /// The columns of attributes: of names of ours by their index, of others by text.
    named: Vec<Option<ColumnSlot>>,
    others: HashMap<String, ColumnSlot, RandomState>,
    /// Parts of the event in hand that have no place in their column.
    beyond: Vec<(&'static str, u64)>,
}

/// The column of an attribute.
#[derive(Clone, Copy, Debug)]
struct ColumnSlot {
    leaf: usize,
    shape: Shape,
}

impl RowGroup {
    pub(super) fn new(columns: &[Column]) -> Self {
        let mut leaves = Vec::new();
        let mut named = vec![None; Name::all().len()];
        let mut others = HashMap::default();
        for column in columns {
            let slot = ColumnSlot { leaf: leaves.len(), shape: column.shape };
            match (column.role, Name::of(&column.name)) {
                (Role::Part, _) => {}
                (Role::Attribute, Some(name)) => named[name.index()] = Some(slot),
                (Role::Attribute, None) => drop(others.insert(column.name.clone(), slot)),
            }
            leaves.append(&mut column.shape.leaves());
        }
        let maps = leaves.len() - 2 * Map::OF_RESOURCE;
        // A leaf for each time, before the maps.
        let times = columns.iter().filter(|column| column.shape == Shape::Micros).count();
        let nanos = (times > 0).then_some(maps - times);
        RowGroup { leaves, rows: 0, maps, nanos, named, others, beyond: Vec::new() }
    }

    /// Rows that are not written.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of memory of these rows.
    pub(super) fn memory_bytes(&self) -> usize {
        self.leaves.iter().map(Leaf::memory_bytes).sum()
    }

    /// Writes the rows as a row group.
    pub(super) fn write(&mut self, file: &mut SerializedFileWriter<impl Write + Send>) -> Result<()> {
        let mut group = file.next_row_group()?;
        write_leaves(&mut self.leaves, self.rows, &mut group)?;
        group.close()?;
        self.rows = 0;
        Ok(())
    }

    /// Adds an event of the table's kind.
    pub(super) fn push(&mut self, event: EventView<'_>) {
        let row = self.rows;
        let (origin, position) = (event.origin(), event.position());
        self.time(0, EventLeaf::TIME, "time", event.time());
        self.time(1, EventLeaf::OBSERVED, "observed_time", Some(event.observed()));
        self.text(EventLeaf::NAME, event.name().text());
        self.text(EventLeaf::PROTOCOL, origin.protocol);
        if let Some(version) = &origin.version {
            self.text(EventLeaf::VERSION, version);
        }
        self.text(EventLeaf::LISTENER, &origin.listener);
        if !origin.peer.is_empty() {
            self.text(EventLeaf::PEER, &origin.peer);
        }
        self.uint(EventLeaf::CONNECTION, Some(origin.connection));
        self.uint(EventLeaf::SEQUENCE, position.sequence);
        self.uint(EventLeaf::OFFSET, Some(position.offset));
        self.uint(EventLeaf::LENGTH, Some(position.length));
        self.data(event);
        let mut own_service = false;
        for member in event.attribute_members() {
            own_service |= self.attribute(member);
        }
        self.resource(event.resource(), own_service);
        self.flush_beyond();
        self.rows = row + 1;
    }

    fn data(&mut self, event: EventView<'_>) {
        let row = self.rows;
        match event.data() {
            DataView::Log { severity, severity_number, context, body } => {
                self.text(EventLeaf::KIND, severity.as_str());
                if !severity_number.is_first() {
                    self.uint(EventLeaf::KIND + 4, Some(severity_number.get().into()));
                }
                if let Some(context) = context {
                    self.hex(EventLeaf::KIND + 1, &context.trace_id.0);
                    if let Some(span_id) = context.span_id {
                        self.hex(EventLeaf::KIND + 2, &span_id.0);
                    }
                }
                if let Some(body) = body {
                    self.leaves[EventLeaf::KIND + 3].text_with(row, |out| lossless_json::push(out, body));
                }
            }
            DataView::Span(span) => {
                self.hex(EventLeaf::KIND, &span.trace_id.0);
                self.hex(EventLeaf::KIND + 1, &span.span_id.0);
                if let Some(parent) = span.parent {
                    self.hex(EventLeaf::KIND + 2, &parent.0);
                }
                self.time(2, EventLeaf::KIND + 3, "end_time", span.end);
                if let Some(duration) = span.duration_nanos {
                    match i64::try_from(duration) {
                        Ok(duration) => self.leaves[EventLeaf::KIND + 4].int(row, duration),
                        Err(_) => self.beyond.push(("duration_ns", duration)),
                    }
                }
                self.text(
                    EventLeaf::KIND + 5,
                    match span.status {
                        Status::Unset => "unset",
                        Status::Ok => "ok",
                        Status::Error => "error",
                    },
                );
                self.links(span);
                if let Some(kind) = span.kind {
                    self.text(EventLeaf::KIND + 11, kind.as_str());
                }
                if let Some(message) = span.status_message() {
                    self.text(EventLeaf::KIND + 12, message.text());
                }
                self.span_events(span);
                if let Some(extras) = span.extras() {
                    self.span_extras(extras);
                }
            }
            DataView::Metric(metric) => self.metric(metric),
            DataView::Sample(sample) => {
                self.text(EventLeaf::KIND, sample.sample_type());
                self.text_or_null(EventLeaf::KIND + 1, sample.unit());
                match whole(sample.data.value) {
                    Whole::Int(value) => self.leaves[EventLeaf::KIND + 2].int(row, value),
                    Whole::Uint(value) => self.beyond.push(("value", value)),
                    Whole::Double(value) => self.beyond.push(("value_bits", value.to_bits())),
                }
                self.uint(EventLeaf::KIND + 3, sample.data.period_nanos);
                if let Some(clock) = sample.data.clock {
                    self.text(EventLeaf::KIND + 4, clock.as_str());
                }
                for frame in sample.frames() {
                    self.entry_text(EventLeaf::KIND + 5, frame.function);
                    self.entry_text(EventLeaf::KIND + 6, frame.file);
                    self.entry_uint(EventLeaf::KIND + 7, frame.line);
                }
            }
            DataView::Loss(loss) => {
                self.text(EventLeaf::KIND, loss.reason.as_str());
                self.uint(EventLeaf::KIND + 1, Some(loss.bytes));
                self.uint(EventLeaf::KIND + 2, loss.events);
                self.text_or_null(EventLeaf::KIND + 3, loss.detail.text());
                if !loss.excerpt.is_empty() {
                    self.hex(EventLeaf::KIND + 4, loss.excerpt);
                }
            }
        }
    }

    fn span_extras(&mut self, extras: SpanExtrasView<'_>) {
        const FIRST: usize = EventLeaf::KIND + 16;
        let SpanExtrasView { trace_state, flags, dropped } = extras;
        if let Some(state) = trace_state {
            self.text(FIRST, state.text());
        }
        let numbers = [flags, dropped.attributes, dropped.events, dropped.links];
        for (at, number) in numbers.into_iter().enumerate().filter(|(_, number)| *number > 0) {
            self.uint(FIRST + 1 + at, Some(number.into()));
        }
    }

    fn links(&mut self, span: SpanView<'_>) {
        const FIRST: usize = EventLeaf::KIND + 6;
        for link in span.links() {
            self.hex(FIRST, &link.to.trace_id.0);
            self.hex(FIRST + 1, &link.to.span_id.0);
            self.attributes_json(FIRST + 2, link.attributes);
            self.entry_text(FIRST + 3, link.trace_state);
            self.entry_uint(FIRST + 4, link.flags.map(u64::from));
        }
    }

    fn span_events(&mut self, span: SpanView<'_>) {
        const FIRST: usize = EventLeaf::KIND + 13;
        for event in span.events() {
            self.entry_uint(FIRST, event.time.map(|time| time.0));
            self.text(FIRST + 1, event.name.text());
            self.attributes_json(FIRST + 2, event.attributes);
        }
    }

    /// A text of an entry of a list, or null.
    fn entry_text(&mut self, leaf: usize, text: Option<TextView<'_>>) {
        match text {
            Some(text) => self.text(leaf, text.text()),
            None => self.leaves[leaf].null(self.rows),
        }
    }

    /// An integer of an entry of a list, or null.
    fn entry_uint(&mut self, leaf: usize, number: Option<u64>) {
        match number {
            Some(_) => self.uint(leaf, number),
            None => self.leaves[leaf].null(self.rows),
        }
    }

    /// The attributes of an entry of a list.
    fn attributes_json(&mut self, leaf: usize, attributes: Members<'_>) {
        let (leaf, row) = (&mut self.leaves[leaf], self.rows);
        match attributes.is_empty() {
            true => leaf.null(row),
            false => leaf.text_with(row, |out| lossless_json::push(out, ValueView::Map(attributes))),
        }
    }

    /// Adds an attribute to its column, or to the map of its type. Returns whether it is in the map and names the service.
    #[inline]
    fn attribute(&mut self, member: Member<'_>) -> bool {
        let (key, value) = (member.key(), member.value());
        let slot = match key {
            KeyView::Name(name) => self.named[name.index()],
            KeyView::Text(_) if self.others.is_empty() => None,
            KeyView::Text(text) => self.others.get(text.text()).copied(),
        };
        if slot.is_some_and(|slot| self.fill(slot, value)) {
            return false;
        }
        let key = key.text().text();
        self.entry(self.maps, key, value);
        match value {
            ValueView::Text(service) if key == semconv::SERVICE_NAME.as_str() => {
                self.text(EventLeaf::SERVICE, service.text());
                true
            }
            _ => false,
        }
    }

    /// Adds a value to the column of its attribute; `false`: it has another type.
    #[inline]
    fn fill(&mut self, slot: ColumnSlot, value: ValueView<'_>) -> bool {
        let (leaf, row) = (&mut self.leaves[slot.leaf], self.rows);
        match (slot.shape, value) {
            (Shape::Text, ValueView::Text(text)) => leaf.text(row, text.text().as_bytes()),
            (Shape::Double, ValueView::F64(number)) => leaf.double(row, number),
            (Shape::Bool, ValueView::Bool(value)) => leaf.bool(row, value),
            (Shape::Ints, ValueView::Array(items)) if are_ints(items) => {
                let mut is_empty = true;
                for item in items.filter_map(int) {
                    leaf.int(row, item);
                    is_empty = false;
                }
                if is_empty {
                    leaf.null(row);
                }
            }
            (Shape::Int, value) => match int(value) {
                Some(number) => leaf.int(row, number),
                None => return false,
            },
            _ => return false,
        }
        true
    }

    /// Adds to the map of its type.
    fn entry(&mut self, maps: usize, key: &str, value: ValueView<'_>) {
        let row = self.rows;
        match value {
            ValueView::Text(text) => self.keyed(maps + Map::STRING, key).text(row, text.text().as_bytes()),
            ValueView::F64(number) => self.keyed(maps + Map::DOUBLE, key).double(row, number),
            ValueView::Bool(value) => self.keyed(maps + Map::BOOL, key).bool(row, value),
            value => match int(value) {
                Some(number) => self.keyed(maps + Map::INT, key).int(row, number),
                None => self.keyed(maps + Map::JSON, key).text_with(row, |out| lossless_json::push(out, value)),
            },
        }
    }

    /// Adds a key to the map at this leaf; returns the leaf of its value.
    #[inline]
    fn keyed(&mut self, leaf: usize, key: &str) -> &mut Leaf {
        self.leaves[leaf].text(self.rows, key.as_bytes());
        &mut self.leaves[leaf + 1]
    }

    fn resource(&mut self, resource: &Resource, own_service: bool) {
        let maps = self.maps + Map::OF_RESOURCE;
        for (key, value) in resource.attributes() {
            match value {
                ResourceValue::Text(service) if !own_service && key == semconv::SERVICE_NAME.as_str() => {
                    self.text(EventLeaf::SERVICE, service);
                }
                value => self.entry(maps, key, value.view()),
            }
        }
    }

    #[inline]
    fn text(&mut self, leaf: usize, text: &str) {
        self.leaves[leaf].text(self.rows, text.as_bytes());
    }

    fn text_or_null(&mut self, leaf: usize, text: &str) {
        if !text.is_empty() {
            self.text(leaf, text);
        }
    }

    /// An integer without sign has the same bits as one with sign.
    #[inline]
    fn uint(&mut self, leaf: usize, number: Option<u64>) {
        if let Some(number) = number {
            self.leaves[leaf].int(self.rows, number as i64);
        }
    }

    /// Adds a time to its column; `number`: its place among the times of the kind.
    #[inline]
    fn time(&mut self, number: usize, leaf: usize, name: &'static str, time: Option<UnixNanos>) {
        let Some(UnixNanos(time)) = time else { return };
        match (i64::try_from(time), self.nanos) {
            (Ok(time), None) => self.leaves[leaf].int(self.rows, time),
            (Ok(time), Some(nanos)) => {
                self.leaves[leaf].int(self.rows, time / 1_000);
                self.leaves[nanos + number].int(self.rows, time % 1_000);
            }
            (Err(_), _) => self.beyond.push((name, time)),
        }
    }

    fn hex(&mut self, leaf: usize, bytes: &[u8]) {
        self.leaves[leaf].text_with(self.rows, |out| push_hex(out, bytes));
    }

    /// Adds what has no place in its column to `attributes_json`.
    fn flush_beyond(&mut self) {
        if self.beyond.is_empty() {
            return;
        }
        let members: serde_json::Map<_, _> =
            self.beyond.drain(..).map(|(name, number)| (name.to_owned(), number.into())).collect();
        let (row, keys) = (self.rows, self.maps + Map::JSON);
        self.leaves[keys].text(row, TIME_KEY.as_bytes());
        self.leaves[keys + 1].text(row, serde_json::Value::from(members).to_string().as_bytes());
    }
}

/// A number as metrics and samples have it.
enum Whole {
    Int(i64),
    Uint(u64),
    Double(f64),
}

fn whole(number: Number) -> Whole {
    match number {
        Number::I64(number) => Whole::Int(number),
        Number::U64(number) => i64::try_from(number).map_or(Whole::Uint(number), Whole::Int),
        Number::F64(number) => Whole::Double(number),
    }
}

fn are_ints(mut items: Values<'_>) -> bool {
    items.all(|item| int(item).is_some())
}

fn int(value: ValueView<'_>) -> Option<i64> {
    match value {
        ValueView::I64(number) => Some(number),
        ValueView::U64(number) => i64::try_from(number).ok(),
        _ => None,
    }
}

fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    struct Ascii<'a>(&'a mut Vec<u8>);
    impl std::fmt::Write for Ascii<'_> {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.extend_from_slice(text.as_bytes());
            Ok(())
        }
    }
    let _ = write_hex(&mut Ascii(out), bytes);
}
