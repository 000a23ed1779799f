//! Annotated wire bytes of every protocol: every byte is shown once and in order, for any cuts, and no terminal control
//! character is written.
#![cfg_attr(feature = "fuzzer", no_main)]

#[path = "../../cli/explain/shown.rs"]
#[allow(dead_code)]
mod shown;

use std::sync::Arc;
use std::time::Duration;

use tributary::event::BatchBuilder;
use tributary::explain::http::{Body, Requests};
use tributary::explain::{Explain, Sheet};
use tributary::memory::MemoryBudget;
use tributary::protocol::bytefrog::Hq;
use tributary::protocol::datadog::{DatadogSession, ListLayout};
use tributary::protocol::rbkit::{AgentOptions, Channel, Player, RbkitAgent};
use tributary::protocol::{Flow, Output, Protocol, Session, bytefrog, datadog, endless, rbkit, zico};
use tributary_fuzz::{now, origin, pieces};

tributary_fuzz::target!(property);

fn property(input: &[u8]) {
    let Some((&[which, cut], bytes)) = input.split_first_chunk() else { return };
    let memory = MemoryBudget::new(1 << 30);
    match which % 16 {
        layout @ (0 | 1) => {
            let mut options = datadog::Options::default();
            if layout == 1 {
                options.list_layout = ListLayout::Padded32;
            }
            session(|| DatadogSession::new(options.clone(), 16 << 20, false, &memory), Protocol::Datadog, bytes, cut);
        }
        version @ 2..6 => {
            let options = bytefrog::Options::default();
            let hq = || Hq::offline(options.clone(), false, memory.clone(), Some(version - 1));
            session(|| hq().session(None), Protocol::Bytefrog, bytes, cut);
        }
        channel @ 6..10 => {
            let channel = [None, Some(Channel::Pub), Some(Channel::Rep), None][usize::from(channel - 6)];
            // A first byte of 0xFF marks a stream, not a body, for the player.
            let options = Arc::new(rbkit::Options::default());
            let agent = || RbkitAgent::new(AgentOptions::default());
            session(
                || Player::new(agent(), options.clone(), 16 << 20, bytes, channel, true),
                Protocol::Rbkit,
                bytes,
                cut,
            );
        }
        15 => {
            let make = || Box::new(zico::explain::PacketsExplainer::new(Vec::new()));
            assert_eq!(name(make(), bytes, 0), name(make(), bytes, cut), "in pieces");
        }
        form => {
            let body: Body = if form % 2 == 0 { endless::explain::body } else { zico::explain::body };
            let is_file = form < 13;
            let requests = || Requests::new(body, |_| false, Vec::new());
            let make = || Box::new(if is_file { requests().of_file() } else { requests() });
            let whole = name(make(), bytes, 0);
            if !is_file {
                assert_eq!(whole, name(make(), bytes, cut), "in pieces");
            }
        }
    }
}

/// A stream from its first byte, and the rest of it for a tap that opens in the middle.
fn session<S: Session>(make: impl Fn() -> S, protocol: Protocol, bytes: &[u8], cut: u8) {
    let whole = name(make().explainer(), bytes, 0);
    assert_eq!(whole, name(make().explainer(), bytes, cut), "in pieces");

    let (mut session, mut input) = (make(), Vec::new());
    let mut out = Output::new(BatchBuilder::new(origin(protocol, 1)));
    for piece in pieces(bytes, cut).take(MOST_LOOKS) {
        input.extend_from_slice(piece);
        loop {
            let explainer = session.explainer();
            let progress = session.receive(&input, now(Duration::ZERO), &mut out);
            out.batch.take();
            name(explainer, &input[..progress.consumed], 0);
            input.drain(..progress.consumed);
            if progress.flow != Flow::Again {
                break;
            }
        }
    }
}

const MOST_LOOKS: usize = 30;

/// Explains bytes, and checks that exactly these are shown.
fn name(mut explainer: Box<dyn Explain>, bytes: &[u8], cut: u8) -> String {
    let mut sheet = Sheet::new(0, []);
    let (mut input, mut text) = (Vec::new(), String::new());
    for piece in pieces(bytes, cut) {
        input.extend_from_slice(piece);
        let named = explainer.explain(&input, &mut sheet);
        input.drain(..named);
        text.push_str(&sheet.take_settled());
    }
    explainer.finish(&input, &mut sheet);
    sheet.end();
    text.push_str(&sheet.take());
    assert_eq!(sheet.offset(), bytes.len() as u64);
    let is_harmless = |character: char| character == '\n' || !character.is_control();
    assert!(text.chars().all(is_harmless), "{text:?}");
    shown::check_bytes(&shown::lines(&text), bytes);
    text
}
