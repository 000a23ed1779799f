//! Work grows with the bytes received, whatever they are: adversarial bundles of size n and 2n.

use std::io::Write;

use crate::endless_support::http::sha512;
use crate::growth_support::{Case, assert_linear, requests};
use flate2::Compression;
use flate2::write::GzEncoder;
use tributary::memory::MemoryBudget;
use tributary::protocol::endless::{EndlessExchange, Options};
use tributary::protocol::{Protocol, RequestHead};

fn case(name: &'static str, size: usize, attack: fn(usize) -> Vec<Vec<u8>>) -> Case {
    case_with(name, size, Options::default(), attack)
}

/// `attack` writes bundles of version 3.
fn case_with(name: &'static str, size: usize, options: Options, attack: fn(usize) -> Vec<Vec<u8>>) -> Case {
    Case::new(name, size as u64, move |size| {
        let uploads: Vec<_> = attack(size as usize).into_iter().map(|bundle| (head(&bundle, &[]), bundle)).collect();
        let exchange = EndlessExchange::new(options.clone(), &MemoryBudget::new(256 << 20));
        move || {
            let statuses = requests(&exchange, Protocol::Endless, &uploads);
            assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
        }
    })
}

fn head(bundle: &[u8], headers: &[(&str, &str)]) -> RequestHead {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_bytes().to_vec())).collect();
    RequestHead { method: "PUT".to_owned(), target: format!("/3/{}", sha512(bundle)), headers }
}

/// Appends the framing offsets of a container of variable size.
fn framed(mut content: Vec<u8>, ends: impl DoubleEndedIterator<Item = usize> + ExactSizeIterator) -> Vec<u8> {
    let count = ends.len();
    let width = [1, 2, 4].into_iter().find(|width| content.len() + count * width < 1 << (8 * width)).unwrap();
    ends.for_each(|end| content.extend_from_slice(&end.to_le_bytes()[..width]));
    content
}

/// An array of elements of variable size.
fn array(alignment: usize, elements: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let (mut content, mut ends) = (Vec::new(), Vec::new());
    for element in elements {
        content.resize(content.len().next_multiple_of(alignment), 0);
        content.extend_from_slice(&element);
        ends.push(content.len());
    }
    framed(content, ends.into_iter())
}

fn string(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

/// A variant: a value and its type.
fn variant(value: &[u8], signature: &str) -> Vec<u8> {
    [value, &[0], signature.as_bytes()].concat()
}

/// A singular event at this moment; `payload` is a variant.
fn event(relative: u64, payload: Option<&[u8]>) -> Vec<u8> {
    let mut event = vec![0xCD; 16];
    event.extend_from_slice(b"4.0.9\0\0\0");
    event.extend_from_slice(&relative.to_le_bytes());
    if let Some(payload) = payload {
        event.extend_from_slice(payload);
        event.push(0);
    }
    framed(event, [22, 16].into_iter())
}

/// A bundle of these singular events from a machine with these site values.
fn bundle(site: impl IntoIterator<Item = (String, String)>, events: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut body = Vec::new();
    for clock in [0, 1_795_176_900_000_000_000_u64] {
        body.extend_from_slice(&clock.to_le_bytes());
    }
    body.extend_from_slice(b"unknown\0");
    let entry = |(key, value): (String, String)| {
        let end = key.len() + 1;
        framed([string(&key), string(&value)].concat(), [end].into_iter())
    };
    body.extend_from_slice(&array(1, site.into_iter().map(entry)));
    let site_end = body.len();
    body.push(0);
    body.resize(body.len().next_multiple_of(8), 0);
    body.extend_from_slice(&array(8, events));
    let end = body.len();
    body.resize(body.len().next_multiple_of(8), 0);
    framed(body, [end, site_end, 24].into_iter())
}

/// One event with this payload.
fn payload(value: &[u8], signature: &str) -> Vec<Vec<u8>> {
    vec![bundle([], [event(1, Some(&variant(value, signature)))])]
}

/// A bundle of version 2 with one event sequence of this many elements without payload.
fn sequence(elements: usize) -> Vec<u8> {
    let items = array(8, (0..elements as u64).map(|at| at.to_le_bytes().to_vec()));
    // User id, event id, padding to the items.
    let sequence = framed([&[0; 4], &[0xAB; 16][..], &[0; 4], &items].concat(), [20].into_iter());
    // Send number with padding, clocks, machine id, no singular and aggregate events.
    let body = [&[0; 24], &[0xCD; 16][..], &array(8, [sequence])].concat();
    framed(body, [40, 40, 40].into_iter())
}

#[test]
fn twice_the_bundles_are_at_most_two_and_a_half_times_the_work() {
    let cases = [
        case("many events", 300, |n| vec![bundle([], (0..n).map(|at| event(at as u64, None)))]),
        case("the same event again and again", 300, |n| vec![bundle([], (0..n).map(|_| event(1, None)))]),
        case("many bundles of one event", 100, |n| (0..n).map(|at| bundle([], [event(at as u64, None)])).collect()),
        case("the same bundle again and again", 100, |n| vec![bundle([], [event(1, None)]); n]),
        case("many site values, all of one key", 300, |n| {
            vec![bundle((0..n).map(|at| ("k".to_owned(), at.to_string())), [event(1, None)])]
        }),
        case("many site values", 300, |n| {
            vec![bundle((0..n).map(|at| (format!("k{at}"), at.to_string())), [event(1, None)])]
        }),
        case("an array of texts", 500, |n| payload(&array(1, (0..n).map(|at| string(&at.to_string()))), "as")),
        case("an array of bytes", 5000, |n| payload(&vec![7; n], "ay")),
        case("an array of empty tuples", 5000, |n| payload(&vec![0; n], "a()")),
        case("arrays in an array", 500, |n| {
            payload(&array(1, (0..n).map(|_| array(1, [string("a"), string("b")]))), "aas")
        }),
        case("an array of variants", 500, |n| {
            payload(&array(8, (0..n).map(|at| variant(&string(&at.to_string()), "s"))), "av")
        }),
        case("a dict of variants, all of one key", 500, |n| {
            let entry = |at: usize| {
                let value = variant(&string(&at.to_string()), "s");
                framed([&b"k\0\0\0\0\0\0\0"[..], &value].concat(), [2].into_iter())
            };
            payload(&array(8, (0..n).map(entry)), "a{sv}")
        }),
        case("a dict of texts", 500, |n| {
            let entry = |at: usize| {
                let key = string(&format!("key{at}"));
                let end = key.len();
                framed([key, string("value")].concat(), [end].into_iter())
            };
            payload(&array(1, (0..n).map(entry)), "a{ss}")
        }),
        case("framing offsets that go back", 500, |n| {
            let texts = array(1, (0..n).map(|_| string("a")));
            let mut value = texts[..2 * n].to_vec();
            (0..n).for_each(|at| value.extend_from_slice(&(2 * (n - at) as u16).to_le_bytes()));
            payload(&value, "as")
        }),
        case("events that cannot be read", 300, |n| {
            vec![bundle([], (0..n).map(|at| event(at as u64, Some(&variant(&[2], "b")))))]
        }),
        case("a long type", 50, |n| payload(&vec![0; n], &format!("({})", "y".repeat(n)))),
        Case::new("a long event sequence", 10_000, |size| {
            let bundle = sequence(size as usize);
            let mut head = head(&bundle, &[]);
            head.target = head.target.replace("/3/", "/2/");
            let exchange = EndlessExchange::new(Options::default(), &MemoryBudget::new(256 << 20));
            move || assert_eq!(requests(&exchange, Protocol::Endless, &[(head, bundle)]), [200])
        }),
        Case::new("an upload in gzip", 50_000, |size| {
            let bundle = bundle([], (0..size / 50).map(|at| event(at, None)));
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(&bundle).unwrap();
            let upload = (head(&bundle, &[("content-encoding", "gzip")]), encoder.finish().unwrap());
            let exchange = EndlessExchange::new(Options::default(), &MemoryBudget::new(256 << 20));
            move || assert_eq!(requests(&exchange, Protocol::Endless, &[upload]), [200])
        }),
    ];
    assert_linear(twice_the_bundles_are_at_most_two_and_a_half_times_the_work, &cases);
}
