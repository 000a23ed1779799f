//! Every name that the product writes into events, in one place.
//!
//! Names follow OpenTelemetry semantic conventions where those exist, else `<protocol>.<noun>[.<quality>]`.
//! `docs/event-model.md` lists each of them for users; a test fails when one is missing there.

use std::sync::LazyLock;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// A public name. Plain ASCII without characters that JSON escapes, which a test asserts. Two bytes: its index in the table
/// of all names, so that an attribute takes little memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name(pub(super) u16);

impl Name {
    /// The name itself.
    pub const fn as_str(self) -> &'static str {
        NAMES[self.0 as usize][0]
    }

    /// Every name, in the order of [`Name::index`].
    pub fn all() -> impl ExactSizeIterator<Item = Name> {
        (0..NAMES.len()).map(|index| Name(index as u16))
    }

    /// The name with this text.
    pub fn of(text: &str) -> Option<Name> {
        static BY_TEXT: LazyLock<HashMap<&str, Name, RandomState>> =
            LazyLock::new(|| Name::all().map(|name| (name.as_str(), name)).collect());
        BY_TEXT.get(text).copied()
    }

    /// Its position in [`Name::all`], for tables by name.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The name as a JSON string, in its quotes.
    #[inline]
    pub fn quoted_padded(self) -> Padded {
        self.padded(2)
    }

    /// The name as a key of JSON: quoted, and with its colon.
    #[inline]
    pub fn before_value_padded(self) -> Padded {
        self.padded(3)
    }

    /// The same with the quote that begins a text.
    #[inline]
    pub fn before_text_padded(self) -> Padded {
        self.padded(4)
    }

    /// The name itself.
    #[inline]
    pub(crate) fn padded_text(self) -> Padded {
        let [name, padded] = NAMES[self.0 as usize];
        // Without the quote.
        Padded { padded: &padded[1..], len: name.len() }
    }

    /// Length of these bytes without the name.
    fn padded(self, more: usize) -> Padded {
        let [name, padded] = NAMES[self.0 as usize];
        Padded { padded, len: name.len() + more }
    }
}

/// A piece of text followed by [`PADDING`]: copying a fixed number of bytes is fastest for short pieces.
#[derive(Clone, Copy, Debug)]
pub struct Padded {
    /// The piece, with the padding behind it.
    pub padded: &'static str,
    /// Length of the piece.
    pub len: usize,
}

/// The least number of bytes after a padded piece.
pub const PADDING: usize = 32;

/// Defines a constant for every name, and the table of all of them: the name, and its form as the key of a JSON object.
macro_rules! names {
    ($($(#[$doc:meta])+ $name:ident = $text:literal;)+) => {
        #[allow(clippy::upper_case_acronyms, non_camel_case_types)]
        enum NameIndex { $($name),+ }
        $($(#[$doc])+ pub const $name: Name = Name(NameIndex::$name as u16);)+
        const NAMES: &[[&str; 2]] = &[
            $([$text, concat!("\"", $text, "\":\"", "                                ")]),+
        ];
    };
}

/// Value of [`TIME_BASIS`]: our clock at the moment of reading.
pub const TIME_BASIS_RECEIVED: &str = "received";
/// Value of [`TIME_BASIS`]: the offset of the peer on a base that we measured.
pub const TIME_BASIS_PEER_RELATIVE: &str = "peer_relative";
/// Value of [`TIME_BASIS`]: computed from the peer's times around it, because the peer sends none.
pub const TIME_BASIS_ESTIMATED: &str = "estimated";

names! {
    // Marks that any event may carry.
    /// Parts that are missing: an array of field names.
    INCOMPLETE = "tributary.incomplete";
    /// Invalid text was repaired with U+FFFD.
    TEXT_REPAIRED = "tributary.text.repaired";
    /// A span named itself as its parent; it is a root.
    PARENT_SELF = "tributary.parent.self";
    /// A text was cut to a limit.
    TEXT_TRUNCATED = "tributary.text.truncated";
    /// The source of the time, if it is not the absolute clock of the peer.
    TIME_BASIS = "tributary.time.basis";

    /// The default name of loss events.
    LOSS = "tributary.loss";
    /// How many losses one loss event reports, where those of a connection are reported together.
    LOSS_COUNT = "tributary.loss.count";

    // What only OTLP has: parts of events that are keys of their own in JSON, and marks of the sink `otlp`.
    /// A value was nested too deeply for OTLP, and is its JSON text.
    TEXT_NESTED = "tributary.text.nested";
    /// The listener that received the event.
    ORIGIN_LISTENER = "tributary.listener";
    /// The number of the connection.
    ORIGIN_CONNECTION = "tributary.connection";
    /// The number of the message.
    ORIGIN_SEQUENCE = "tributary.sequence";
    /// The offset of the message in the byte stream or request body.
    ORIGIN_OFFSET = "tributary.offset";
    /// The version of the peer's protocol, an attribute of the scope.
    ORIGIN_VERSION = "origin.version";
    /// The address of the peer.
    NETWORK_PEER_ADDRESS = "network.peer.address";
    /// The port of the peer.
    NETWORK_PEER_PORT = "network.peer.port";
    /// Why bytes or events were lost.
    LOSS_REASON = "loss.reason";
    /// How many bytes were lost.
    LOSS_BYTES = "loss.bytes";
    /// How many events were lost.
    LOSS_EVENTS = "loss.events";
    /// What was found where.
    LOSS_DETAIL = "loss.detail";
    /// The first bytes of what was lost, in hex.
    LOSS_EXCERPT = "loss.excerpt";
    /// The language that the agent is for.
    TELEMETRY_SDK_LANGUAGE = "telemetry.sdk.language";
    /// The name of the agent.
    TELEMETRY_DISTRO_NAME = "telemetry.distro.name";
    /// The kind of a frame of a stack, an attribute of its location.
    PROFILE_FRAME_TYPE = "profile.frame.type";
    /// The role of a span.
    SPAN_KIND = "span.kind";

    // OpenTelemetry.
    /// The logical name of the service.
    SERVICE_NAME = "service.name";
    /// The version of the operating system.
    OS_VERSION = "os.version";
    /// The trace of an event, as an attribute.
    TRACE_ID = "trace_id";
    /// The span of an event, as an attribute.
    SPAN_ID = "span_id";
    /// A function's full name, e.g. `pkg.Class.method`.
    CODE_FUNCTION_NAME = "code.function.name";
    /// A file of source.
    CODE_FILE_PATH = "code.file.path";
    /// A line of source.
    CODE_LINE_NUMBER = "code.line.number";
    /// A column of source.
    CODE_COLUMN_NUMBER = "code.column.number";
    /// A process's id.
    PROCESS_PID = "process.pid";
    /// The name of the executable, as the process reports it.
    PROCESS_EXECUTABLE_NAME = "process.executable.name";
    /// A process's working directory.
    PROCESS_WORKING_DIRECTORY = "process.working_directory";
    /// The runtime of a process.
    PROCESS_RUNTIME_NAME = "process.runtime.name";
    /// A thread's id.
    THREAD_ID = "thread.id";
    /// A thread's name.
    THREAD_NAME = "thread.name";
    /// An exception's type.
    EXCEPTION_TYPE = "exception.type";

    // Bytefrog.
    /// The hello of a control connection.
    BYTEFROG_AGENT_CONNECTED = "bytefrog.agent.connected";
    /// A control connection has ended unannounced.
    BYTEFROG_AGENT_DISCONNECTED = "bytefrog.agent.disconnected";
    /// Heartbeats are missing.
    BYTEFROG_AGENT_UNHEALTHY = "bytefrog.agent.unhealthy";
    /// Heartbeats have resumed.
    BYTEFROG_AGENT_RECOVERED = "bytefrog.agent.recovered";
    /// An error that the agent reports.
    BYTEFROG_AGENT_ERROR = "bytefrog.agent.error";
    /// A heartbeat.
    BYTEFROG_HEARTBEAT = "bytefrog.heartbeat";
    /// A class was instrumented.
    BYTEFROG_CLASS_TRANSFORMED = "bytefrog.class.transformed";
    /// A class was not changed.
    BYTEFROG_CLASS_IGNORED = "bytefrog.class.ignored";
    /// A class could not be instrumented.
    BYTEFROG_CLASS_TRANSFORM_FAILED = "bytefrog.class.transform_failed";
    /// A class's name, as sent.
    BYTEFROG_CLASS_NAME = "bytefrog.class.name";
    /// The agent was suspended.
    BYTEFROG_DATA_BREAK = "bytefrog.data_break";
    /// A method was entered.
    BYTEFROG_METHOD_ENTRY = "bytefrog.method.entry";
    /// A method was left.
    BYTEFROG_METHOD_EXIT = "bytefrog.method.exit";
    /// A line was executed.
    BYTEFROG_METHOD_VISIT = "bytefrog.method.visit";
    /// A `throw` statement was executed.
    BYTEFROG_EXCEPTION_THROWN = "bytefrog.exception.thrown";
    /// A method was left by an exception.
    BYTEFROG_EXCEPTION_BUBBLED = "bytefrog.exception.bubbled";
    /// A marker of the application.
    BYTEFROG_MARKER = "bytefrog.marker";
    /// A thread's name from a time on.
    BYTEFROG_THREAD_NAMED = "bytefrog.thread.named";
    /// A method id's signature.
    BYTEFROG_METHOD_MAPPED = "bytefrog.method.mapped";
    /// An exception id's type.
    BYTEFROG_EXCEPTION_MAPPED = "bytefrog.exception.mapped";
    /// A source location id's lines.
    BYTEFROG_SOURCE_LOCATION_MAPPED = "bytefrog.source_location.mapped";
    /// How many source locations a method has.
    BYTEFROG_SOURCE_LOCATION_COUNTED = "bytefrog.source_location.counted";
    /// Numbers have arrived after they were reported as missing.
    BYTEFROG_GAP_CLOSED = "bytefrog.gap.closed";
    /// The end of a run.
    BYTEFROG_RUN_ENDED = "bytefrog.run.ended";
    /// A stack of calls with their self time or their number.
    BYTEFROG_CALLS = "bytefrog.calls";
    /// How many exceptions of a type were thrown.
    BYTEFROG_EXCEPTIONS = "bytefrog.exceptions";
    /// A method that runs for the first time in its run.
    BYTEFROG_METHOD_COVERED = "bytefrog.method.covered";
    /// How many methods were run.
    BYTEFROG_COVERAGE = "bytefrog.coverage";
    /// Their number.
    BYTEFROG_COVERAGE_METHODS = "bytefrog.coverage.methods";
    /// The number of their classes.
    BYTEFROG_COVERAGE_CLASSES = "bytefrog.coverage.classes";
    /// How much time a profile covers, in milliseconds.
    BYTEFROG_PROFILE_DURATION_MS = "bytefrog.profile.duration_ms";
    /// The run's id on the wire.
    BYTEFROG_RUN_ID = "bytefrog.run.id";
    /// The version of the hello.
    BYTEFROG_PROTOCOL_VERSION = "bytefrog.protocol.version";
    /// The project of a project hello.
    BYTEFROG_PROJECT_ID = "bytefrog.project.id";
    /// What an agent is doing.
    BYTEFROG_MODE = "bytefrog.mode";
    /// The byte of an unknown mode.
    BYTEFROG_MODE_VALUE = "bytefrog.mode.value";
    /// Buffers that the agent has to send.
    BYTEFROG_BUFFERS_READABLE = "bytefrog.buffers.readable";
    /// The number that a data break names.
    BYTEFROG_SEQUENCE = "bytefrog.sequence";
    /// The first number of a gap.
    BYTEFROG_SEQUENCE_FIRST = "bytefrog.sequence.first";
    /// The last number of a gap.
    BYTEFROG_SEQUENCE_LAST = "bytefrog.sequence.last";
    /// A method's id.
    BYTEFROG_METHOD_ID = "bytefrog.method.id";
    /// A method's descriptor.
    BYTEFROG_METHOD_DESCRIPTOR = "bytefrog.method.descriptor";
    /// A method's access flags.
    BYTEFROG_METHOD_ACCESS = "bytefrog.method.access";
    /// An exception's id.
    BYTEFROG_EXCEPTION_ID = "bytefrog.exception.id";
    /// A source location's id.
    BYTEFROG_SOURCE_LOCATION_ID = "bytefrog.source_location.id";
    /// Source locations of a method.
    BYTEFROG_SOURCE_LOCATION_COUNT = "bytefrog.source_location.count";
    /// Whether a method was left by an exception.
    BYTEFROG_EXIT_THREW = "bytefrog.exit.threw";
    /// The last line of a source location.
    BYTEFROG_LINE_END = "bytefrog.line.end";
    /// The last column of a source location.
    BYTEFROG_COLUMN_END = "bytefrog.column.end";
    /// A marker's key.
    BYTEFROG_MARKER_KEY = "bytefrog.marker.key";
    /// A marker's value.
    BYTEFROG_MARKER_VALUE = "bytefrog.marker.value";
    /// The agent's own time, in milliseconds.
    BYTEFROG_TIME_RELATIVE_MS = "bytefrog.time.relative_ms";
    /// How many numbers have arrived after they were reported as missing.
    BYTEFROG_GAP_EVENTS = "bytefrog.gap.events";
    /// Sequenced events of a run.
    BYTEFROG_RUN_EVENTS = "bytefrog.run.events";
    /// Gaps of a run.
    BYTEFROG_RUN_GAPS = "bytefrog.run.gaps";
    /// How long a run took, in milliseconds.
    BYTEFROG_RUN_DURATION_MS = "bytefrog.run.duration_ms";
    /// How a run ended.
    BYTEFROG_RUN_OUTCOME = "bytefrog.run.outcome";
    /// Raw id of a method that was never defined.
    BYTEFROG_UNRESOLVED_METHOD = "bytefrog.unresolved.method";
    /// Raw id of an exception that was never defined.
    BYTEFROG_UNRESOLVED_EXCEPTION = "bytefrog.unresolved.exception";
    /// Raw id of a source location that was never defined.
    BYTEFROG_UNRESOLVED_SOURCE_LOCATION = "bytefrog.unresolved.source_location";
    /// Raw id of a thread that was never defined.
    BYTEFROG_UNRESOLVED_THREAD = "bytefrog.unresolved.thread";

    // Datadog-style binary spans.
    /// The process object.
    DATADOG_PROCESS = "datadog.process";
    /// The trace object.
    DATADOG_TRACE = "datadog.trace";
    /// A span whose name is missing.
    DATADOG_SPAN = "datadog.span";
    /// A string definition.
    DATADOG_STRING = "datadog.string";
    /// Entries that arrived after their owner was emitted.
    DATADOG_LATE_LIST = "datadog.late_list";
    /// `process.protocol_version`.
    DATADOG_PROTOCOL_VERSION = "datadog.protocol.version";
    /// `process.string_cache_size`, in entries.
    DATADOG_STRING_CACHE_SIZE = "datadog.string_cache_size";
    /// `trace.trace_id`.
    DATADOG_TRACE_ID = "datadog.trace_id";
    /// `span.resource`.
    DATADOG_RESOURCE = "datadog.resource";
    /// `span.type`.
    DATADOG_TYPE = "datadog.type";
    /// `string.id`.
    DATADOG_STRING_ID = "datadog.string.id";
    /// `string.characters`.
    DATADOG_STRING_TEXT = "datadog.string.text";
    /// Prefix of the meta of a trace on its spans.
    DATADOG_TRACE_META = "datadog.trace.meta.";
    /// Prefix of a meta whose own key is reserved or used.
    DATADOG_META = "datadog.meta.";
    /// Prefix of a metric whose own key is reserved or used.
    DATADOG_METRIC = "datadog.metric.";
    /// Prefix of a `meta_struct` whose own key is used.
    DATADOG_META_STRUCT = "datadog.meta_struct.";
    /// Prefix of a meta whose key was never defined; the key's raw id follows.
    DATADOG_NAMELESS_META = "datadog.nameless_meta.";
    /// Prefix of a meta whose value was never defined; its key follows, and its attribute's value is the raw id of the
    /// value.
    DATADOG_VALUELESS_META = "datadog.valueless_meta.";
    /// Prefix of a metric whose key was never defined; the key's raw id follows.
    DATADOG_NAMELESS_METRIC = "datadog.nameless_metric.";
    /// Entries that a limit cut from the record.
    DATADOG_ENTRIES_DROPPED = "datadog.entries_dropped";
    /// The name of the spans of a group.
    DATADOG_NAME = "datadog.name";
    /// The spans of a group are roots of their traces.
    DATADOG_IS_TRACE_ROOT = "datadog.is_trace_root";
    /// The spans of a group come from synthetic tests.
    DATADOG_SYNTHETICS = "datadog.synthetics";
    /// Spans of a group in a bucket of time.
    DATADOG_TRACE_HITS = "datadog.trace.hits";
    /// Those with an error.
    DATADOG_TRACE_ERRORS = "datadog.trace.errors";
    /// Those that are the first of their service.
    DATADOG_TRACE_TOP_LEVEL_HITS = "datadog.trace.top_level_hits";
    /// The sum of their durations.
    DATADOG_TRACE_DURATION = "datadog.trace.duration";
    /// Quantiles of the durations of spans without an error.
    DATADOG_OK_P50 = "datadog.trace.duration.ok.p50";
    /// 75 %.
    DATADOG_OK_P75 = "datadog.trace.duration.ok.p75";
    /// 90 %.
    DATADOG_OK_P90 = "datadog.trace.duration.ok.p90";
    /// 95 %.
    DATADOG_OK_P95 = "datadog.trace.duration.ok.p95";
    /// 99 %.
    DATADOG_OK_P99 = "datadog.trace.duration.ok.p99";
    /// The longest.
    DATADOG_OK_MAX = "datadog.trace.duration.ok.max";
    /// Quantiles of the durations of spans with an error.
    DATADOG_ERROR_P50 = "datadog.trace.duration.error.p50";
    /// 75 %.
    DATADOG_ERROR_P75 = "datadog.trace.duration.error.p75";
    /// 90 %.
    DATADOG_ERROR_P90 = "datadog.trace.duration.error.p90";
    /// 95 %.
    DATADOG_ERROR_P95 = "datadog.trace.duration.error.p95";
    /// 99 %.
    DATADOG_ERROR_P99 = "datadog.trace.duration.error.p99";
    /// The longest.
    DATADOG_ERROR_MAX = "datadog.trace.duration.error.max";
    /// The method of a request over HTTP.
    HTTP_REQUEST_METHOD = "http.request.method";
    /// The status of a response over HTTP.
    HTTP_RESPONSE_STATUS_CODE = "http.response.status_code";
    /// The route that a request matched.
    HTTP_ROUTE = "http.route";
    /// The status of a call of gRPC.
    RPC_GRPC_STATUS_CODE = "rpc.grpc.status_code";
    /// The sampling priority of a chunk.
    DATADOG_CHUNK_PRIORITY = "datadog.chunk.priority";
    /// Where the trace of a chunk began, e.g. `synthetics`.
    DATADOG_CHUNK_ORIGIN = "datadog.chunk.origin";
    /// The tracer has marked the chunk as dropped.
    DATADOG_CHUNK_DROPPED = "datadog.chunk.dropped";
    /// The number of traces of a body that was refused, as its header says.
    DATADOG_TRACE_COUNT = "datadog.trace_count";
    /// The environment of the pod of a DogStatsD client, as it has it from outside.
    DATADOG_EXTERNAL_ENV = "datadog.external_env";
    /// Which tags of the container a DogStatsD client wants.
    DATADOG_CARDINALITY = "datadog.cardinality";
    /// The number of distinct values of a set is an estimate.
    DOGSTATSD_ESTIMATE = "dogstatsd.estimate";
    /// An event of a DogStatsD client.
    DOGSTATSD_EVENT = "dogstatsd.event";
    /// What it groups with.
    DOGSTATSD_EVENT_AGGREGATION_KEY = "dogstatsd.event.aggregation_key";
    /// How it is classed.
    DOGSTATSD_EVENT_ALERT_TYPE = "dogstatsd.event.alert_type";
    /// Its priority.
    DOGSTATSD_EVENT_PRIORITY = "dogstatsd.event.priority";
    /// What it is from.
    DOGSTATSD_EVENT_SOURCE_TYPE = "dogstatsd.event.source_type";
    /// Its title.
    DOGSTATSD_EVENT_TITLE = "dogstatsd.event.title";
    /// The state of a service, as a DogStatsD client sees it.
    DOGSTATSD_SERVICE_CHECK = "dogstatsd.service_check";
    /// Which check found it.
    DOGSTATSD_SERVICE_CHECK_NAME = "dogstatsd.service_check.name";
    /// What it found.
    DOGSTATSD_SERVICE_CHECK_STATUS = "dogstatsd.service_check.status";
    /// A message of a tracer about itself.
    DATADOG_TELEMETRY = "datadog.telemetry";
    /// The kind of the message.
    DATADOG_TELEMETRY_TYPE = "datadog.telemetry.type";
    /// An upload of a profiler.
    DATADOG_PROFILE = "datadog.profile";
    /// The names of its files.
    DATADOG_PROFILE_ATTACHMENTS = "datadog.profile.attachments";
    /// When the profile ended.
    DATADOG_PROFILE_END = "datadog.profile.end";
    /// The kind of the profiler.
    DATADOG_PROFILE_FAMILY = "datadog.profile.family";
    /// Its files that were kept, as paths within the directory.
    DATADOG_PROFILE_FILES = "datadog.profile.files";
    /// A value of a stack of a profile.
    DATADOG_PROFILE_SAMPLE = "datadog.profile.sample";
    /// The number of stacks with values.
    DATADOG_PROFILE_SAMPLES = "datadog.profile.samples";
    /// When the profile began.
    DATADOG_PROFILE_START = "datadog.profile.start";
    /// The types of its values.
    DATADOG_PROFILE_TYPES = "datadog.profile.types";
    /// The span at the root of the service when a sample was taken.
    DATADOG_LOCAL_ROOT_SPAN_ID = "datadog.local_root_span_id";
    /// The resource of that span.
    DATADOG_TRACE_ENDPOINT = "datadog.trace.endpoint";
    /// Prefix of the labels of a sample.
    PPROF_LABEL = "pprof.label.";
    /// Tags of the process.
    DATADOG_PROCESS_TAGS = "_dd.tags.process";
    /// Warnings about the record: an array of codes.
    DATADOG_WARNINGS = "datadog.warnings";
    /// Raw id of a name that was never defined.
    DATADOG_UNRESOLVED_NAME = "datadog.unresolved.name";
    /// Raw id of a type that was never defined.
    DATADOG_UNRESOLVED_TYPE = "datadog.unresolved.type";
    /// Raw id of a resource that was never defined.
    DATADOG_UNRESOLVED_RESOURCE = "datadog.unresolved.resource";
    /// Raw id of a service that was never defined.
    DATADOG_UNRESOLVED_SERVICE = "datadog.unresolved.service";
    /// Raw ids in meta that were never defined.
    DATADOG_UNRESOLVED_META = "datadog.unresolved.meta";
    /// Raw ids in metrics that were never defined.
    DATADOG_UNRESOLVED_METRICS = "datadog.unresolved.metrics";

    // Rbkit.
    /// A handshake reply.
    RBKIT_HANDSHAKE = "rbkit.handshake";
    /// The process was restarted.
    RBKIT_AGENT_RESTARTED = "rbkit.agent.restarted";
    /// Requests are not answered.
    RBKIT_AGENT_UNHEALTHY = "rbkit.agent.unhealthy";
    /// Requests are answered again.
    RBKIT_AGENT_RECOVERED = "rbkit.agent.recovered";
    /// An object was created.
    RBKIT_OBJECT_CREATED = "rbkit.object.created";
    /// An object was freed.
    RBKIT_OBJECT_DESTROYED = "rbkit.object.destroyed";
    /// A garbage collection begins.
    RBKIT_GC_START = "rbkit.gc.start";
    /// A garbage collection has marked.
    RBKIT_GC_END_MARK = "rbkit.gc.end_mark";
    /// A garbage collection has swept.
    RBKIT_GC_END_SWEEP = "rbkit.gc.end_sweep";
    /// Prefix of a statistic of the garbage collector.
    RBKIT_GC = "rbkit.gc.";
    /// An object of a heap dump.
    RBKIT_HEAP_OBJECT = "rbkit.heap.object";
    /// A heap dump is complete.
    RBKIT_HEAP_DUMP = "rbkit.heap.dump";
    /// The objects of a class and site in a heap dump.
    RBKIT_HEAP = "rbkit.heap";
    /// Objects of a class that were created in an interval.
    RBKIT_OBJECTS_CREATED = "rbkit.objects.created";
    /// Objects of a class that were destroyed in an interval.
    RBKIT_OBJECTS_DESTROYED = "rbkit.objects.destroyed";
    /// Objects of a class that are alive, of those that were created since the counting began.
    RBKIT_OBJECTS_LIVE = "rbkit.objects.live";
    /// A sample of the processor.
    RBKIT_CPU = "rbkit.cpu";
    /// Allocations of a site.
    RBKIT_ALLOCATIONS = "rbkit.allocations";
    /// An object's id.
    RBKIT_OBJECT_ID = "rbkit.object.id";
    /// An object's size in bytes.
    RBKIT_OBJECT_SIZE = "rbkit.object.size";
    /// Ids of the objects that an object refers to.
    RBKIT_OBJECT_REFERENCES = "rbkit.object.references";
    /// An object's class.
    RBKIT_CLASS_NAME = "rbkit.class.name";
    /// A dump's id.
    RBKIT_DUMP_ID = "rbkit.dump.id";
    /// Objects of a dump.
    RBKIT_DUMP_OBJECT_COUNT = "rbkit.dump.object_count";
    /// The version of the gem.
    RBKIT_SERVER_VERSION = "rbkit.server.version";
    /// The version of the protocol, as sent.
    RBKIT_PROTOCOL_VERSION = "rbkit.protocol.version";
    /// Whether objects are traced.
    RBKIT_MEMORY_PROFILE = "rbkit.memory_profile.enabled";
    /// Whether the processor is sampled.
    RBKIT_CPU_PROFILE = "rbkit.cpu_profile.enabled";
    /// On which clock the processor is sampled.
    RBKIT_CPU_PROFILE_CLOCK = "rbkit.cpu_profile.clock";
    /// How the processor is profiled.
    RBKIT_CPU_PROFILE_MODE = "rbkit.cpu_profile.mode";

    // Endless.
    /// A singular event.
    ENDLESS_EVENT = "endless.event";
    /// An aggregate event.
    ENDLESS_AGGREGATE = "endless.aggregate";
    /// One element of an event sequence.
    ENDLESS_SEQUENCE = "endless.sequence";
    /// The event's id: a UUID, or hex where it is not of 16 bytes.
    ENDLESS_EVENT_ID = "endless.event.id";
    /// The name of the event in Endless OS.
    ENDLESS_EVENT_NAME = "endless.event.name";
    /// The unix user id.
    ENDLESS_USER_ID = "endless.user.id";
    /// The payload of an aggregate.
    ENDLESS_PAYLOAD = "endless.payload";
    /// Raw bytes of a payload that cannot be read.
    ENDLESS_PAYLOAD_BASE64 = "endless.payload_base64";
    /// The payload's innermost type.
    ENDLESS_PAYLOAD_TYPE = "endless.payload.type";
    /// The types that the registry has for the payload, where it is of another.
    ENDLESS_PAYLOAD_EXPECTED = "endless.payload.expected";
    /// The named fields of the payload.
    ENDLESS_FIELDS = "endless.fields";
    /// The day or month of an aggregate, as text.
    ENDLESS_PERIOD = "endless.period";
    /// The event's time by its agent's clocks in nanoseconds since 1970, where `time` cannot represent it.
    ENDLESS_TIME_UNIX_NANOS = "endless.time.unix_nanos";
    /// Which element of its sequence it is, from 0.
    ENDLESS_SEQUENCE_INDEX = "endless.sequence.index";
    /// How many elements its sequence has.
    ENDLESS_SEQUENCE_LENGTH = "endless.sequence.length";
    /// The version of the protocol.
    ENDLESS_PROTOCOL_VERSION = "endless.protocol.version";
    /// How many bundles the agent has sent before.
    ENDLESS_SEND_NUMBER = "endless.send_number";
    /// The machine, in hex.
    ENDLESS_MACHINE_ID = "endless.machine.id";
    /// The image id.
    ENDLESS_IMAGE = "endless.image";
    /// Part of the image id: the product.
    ENDLESS_IMAGE_PRODUCT = "endless.image.product";
    /// Part of the image id: the branch.
    ENDLESS_IMAGE_BRANCH = "endless.image.branch";
    /// Part of the image id: the architecture.
    ENDLESS_IMAGE_ARCHITECTURE = "endless.image.architecture";
    /// Part of the image id: the platform.
    ENDLESS_IMAGE_PLATFORM = "endless.image.platform";
    /// Part of the image id: when it was built.
    ENDLESS_IMAGE_BUILT = "endless.image.built";
    /// Part of the image id: the personality.
    ENDLESS_IMAGE_PERSONALITY = "endless.image.personality";
    /// Prefix of the site's values.
    ENDLESS_SITE = "endless.site.";
    /// Whether another system is also installed.
    ENDLESS_DUALBOOT = "endless.dualboot";
    /// Whether it runs from a removable disk.
    ENDLESS_LIVE = "endless.live";

    // ZICO.
    /// A host's id.
    HOST_ID = "host.id";
    /// A host's name.
    HOST_NAME = "host.name";
    /// The version of a service.
    SERVICE_VERSION = "service.version";
    /// The id of an instance of a service.
    SERVICE_INSTANCE_ID = "service.instance.id";
    /// The name of the library that sends.
    TELEMETRY_SDK_NAME = "telemetry.sdk.name";
    /// Its version.
    TELEMETRY_SDK_VERSION = "telemetry.sdk.version";
    /// The version of the runtime of a process.
    PROCESS_RUNTIME_VERSION = "process.runtime.version";
    /// A container's id.
    CONTAINER_ID = "container.id";
    /// Where a service runs, e.g. production.
    DEPLOYMENT_ENVIRONMENT_NAME = "deployment.environment.name";
    /// An exception's message.
    EXCEPTION_MESSAGE = "exception.message";
    /// An exception's stack, as its language prints it.
    EXCEPTION_STACKTRACE = "exception.stacktrace";
    /// An agent has registered that was not known.
    ZICO_AGENT_REGISTERED = "zico.agent.registered";
    /// An agent has registered that was known.
    ZICO_AGENT_SEEN = "zico.agent.seen";
    /// A session is new.
    ZICO_SESSION_OPENED = "zico.session.opened";
    /// A session was reset.
    ZICO_SESSION_RESET = "zico.session.reset";
    /// The digest of a session's id.
    ZICO_SESSION_ID = "zico.session.id";
    /// Prefix of attributes that an agent sends about itself.
    ZICO_AGENT = "zico.agent.";
    /// A record without a method.
    ZICO_RECORD = "zico.record";
    /// The signature of a method.
    ZICO_METHOD_SIGNATURE = "zico.method.signature";
    /// A stack of records with their self time or their number.
    ZICO_PROFILE = "zico.profile";
    /// How much time a profile covers, in milliseconds.
    ZICO_PROFILE_DURATION_MS = "zico.profile.duration_ms";
    /// The number of short records that were added to a record.
    ZICO_PRUNED_RECORDS = "zico.pruned.records";
    /// The time of the outermost of them, in nanoseconds.
    ZICO_PRUNED_DURATION_NS = "zico.pruned.duration_ns";
    /// Calls of methods in a record, itself included.
    ZICO_CALLS = "zico.calls";
    /// The flags of a record, or of its trace.
    ZICO_FLAGS = "zico.flags";
    /// Calls in a record that threw an exception, itself included.
    ZICO_ERRORS = "zico.errors";
    /// The flags of a trace, where a record has others.
    ZICO_TRACE_FLAGS = "zico.trace.flags";
    /// The type of a trace.
    ZICO_TRACE_TYPE = "zico.trace.type";
    /// The span that a begin names as its parent.
    ZICO_PARENT_SPAN_ID = "zico.parent_span_id";
    /// Prefix of an attribute whose own key is reserved.
    ZICO_ATTRIBUTE = "zico.attribute.";
    /// A record ends before it starts.
    ZICO_TIME_BACKWARD = "zico.time.backward";
    /// Prefix of the names of an agent's metrics.
    ZICO_METRIC = "zorka.";
    /// The agent's number of a metric.
    ZICO_METRIC_ID = "zico.metric.id";
    /// A metric's description.
    ZICO_METRIC_DESCRIPTION = "zico.metric.description";
    /// The scanner that has read a metric.
    ZICO_METRIC_SCANNER = "zico.metric.scanner";
    /// An exception.
    ZICO_EXCEPTION = "zico.exception";
    /// An exception's id.
    ZICO_EXCEPTION_ID = "zico.exception.id";
    /// The id of an exception's cause.
    ZICO_EXCEPTION_CAUSE = "zico.exception.cause";
    /// Whether an exception was sent before.
    ZICO_EXCEPTION_REF = "zico.exception.ref";
    /// A string definition.
    ZICO_STRING = "zico.string";
    /// A string's id.
    ZICO_STRING_ID = "zico.string.id";
    /// A string's text.
    ZICO_STRING_TEXT = "zico.string.text";
    /// A string's type.
    ZICO_STRING_TYPE = "zico.string.type";
    /// A method definition.
    ZICO_METHOD = "zico.method";
    /// A method's id.
    ZICO_METHOD_ID = "zico.method.id";
    /// Raw id of a method that was not defined.
    ZICO_UNRESOLVED_METHOD = "zico.unresolved.method";
    /// Raw ids of strings that were not defined.
    ZICO_UNRESOLVED_SYMBOLS = "zico.unresolved.symbols";

    // Metrics of the view, as the spanmetrics connector of the OpenTelemetry Collector names them.
    /// The calls of an operation.
    SPAN_METRICS_CALLS = "traces.span.metrics.calls";
    /// The durations of an operation.
    SPAN_METRICS_DURATION = "traces.span.metrics.duration";
    /// The name of its spans.
    SPAN_NAME = "span.name";
    /// Their status.
    STATUS_CODE = "status.code";

    // OTLP.
    /// A log without a name.
    OTLP_LOG = "otlp.log";
    /// A span without a name.
    OTLP_SPAN = "otlp.span";
    /// A metric without a name.
    OTLP_METRIC = "otlp.metric";
    /// A sample of a profile.
    OTLP_PROFILE_SAMPLE = "otlp.profile.sample";
    /// The id of the profile of a sample.
    OTLP_PROFILE_ID = "otlp.profile.id";
    /// The name of the scope that made a record.
    OTLP_SCOPE_NAME = "otlp.scope.name";
    /// The version of the scope.
    OTLP_SCOPE_VERSION = "otlp.scope.version";
    /// Prefix of the other attributes of the scope.
    OTLP_SCOPE = "otlp.scope.";
    /// The severity in the words of the sender, if they are others.
    OTLP_SEVERITY_TEXT = "otlp.severity_text";
    /// The flags of a log.
    OTLP_FLAGS = "otlp.flags";
    /// Attributes that the sender or a limit left out.
    OTLP_DROPPED_ATTRIBUTES = "otlp.dropped_attributes_count";
}

#[cfg(test)]
mod tests {
    use super::{NAMES, Name, PADDING, Padded};

    #[test]
    fn every_name_is_plain_ascii_so_that_encoders_need_not_escape_it() {
        for [name, ..] in NAMES {
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._".contains(&b)), "{name}");
        }
    }

    #[test]
    fn every_name_is_there_as_a_key_of_json() {
        let shown = |piece: Padded| &piece.padded[..piece.len];
        for (place, [name, padded]) in NAMES.iter().enumerate() {
            let known = Name(place as u16);
            assert_eq!(shown(known.quoted_padded()), format!("\"{name}\""));
            assert_eq!(shown(known.before_value_padded()), format!("\"{name}\":"));
            assert_eq!(shown(known.before_text_padded()), format!("\"{name}\":\""));
            assert!(padded.len() >= known.before_text_padded().len + PADDING);
        }
    }

    #[test]
    fn the_event_model_page_lists_every_name() {
        let page = include_str!("../../docs/event-model.md");
        for [name, ..] in NAMES {
            assert!(page.contains(&format!("`{name}")), "docs/event-model.md does not list `{name}`");
        }
    }
}
