//! Losses, grouped by what they have in common.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::answer::ApiError;
use super::context::ApiContext;
use super::coverage::{Coverage, Window, kept, snapshot};
use super::events::id;
use super::history::{STEP_MS, increments};
use tributary_bytefrog as bytefrog;
use tributary_datadog as datadog;
use tributary_event::{DataView, EventView, Kind, LossView, Reason, cause, hex};
use tributary_explain::{Explain, Sheet};
use tributary_rbkit as rbkit;
use tributary_sink_view::Class;
use tributary_sink_view::store::KeptBatch;

use super::answer::Made;

/// Groups that are made; losses of further ones are counted together.
const MAX_GROUPS: usize = 2000;
/// Memory of a group and of its row: its texts, the explanation and the excerpt.
const GROUP_BYTES: usize = size_of::<Group>() + 4096;
/// Peers that are named for a group.
const MAX_PEERS: usize = 5;

#[derive(Serialize)]
struct Losses {
    window: Window,
    coverage: Coverage,
    totals: Vec<Total>,
    groups: Vec<Group>,
    history: Value,
    is_cut: bool,
}

/// The exact numbers since the start.
#[derive(Serialize)]
struct Total {
    listener: String,
    protocol: &'static str,
    reason: &'static str,
    losses: u64,
    bytes: u64,
    events: u64,
}

#[derive(Serialize)]
struct Group {
    reason: &'static str,
    listener: String,
    protocol: &'static str,
    /// The detail of its losses; of losses with different numbers, with `#` for the numbers.
    cause: String,
    /// The detail of the first.
    example: String,
    name: String,
    losses: u64,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    events: Option<u64>,
    first_ms: u64,
    last_ms: u64,
    peers: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    excerpt: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    explained: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    option: Option<String>,
    id: String,
}

/// `GET /losses`.
pub(super) fn make(context: &ApiContext) -> Result<Made, ApiError> {
    context.query.only(&["listener", "reason", "limit", "from_ms", "to_ms"])?;
    let (window, limit) = (Window::of(context)?, context.query.limit(200, 1000)?);
    let (listener, reason) = (context.query.text("listener"), context.query.text("reason"));
    let is_listener = |name: &str| listener.is_none_or(|listener| listener == name);
    let totals = context.subject.accounting.totals();
    let samples = context.shared.history.with_present(&totals);
    let total = totals.listeners.iter().filter(|of| is_listener(&of.name)).flat_map(|of| {
        Reason::ALL.map(|reason| Total {
            listener: of.name.clone(),
            protocol: of.protocol.as_str(),
            reason: reason.as_str(),
            losses: of.losses[reason.index()],
            bytes: of.bytes_lost[reason.index()],
            events: of.events_lost[reason.index()],
        })
    });
    let is_counted =
        |total: &Total| (total.losses > 0 || total.bytes > 0) && reason.is_none_or(|reason| reason == total.reason);
    let total: Vec<Total> = total.filter(is_counted).collect();

    let snapshot = snapshot(context, window, &[Class::Losses], |_, name| is_listener(name))?;
    let mut groups: BTreeMap<(&'static str, String, String), Group> = BTreeMap::new();
    let (memory, mut is_cut) = (context.memory.half(), false);
    for (_, kept) in &snapshot.batches {
        let batch = kept.batch();
        for (index, event) in batch.events().enumerate() {
            let DataView::Loss(loss) = event.data() else { continue };
            if reason.is_some_and(|reason| reason != loss.reason.as_str()) {
                continue;
            }
            let key = (loss.reason.as_str(), event.origin().listener.to_string(), cause(loss.detail.text()));
            let is_known = groups.contains_key(&key);
            if !is_known && (groups.len() >= MAX_GROUPS || !memory.take(GROUP_BYTES + 3 * key.2.len())) {
                is_cut = true;
                continue;
            }
            let cause = key.2.clone();
            groups.entry(key).or_insert_with(|| group(kept, index, event, loss)).add(event, loss, &cause);
        }
    }
    let coverage = Coverage::of(context, window, &[Kind::Loss], |name, _| is_listener(name), kept(&snapshot));
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by(|a, b| b.last_ms.cmp(&a.last_ms).then_with(|| b.losses.cmp(&a.losses)));
    is_cut |= groups.len() > limit;
    groups.truncate(limit);
    let names: Vec<&str> =
        totals.listeners.iter().map(|of| of.name.as_str()).filter(|name| is_listener(name)).collect();
    let sum = |of: fn(&super::history::OfListener) -> u64| {
        increments(&samples, |sample| names.iter().map(|name| of(&sample.listener(name))).sum())
    };
    let history = json!({
        "step_ms": STEP_MS, "from_ms": samples.first().map(|sample| sample.at_ms),
        "losses": sum(|listener| listener.losses), "bytes": sum(|listener| listener.bytes_lost),
    });
    context.json(&Losses { window, coverage, totals: total, groups, history, is_cut })
}

fn group(kept: &KeptBatch, index: usize, event: EventView<'_>, loss: LossView<'_>) -> Group {
    let origin = event.origin();
    Group {
        reason: loss.reason.as_str(),
        listener: origin.listener.to_string(),
        protocol: origin.protocol,
        option: option(&origin.listener, loss.detail.text()),
        cause: loss.detail.text().to_owned(),
        example: loss.detail.text().to_owned(),
        name: event.name().text().to_owned(),
        losses: 0,
        bytes: 0,
        events: None,
        first_ms: event.observed().0 / 1_000_000,
        last_ms: 0,
        peers: Vec::new(),
        excerpt: hex(loss.excerpt),
        explained: explained(origin.protocol, event.position().offset, loss),
        id: id(kept, index),
    }
}

impl Group {
    fn add(&mut self, event: EventView<'_>, loss: LossView<'_>, cause: &str) {
        if self.cause == self.example && self.example != loss.detail.text() {
            cause.clone_into(&mut self.cause);
        }
        self.losses += reported_together(event);
        self.bytes = self.bytes.saturating_add(loss.bytes);
        if let Some(events) = loss.events {
            self.events = Some(self.events.unwrap_or(0).saturating_add(events));
        }
        self.last_ms = self.last_ms.max(event.observed().0 / 1_000_000);
        let peer = &event.origin().peer;
        if self.peers.len() < MAX_PEERS && !self.peers.iter().any(|known| **known == **peer) {
            self.peers.push(peer.to_string());
        }
    }
}

/// How many losses an event stands for.
fn reported_together(event: EventView<'_>) -> u64 {
    let count = event.attributes().find(|(key, _)| key.text() == tributary_event::semconv::LOSS_COUNT.as_str());
    match count {
        Some((_, tributary_event::ValueView::U64(count))) => count,
        Some((_, tributary_event::ValueView::I64(count))) => u64::try_from(count).unwrap_or(1),
        _ => 1,
    }
}

/// The configuration key that a detail names: when a limit was exceeded, it does.
fn option(listener: &str, detail: &str) -> Option<String> {
    let is_key = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '.';
    let is_option = |word: &&str| {
        let name = word.rsplit('.').next().unwrap_or(word);
        let ends = ["_bytes", "_timeout", "_wait", "_per_second", "_entries", "_frames", "_references"];
        name.starts_with("max_") || name.starts_with("min_") || ends.iter().any(|end| name.ends_with(end))
    };
    let word = detail.split(|c| !is_key(c)).map(|word| word.trim_matches('.')).find(is_option)?;
    Some(if word.starts_with("limits.") { word.to_owned() } else { format!("listeners.{listener}.{word}") })
}

/// The first bytes of what was lost, field by field where that is possible without what came before.
fn explained(protocol: &str, offset: u64, loss: LossView<'_>) -> Vec<String> {
    if loss.excerpt.is_empty() {
        return Vec::new();
    }
    let mut sheet = Sheet::new(offset, []).without_secrets();
    match explainer(protocol, offset, loss.reason) {
        Some(mut explainer) => {
            let taken = explainer.explain(loss.excerpt, &mut sheet);
            explainer.finish(loss.excerpt.get(taken..).unwrap_or_default(), &mut sheet);
        }
        None => sheet.raw(loss.excerpt, "the first bytes of what was lost"),
    }
    sheet.end();
    sheet.take().lines().map(str::to_owned).collect()
}

/// Explains what begins at this offset of a connection, if that is the beginning of a message. Requests over HTTP have no such
/// offsets: theirs are in bodies.
fn explainer(protocol: &str, offset: u64, reason: Reason) -> Option<Box<dyn Explain>> {
    let is_object = matches!(reason, Reason::Malformed | Reason::Unsupported | Reason::TooLarge);
    match (protocol, offset) {
        ("datadog", 0) => Some(Box::new(datadog::Explainer::new(datadog::ListLayout::default()))),
        ("datadog", _) if is_object => Some(Box::new(datadog::Explainer::at_object(datadog::ListLayout::default()))),
        ("bytefrog", 0) => Some(Box::new(bytefrog::explainer())),
        ("rbkit", 0) => Some(Box::new(rbkit::Explainer::new(rbkit::Channel::Pub))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detail_names_the_key_that_governs_it() {
        let key = |detail| option("spans", detail);
        assert_eq!(
            key("a string of 70000 bytes; at most 65536 (max_string_bytes)").as_deref(),
            Some("listeners.spans.max_string_bytes")
        );
        assert_eq!(key("no memory (limits.memory_bytes)").as_deref(), Some("limits.memory_bytes"));
        assert_eq!(key("the stream ended inside a message"), None);
    }
}
