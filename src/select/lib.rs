//! What one sink takes of the events, and what it may show of them.
//!
//! Two steps. [`Rules::choose`] stands before the queue of the sink, so what is filtered takes no capacity there, is
//! not shed, and delays no agent. [`Rules::redact`] stands in the worker, in front of everything that the sink is
//! given.
#![forbid(unsafe_code)]

mod condition;
mod glob;
mod keys;
mod number;
mod options;
mod redact;
mod sample;
mod words;

use std::fmt;
use std::io;
use std::sync::Arc;

use tributary_event::{Batch, EventView};
use tributary_sink::{Chosen, Kinds, Selection};

use condition::Condition;
pub use options::{HashOptions, MAX_RULES, Options};
use redact::Redaction;
use sample::SampleRule;

/// The rules of one sink, compiled.
#[derive(Debug)]
pub struct Rules {
    options: Options,
    /// Any of them; those that `sample` does not touch come first.
    takes: Vec<Condition>,
    unless: Vec<Condition>,
    sample: Option<SampleRule>,
    redaction: Option<Redaction>,
}

/// Two are equal if every event becomes the same in both: with the same keys of hashes, too.
impl PartialEq for Rules {
    fn eq(&self, other: &Self) -> bool {
        let has_same_key = match (&self.redaction, &other.redaction) {
            (Some(one), Some(other)) => one.has_same_key(other),
            (one, other) => one.is_none() && other.is_none(),
        };
        self.options == other.options && has_same_key
    }
}

/// A rule by which events are left out, by its place in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// No condition of `where` is true.
    Where,
    /// This condition of `unless` is true, counted from 1.
    Unless(usize),
    /// Not in the sample.
    Sample,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Where => f.write_str("where"),
            Rule::Unless(number) => write!(f, "unless.{number}"),
            Rule::Sample => f.write_str("sample"),
        }
    }
}

/// What happens to an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The sink takes it.
    Taken,
    /// The sink does not take it, by this rule.
    Filtered(Rule),
}

/// The events of a batch that a sink takes.
#[derive(Debug)]
pub struct Choice {
    /// Which; `None`: all of the sink's kinds.
    pub chosen: Option<Chosen>,
    /// How many.
    pub events: u64,
    /// How many it does not take, by rule; only rules that left out some.
    pub filtered: Vec<(Rule, u64)>,
}

impl Rules {
    /// The rules that the options ask for; `None`: there are none.
    ///
    /// # Errors
    /// The key for hashes cannot be read. The error names its file.
    pub fn new(options: &Options) -> io::Result<Option<Arc<Rules>>> {
        if *options == Options::default() {
            return Ok(None);
        }
        let mut takes = options.takes.clone();
        takes.sort_by_key(|condition| !condition.is_always);
        Ok(Some(Arc::new(Rules {
            takes,
            unless: options.unless.clone(),
            sample: options.sample,
            redaction: Redaction::new(&options.remove, options.hash.as_ref())?,
            options: options.clone(),
        })))
    }

    /// Every rule that can leave out events, in the order in which they are tried.
    pub fn filters(&self) -> impl Iterator<Item = Rule> {
        let takes = (!self.takes.is_empty()).then_some(Rule::Where);
        let unless = (1..=self.unless.len()).map(Rule::Unless);
        takes.into_iter().chain(unless).chain(self.sample.map(|_| Rule::Sample))
    }

    /// Whether the sink takes an event. `ordinal` is its number, from 0, among the events of its batch that follow each other
    /// and have the same offset.
    pub fn verdict(&self, event: EventView<'_>, ordinal: u64) -> Verdict {
        let Some(is_always) = self.takes(event) else { return Verdict::Filtered(Rule::Where) };
        if let Some(index) = self.unless.iter().position(|condition| condition.matches(event)) {
            return Verdict::Filtered(Rule::Unless(index + 1));
        }
        match &self.sample {
            Some(sample) if !is_always && !sample.keeps(event, ordinal) => Verdict::Filtered(Rule::Sample),
            _ => Verdict::Taken,
        }
    }

    /// Whether a condition that is true is marked `always`. `None`: none is true.
    #[inline]
    fn takes(&self, event: EventView<'_>) -> Option<bool> {
        if self.takes.is_empty() {
            return Some(false);
        }
        self.takes.iter().find(|condition| condition.matches(event)).map(|condition| condition.is_always)
    }

    /// The events of a batch that a sink takes, of these kinds.
    pub fn choose(&self, batch: &Batch, kinds: Kinds) -> Choice {
        let mut chosen = Chosen::none_of(batch.len());
        let mut counts: Vec<(Rule, u64)> = Vec::new();
        let mut ordinals = Ordinals::default();
        for (index, event) in batch.events().enumerate() {
            let ordinal = if self.sample.is_some_and(|sample| sample.is_by_event()) { ordinals.next(event) } else { 0 };
            if !kinds.contains(event.kind()) {
                continue;
            }
            match self.verdict(event, ordinal) {
                Verdict::Taken => chosen.add(index),
                Verdict::Filtered(rule) => match counts.iter_mut().find(|(known, _)| *known == rule) {
                    Some((_, count)) => *count += 1,
                    None => counts.push((rule, 1)),
                },
            }
        }
        let events = chosen.count();
        let chosen = (!counts.is_empty()).then_some(chosen);
        Choice { chosen, events, filtered: counts }
    }

    /// A batch of the selected events without what the sink may not show. `None`: it may show all of it.
    pub fn redact(&self, events: Selection<'_>) -> Option<Batch> {
        self.redaction.as_ref()?.apply(events.batch(), |index| events.contains(index))
    }
}

/// Numbers events that follow each other and have the same offset: those of one message.
#[derive(Default)]
struct Ordinals {
    /// Connection and offset.
    last: Option<(u64, u64)>,
    next: u64,
}

impl Ordinals {
    fn next(&mut self, event: EventView<'_>) -> u64 {
        let place = Some((event.origin().connection, event.position().offset));
        self.next = if place == self.last { self.next + 1 } else { 0 };
        self.last = place;
        self.next
    }
}

#[cfg(test)]
mod tests;
