//! Rules read from a configuration and applied to batches.

mod conditions;
mod redaction;
mod sampling;

use std::sync::Arc;

use super::{Options, Rules};
use tributary_event::{Batch, BatchBuilder, EventView, Header, Key, Origin, Position, UnixNanos};
use tributary_options::ConfigErrors;
use tributary_options::section::read_document;
use tributary_sink::{Kinds, Selection};

/// The listeners that conditions may name.
const LISTENERS: [&str; 2] = ["java", "shop"];

fn read(text: &str) -> Result<Options, ConfigErrors> {
    read_document("t", text, "", |root| Options::read(root, &LISTENERS)).map(|(options, _)| options)
}

fn rules(text: &str) -> Arc<Rules> {
    let options = read(text).unwrap_or_else(|errors| panic!("{errors}"));
    Rules::new(&options).unwrap().expect("rules")
}

fn builder(protocol: &'static str, listener: &str) -> BatchBuilder {
    BatchBuilder::new(Arc::new(Origin::new(protocol, listener.into(), "192.0.2.7:40112".into(), 9)))
}

fn header(name: impl Into<Key>, offset: u64) -> Header {
    let position = Position { sequence: None, offset, length: 1 };
    Header { name: name.into(), time: None, observed: UnixNanos(1), position }
}

fn names<'a>(events: impl Iterator<Item = EventView<'a>>) -> Vec<String> {
    events.map(|event| event.name().text().to_owned()).collect()
}

/// The names of the events that these rules let through.
fn taken(rules: &Rules, batch: &Batch) -> Vec<String> {
    let choice = rules.choose(batch, Kinds::ALL);
    let selection = Selection::new(batch, Kinds::ALL).chosen(choice.chosen.as_ref());
    let filtered: u64 = choice.filtered.iter().map(|(_, events)| events).sum();
    assert_eq!((selection.count(), choice.events + filtered), (choice.events, batch.len() as u64));
    names(selection.events())
}
