//! `/api/v1`: what the page shows, as JSON, for the page and for other programs. docs/api.md describes it, and so does the
//! OpenAPI file, which a test compares with the routes.

use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};

use super::Connection;
use super::response::{AdminResponse, error, method_not_allowed, response};

/// The OpenAPI file.
const OPENAPI: &str = include_str!("openapi.json");

/// Responds to a request under `/api/v1`.
pub(super) async fn respond(connection: &Connection, request: &Request<Incoming>) -> AdminResponse {
    let path = request.uri().path().trim_start_matches("/api/v1/");
    let segments: Vec<&str> = path.split('/').collect();
    let _ = connection;
    match (request.method(), segments.as_slice()) {
        (&Method::GET | &Method::HEAD, ["openapi.json"]) => {
            response(StatusCode::OK, "application/json", OPENAPI.to_owned())
        }
        (_, ["openapi.json"]) => method_not_allowed(true, "GET, HEAD"),
        _ => error(true, StatusCode::NOT_FOUND, "no such path; GET /api/v1/openapi.json describes the paths"),
    }
}
