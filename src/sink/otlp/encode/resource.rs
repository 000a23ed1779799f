//! Resources and scopes: the agent that sent the events, and its protocol.

use super::scopes::OTLP;
use super::value::{push_resource_attribute, push_text_attribute};
use tributary_codec::protobuf::push_bytes_field;
use tributary_event::{Origin, Resource, ResourceValue, semconv};

// Fields of Resource and InstrumentationScope.
const RESOURCE_ATTRIBUTES: u8 = 1;
pub(super) const SCOPE_NAME: u8 = 1;
pub(super) const SCOPE_VERSION: u8 = 2;
pub(super) const SCOPE_ATTRIBUTES: u8 = 3;

/// The version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Encodes a Resource message.
pub(super) fn encode_resource(resource: &Resource, protocol: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut service = None;
    let (mut program, mut language, mut distro) = (None, language_of(protocol), distro_of(protocol));
    for (key, value) in resource.attributes() {
        match key.as_str() {
            "" => continue,
            key if key == semconv::SERVICE_NAME.as_str() => {
                match value {
                    ResourceValue::Text(text) if !text.is_empty() => service = Some(text),
                    _ => {}
                }
                continue;
            }
            key if key == semconv::PROCESS_EXECUTABLE_NAME.as_str() => {
                program = if let ResourceValue::Text(text) = value { Some(text.as_str()) } else { None };
            }
            key if key == semconv::TELEMETRY_SDK_LANGUAGE.as_str() => language = None,
            key if key == semconv::TELEMETRY_DISTRO_NAME.as_str() => distro = None,
            _ => {}
        }
        push_resource_attribute(&mut out, RESOURCE_ATTRIBUTES, key, value);
    }
    let mut add =
        |name: semconv::Name, text: &str| push_text_attribute(&mut out, RESOURCE_ATTRIBUTES, name.as_str(), text);
    match service {
        Some(service) => add(semconv::SERVICE_NAME, service),
        // What an SDK or a Collector has left out stays so.
        None if protocol == OTLP => {}
        None => {
            let program = program.filter(|program| !program.is_empty()).unwrap_or(protocol);
            add(semconv::SERVICE_NAME, &format!("unknown_service:{program}"));
        }
    }
    language.into_iter().for_each(|language| add(semconv::TELEMETRY_SDK_LANGUAGE, language));
    distro.into_iter().for_each(|distro| add(semconv::TELEMETRY_DISTRO_NAME, distro));
    out
}

/// Encodes an InstrumentationScope message.
pub(super) fn encode_scope(origin: &Origin) -> Vec<u8> {
    let mut out = Vec::new();
    push_bytes_field(&mut out, SCOPE_NAME, format!("tributary.{}", origin.protocol).as_bytes());
    push_bytes_field(&mut out, SCOPE_VERSION, VERSION.as_bytes());
    if let Some(version) = &origin.version {
        push_text_attribute(&mut out, SCOPE_ATTRIBUTES, semconv::ORIGIN_VERSION.as_str(), &**version);
    }
    out
}

/// The language of the programs that agents of a protocol observe, if there is only one.
fn language_of(protocol: &str) -> Option<&'static str> {
    match protocol {
        "rbkit" => Some("ruby"),
        "zico" => Some("java"),
        _ => None,
    }
}

/// The agent that speaks a protocol, if there is only one.
fn distro_of(protocol: &str) -> Option<&'static str> {
    match protocol {
        "rbkit" => Some("rbkit"),
        "zico" => Some("zorka"),
        "bytefrog" => Some("bytefrog"),
        "endless" => Some("eos-event-recorder"),
        _ => None,
    }
}
