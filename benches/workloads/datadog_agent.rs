//! Bodies of simulated tracers: traces of 100 spans in each version, and what tracers send beside them.

use bytes::Bytes;
use tributary_datadog_agent::{DatadogAgentExchange, Options};
use tributary_driver::{Account, call, decode};
use tributary_event::BatchBuilder;
use tributary_protocol::{Exchange as _, Flow, Output, Request, RequestHead};
use tributary_simulate::datadog_agent::{Tracer, TracerDialect};

use super::{EVENTS, NOW, Workload, budget, origin};

/// Spans, groups, lines or stacks of a body.
const PER_BODY: u64 = 100;

pub fn traces(dialect: TracerDialect) -> Workload {
    let name = match dialect {
        TracerDialect::V04 => "datadog_agent v0.4",
        TracerDialect::V05 => "datadog_agent v0.5",
        TracerDialect::V07 => "datadog_agent v0.7",
        TracerDialect::V10 => "datadog_agent v1.0",
        TracerDialect::Stats => "datadog_agent stats",
        TracerDialect::DogStatsD => "datadog_agent dogstatsd",
        TracerDialect::Profiles => "datadog_agent profiles",
    };
    let mut tracer = Tracer::new(1, 0, NOW.unix.0, dialect);
    let bodies: Vec<(RequestHead, Bytes)> = (0..EVENTS / PER_BODY)
        .map(|_| {
            let request = tracer.request(PER_BODY).unwrap();
            let requests = decode::requests(&request).unwrap();
            let Request { head, body, .. } = requests.into_iter().next().unwrap();
            (head, body)
        })
        .collect();
    let bytes = bodies.iter().map(|(_, body)| body.len()).sum();
    Workload::new(name, bytes, move |counters, take| {
        let exchange = DatadogAgentExchange::new(Options::default(), &budget());
        for (head, body) in &bodies {
            let request = Request { head: head.clone(), body: body.clone(), number: 1 };
            let take = &mut |batch| take(batch);
            let (answer, _) = decode::answer(&exchange, request, origin(counters.protocol()), counters, NOW, take);
            assert_eq!(answer.status, 200);
        }
        let (mut out, mut account) = (Output::new(BatchBuilder::new(origin(counters.protocol()))), Account::default());
        loop {
            let step = call(&mut out, &mut account, counters, NOW, |out| exchange.finish(NOW, out));
            step.batch.into_iter().for_each(&mut *take);
            if step.flow != Flow::Again {
                break;
            }
        }
    })
}
