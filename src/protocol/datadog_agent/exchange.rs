//! Decides about request heads: which requests are read, and the answers to all others.

use std::sync::Arc;
use std::time::Duration;

use tributary_event::Reason;
use tributary_memory::MemoryBudget;
use tributary_protocol::{Exchange, Flow, HeadDecision, Now, Output, Request, RequestHead, Response};

use super::dogstatsd::DogStatsD;
use super::options::Options;
use super::profile::ProfileFiles;
use super::route::Route;
use super::shared::SharedExchange;
use super::work::DatadogAgentWork;

/// The protocol of one `datadog_agent` listener.
#[derive(Debug)]
pub struct DatadogAgentExchange {
    shared: Arc<SharedExchange>,
}

impl DatadogAgentExchange {
    /// A listener without history.
    pub fn new(options: Options, memory: &Arc<MemoryBudget>) -> Self {
        DatadogAgentExchange::keeping(options, memory, None)
    }

    /// The same that keeps the files of profilers, if there is a place for them.
    pub fn keeping(options: Options, memory: &Arc<MemoryBudget>, files: Option<Arc<dyn ProfileFiles>>) -> Self {
        DatadogAgentExchange { shared: Arc::new(SharedExchange::new(options, memory, files)) }
    }

    /// The reader of datagrams of DogStatsD.
    pub fn dogstatsd(&self) -> Arc<DogStatsD> {
        self.shared.dogstatsd.clone()
    }
}

impl Exchange for DatadogAgentExchange {
    type Work = DatadogAgentWork;

    fn admit(&self, head: &RequestHead, _now: Now) -> HeadDecision {
        let answer = |response| HeadDecision::Answer(response, Reason::Unsupported);
        // A page that a browser shows must not send here (notes, section 4, rule 5).
        if head.header("sec-fetch-site").is_some_and(|site| site == "cross-site") {
            return answer(Response::text(403, "requests from other sites are refused"));
        }
        let Some(route) = Route::read(head.path()) else {
            return answer(Response::text(404, "tributary has no such endpoint of a Datadog agent"));
        };
        match (route, head.method.as_str()) {
            (Route::Info, "GET" | "HEAD") => {}
            (Route::Info, method) => return answer(Response::not_allowed(method, "GET, HEAD")),
            (Route::Traces { .. } | Route::Stats | Route::Profile | Route::DogStatsD, "POST" | "PUT")
            | (Route::Ignored(_) | Route::Telemetry, _) => {}
            (Route::Traces { .. } | Route::Stats | Route::Profile | Route::DogStatsD, method) => {
                return answer(Response::not_allowed(method, "POST, PUT"));
            }
        }
        HeadDecision::Take { max_body_bytes: self.shared.options.max_body_bytes, key: "max_body_bytes" }
    }

    fn work(&self, request: Request, memory: Option<&Arc<MemoryBudget>>, _now: Now) -> DatadogAgentWork {
        // Only admitted requests get here, and they have a route.
        let route = Route::read(request.head.path()).unwrap_or(Route::Info);
        DatadogAgentWork::new(request, route, self.shared.clone(), memory)
    }

    fn ignored_as(&self, head: &RequestHead) -> Option<&'static str> {
        Some(Route::read(head.path()).map_or("other", Route::endpoint))
    }

    fn overloaded(&self, head: &RequestHead, why: &'static str) -> Response {
        match Route::read(head.path()) {
            // Tracers wait and send the body again (notes, section 2, point 5).
            Some(route @ (Route::Traces { .. } | Route::Stats)) => {
                Response { status: 429, ..self.shared.answer(route) }
            }
            _ => Response::unavailable(why),
        }
    }

    fn tick(&self, now: Now, out: &mut Output) -> Flow {
        self.shared.dogstatsd.tick(now, out)
    }

    fn finish(&self, now: Now, out: &mut Output) -> Flow {
        self.shared.dogstatsd.finish(now, out)
    }

    fn early_answer(&self, head: &RequestHead) -> Option<(Duration, Response)> {
        let route = Route::read(head.path())?;
        let within = self.shared.options.answer_within;
        (matches!(route, Route::Traces { .. } | Route::Stats) && !within.is_zero())
            .then(|| (within, self.shared.answer(route)))
    }
}
