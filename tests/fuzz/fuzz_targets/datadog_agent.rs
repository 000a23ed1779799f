//! Bodies of Datadog tracers, of each path: a body is refused whole or decoded whole, every byte is decoded or lost, and the
//! same body gives the same events.
#![cfg_attr(feature = "fuzzer", no_main)]

use std::time::Duration;

use tributary::decode;
use tributary::driver::{Account, call};
use tributary::event::{BatchBuilder, Kind};
use tributary::memory::MemoryBudget;
use tributary::protocol::datadog_agent::{DatadogAgentExchange, Options, Semantics};
use tributary::protocol::{Exchange as _, Flow, Protocol, Request, RequestHead};
use tributary_fuzz::{Output, Setting, counters, now, origin};

tributary_fuzz::target!(property);

/// Indices of bytes in the setting.
const PATH: usize = 0;
const SIZES: usize = 1;
const SEMANTICS: usize = 2;

const PATHS: [&str; 6] = ["/v0.4/traces", "/v0.5/traces", "/v0.7/traces", "/v1.0/traces", "/spans", "/v0.6/stats"];
/// Paths to which old clients send JSON. Their numbers follow those of `PATHS`.
const JSON: [&str; 2] = ["/v0.4/traces", "/v0.1/spans"];
/// Further paths, with their types. Their numbers follow those.
const OTHERS: [(&str, &str); 3] = [
    ("/profiling/v1/input", "multipart/form-data; boundary=b"),
    ("/dogstatsd/v2/proxy", "text/plain"),
    ("/telemetry/proxy/api/v2/apmtelemetry", "application/json"),
];

fn property(input: &[u8]) {
    let Some((setting, body)) = Setting::take(input) else { return };
    decoded(&setting, body).check_same(&decoded(&setting, body), "decoded again");
}

/// The events of the body.
fn decoded(setting: &Setting, body: &[u8]) -> Output {
    let msgpack = PATHS.map(|path| (path, "application/msgpack"));
    let json = JSON.map(|path| (path, "application/json"));
    let all: Vec<_> = msgpack.into_iter().chain(json).chain(OTHERS).collect();
    let (path, content_type) = all[usize::from(setting.byte(PATH)) % all.len()];
    let (max_strings, max_span_entries, max_text_bytes) =
        setting.pick(SIZES, &[(1_000_000, 4096, 256 << 10), (16, 3, 16), (1000, 40, 100)]);
    let options = Options {
        max_strings,
        max_span_entries,
        max_text_bytes,
        max_profile_entries: max_strings,
        max_frames: max_span_entries,
        max_inflated_bytes: 1 << 20,
        telemetry: true,
        semantics: setting.pick(SEMANTICS, &[Semantics::Datadog, Semantics::OpenTelemetry]),
        ..Options::default()
    };
    let exchange = DatadogAgentExchange::new(options, &MemoryBudget::unlimited());
    let counters = counters(Protocol::DatadogAgent);
    let head = RequestHead {
        method: "PUT".to_owned(),
        target: path.to_owned(),
        headers: vec![("content-type".to_owned(), content_type.as_bytes().to_vec())],
    };
    let request = Request { head, body: body.to_vec().into(), number: 1 };
    let mut output = Output::with_text();
    let origin = origin(Protocol::DatadogAgent, 1);
    let origin_of_flush = origin.clone();
    let (answer, _) =
        decode::answer(&exchange, request, origin, &counters, now(Duration::from_secs(1)), &mut |batch| {
            output.take(&batch);
        });
    if path.starts_with("/dogstatsd/") {
        let (mut out, mut account) =
            (tributary::protocol::Output::new(BatchBuilder::new(origin_of_flush)), Account::default());
        let now = now(Duration::from_secs(20));
        loop {
            let step = call(&mut out, &mut account, &counters, now, |out| exchange.finish(now, out));
            step.batch.iter().for_each(|batch| output.take(batch));
            if step.flow != Flow::Again {
                break;
            }
        }
    }
    let totals = counters.totals();
    output.check_totals([&totals]);
    assert!([200, 202, 400, 413].contains(&answer.status), "{}", answer.status);
    assert_eq!(totals.bytes_in, body.len() as u64);
    if answer.status >= 400 {
        assert_eq!((totals.bytes_decoded, totals.events(), totals.count(Kind::Loss)), (0, 1, 1));
    }
    output
}
