//! Which stored events are read: those of a time, and those that meet conditions.

use std::sync::Arc;
use std::time::SystemTime;

use jiff::Timestamp;

use super::super::{CommandLineError, duration};
use super::toml_value;
use tributary_event::{Batch, EventView};
use tributary_options::section::read_document;
use tributary_select::{self as select, Rules, Verdict};

#[derive(Debug, clap::Args)]
#[group(id = "filter")]
#[command(next_help_heading = "Stored events")]
pub(super) struct Arguments {
    /// Only events of this time or later: RFC 3339, or `-15m` before now. The event's time; if it has none, when it was read
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = moment)]
    since: Option<u64>,
    /// Only events before this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, value_parser = moment)]
    until: Option<u64>,
    /// Only events that meet this condition, by the keys of `where` of a sink: kind=span, severity=error, attribute=KEY
    /// followed by equals=VALUE … All must be true; can be repeated
    #[arg(long = "where", value_name = "KEY=VALUE")]
    conditions: Vec<String>,
}

impl Arguments {
    /// Whether they leave out any events.
    pub(super) fn is_any(&self) -> bool {
        self.since.is_some() || self.until.is_some() || !self.conditions.is_empty()
    }

    /// # Errors
    /// A condition is invalid.
    pub(super) fn filter(&self) -> Result<StoredFilter, CommandLineError> {
        let mut groups: Vec<Vec<(&str, &str)>> = Vec::new();
        for condition in &self.conditions {
            let Some((key, value)) = condition.split_once('=') else {
                return Err(CommandLineError::Misused(format!("--where {condition}: not KEY=VALUE")));
            };
            // A key that repeats, and a further attribute, begin another condition.
            let is_field = |key: &str| key == "attribute" || key == "resource";
            let repeats = |(known, _): &(&str, &str)| *known == key || is_field(known) && is_field(key);
            match groups.last_mut() {
                Some(last) if !last.iter().any(repeats) => last.push((key, value)),
                _ => groups.push(vec![(key, value)]),
            }
        }
        let rules = groups.iter().map(|group| rules(group)).collect::<Result<Vec<_>, _>>()?;
        Ok(StoredFilter { since: self.since, until: self.until, rules: rules.into_iter().flatten().collect() })
    }
}

/// The rules of one condition.
fn rules(condition: &[(&str, &str)]) -> Result<Option<Arc<Rules>>, CommandLineError> {
    let keys: Vec<_> = condition.iter().map(|(key, value)| format!("{key} = {}", toml_value(value))).collect();
    let text = format!("where = [{{ {} }}]\n", keys.join(", "));
    // The files can have events of any listener.
    let listeners: Vec<_> = condition.iter().filter(|(key, _)| *key == "listener").map(|(_, value)| *value).collect();
    let read = read_document("--where", &text, "", |root| select::Options::read(root, &listeners));
    let (options, _) = read.map_err(|errors| CommandLineError::Misused(format!("invalid --where\n{errors}")))?;
    Ok(Rules::new(&options)?)
}

/// A time in nanoseconds: RFC 3339, or a duration before now.
fn moment(text: &str) -> Result<u64, String> {
    let nanos = match text.strip_prefix('-') {
        Some(ago) => {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            return Ok(u64::try_from(now.saturating_sub(duration(ago)?).as_nanos()).unwrap_or(u64::MAX));
        }
        None => text.parse::<Timestamp>().map(Timestamp::as_nanosecond),
    };
    let nanos =
        nanos.map_err(|_| "write a time such as 2026-11-20T14:03:00Z, or -15m for 15 minutes ago".to_owned())?;
    u64::try_from(nanos).map_err(|_| "times before 1970 are none of events".to_owned())
}

/// What is read of stored events.
pub(super) struct StoredFilter {
    since: Option<u64>,
    until: Option<u64>,
    /// An event meets all of them.
    rules: Vec<Arc<Rules>>,
}

impl StoredFilter {
    /// The events of a batch that are read.
    pub(super) fn apply(&self, batch: Batch) -> Batch {
        let chosen: Vec<bool> = batch.events().map(|event| self.accepts(event)).collect();
        if chosen.iter().all(|is_chosen| *is_chosen) { batch } else { batch.copy_of(|index| chosen[index]) }
    }

    fn accepts(&self, event: EventView<'_>) -> bool {
        let time = event.time().unwrap_or(event.observed()).0;
        self.since.is_none_or(|since| time >= since)
            && self.until.is_none_or(|until| time < until)
            && self.rules.iter().all(|rules| rules.verdict(event, 0) == Verdict::Taken)
    }
}
