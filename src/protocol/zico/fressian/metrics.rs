//! The metrics that a connection has defined.

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_codec::mutf8;
use tributary_event::semconv;

use super::structs::MetricHead;

/// The approximate memory of an entry beside its texts, in bytes.
const ENTRY_BYTES: usize = 160;

/// A metric.
#[derive(Debug)]
pub(in super::super) struct Metric {
    /// The name of its events.
    pub(in super::super) event: Box<str>,
    pub(in super::super) description: Option<Box<str>>,
    pub(in super::super) attributes: Vec<(Box<str>, Box<str>)>,
}

/// Metrics by the agent's number.
#[derive(Debug)]
pub(in super::super) struct Metrics {
    known: HashMap<u64, Metric, RandomState>,
    bytes: usize,
    limit: usize,
}

impl Metrics {
    /// Metrics that take at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Metrics { known: HashMap::default(), bytes: 0, limit }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, id: u64) -> Option<&Metric> {
        self.known.get(&id)
    }

    /// Defines a metric. `false`: they take the memory that they may.
    pub(super) fn define(&mut self, head: &MetricHead<'_>) -> bool {
        let text = |bytes: &[u8]| Box::<str>::from(mutf8::read(bytes).0);
        let name = head.name.as_deref().map(text).unwrap_or_default();
        let metric = Metric {
            event: event_name(&name, head.id).into(),
            description: head.description.as_deref().map(text),
            attributes: head.attributes.iter().map(|(key, value)| (text(key), text(value))).collect(),
        };
        let bytes = memory(&metric);
        let before = self.known.get(&head.id).map_or(0, memory);
        if self.bytes + bytes - before > self.limit {
            return false;
        }
        self.bytes = self.bytes + bytes - before;
        self.known.insert(head.id, metric);
        true
    }
}

fn memory(metric: &Metric) -> usize {
    let attributes = metric.attributes.iter().map(|(key, value)| 32 + key.len() + value.len());
    let description = metric.description.as_ref().map_or(0, |description| description.len());
    ENTRY_BYTES + metric.event.len() + description + attributes.sum::<usize>()
}

/// The name of a metric in lower case, with `_` for what is neither a letter nor a digit.
fn event_name(name: &str, id: u64) -> String {
    let mut event = semconv::ZICO_METRIC.as_str().to_owned();
    let start = event.len();
    for character in name.chars() {
        match character.to_ascii_lowercase() {
            plain @ ('a'..='z' | '0'..='9') => event.push(plain),
            _ if event.ends_with('_') => {}
            _ => event.push('_'),
        }
    }
    if event[start..].bytes().all(|byte| byte == b'_') {
        return format!("{}metric.{id}", semconv::ZICO_METRIC.as_str());
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_event_has_letters_digits_and_single_underscores() {
        for (name, event) in [
            ("gc.count", "zorka.gc_count"),
            ("Heap  Used (MB)", "zorka.heap_used_mb_"),
            ("", "zorka.metric.7"),
            ("--", "zorka.metric.7"),
            ("Zaj\u{119}to\u{15b}\u{107}", "zorka.zaj_to_"),
        ] {
            assert_eq!(event_name(name, 7), event, "{name}");
        }
    }

    #[test]
    fn metrics_are_bounded_and_may_be_defined_again() {
        let head = |id| MetricHead { id, name: Some(b"heap"[..].into()), description: None, attributes: Vec::new() };
        let mut metrics = Metrics::new(2 * (ENTRY_BYTES + 10));
        assert!(metrics.define(&head(1)) && metrics.define(&head(2)) && metrics.define(&head(1)));
        assert!(!metrics.define(&head(3)) && metrics.get(3).is_none());
        assert_eq!(metrics.memory_bytes(), 2 * (ENTRY_BYTES + 10));
        assert_eq!(&*metrics.get(2).unwrap().event, "zorka.heap");
    }
}
