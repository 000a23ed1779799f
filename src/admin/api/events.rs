//! Kept events: a list by filters, and one by its id.

use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;

use super::agents;
use super::answer::{ApiError, Made};
use super::context::ApiContext;
use super::coverage::{Coverage, Window, kept, snapshot};
use super::query::{Query, bad};
use crate::admin::Subject;
use crate::admin::agents::Names;
use tributary_event::{EventView, Kind};
use tributary_protocol::Protocol;
use tributary_sink::encode::{Encoder, Format};
use tributary_sink_view::store::KeptBatch;
use tributary_sink_view::{Class, Snapshot};

/// The parameters of [`EventFilter::read`].
pub(super) const FILTERS: [&str; 5] = ["protocol", "listener", "kind", "name", "text"];

/// Which events are wanted.
#[derive(Debug)]
pub(super) struct EventFilter {
    protocols: Vec<Protocol>,
    listeners: Vec<String>,
    kinds: Vec<Kind>,
    /// The name, or with a star its beginning.
    name: Option<String>,
    /// In lower case.
    text: Option<String>,
}

impl EventFilter {
    /// Reads the parameters.
    pub(super) fn read(query: &Query) -> Result<EventFilter, ApiError> {
        let protocol = |name: &str| Protocol::by_name(name).ok_or_else(|| bad(format!("there is no protocol {name}")));
        let kind = |name: &str| {
            let known = Kind::ALL.into_iter().find(|kind| kind.as_str() == name);
            known.ok_or_else(|| {
                bad(format!("there is no kind {name}; the kinds are {}", Kind::ALL.map(Kind::as_str).join(", ")))
            })
        };
        Ok(EventFilter {
            protocols: query.all("protocol").map(protocol).collect::<Result<_, _>>()?,
            listeners: query.all("listener").map(str::to_owned).collect(),
            kinds: query.all("kind").map(kind).collect::<Result<_, _>>()?,
            name: query.text("name").map(str::to_owned),
            text: query.text("text").map(str::to_lowercase),
        })
    }

    /// Whether events of a listener are wanted.
    pub(super) fn wants_listener(&self, protocol: &str, listener: &str) -> bool {
        (self.protocols.is_empty() || self.protocols.iter().any(|wanted| wanted.as_str() == protocol))
            && (self.listeners.is_empty() || self.listeners.iter().any(|wanted| wanted == listener))
    }

    /// The wanted kinds.
    pub(super) fn kinds(&self) -> Vec<Kind> {
        if self.kinds.is_empty() { Kind::ALL.to_vec() } else { self.kinds.clone() }
    }

    /// Whether an event is wanted, as far as its header shows that.
    pub(super) fn wants(&self, event: EventView<'_>) -> bool {
        let has_name = |name: &str| match self.name.as_deref() {
            None => true,
            Some(wanted) => match wanted.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == wanted,
            },
        };
        (self.kinds.is_empty() || self.kinds.contains(&event.kind())) && has_name(event.name().text())
    }

    /// Whether the JSON line of an event has the wanted text.
    pub(super) fn has_text(&self, line: &str) -> bool {
        self.text.as_deref().is_none_or(|text| line.to_lowercase().contains(text))
    }
}

/// An event with its id.
#[derive(Debug, Serialize)]
pub(super) struct ShownEvent {
    id: String,
    /// The name of its agent.
    agent: String,
    event: Box<RawValue>,
}

/// Encodes events as they stand in the output.
#[derive(Debug)]
pub(super) struct LineEncoder {
    encoder: Encoder,
    line: Vec<u8>,
    names: Names,
}

impl LineEncoder {
    pub(super) fn new(subject: &Subject) -> LineEncoder {
        LineEncoder { encoder: Encoder::new(Format::Json), line: Vec::new(), names: Names::of(subject) }
    }

    /// Learns the names of agents that were not seen before.
    pub(super) fn update_names(&mut self, subject: &Subject) {
        self.names = Names::of(subject);
    }

    /// What the agent of an event is called.
    pub(super) fn agent_name(&mut self, event: EventView<'_>) -> String {
        self.names.name(event).to_owned()
    }

    /// The JSON line of an event, without a line feed.
    pub(super) fn line(&mut self, event: EventView<'_>) -> &str {
        self.line.clear();
        self.encoder.encode(event, &mut self.line);
        str::from_utf8(&self.line).unwrap_or_default().trim_end()
    }

    /// The event with its id.
    pub(super) fn shown(&mut self, kept: &KeptBatch, index: usize, event: EventView<'_>) -> Option<ShownEvent> {
        let line = RawValue::from_string(self.line(event).to_owned()).ok()?;
        Some(ShownEvent { id: id(kept, index), agent: self.agent_name(event), event: line })
    }
}

/// The id of an event: of its batch, and its place in it.
pub(super) fn id(kept: &KeptBatch, index: usize) -> String {
    format!("{}.{index}", kept.number)
}

/// The events of a snapshot for which `is_wanted`, the newest first, as far as `limit`; and whether there are more.
///
/// # Errors
/// The answer would be too large.
pub(super) fn newest(
    context: &ApiContext,
    snapshot: &Snapshot,
    limit: usize,
    mut is_wanted: impl FnMut(EventView<'_>, &mut LineEncoder) -> bool,
) -> Result<(Vec<ShownEvent>, bool), ApiError> {
    let (mut lines, mut shown) = (LineEncoder::new(&context.subject), Vec::new());
    for (_, kept) in snapshot.batches.iter().rev() {
        let batch = kept.batch();
        let events: Vec<EventView<'_>> = batch.events().collect();
        for (index, event) in events.into_iter().enumerate().rev() {
            if !is_wanted(event, &mut lines) {
                continue;
            }
            if shown.len() == limit {
                return Ok((shown, true));
            }
            // The event is there twice: here and in the answer.
            context.memory.require(size_of::<ShownEvent>() + 32 + lines.line(event).len())?;
            shown.extend(lines.shown(kept, index, event));
        }
    }
    Ok((shown, false))
}

#[derive(Serialize)]
struct EventList {
    window: Window,
    coverage: Coverage,
    events: Vec<ShownEvent>,
    is_cut: bool,
}

/// `GET /events`.
pub(super) fn list(context: &ApiContext) -> Result<Made, ApiError> {
    let known = [&FILTERS[..], &["agent", "from_ms", "to_ms", "limit"]].concat();
    context.query.only(&known)?;
    let (filter, window, limit) =
        (EventFilter::read(&context.query)?, Window::of(context)?, context.query.limit(100, 1000)?);
    let agent = match context.query.text("agent") {
        Some(id) => Some(Arc::new(agents::find(context, id)?)),
        None => None,
    };
    let listener = agent.as_ref().map(|agent| agent.listener.clone());
    let wants = |protocol: &str, name: &str| {
        filter.wants_listener(protocol, name) && listener.as_ref().is_none_or(|listener| listener == name)
    };
    let kinds = filter.kinds();
    let classes: Vec<Class> = Class::ALL.into_iter().filter(|class| kinds.contains(&class.kind())).collect();
    let snapshot = snapshot(context, window, &classes, wants)?;
    let mut matches = agent.as_deref().map(agents::Matcher::new);
    let (events, is_cut) = newest(context, &snapshot, limit, |event, lines| {
        filter.wants(event)
            && matches.as_mut().is_none_or(|matches| matches.is_of(event))
            && (filter.text.is_none() || filter.has_text(lines.line(event)))
    })?;
    let coverage =
        Coverage::of(context, window, &kinds, |name, protocol| wants(protocol.as_str(), name), kept(&snapshot));
    context.json(&EventList { window, coverage, events, is_cut })
}

/// `GET /events/ID`.
pub(super) fn one(context: &ApiContext, id: &str) -> Result<Made, ApiError> {
    context.query.only(&[])?;
    let (number, index) = id.split_once('.').ok_or_else(|| ApiError::gone("event"))?;
    let (Ok(number), Ok(index)) = (number.parse(), index.parse::<usize>()) else { return Err(ApiError::gone("event")) };
    let kept = context.view()?.batch(number).ok_or_else(|| ApiError::gone("event"))?;
    let batch = kept.batch();
    let event = batch.events().nth(index).ok_or_else(|| ApiError::gone("event"))?;
    let shown = LineEncoder::new(&context.subject).shown(&kept, index, event).ok_or_else(ApiError::failed)?;
    context.json(&shown)
}
