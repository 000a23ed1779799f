//! Texts that the events of a bundle have in common: each stands in a batch once.

use crate::event::{BatchBuilder, Interned, Text};

use super::registry::{Field, Known};

/// A longer text is not looked for.
const LONGEST: usize = 128;

/// Where the texts of one bundle stand in the batch that is being written.
#[derive(Debug, Default)]
pub(super) struct Texts {
    /// By [`Known::number`].
    events: Vec<OfEvent>,
    /// By [`Field::number`].
    fields: Vec<Interned>,
    os_version: Latest,
    period: Latest,
}

/// Those of one known event.
#[derive(Clone, Debug, Default)]
struct OfEvent {
    id: Interned,
    name: Interned,
    payload_type: Latest,
}

/// A text that is mostly the same as the last time.
#[derive(Clone, Debug, Default)]
struct Latest {
    text: String,
    memo: Interned,
}

impl Texts {
    /// The event's id.
    pub(super) fn id(&mut self, known: &Known, batch: &mut BatchBuilder) -> Text {
        batch.intern(&mut self.of(known).id, &known.id)
    }

    /// The event's name.
    pub(super) fn name(&mut self, known: &Known, batch: &mut BatchBuilder) -> Text {
        batch.intern(&mut self.of(known).name, known.name)
    }

    /// The type of a payload of the event.
    pub(super) fn payload_type(&mut self, known: &Known, text: &str, batch: &mut BatchBuilder) -> Text {
        self.of(known).payload_type.find(text, batch)
    }

    /// The name of a field.
    pub(super) fn field(&mut self, field: &Field, batch: &mut BatchBuilder) -> Text {
        batch.intern(place(&mut self.fields, field.number), field.name)
    }

    /// The version of the system.
    pub(super) fn os_version(&mut self, text: &str, batch: &mut BatchBuilder) -> Text {
        self.os_version.find(text, batch)
    }

    /// The period of an aggregate.
    pub(super) fn period(&mut self, text: &str, batch: &mut BatchBuilder) -> Text {
        self.period.find(text, batch)
    }

    fn of(&mut self, known: &Known) -> &mut OfEvent {
        place(&mut self.events, known.number)
    }
}

impl Latest {
    fn find(&mut self, text: &str, batch: &mut BatchBuilder) -> Text {
        if text.len() > LONGEST {
            return batch.push_text(text);
        }
        if self.text != text {
            text.clone_into(&mut self.text);
            self.memo = Interned::default();
        }
        batch.intern(&mut self.memo, text)
    }
}

fn place<T: Clone + Default>(places: &mut Vec<T>, number: usize) -> &mut T {
    if places.len() <= number {
        places.resize(number + 1, T::default());
    }
    &mut places[number]
}

#[cfg(test)]
mod tests {
    use super::super::registry;
    use super::*;
    use crate::event::{Header, Origin, Position, Severity, UnixNanos};
    use std::sync::Arc;

    /// Ends an event, so that there is a batch to take.
    fn take(batch: &mut BatchBuilder) {
        let name = batch.push_text("x");
        batch.event(Header::observed_at(name, UnixNanos(0), Position::default())).log(Severity::Info, None);
        assert_eq!(batch.take().len(), 1);
    }

    #[test]
    fn a_text_is_written_once_into_each_batch_and_another_one_is_another() {
        let mut batch = BatchBuilder::new(Arc::new(Origin::new("endless", "e".into(), "peer".into(), 1)));
        let mut texts = Texts::default();
        let known = registry::known(&0x0bba3340_52e3_41a2_854f_e6ed36621379u128.to_be_bytes()).unwrap();
        let place = |text: Text| format!("{text:?}");
        for _ in 0..2 {
            let first = [texts.id(known, &mut batch), texts.os_version("5.1", &mut batch)].map(place);
            let again = [texts.id(known, &mut batch), texts.os_version("5.1", &mut batch)].map(place);
            assert_eq!(first, again);
            let other = texts.os_version("5.2", &mut batch);
            assert_ne!(place(other), first[1]);
            assert_ne!(place(texts.os_version("5.1", &mut batch)), place(other));
            take(&mut batch);
        }
        let long = "x".repeat(LONGEST + 1);
        let (one, two) = (texts.period(&long, &mut batch), texts.period(&long, &mut batch));
        assert_ne!(place(one), place(two));
        assert_eq!((one.len(), texts.period.text.len()), (LONGEST + 1, 0));
    }
}
