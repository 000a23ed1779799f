//! The two text formats of metrics.

use hyper::header::{ACCEPT, HeaderMap};

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

    /// Metrics in OpenMetrics, in this format.
    pub(super) fn of(self, open_metrics: String) -> String {
        match self {
            Exposition::Plain => plain(&open_metrics),
            Exposition::OpenMetrics => open_metrics,
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

/// The same metrics in the text format of Prometheus: the description of a counter has the name of its series, with `_total`,
/// and no line ends the text.
fn plain(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 1024);
    let mut lines = open_metrics.lines().filter(|line| *line != "# EOF").peekable();
    while let Some(line) = lines.next() {
        // `# HELP name text` comes directly before `# TYPE name type`.
        let described = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '));
        let name_end = lines.peek().and_then(|next| next.strip_prefix("# TYPE ")?.strip_suffix(" counter"));
        match described {
            Some((name, help)) if name_end == Some(name) => {
                lines.next();
                text.push_str(&format!("# HELP {name}_total {help}\n# TYPE {name}_total counter\n"));
            }
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_of_a_counter_has_the_name_of_its_series() {
        let open_metrics =
            "# HELP a Things\n# TYPE a counter\na_total{x=\"# TYPE\"} 1\n# HELP b Size\n# TYPE b gauge\nb 2\n# EOF\n";
        let expected = "# HELP a_total Things\n# TYPE a_total counter\na_total{x=\"# TYPE\"} 1\n# HELP b Size\n# TYPE b gauge\nb 2\n";
        assert_eq!(Exposition::Plain.of(open_metrics.to_owned()), expected);
        assert_eq!(Exposition::OpenMetrics.of(open_metrics.to_owned()), open_metrics);
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
