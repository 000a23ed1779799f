//! Every name that the product writes into events, in one place.
//!
//! Names follow OpenTelemetry semantic conventions where those exist, else `<protocol>.<noun>[.<quality>]`.
//! `docs/event-model.md` lists each of them for users; a test fails when one is missing there.

/// A name of the contract. Plain ASCII without characters that JSON escapes, which a test asserts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name(pub(super) &'static str);

impl Name {
    /// The name itself.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

// Marks that any event may carry.
/// Parts that are missing: an array of field names.
pub const INCOMPLETE: Name = Name("tributary.incomplete");
/// Invalid text was repaired with U+FFFD.
pub const TEXT_REPAIRED: Name = Name("tributary.text.repaired");
/// A text was cut to a limit.
pub const TEXT_TRUNCATED: Name = Name("tributary.text.truncated");
/// Where the time comes from when it is not the peer's own absolute clock.
pub const TIME_BASIS: Name = Name("tributary.time.basis");
/// Value of [`TIME_BASIS`]: our clock at the moment of reading.
pub const TIME_BASIS_RECEIVED: &str = "received";
/// Value of [`TIME_BASIS`]: the peer's offset on a base that we measured.
pub const TIME_BASIS_PEER_RELATIVE: &str = "peer_relative";

/// Name of loss events that no protocol names otherwise.
pub const LOSS: Name = Name("tributary.loss");

// OpenTelemetry.
/// The logical name of the service.
pub const SERVICE_NAME: Name = Name("service.name");
/// The version of the operating system.
pub const OS_VERSION: Name = Name("os.version");
/// The trace an event belongs to, where it stands in attributes.
pub const TRACE_ID: Name = Name("trace_id");
/// The span an event belongs to, where it stands in attributes.
pub const SPAN_ID: Name = Name("span_id");
/// A function's full name, e.g. `pkg.Class.method`.
pub const CODE_FUNCTION_NAME: Name = Name("code.function.name");
/// A file of source.
pub const CODE_FILE_PATH: Name = Name("code.file.path");
/// A line of source.
pub const CODE_LINE_NUMBER: Name = Name("code.line.number");
/// A column of source.
pub const CODE_COLUMN_NUMBER: Name = Name("code.column.number");
/// A process's id.
pub const PROCESS_PID: Name = Name("process.pid");
/// What a process runs, as it names it.
pub const PROCESS_EXECUTABLE_NAME: Name = Name("process.executable.name");
/// A process's working directory.
pub const PROCESS_WORKING_DIRECTORY: Name = Name("process.working_directory");
/// What a process runs on.
pub const PROCESS_RUNTIME_NAME: Name = Name("process.runtime.name");
/// A thread's id.
pub const THREAD_ID: Name = Name("thread.id");
/// A thread's name.
pub const THREAD_NAME: Name = Name("thread.name");
/// An exception's type.
pub const EXCEPTION_TYPE: Name = Name("exception.type");

// Bytefrog.
/// The hello of a control connection.
pub const BYTEFROG_AGENT_CONNECTED: Name = Name("bytefrog.agent.connected");
/// A control connection has ended unannounced.
pub const BYTEFROG_AGENT_DISCONNECTED: Name = Name("bytefrog.agent.disconnected");
/// Heartbeats are missing.
pub const BYTEFROG_AGENT_UNHEALTHY: Name = Name("bytefrog.agent.unhealthy");
/// Heartbeats have come again.
pub const BYTEFROG_AGENT_RECOVERED: Name = Name("bytefrog.agent.recovered");
/// An error that the agent reports.
pub const BYTEFROG_AGENT_ERROR: Name = Name("bytefrog.agent.error");
/// A heartbeat.
pub const BYTEFROG_HEARTBEAT: Name = Name("bytefrog.heartbeat");
/// A class was instrumented.
pub const BYTEFROG_CLASS_TRANSFORMED: Name = Name("bytefrog.class.transformed");
/// A class was left as it is.
pub const BYTEFROG_CLASS_IGNORED: Name = Name("bytefrog.class.ignored");
/// A class could not be instrumented.
pub const BYTEFROG_CLASS_TRANSFORM_FAILED: Name = Name("bytefrog.class.transform_failed");
/// A class's name, as sent.
pub const BYTEFROG_CLASS_NAME: Name = Name("bytefrog.class.name");
/// The agent was suspended.
pub const BYTEFROG_DATA_BREAK: Name = Name("bytefrog.data_break");
/// A method was entered.
pub const BYTEFROG_METHOD_ENTRY: Name = Name("bytefrog.method.entry");
/// A method was left.
pub const BYTEFROG_METHOD_EXIT: Name = Name("bytefrog.method.exit");
/// A line was executed.
pub const BYTEFROG_METHOD_VISIT: Name = Name("bytefrog.method.visit");
/// A `throw` statement was executed.
pub const BYTEFROG_EXCEPTION_THROWN: Name = Name("bytefrog.exception.thrown");
/// A method was left by an exception.
pub const BYTEFROG_EXCEPTION_BUBBLED: Name = Name("bytefrog.exception.bubbled");
/// A marker of the application.
pub const BYTEFROG_MARKER: Name = Name("bytefrog.marker");
/// A thread's name from a time on.
pub const BYTEFROG_THREAD_NAMED: Name = Name("bytefrog.thread.named");
/// A method id's signature.
pub const BYTEFROG_METHOD_MAPPED: Name = Name("bytefrog.method.mapped");
/// An exception id's type.
pub const BYTEFROG_EXCEPTION_MAPPED: Name = Name("bytefrog.exception.mapped");
/// A source location id's lines.
pub const BYTEFROG_SOURCE_LOCATION_MAPPED: Name = Name("bytefrog.source_location.mapped");
/// How many source locations a method has.
pub const BYTEFROG_SOURCE_LOCATION_COUNTED: Name = Name("bytefrog.source_location.counted");
/// The end of a run.
pub const BYTEFROG_RUN_ENDED: Name = Name("bytefrog.run.ended");
/// The run's id on the wire.
pub const BYTEFROG_RUN_ID: Name = Name("bytefrog.run.id");
/// The version of the hello.
pub const BYTEFROG_PROTOCOL_VERSION: Name = Name("bytefrog.protocol.version");
/// The project of a project hello.
pub const BYTEFROG_PROJECT_ID: Name = Name("bytefrog.project.id");
/// What an agent is doing.
pub const BYTEFROG_MODE: Name = Name("bytefrog.mode");
/// The byte of an unknown mode.
pub const BYTEFROG_MODE_VALUE: Name = Name("bytefrog.mode.value");
/// Buffers that the agent has to send.
pub const BYTEFROG_BUFFERS_READABLE: Name = Name("bytefrog.buffers.readable");
/// The number that a data break names.
pub const BYTEFROG_SEQUENCE: Name = Name("bytefrog.sequence");
/// The first number of a gap.
pub const BYTEFROG_SEQUENCE_FIRST: Name = Name("bytefrog.sequence.first");
/// The last number of a gap.
pub const BYTEFROG_SEQUENCE_LAST: Name = Name("bytefrog.sequence.last");
/// A method's id.
pub const BYTEFROG_METHOD_ID: Name = Name("bytefrog.method.id");
/// A method's descriptor.
pub const BYTEFROG_METHOD_DESCRIPTOR: Name = Name("bytefrog.method.descriptor");
/// A method's access flags.
pub const BYTEFROG_METHOD_ACCESS: Name = Name("bytefrog.method.access");
/// An exception's id.
pub const BYTEFROG_EXCEPTION_ID: Name = Name("bytefrog.exception.id");
/// A source location's id.
pub const BYTEFROG_SOURCE_LOCATION_ID: Name = Name("bytefrog.source_location.id");
/// Source locations of a method.
pub const BYTEFROG_SOURCE_LOCATION_COUNT: Name = Name("bytefrog.source_location.count");
/// Whether a method was left by an exception.
pub const BYTEFROG_EXIT_THREW: Name = Name("bytefrog.exit.threw");
/// The last line of a source location.
pub const BYTEFROG_LINE_END: Name = Name("bytefrog.line.end");
/// The last column of a source location.
pub const BYTEFROG_COLUMN_END: Name = Name("bytefrog.column.end");
/// A marker's key.
pub const BYTEFROG_MARKER_KEY: Name = Name("bytefrog.marker.key");
/// A marker's value.
pub const BYTEFROG_MARKER_VALUE: Name = Name("bytefrog.marker.value");
/// The agent's own time, in milliseconds.
pub const BYTEFROG_TIME_RELATIVE_MS: Name = Name("bytefrog.time.relative_ms");
/// Sequenced events of a run.
pub const BYTEFROG_RUN_EVENTS: Name = Name("bytefrog.run.events");
/// Gaps of a run.
pub const BYTEFROG_RUN_GAPS: Name = Name("bytefrog.run.gaps");
/// How long a run took, in milliseconds.
pub const BYTEFROG_RUN_DURATION_MS: Name = Name("bytefrog.run.duration_ms");
/// How a run ended.
pub const BYTEFROG_RUN_OUTCOME: Name = Name("bytefrog.run.outcome");
/// Raw id of a method that never got its signature.
pub const BYTEFROG_UNRESOLVED_METHOD: Name = Name("bytefrog.unresolved.method");
/// Raw id of an exception that never got its type.
pub const BYTEFROG_UNRESOLVED_EXCEPTION: Name = Name("bytefrog.unresolved.exception");
/// Raw id of a source location that never got its lines.
pub const BYTEFROG_UNRESOLVED_SOURCE_LOCATION: Name = Name("bytefrog.unresolved.source_location");
/// Raw id of a thread that never got its name.
pub const BYTEFROG_UNRESOLVED_THREAD: Name = Name("bytefrog.unresolved.thread");

// Datadog-style binary spans.
/// The process object.
pub const DATADOG_PROCESS: Name = Name("datadog.process");
/// The trace object.
pub const DATADOG_TRACE: Name = Name("datadog.trace");
/// A span whose name is missing.
pub const DATADOG_SPAN: Name = Name("datadog.span");
/// A string definition.
pub const DATADOG_STRING: Name = Name("datadog.string");
/// Entries that came after their owner had gone out.
pub const DATADOG_LATE_LIST: Name = Name("datadog.late_list");
/// `process.protocol_version`.
pub const DATADOG_PROTOCOL_VERSION: Name = Name("datadog.protocol.version");
/// `process.string_cache_size`, in entries.
pub const DATADOG_STRING_CACHE_SIZE: Name = Name("datadog.string_cache_size");
/// `trace.trace_id`.
pub const DATADOG_TRACE_ID: Name = Name("datadog.trace_id");
/// `span.resource`.
pub const DATADOG_RESOURCE: Name = Name("datadog.resource");
/// `span.type`.
pub const DATADOG_TYPE: Name = Name("datadog.type");
/// `string.id`.
pub const DATADOG_STRING_ID: Name = Name("datadog.string.id");
/// `string.characters`.
pub const DATADOG_STRING_TEXT: Name = Name("datadog.string.text");
/// Prefix of the meta of a trace on its spans.
pub const DATADOG_TRACE_META: Name = Name("datadog.trace.meta.");
/// Prefix of a meta whose own key is taken.
pub const DATADOG_META: Name = Name("datadog.meta.");
/// Prefix of a metric whose own key is taken.
pub const DATADOG_METRIC: Name = Name("datadog.metric.");
/// Prefix of a meta whose key never got its text; the key's raw id follows.
pub const DATADOG_NAMELESS_META: Name = Name("datadog.nameless_meta.");
/// Prefix of a metric whose key never got its text; the key's raw id follows.
pub const DATADOG_NAMELESS_METRIC: Name = Name("datadog.nameless_metric.");
/// Entries that a limit cut from the record.
pub const DATADOG_ENTRIES_DROPPED: Name = Name("datadog.entries_dropped");
/// What was odd about the record: an array of warning codes.
pub const DATADOG_WARNINGS: Name = Name("datadog.warnings");
/// Raw id of a name that never got its text.
pub const DATADOG_UNRESOLVED_NAME: Name = Name("datadog.unresolved.name");
/// Raw id of a type that never got its text.
pub const DATADOG_UNRESOLVED_TYPE: Name = Name("datadog.unresolved.type");
/// Raw id of a resource that never got its text.
pub const DATADOG_UNRESOLVED_RESOURCE: Name = Name("datadog.unresolved.resource");
/// Raw id of a service that never got its text.
pub const DATADOG_UNRESOLVED_SERVICE: Name = Name("datadog.unresolved.service");
/// Raw ids in meta that never got their text.
pub const DATADOG_UNRESOLVED_META: Name = Name("datadog.unresolved.meta");
/// Raw ids in metrics that never got their text.
pub const DATADOG_UNRESOLVED_METRICS: Name = Name("datadog.unresolved.metrics");

// Rbkit.
/// A handshake reply.
pub const RBKIT_HANDSHAKE: Name = Name("rbkit.handshake");
/// The process was restarted.
pub const RBKIT_AGENT_RESTARTED: Name = Name("rbkit.agent.restarted");
/// Requests are not answered.
pub const RBKIT_AGENT_UNHEALTHY: Name = Name("rbkit.agent.unhealthy");
/// Requests are answered again.
pub const RBKIT_AGENT_RECOVERED: Name = Name("rbkit.agent.recovered");
/// An object was created.
pub const RBKIT_OBJECT_CREATED: Name = Name("rbkit.object.created");
/// An object was freed.
pub const RBKIT_OBJECT_DESTROYED: Name = Name("rbkit.object.destroyed");
/// A garbage collection begins.
pub const RBKIT_GC_START: Name = Name("rbkit.gc.start");
/// A garbage collection has marked.
pub const RBKIT_GC_END_MARK: Name = Name("rbkit.gc.end_mark");
/// A garbage collection has swept.
pub const RBKIT_GC_END_SWEEP: Name = Name("rbkit.gc.end_sweep");
/// Prefix of a statistic of the garbage collector.
pub const RBKIT_GC: Name = Name("rbkit.gc.");
/// An object of a heap dump.
pub const RBKIT_HEAP_OBJECT: Name = Name("rbkit.heap.object");
/// A heap dump is complete.
pub const RBKIT_HEAP_DUMP: Name = Name("rbkit.heap.dump");
/// A sample of the processor.
pub const RBKIT_CPU: Name = Name("rbkit.cpu");
/// Allocations of a site.
pub const RBKIT_ALLOCATIONS: Name = Name("rbkit.allocations");
/// An object's id.
pub const RBKIT_OBJECT_ID: Name = Name("rbkit.object.id");
/// An object's size in bytes.
pub const RBKIT_OBJECT_SIZE: Name = Name("rbkit.object.size");
/// Ids of the objects that an object refers to.
pub const RBKIT_OBJECT_REFERENCES: Name = Name("rbkit.object.references");
/// An object's class.
pub const RBKIT_CLASS_NAME: Name = Name("rbkit.class.name");
/// A dump's id.
pub const RBKIT_DUMP_ID: Name = Name("rbkit.dump.id");
/// Objects of a dump.
pub const RBKIT_DUMP_OBJECT_COUNT: Name = Name("rbkit.dump.object_count");
/// The version of the gem.
pub const RBKIT_SERVER_VERSION: Name = Name("rbkit.server.version");
/// The version of the protocol, as told.
pub const RBKIT_PROTOCOL_VERSION: Name = Name("rbkit.protocol.version");
/// Whether objects are traced.
pub const RBKIT_MEMORY_PROFILE: Name = Name("rbkit.memory_profile.enabled");
/// Whether the processor is sampled.
pub const RBKIT_CPU_PROFILE: Name = Name("rbkit.cpu_profile.enabled");
/// On which clock the processor is sampled.
pub const RBKIT_CPU_PROFILE_CLOCK: Name = Name("rbkit.cpu_profile.clock");
/// How the processor is profiled.
pub const RBKIT_CPU_PROFILE_MODE: Name = Name("rbkit.cpu_profile.mode");

// Endless.
/// A singular event.
pub const ENDLESS_EVENT: Name = Name("endless.event");
/// An aggregate event.
pub const ENDLESS_AGGREGATE: Name = Name("endless.aggregate");
/// One element of an event sequence.
pub const ENDLESS_SEQUENCE: Name = Name("endless.sequence");
/// The event's id: a UUID, or hex where it is not of 16 bytes.
pub const ENDLESS_EVENT_ID: Name = Name("endless.event.id");
/// What Endless OS calls the event.
pub const ENDLESS_EVENT_NAME: Name = Name("endless.event.name");
/// The unix user id.
pub const ENDLESS_USER_ID: Name = Name("endless.user.id");
/// The payload of an aggregate.
pub const ENDLESS_PAYLOAD: Name = Name("endless.payload");
/// Raw bytes of a payload that cannot be read.
pub const ENDLESS_PAYLOAD_BASE64: Name = Name("endless.payload_base64");
/// The payload's innermost type.
pub const ENDLESS_PAYLOAD_TYPE: Name = Name("endless.payload.type");
/// The types that the registry has for the payload, where it is of another.
pub const ENDLESS_PAYLOAD_EXPECTED: Name = Name("endless.payload.expected");
/// The named fields of the payload.
pub const ENDLESS_FIELDS: Name = Name("endless.fields");
/// The day or month of an aggregate, as text.
pub const ENDLESS_PERIOD: Name = Name("endless.period");
/// Which element of its sequence it is, from 0.
pub const ENDLESS_SEQUENCE_INDEX: Name = Name("endless.sequence.index");
/// How many elements its sequence has.
pub const ENDLESS_SEQUENCE_LENGTH: Name = Name("endless.sequence.length");
/// The version of the protocol.
pub const ENDLESS_PROTOCOL_VERSION: Name = Name("endless.protocol.version");
/// How often the agent had sent a bundle before.
pub const ENDLESS_SEND_NUMBER: Name = Name("endless.send_number");
/// The machine, in hex.
pub const ENDLESS_MACHINE_ID: Name = Name("endless.machine.id");
/// The image id.
pub const ENDLESS_IMAGE: Name = Name("endless.image");
/// Part of the image id: the product.
pub const ENDLESS_IMAGE_PRODUCT: Name = Name("endless.image.product");
/// Part of the image id: the branch.
pub const ENDLESS_IMAGE_BRANCH: Name = Name("endless.image.branch");
/// Part of the image id: the architecture.
pub const ENDLESS_IMAGE_ARCHITECTURE: Name = Name("endless.image.architecture");
/// Part of the image id: the platform.
pub const ENDLESS_IMAGE_PLATFORM: Name = Name("endless.image.platform");
/// Part of the image id: when it was built.
pub const ENDLESS_IMAGE_BUILT: Name = Name("endless.image.built");
/// Part of the image id: the personality.
pub const ENDLESS_IMAGE_PERSONALITY: Name = Name("endless.image.personality");
/// Prefix of the site's values.
pub const ENDLESS_SITE: Name = Name("endless.site.");
/// Whether another system is installed beside.
pub const ENDLESS_DUALBOOT: Name = Name("endless.dualboot");
/// Whether it runs from a removable disk.
pub const ENDLESS_LIVE: Name = Name("endless.live");

// ZICO.
/// A host's id.
pub const HOST_ID: Name = Name("host.id");
/// A host's name.
pub const HOST_NAME: Name = Name("host.name");
/// Where a service runs, e.g. production.
pub const DEPLOYMENT_ENVIRONMENT_NAME: Name = Name("deployment.environment.name");
/// An exception's message.
pub const EXCEPTION_MESSAGE: Name = Name("exception.message");
/// An exception's stack, as its language prints it.
pub const EXCEPTION_STACKTRACE: Name = Name("exception.stacktrace");
/// An agent has registered that was not known.
pub const ZICO_AGENT_REGISTERED: Name = Name("zico.agent.registered");
/// An agent has registered that was known.
pub const ZICO_AGENT_SEEN: Name = Name("zico.agent.seen");
/// A session is new.
pub const ZICO_SESSION_OPENED: Name = Name("zico.session.opened");
/// A session begins anew.
pub const ZICO_SESSION_RESET: Name = Name("zico.session.reset");
/// A session's id.
pub const ZICO_SESSION_ID: Name = Name("zico.session.id");
/// Prefix of what an agent says of itself.
pub const ZICO_AGENT: Name = Name("zico.agent.");
/// A record whose method was not told.
pub const ZICO_RECORD: Name = Name("zico.record");
/// The signature of a method.
pub const ZICO_METHOD_SIGNATURE: Name = Name("zico.method.signature");
/// Calls of methods in a record, itself included.
pub const ZICO_CALLS: Name = Name("zico.calls");
/// The flags of a record, or of its trace.
pub const ZICO_FLAGS: Name = Name("zico.flags");
/// The type of a trace.
pub const ZICO_TRACE_TYPE: Name = Name("zico.trace.type");
/// The span that a begin names as its parent.
pub const ZICO_PARENT_SPAN_ID: Name = Name("zico.parent_span_id");
/// Prefix of an attribute whose own key is one of ours.
pub const ZICO_ATTRIBUTE: Name = Name("zico.attribute.");
/// A record ends before it starts.
pub const ZICO_TIME_BACKWARD: Name = Name("zico.time.backward");
/// An exception.
pub const ZICO_EXCEPTION: Name = Name("zico.exception");
/// An exception's id.
pub const ZICO_EXCEPTION_ID: Name = Name("zico.exception.id");
/// The id of an exception's cause.
pub const ZICO_EXCEPTION_CAUSE: Name = Name("zico.exception.cause");
/// Whether an exception was told before.
pub const ZICO_EXCEPTION_REF: Name = Name("zico.exception.ref");
/// A string definition.
pub const ZICO_STRING: Name = Name("zico.string");
/// A string's id.
pub const ZICO_STRING_ID: Name = Name("zico.string.id");
/// A string's text.
pub const ZICO_STRING_TEXT: Name = Name("zico.string.text");
/// A string's type.
pub const ZICO_STRING_TYPE: Name = Name("zico.string.type");
/// A method definition.
pub const ZICO_METHOD: Name = Name("zico.method");
/// A method's id.
pub const ZICO_METHOD_ID: Name = Name("zico.method.id");
/// Raw id of a method that was not defined.
pub const ZICO_UNRESOLVED_METHOD: Name = Name("zico.unresolved.method");
/// Raw ids of strings that were not defined.
pub const ZICO_UNRESOLVED_SYMBOLS: Name = Name("zico.unresolved.symbols");

#[cfg(test)]
mod tests {
    /// The names as the source spells them, so that none can be forgotten in a hand-kept list.
    fn names() -> Vec<&'static str> {
        include_str!("semconv.rs")
            .lines()
            .filter_map(|line| line.split("= Name(\"").nth(1)?.split('"').next())
            .collect()
    }

    #[test]
    fn every_name_is_plain_ascii_so_that_encoders_need_not_escape_it() {
        assert!(names().len() > 25);
        for name in names() {
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._".contains(&b)), "{name}");
        }
    }

    #[test]
    fn the_event_model_page_lists_every_name() {
        let page = include_str!("../../docs/event-model.md");
        for name in names() {
            assert!(page.contains(&format!("`{name}")), "docs/event-model.md does not list `{name}`");
        }
    }
}
