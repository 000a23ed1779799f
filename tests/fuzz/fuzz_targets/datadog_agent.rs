//! Bodies of Datadog tracers, of each path: a body is refused whole or decoded whole, every byte is decoded or lost, and the
//! same body gives the same events.
#![cfg_attr(feature = "fuzzer", no_main)]

use std::time::Duration;

use tributary::decode;
use tributary::event::Kind;
use tributary::memory::MemoryBudget;
use tributary::protocol::datadog_agent::{DatadogAgentExchange, Options};
use tributary::protocol::{Protocol, Request, RequestHead};
use tributary_fuzz::{Output, Setting, counters, now, origin};

tributary_fuzz::target!(property);

/// Indices of bytes in the setting.
const PATH: usize = 0;
const SIZES: usize = 1;

const PATHS: [&str; 6] = ["/v0.4/traces", "/v0.5/traces", "/v0.7/traces", "/v1.0/traces", "/spans", "/v0.6/stats"];
/// Paths to which old clients send JSON. Their numbers follow those of `PATHS`.
const JSON: [&str; 2] = ["/v0.4/traces", "/v0.1/spans"];

fn property(input: &[u8]) {
    let Some((setting, body)) = Setting::take(input) else { return };
    decoded(&setting, body).check_same(&decoded(&setting, body), "decoded again");
}

/// The events of the body.
fn decoded(setting: &Setting, body: &[u8]) -> Output {
    let number = usize::from(setting.byte(PATH)) % (PATHS.len() + JSON.len());
    let (path, content_type) = match PATHS.get(number) {
        Some(path) => (*path, "application/msgpack"),
        None => (JSON[number - PATHS.len()], "application/json"),
    };
    let (max_strings, max_span_entries, max_text_bytes) =
        setting.pick(SIZES, &[(1_000_000, 4096, 256 << 10), (16, 3, 16), (1000, 40, 100)]);
    let options = Options { max_strings, max_span_entries, max_text_bytes, ..Options::default() };
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
    let (answer, _) =
        decode::answer(&exchange, request, origin, &counters, now(Duration::from_secs(1)), &mut |batch| {
            output.take(&batch);
        });
    let totals = counters.totals();
    output.check_totals([&totals]);
    assert!([200, 400].contains(&answer.status), "{}", answer.status);
    assert_eq!(totals.bytes_in, body.len() as u64);
    if answer.status == 400 {
        assert_eq!((totals.bytes_decoded, totals.events(), totals.count(Kind::Loss)), (0, 1, 1));
    }
    output
}
