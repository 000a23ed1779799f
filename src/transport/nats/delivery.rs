//! A delivered message, and its answers to JetStream.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Message;
use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::session::Session;
use tributary_protocol::{Request, RequestHead};

/// The method of a message in the quarantine, where requests are stored as HTTP has them.
const METHOD: &str = "MESSAGE";
/// The pause before an answer is sent again.
const RETRY: Duration = Duration::from_millis(100);
/// How long sending a note of progress may take, when the server does not read.
const PROGRESS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long an answer may take when the daemon stops: a message that is not answered comes again.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// What JetStream says of a message in the subject of its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Delivered {
    /// The number of the message in the stream.
    pub(super) sequence: u64,
    /// How often it was delivered, this time included.
    pub(super) times: u64,
}

/// What is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Acknowledgement {
    /// Its events are delivered.
    Accepted,
    /// It must be delivered again, after this pause.
    Again(Duration),
    /// It must not be delivered again.
    Never,
    /// It is being worked on: the time until it is delivered again starts from zero.
    Working,
}

impl Delivered {
    /// Reads `$JS.ACK.STREAM.CONSUMER.TIMES.SEQUENCE.…`, or the same with a domain and an account.
    pub(super) fn of(subject: &str) -> Option<Delivered> {
        let parts: Vec<&str> = subject.strip_prefix("$JS.ACK.")?.split('.').collect();
        let at = match parts.len() {
            7 => 2,
            // With a domain, a hash of the account, and maybe something at the end.
            9.. => 4,
            _ => return None,
        };
        Some(Delivered { times: parts[at].parse().ok()?, sequence: parts[at + 1].parse().ok()? })
    }
}

impl Acknowledgement {
    fn payload(self) -> Bytes {
        match self {
            Acknowledgement::Accepted => Bytes::from_static(b"+ACK"),
            Acknowledgement::Never => Bytes::from_static(b"+TERM"),
            Acknowledgement::Working => Bytes::from_static(b"+WPI"),
            Acknowledgement::Again(after) => format!("-NAK {{\"delay\": {}}}", after.as_nanos()).into(),
        }
    }
}

/// The message as a request, for the decoder and the quarantine.
pub(super) fn request(message: &Message, stream: &str, delivered: Delivered) -> Request {
    let mut headers: Vec<(String, Vec<u8>)> = Vec::new();
    for (name, values) in message.headers.iter().flat_map(|headers| headers.iter()) {
        let name = name.to_string().to_ascii_lowercase();
        headers.extend(values.iter().map(|value| (name.clone(), value.as_str().as_bytes().to_vec())));
    }
    headers.push(("nats-stream".to_owned(), stream.as_bytes().to_vec()));
    headers.push(("nats-sequence".to_owned(), delivered.sequence.to_string().into_bytes()));
    let head = RequestHead { method: METHOD.to_owned(), target: message.subject.to_string(), headers };
    Request { head, body: message.payload.clone(), number: delivered.sequence }
}

/// Reports to JetStream that the message is being worked on. The report is not confirmed.
pub(super) async fn note_progress(sessions: &watch::Receiver<Option<Arc<Session>>>, reply: &str) {
    let session = sessions.borrow().clone();
    if let Some(session) = session {
        // A lost connection is noticed elsewhere.
        let published = session.connection.client.publish(reply.to_owned(), Acknowledgement::Working.payload());
        let _ = timeout(PROGRESS_TIMEOUT, published).await;
    }
}

/// Answers a message, until the server has confirmed the answer, or `within` has passed; soon after `stop` it gives up earlier.
/// `false`: the server has not confirmed it; the message comes again.
pub(super) async fn answer(
    mut sessions: watch::Receiver<Option<Arc<Session>>>,
    reply: &str,
    answer: Acknowledgement,
    within: Duration,
    stop: &CancellationToken,
) -> bool {
    let confirmed = async {
        loop {
            let session = match sessions.wait_for(Option::is_some).await {
                Ok(session) => session.clone(),
                Err(_) => return false,
            };
            let Some(session) = session else { continue };
            let confirmed = tokio::select! {
                confirmed = session.connection.client.request(reply.to_owned(), answer.payload()) => confirmed.is_ok(),
                () = session.connection.lost.cancelled() => false,
            };
            if confirmed {
                return true;
            }
            sleep(RETRY).await;
        }
    };
    let stopped = async {
        stop.cancelled().await;
        sleep(LAST_ANSWER_TIMEOUT).await;
    };
    tokio::select! {
        confirmed = timeout(within, confirmed) => confirmed.unwrap_or(false),
        () = stopped => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_message_and_of_its_deliveries_is_in_the_subject_of_its_answer() {
        let delivered = |times, sequence| Some(Delivered { sequence, times });
        let of = Delivered::of;
        assert_eq!(of("$JS.ACK.TRIBUTARY.writers.3.1234.99.1700000000000000000.7"), delivered(3, 1234));
        assert_eq!(of("$JS.ACK.hub.AbCd12.TRIBUTARY.writers.1.5.6.1700000000000000000.0.rAnDoM"), delivered(1, 5));
        assert_eq!(of("$JS.ACK._.AbCd12.TRIBUTARY.writers.1.5.6.1700000000000000000.0"), delivered(1, 5));
        for other in ["", "x", "$JS.ACK.", "$JS.ACK.S.c.1", "$JS.ACK.S.c.x.1.2.3.4", "_INBOX.a.b.c.d.e.f.g.h"] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn answers_are_those_of_jetstream() {
        assert_eq!(&Acknowledgement::Again(Duration::from_millis(5)).payload()[..], b"-NAK {\"delay\": 5000000}");
    }
}
