//! Every name that the product writes into events, in one place.
//!
//! Names follow OpenTelemetry semantic conventions where those exist, else `<protocol>.<noun>[.<quality>]`.
//! `docs/event-model.md` lists each of them for users; a test fails when one is missing there.

/// A name of the contract. Plain ASCII without characters that JSON escapes, which a test asserts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name(pub(super) &'static str);

impl Name {
    /// The name itself.
    pub fn as_str(self) -> &'static str {
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
