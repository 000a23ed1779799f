//! Messages that are being made: one for each subject, because a message has one subject.
//!
//! A batch whose content has an id is in messages of its own, one for each subject, whatever else is sent: the same content that is
//! sent again, by this daemon or another one, is in messages with the same ids, and JetStream drops them.

use std::sync::Arc;

use super::message::{NatsMessage, body_bytes, divide, store};
use super::options::{MAX_OPEN_BATCHES, Options};
use super::subject;
use tributary_event::{ContentId, Kind, Origin};
use tributary_sink_forward::{CompleteRequest, Contents, EncodedRequest};

/// The messages of a sink that are being made.
#[derive(Debug)]
pub(super) struct OpenMessages {
    sink: String,
    template: String,
    batch_bytes: usize,
    max_message_bytes: usize,
    compress_above: usize,
    open: Vec<OpenMessage>,
    /// The bytes of all open messages.
    open_bytes: usize,
    /// The messages of one batch with an id.
    content: Vec<OpenMessage>,
    /// Complete, and not compressed yet.
    complete: Vec<OpenMessage>,
}

#[derive(Debug)]
struct OpenMessage {
    protocol: &'static str,
    listener: Arc<str>,
    kind: Kind,
    subject: String,
    /// That of its content, for this sink and subject.
    id: Option<String>,
    lines: Vec<u8>,
    events: u32,
    contents: Contents,
}

impl OpenMessages {
    pub(super) fn new(sink: &str, options: &Options) -> OpenMessages {
        OpenMessages {
            sink: sink.to_owned(),
            template: options.subject.clone(),
            batch_bytes: options.batch_bytes,
            max_message_bytes: options.max_message_bytes,
            compress_above: options.compress_above,
            open: Vec::new(),
            open_bytes: 0,
            content: Vec::new(),
            complete: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Adds the line of an event to the message of its subject, or to that of its content. Returns whether the event is small
    /// enough for a message.
    pub(super) fn push(
        &mut self,
        line: &[u8],
        (origin, kind): (&Arc<Origin>, Kind),
        content: Option<ContentId>,
        is_counted: bool,
    ) -> bool {
        if line.len() > self.max_message_bytes && !self.fits_alone(line) {
            return false;
        }
        let open = if content.is_some() { &mut self.content } else { &mut self.open };
        let index = message_of(open, &self.template, origin, kind);
        let message = &mut open[index];
        message.lines.extend_from_slice(line);
        if is_counted {
            message.events += 1;
            message.contents.add(origin, 1);
        }
        if let Some(content) = content {
            // Sinks that take other events of it, or for another subject, may publish to the same stream.
            let id = || content.with(self.sink.as_bytes()).with(message.subject.as_bytes()).to_string();
            message.id.get_or_insert_with(id);
            return true;
        }
        self.open_bytes += line.len();
        if message.lines.len() >= self.batch_bytes {
            let message = self.open.swap_remove(index);
            self.open_bytes -= message.lines.len();
            self.complete.push(message);
        } else if self.open_bytes >= MAX_OPEN_BATCHES * self.batch_bytes {
            self.complete_all();
        }
        true
    }

    /// All events of the batch with an id were added.
    pub(super) fn complete_content(&mut self) {
        self.complete.append(&mut self.content);
    }

    /// Every open message is complete.
    pub(super) fn complete_all(&mut self) {
        self.complete.append(&mut self.open);
        self.open_bytes = 0;
    }

    /// The complete messages, in parts where they are too long.
    pub(super) fn take_complete(&mut self) -> Vec<CompleteRequest> {
        let mut taken = Vec::new();
        for OpenMessage { subject, id, lines, events, contents, .. } in self.complete.drain(..) {
            let payload = store(&subject, id.as_deref(), &lines, self.compress_above);
            let mut parts = vec![EncodedRequest { id: String::new(), events, payload }];
            while let Some(part) = parts.pop() {
                let body = NatsMessage::of(&part.payload).map_or(0, |message| message.body.len());
                let is_too_long = body > self.max_message_bytes;
                match Some(&part).filter(|_| is_too_long).and_then(|part| divide(part, self.compress_above)) {
                    // The first part is taken first.
                    Some([first, second]) => parts.extend([second, first]),
                    None => {
                        let EncodedRequest { payload, events, .. } = part;
                        taken.push(CompleteRequest { payload, events, contents: contents.clone() });
                    }
                }
            }
        }
        taken
    }

    /// Whether a message with this line only is short enough after compression.
    fn fits_alone(&self, line: &[u8]) -> bool {
        body_bytes("", None, &store("", None, line, self.compress_above)) <= self.max_message_bytes
    }
}

/// The index of the message among `open` for events of this origin and kind.
fn message_of(open: &mut Vec<OpenMessage>, template: &str, origin: &Arc<Origin>, kind: Kind) -> usize {
    let (protocol, listener) = (origin.protocol, &origin.listener);
    let is_same = |message: &OpenMessage| {
        let is_same_listener = Arc::ptr_eq(&message.listener, listener) || message.listener == *listener;
        message.kind == kind && message.protocol == protocol && is_same_listener
    };
    if let Some(index) = open.iter().position(is_same) {
        return index;
    }
    let subject = subject::of(template, origin, kind.as_str());
    // Without the listener in the template, listeners of one protocol share a message.
    if let Some(index) = open.iter().position(|message| message.subject == subject) {
        return index;
    }
    open.push(OpenMessage {
        protocol,
        listener: listener.clone(),
        kind,
        subject,
        id: None,
        lines: Vec::new(),
        events: 0,
        contents: Contents::default(),
    });
    open.len() - 1
}

#[cfg(test)]
mod tests {
    use super::super::message::lines;
    use super::*;

    fn origin(protocol: &'static str, listener: &str) -> Arc<Origin> {
        Arc::new(Origin::new(protocol, listener.into(), "peer".into(), 1))
    }

    fn open(options: Options) -> OpenMessages {
        OpenMessages::new("stream", &options)
    }

    fn taken(open: &mut OpenMessages) -> Vec<(String, u32, String)> {
        let complete = open.take_complete().into_iter();
        let shown = |complete: CompleteRequest| {
            let text = String::from_utf8(lines(&complete.payload).unwrap().unwrap()).unwrap();
            (NatsMessage::of(&complete.payload).unwrap().subject, complete.events, text)
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
            assert!(open.push(line.as_bytes(), (&origin(protocol, listener), kind), None, line != "5\n"));
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
        assert!(!open.push(&[b'x'; 1025], (&origin, Kind::Log), None, true));
        assert!(open.is_empty());
        let line = format!("{}\n", "y".repeat(99));
        (0..41).for_each(|_| assert!(open.push(line.as_bytes(), (&origin, Kind::Log), None, true)));
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
            assert!(open.push(&[b'z'; 500], (&origin("zico", &listener.to_string()), Kind::Log), None, true));
            assert!(open.open_bytes < MAX_OPEN_BATCHES * 1000);
        }
        open.complete_all();
        assert_eq!(open.complete.len(), 100);
    }

    #[test]
    fn content_with_an_id_is_in_messages_of_its_own_whose_ids_do_not_depend_on_what_else_is_open() {
        let ids = |others: usize, batch_bytes: usize| {
            let mut open = open(Options { batch_bytes, ..Options::to(Vec::new()) });
            let origin = origin("endless", "a");
            (0..others).for_each(|_| assert!(open.push(b"other\n", (&origin, Kind::Log), None, true)));
            for kind in [Kind::Log, Kind::Metric, Kind::Log] {
                assert!(open.push(b"line\n", (&origin, kind), Some(ContentId(7)), true));
            }
            open.complete_content();
            let complete = open.take_complete().into_iter().map(|complete| NatsMessage::of(&complete.payload).unwrap());
            complete.filter_map(|message| Some((message.subject, message.id?, message.body.len()))).collect::<Vec<_>>()
        };
        let id = |subject: &str| ContentId(7).with(b"stream").with(subject.as_bytes()).to_string();
        let messages = [("tributary.endless.log", 10), ("tributary.endless.metric", 5)];
        let expected = messages.map(|(subject, bytes)| (subject.to_owned(), id(subject), bytes)).to_vec();
        for others in [0, 3] {
            assert_eq!(ids(others, 1 << 20), expected);
            assert_eq!(ids(others, 8), expected, "batch_bytes divides no content");
        }
    }
}
