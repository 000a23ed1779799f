//! What is said of the process that sends: by its spans, headers and payloads, or by tags.

use tributary_codec::http::RequestHead;
use tributary_event::{Name, Resource, ResourceValue, semconv, whole_number};

use super::upload::Upload;

/// The longest text of a resource.
pub(super) const MAX_TEXT_BYTES: usize = 1024;

/// A process.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessDescription {
    pub(super) environment: Option<String>,
    pub(super) version: Option<String>,
    pub(super) runtime_id: Option<String>,
    pub(super) language: Option<String>,
    pub(super) tracer_version: Option<String>,
    pub(super) interpreter: Option<String>,
    pub(super) language_version: Option<String>,
    pub(super) container_id: Option<String>,
    pub(super) hostname: Option<String>,
    pub(super) tags: Option<String>,
    pub(super) service: Option<String>,
    pub(super) pid: Option<ResourceValue>,
}

impl ProcessDescription {
    /// Its resource.
    pub(super) fn resource(self) -> Resource {
        let texts = [
            (semconv::DEPLOYMENT_ENVIRONMENT_NAME, self.environment),
            (semconv::SERVICE_VERSION, self.version),
            (semconv::SERVICE_INSTANCE_ID, self.runtime_id),
            (semconv::TELEMETRY_SDK_NAME, Some("datadog".to_owned())),
            (semconv::TELEMETRY_SDK_LANGUAGE, self.language),
            (semconv::TELEMETRY_SDK_VERSION, self.tracer_version),
            (semconv::PROCESS_RUNTIME_NAME, self.interpreter),
            (semconv::PROCESS_RUNTIME_VERSION, self.language_version),
            (semconv::CONTAINER_ID, self.container_id),
            (semconv::HOST_NAME, self.hostname),
            (semconv::DATADOG_PROCESS_TAGS, self.tags),
            // That of the process, by which it is known; a span of another service has that one.
            (semconv::SERVICE_NAME, self.service),
        ];
        let text = |(name, text): (Name, Option<String>)| Some((name.as_str().to_owned(), ResourceValue::Text(text?)));
        let pid = self.pid.map(|pid| (semconv::PROCESS_PID.as_str().to_owned(), pid));
        Resource::new(texts.into_iter().filter_map(text).chain(pid))
    }

    /// That of an upload of its profiler.
    pub(super) fn of_upload(upload: &Upload, head: &RequestHead) -> ProcessDescription {
        let header = |name| head.header(name).filter(|text| !text.is_empty()).map(|text| cut(text).to_owned());
        let mut process = ProcessDescription {
            tracer_version: header("dd-evp-origin-version"),
            container_id: header("datadog-container-id"),
            tags: Some(cut(&upload.process_tags).to_owned()).filter(|tags| !tags.is_empty()),
            ..ProcessDescription::default()
        };
        for (key, value) in upload.tags.iter().filter(|(_, value)| !value.is_empty()) {
            if let Some(of) = process.tagged(key) {
                *of = Some(cut(value).to_owned());
            } else if is_pid(key) {
                let text = || ResourceValue::Text(cut(value).to_owned());
                process.pid = Some(whole_number(value).map_or_else(text, ResourceValue::I64));
            }
        }
        // The profiler of Go has no such tag.
        if process.language.is_none() && !upload.family.is_empty() {
            let language = if upload.family == "node" { "javascript" } else { cut(&upload.family) };
            process.language = Some(language.to_owned());
        }
        process
    }

    /// What a tag of a profile says.
    fn tagged(&mut self, key: &str) -> Option<&mut Option<String>> {
        Some(match key {
            "env" => &mut self.environment,
            "version" => &mut self.version,
            "service" => &mut self.service,
            "runtime-id" | "runtime_id" => &mut self.runtime_id,
            "language" => &mut self.language,
            "runtime" => &mut self.interpreter,
            "runtime_version" => &mut self.language_version,
            "host" | "hostname" => &mut self.hostname,
            _ => return None,
        })
    }

    /// Whether a tag of a profile is a part of the resource.
    pub(super) fn has_tag(key: &str) -> bool {
        is_pid(key) || ProcessDescription::default().tagged(key).is_some()
    }
}

fn is_pid(key: &str) -> bool {
    matches!(key, "process_id" | "pid")
}

pub(super) fn cut(text: &str) -> &str {
    tributary_codec::text::cut(text, MAX_TEXT_BYTES)
}
