//! Lines of DogStatsD, versions 1.0 to 1.3: metrics, events and service checks.

/// A line.
#[derive(Debug, PartialEq)]
pub(super) enum Line<'a> {
    Metric(MetricLine<'a>),
    Event(EventLine<'a>),
    Check(CheckLine<'a>),
}

/// One or more values of a metric.
#[derive(Debug, PartialEq)]
pub(super) struct MetricLine<'a> {
    pub(super) name: &'a str,
    /// Separated by colons, except those of a set.
    pub(super) values: &'a str,
    pub(super) kind: MetricKind,
    /// Which part of the values was sent, above 0 and at most 1.
    pub(super) rate: f64,
    /// Seconds since the epoch; `None`: the values are about now.
    pub(super) timestamp: Option<u64>,
    pub(super) context: LineContext<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    Counter,
    Gauge,
    Set,
    Histogram,
    /// A histogram in milliseconds.
    Timing,
    Distribution,
}

/// What a line is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineContext<'a> {
    /// Separated by commas.
    pub(super) tags: &'a str,
    pub(super) container: &'a str,
    pub(super) external: &'a str,
    pub(super) cardinality: &'a str,
    /// Of events and service checks.
    pub(super) host: &'a str,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct EventLine<'a> {
    pub(super) title: &'a str,
    /// Line feeds are written as `\n`.
    pub(super) text: &'a str,
    pub(super) timestamp: Option<u64>,
    pub(super) priority: &'a str,
    pub(super) alert_type: &'a str,
    pub(super) aggregation_key: &'a str,
    pub(super) source_type: &'a str,
    pub(super) context: LineContext<'a>,
}

#[derive(Debug, PartialEq)]
pub(super) struct CheckLine<'a> {
    pub(super) name: &'a str,
    pub(super) status: CheckStatus,
    pub(super) timestamp: Option<u64>,
    pub(super) message: &'a str,
    pub(super) context: LineContext<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckStatus {
    Ok,
    Warning,
    Critical,
    Unknown,
}

/// What a line should have.
pub(super) type LineError = &'static str;

impl<'a> Line<'a> {
    pub(super) fn read(line: &'a str) -> Result<Line<'a>, LineError> {
        if let Some(rest) = line.strip_prefix("_e{") {
            EventLine::read(rest).map(Line::Event)
        } else if let Some(rest) = line.strip_prefix("_sc|") {
            CheckLine::read(rest).map(Line::Check)
        } else {
            MetricLine::read(line).map(Line::Metric)
        }
    }
}

impl<'a> MetricLine<'a> {
    fn read(line: &'a str) -> Result<MetricLine<'a>, LineError> {
        let (head, sections) = line.split_once('|').ok_or("`|` behind the value")?;
        let (name, values) = head.split_once(':').ok_or("`:` behind the name")?;
        if name.is_empty() {
            return Err("a name");
        }
        let mut sections = sections.split('|');
        let kind = match sections.next().unwrap_or_default() {
            "c" => MetricKind::Counter,
            "g" => MetricKind::Gauge,
            "s" => MetricKind::Set,
            "h" => MetricKind::Histogram,
            "ms" => MetricKind::Timing,
            "d" => MetricKind::Distribution,
            _ => return Err("the type c, g, s, h, ms or d"),
        };
        let mut metric = MetricLine { name, values, kind, rate: 1.0, timestamp: None, context: LineContext::default() };
        for section in sections {
            if let Some(rate) = section.strip_prefix('@') {
                let is_valid = |rate: &f64| *rate > 0.0 && *rate <= 1.0;
                metric.rate = rate.parse().ok().filter(is_valid).ok_or("a sample rate above 0 and at most 1")?;
            } else if let Some(time) = section.strip_prefix('T') {
                metric.timestamp = Some(time.parse().map_err(|_| "a time in whole seconds")?);
            } else {
                metric.context.read(section);
            }
        }
        match kind {
            MetricKind::Set if values.is_empty() => return Err("a value"),
            MetricKind::Set => {}
            _ => metric.numbers().try_for_each(|number| number.map(drop))?,
        }
        Ok(metric)
    }

    /// The values, unless it is a set.
    pub(super) fn numbers(&self) -> impl Iterator<Item = Result<f64, LineError>> {
        self.values.split(':').map(|value| {
            let number = value.parse().ok().filter(|number: &f64| number.is_finite());
            number.ok_or("a number as the value")
        })
    }
}

impl MetricKind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            MetricKind::Counter => "c",
            MetricKind::Gauge => "g",
            MetricKind::Set => "s",
            MetricKind::Histogram => "h",
            MetricKind::Timing => "ms",
            MetricKind::Distribution => "d",
        }
    }
}

impl<'a> LineContext<'a> {
    /// A section of a line; sections that this version does not know are skipped.
    fn read(&mut self, section: &'a str) {
        if let Some(tags) = section.strip_prefix('#') {
            self.tags = tags;
        } else if let Some(container) = section.strip_prefix("c:") {
            self.container = container;
        } else if let Some(external) = section.strip_prefix("e:") {
            self.external = external;
        } else if let Some(cardinality) = section.strip_prefix("card:") {
            self.cardinality = cardinality;
        }
    }
}

impl<'a> EventLine<'a> {
    fn read(rest: &'a str) -> Result<EventLine<'a>, LineError> {
        const LENGTHS: LineError = "the lengths of title and text as {n,n}:";
        let (lengths, rest) = rest.split_once("}:").ok_or(LENGTHS)?;
        let (title, text) = lengths.split_once(',').ok_or(LENGTHS)?;
        let (title, text): (usize, usize) = title.parse().ok().zip(text.parse().ok()).ok_or(LENGTHS)?;
        let (title, rest) = rest.split_at_checked(title).ok_or("a title of its length")?;
        let rest = rest.strip_prefix('|').ok_or("`|` behind the title")?;
        let (text, rest) = rest.split_at_checked(text).ok_or("a text of its length")?;
        if title.is_empty() || !(rest.is_empty() || rest.starts_with('|')) {
            return Err("a title, and `|` behind the text");
        }
        let mut event = EventLine { title, text, ..EventLine::default() };
        for section in rest.split('|').skip(1) {
            match section.split_once(':') {
                Some(("d", time)) => event.timestamp = Some(time.parse().map_err(|_| "a time in whole seconds")?),
                Some(("h", host)) => event.context.host = host,
                Some(("p", priority)) => event.priority = priority,
                Some(("t", alert_type)) => event.alert_type = alert_type,
                Some(("k", key)) => event.aggregation_key = key,
                Some(("s", source)) => event.source_type = source,
                _ => event.context.read(section),
            }
        }
        Ok(event)
    }
}

impl<'a> CheckLine<'a> {
    fn read(rest: &'a str) -> Result<CheckLine<'a>, LineError> {
        let mut sections = rest.split('|');
        let name = sections.next().filter(|name| !name.is_empty()).ok_or("a name")?;
        let status = match sections.next() {
            Some("0") => CheckStatus::Ok,
            Some("1") => CheckStatus::Warning,
            Some("2") => CheckStatus::Critical,
            Some("3") => CheckStatus::Unknown,
            _ => return Err("a status from 0 to 3"),
        };
        let mut check = CheckLine { name, status, timestamp: None, message: "", context: LineContext::default() };
        for section in sections {
            match section.split_once(':') {
                Some(("d", time)) => check.timestamp = Some(time.parse().map_err(|_| "a time in whole seconds")?),
                Some(("h", host)) => check.context.host = host,
                Some(("m", message)) => check.message = message,
                _ => check.context.read(section),
            }
        }
        Ok(check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_has_values_and_sections_in_any_order() {
        let Ok(Line::Metric(metric)) =
            Line::read("a.b:1:-2.5e3|ms|@0.5|#k:v,w|c:in-1|T1700000000|e:it-false|card:low|x")
        else {
            panic!("no metric")
        };
        assert_eq!(
            (metric.name, metric.kind, metric.rate, metric.timestamp),
            ("a.b", MetricKind::Timing, 0.5, Some(1_700_000_000))
        );
        assert_eq!(metric.numbers().collect::<Vec<_>>(), [Ok(1.0), Ok(-2500.0)]);
        let context =
            LineContext { tags: "k:v,w", container: "in-1", external: "it-false", cardinality: "low", host: "" };
        assert_eq!(metric.context, context);
        let Ok(Line::Metric(set)) = Line::read("u:a:b|s") else { panic!("no set") };
        assert_eq!(set.values, "a:b");
    }

    #[test]
    fn lengths_of_an_event_are_in_bytes() {
        let Ok(Line::Event(event)) = Line::read("_e{5,6}:tïtl|a|b\\nc|d:5|h:web|p:low|t:error|k:key|s:x|#a:b|c:in-2")
        else {
            panic!("no event")
        };
        assert_eq!((event.title, event.text, event.timestamp), ("tïtl", "a|b\\nc", Some(5)));
        assert_eq!(
            (event.priority, event.alert_type, event.aggregation_key, event.source_type),
            ("low", "error", "key", "x")
        );
        assert_eq!((event.context.host, event.context.tags, event.context.container), ("web", "a:b", "in-2"));
    }

    #[test]
    fn a_service_check_has_a_status() {
        let Ok(Line::Check(check)) = Line::read("_sc|db|2|d:9|h:h1|#a|m:down: no route") else { panic!("no check") };
        assert_eq!(
            (check.name, check.status, check.timestamp, check.message),
            ("db", CheckStatus::Critical, Some(9), "down: no route")
        );
    }

    #[test]
    fn bad_lines_are_refused() {
        for line in [
            "",
            "a",
            "a:1",
            "a|c",
            ":1|c",
            "a:|c",
            "a:x|c",
            "a:1|q",
            "a:1|c|@0",
            "a:1|c|@1.5",
            "a:1|c|@x",
            "a:nan|g",
            "a:1e999|g",
            "a:1::2|c",
            "a:|s",
            "a:1|c|Tx",
            "_e{1,1}:a",
            "_e{1}:a|b",
            "_e{9,1}:a|b",
            "_e{1,1}:é|b",
            "_e{0,1}:|b",
            "_e{1,1}:a|bc",
            "_sc|",
            "_sc|a|4",
            "_sc|a|0|d:x",
        ] {
            assert!(Line::read(line).is_err(), "{line}");
        }
    }
}
