//! The recorded upload of 5,000 events with its original wire bytes: in gzip, with its hash in the path.

use tributary_codec::gvariant::{Scratch, Skip, Slice, visit_type};
use tributary_codec::inflate::Gunzip;
use tributary_driver::decode;
use tributary_endless::{EndlessExchange, Options};
use tributary_protocol::Request;

use super::{NOW, Workload, budget, origin};

const RECORDED: &[u8] = include_bytes!("../../tests/data/endless/real-v3-bulk-5000/request.http");
pub const EVENTS: u64 = 5_000;
const BUNDLE_TYPE: &str = "(xxsa{ss}ya(aysxmv)a(ayssumv))";

pub fn upload_in_gzip() -> Workload {
    put("endless v3, gzip", upload()).read_by(|| check(&bundle()))
}

/// The same upload, not compressed.
pub fn plain_upload() -> Workload {
    let mut head = upload().head;
    head.headers.clear();
    let bundle = bundle();
    put("endless v3, plain", Request { head, body: bundle.clone().into(), number: 1 }).read_by(move || check(&bundle))
}

/// Checks that the whole bundle is valid for its type.
pub fn check(bundle: &[u8]) -> usize {
    visit_type(BUNDLE_TYPE, Slice::new(bundle), 0, &mut Scratch::default(), &mut Skip).unwrap();
    1
}

/// Puts the request to a new exchange that detects duplicates.
fn put(name: &'static str, request: Request) -> Workload {
    Workload::new(name, request.body.len(), move |counters, take| {
        let exchange = EndlessExchange::new(Options::default(), &budget());
        let take = &mut |batch| take(batch);
        let (answer, _) = decode::answer(&exchange, request.clone(), origin(counters.protocol()), counters, NOW, take);
        assert_eq!(answer.status, 200);
    })
}

fn upload() -> Request {
    decode::requests(RECORDED).unwrap().remove(0)
}

/// The uncompressed bundle.
pub fn bundle() -> Vec<u8> {
    let body = upload().body;
    let mut gunzip = Gunzip::new(1 << 20);
    while let Ok(false) = gunzip.step(&body) {}
    gunzip.into_output()
}
