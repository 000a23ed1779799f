//! The tables: one for each kind of events, with columns for what the events of a protocol have. `docs/tables.md` describes them.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, TimeUnit, Type as PhysicalType};
use parquet::errors::Result;
use parquet::schema::types::{Type, TypePtr};

use super::column::{Leaf, Physical};
use super::options::Timestamps;
use tributary_event::Kind;

/// The metadata of a file: the form of its tables, and the kind of its events.
pub(super) const FORM_KEY: &str = "tributary.form";
/// The form with times in nanoseconds, which older versions read too, and that with times in microseconds.
pub(super) const FORMS: [&str; 2] = ["1", "2"];
pub(super) const KIND_KEY: &str = "tributary.kind";
/// Which journal it was made of.
pub(super) const JOURNAL_KEY: &str = "tributary.journal";
/// The key of `attributes_json` for parts of an event that their column cannot have.
pub(super) const TIME_KEY: &str = "tributary.time";

/// A column of a table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) shape: Shape,
    pub(super) role: Role,
}

/// What a column is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A part of the event.
    Part,
    /// The attribute with the column's name.
    Attribute,
}

/// The type of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    Text,
    Int,
    /// An integer without sign.
    Uint,
    Double,
    Bool,
    /// A time in nanoseconds.
    Time,
    /// A time in microseconds.
    Micros,
    /// A list of integers, or null.
    Ints,
    /// A list of integers without sign, or of doubles; an empty one stands for none.
    Numbers(Physical),
    /// A map of texts to values of this type.
    Map(Physical),
    /// A list of frames.
    Frames,
    /// A list of trace and span ids, each with attributes, state and flags.
    Links,
    /// A list of events of a span.
    SpanEvents,
    /// A list of quantiles, each with its value.
    Quantiles,
}

impl Shape {
    /// Empty leaves for such a column.
    pub(super) fn leaves(self) -> Vec<Leaf> {
        // Members of the entries of a list.
        let required = |of| Leaf::new(of, 1, true);
        let optional = |of| Leaf::new(of, 2, true);
        match self {
            Shape::Text => vec![Leaf::new(Physical::Text, 1, false)],
            Shape::Int | Shape::Uint | Shape::Time | Shape::Micros => vec![Leaf::new(Physical::Int, 1, false)],
            Shape::Double => vec![Leaf::new(Physical::Double, 1, false)],
            Shape::Bool => vec![Leaf::new(Physical::Bool, 1, false)],
            Shape::Ints => vec![Leaf::new(Physical::Int, 2, true)],
            Shape::Numbers(of) => vec![required(of)],
            Shape::Map(of) => vec![Leaf::new(Physical::Text, 1, true), Leaf::new(of, 1, true)],
            Shape::Frames => [optional(Physical::Text), optional(Physical::Text), optional(Physical::Int)].into(),
            Shape::Links => [
                required(Physical::Text),
                required(Physical::Text),
                optional(Physical::Text),
                optional(Physical::Text),
                optional(Physical::Int),
            ]
            .into(),
            Shape::SpanEvents => [optional(Physical::Int), required(Physical::Text), optional(Physical::Text)].into(),
            Shape::Quantiles => [required(Physical::Double), required(Physical::Double)].into(),
        }
    }

    fn parquet(self, name: &str) -> Result<Type> {
        const OPTIONAL: Repetition = Repetition::OPTIONAL;
        const REPEATED: Repetition = Repetition::REPEATED;
        const REQUIRED: Repetition = Repetition::REQUIRED;
        let group = |name: &str, repetition, logical, fields: Vec<Type>| {
            let fields = fields.into_iter().map(Arc::new).collect();
            let builder = Type::group_type_builder(name).with_repetition(repetition).with_logical_type(logical);
            builder.with_fields(fields).build()
        };
        let list = |name: &str, repetition, fields: Vec<Type>| {
            let element = group("element", REQUIRED, None, fields)?;
            let items = group("list", REPEATED, None, vec![element])?;
            group(name, repetition, Some(LogicalType::List), vec![items])
        };
        let text = |name: &str, repetition| leaf(name, PhysicalType::BYTE_ARRAY, repetition, Some(LogicalType::String));
        let uint = |name: &str| leaf(name, PhysicalType::INT64, OPTIONAL, Some(LogicalType::integer(64, false)));
        match self {
            Shape::Text => text(name, OPTIONAL),
            Shape::Int => leaf(name, PhysicalType::INT64, OPTIONAL, None),
            Shape::Uint => uint(name),
            Shape::Double => leaf(name, PhysicalType::DOUBLE, OPTIONAL, None),
            Shape::Bool => leaf(name, PhysicalType::BOOLEAN, OPTIONAL, None),
            Shape::Time => {
                let time = LogicalType::timestamp(true, TimeUnit::NANOS);
                leaf(name, PhysicalType::INT64, OPTIONAL, Some(time))
            }
            Shape::Micros => {
                let time = LogicalType::timestamp(true, TimeUnit::MICROS);
                leaf(name, PhysicalType::INT64, OPTIONAL, Some(time))
            }
            Shape::Ints => {
                let items = group("list", REPEATED, None, vec![leaf("element", PhysicalType::INT64, REQUIRED, None)?])?;
                group(name, OPTIONAL, Some(LogicalType::List), vec![items])
            }
            Shape::Numbers(of) => {
                let (physical, logical) = match of {
                    Physical::Double => (PhysicalType::DOUBLE, None),
                    _ => (PhysicalType::INT64, Some(LogicalType::integer(64, false))),
                };
                let items = group("list", REPEATED, None, vec![leaf("element", physical, REQUIRED, logical)?])?;
                group(name, REQUIRED, Some(LogicalType::List), vec![items])
            }
            Shape::Quantiles => {
                let member = |name| leaf(name, PhysicalType::DOUBLE, REQUIRED, None);
                list(name, REQUIRED, vec![member("quantile")?, member("value")?])
            }
            Shape::Map(of) => {
                let key = leaf("key", PhysicalType::BYTE_ARRAY, REQUIRED, Some(LogicalType::String))?;
                let (physical, logical) = match of {
                    Physical::Int => (PhysicalType::INT64, None),
                    Physical::Double => (PhysicalType::DOUBLE, None),
                    Physical::Bool => (PhysicalType::BOOLEAN, None),
                    Physical::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
                };
                let value = leaf("value", physical, REQUIRED, logical)?;
                let entries = group("key_value", REPEATED, None, vec![key, value])?;
                group(name, REQUIRED, Some(LogicalType::Map), vec![entries])
            }
            Shape::Frames => {
                list(name, REQUIRED, vec![text("function", OPTIONAL)?, text("file", OPTIONAL)?, uint("line")?])
            }
            Shape::Links => {
                let ids = [text("trace_id", REQUIRED)?, text("span_id", REQUIRED)?];
                let more = [text("attributes_json", OPTIONAL)?, text("trace_state", OPTIONAL)?, uint("flags")?];
                list(name, REQUIRED, ids.into_iter().chain(more).collect())
            }
            Shape::SpanEvents => {
                let (name_of_event, attributes) = (text("name", REQUIRED)?, text("attributes_json", OPTIONAL)?);
                list(name, REQUIRED, vec![uint("time_ns")?, name_of_event, attributes])
            }
        }
    }
}

fn leaf(name: &str, of: PhysicalType, repetition: Repetition, logical: Option<LogicalType>) -> Result<Type> {
    Type::primitive_type_builder(name, of).with_repetition(repetition).with_logical_type(logical).build()
}

/// The parts that every event has: a leaf each, from 0.
pub(super) struct EventLeaf;

impl EventLeaf {
    pub(super) const TIME: usize = 0;
    pub(super) const OBSERVED: usize = 1;
    pub(super) const NAME: usize = 2;
    pub(super) const PROTOCOL: usize = 3;
    pub(super) const VERSION: usize = 4;
    pub(super) const LISTENER: usize = 5;
    pub(super) const PEER: usize = 6;
    pub(super) const CONNECTION: usize = 7;
    pub(super) const SEQUENCE: usize = 8;
    pub(super) const OFFSET: usize = 9;
    pub(super) const LENGTH: usize = 10;
    pub(super) const SERVICE: usize = 11;
    /// The first leaf of the kind.
    pub(super) const KIND: usize = 12;
}

const PARTS: [(&str, Shape); EventLeaf::KIND] = [
    ("time", Shape::Time),
    ("observed_time", Shape::Time),
    ("name", Shape::Text),
    ("protocol", Shape::Text),
    ("version", Shape::Text),
    ("listener", Shape::Text),
    ("peer", Shape::Text),
    ("connection", Shape::Uint),
    ("sequence", Shape::Uint),
    ("offset", Shape::Uint),
    ("length", Shape::Uint),
    ("service_name", Shape::Text),
];

/// The parts of a kind.
fn parts_of(kind: Kind) -> &'static [(&'static str, Shape)] {
    match kind {
        Kind::Log => &[
            ("severity", Shape::Text),
            ("trace_id", Shape::Text),
            ("span_id", Shape::Text),
            ("body", Shape::Text),
            ("severity_number", Shape::Uint),
        ],
        Kind::Span => &[
            ("trace_id", Shape::Text),
            ("span_id", Shape::Text),
            ("parent_span_id", Shape::Text),
            ("end_time", Shape::Time),
            ("duration_ns", Shape::Int),
            ("status", Shape::Text),
            ("links", Shape::Links),
            ("kind", Shape::Text),
            ("status_message", Shape::Text),
            ("events", Shape::SpanEvents),
            ("trace_state", Shape::Text),
            ("flags", Shape::Uint),
            ("dropped_attributes", Shape::Uint),
            ("dropped_events", Shape::Uint),
            ("dropped_links", Shape::Uint),
        ],
        Kind::Metric => &[
            ("type", Shape::Text),
            ("unit", Shape::Text),
            ("value_int", Shape::Int),
            ("value_uint", Shape::Uint),
            ("value_double", Shape::Double),
            ("temporality", Shape::Text),
            ("monotonic", Shape::Bool),
            ("start_time", Shape::Time),
            ("count", Shape::Uint),
            ("sum", Shape::Double),
            ("min", Shape::Double),
            ("max", Shape::Double),
            ("bounds", Shape::Numbers(Physical::Double)),
            ("counts", Shape::Numbers(Physical::Int)),
            ("scale", Shape::Int),
            ("zero_count", Shape::Uint),
            ("zero_threshold", Shape::Double),
            ("positive_offset", Shape::Int),
            ("positive_counts", Shape::Numbers(Physical::Int)),
            ("negative_offset", Shape::Int),
            ("negative_counts", Shape::Numbers(Physical::Int)),
            ("quantiles", Shape::Quantiles),
        ],
        Kind::Sample => &[
            ("type", Shape::Text),
            ("unit", Shape::Text),
            ("value", Shape::Int),
            ("period_ns", Shape::Uint),
            ("clock", Shape::Text),
            ("frames", Shape::Frames),
        ],
        Kind::Loss => &[
            ("reason", Shape::Text),
            ("bytes", Shape::Uint),
            ("events", Shape::Uint),
            ("detail", Shape::Text),
            ("excerpt", Shape::Text),
        ],
    }
}

/// The maps behind all other columns: what has no column of its own. Two leaves each.
const MAPS: [(&str, Physical); 10] = [
    ("attributes_string", Physical::Text),
    ("attributes_int", Physical::Int),
    ("attributes_double", Physical::Double),
    ("attributes_bool", Physical::Bool),
    ("attributes_json", Physical::Text),
    ("resource_string", Physical::Text),
    ("resource_int", Physical::Int),
    ("resource_double", Physical::Double),
    ("resource_bool", Physical::Bool),
    ("resource_json", Physical::Text),
];

/// The leaves of the maps, from that of the keys of `attributes_string`.
pub(super) struct Map;

impl Map {
    pub(super) const STRING: usize = 0;
    pub(super) const INT: usize = 2;
    pub(super) const DOUBLE: usize = 4;
    pub(super) const BOOL: usize = 6;
    pub(super) const JSON: usize = 8;
    /// Added for those of the resource.
    pub(super) const OF_RESOURCE: usize = 10;
}

/// The attributes that have a column by default.
fn default_attributes(kind: Kind, protocol: &str) -> &'static [(&'static str, Shape)] {
    match (protocol, kind) {
        ("bytefrog", Kind::Log) => &[
            ("code.function.name", Shape::Text),
            ("bytefrog.method.id", Shape::Int),
            ("thread.id", Shape::Int),
            ("thread.name", Shape::Text),
            ("bytefrog.time.relative_ms", Shape::Int),
            ("code.line.number", Shape::Int),
            ("bytefrog.exit.threw", Shape::Bool),
            ("exception.type", Shape::Text),
            ("bytefrog.class.name", Shape::Text),
        ],
        ("bytefrog", Kind::Span) => &[
            ("code.function.name", Shape::Text),
            ("bytefrog.method.id", Shape::Int),
            ("thread.id", Shape::Int),
            ("thread.name", Shape::Text),
            ("bytefrog.time.relative_ms", Shape::Int),
        ],
        ("datadog", Kind::Span) => &[
            ("datadog.resource", Shape::Text),
            ("datadog.type", Shape::Text),
            ("http.status_code", Shape::Int),
            ("http.method", Shape::Text),
            ("http.url", Shape::Text),
        ],
        ("endless", Kind::Log | Kind::Metric) => &[
            ("endless.event.id", Shape::Text),
            ("endless.event.name", Shape::Text),
            ("endless.payload.type", Shape::Text),
            ("endless.period", Shape::Text),
            ("endless.user.id", Shape::Int),
            ("os.version", Shape::Text),
        ],
        ("rbkit", Kind::Log) => &[
            ("rbkit.object.id", Shape::Int),
            ("rbkit.class.name", Shape::Text),
            ("rbkit.object.size", Shape::Int),
            ("rbkit.object.references", Shape::Ints),
            ("rbkit.dump.id", Shape::Int),
            ("rbkit.dump.object_count", Shape::Int),
            ("code.file.path", Shape::Text),
            ("code.line.number", Shape::Int),
        ],
        ("rbkit", Kind::Sample) => &[
            ("thread.id", Shape::Int),
            ("rbkit.class.name", Shape::Text),
            ("rbkit.object.size", Shape::Int),
            ("code.file.path", Shape::Text),
            ("code.line.number", Shape::Int),
        ],
        ("zico", Kind::Span) => &[
            ("code.function.name", Shape::Text),
            ("zico.method.signature", Shape::Text),
            ("zico.calls", Shape::Int),
            ("zico.trace.type", Shape::Text),
        ],
        ("zico", Kind::Log) => &[
            ("exception.type", Shape::Text),
            ("exception.message", Shape::Text),
            ("exception.stacktrace", Shape::Text),
        ],
        _ => &[],
    }
}

/// An attribute of nearly all protocols and kinds.
const TIME_BASIS: &str = "tributary.time.basis";

/// The column with the nanoseconds of a time that has microseconds.
pub(super) fn nanos_of(time: &str) -> String {
    format!("{time}_nanos")
}

/// The times of a kind, in the order of their columns.
pub(super) fn times_of(kind: Kind) -> impl Iterator<Item = &'static str> {
    let parts = PARTS.into_iter().chain(parts_of(kind).iter().copied());
    parts.filter(|(_, shape)| *shape == Shape::Time).map(|(name, _)| name)
}

/// The columns of a table, in order: parts, parts of the kind, attributes, the nanoseconds of times, maps.
pub(super) fn columns(kind: Kind, protocol: &str, own: &[(String, Shape)], timestamps: Timestamps) -> Vec<Column> {
    let of = |role| move |(name, shape): (&str, Shape)| Column { name: name.to_owned(), shape, role };
    let is_micros = timestamps == Timestamps::Microseconds;
    let in_unit = |(name, shape)| if is_micros && shape == Shape::Time { (name, Shape::Micros) } else { (name, shape) };
    let mut columns: Vec<Column> =
        PARTS.into_iter().chain(parts_of(kind).iter().copied()).map(in_unit).map(of(Role::Part)).collect();
    let defaults = default_attributes(kind, protocol).iter().copied().chain([(TIME_BASIS, Shape::Text)]);
    let own = own.iter().map(|(name, shape)| (name.as_str(), *shape));
    let mut attributes: Vec<Column> = Vec::new();
    for (name, shape) in defaults.chain(own) {
        // A type that the operator names wins.
        match attributes.iter_mut().find(|known| known.name == name) {
            Some(known) => known.shape = shape,
            None => attributes.push(of(Role::Attribute)((name, shape))),
        }
    }
    columns.append(&mut attributes);
    if is_micros {
        columns.extend(times_of(kind).map(|time| of(Role::Part)((&nanos_of(time), Shape::Int))));
    }
    columns.extend(MAPS.into_iter().map(|(name, physical)| of(Role::Part)((name, Shape::Map(physical)))));
    columns
}

/// Whether an attribute can have a column of this name: parts and maps of a table keep theirs.
pub(super) fn is_free(kind: Kind, name: &str) -> bool {
    !columns(kind, "", &[], Timestamps::Microseconds)
        .iter()
        .any(|column| column.role == Role::Part && column.name == name)
}

/// The schema of a file.
pub(super) fn parquet(columns: &[Column]) -> Result<TypePtr> {
    let fields = columns.iter().map(|column| Ok(Arc::new(column.shape.parquet(&column.name)?)));
    let fields = fields.collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Type::group_type_builder("event").with_fields(fields).build()?))
}
