//! Events on a terminal: one line each, cut to its width, aligned, in colours.
//!
//! ```text
//! 12:15:00.123 datadog  span   web.request                      1.5ms  shop  "GET /cart/{id}"  http.method=GET … +7
//! ```
//!
//! A shorter form of [`text`](super::text), for reading while events arrive: attributes that do not fit are
//! only counted, ids are shortened, and `tributary.*` is not shown. JSON has everything.

use std::time::Duration;

use super::number::push_number;
use super::text::{kind_column, push_distribution, push_frame, push_value};
use super::time::TimeFormat;
use tributary_codec::terminal::{push_quoted, push_word, shown};
use tributary_event::{DataView, EventView, Kind, Name, Severity, Status, UnixNanos, ValueView, semconv};

/// The columns of a name, and of the value after it, to which shorter ones are padded.
const NAME_COLUMNS: usize = 32;
const VALUE_COLUMNS: usize = 8;
/// The most columns of the body of a log, of what an event is about, and of the detail of a loss.
const TEXT_COLUMNS: usize = 48;
/// The most columns of the value of one other attribute.
const ATTRIBUTE_COLUMNS: usize = 32;
/// The columns of ` … +12`.
const REST_COLUMNS: usize = 7;
/// Attributes that say what an event is about.
const SUBJECTS: [Name; 5] = [
    semconv::CODE_FUNCTION_NAME,
    semconv::BYTEFROG_CLASS_NAME,
    semconv::RBKIT_CLASS_NAME,
    semconv::ENDLESS_EVENT_NAME,
    semconv::DATADOG_RESOURCE,
];

/// The terminal that shows the events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terminal {
    /// Its columns.
    pub columns: usize,
    /// Whether it shows colours.
    pub colours: bool,
}

/// Sequences of ECMA-48.
mod style {
    pub(super) const PLAIN: &str = "";
    pub(super) const DIM: &str = "\x1b[2m";
    pub(super) const BOLD: &str = "\x1b[1m";
    pub(super) const RED: &str = "\x1b[1;31m";
    pub(super) const GREEN: &str = "\x1b[32m";
    pub(super) const YELLOW: &str = "\x1b[1;33m";
    pub(super) const BLUE: &str = "\x1b[34m";
    pub(super) const MAGENTA: &str = "\x1b[35m";
    pub(super) const CYAN: &str = "\x1b[36m";
    pub(super) const END: &str = "\x1b[0m";
}

/// A line that is being made.
struct TerminalLine<'a> {
    out: &'a mut Vec<u8>,
    terminal: Terminal,
    /// The columns that are used.
    used: usize,
}

impl TerminalLine<'_> {
    fn left(&self) -> usize {
        self.terminal.columns.saturating_sub(self.used)
    }

    /// Appends a text, as much of it as fits.
    fn push(&mut self, style: &str, text: &str) {
        let is_styled = self.terminal.colours && !style.is_empty();
        if is_styled {
            self.out.extend_from_slice(style.as_bytes());
        }
        let fitting = text.char_indices().nth(self.left()).map_or(text, |(end, _)| &text[..end]);
        self.used += fitting.chars().count();
        self.out.extend_from_slice(fitting.as_bytes());
        if is_styled {
            self.out.extend_from_slice(style::END.as_bytes());
        }
    }

    /// Appends spaces up to this column, and at least one.
    fn pad_to(&mut self, column: usize) {
        let count = column.saturating_sub(self.used).max(1);
        self.push(style::PLAIN, &" ".repeat(count));
    }
}

/// Appends one event as a line, line feed included.
pub fn encode(event: EventView<'_>, terminal: Terminal, out: &mut Vec<u8>) {
    let mut line = TerminalLine { out, terminal, used: 0 };
    line.push(style::DIM, &time_of_day(event.time()));
    line.push(style::PLAIN, " ");
    line.push(style::DIM, &format!("{:<8} ", event.origin().protocol));
    line.push(kind_style(event), kind_column(event));
    line.push(style::PLAIN, " ");
    let name_start = line.used;
    line.push(style::BOLD, &written(|text| push_word(text, event.name().text())));
    line.pad_to(name_start + NAME_COLUMNS);
    let is_log = event.kind() == Kind::Log;
    if is_log {
        push_subject(&mut line, event);
    }
    push_data(&mut line, event);
    if let Some(service) = event.resource().text(semconv::SERVICE_NAME) {
        line.push(style::GREEN, &format!("  {}", written(|text| push_word(text, service))));
    }
    if !is_log {
        push_subject(&mut line, event);
    }
    push_attributes(&mut line, event);
    line.out.push(b'\n');
}

fn push_data(line: &mut TerminalLine<'_>, event: EventView<'_>) {
    match event.data() {
        DataView::Log { body: Some(body), .. } => {
            line.push(style::PLAIN, &format!("  {}", shortened(TEXT_COLUMNS, |text| push_value(text, body))));
        }
        DataView::Log { body: None, .. } => {}
        DataView::Span(span) => {
            let time = span.duration_nanos.map_or_else(|| "not ended".to_owned(), duration);
            line.push(style::PLAIN, &format!("{time:>VALUE_COLUMNS$}"));
            if span.status == Status::Error {
                line.push(style::RED, "  ERROR");
            }
        }
        DataView::Metric(metric) => {
            let value = match metric.distribution() {
                Some(distribution) => shortened(TEXT_COLUMNS, |text| push_distribution(text, &distribution)),
                None => written(|text| push_number(text, metric.value)),
            };
            line.push(style::PLAIN, &format!("{value:>VALUE_COLUMNS$} {}", shown(metric.unit())));
        }
        DataView::Sample(sample) => {
            let value = written(|text| push_number(text, sample.data.value));
            line.push(style::PLAIN, &format!("{value:>VALUE_COLUMNS$} {}", shown(sample.unit())));
            let mut separator = "  ";
            for frame in sample.frames() {
                line.push(style::DIM, separator);
                line.push(style::PLAIN, &written(|text| push_frame(text, frame)));
                separator = " < ";
                if line.left() == 0 {
                    break;
                }
            }
        }
        DataView::Loss(loss) => {
            let events = loss.events.map_or_else(|| "? events".to_owned(), |events| format!("{events} events"));
            line.push(style::RED, &format!("{}: {} bytes, {events}", loss.reason.as_str(), loss.bytes));
            let detail = shortened(TEXT_COLUMNS, |text| push_quoted(text, loss.detail.text()));
            line.push(style::PLAIN, &format!("  {detail}"));
        }
    }
}

/// The attribute that says what the event is about, without its key.
fn push_subject(line: &mut TerminalLine<'_>, event: EventView<'_>) {
    let subject = SUBJECTS.iter().find_map(|name| event.attributes().find(|(key, _)| key.text() == name.as_str()));
    if let Some((_, ValueView::Text(text))) = subject
        && text.text() != event.name().text()
    {
        line.push(style::PLAIN, &format!("  {}", shortened(TEXT_COLUMNS, |out| push_word(out, text.text()))));
    }
}

/// The attributes that fit, ids last; then the number of the others.
fn push_attributes(line: &mut TerminalLine<'_>, event: EventView<'_>) {
    let is_subject = |key: &str| SUBJECTS.iter().any(|name| key == name.as_str());
    let is_shown = |key: &str| !key.starts_with("tributary.") && !is_subject(key);
    let is_id = |key: &str| key.ends_with(".id") || key.ends_with("_id");
    let mut separator = "  ";
    let mut rest = 0;
    for ids in [false, true] {
        let attributes = event.attributes().filter(|(key, _)| is_shown(key.text()) && is_id(key.text()) == ids);
        for (key, value) in attributes {
            let key = written(|text| push_word(text, key.text()));
            let value = shown_value(value);
            if separator.len() + key.chars().count() + 1 + value.chars().count() + REST_COLUMNS > line.left() {
                rest += 1;
                continue;
            }
            line.push(style::DIM, &format!("{separator}{key}="));
            line.push(style::PLAIN, &value);
            separator = " ";
        }
    }
    if rest > 0 {
        line.push(style::DIM, &format!("{separator}… +{rest}"));
    }
}

fn shown_value(value: ValueView<'_>) -> String {
    match value {
        ValueView::Text(text) if is_uuid_or_hash(text.text()) => format!("{}…", &text.text()[..8]),
        value => shortened(ATTRIBUTE_COLUMNS, |text| push_value(text, value)),
    }
}

/// Whether a text is a UUID, or at least as many hexadecimal digits.
fn is_uuid_or_hash(text: &str) -> bool {
    text.len() >= 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

/// The text that `write` appends.
fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut text = Vec::new();
    write(&mut text);
    String::from_utf8(text).unwrap_or_default()
}

/// The same, cut to this number of columns.
fn shortened(columns: usize, write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut text = written(write);
    if let Some((end, _)) = text.char_indices().nth(columns) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The time of day in UTC, in milliseconds.
fn time_of_day(time: Option<UnixNanos>) -> String {
    let Some(time) = time else { return "(no time)   ".to_owned() };
    let text = written(|text| TimeFormat::default().push(text, time));
    text.get("2026-11-20T".len().."2026-11-20T12:15:00.123".len()).unwrap_or_default().to_owned()
}

/// A duration with three significant digits.
fn duration(nanos: u64) -> String {
    let unit = match nanos {
        0..1_000 => 1,
        1_000..1_000_000 => 1_000,
        1_000_000..1_000_000_000 => 1_000_000,
        _ => 1_000_000_000,
    };
    let precision = match nanos / unit {
        _ if unit == 1 => 0,
        0..10 => 2,
        10..100 => 1,
        _ => 0,
    };
    format!("{:.precision$?}", Duration::from_nanos(nanos))
}

fn kind_style(event: EventView<'_>) -> &'static str {
    match (event.kind(), event.data()) {
        (_, DataView::Log { severity, .. }) => match severity {
            Severity::Trace | Severity::Debug => style::DIM,
            Severity::Info => style::PLAIN,
            Severity::Warn => style::YELLOW,
            Severity::Error | Severity::Fatal => style::RED,
        },
        (Kind::Span, _) => style::CYAN,
        (Kind::Metric, _) => style::BLUE,
        (Kind::Sample, _) => style::MAGENTA,
        _ => style::RED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        let shown = [7, 999, 1_500, 11_532_109, 123_456_789, 4_999_999_999, 61_000_000_000].map(duration);
        assert_eq!(shown, ["7ns", "999ns", "1.50µs", "11.5ms", "123ms", "5.00s", "61.0s"]);
    }

    #[test]
    fn a_line_is_cut_at_the_last_column_and_counts_no_escape_sequences() {
        let mut out = Vec::new();
        let mut line = TerminalLine { out: &mut out, terminal: Terminal { columns: 6, colours: true }, used: 0 };
        line.push(style::RED, "äöü");
        line.pad_to(5);
        line.push(style::PLAIN, "xyz");
        assert_eq!((line.used, line.left()), (6, 0));
        assert_eq!(String::from_utf8(out).unwrap(), "\u{1b}[1;31mäöü\u{1b}[0m  x");
    }
}
