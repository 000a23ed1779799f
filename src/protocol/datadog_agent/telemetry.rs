//! Messages of tracers about themselves, `/telemetry/proxy/…`, as logs where the listener wants them.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use tributary_codec::http::RequestHead;
use tributary_codec::text::cut;
use tributary_event::{Header, Position, Severity, UnixNanos, semconv};
use tributary_protocol::{Now, Output};

use super::process::{self, ProcessDescription};

/// A message, as far as it is read.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Telemetry<'a> {
    #[serde(borrow)]
    request_type: Cow<'a, str>,
    tracer_time: Option<u64>,
    runtime_id: Option<String>,
    application: Application,
    host: Host,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Application {
    service_name: Option<String>,
    service_version: Option<String>,
    env: Option<String>,
    language_name: Option<String>,
    language_version: Option<String>,
    tracer_version: Option<String>,
    runtime_name: Option<String>,
    process_tags: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Host {
    hostname: Option<String>,
}

/// A message of several that are sent together.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Message<'a> {
    #[serde(borrow)]
    request_type: Cow<'a, str>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

impl<'a> Telemetry<'a> {
    /// `None`: the body is no such message.
    pub(super) fn read(body: &'a [u8]) -> Option<Telemetry<'a>> {
        serde_json::from_slice(body).ok()
    }

    /// Writes a log for each message. The body is its content as it came, at most `limit` bytes of it.
    pub(super) fn write(self, head: &RequestHead, limit: usize, position: Position, now: Now, out: &mut Output) {
        let payload = self.payload.map_or("", RawValue::get);
        let time = self.tracer_time.map(|seconds| UnixNanos(seconds.saturating_mul(1_000_000_000)));
        let header = Header { name: semconv::DATADOG_TELEMETRY.into(), time, observed: now.unix, position };
        out.batch.set_resource(self.process(head).resource().into());
        let mut log = |kind: &str, payload: &str| {
            let shown = cut(payload, limit);
            let body = (!shown.is_empty()).then(|| out.batch.push_text(shown).into());
            let mut event = out.batch.event(header);
            event.text(semconv::DATADOG_TELEMETRY_TYPE, kind);
            if shown.len() < payload.len() {
                event.attribute(semconv::TEXT_TRUNCATED, true);
            }
            event.log(Severity::Info, body);
        };
        let several: Option<Vec<Message<'_>>> =
            if self.request_type == "message-batch" { serde_json::from_str(payload).ok() } else { None };
        match several {
            Some(messages) => {
                for message in messages {
                    log(&message.request_type, message.payload.map_or("", RawValue::get));
                }
            }
            None => log(&self.request_type, payload),
        }
    }

    fn process(&self, head: &RequestHead) -> ProcessDescription {
        let text = |text: &Option<String>| text.as_deref().map(process::cut).map(str::to_owned);
        let Telemetry { application, host, runtime_id, .. } = self;
        ProcessDescription {
            environment: text(&application.env),
            version: text(&application.service_version),
            runtime_id: text(runtime_id),
            language: text(&application.language_name),
            tracer_version: text(&application.tracer_version),
            interpreter: text(&application.runtime_name),
            language_version: text(&application.language_version),
            container_id: head.header("datadog-container-id").map(process::cut).map(str::to_owned),
            hostname: text(&host.hostname),
            tags: text(&application.process_tags),
            service: text(&application.service_name),
            pid: None,
        }
    }
}
