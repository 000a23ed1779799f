//! Texts that the events of a bundle have in common: each is written into a batch once.

use tributary_event::{BatchBuilder, Interned, InternedRun, Text, UnixNanos, semconv};

use super::period;
use super::registry::{Field, RegisteredEvent, Shape};

/// Longer texts are not remembered.
const MAX_REMEMBERED_BYTES: usize = 128;

/// The places of a bundle's texts in the batch that is being written.
#[derive(Debug, Default)]
pub(super) struct BundleTexts {
    /// By [`RegisteredEvent::number`].
    events: Vec<EventTexts>,
    /// By [`Field::number`].
    fields: Vec<Interned>,
    os_version: Latest,
    period: Latest,
    /// The latest period, with its start and end.
    bounds: Option<(String, Option<(UnixNanos, UnixNanos)>)>,
    received: Interned,
}

/// The texts of one registered event.
#[derive(Clone, Debug, Default)]
struct EventTexts {
    /// Its first attributes: id, name, OS version.
    head: InternedRun,
    /// The OS version in `head`, by [`Latest::changes`].
    version: u64,
    payload_type: Latest,
    /// The fields of a payload of that type.
    fields: Option<&'static [Field]>,
}

/// A text that is usually the same as the one before.
#[derive(Clone, Debug, Default)]
struct Latest {
    text: Option<String>,
    memo: Interned,
    /// How often it changed.
    changes: u64,
}

impl BundleTexts {
    /// The first attributes of an event: its id, its name, and the OS version where it has one.
    pub(super) fn head(&mut self, known: &RegisteredEvent, os_version: Option<&str>, batch: &mut BatchBuilder) -> u32 {
        let version = os_version.map(|version| self.os_version.find(version.as_bytes(), batch));
        let changes = self.os_version.changes;
        let of = self.of(known);
        if of.version != changes {
            (of.head, of.version) = (InternedRun::default(), changes);
        }
        let id_and_name = |batch: &mut BatchBuilder| {
            let (id, name) = (batch.push_text(&known.id), batch.push_text(known.name));
            [(semconv::ENDLESS_EVENT_ID.into(), id.into()), (semconv::ENDLESS_EVENT_NAME.into(), name.into())]
        };
        match version {
            Some(version) => batch.intern_run(&mut of.head, |batch| {
                let [id, name] = id_and_name(batch);
                [id, name, (semconv::OS_VERSION.into(), version.into())]
            }),
            None => batch.intern_run(&mut of.head, id_and_name),
        }
    }

    /// The type of an event's payload, which is ASCII, and the fields of such a payload, from [`Shape::fields`].
    pub(super) fn payload_type(
        &mut self,
        known: &RegisteredEvent,
        shape: Option<&'static Shape>,
        payload_type: &[u8],
        batch: &mut BatchBuilder,
    ) -> (Text, Option<&'static [Field]>) {
        let EventTexts { payload_type: latest, fields, .. } = self.of(known);
        let changes = latest.changes;
        let text = latest.find(payload_type, batch);
        if latest.changes != changes {
            *fields = shape.and_then(|shape| shape.fields(str::from_utf8(payload_type).ok()));
        }
        (text, *fields)
    }

    /// The name of a field.
    pub(super) fn field(&mut self, field: &Field, batch: &mut BatchBuilder) -> Text {
        batch.intern(place(&mut self.fields, field.number), field.name)
    }

    /// The OS version.
    pub(super) fn os_version(&mut self, text: &str, batch: &mut BatchBuilder) -> Text {
        self.os_version.find(text.as_bytes(), batch)
    }

    /// The period of an aggregate.
    pub(super) fn period(&mut self, text: &str, batch: &mut BatchBuilder) -> Text {
        self.period.find(text.as_bytes(), batch)
    }

    /// Start and end of a period; `None`: the text is not a period.
    pub(super) fn bounds(&mut self, period: &str) -> Option<(UnixNanos, UnixNanos)> {
        match &self.bounds {
            Some((known, bounds)) if known == period => *bounds,
            _ => {
                let bounds = period::bounds(period);
                if period.len() <= MAX_REMEMBERED_BYTES {
                    self.bounds = Some((period.to_owned(), bounds));
                }
                bounds
            }
        }
    }

    /// The mark of times that are based on our clock.
    pub(super) fn received(&mut self, batch: &mut BatchBuilder) -> Text {
        batch.intern(&mut self.received, semconv::TIME_BASIS_RECEIVED)
    }

    fn of(&mut self, known: &RegisteredEvent) -> &mut EventTexts {
        place(&mut self.events, known.number)
    }
}

impl Latest {
    /// The place of a text, which is UTF-8, in the batch.
    fn find(&mut self, text: &[u8], batch: &mut BatchBuilder) -> Text {
        if let Some(known) = &self.text
            && known.as_bytes() == text
        {
            return batch.intern(&mut self.memo, known);
        }
        let text = str::from_utf8(text).unwrap_or_default();
        self.changes += 1;
        if text.len() > MAX_REMEMBERED_BYTES {
            self.text = None;
            return batch.push_text(text);
        }
        self.memo = Interned::default();
        batch.intern(&mut self.memo, self.text.insert(text.to_owned()))
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
    use std::sync::Arc;
    use tributary_event::{Header, Origin, Position, Severity, UnixNanos};

    /// Writes an event, so that there is a batch to take.
    fn take(batch: &mut BatchBuilder) {
        let name = batch.push_text("x");
        batch.event(Header::observed_at(name, UnixNanos(0), Position::default())).log(Severity::Info, None);
        assert_eq!(batch.take().len(), 1);
    }

    #[test]
    fn each_text_is_written_into_a_batch_once() {
        let mut batch = BatchBuilder::new(Arc::new(Origin::new("endless", "e".into(), "peer".into(), 1)));
        let mut texts = BundleTexts::default();
        let known = registry::known(&0x0bba3340_52e3_41a2_854f_e6ed36621379u128.to_be_bytes()).unwrap();
        let place = |text: Text| format!("{text:?}");
        for _ in 0..2 {
            let first = place(texts.os_version("5.1", &mut batch));
            let run = texts.head(known, Some("5.1"), &mut batch);
            assert_eq!(
                (place(texts.os_version("5.1", &mut batch)), texts.head(known, Some("5.1"), &mut batch)),
                (first.clone(), run)
            );
            let other = texts.os_version("5.2", &mut batch);
            assert_ne!(place(other), first);
            assert_ne!(place(texts.os_version("5.1", &mut batch)), place(other));
            // The version changed in between.
            assert_ne!(texts.head(known, Some("5.1"), &mut batch), run);
            let mut head = |version: &str| texts.head(known, Some(version), &mut batch);
            let long = ["5", "6"].map(|digit| digit.repeat(MAX_REMEMBERED_BYTES + 1));
            let runs = [head(&long[0]), head(&long[1]), head(""), head(&long[1]), head("5.1")];
            assert!((1..runs.len()).all(|index| !runs[..index].contains(&runs[index])), "{runs:?}");
            take(&mut batch);
        }
        let long = "x".repeat(MAX_REMEMBERED_BYTES + 1);
        let (one, two) = (texts.period(&long, &mut batch), texts.period(&long, &mut batch));
        assert_ne!(place(one), place(two));
        assert_eq!((one.len(), &texts.period.text), (MAX_REMEMBERED_BYTES + 1, &None));
    }
}
