//! The messages of OTLP 1.10: numbers, names and types of their fields. One table serves the check of a body, JSON, and
//! explanations. Source: <https://github.com/open-telemetry/opentelemetry-proto>.

/// A message.
#[derive(Debug)]
pub(super) struct MessageSchema {
    pub(super) name: &'static str,
    pub(super) fields: &'static [FieldSchema],
}

/// A field of a message.
#[derive(Debug)]
pub(super) struct FieldSchema {
    pub(super) number: u8,
    /// Its name in JSON.
    pub(super) name: &'static str,
    pub(super) of: FieldType,
    pub(super) is_repeated: bool,
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldType {
    Text,
    Bytes,
    /// Bytes of this number, or none; in JSON hex digits.
    Id(usize),
    Bool,
    /// A varint without sign.
    Uint,
    /// A varint with sign: numbers and enumerations.
    Int,
    /// A varint with the sign in its lowest bit.
    Sint,
    Fixed32,
    Fixed64,
    /// 8 bytes with sign.
    Sfixed64,
    Double,
    /// A varint: the place of an entry in a table of the dictionary of profiles. 0: none.
    Index(DictionaryTable),
    Message(&'static MessageSchema),
}

/// A table of the dictionary of a request with profiles; its number is that of its field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum DictionaryTable {
    Mappings = 1,
    Locations,
    Functions,
    Links,
    Strings,
    Attributes,
    Stacks,
}

impl MessageSchema {
    /// The field with this number.
    #[inline]
    pub(super) fn field(&self, number: u64) -> Option<&'static FieldSchema> {
        let is_it = |field: &&FieldSchema| u64::from(field.number) == number;
        let place = usize::try_from(number).ok()?;
        // The numbers of most fields have no gap or one before them.
        let near = [1, 2].into_iter().filter_map(|less| self.fields.get(place.wrapping_sub(less)));
        near.chain(self.fields).find(is_it)
    }
}

const fn one(number: u8, name: &'static str, of: FieldType) -> FieldSchema {
    FieldSchema { number, name, of, is_repeated: false }
}

const fn many(number: u8, name: &'static str, of: FieldType) -> FieldSchema {
    FieldSchema { number, name, of, is_repeated: true }
}

use FieldType::{Bool, Bytes, Double, Fixed32, Fixed64, Id, Index, Int, Sfixed64, Sint, Text, Uint};

const TRACE_ID: FieldType = Id(16);
const SPAN_ID: FieldType = Id(8);

pub(super) static TRACES: MessageSchema = MessageSchema {
    name: "ExportTraceServiceRequest",
    fields: &[many(1, "resourceSpans", FieldType::Message(&RESOURCE_SPANS))],
};

static RESOURCE_SPANS: MessageSchema = MessageSchema {
    name: "ResourceSpans",
    fields: &[
        one(1, "resource", FieldType::Message(&RESOURCE)),
        many(2, "scopeSpans", FieldType::Message(&SCOPE_SPANS)),
        one(3, "schemaUrl", Text),
    ],
};

static SCOPE_SPANS: MessageSchema = MessageSchema {
    name: "ScopeSpans",
    fields: &[
        one(1, "scope", FieldType::Message(&SCOPE)),
        many(2, "spans", FieldType::Message(&SPAN)),
        one(3, "schemaUrl", Text),
    ],
};

static RESOURCE: MessageSchema = MessageSchema {
    name: "Resource",
    fields: &[many(1, "attributes", FieldType::Message(&KEY_VALUE)), one(2, "droppedAttributesCount", Uint)],
};

static SCOPE: MessageSchema = MessageSchema {
    name: "InstrumentationScope",
    fields: &[
        one(1, "name", Text),
        one(2, "version", Text),
        many(3, "attributes", FieldType::Message(&KEY_VALUE)),
        one(4, "droppedAttributesCount", Uint),
    ],
};

static KEY_VALUE: MessageSchema = MessageSchema {
    name: "KeyValue",
    fields: &[
        one(1, "key", Text),
        one(2, "value", FieldType::Message(&ANY_VALUE)),
        one(3, "keyStrindex", Index(DictionaryTable::Strings)),
    ],
};

pub(super) static ANY_VALUE: MessageSchema = MessageSchema {
    name: "AnyValue",
    fields: &[
        one(1, "stringValue", Text),
        one(2, "boolValue", Bool),
        one(3, "intValue", Int),
        one(4, "doubleValue", Double),
        one(5, "arrayValue", FieldType::Message(&ARRAY_VALUE)),
        one(6, "kvlistValue", FieldType::Message(&KEY_VALUE_LIST)),
        one(7, "bytesValue", Bytes),
        one(8, "stringValueStrindex", Index(DictionaryTable::Strings)),
    ],
};

static ARRAY_VALUE: MessageSchema =
    MessageSchema { name: "ArrayValue", fields: &[many(1, "values", FieldType::Message(&ANY_VALUE))] };

static KEY_VALUE_LIST: MessageSchema =
    MessageSchema { name: "KeyValueList", fields: &[many(1, "values", FieldType::Message(&KEY_VALUE))] };

static SPAN: MessageSchema = MessageSchema {
    name: "Span",
    fields: &[
        one(1, "traceId", TRACE_ID),
        one(2, "spanId", SPAN_ID),
        one(3, "traceState", Text),
        one(4, "parentSpanId", SPAN_ID),
        one(5, "name", Text),
        one(6, "kind", Int),
        one(7, "startTimeUnixNano", Fixed64),
        one(8, "endTimeUnixNano", Fixed64),
        many(9, "attributes", FieldType::Message(&KEY_VALUE)),
        one(10, "droppedAttributesCount", Uint),
        many(11, "events", FieldType::Message(&SPAN_EVENT)),
        one(12, "droppedEventsCount", Uint),
        many(13, "links", FieldType::Message(&SPAN_LINK)),
        one(14, "droppedLinksCount", Uint),
        one(15, "status", FieldType::Message(&STATUS)),
        one(16, "flags", Fixed32),
    ],
};

static SPAN_EVENT: MessageSchema = MessageSchema {
    name: "Span.Event",
    fields: &[
        one(1, "timeUnixNano", Fixed64),
        one(2, "name", Text),
        many(3, "attributes", FieldType::Message(&KEY_VALUE)),
        one(4, "droppedAttributesCount", Uint),
    ],
};

static SPAN_LINK: MessageSchema = MessageSchema {
    name: "Span.Link",
    fields: &[
        one(1, "traceId", TRACE_ID),
        one(2, "spanId", SPAN_ID),
        one(3, "traceState", Text),
        many(4, "attributes", FieldType::Message(&KEY_VALUE)),
        one(5, "droppedAttributesCount", Uint),
        one(6, "flags", Fixed32),
    ],
};

static STATUS: MessageSchema =
    MessageSchema { name: "Status", fields: &[one(2, "message", Text), one(3, "code", Int)] };

pub(super) static LOGS: MessageSchema = MessageSchema {
    name: "ExportLogsServiceRequest",
    fields: &[many(1, "resourceLogs", FieldType::Message(&RESOURCE_LOGS))],
};

static RESOURCE_LOGS: MessageSchema = MessageSchema {
    name: "ResourceLogs",
    fields: &[
        one(1, "resource", FieldType::Message(&RESOURCE)),
        many(2, "scopeLogs", FieldType::Message(&SCOPE_LOGS)),
        one(3, "schemaUrl", Text),
    ],
};

static SCOPE_LOGS: MessageSchema = MessageSchema {
    name: "ScopeLogs",
    fields: &[
        one(1, "scope", FieldType::Message(&SCOPE)),
        many(2, "logRecords", FieldType::Message(&LOG_RECORD)),
        one(3, "schemaUrl", Text),
    ],
};

static LOG_RECORD: MessageSchema = MessageSchema {
    name: "LogRecord",
    fields: &[
        one(1, "timeUnixNano", Fixed64),
        one(2, "severityNumber", Int),
        one(3, "severityText", Text),
        one(5, "body", FieldType::Message(&ANY_VALUE)),
        many(6, "attributes", FieldType::Message(&KEY_VALUE)),
        one(7, "droppedAttributesCount", Uint),
        one(8, "flags", Fixed32),
        one(9, "traceId", TRACE_ID),
        one(10, "spanId", SPAN_ID),
        one(11, "observedTimeUnixNano", Fixed64),
        one(12, "eventName", Text),
    ],
};

pub(super) static METRICS: MessageSchema = MessageSchema {
    name: "ExportMetricsServiceRequest",
    fields: &[many(1, "resourceMetrics", FieldType::Message(&RESOURCE_METRICS))],
};

static RESOURCE_METRICS: MessageSchema = MessageSchema {
    name: "ResourceMetrics",
    fields: &[
        one(1, "resource", FieldType::Message(&RESOURCE)),
        many(2, "scopeMetrics", FieldType::Message(&SCOPE_METRICS)),
        one(3, "schemaUrl", Text),
    ],
};

static SCOPE_METRICS: MessageSchema = MessageSchema {
    name: "ScopeMetrics",
    fields: &[
        one(1, "scope", FieldType::Message(&SCOPE)),
        many(2, "metrics", FieldType::Message(&METRIC)),
        one(3, "schemaUrl", Text),
    ],
};

static METRIC: MessageSchema = MessageSchema {
    name: "Metric",
    fields: &[
        one(1, "name", Text),
        one(2, "description", Text),
        one(3, "unit", Text),
        one(5, "gauge", FieldType::Message(&GAUGE)),
        one(7, "sum", FieldType::Message(&SUM)),
        one(9, "histogram", FieldType::Message(&HISTOGRAM)),
        one(10, "exponentialHistogram", FieldType::Message(&EXPONENTIAL_HISTOGRAM)),
        one(11, "summary", FieldType::Message(&SUMMARY)),
        many(12, "metadata", FieldType::Message(&KEY_VALUE)),
    ],
};

static GAUGE: MessageSchema =
    MessageSchema { name: "Gauge", fields: &[many(1, "dataPoints", FieldType::Message(&NUMBER_DATA_POINT))] };

static SUM: MessageSchema = MessageSchema {
    name: "Sum",
    fields: &[
        many(1, "dataPoints", FieldType::Message(&NUMBER_DATA_POINT)),
        one(2, "aggregationTemporality", Int),
        one(3, "isMonotonic", Bool),
    ],
};

static HISTOGRAM: MessageSchema = MessageSchema {
    name: "Histogram",
    fields: &[many(1, "dataPoints", FieldType::Message(&HISTOGRAM_DATA_POINT)), one(2, "aggregationTemporality", Int)],
};

static EXPONENTIAL_HISTOGRAM: MessageSchema = MessageSchema {
    name: "ExponentialHistogram",
    fields: &[
        many(1, "dataPoints", FieldType::Message(&EXPONENTIAL_HISTOGRAM_DATA_POINT)),
        one(2, "aggregationTemporality", Int),
    ],
};

static SUMMARY: MessageSchema =
    MessageSchema { name: "Summary", fields: &[many(1, "dataPoints", FieldType::Message(&SUMMARY_DATA_POINT))] };

static NUMBER_DATA_POINT: MessageSchema = MessageSchema {
    name: "NumberDataPoint",
    fields: &[
        one(2, "startTimeUnixNano", Fixed64),
        one(3, "timeUnixNano", Fixed64),
        one(4, "asDouble", Double),
        many(5, "exemplars", FieldType::Message(&EXEMPLAR)),
        one(6, "asInt", Sfixed64),
        many(7, "attributes", FieldType::Message(&KEY_VALUE)),
        one(8, "flags", Uint),
    ],
};

static HISTOGRAM_DATA_POINT: MessageSchema = MessageSchema {
    name: "HistogramDataPoint",
    fields: &[
        one(2, "startTimeUnixNano", Fixed64),
        one(3, "timeUnixNano", Fixed64),
        one(4, "count", Fixed64),
        one(5, "sum", Double),
        many(6, "bucketCounts", Fixed64),
        many(7, "explicitBounds", Double),
        many(8, "exemplars", FieldType::Message(&EXEMPLAR)),
        many(9, "attributes", FieldType::Message(&KEY_VALUE)),
        one(10, "flags", Uint),
        one(11, "min", Double),
        one(12, "max", Double),
    ],
};

static EXPONENTIAL_HISTOGRAM_DATA_POINT: MessageSchema = MessageSchema {
    name: "ExponentialHistogramDataPoint",
    fields: &[
        many(1, "attributes", FieldType::Message(&KEY_VALUE)),
        one(2, "startTimeUnixNano", Fixed64),
        one(3, "timeUnixNano", Fixed64),
        one(4, "count", Fixed64),
        one(5, "sum", Double),
        one(6, "scale", Sint),
        one(7, "zeroCount", Fixed64),
        one(8, "positive", FieldType::Message(&BUCKETS)),
        one(9, "negative", FieldType::Message(&BUCKETS)),
        one(10, "flags", Uint),
        many(11, "exemplars", FieldType::Message(&EXEMPLAR)),
        one(12, "min", Double),
        one(13, "max", Double),
        one(14, "zeroThreshold", Double),
    ],
};

static BUCKETS: MessageSchema =
    MessageSchema { name: "Buckets", fields: &[one(1, "offset", Sint), many(2, "bucketCounts", Uint)] };

static SUMMARY_DATA_POINT: MessageSchema = MessageSchema {
    name: "SummaryDataPoint",
    fields: &[
        one(2, "startTimeUnixNano", Fixed64),
        one(3, "timeUnixNano", Fixed64),
        one(4, "count", Fixed64),
        one(5, "sum", Double),
        many(6, "quantileValues", FieldType::Message(&VALUE_AT_QUANTILE)),
        many(7, "attributes", FieldType::Message(&KEY_VALUE)),
        one(8, "flags", Uint),
    ],
};

static VALUE_AT_QUANTILE: MessageSchema =
    MessageSchema { name: "ValueAtQuantile", fields: &[one(1, "quantile", Double), one(2, "value", Double)] };

static EXEMPLAR: MessageSchema = MessageSchema {
    name: "Exemplar",
    fields: &[
        one(2, "timeUnixNano", Fixed64),
        one(3, "asDouble", Double),
        one(4, "spanId", SPAN_ID),
        one(5, "traceId", TRACE_ID),
        one(6, "asInt", Sfixed64),
        many(7, "filteredAttributes", FieldType::Message(&KEY_VALUE)),
    ],
};

pub(super) static PROFILES: MessageSchema = MessageSchema {
    name: "ExportProfilesServiceRequest",
    fields: &[
        many(1, "resourceProfiles", FieldType::Message(&RESOURCE_PROFILES)),
        one(2, "dictionary", FieldType::Message(&DICTIONARY)),
    ],
};

static RESOURCE_PROFILES: MessageSchema = MessageSchema {
    name: "ResourceProfiles",
    fields: &[
        one(1, "resource", FieldType::Message(&RESOURCE)),
        many(2, "scopeProfiles", FieldType::Message(&SCOPE_PROFILES)),
        one(3, "schemaUrl", Text),
    ],
};

static SCOPE_PROFILES: MessageSchema = MessageSchema {
    name: "ScopeProfiles",
    fields: &[
        one(1, "scope", FieldType::Message(&SCOPE)),
        many(2, "profiles", FieldType::Message(&PROFILE)),
        one(3, "schemaUrl", Text),
    ],
};

static PROFILE: MessageSchema = MessageSchema {
    name: "Profile",
    fields: &[
        one(1, "sampleType", FieldType::Message(&VALUE_TYPE)),
        many(2, "samples", FieldType::Message(&SAMPLE)),
        one(3, "timeUnixNano", Fixed64),
        one(4, "durationNano", Uint),
        one(5, "periodType", FieldType::Message(&VALUE_TYPE)),
        one(6, "period", Int),
        one(7, "profileId", TRACE_ID),
        one(8, "droppedAttributesCount", Uint),
        one(9, "originalPayloadFormat", Text),
        one(10, "originalPayload", Bytes),
        many(11, "attributeIndices", Index(DictionaryTable::Attributes)),
    ],
};

static VALUE_TYPE: MessageSchema = MessageSchema {
    name: "ValueType",
    fields: &[
        one(1, "typeStrindex", Index(DictionaryTable::Strings)),
        one(2, "unitStrindex", Index(DictionaryTable::Strings)),
    ],
};

static SAMPLE: MessageSchema = MessageSchema {
    name: "Sample",
    fields: &[
        one(1, "stackIndex", Index(DictionaryTable::Stacks)),
        many(2, "attributeIndices", Index(DictionaryTable::Attributes)),
        one(3, "linkIndex", Index(DictionaryTable::Links)),
        many(4, "values", Int),
        many(5, "timestampsUnixNano", Fixed64),
    ],
};

static DICTIONARY: MessageSchema = MessageSchema {
    name: "ProfilesDictionary",
    fields: &[
        many(1, "mappingTable", FieldType::Message(&MAPPING)),
        many(2, "locationTable", FieldType::Message(&LOCATION)),
        many(3, "functionTable", FieldType::Message(&FUNCTION)),
        many(4, "linkTable", FieldType::Message(&LINK)),
        many(5, "stringTable", Text),
        many(6, "attributeTable", FieldType::Message(&KEY_VALUE_AND_UNIT)),
        many(7, "stackTable", FieldType::Message(&STACK)),
    ],
};

static MAPPING: MessageSchema = MessageSchema {
    name: "Mapping",
    fields: &[
        one(1, "memoryStart", Uint),
        one(2, "memoryLimit", Uint),
        one(3, "fileOffset", Uint),
        one(4, "filenameStrindex", Index(DictionaryTable::Strings)),
        many(5, "attributeIndices", Index(DictionaryTable::Attributes)),
    ],
};

static LOCATION: MessageSchema = MessageSchema {
    name: "Location",
    fields: &[
        one(1, "mappingIndex", Index(DictionaryTable::Mappings)),
        one(2, "address", Uint),
        many(3, "lines", FieldType::Message(&LINE)),
        many(4, "attributeIndices", Index(DictionaryTable::Attributes)),
    ],
};

static LINE: MessageSchema = MessageSchema {
    name: "Line",
    fields: &[one(1, "functionIndex", Index(DictionaryTable::Functions)), one(2, "line", Int), one(3, "column", Int)],
};

static FUNCTION: MessageSchema = MessageSchema {
    name: "Function",
    fields: &[
        one(1, "nameStrindex", Index(DictionaryTable::Strings)),
        one(2, "systemNameStrindex", Index(DictionaryTable::Strings)),
        one(3, "filenameStrindex", Index(DictionaryTable::Strings)),
        one(4, "startLine", Int),
    ],
};

static LINK: MessageSchema =
    MessageSchema { name: "Link", fields: &[one(1, "traceId", TRACE_ID), one(2, "spanId", SPAN_ID)] };

static KEY_VALUE_AND_UNIT: MessageSchema = MessageSchema {
    name: "KeyValueAndUnit",
    fields: &[
        one(1, "keyStrindex", Index(DictionaryTable::Strings)),
        one(2, "value", FieldType::Message(&ANY_VALUE)),
        one(3, "unitStrindex", Index(DictionaryTable::Strings)),
    ],
};

static STACK: MessageSchema =
    MessageSchema { name: "Stack", fields: &[many(1, "locationIndices", Index(DictionaryTable::Locations))] };
