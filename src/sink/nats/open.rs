//! Messages that are being made: one for each subject, because a message has one subject.

use std::sync::Arc;

use bytes::Bytes;

use super::message::{body_bytes, divide, store};
use super::options::{MAX_OPEN_BATCHES, Options};
use super::subject;
use crate::event::{Kind, Origin};
use crate::sink::forward::{Contents, Request};

/// The messages of a sink that are being made.
#[derive(Debug)]
pub(super) struct OpenMessages {
    template: String,
    batch_bytes: usize,
    max_message_bytes: usize,
    compress_above: usize,
    open: Vec<OpenMessage>,
    /// The bytes of all open messages.
    open_bytes: usize,
    /// Complete, and not compressed yet.
    complete: Vec<OpenMessage>,
}

/// A complete message.
#[derive(Debug)]
pub(super) struct Complete {
    pub(super) payload: Bytes,
    pub(super) events: u32,
    pub(super) contents: Contents,
}

#[derive(Debug)]
struct OpenMessage {
    protocol: &'static str,
    listener: Arc<str>,
    kind: Kind,
    subject: String,
    lines: Vec<u8>,
    events: u32,
    contents: Contents,
}

impl OpenMessages {
    pub(super) fn new(options: &Options) -> OpenMessages {
        OpenMessages {
            template: options.subject.clone(),
            batch_bytes: options.batch_bytes,
            max_message_bytes: options.max_message_bytes,
            compress_above: options.compress_above,
            open: Vec::new(),
            open_bytes: 0,
            complete: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Adds the line of an event to the message of its subject. Returns whether the event is small enough for a message.
    pub(super) fn push(&mut self, line: &[u8], origin: &Arc<Origin>, kind: Kind, is_counted: bool) -> bool {
        if line.len() > self.max_message_bytes && !self.fits_alone(line) {
            return false;
        }
        let index = self.message_of(origin, kind);
        let message = &mut self.open[index];
        message.lines.extend_from_slice(line);
        self.open_bytes += line.len();
        if is_counted {
            message.events += 1;
            message.contents.add(origin, 1);
        }
        if message.lines.len() >= self.batch_bytes {
            let message = self.open.swap_remove(index);
            self.open_bytes -= message.lines.len();
            self.complete.push(message);
        } else if self.open_bytes >= MAX_OPEN_BATCHES * self.batch_bytes {
            self.complete_all();
        }
        true
    }

    /// Every open message is complete.
    pub(super) fn complete_all(&mut self) {
        self.complete.append(&mut self.open);
        self.open_bytes = 0;
    }

    /// The complete messages, in parts where they are too long.
    pub(super) fn take_complete(&mut self) -> Vec<Complete> {
        let mut taken = Vec::new();
        for OpenMessage { subject, lines, events, contents, .. } in self.complete.drain(..) {
            let payload = store(&subject, &lines, self.compress_above);
            let mut parts = vec![Request { id: String::new(), events, payload }];
            while let Some(part) = parts.pop() {
                let is_too_long = body_bytes(&subject, &part.payload) > self.max_message_bytes;
                match Some(&part).filter(|_| is_too_long).and_then(|part| divide(part, self.compress_above)) {
                    // The first part is taken first.
                    Some([first, second]) => parts.extend([second, first]),
                    None => {
                        let Request { payload, events, .. } = part;
                        taken.push(Complete { payload, events, contents: contents.clone() });
                    }
                }
            }
        }
        taken
    }

    /// Whether a message with this line only is short enough after compression.
    fn fits_alone(&self, line: &[u8]) -> bool {
        body_bytes("", &store("", line, self.compress_above)) <= self.max_message_bytes
    }

    /// The index of the open message for events of this origin and kind.
    fn message_of(&mut self, origin: &Arc<Origin>, kind: Kind) -> usize {
        let (protocol, listener) = (origin.protocol, &origin.listener);
        let is_same = |message: &OpenMessage| {
            let is_same_listener = Arc::ptr_eq(&message.listener, listener) || message.listener == *listener;
            message.kind == kind && message.protocol == protocol && is_same_listener
        };
        if let Some(index) = self.open.iter().position(is_same) {
            return index;
        }
        let subject = subject::of(&self.template, origin, kind.as_str());
        // Without the listener in the template, listeners of one protocol share a message.
        if let Some(index) = self.open.iter().position(|message| message.subject == subject) {
            return index;
        }
        self.open.push(OpenMessage {
            protocol,
            listener: listener.clone(),
            kind,
            subject,
            lines: Vec::new(),
            events: 0,
            contents: Contents::default(),
        });
        self.open.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{Message, lines};
    use super::*;

    fn origin(protocol: &'static str, listener: &str) -> Arc<Origin> {
        Arc::new(Origin::new(protocol, listener.into(), "peer".into(), 1))
    }

    fn open(options: Options) -> OpenMessages {
        OpenMessages::new(&options)
    }

    fn taken(open: &mut OpenMessages) -> Vec<(String, u32, String)> {
        let complete = open.take_complete().into_iter();
        let shown = |complete: Complete| {
            let text = String::from_utf8(lines(&complete.payload).unwrap().unwrap()).unwrap();
            (Message::of(&complete.payload).unwrap().subject, complete.events, text)
        };
        complete.map(shown).collect()
    }

    #[test]
    fn events_are_put_into_messages_by_protocol_and_kind() {
        let mut open = open(Options::to(Vec::new()));
        for (line, protocol, listener, kind) in [
            ("1\n", "zico", "a", Kind::Span),
            ("2\n", "zico", "b", Kind::Span),
            ("3\n", "zico", "a", Kind::Log),
            ("4\n", "rbkit", "a", Kind::Span),
            ("5\n", "zico", "a", Kind::Span),
        ] {
            assert!(open.push(line.as_bytes(), &origin(protocol, listener), kind, line != "5\n"));
        }
        assert!(taken(&mut open).is_empty() && !open.is_empty());
        open.complete_all();
        let expected = [
            ("tributary.zico.span", 2, "1\n2\n5\n"),
            ("tributary.zico.log", 1, "3\n"),
            ("tributary.rbkit.span", 1, "4\n"),
        ];
        assert_eq!(taken(&mut open), expected.map(|(subject, events, text)| (subject.into(), events, text.into())));
        assert!(open.is_empty());
    }

    #[test]
    fn long_messages_are_divided_and_events_that_fit_into_none_are_rejected() {
        let options =
            Options { batch_bytes: 4096, max_message_bytes: 1024, compress_above: 1 << 20, ..Options::to(Vec::new()) };
        let mut open = open(options);
        let origin = origin("zico", "a");
        assert!(!open.push(&[b'x'; 1025], &origin, Kind::Log, true));
        assert!(open.is_empty());
        let line = format!("{}\n", "y".repeat(99));
        (0..41).for_each(|_| assert!(open.push(line.as_bytes(), &origin, Kind::Log, true)));
        let parts = taken(&mut open);
        assert!(open.is_empty() && parts.len() >= 4);
        assert!(parts.iter().all(|(_, events, text)| text.len() <= 1024 && text.lines().count() == *events as usize));
        assert_eq!(parts.iter().map(|(_, events, _)| events).sum::<u32>(), 41);
    }

    #[test]
    fn open_messages_of_many_subjects_are_bounded_together() {
        let options = Options { batch_bytes: 1000, subject: "{listener}".into(), ..Options::to(Vec::new()) };
        let mut open = open(options);
        for listener in 0..100 {
            assert!(open.push(&[b'z'; 500], &origin("zico", &listener.to_string()), Kind::Log, true));
            assert!(open.open_bytes < MAX_OPEN_BATCHES * 1000);
        }
        open.complete_all();
        assert_eq!(open.complete.len(), 100);
    }
}
