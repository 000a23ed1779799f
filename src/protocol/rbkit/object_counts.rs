//! Created and destroyed objects by class (`objects = "summary"`): metrics at intervals instead of an event for each object.
//!
//! Agents send the class of an object when it is created, and only its id when it is destroyed. So the class of each live
//! object is remembered. An object that is not remembered, because it was created before the counting began or is over the
//! limit, is destroyed without a class. The sums are exact in any case.

use std::time::Duration;

use foldhash::quality::RandomState;
use hashbrown::HashMap;

use tributary_event::{MetricData, MetricType, Number, Temporality, UnixNanos, semconv as names};
use tributary_protocol::{Now, Output};

use super::normalize::{self, StreamPosition};
use super::options::SummaryLimits;
use super::texts::TextCache;

/// The number of objects without a known class.
const NO_CLASS: usize = 0;
/// The number of the classes over the limit, together.
const OTHERS: usize = 1;
/// A longer name of a class is not kept; its objects count for [`OTHERS`].
const MAX_NAME_BYTES: usize = 1024;

/// The objects of a process.
#[derive(Debug)]
pub(super) struct ObjectCounts {
    limits: SummaryLimits,
    /// The names of classes by number; the first two have none.
    classes: Vec<Box<[u8]>>,
    numbers: HashMap<Box<[u8]>, u32, RandomState>,
    name_bytes: usize,
    counts: Vec<Counts>,
    /// The class of each live object, by its id.
    live: HashMap<u64, u32, RandomState>,
    /// Since when live objects are counted.
    live_since: Option<UnixNanos>,
    /// When the interval began, if something has happened in it.
    since: Option<Now>,
    /// The last interval, while it is written.
    ended: Option<Interval>,
}

/// The numbers of a class.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    created: u64,
    destroyed: u64,
    live: u64,
    /// Objects were not remembered, because there are too many.
    is_incomplete: bool,
}

/// An interval that is written.
#[derive(Debug)]
struct Interval {
    start: UnixNanos,
    counts: Vec<Counts>,
    live_since: Option<UnixNanos>,
    /// The next class and metric.
    class: usize,
    metric: usize,
}

impl ObjectCounts {
    pub(super) fn new(limits: SummaryLimits) -> ObjectCounts {
        ObjectCounts {
            limits,
            classes: vec![Box::default(); 2],
            numbers: HashMap::default(),
            name_bytes: 0,
            counts: vec![Counts::default(); 2],
            live: HashMap::default(),
            live_since: None,
            since: None,
            ended: None,
        }
    }

    /// Bytes of memory, approximately.
    pub(super) fn memory_bytes(&self) -> usize {
        let ended = self.ended.as_ref().map_or(0, |ended| ended.counts.capacity() * size_of::<Counts>());
        let classes = self.classes.capacity() * (size_of::<Counts>() + size_of::<Box<[u8]>>()) + self.name_bytes;
        let numbers = self.numbers.capacity() * (size_of::<(Box<[u8]>, u32)>() + 1);
        ended + classes + numbers + self.live.capacity() * (size_of::<(u64, u32)>() + 1)
    }

    /// An object was created. Without memory it is not remembered.
    pub(super) fn created(&mut self, id: u64, class: Option<&[u8]>, has_memory: bool, now: Now) {
        self.since.get_or_insert(now);
        self.live_since.get_or_insert(now.unix);
        let class = class.map_or(NO_CLASS, |class| self.class(class, has_memory));
        self.counts[class].created += 1;
        // Its end was not received.
        if let Some(before) = self.live.remove(&id) {
            self.counts[before as usize].live -= 1;
        }
        if self.live.len() < self.limits.max_objects && (has_memory || self.live.len() < self.live.capacity()) {
            self.live.insert(id, class as u32);
            self.counts[class].live += 1;
        } else {
            self.counts[class].is_incomplete = true;
        }
    }

    /// An object was destroyed.
    pub(super) fn destroyed(&mut self, id: u64, now: Now) {
        self.since.get_or_insert(now);
        let class = match self.live.remove(&id) {
            Some(class) => {
                self.counts[class as usize].live -= 1;
                class as usize
            }
            None => NO_CLASS,
        };
        self.counts[class].destroyed += 1;
    }

    /// Messages are missing, or the process is another one: which objects are alive is not known any more.
    pub(super) fn forget_live(&mut self) {
        self.live = HashMap::default();
        self.live_since = None;
        self.counts.iter_mut().for_each(|counts| (counts.live, counts.is_incomplete) = (0, false));
    }

    /// When the interval ends.
    pub(super) fn due(&self) -> Option<Duration> {
        if self.ended.is_some() {
            return Some(Duration::ZERO);
        }
        self.since.map(|since| since.elapsed + self.limits.interval)
    }

    /// Whether an interval is being written.
    pub(super) fn is_writing(&self) -> bool {
        self.ended.is_some()
    }

    /// Ends the interval if it is due, or in any case. `false`: it is not due, or nothing has happened in it.
    pub(super) fn end_interval(&mut self, now: Now, in_any_case: bool) -> bool {
        let Some(since) = self.since else { return false };
        if self.ended.is_some() || (!in_any_case && since.elapsed + self.limits.interval > now.elapsed) {
            return false;
        }
        let counts = self.counts.clone();
        self.counts.iter_mut().for_each(|counts| (counts.created, counts.destroyed) = (0, 0));
        self.ended = Some(Interval { start: since.unix, counts, live_since: self.live_since, class: 0, metric: 0 });
        self.since = None;
        true
    }

    /// Writes the next metric of the interval that has ended. `false`: there is none.
    pub(super) fn write_next(&mut self, now: Now, texts: &mut TextCache, out: &mut Output) -> bool {
        let Some(ended) = &mut self.ended else { return false };
        while ended.class < ended.counts.len() {
            let (class, metric) = (ended.class, ended.metric);
            (ended.class, ended.metric) = if metric == 2 { (class + 1, 0) } else { (class, metric + 1) };
            let Counts { created, destroyed, live, is_incomplete } = ended.counts[class];
            let sum = MetricType::Sum { temporality: Temporality::Delta, monotonic: true };
            let (name, metric_type, value, start) = match metric {
                0 if created > 0 => (names::RBKIT_OBJECTS_CREATED, sum, created, Some(ended.start)),
                1 if destroyed > 0 => (names::RBKIT_OBJECTS_DESTROYED, sum, destroyed, Some(ended.start)),
                // A class without objects is shown once more.
                2 if live > 0 || created + destroyed > 0 => match ended.live_since {
                    Some(since) => (names::RBKIT_OBJECTS_LIVE, MetricType::Gauge, live, Some(since)),
                    None => continue,
                },
                _ => continue,
            };
            let incomplete = match metric {
                _ if class == OTHERS => Some(names::RBKIT_CLASS_NAME.as_str()),
                2 if is_incomplete => Some(names::RBKIT_OBJECTS_LIVE.as_str()),
                _ => None,
            };
            let class = self.classes.get(class).filter(|_| class > OTHERS);
            let data = MetricData { metric_type, unit: "{object}".into(), value: Number::U64(value), start };
            let place = StreamPosition { sequence: None, offset: 0, length: 0, now };
            normalize::objects(out, (name, data), class.map(|class| &**class), incomplete, texts, place);
            return true;
        }
        self.ended = None;
        true
    }

    /// The number of a class.
    fn class(&mut self, name: &[u8], has_memory: bool) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number as usize;
        }
        if self.classes.len() >= self.limits.max_classes.saturating_add(2) || name.len() > MAX_NAME_BYTES || !has_memory
        {
            return OTHERS;
        }
        let number = self.classes.len();
        self.name_bytes += 2 * name.len();
        self.classes.push(name.into());
        self.counts.push(Counts::default());
        self.numbers.insert(name.into(), number as u32);
        number
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use tributary_event::{BatchBuilder, DataView, Origin, ValueView};

    fn now(second: u64) -> Now {
        Now {
            unix: UnixNanos(1_795_000_000_000_000_000 + second * 1_000_000_000),
            elapsed: Duration::from_secs(second),
        }
    }

    /// The metrics of an interval that ends now, by class and name, and the ages of the gauges in seconds.
    fn written(counts: &mut ObjectCounts, second: u64) -> (BTreeMap<String, u64>, Vec<u64>) {
        let origin = Origin::new("rbkit", "ruby".into(), "127.0.0.1:1".into(), 1);
        let (mut out, mut texts) = (Output::new(BatchBuilder::new(origin.into())), TextCache::default());
        counts.end_interval(now(second), true);
        while counts.write_next(now(second), &mut texts, &mut out) {}
        let (mut values, mut ages) = (BTreeMap::new(), Vec::new());
        for event in out.batch.take().events() {
            let DataView::Metric(metric) = event.data() else { panic!("a metric") };
            let class = event.attributes().find(|(key, _)| key.text() == "rbkit.class.name");
            let class = match class {
                Some((_, ValueView::Text(class))) => class.text().to_owned(),
                _ => "-".to_owned(),
            };
            let name = event.name().text().rsplit('.').next().unwrap_or_default().to_owned();
            let Number::U64(value) = metric.value else { panic!("a whole number") };
            if name == "live" {
                ages.push((now(second).unix.0 - metric.start.map_or(0, |start| start.0)) / 1_000_000_000);
            }
            // Those over the limit have no class either.
            *values.entry(format!("{class} {name}")).or_insert(0) += value;
        }
        ages.dedup();
        (values, ages)
    }

    fn expected(values: &[(&str, u64)]) -> BTreeMap<String, u64> {
        values.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
    }

    #[test]
    fn a_destroyed_object_has_the_class_with_which_it_was_created() {
        let mut counts = ObjectCounts::new(SummaryLimits::default());
        for id in 0..5 {
            counts.created(id, Some(b"Cart"), true, now(1));
        }
        counts.created(9, None, true, now(1));
        counts.destroyed(0, now(2));
        counts.destroyed(77, now(2));
        assert_eq!(counts.due(), Some(Duration::from_secs(11)));
        let first = [("- created", 1), ("- destroyed", 1), ("- live", 1)];
        let first = [&first[..], &[("Cart created", 5), ("Cart destroyed", 1), ("Cart live", 4)]].concat();
        assert_eq!(written(&mut counts, 3), (expected(&first), vec![2]));
        assert_eq!((counts.due(), written(&mut counts, 4).0.len()), (None, 0), "nothing has happened");
        // The address of an object whose end was not received is used again.
        counts.created(1, Some(b"Item"), true, now(5));
        (2..5).for_each(|id| counts.destroyed(id, now(5)));
        let second = [("- live", 1), ("Cart destroyed", 3), ("Cart live", 0), ("Item created", 1), ("Item live", 1)];
        assert_eq!(written(&mut counts, 6), (expected(&second), vec![5]));
    }

    #[test]
    fn after_missing_messages_live_objects_are_counted_from_then_on() {
        let mut counts = ObjectCounts::new(SummaryLimits::default());
        counts.created(1, Some(b"Cart"), true, now(1));
        counts.forget_live();
        counts.destroyed(1, now(5));
        counts.created(2, Some(b"Cart"), true, now(6));
        let all = [("- destroyed", 1), ("- live", 0), ("Cart created", 2), ("Cart live", 1)];
        assert_eq!(written(&mut counts, 8), (expected(&all), vec![2]));
    }

    #[test]
    fn memory_and_classes_are_bounded_and_sums_are_exact() {
        let limits = SummaryLimits { max_objects: 100, max_classes: 10, ..SummaryLimits::default() };
        let mut counts = ObjectCounts::new(limits);
        for id in 0..100_000 {
            counts.created(id, Some(format!("Class{}", id % 1000).as_bytes()), true, now(1));
        }
        (0..100_000).for_each(|id| counts.destroyed(id, now(1)));
        assert!(counts.memory_bytes() < 10_000, "{}", counts.memory_bytes());
        let (values, _) = written(&mut counts, 2);
        let sum =
            |name: &str| values.iter().filter(|(key, _)| key.ends_with(name)).map(|(_, value)| value).sum::<u64>();
        assert_eq!((sum(" created"), sum(" destroyed"), sum(" live")), (100_000, 100_000, 0));
    }
}
