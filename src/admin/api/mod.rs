//! `/api/v1`: what the page shows, as JSON, for the page and for other programs. docs/api.md describes it, and so does the
//! OpenAPI file, which a test compares with the routes.

mod agents;
mod answer;
mod chart;
mod code;
mod context;
mod coverage;
mod events;
mod heap;
mod history;
mod live;
mod losses;
mod machines;
mod overview;
mod profiles;
mod query;
mod services;
mod sse;
mod timelines;
mod traces;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use percent_encoding::percent_decode_str;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::AdminConnection;
use super::response::{AdminResponse, method_not_allowed, response};
use tributary_pipeline::accounting::Accounting;
use tributary_system::blocking::Job;

use answer::{ApiError, Made};
use context::ApiContext;
pub(super) use context::SharedApi;
use query::Query;

/// The OpenAPI file.
const OPENAPI: &str = include_str!("openapi.json");

/// Remembers the counters periodically, without end.
pub(super) async fn sample_counters(shared: Arc<SharedApi>, accounting: Accounting) {
    let step = Duration::from_millis(history::STEP_MS);
    let mut ticks = interval_at(Instant::now() + step, step);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.history.add(&accounting.totals());
    }
}

/// A path under `/api/v1/` and what responds to it. A part in braces stands for any text, which is an argument.
struct Route {
    method: &'static str,
    path: &'static str,
    handler: Handler,
}

/// What responds to a request.
#[derive(Clone, Copy)]
enum Handler {
    /// Makes an answer of the context and the arguments in the path.
    Make(fn(&ApiContext, &[String]) -> Result<Made, ApiError>),
    /// Opens a stream.
    Open(fn(ApiContext) -> Result<AdminResponse, ApiError>),
    /// Sends a command to an agent.
    Command,
    OpenApi,
}

/// Every route. Of several that fit a path, the first one responds.
const ROUTES: &[Route] = &[
    get("openapi.json", Handler::OpenApi),
    get("overview", Handler::Make(|context, _| overview::make(context))),
    get("agents", Handler::Make(|context, _| agents::list(context))),
    get("agents/{id}", Handler::Make(|context, path| agents::one(context, &path[0]))),
    post("agents/{id}/commands/{command}", Handler::Command),
    get("events", Handler::Make(|context, _| events::list(context))),
    get("events/live", Handler::Open(live::open)),
    get("events/{id}", Handler::Make(|context, path| events::one(context, &path[0]))),
    get("wire", Handler::Open(wire::open)),
    get("services", Handler::Make(|context, _| services::list(context))),
    get("services/{name}", Handler::Make(|context, path| services::one(context, &path[0]))),
    get("map", Handler::Make(|context, _| services::map(context))),
    get("traces", Handler::Make(|context, _| traces::list(context))),
    get("traces/{id}", Handler::Make(|context, path| traces::one::get(context, &path[0]))),
    get("profiles", Handler::Make(|context, _| profiles::list(context))),
    get("profiles/flame", Handler::Make(|context, _| profiles::flame(context))),
    get("profiles/chart", Handler::Make(|context, _| chart::make(context))),
    get("profiles/download", Handler::Make(|context, _| profiles::download(context))),
    get("heap", Handler::Make(|context, _| heap::list(context))),
    get("heap/compare", Handler::Make(|context, _| heap::compare(context))),
    get("heap/{id}", Handler::Make(|context, path| heap::one(context, &path[0]))),
    get("heap/{id}/references", Handler::Make(|context, path| heap::references(context, &path[0]))),
    get("code", Handler::Make(|context, _| code::list(context))),
    get("code/{id}", Handler::Make(|context, path| code::one(context, &path[0]))),
    post("code/{id}/marks", Handler::Make(|context, path| code::mark(context, &path[0]))),
    get("machines", Handler::Make(|context, _| machines::list(context))),
    get("machines/{id}", Handler::Make(|context, path| machines::one(context, &path[0]))),
    get("losses", Handler::Make(|context, _| losses::make(context))),
];

const fn get(path: &'static str, handler: Handler) -> Route {
    Route { method: "GET", path, handler }
}

const fn post(path: &'static str, handler: Handler) -> Route {
    Route { method: "POST", path, handler }
}

impl Route {
    /// The arguments in a path, if it is one of this route.
    fn arguments(&self, path: &[String]) -> Option<Vec<String>> {
        let own: Vec<&str> = self.path.split('/').collect();
        let is_argument = |part: &str| part.starts_with('{');
        let fits = own.len() == path.len() && own.iter().zip(path).all(|(own, part)| is_argument(own) || own == part);
        let arguments = own.iter().zip(path).filter(|(own, _)| is_argument(own)).map(|(_, part)| part.clone());
        fits.then(|| arguments.collect())
    }
}

/// Responds to a request under `/api/v1`.
pub(super) async fn respond(connection: &AdminConnection, request: &Request<Incoming>) -> AdminResponse {
    match route(connection, request).await {
        Ok(response) => response,
        Err(error) => error.response(),
    }
}

async fn route(connection: &AdminConnection, request: &Request<Incoming>) -> Result<AdminResponse, ApiError> {
    let path = request.uri().path().trim_start_matches("/api/v1/");
    let decode = |part: &str| Some(percent_decode_str(part).decode_utf8().ok()?.into_owned());
    let path: Option<Vec<String>> = path.split('/').map(decode).collect();
    let path = path.ok_or_else(|| ApiError::new(StatusCode::BAD_REQUEST, "the path is not UTF-8"))?;
    let fitting = ROUTES.iter().find_map(|route| Some((route, route.arguments(&path)?)));
    let (first, arguments) = fitting.ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, "no such path; GET /api/v1/openapi.json describes the paths")
    })?;
    let is_head = request.method() == Method::HEAD && matches!(first.handler, Handler::Make(_) | Handler::OpenApi);
    if !is_head && request.method().as_str() != first.method {
        return Ok(method_not_allowed(true, first.method));
    }
    let query = Query::new(request.uri().query().unwrap_or_default());
    let context = ApiContext::new(connection.subject.clone(), connection.api.clone(), query);
    match first.handler {
        Handler::Make(make) => self::make(context, move |context| make(context, &arguments)).await,
        Handler::Open(open) => open(context).inspect(|_| connection.progress.begin_tap()),
        Handler::Command => agents::command(&context, &arguments[0], &arguments[1]).await,
        Handler::OpenApi => {
            context.query.only(&[])?;
            Ok(response(StatusCode::OK, "application/json", OPENAPI.to_owned()))
        }
    }
}

/// Makes an answer on a thread that may work for long, when no other is made.
async fn make(
    context: ApiContext,
    make: impl FnOnce(&ApiContext) -> Result<Made, ApiError> + Send + 'static,
) -> Result<AdminResponse, ApiError> {
    let turn = context.shared.turn.clone().acquire_owned().await.map_err(|_| ApiError::stopping())?;
    let memory = context.subject.memory.clone();
    let made = Job::start("answer", move || {
        let made = make(&context);
        drop(turn);
        made
    });
    let made = made.map_err(|error| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    made.await.map_err(|_| ApiError::failed())??.response(&memory)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_openapi_file_describes_every_route_and_no_other() {
        let document: serde_json::Value = serde_json::from_str(OPENAPI).unwrap();
        let mut described = BTreeSet::new();
        for (path, methods) in document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                assert!(
                    operation["summary"].is_string() && operation["responses"]["200"].is_object(),
                    "{method} {path}"
                );
                let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
                let in_path = parameters.iter().filter(|parameter| parameter["in"] == "path").count();
                assert_eq!(in_path, path.matches('{').count(), "{method} {path}");
                described.insert(format!("{} {path}", method.to_uppercase()));
            }
        }
        let routes = ROUTES.iter().map(|route| format!("{} /api/v1/{}", route.method, route.path));
        assert_eq!(described, routes.collect());
    }

    #[test]
    fn an_argument_is_a_whole_part_of_the_path() {
        let route = get("heap/{id}/references", Handler::OpenApi);
        let path = |text: &str| text.split('/').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(route.arguments(&path("heap/3/references")), Some(vec!["3".to_owned()]));
        assert_eq!(route.arguments(&path("heap/3")), None);
        assert_eq!(route.arguments(&path("heap/3/references/")), None);
    }
}
