//! Requests of simulated OpenTelemetry SDKs.

use bytes::Bytes;
use tributary_driver::decode;
use tributary_otlp::{Options, OtlpExchange};
use tributary_protocol::{Request, RequestHead};
use tributary_simulate::otlp::{OtlpDialect, OtlpProgram};

use super::{EVENTS, NOW, Workload, budget, origin};

/// Records of a request.
const PER_REQUEST: u64 = 100;

pub fn records(name: &'static str, dialect: OtlpDialect) -> Workload {
    let mut program = OtlpProgram::new(1, 0, NOW.unix.0, dialect);
    let bodies: Vec<(RequestHead, Bytes)> = (0..EVENTS / PER_REQUEST)
        .map(|_| {
            let request = program.request(PER_REQUEST).unwrap();
            let Request { head, body, .. } = decode::requests(&request).unwrap().into_iter().next().unwrap();
            (head, body)
        })
        .collect();
    let bytes = bodies.iter().map(|(_, body)| body.len()).sum();
    Workload::new(name, bytes, move |counters, take| {
        let exchange = OtlpExchange::new(Options::default(), &budget());
        for (head, body) in &bodies {
            let request = Request { head: head.clone(), body: body.clone(), number: 1 };
            let take = &mut |batch| take(batch);
            let (answer, _) = decode::answer(&exchange, request, origin(counters.protocol()), counters, NOW, take);
            assert_eq!(answer.status, 200);
        }
    })
}
