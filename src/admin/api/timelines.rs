//! Timelines: the kept calls, spans and samples of a part of the window with their times, as files.

use hyper::StatusCode;

use super::answer::{ApiError, Made};
use super::context::ApiContext;
use super::coverage::{Window, snapshot};
use super::profiles::items;
use tributary_profile::stacks::process_text;
use tributary_profile::timeline::Timeline;
use tributary_profile::{Counted, ProfileItem, firefox, perfetto};
use tributary_sink_view::Class;

/// The items of an answer take this part of its memory.
const ITEMS_PART: usize = 4;

/// Makes the file of a process, or of all; samples are those of one quantity.
pub(super) fn make(
    context: &ApiContext,
    agent: Option<&str>,
    counted: Counted,
    format: &str,
) -> Result<Made, ApiError> {
    let window = Window::of(context)?;
    let snapshot = snapshot(context, window, &[Class::Samples, Class::Spans, Class::Calls], |_, _| true)?;
    let mut timeline = Timeline::bounded(context.memory.limit() / ITEMS_PART);
    items(&snapshot, |item| {
        let of = match item {
            ProfileItem::Sample(sample) if sample.counted == counted => &sample.agent,
            ProfileItem::Span(span) => &span.agent,
            ProfileItem::Call(call) => &call.agent,
            _ => return,
        };
        if agent.is_none_or(|agent| process_text(of) == agent) {
            timeline.add(item);
        }
    });
    timeline.finish();
    let shown = timeline.shown(|_| true, counted);
    if shown.is_empty() {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "there is nothing with a time in this part of the window"));
    }
    let title = agent.unwrap_or("all processes");
    let name = format!("{}-{}.{format}.json", agent.unwrap_or("all"), counted.id());
    context.file(name, "application/json", |out| match format {
        "firefox" => firefox::write(&shown, title, out),
        _ => perfetto::write(&shown, title, out),
    })
}
