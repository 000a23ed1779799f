//! The rows of the tables of counters, and what is made of a table: metrics, members of the API's JSON, the documentation.

use serde_json::{Map, Value as Json};

use crate::admin::exposition::{MetricKind, Writer};
use tributary_system::histogram::DurationTotals;

/// The counters of one kind of component. Its rows are in the order of `/metrics` and of the API.
pub(in crate::admin) struct Table<T: 'static> {
    /// The labels that name a component.
    pub(super) labels: &'static [&'static str],
    pub(super) rows: &'static [Row<T>],
}

/// A counter or gauge.
pub(super) struct Row<T: 'static> {
    /// The name of the metric; of a counter without `_total`. Empty: only the API has it.
    name: &'static str,
    help: &'static str,
    kind: MetricKind,
    value: Value<T>,
    /// Under which keys the API has it.
    keys: &'static [Key],
    /// The labels, if they are others than those of the table.
    labels: Option<&'static [&'static str]>,
    has: fn(&T) -> bool,
}

/// How the value of a row is read.
pub(super) enum Value<T> {
    One(fn(&T) -> i128),
    /// A value for each value of a further label.
    Each(&'static str, fn(&T) -> Series),
    Seconds(fn(&T) -> f64),
    Durations(fn(&T) -> DurationTotals),
}

/// Values of a label, and the numbers.
pub(super) type Series = Vec<(String, i128)>;

/// How the API shows a row.
pub(super) enum Key {
    /// As one number: the value, or the sum of all.
    Number(&'static str),
    /// As an object with a number for each value of the label.
    Object(&'static str),
    /// As a number for each value of the label, with it as the key.
    Labels,
}

/// A component, with the values of the labels that name it.
pub(in crate::admin) trait Labelled {
    /// The value of one of the labels of its table.
    fn label(&self, _name: &str) -> &str {
        ""
    }
}

/// A row of a counter.
pub(super) const fn counter<T>(name: &'static str, help: &'static str, value: Value<T>) -> Row<T> {
    Row { name, help, kind: MetricKind::Counter, value, keys: &[], labels: None, has: |_| true }
}

/// A row of a gauge.
pub(super) const fn gauge<T>(name: &'static str, help: &'static str, value: Value<T>) -> Row<T> {
    Row { name, help, kind: MetricKind::Gauge, value, keys: &[], labels: None, has: |_| true }
}

/// A row of a histogram of times.
pub(super) const fn histogram<T>(name: &'static str, help: &'static str, value: fn(&T) -> DurationTotals) -> Row<T> {
    let value = Value::Durations(value);
    Row { name, help, kind: MetricKind::Histogram, value, keys: &[], labels: None, has: |_| true }
}

/// A row that the API has, too, under these keys.
pub(super) const fn api<T>(keys: &'static [Key], mut row: Row<T>) -> Row<T> {
    row.keys = keys;
    row
}

/// A row that the API alone has.
pub(super) const fn unexported<T>(keys: &'static [Key], value: fn(&T) -> i128) -> Row<T> {
    api(keys, gauge("", "", Value::One(value)))
}

/// A row that only some components have, with these labels.
pub(super) const fn only<T>(has: fn(&T) -> bool, labels: &'static [&'static str], mut row: Row<T>) -> Row<T> {
    (row.has, row.labels) = (has, Some(labels));
    row
}

impl<T: Labelled> Table<T> {
    /// Writes the metrics of these components.
    pub(super) fn write(&self, components: &[T], out: &mut Writer) {
        for row in self.rows.iter().filter(|row| !row.name.is_empty()) {
            out.family(row.name, row.help, row.kind);
            for component in components.iter().filter(|component| (row.has)(component)) {
                let names = row.labels.unwrap_or(self.labels);
                let labels: Vec<_> = names.iter().map(|name| (*name, component.label(name))).collect();
                match row.value {
                    Value::One(read) => out.sample(&labels, read(component)),
                    Value::Each(label, read) => {
                        for (value, number) in read(component) {
                            out.sample(&[labels.as_slice(), &[(label, &value)]].concat(), number);
                        }
                    }
                    Value::Seconds(read) => out.sample(&labels, format_args!("{:?}", read(component))),
                    Value::Durations(read) => out.durations(&labels, &read(component)),
                }
            }
        }
    }
}

impl<T> Table<T> {
    /// What the API shows of a component.
    pub(in crate::admin) fn json(&self, component: &T) -> Map<String, Json> {
        let number = |number: i128| Json::from(i64::try_from(number).unwrap_or(i64::MAX));
        let mut json = Map::new();
        for row in self.rows {
            let series = match row.value {
                Value::One(read) => vec![(String::new(), read(component))],
                Value::Each(_, read) => read(component),
                Value::Seconds(_) | Value::Durations(_) => continue,
            };
            let numbers = || series.iter().map(|(label, value)| (label.clone(), number(*value)));
            for key in row.keys {
                match key {
                    Key::Number(key) => {
                        let sum = series.iter().map(|(_, number)| number).sum();
                        json.insert((*key).to_owned(), number(sum));
                    }
                    Key::Object(key) => drop(json.insert((*key).to_owned(), Json::Object(numbers().collect()))),
                    Key::Labels => json.extend(numbers()),
                }
            }
        }
        json
    }

    /// A line of the documentation for each metric: its series, its labels, its help.
    #[cfg(test)]
    pub(super) fn documentation(&self) -> String {
        let line = |row: &Row<T>| {
            let further = if let Value::Each(label, _) = row.value { Some(label) } else { None };
            let labels: Vec<_> = row.labels.unwrap_or(self.labels).iter().copied().chain(further).collect();
            let end = if matches!(row.kind, MetricKind::Counter) { "_total" } else { "" };
            format!("| `{}{end}` | {} | {} |\n", row.name, labels.join(", "), row.help)
        };
        self.rows.iter().filter(|row| !row.name.is_empty()).map(line).collect()
    }
}
