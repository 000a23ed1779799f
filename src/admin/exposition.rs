//! The two text formats of metrics.

use std::fmt::{Display, Write as _};

use hyper::header::{ACCEPT, HeaderMap};

use tributary_system::histogram::DurationTotals;

/// A text format of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Exposition {
    /// The text format of Prometheus, version 0.0.4. Every scraper reads it.
    Plain,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Exposition {
    /// The format for a request: OpenMetrics if `Accept` names it and prefers no other text to it. Versions are not
    /// compared: a client that names a later one gets 1.0.0.
    pub(super) fn wanted(headers: &HeaderMap) -> Exposition {
        let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let (mut open_metrics, mut plain) = (0.0_f64, 0.0_f64);
        for range in ranges.flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            match &*media_type {
                "application/openmetrics-text" => open_metrics = open_metrics.max(quality(parts)),
                "text/plain" => plain = plain.max(quality(parts)),
                _ => {}
            }
        }
        // `*/*` and types that are not known here mean the format that every scraper reads.
        if open_metrics > 0.0 && open_metrics >= plain { Exposition::OpenMetrics } else { Exposition::Plain }
    }

    /// Its media type.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Exposition::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The weight of a media range among its parameters: 0 (not acceptable) to 1 (RFC 9110, section 12.4.2). One that cannot be
/// read counts as absent.
fn quality<'a>(mut parameters: impl Iterator<Item = &'a str>) -> f64 {
    let weight = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse::<f64>().ok())?
    });
    weight.filter(|weight| (0.0..=1.0).contains(weight)).unwrap_or(1.0)
}

/// What kind of metric a family has.
#[derive(Clone, Copy, Debug)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

/// Writes metrics in a text format. The formats differ in the names of counters and in the end of the text.
#[derive(Debug)]
pub(super) struct Writer {
    format: Exposition,
    text: String,
    /// The name of the series of the present family.
    series: String,
}

impl Writer {
    pub(super) fn new(format: Exposition) -> Writer {
        Writer { format, text: String::new(), series: String::new() }
    }

    /// Begins a family: the samples that follow are of this metric. The name of a counter is without `_total`; the help has
    /// no line feed and no backslash.
    pub(super) fn family(&mut self, name: &str, help: &str, kind: MetricKind) {
        let (kind, end) = match kind {
            MetricKind::Counter => ("counter", "_total"),
            MetricKind::Gauge => ("gauge", ""),
            MetricKind::Histogram => ("histogram", ""),
        };
        self.series = format!("{name}{end}");
        let described = if self.format == Exposition::Plain { &self.series } else { name };
        let _ = write!(self.text, "# HELP {described} {help}\n# TYPE {described} {kind}\n");
    }

    /// Writes a sample of the present family.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.sample_of("", labels, value);
    }

    /// Writes the samples of a histogram.
    pub(super) fn durations(&mut self, labels: &[(&str, &str)], durations: &DurationTotals) {
        self.sample_of("_sum", labels, format_args!("{:?}", durations.sum_seconds()));
        self.sample_of("_count", labels, durations.count());
        let mut count = 0;
        for (bound, in_bucket) in durations.buckets() {
            count += in_bucket;
            let bound = if bound.is_finite() { format!("{bound:?}") } else { "+Inf".to_owned() };
            self.sample_of("_bucket", &[&[("le", &*bound)], labels].concat(), count);
        }
    }

    /// The text.
    pub(super) fn finish(mut self) -> String {
        if self.format == Exposition::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn sample_of(&mut self, end: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "{}{end}", self.series);
        for (at, (label, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
            let _ = write!(self.text, "{}{label}=\"{value}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_of_a_counter_has_the_name_of_its_series_in_the_plain_format() {
        let written = |format| {
            let mut writer = Writer::new(format);
            writer.family("a", "Things", MetricKind::Counter);
            writer.sample(&[("x", "# TYPE"), ("y", "\"\\\n")], 1);
            writer.family("b", "Size", MetricKind::Gauge);
            writer.sample(&[], -2);
            writer.finish()
        };
        let samples = "a_total{x=\"# TYPE\",y=\"\\\"\\\\\\n\"} 1\n# HELP b Size\n# TYPE b gauge\nb -2\n";
        assert_eq!(written(Exposition::Plain), format!("# HELP a_total Things\n# TYPE a_total counter\n{samples}"));
        assert_eq!(written(Exposition::OpenMetrics), format!("# HELP a Things\n# TYPE a counter\n{samples}# EOF\n"));
    }

    #[test]
    fn a_scraper_gets_the_format_that_it_asks_for() {
        let wanted = |accept: &[&'static str]| {
            let values = accept.iter().map(|value| (ACCEPT, value.parse().unwrap()));
            Exposition::wanted(&values.collect())
        };
        assert_eq!(wanted(&[]), Exposition::Plain);
        assert_eq!(wanted(&["*/*"]), Exposition::Plain);
        assert_eq!(wanted(&["text/plain;version=0.0.4"]), Exposition::Plain);
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert_eq!(wanted(&[prometheus]), Exposition::OpenMetrics);
        for plain in [
            "application/openmetrics-text;q=0,text/plain",
            "application/openmetrics-text; q=0.0",
            "application/openmetrics-text;version=1.0.0;q=0.2,text/plain;version=0.0.4;q=0.9",
            "application/openmetrics-textile",
        ] {
            assert_eq!(wanted(&[plain]), Exposition::Plain, "{plain}");
        }
        for open_metrics in [
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5",
            "Application/OpenMetrics-Text;Q=0.5,text/plain;q=0.5",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;q=high",
        ] {
            assert_eq!(wanted(&[open_metrics]), Exposition::OpenMetrics, "{open_metrics}");
        }
        assert_eq!(wanted(&["text/plain;q=0.5", "application/openmetrics-text"]), Exposition::OpenMetrics);
    }
}
