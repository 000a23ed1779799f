//! The data connection of an agent: entries and exits of 16 methods in 4 threads, nested to a depth of 8.

use tributary_bytefrog::{Hq, Options};

use super::{EVENTS, Workload, budget, connection};

pub fn calls(name: &'static str, version: u8, options: Options) -> Workload {
    let wire = wire(version);
    Workload::new(name, wire.len(), move |counters, take| {
        let hq = Hq::offline(options.clone(), false, budget(), Some(version));
        connection(hq.session(None), counters, &wire, take);
    })
}

fn wire(version: u8) -> Vec<u8> {
    let mut wire = vec![30, 0];
    let mut name = |head: &[u8], text: String| {
        wire.extend_from_slice(head);
        wire.extend_from_slice(&(text.len() as u16).to_be_bytes());
        wire.extend_from_slice(text.as_bytes());
    };
    for method in 0..16u8 {
        name(&[11, 0, 0, 0, method], format!("com/example/shop/checkout/Cart.method{method};1;(ILjava/lang/String;)V"));
    }
    for thread in 0..4u8 {
        name(&[10, 0, thread, 0, 0, 0, 0], format!("http-worker-{thread}"));
    }
    for number in 0..EVENTS as u32 {
        let (step, thread) = (number / 4 % 16, (number % 4) as u16);
        let method = step.min(15 - step) + u32::from(thread);
        let head = [number / 1000, number, method].map(u32::to_be_bytes).concat();
        wire.push(if step < 8 { 20 } else { 21 });
        wire.extend_from_slice(&head);
        match version {
            _ if step < 8 => {}
            1 => wire.extend_from_slice(&77u16.to_be_bytes()),
            _ => wire.push(0),
        }
        wire.extend_from_slice(&thread.to_be_bytes());
    }
    wire
}
