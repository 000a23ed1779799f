//! Requests of OTLP, of each signal and encoding: a body is refused whole or decoded whole, every byte is decoded or lost, and
//! the same body gives the same events.
#![cfg_attr(feature = "fuzzer", no_main)]

use std::time::Duration;

use tributary::decode;
use tributary::event::Kind;
use tributary::memory::MemoryBudget;
use tributary::protocol::otlp::{Options, OtlpExchange};
use tributary::protocol::{Protocol, Request, RequestHead};
use tributary_fuzz::{Output, Setting, counters, now, origin};

tributary_fuzz::target!(property);

/// Indices of bytes in the setting.
const PATH: usize = 0;
const FORM: usize = 1;
const SIZES: usize = 2;

const PATHS: [&str; 4] = ["/v1/traces", "/v1/logs", "/v1/metrics", "/v1development/profiles"];
/// Types, and how the body is compressed.
const FORMS: [(&str, &str); 5] = [
    ("application/x-protobuf", "identity"),
    ("application/json", "identity"),
    ("application/x-protobuf", "gzip"),
    ("application/x-protobuf", "zstd"),
    ("application/grpc", "identity"),
];

fn property(input: &[u8]) {
    let Some((setting, body)) = Setting::take(input) else { return };
    decoded(&setting, body).check_same(&decoded(&setting, body), "decoded again");
}

/// The events of the body.
fn decoded(setting: &Setting, body: &[u8]) -> Output {
    let path = PATHS[usize::from(setting.byte(PATH)) % PATHS.len()];
    let (content_type, encoding) = FORMS[usize::from(setting.byte(FORM)) % FORMS.len()];
    let (max_attributes, max_text_bytes) = setting.pick(SIZES, &[(4096, 256 << 10), (2, 16), (40, 100)]);
    let (max_frames, max_profile_entries) = (max_attributes, max_text_bytes as usize);
    let limits = Options { max_attributes, max_text_bytes, max_frames, max_profile_entries, ..Options::default() };
    let options = Options { max_inflated_bytes: 1 << 20, ..limits };
    let exchange = OtlpExchange::new(options, &MemoryBudget::unlimited());
    let counters = counters(Protocol::Otlp);
    let header = |name: &str, value: &str| (name.to_owned(), value.as_bytes().to_vec());
    let head = RequestHead {
        method: "POST".to_owned(),
        target: path.to_owned(),
        headers: vec![header("content-type", content_type), header("content-encoding", encoding)],
    };
    let request = Request { head, body: body.to_vec().into(), number: 1 };
    let mut output = Output::with_text();
    let (answer, _) = decode::answer(
        &exchange,
        request,
        origin(Protocol::Otlp, 1),
        &counters,
        now(Duration::from_secs(1)),
        &mut |batch| output.take(&batch),
    );
    let totals = counters.totals();
    output.check_totals([&totals]);
    assert!([200, 400, 413].contains(&answer.status), "{}", answer.status);
    if answer.status >= 400 {
        assert_eq!((totals.bytes_decoded, totals.events(), totals.count(Kind::Loss)), (0, 1, 1));
        assert_eq!(totals.bytes_in, body.len() as u64);
    }
    output
}
