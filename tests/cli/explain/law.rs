//! All bytes are shown, once and in order, and the sheet does not depend on how the bytes arrive.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tributary::event::{BatchBuilder, Origin, UnixNanos};
use tributary::explain::http::Requests;
use tributary::explain::{Explain, Sheet};
use tributary::memory::MemoryBudget;
use tributary::protocol::bytefrog::{self, Hq};
use tributary::protocol::datadog::{self, DatadogSession, ListLayout};
use tributary::protocol::{Flow, Now, Output, Session, endless, zico};

use super::shown;

/// The most text for one byte: its row, and names of some hundred characters for ids.
const MAX_TEXT_PER_BYTE: usize = 400;
/// The most bytes that deflate makes of one byte.
const MOST_INFLATED: usize = 1032;

/// The protocol of a connection.
#[derive(Clone, Copy, Debug)]
enum Speech {
    Datadog(ListLayout),
    /// Data connections of this version.
    Bytefrog(u8),
    Endless,
    Zico,
}

const SPEECHES: [Speech; 7] = [
    Speech::Datadog(ListLayout::Exact),
    Speech::Datadog(ListLayout::Padded32),
    Speech::Bytefrog(1),
    Speech::Bytefrog(2),
    Speech::Bytefrog(4),
    Speech::Endless,
    Speech::Zico,
];

fn datadog(list_layout: ListLayout) -> DatadogSession {
    let options = datadog::Options { list_layout, ..datadog::Options::default() };
    DatadogSession::new(options, 16 << 20, false, &MemoryBudget::new(64 << 20))
}

fn bytefrog(version: u8) -> bytefrog::BytefrogSession {
    Hq::offline(bytefrog::Options::default(), false, MemoryBudget::new(64 << 20), Some(version)).session(None)
}

impl Speech {
    fn explainer(self) -> Box<dyn Explain> {
        match self {
            Speech::Datadog(layout) => datadog(layout).explainer(),
            Speech::Bytefrog(version) => bytefrog(version).explainer(),
            Speech::Endless => Box::new(Requests::new(endless::explain::body, |_| false, Vec::new())),
            Speech::Zico => {
                Box::new(Requests::new(zico::explain::body, |head| head.path().contains("register"), Vec::new()))
            }
        }
    }
}

/// Recorded bytes and their protocol.
static RECORDED: LazyLock<Vec<(Speech, Vec<u8>)>> = LazyLock::new(|| {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut recorded = Vec::new();
    for protocol in ["datadog", "bytefrog", "endless", "zico"] {
        for case in fs::read_dir(data.join(protocol)).unwrap() {
            let case = case.unwrap().path();
            let name = case.file_name().unwrap().to_str().unwrap().to_owned();
            for file in fs::read_dir(&case).into_iter().flatten() {
                let path = file.unwrap().path();
                let file = path.file_name().unwrap().to_str().unwrap();
                let speech = match protocol {
                    "datadog" if file == "wire.bin" && name.contains("padded") => Speech::Datadog(ListLayout::Padded32),
                    "datadog" if file == "wire.bin" => Speech::Datadog(ListLayout::Exact),
                    "bytefrog" if file.ends_with(".agent.bin") => {
                        let version = name.split(['v', '-']).find_map(|part| part.parse().ok());
                        Speech::Bytefrog(version.unwrap_or(1))
                    }
                    "endless" if file.ends_with(".http") => Speech::Endless,
                    _ => continue,
                };
                recorded.push((speech, fs::read(&path).unwrap()));
            }
            let bodies = case.join("bodies");
            for body in fs::read_dir(bodies).into_iter().flatten() {
                let body = fs::read(body.unwrap().path()).unwrap();
                let head = format!("POST /agent/submit/trc HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len());
                recorded.push((Speech::Zico, [head.as_bytes(), &body].concat()));
            }
        }
    }
    recorded.retain(|(_, bytes)| bytes.len() <= 32 * 1024);
    recorded
});

/// The sheet of these pieces.
fn shown_of(explainer: &mut dyn Explain, offset: u64, pieces: &[&[u8]]) -> String {
    let mut sheet = Sheet::new(offset, []);
    let mut input = Vec::new();
    for piece in pieces {
        input.extend_from_slice(piece);
        let named = explainer.explain(&input, &mut sheet);
        input.drain(..named);
    }
    explainer.finish(&input, &mut sheet);
    sheet.end();
    let length: usize = pieces.iter().map(|piece| piece.len()).sum();
    assert_eq!(sheet.offset(), offset + length as u64);
    sheet.take()
}

/// A change of the bytes.
#[derive(Clone, Debug)]
enum Harm {
    Flip(Index, u8),
    Cut(Index),
    Leave(Index, usize),
    Insert(Index, Vec<u8>),
}

impl Harm {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Harm::Flip(at, bits) if !bytes.is_empty() => *at.get_mut(bytes) ^= bits,
            Harm::Flip(..) => {}
            Harm::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
            Harm::Leave(at, count) => {
                let at = at.index(bytes.len() + 1);
                bytes.drain(at..bytes.len().min(at + count));
            }
            Harm::Insert(at, more) => {
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, more.iter().copied());
            }
        }
    }
}

fn harm() -> impl Strategy<Value = Harm> {
    let at = any::<Index>;
    prop_oneof![
        3 => (at(), 1u8..).prop_map(|(at, bits)| Harm::Flip(at, bits)),
        1 => at().prop_map(Harm::Cut),
        1 => (at(), 1usize..80).prop_map(|(at, count)| Harm::Leave(at, count)),
        1 => (at(), vec(any::<u8>(), 1..40)).prop_map(|(at, more)| Harm::Insert(at, more)),
    ]
}

/// Bytes that begin like a connection, followed by arbitrary bytes.
fn arbitrary() -> impl Strategy<Value = (Speech, Vec<u8>)> {
    let beginning: &[&[u8]] = &[
        b"",
        b"\xdd\0\0\0\0\x01\0\0\0\0\0\0\0\0\xdd",
        b"\0\x01",
        b"\x1e\x05",
        b"PUT /3/x HTTP/1.1\r\n\r\n",
        b"PUT /3/x HTTP/1.1\r\ncontent-length: 40\r\n\r\n",
        b"POST /agent/submit/trc HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
    ];
    (select(&SPEECHES[..]), select(beginning.to_vec()), vec(any::<u8>(), 0..300))
        .prop_map(|(speech, beginning, rest)| (speech, [beginning, &rest].concat()))
}

fn harmed() -> impl Strategy<Value = (Speech, Vec<u8>)> {
    let recorded = any::<Index>().prop_map(|index| index.get(&RECORDED).clone());
    (recorded, vec(harm(), 0..4)).prop_map(|((speech, mut bytes), harms)| {
        harms.iter().for_each(|harm| harm.apply(&mut bytes));
        (speech, bytes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_byte_is_shown_once_however_they_come(
        (speech, bytes) in prop_oneof![arbitrary(), harmed()],
        mut cuts in vec(any::<Index>(), 0..6),
    ) {
        let whole = shown_of(&mut *speech.explainer(), 0, &[&bytes]);
        shown::check_bytes(&shown::lines(&whole), &bytes);
        // Bodies over HTTP can be compressed, and the decompressed bytes are shown too.
        let most_inflated = if matches!(speech, Speech::Endless | Speech::Zico) { MOST_INFLATED } else { 1 };
        prop_assert!(whole.len() <= 1000 + MAX_TEXT_PER_BYTE * most_inflated * bytes.len());
        let mut at: Vec<_> = cuts.drain(..).map(|cut| cut.index(bytes.len() + 1)).collect();
        at.sort_unstable();
        let pieces = |at: &[usize]| {
            let begins: Vec<_> = [0].into_iter().chain(at.iter().copied()).collect();
            let ends = at.iter().copied().chain([bytes.len()]);
            begins.into_iter().zip(ends).map(|(begin, end)| &bytes[begin..end]).collect::<Vec<_>>()
        };
        prop_assert!(shown_of(&mut *speech.explainer(), 0, &pieces(&at)) == whole, "cut at {:?}", at);
        if bytes.len() <= 4096 {
            let single: Vec<_> = bytes.chunks(1).collect();
            prop_assert!(shown_of(&mut *speech.explainer(), 0, &single) == whole, "one by one");
        }
    }

    /// A tap that starts in the middle of a connection shows the following messages at their offsets.
    #[test]
    fn a_session_names_what_follows_what_it_has_consumed(
        (speech, bytes) in harmed(),
        cut in any::<Index>(),
    ) {
        let cut = cut.index(bytes.len() + 1);
        let (consumed, mut later) = match speech {
            Speech::Datadog(layout) => consume(datadog(layout), &bytes[..cut]),
            Speech::Bytefrog(version) => consume(bytefrog(version), &bytes[..cut]),
            Speech::Endless | Speech::Zico => return Ok(()),
        };
        let all = shown_of(&mut *speech.explainer(), 0, &[&bytes]);
        let rest = shown_of(&mut *later, consumed as u64, &[&bytes[consumed..]]);
        let begins = |text: &str| -> BTreeSet<_> {
            let messages = shown::messages(&shown::lines(text));
            messages.into_iter().filter(|message| message.offset > consumed && message.title != "?").map(|message| message.offset).collect()
        };
        prop_assert_eq!(begins(&rest), begins(&all));
    }
}

/// Feeds a session with these bytes. Returns the number of consumed bytes, and the explainer of the following ones.
fn consume(mut session: impl Session, bytes: &[u8]) -> (usize, Box<dyn Explain>) {
    let origin = Arc::new(Origin::new("test", "test".into(), "test".into(), 1));
    let mut out = Output::new(BatchBuilder::new(origin));
    let now = Now { unix: UnixNanos(0), elapsed: Duration::ZERO };
    let mut consumed = 0;
    loop {
        let progress = session.receive(&bytes[consumed..], now, &mut out);
        consumed += progress.consumed;
        out.batch.take();
        if progress.flow != Flow::Again {
            return (consumed, session.explainer());
        }
    }
}

#[test]
fn a_long_message_that_arrives_byte_by_byte_costs_linear_time() {
    let text = vec![b'x'; 1 << 20];
    let process = b"\xdd\0\0\0\0\x01\0\0\0\0\0\0\0\0";
    let string = [&process[..], b"\xdd\x06\0\0\0\0\0\0\0\x01", &(text.len() as u32).to_be_bytes(), &text].concat();
    let head = [b"PUT /3/x HTTP/1.1\r\nx: ", &text[..1 << 18], b"\r\n\r\n"].concat();
    let body = [b"PUT /3/x HTTP/1.1\r\ncontent-length: 1048576\r\n\r\n", &*text].concat();
    let chunk =
        [b"PUT /3/x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n100000\r\n", &*text, b"\r\n0\r\n\r\n"].concat();
    for (speech, bytes) in [
        (Speech::Datadog(ListLayout::Exact), string),
        (Speech::Endless, head),
        (Speech::Endless, body),
        (Speech::Endless, chunk),
    ] {
        let single: Vec<_> = bytes.chunks(1).collect();
        let mut explainer = speech.explainer();
        let mut sheet = Sheet::new(0, []);
        let (mut input, mut at) = (Vec::with_capacity(bytes.len()), 0);
        for byte in single {
            input.extend_from_slice(byte);
            at += explainer.explain(&input[at..], &mut sheet);
        }
        explainer.finish(&input[at..], &mut sheet);
        shown::check_bytes(&shown::lines(&sheet.take()), &bytes);
    }
}
