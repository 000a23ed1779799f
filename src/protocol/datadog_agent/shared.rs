//! What the requests of a listener share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::json;

use tributary_event::RecentResources;
use tributary_memory::MemoryBudget;
use tributary_protocol::Response;

use super::dogstatsd::DogStatsD;
use super::keys::Keys;
use super::options::{DogStatsDOptions, Options, ProfileMode};
use super::profile::ProfileFiles;
use super::route::Route;
use super::seen_once::SeenOnce;
use super::trace_ids::TraceIds;
use tributary_protocol::repeats::Repeats;

/// The most lists of keys that are kept for the next bodies.
const MAX_IDLE_KEYS: usize = 2;

/// The state of a listener.
#[derive(Debug)]
pub(super) struct SharedExchange {
    pub(super) options: Options,
    pub(super) repeats: Arc<Repeats>,
    pub(super) trace_ids: TraceIds,
    pub(super) resources: Arc<RecentResources>,
    /// The memory of the listener.
    pub(super) memory: Arc<MemoryBudget>,
    pub(super) dogstatsd: Arc<DogStatsD>,
    /// Clients and endpoints that the log has named, and keys of spans.
    pub(super) ignored: SeenOnce,
    pub(super) unknown_keys: SeenOnce,
    /// Where files of uploads are kept. `None`: they are not.
    pub(super) profile_files: Option<Arc<dyn ProfileFiles>>,
    /// Keys of bodies of traces that were read, for the next ones.
    idle_keys: Mutex<Vec<Keys>>,
    /// The answer to a body of traces.
    rates: String,
    /// The answer to `/info`.
    info: String,
}

impl SharedExchange {
    pub(super) fn new(
        options: Options,
        memory: &Arc<MemoryBudget>,
        profile_files: Option<Arc<dyn ProfileFiles>>,
    ) -> SharedExchange {
        SharedExchange {
            memory: memory.clone(),
            ignored: SeenOnce::default(),
            unknown_keys: SeenOnce::default(),
            dogstatsd: {
                let DogStatsDOptions { flush_interval, max_series, .. } = options.dogstatsd;
                Arc::new(DogStatsD::new(flush_interval, max_series, memory))
            },
            profile_files,
            repeats: Arc::new(Repeats::new(options.repeat_time, options.max_repeats)),
            trace_ids: TraceIds::new(options.max_trace_ids),
            resources: Arc::default(),
            idle_keys: Mutex::default(),
            rates: options.sample_rates.response(),
            info: info(&options),
            options,
        }
    }

    /// The longest text.
    pub(super) fn max_text_bytes(&self) -> usize {
        usize::try_from(self.options.max_text_bytes).unwrap_or(usize::MAX)
    }

    /// Keys for a body of traces, with those of a former one.
    pub(super) fn keys(&self) -> Keys {
        self.idle_keys().pop().unwrap_or_else(|| Keys::new(self.options.semantics))
    }

    /// Keeps the keys of a body that was read.
    pub(super) fn keep_keys(&self, keys: Keys) {
        let mut idle = self.idle_keys();
        if idle.len() < MAX_IDLE_KEYS {
            idle.push(keys);
        }
    }

    fn idle_keys(&self) -> MutexGuard<'_, Vec<Keys>> {
        self.idle_keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a request whose content is delivered.
    pub(super) fn answer(&self, route: Route) -> Response {
        match route {
            Route::Info => json(200, self.info.clone()),
            Route::Traces { is_text: true, .. } => plain(200, "OK"),
            Route::Traces { is_text: false, .. } => json(200, self.rates.clone()),
            Route::Telemetry => json(202, "{}".to_owned()),
            Route::Stats | Route::Profile | Route::DogStatsD => json(200, "{}".to_owned()),
            Route::Ignored(endpoint) => match endpoint.answer() {
                (status, body @ "OK") => plain(status, body),
                (status, body) => json(status, body.to_owned()),
            },
        }
    }
}

/// What exists here (notes, section 2, point 2). Tracers ignore the whole document if they cannot read a part of it.
fn info(options: &Options) -> String {
    let mut endpoints = vec![
        "/v0.3/traces",
        "/v0.4/traces",
        "/v0.5/traces",
        "/v0.7/traces",
        "/v1.0/traces",
        "/v0.6/stats",
        "/dogstatsd/v2/proxy",
    ];
    if options.profiles != ProfileMode::Off {
        endpoints.push("/profiling/v1/input");
    }
    let mut config = json!({ "max_request_bytes": options.max_body_bytes });
    if let Some(address) = options.dogstatsd.listen {
        config["statsd_port"] = address.port().into();
    }
    json!({
        "version": "7.70.0",
        "endpoints": endpoints,
        "feature_flags": [],
        "client_drop_p0s": false,
        "span_events": true,
        "span_meta_structs": true,
        "long_running_spans": true,
        "config": config,
        "peer_tags": [],
    })
    .to_string()
}

fn json(status: u16, body: String) -> Response {
    let headers = vec![("content-type", "application/json".to_owned())];
    Response { headers, body: body.into_bytes().into(), ..Response::empty(status) }
}

fn plain(status: u16, body: &'static str) -> Response {
    let headers = vec![("content-type", "text/plain; charset=utf-8".to_owned())];
    Response { headers, body: body.as_bytes().into(), ..Response::empty(status) }
}
