//! The recorded upload of 5,000 events, as it was on the wire: in gzip, its hash in its path.

use tributary::codec::gvariant::{Scratch, Skip, Slice, walk_type};
use tributary::codec::inflate::Gunzip;
use tributary::decode;
use tributary::protocol::Request;
use tributary::protocol::endless::{EndlessExchange, Options};

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

/// That all of the bundle is as its type says.
pub fn check(bundle: &[u8]) -> usize {
    walk_type(BUNDLE_TYPE, Slice::new(bundle), 0, &mut Scratch::default(), &mut Skip).unwrap();
    1
}

/// To an exchange that has seen nothing yet, and remembers everything.
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

/// What is in the gzip.
pub fn bundle() -> Vec<u8> {
    let body = upload().body;
    let mut gunzip = Gunzip::new(1 << 20);
    while let Ok(false) = gunzip.step(&body) {}
    gunzip.into_output()
}
