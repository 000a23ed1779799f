//! Published events and replies of a Ruby process: every byte is decoded or lost. A single connection gives the same events
//! for any cuts. With both connections, pauses and commands, every byte is still decoded or lost.
#![cfg_attr(feature = "fuzzer", no_main)]

use std::sync::Arc;
use std::time::Duration;

use tributary::decode::Offline;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::rbkit::{
    AgentOptions, Channel, Control, Options, Player, ProfileKind, RbkitAgent, RbkitCommand, Subscription,
};
use tributary::protocol::{Protocol, Session};
use tributary_fuzz::{Output, Part, Setting, counters, now, origin, parts, pieces};

tributary_fuzz::target!(property);

fn property(input: &[u8]) {
    let Some((setting, rest)) = Setting::take(input) else { return };
    match setting.pick(MODE, &[Mode::Published, Mode::Replied, Mode::Body, Mode::Both]) {
        Mode::Both => converse(&setting, rest),
        mode => alone(&setting, mode, rest),
    }
}

/// Indices of bytes in the setting.
const MODE: usize = 0;
const CUT: usize = 1;
const END: usize = 2;
const LIMITS: usize = 3;
const FLAGS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// A stream of published events, or of replies.
    Published,
    Replied,
    /// The body of one message; its form selects the channel.
    Body,
    /// A subscription and a control connection of one process.
    Both,
}

/// Selected by the order of a part in a stream: the flags of a frame around its bytes, or no frame.
const FRAMED: u8 = 4;
const FRAME_FLAGS: u8 = 3;

fn options(setting: &Setting) -> (Arc<Options>, u64) {
    let limits = [(16 << 20, 256 << 20, 2048), (40, 256 << 20, 2), (200, 2000, 1), (1000, 100, 2048)];
    let (max_message_bytes, max_frame_bytes, most) = setting.pick(LIMITS, &limits);
    let options = Options { max_frame_bytes, max_frames: most, max_references: most as u32, ..Options::default() };
    (Arc::new(options), max_message_bytes)
}

/// A single connection, cut in three ways.
fn alone(setting: &Setting, mode: Mode, rest: &[u8]) {
    let mut stream = match mode {
        Mode::Published => hello("PUB"),
        _ => hello("REP"),
    };
    if mode == Mode::Body || setting.flag(FLAGS, 0) {
        stream.clear();
    }
    for part in parts(rest) {
        match part.order & FRAMED {
            0 => stream.extend_from_slice(part.bytes),
            _ if mode == Mode::Replied => stream.extend([frame(1, b""), frame(0, part.bytes)].concat()),
            _ if mode == Mode::Body => stream.extend_from_slice(part.bytes),
            _ => stream.extend(frame(part.order & FRAME_FLAGS, part.bytes)),
        }
    }
    let whole = receive(setting, mode, &stream, 0);
    for cut in [1, setting.byte(CUT)].iter().filter(|cut| **cut > 1 || stream.len() < 2000) {
        whole.check_same(&receive(setting, mode, &stream, *cut), "in pieces");
    }
}

fn receive(setting: &Setting, mode: Mode, stream: &[u8], cut: u8) -> Output {
    let agent = RbkitAgent::new(AgentOptions::default());
    let (options, max_message_bytes) = options(setting);
    let player = match mode {
        Mode::Published => {
            return drive(setting, Subscription::new(agent, options, max_message_bytes), stream, cut);
        }
        // This first byte marks a stream for the player.
        Mode::Replied => Player::new(agent, options, max_message_bytes, &[0xFF], Some(Channel::Rep), true),
        _ => Player::new(agent, options, max_message_bytes, stream, None, true),
    };
    drive(setting, player, stream, cut)
}

fn drive(setting: &Setting, session: impl Session, stream: &[u8], cut: u8) -> Output {
    let mut driven = Driven::new(session);
    pieces(stream, cut).for_each(|piece| driven.feed(piece, Duration::ZERO));
    driven.finish(setting, Duration::ZERO)
}

/// Selected by the order of a part in a conversation: its connection and framing, a command for the process, and the pause.
const REPLIES: u8 = 8;
const PAUSES: [u64; 4] = [0, 300, 6_000, 70_000];

fn converse(setting: &Setting, rest: &[u8]) {
    let is_enabled = setting.flag(FLAGS, 1);
    let every = Duration::from_secs(u64::from(is_enabled));
    let agent = RbkitAgent::new(AgentOptions {
        publish: Some("127.0.0.1:5555".to_owned()),
        request: Some("127.0.0.1:5556".to_owned()),
        enable: if is_enabled { vec![ProfileKind::Memory, ProfileKind::Cpu] } else { Vec::new() },
        snapshot_interval: every,
        gc_interval: every,
        ..AgentOptions::default()
    });
    let (options, max_message_bytes) = options(setting);
    let mut subscription = Driven::new(Subscription::new(agent.clone(), options.clone(), max_message_bytes));
    let mut control = Driven::new(Control::new(agent.clone(), options));
    let mut elapsed = Duration::ZERO;
    subscription.pass_time(elapsed);
    control.pass_time(elapsed);
    subscription.feed(&hello("PUB"), elapsed);
    control.feed(&hello("REP"), elapsed);
    for Part { order, bytes } in parts(rest) {
        match (order & REPLIES, order & FRAMED) {
            (0, 0) => subscription.feed(bytes, elapsed),
            (0, _) => subscription.feed(&frame(order & FRAME_FLAGS, bytes), elapsed),
            (_, 0) => control.feed(bytes, elapsed),
            (..) => control.feed(&[frame(1, b""), frame(0, bytes)].concat(), elapsed),
        }
        if order & FRAME_FLAGS == 1 {
            let command = RbkitCommand::ALL[bytes.len() % RbkitCommand::ALL.len()];
            agent.command(command, Box::new(|_| {}));
        }
        elapsed += Duration::from_millis(PAUSES[usize::from(order >> 4 & 3)]);
        subscription.pass_time(elapsed);
        control.pass_time(elapsed);
    }
    control.finish(setting, elapsed);
    subscription.finish(setting, elapsed);
}

/// A session without a socket.
struct Driven<S> {
    offline: Offline<S>,
    counters: Arc<ListenerCounters>,
    output: Output,
}

impl<S: Session> Driven<S> {
    fn new(session: S) -> Self {
        let counters = counters(Protocol::Rbkit);
        let offline = Offline::new(session, origin(Protocol::Rbkit, 1), counters.clone());
        Driven { offline, counters, output: Output::new() }
    }

    fn feed(&mut self, bytes: &[u8], elapsed: Duration) {
        self.offline.feed(bytes, now(elapsed), &mut |batch| self.output.take(&batch));
    }

    fn pass_time(&mut self, elapsed: Duration) {
        self.offline.pass_time(now(elapsed), &mut |batch| self.output.take(&batch));
    }

    fn finish(self, setting: &Setting, elapsed: Duration) -> Output {
        let Driven { offline, counters, mut output } = self;
        offline.finish(setting.end(END), now(elapsed), &mut |batch| output.take(&batch));
        let totals = counters.totals();
        output.check_totals([&totals]);
        for line in &output.lines {
            let length = line.loss.as_ref().map_or(line.length, |loss| loss.bytes);
            assert!(line.offset + length <= totals.bytes_in, "outside of {} bytes: {line:?}", totals.bytes_in);
        }
        output
    }
}

/// Greeting and READY of a socket of the process.
fn hello(socket: &str) -> Vec<u8> {
    let mut bytes = vec![0xFF, 0, 0, 0, 0, 0, 0, 0, 1, 0x7F, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    let data = [b"\x05READY\x0BSocket-Type\0\0\0\x03", socket.as_bytes()].concat();
    bytes.extend_from_slice(&[4, data.len() as u8]);
    bytes.extend_from_slice(&data);
    bytes
}

/// A frame; `flags` may ask for the long form.
fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let head = match u8::try_from(body.len()) {
        Ok(length) if flags & 2 == 0 => vec![flags, length],
        _ => [&[flags | 2][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    [&head[..], body].concat()
}
