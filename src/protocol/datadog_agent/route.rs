//! What a request is for, by its path (contract, table "Requests").

use super::body::Layout;

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Route {
    /// What exists here.
    Info,
    /// Traces, and whether the answer is the text `OK`.
    Traces { layout: Layout, is_text: bool },
    /// Client statistics.
    Stats,
    /// An upload of a profiler.
    Profile,
    /// Lines of DogStatsD.
    DogStatsD,
    /// Messages of tracers about themselves.
    Telemetry,
    /// Something that is answered so that clients are quiet, and not kept.
    Ignored(IgnoredEndpoint),
}

/// Requests that are answered and not kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum IgnoredEndpoint {
    Services,
    RemoteConfig,
    Pipelines,
    Events,
    Debugger,
    Symbols,
    AppSecurity,
    Flare,
    Lineage,
    Intake,
}

/// Paths that begin so, and what they are for.
const PREFIXES: [(&str, IgnoredEndpoint); 9] = [
    ("/v0.7/config", IgnoredEndpoint::RemoteConfig),
    ("/v0.1/pipeline_stats", IgnoredEndpoint::Pipelines),
    ("/evp_proxy/", IgnoredEndpoint::Events),
    ("/debugger/", IgnoredEndpoint::Debugger),
    ("/symdb/", IgnoredEndpoint::Symbols),
    ("/appsec/", IgnoredEndpoint::AppSecurity),
    ("/tracer_flare/", IgnoredEndpoint::Flare),
    ("/openlineage/", IgnoredEndpoint::Lineage),
    ("/intake", IgnoredEndpoint::Intake),
];

impl Route {
    /// `None`: there is no such path.
    pub(super) fn read(path: &str) -> Option<Route> {
        let traces = |layout, is_text| Some(Route::Traces { layout, is_text });
        match path.trim_end_matches('/') {
            "/info" => return Some(Route::Info),
            "/spans" | "/v0.1/spans" => return traces(Layout::Spans, true),
            "/v0.1/traces" | "/v0.2/traces" | "/v0.3/traces" => return traces(Layout::Chunks, true),
            "/v0.4/traces" => return traces(Layout::Chunks, false),
            "/v0.5/traces" => return traces(Layout::Table, false),
            "/v0.7/traces" => return traces(Layout::WithPayload, false),
            "/v1.0/traces" => return traces(Layout::Streaming, false),
            "/services" | "/v0.1/services" | "/v0.2/services" | "/v0.3/services" | "/v0.4/services" => {
                return Some(Route::Ignored(IgnoredEndpoint::Services));
            }
            "/v0.6/stats" => return Some(Route::Stats),
            "/dogstatsd/v1/proxy" | "/dogstatsd/v2/proxy" => return Some(Route::DogStatsD),
            "/profiling/v1/input" => return Some(Route::Profile),
            path if path.starts_with("/telemetry/proxy/") => return Some(Route::Telemetry),
            _ => {}
        }
        let found = PREFIXES.iter().find(|(prefix, _)| path.starts_with(prefix));
        found.map(|(_, endpoint)| Route::Ignored(*endpoint))
    }
}

impl Route {
    /// Its name in metrics.
    pub(super) fn endpoint(self) -> &'static str {
        match self {
            Route::Info => "info",
            Route::Traces { .. } => "traces",
            Route::Stats => "stats",
            Route::Profile => "profiles",
            Route::DogStatsD => "dogstatsd",
            Route::Telemetry => "telemetry",
            Route::Ignored(endpoint) => endpoint.as_str(),
        }
    }
}

impl IgnoredEndpoint {
    /// Its name in logs and metrics.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            IgnoredEndpoint::Services => "services",
            IgnoredEndpoint::RemoteConfig => "config",
            IgnoredEndpoint::Pipelines => "pipeline_stats",
            IgnoredEndpoint::Events => "evp_proxy",
            IgnoredEndpoint::Debugger => "debugger",
            IgnoredEndpoint::Symbols => "symdb",
            IgnoredEndpoint::AppSecurity => "appsec",
            IgnoredEndpoint::Flare => "tracer_flare",
            IgnoredEndpoint::Lineage => "openlineage",
            IgnoredEndpoint::Intake => "intake",
        }
    }

    /// Why it is not kept, for the log.
    pub(super) fn why(self) -> &'static str {
        match self {
            IgnoredEndpoint::RemoteConfig => "there is no remote configuration here",
            IgnoredEndpoint::Services => "spans name their services",
            _ => "nothing reads them here",
        }
    }

    /// The status and the body of the answer.
    pub(super) fn answer(self) -> (u16, &'static str) {
        match self {
            IgnoredEndpoint::Services => (200, "OK"),
            IgnoredEndpoint::Debugger | IgnoredEndpoint::Symbols | IgnoredEndpoint::Events => (202, "{}"),
            _ => (200, "{}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_its_layout_and_its_form_of_answer() {
        for (path, layout, is_text) in [
            ("/spans", Layout::Spans, true),
            ("/v0.1/spans", Layout::Spans, true),
            ("/v0.2/traces", Layout::Chunks, true),
            ("/v0.3/traces", Layout::Chunks, true),
            ("/v0.4/traces/", Layout::Chunks, false),
            ("/v0.5/traces", Layout::Table, false),
            ("/v0.7/traces", Layout::WithPayload, false),
            ("/v1.0/traces", Layout::Streaming, false),
        ] {
            assert_eq!(Route::read(path), Some(Route::Traces { layout, is_text }), "{path}");
        }
        for path in ["", "/", "/v0.6/traces", "/v0.9/traces", "/telemetry", "info"] {
            assert_eq!(Route::read(path), None, "{path}");
        }
        assert_eq!(Route::read("/telemetry/proxy/api/v2/apmtelemetry"), Some(Route::Telemetry));
    }
}
