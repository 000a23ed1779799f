//! Attributes that several events of a batch share, encoded once.

use super::attributes::is_reserved;
use super::scopes::is_of_scope;
use super::value::push_attribute;
use tributary_event::{KeyView, Member, Name, RunView, ValueView, semconv};

/// Attributes whose encoding depends on the event: some of them become fields.
const SPECIAL: [Name; 6] = [
    semconv::INCOMPLETE,
    semconv::SPAN_KIND,
    semconv::DATADOG_TYPE,
    semconv::TRACE_ID,
    semconv::SPAN_ID,
    semconv::TIME_BASIS,
];

/// The runs of one batch, for one signal.
#[derive(Debug, Default)]
pub(super) struct RunCache {
    /// The field of the attributes.
    field: u8,
    /// By the index of the run.
    runs: Vec<RunEncoding>,
    encoded: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default)]
enum RunEncoding {
    #[default]
    Unknown,
    /// It must be encoded for each event.
    Varying,
    /// It is encoded: from where to where.
    Encoded(usize, usize),
}

impl RunCache {
    /// Forgets the runs: another batch follows.
    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.encoded.clear();
    }

    /// The attributes of a run as fields with this number. `None`: they are to be encoded for each event.
    #[inline]
    pub(super) fn encoded(&mut self, run: RunView<'_>, field: u8) -> Option<&[u8]> {
        if !run.is_shared() {
            return None;
        }
        if self.field != field {
            // Points of another type have them in another field.
            self.clear();
            self.field = field;
        }
        if let Some(RunEncoding::Encoded(start, end)) = self.runs.get(run.index()) {
            return Some(&self.encoded[*start..*end]);
        }
        self.encode(run, field)
    }

    fn encode(&mut self, run: RunView<'_>, field: u8) -> Option<&[u8]> {
        if self.runs.len() <= run.index() {
            self.runs.resize(run.index() + 1, RunEncoding::Unknown);
        }
        let state = &mut self.runs[run.index()];
        if let RunEncoding::Varying = state {
            return None;
        }
        if !run.members().all(is_constant) {
            *state = RunEncoding::Varying;
            return None;
        }
        let start = self.encoded.len();
        for member in run.members() {
            push_attribute(&mut self.encoded, field, member.key(), member.value(), |_| false);
        }
        *state = RunEncoding::Encoded(start, self.encoded.len());
        Some(&self.encoded[start..])
    }
}

/// Whether an attribute is the same field in every event.
fn is_constant(member: Member<'_>) -> bool {
    let key = match member.key() {
        KeyView::Name(name) => name.as_str(),
        KeyView::Text(text) => text.text(),
    };
    let is_scalar = matches!(
        member.value(),
        ValueView::Text(_) | ValueView::I64(_) | ValueView::U64(_) | ValueView::F64(_) | ValueView::Bool(_)
    );
    let is_of_peer = matches!(member.key(), KeyView::Text(_));
    let is_special = SPECIAL.iter().any(|name| name.as_str() == key);
    is_scalar && !is_special && !is_of_scope(member.key()) && !(is_of_peer && (key.is_empty() || is_reserved(key)))
}
