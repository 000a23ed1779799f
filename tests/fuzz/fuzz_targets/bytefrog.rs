//! The connections of Bytefrog runs, mixed: every byte is decoded or lost, and every numbered message of a run becomes one
//! event, one span or one loss.
#![cfg_attr(feature = "fuzzer", no_main)]

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tributary::decode::Offline;
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::Protocol;
use tributary::protocol::bytefrog::{BytefrogCommand, BytefrogSession, CallOutput, Hq, Options, Order, Start};
use tributary_fuzz::bytefrog::Finished;
use tributary_fuzz::bytefrog::law::{check_run, walk};
use tributary_fuzz::{Output, Part, Setting, counters, now, origin, parts};

tributary_fuzz::target!(property);

fn property(input: &[u8]) {
    let Some((setting, rest)) = Setting::take(input) else { return };
    let mut run = Run::new(&setting);
    if setting.flag(FLAGS, 0) {
        run.any(rest);
    } else {
        run.one_run(rest);
    }
}

/// Indices of bytes in the setting.
const FLAGS: usize = 0;
const VERSION: usize = 1;
const MODE: usize = 2;
const WAITS: usize = 3;
const LIMITS: usize = 4;
const MEMORY: usize = 5;
const END: usize = 6;

/// Selected by the order of a part: its connection, the pause after it, whether the connection ends then, and the command
/// for the agent.
const CONNECTIONS: u8 = 4;
const PAUSES: [u64; 4] = [0, 150, 3_000, 12_000];
const ENDS: u8 = 0x10;
const COMMANDS: [Option<BytefrogCommand>; 8] = [
    None,
    Some(BytefrogCommand::Stop),
    Some(BytefrogCommand::Pause),
    Some(BytefrogCommand::Unpause),
    Some(BytefrogCommand::Suspend),
    Some(BytefrogCommand::Unsuspend),
    Some(BytefrogCommand::Start),
    None,
];

/// Connections of one address, by number, with a simulated clock.
struct Run {
    setting: Setting,
    hq: Hq,
    memory: Arc<MemoryBudget>,
    calls: CallOutput,
    connections: Vec<Connection>,
    elapsed: Duration,
    output: Output,
}

struct Connection {
    /// The number that parts use for it while it is open.
    name: u8,
    session: Option<Offline<BytefrogSession>>,
    counters: Arc<ListenerCounters>,
    received: Vec<u8>,
}

impl Run {
    fn new(setting: &Setting) -> Run {
        let memory = MemoryBudget::new(setting.pick(MEMORY, &[256 << 20, 0, 100_000]));
        let modes = [
            (Order::Received, CallOutput::Events),
            (Order::Sequence, CallOutput::Events),
            (Order::Received, CallOutput::Spans),
            (Order::Sequence, CallOutput::Spans),
            (Order::Received, CallOutput::Both),
            (Order::Sequence, CallOutput::Both),
        ];
        let (order, calls) = setting.pick(MODE, &modes);
        let mut options = Options { order, calls, data_connections: 4, ..Options::default() };
        let waits = [(2000, 10_000, 200), (1, 0, 0), (40, 0, 200), (2000, 10_000, 0), (1, 10_000, 40), (2000, 30, 0)];
        let (reorder, unresolved, rename) = setting.pick(WAITS, &waits);
        options.reorder_window = Duration::from_millis(reorder);
        options.unresolved_wait = Duration::from_millis(unresolved);
        options.rename_wait = Duration::from_millis(rename);
        let limits = [
            (65_536, 65_536, 1_000_000, 64 << 20),
            (70, 1, 1, 64 << 20),
            (70, 3, 3, 64 << 10),
            (1024, 65_536, 3, 64 << 20),
        ];
        (options.max_waiting, options.max_open_calls, options.dictionary.entries, options.dictionary.bytes) =
            setting.pick(LIMITS, &limits);
        if setting.flag(FLAGS, 3) {
            options.start = Start::OnCommand;
        }
        let definitions = setting.flag(FLAGS, 2);
        let hq = match setting.flag(FLAGS, 1) {
            true => Hq::new(options, definitions, memory.clone()),
            false => Hq::offline(options, definitions, memory.clone(), Some(setting.pick(VERSION, &[1, 2, 3, 4]))),
        };
        let (connections, output) = (Vec::new(), Output::with_text());
        Run { setting: *setting, hq, memory, calls, connections, elapsed: Duration::ZERO, output }
    }

    /// Connections that open and close and send any bytes.
    fn any(&mut self, input: &[u8]) {
        for part in parts(input) {
            let name = part.order % CONNECTIONS;
            let open = self.connections.iter().position(|open| open.session.is_some() && open.name == name);
            let connection = open.unwrap_or_else(|| self.connect(name));
            self.receive(connection, part);
        }
        self.finish();
    }

    /// One run; each of its connections sends a hello.
    fn one_run(&mut self, input: &[u8]) {
        let version = self.setting.pick(VERSION, &[1, 2, 3, 4]);
        for name in 0..CONNECTIONS {
            let connection = self.connect(name);
            self.feed(connection, &if name == 0 { [0, version] } else { [30, 0] });
        }
        for part in parts(input) {
            let connection = usize::from(part.order % CONNECTIONS);
            if self.connections[connection].session.is_some() {
                self.receive(connection, part);
            }
        }
        let done = self.finish();
        let walks = self.connections.iter().enumerate().map(|(at, open)| walk(&open.received, version, at == 0));
        let sizes: Vec<_> = self.connections.iter().map(|open| open.received.len() as u64).collect();
        check_run(&done, &walks.collect::<Vec<_>>(), &sizes, self.calls);
    }

    fn connect(&mut self, name: u8) -> usize {
        let number = self.connections.len();
        let counters = counters(Protocol::Bytefrog);
        let address = IpAddr::from([192, 0, 2, 1]);
        let session = self.hq.session(self.setting.flag(FLAGS, 1).then_some(address));
        let session = Some(Offline::new(session, origin(Protocol::Bytefrog, number as u64), counters.clone()));
        self.connections.push(Connection { name, session, counters, received: Vec::new() });
        number
    }

    /// Receives a part, and applies its order.
    fn receive(&mut self, connection: usize, part: Part<'_>) {
        self.feed(connection, part.bytes);
        if let Some(command) = COMMANDS[usize::from(part.order >> 5)] {
            let _ = self.hq.command(0, command, self.elapsed);
        }
        self.elapsed += Duration::from_millis(PAUSES[usize::from(part.order >> 2 & 3)]);
        let now = now(self.elapsed);
        for session in self.connections.iter_mut().filter_map(|open| open.session.as_mut()) {
            session.pass_time(now, &mut |batch| self.output.take(&batch));
        }
        if part.order & ENDS != 0 {
            self.end(connection);
        }
    }

    fn feed(&mut self, connection: usize, bytes: &[u8]) {
        let open = &mut self.connections[connection];
        open.received.extend_from_slice(bytes);
        if let Some(session) = &mut open.session {
            session.feed(bytes, now(self.elapsed), &mut |batch| self.output.take(&batch));
        }
    }

    fn end(&mut self, connection: usize) {
        let open = &mut self.connections[connection];
        if let Some(session) = open.session.take() {
            session.finish(self.setting.end(END), now(self.elapsed), &mut |batch| self.output.take(&batch));
            assert_eq!(open.counters.totals().buffered(), 0, "decoded + lost = received");
        }
    }

    fn finish(&mut self) -> Finished {
        (0..self.connections.len()).for_each(|connection| self.end(connection));
        assert_eq!(self.hq.agents(), [], "every run has ended");
        assert_eq!(self.memory.used(), 0, "all memory is released");
        let totals: Vec<_> = self.connections.iter().map(|open| open.counters.totals()).collect();
        self.output.check_totals(&totals);
        self.output.check_offsets(|connection| self.connections[connection as usize].received.len() as u64);
        Finished { text: self.output.text.take().unwrap_or_default(), totals }
    }
}
