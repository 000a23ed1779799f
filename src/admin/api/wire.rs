//! `/wire`: the received bytes with annotations, as Server-Sent Events. It reads a tap.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use super::answer::ApiError;
use super::context::ApiContext;
use super::history::now_ms;
use super::sse;
use crate::admin::response::AdminResponse;
use crate::admin::tap::{WIRE_BYTES, Wire, open_reader};
use tributary_event::Origin;
use tributary_pipeline::tap::{self, TapItem};
use tributary_sink::Kinds;

/// The lines of one event at most; of a longer piece the rest is left out.
const MAX_LINES: usize = 2000;

/// Opens the stream.
pub(super) fn open(context: ApiContext) -> Result<AdminResponse, ApiError> {
    context.query.only(&["listener", "connection"])?;
    let listener = context.query.text("listener").map(str::to_owned);
    let connection = context.query.number("connection")?;
    if let Some(name) = &listener
        && !context.subject.accounting.listeners().iter().any(|counters| counters.name() == name)
    {
        return Err(ApiError::new(StatusCode::NOT_FOUND, format!("there is no listener {name}")));
    }
    let wanted = tap::TapFilter::new(listener, Kinds::ALL, true);
    let opened = open_reader(&context.subject, wanted, WIRE_BYTES);
    let (mut reader, memory) = opened.map_err(|line| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, line))?;
    let (response, mut body) = sse::response();
    tokio::spawn(async move {
        let mut wire = Wire::default();
        let mut seconds = interval(Duration::from_secs(1));
        seconds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let mut out = Vec::new();
            tokio::select! {
                _ = seconds.tick() => sse::push(&mut out, "alive", &json!({ "now_ms": now_ms() }).to_string()),
                item = reader.next() => match item {
                    Some(item) => add(&mut wire, item, connection, &mut out),
                    None => break,
                },
            }
            if let Some(dropped) = reader.take_dropped() {
                let data = json!({ "bytes": dropped.bytes, "losses": dropped.events });
                sse::push(&mut out, "dropped", &data.to_string());
            }
            if !out.is_empty() && body.send_data(out.into()).await.is_err() {
                break;
            }
        }
        drop(memory);
    });
    Ok(response)
}

/// Appends what has arrived, if it is of the wanted connection.
fn add(wire: &mut Wire, item: TapItem, connection: Option<u64>, out: &mut Vec<u8>) {
    let origin: Option<Arc<Origin>> = match &item {
        TapItem::Events(batch) => batch.origin().cloned(),
        TapItem::Bytes(piece) => Some(piece.origin.clone()),
        TapItem::Request(request) => Some(request.origin.clone()),
    };
    let Some(origin) = origin.filter(|origin| connection.is_none_or(|wanted| wanted == origin.connection)) else {
        return;
    };
    let mut text = Vec::new();
    wire.item(item, &mut text);
    let text = String::from_utf8_lossy(&text);
    // The title names the connection, which is here in members of its own.
    let lines = text.lines().filter(|line| !line.starts_with("== "));
    let (lines, rest): (Vec<_>, Vec<_>) = lines.enumerate().partition(|(index, _)| *index < MAX_LINES);
    let mut lines: Vec<String> = lines.into_iter().map(|(_, line)| line.to_owned()).collect();
    if !rest.is_empty() {
        lines.push(format!("… {} lines more", rest.len()));
    }
    if lines.is_empty() {
        return;
    }
    let data = json!({
        "listener": &*origin.listener, "protocol": origin.protocol, "peer": &*origin.peer,
        "connection": origin.connection, "lines": lines,
    });
    sse::push(out, "wire", &data.to_string());
}
