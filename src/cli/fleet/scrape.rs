//! What `/metrics` of a daemon says.

use std::collections::BTreeSet;

/// The counters of one daemon, or the sums of several. In events, unless a field names another unit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct CounterSums {
    /// From agents.
    pub(super) received: u64,
    /// To streams.
    pub(super) published: u64,
    /// Of these: the stream had them before, and they count as published twice.
    pub(super) duplicates: u64,
    /// Of these: the stream had them before, and they count as published once or twice.
    pub(super) uncertain_duplicates: u64,
    /// From streams, for the first time.
    pub(super) consumed: u64,
    /// To sinks that are no streams.
    pub(super) written: u64,
    pub(super) failed: u64,
    pub(super) shed: u64,
    pub(super) filtered: u64,
    /// In queues and spools.
    pub(super) waiting: i64,
    /// Of messages that were delivered again.
    pub(super) repeats: u64,
    pub(super) unaccounted_bytes: i64,
    /// When the process started, in seconds since 1970. Of several, the latest.
    pub(super) started: f64,
}

/// One line: its name, its labels as they are, and its value.
struct ScrapedSample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl ScrapedSample<'_> {
    fn of(line: &str) -> Option<ScrapedSample<'_>> {
        if line.starts_with('#') {
            return None;
        }
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        Some(ScrapedSample { name: name.strip_suffix("_total").unwrap_or(name), labels, value: value.parse().ok()? })
    }

    /// The value of a label: names of listeners and sinks, and our own words, need no escapes.
    fn label(&self, name: &str) -> Option<&str> {
        let mut labels = self.labels.trim_end_matches('}').split(',').filter_map(|label| label.split_once('='));
        labels.find(|(label, _)| *label == name).map(|(_, value)| value.trim_matches('"'))
    }
}

impl CounterSums {
    /// Reads the text of `/metrics`. `None`: it has no types of sinks, so it is not of a daemon of this version.
    pub(super) fn of(text: &str) -> Option<CounterSums> {
        let samples = || text.lines().filter_map(ScrapedSample::of);
        let types = samples().filter(|sample| sample.name == "tributary_sink_info");
        let streams: BTreeSet<&str> = types
            .clone()
            .filter(|sample| sample.label("type") == Some("nats"))
            .filter_map(|sample| sample.labels.split_once("sink=\"")?.1.split_once('"').map(|(name, _)| name))
            .collect();
        types.clone().next()?;
        let mut sums = CounterSums::default();
        for sample in samples() {
            // Counters are whole numbers.
            let count = sample.value as u64;
            let is_stream = sample.label("sink").is_some_and(|sink| streams.contains(sink));
            let is_consumed = sample.label("protocol") == Some("nats");
            match (sample.name, sample.label("outcome")) {
                ("tributary_events", _) if is_consumed => sums.consumed += count,
                ("tributary_events", _) => sums.received += count,
                // Its own, which are in no message.
                ("tributary_losses", _) if is_consumed => sums.consumed = sums.consumed.saturating_sub(count),
                ("tributary_sink_events", Some("written")) if is_stream => sums.published += count,
                ("tributary_sink_events", Some("written")) => sums.written += count,
                ("tributary_sink_events", Some("failed")) => sums.failed += count,
                ("tributary_sink_events", Some("shed")) => sums.shed += count,
                ("tributary_sink_events", Some("filtered")) => sums.filtered += count,
                ("tributary_duplicate_events", _) if sample.label("attempt") == Some("first") => {
                    sums.duplicates += count;
                }
                ("tributary_duplicate_events", _) => sums.uncertain_duplicates += count,
                ("tributary_sink_events_in_flight", _) => sums.waiting += sample.value as i64,
                ("tributary_redelivered_events", _) => sums.repeats += count,
                ("tributary_unaccounted_bytes", _) => sums.unaccounted_bytes += sample.value as i64,
                ("process_start_time_seconds", _) => sums.started = sample.value,
                _ => {}
            }
        }
        sums.consumed = sums.consumed.saturating_sub(sums.repeats);
        Some(sums)
    }

    /// Published and not consumed: the number nearest to 0 that the counters allow. Negative: consumed and not published.
    pub(super) fn not_consumed(&self) -> i64 {
        let most = self.published as i64 - self.duplicates as i64 - self.consumed as i64;
        let least = most - self.uncertain_duplicates as i64;
        if least > 0 { least } else { most.min(0) }
    }

    /// Adds those of another daemon.
    pub(super) fn add(&mut self, other: &CounterSums) {
        self.received += other.received;
        self.published += other.published;
        self.duplicates += other.duplicates;
        self.uncertain_duplicates += other.uncertain_duplicates;
        self.consumed += other.consumed;
        self.written += other.written;
        self.failed += other.failed;
        self.shed += other.shed;
        self.filtered += other.filtered;
        self.waiting += other.waiting;
        self.repeats += other.repeats;
        self.unaccounted_bytes += other.unaccounted_bytes;
        self.started = self.started.max(other.started);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_distinguished_by_listener_and_sink() {
        let text = "# HELP x\ntributary_events_total{listener=\"a\",protocol=\"zico\",kind=\"log\"} 5\n\
            tributary_events_total{listener=\"s\",protocol=\"nats\",kind=\"log\"} 20\n\
            tributary_losses_total{listener=\"s\",protocol=\"nats\",reason=\"failed\"} 1\n\
            tributary_losses_total{listener=\"a\",protocol=\"zico\",reason=\"failed\"} 1\n\
            tributary_redelivered_events_total{listener=\"s\"} 4\n\
            tributary_sink_info{sink=\"stream\",type=\"nats\"} 1\ntributary_sink_info{sink=\"files\",type=\"file\"} 1\n\
            tributary_sink_events_total{sink=\"stream\",outcome=\"written\"} 3\n\
            tributary_duplicate_events_total{sink=\"stream\",attempt=\"first\"} 2\n\
            tributary_duplicate_events_total{sink=\"stream\",attempt=\"repeated\"} 1\n\
            tributary_sink_events_total{sink=\"files\",outcome=\"written\"} 7\n\
            tributary_sink_events_total{sink=\"files\",outcome=\"failed\"} 2\n\
            tributary_sink_events_in_flight{sink=\"stream\"} 2\ntributary_unaccounted_bytes{listener=\"a\",protocol=\"zico\"} 0\n\
            process_start_time_seconds 17.5\n";
        let sums = CounterSums::of(text).unwrap();
        let expected = CounterSums {
            received: 5,
            published: 3,
            duplicates: 2,
            uncertain_duplicates: 1,
            consumed: 15,
            written: 7,
            failed: 2,
            waiting: 2,
            repeats: 4,
            started: 17.5,
            ..CounterSums::default()
        };
        assert_eq!(sums, expected);
        assert_eq!(CounterSums::of("tributary_events_total 5\n"), None);
    }

    #[test]
    fn duplicates_of_another_daemon_are_not_missing_and_those_of_a_repeated_attempt_may_be_of_either() {
        let not_consumed = |published, duplicates, uncertain_duplicates, consumed| {
            CounterSums { published, duplicates, uncertain_duplicates, consumed, ..CounterSums::default() }
                .not_consumed()
        };
        assert_eq!(not_consumed(20, 10, 0, 10), 0, "both daemons have published the same");
        assert_eq!(not_consumed(10, 0, 10, 10), 0, "the first acknowledgement was lost");
        assert_eq!(not_consumed(20, 0, 10, 10), 0, "the first attempt was lost, and the other daemon has published");
        assert_eq!(not_consumed(30, 10, 5, 10), 5);
        assert_eq!(not_consumed(30, 10, 5, 22), -2);
    }
}
