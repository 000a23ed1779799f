//! `/quarantine`: the requests that could not be decoded, and another try of one.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::quarantine::Retried;

use super::Subject;
use super::response::{self, AdminResponse, text};

/// Every request in the quarantines of listeners that serve.
pub(super) async fn list(subject: &Subject) -> AdminResponse {
    let mut all = Vec::new();
    for (listener, quarantined) in subject.directory.quarantines() {
        let stored = match quarantined.list().await {
            Ok(stored) => stored,
            Err(error) => {
                return text(StatusCode::INTERNAL_SERVER_ERROR, &format!("the quarantine of {listener}: {error}"));
            }
        };
        all.extend(stored.iter().map(|stored| {
            json!({
                "listener": listener, "id": stored.id, "received": stored.header("x-tributary-received"),
                "peer": stored.header("x-tributary-peer"), "bytes": stored.bytes, "reason": stored.reason(),
            })
        }));
    }
    response::json(StatusCode::OK, &Value::Array(all))
}

/// Tries a request again.
pub(super) async fn retry(subject: &Subject, listener: &str, id: &str) -> AdminResponse {
    let quarantined = subject.directory.quarantines().into_iter().find(|(name, _)| name == listener);
    let Some((_, quarantined)) = quarantined else {
        return text(StatusCode::NOT_FOUND, "there is no such listener with a quarantine");
    };
    let (status, outcome, events, reason) = match quarantined.retry(id.to_owned()).await {
        Retried::Delivered(events) => (StatusCode::OK, "delivered", Some(events), None),
        Retried::Refused(why) => (StatusCode::CONFLICT, "refused", None, Some(why)),
        Retried::Failed(why) => (StatusCode::SERVICE_UNAVAILABLE, "failed", None, Some(why)),
        Retried::Pending => (StatusCode::ACCEPTED, "pending", None, None),
        Retried::Unknown => return text(StatusCode::NOT_FOUND, "there is no such request in the quarantine"),
    };
    let value = json!({ "listener": listener, "id": id, "outcome": outcome, "events": events, "reason": reason });
    response::json(status, &value)
}
