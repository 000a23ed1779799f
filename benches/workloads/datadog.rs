//! Spans as the simulated tracer sends them: 6 to 7 tags each, every string sent once.

use std::hint::black_box;
use std::rc::Rc;

use tributary_datadog::wire::{PROCESS_BYTES, WireLimits, decode};
use tributary_datadog::{DatadogSession, ListLayout, Options};
use tributary_simulate::datadog::{DatadogDialect, Tracer};

use super::{EVENTS, NOW, Workload, budget, connection};

pub fn spans() -> Workload {
    let wire: Rc<[u8]> = wire().into();
    let same_wire = Rc::clone(&wire);
    Workload::new("datadog", wire.len(), move |counters, take| {
        connection(DatadogSession::new(Options::default(), 16 << 20, false, &budget()), counters, &wire, take);
    })
    .read_by(move || objects(&same_wire))
}

fn objects(wire: &[u8]) -> usize {
    let limits = WireLimits { max_string_bytes: 16 << 20, kept_string_bytes: 64 << 10, list_layout: ListLayout::Exact };
    let (mut rest, mut objects) = (&wire[PROCESS_BYTES..], 0);
    while let Some((object, size)) = decode(rest, &limits).unwrap() {
        black_box(object);
        rest = &rest[size..];
        objects += 1;
    }
    assert!(rest.is_empty());
    objects
}

fn wire() -> Vec<u8> {
    let mut wire = Vec::new();
    let mut tracer = Tracer::new(1, 1, NOW.unix.0, DatadogDialect::Exact);
    let mut events = tracer.hello(&mut wire).events;
    while events < EVENTS {
        events += tracer.trace(EVENTS - events, &mut wire).events;
    }
    wire
}
