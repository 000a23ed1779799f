//! Tags of Datadog's tracers that have a meaning of their own, in the binary spans and in bodies over HTTP.

use tributary_event::{Name, semconv};

/// A tag that is a part of its span, or an attribute with another name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum SpanTag {
    Kind,
    ErrorMessage,
    ErrorType,
    ErrorStack,
}

impl SpanTag {
    /// The tag with this key. `None`: it is an attribute with its own key.
    pub fn of(key: &str) -> Option<SpanTag> {
        Some(match key {
            "span.kind" => SpanTag::Kind,
            "error.message" | "error.msg" => SpanTag::ErrorMessage,
            "error.type" => SpanTag::ErrorType,
            "error.stack" => SpanTag::ErrorStack,
            _ => return None,
        })
    }
}

/// The name of a fact of the process by semantic conventions. `None`: the tag is none of the resource.
pub fn resource_name(key: &str) -> Option<Name> {
    Some(match key {
        "env" => semconv::DEPLOYMENT_ENVIRONMENT_NAME,
        "version" => semconv::SERVICE_VERSION,
        "runtime-id" => semconv::SERVICE_INSTANCE_ID,
        "process_id" => semconv::PROCESS_PID,
        "language" => semconv::TELEMETRY_SDK_LANGUAGE,
        "_dd.hostname" => semconv::HOST_NAME,
        _ => return None,
    })
}

/// Whether a key would collide with names that this program writes: then the tag gets a prefix.
pub fn is_reserved(key: &str) -> bool {
    const NAMES: [Name; 4] =
        [semconv::SERVICE_NAME, semconv::EXCEPTION_TYPE, semconv::EXCEPTION_MESSAGE, semconv::EXCEPTION_STACKTRACE];
    key.starts_with("datadog.") || key.starts_with("tributary.") || NAMES.iter().any(|name| name.as_str() == key)
}
