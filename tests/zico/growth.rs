//! Work grows with the bytes received, whatever they are: adversarial bodies of size n and 2n.

use std::sync::Arc;
use std::time::Duration;

use crate::agent_store::limits::registrations;
use crate::growth_support::{Case, assert_linear, requests};
use crate::zico_support::cbor::{array, gen1, gen2, int, map, null, reference, tag, text};
use crate::zico_support::fressian::Content;
use tributary::decode::OfflinePackets;
use tributary::event::{Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::Now;
use tributary::protocol::zico::fressian::packet::{code, packet};
use tributary::protocol::zico::{Options, ZicoExchange};
use tributary::protocol::{Protocol, RequestHead};

const GEN1: &str = "x-zorka-session-uuid";
const GEN2: &str = "x-zorka-session-id";

/// The path of a body, and the body.
type Body = (&'static str, Vec<u8>);

fn case(name: &'static str, size: u64, session: &'static str, attack: fn(i64) -> Vec<Body>) -> Case {
    Case::new(name, size, move |size| {
        let bodies = attack(i64::try_from(size).unwrap()).into_iter();
        let bodies: Vec<_> = bodies.map(|(path, body)| (head(session, path), body)).collect();
        let exchange = ZicoExchange::recorded(Options::default(), false, &MemoryBudget::new(256 << 20));
        move || {
            let statuses = requests(&exchange, Protocol::Zico, &bodies);
            assert!(statuses.iter().all(|status| *status == 202), "{statuses:?}");
        }
    })
}

/// Packets of these contents, on one connection each.
fn packets(name: &'static str, size: u64, attack: fn(i64) -> Vec<Vec<u8>>) -> Case {
    Case::new(name, size, move |size| {
        let mut hello = Content::default();
        hello.open("HelloRequest_v1", 3);
        hello.int(1);
        hello.text("host");
        hello.text("changeme");
        let hello = packet(code::HELLO, &hello.bytes);
        let connections: Vec<Vec<u8>> = attack(i64::try_from(size).unwrap())
            .iter()
            .map(|content| [&hello[..], &packet(code::DATA, content)].concat())
            .collect();
        let options = Options { max_record_depth: 1_000_000, ..Options::default() };
        let exchange = ZicoExchange::recorded(options, false, &MemoryBudget::new(256 << 20));
        let counters = ListenerCounters::new("test".into(), Protocol::Zico);
        let now = Now { unix: UnixNanos(1_795_176_900_000_000_000), elapsed: Duration::ZERO };
        move || {
            for (number, bytes) in (1..).zip(&connections) {
                let origin = Arc::new(Origin::new("zico", "test".into(), "192.0.2.1:1".into(), number));
                let packets = OfflinePackets::of(&exchange, bytes, origin, counters.clone());
                let mut packets = packets.unwrap();
                let answers = packets.feed(bytes, now, &mut drop);
                assert!(answers.iter().all(|answer| answer.bytes[5] == 0), "{answers:?}");
            }
        }
    })
}

fn content(write: impl FnOnce(&mut Content)) -> Vec<u8> {
    let mut content = Content::default();
    write(&mut content);
    content.bytes
}

fn head(session: &str, path: &str) -> RequestHead {
    let headers = [(session, "00c0ffee12345678"), ("x-zorka-trace-uuid", "0123456789abcdef0123456789abcdef")];
    let headers = headers.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
    RequestHead { method: "POST".to_owned(), target: format!("/agent/submit/{path}"), headers: headers.to_vec() }
}

fn repeat(n: i64, part: impl FnMut(i64) -> Vec<u8>) -> Vec<u8> {
    (0..n).flat_map(part).collect()
}

/// Records nested `n` deep.
fn nested(n: i64, inside: impl FnMut(i64) -> Vec<u8>) -> Vec<u8> {
    [repeat(n, inside), repeat(n, |at| gen1::close(at as u64, 1))].concat()
}

#[test]
fn twice_the_bodies_are_at_most_two_and_a_half_times_the_work() {
    let cases = [
        case("records nested deeper and deeper", 500, GEN1, |n| {
            vec![("trc", nested(n, |at| gen1::open(at as u64, 9)))]
        }),
        case("records that never end", 500, GEN1, |n| vec![("trc", repeat(n, |at| gen1::open(at as u64, 9)))]),
        case("a trace in more and more parts", 300, GEN1, |n| {
            let parts = (0..n).map(|at| ("trc", gen1::open(at as u64, 9)));
            parts.chain([("trc", repeat(n, |at| gen1::close(at as u64, 1)))]).collect()
        }),
        case("a trace in parts, each with an attribute of the outermost record", 300, GEN1, |n| {
            let first = [gen1::open(1, 9), gen1::begin(1, 5), repeat(n, |at| gen1::open(at as u64, 9))].concat();
            let part = |at: i64| ("trc", gen1::upward(5, &[(text(&at.to_string()), int(at))]));
            [("trc", first)].into_iter().chain((0..n).map(part)).collect()
        }),
        case("items that belong to no record", 1000, GEN1, |n| {
            vec![("trc", [gen1::open(1, 9), repeat(n, |_| gen1::close(2, 1))].concat())]
        }),
        case("begins of one type inside each other, each with upward attributes", 300, GEN1, |n| {
            let step = |at: i64| {
                [gen1::open(at as u64, 9), gen1::begin(at, 5), gen1::upward(5, &[(text("k"), int(at))])].concat()
            };
            vec![("trc", nested(n, step))]
        }),
        case("attributes of one record, all of one key", 500, GEN1, |n| {
            let attributes = repeat(n, |at| gen1::attributes(&[(text("k"), int(at))]));
            vec![("trc", [gen1::open(1, 9), attributes, gen1::close(2, 1)].concat())]
        }),
        case("attributes of one record, each of its own key", 500, GEN1, |n| {
            let attributes = repeat(n, |at| gen1::attributes(&[(reference(at + 1), int(at))]));
            vec![("trc", [gen1::open(1, 9), attributes, gen1::close(2, 1)].concat())]
        }),
        case("one map of attributes", 500, GEN1, |n| {
            let pairs: Vec<_> = (0..n).map(|at| (text(&at.to_string()), text("value"))).collect();
            vec![("trc", [gen1::open(1, 9), gen1::attributes(&pairs), gen1::close(2, 1)].concat())]
        }),
        case("a value of arrays and maps", 500, GEN1, |n| {
            let items: Vec<_> = (0..n).map(|at| array(&[map(&[(int(at), null())]), array(&[])])).collect();
            let attributes = gen1::attributes(&[(text("k"), array(&items))]);
            vec![("trc", [gen1::open(1, 9), attributes, gen1::close(2, 1)].concat())]
        }),
        case("a value of nested tags", 500, GEN1, |n| {
            let value = (0..n).fold(int(1), |inner, _| tag(200, inner));
            vec![("trc", [gen1::open(1, 9), gen1::attributes(&[(text("k"), value)]), gen1::close(2, 1)].concat())]
        }),
        case("copies inside each other that must be looked for to their ends", 300, GEN2, |n| {
            let delivered = [gen2::open(7, 9), gen2::begin(5, 1, &[]), gen2::close(8, 1, None)].concat();
            let step = |_| [gen2::open(7, 9), gen2::begin(5, 1, &[])].concat();
            let copies = [gen2::open(1, 9), repeat(n, step), repeat(n + 1, |_| gen2::close(9, 1, None))].concat();
            vec![("trc", delivered), ("trc", copies)]
        }),
        case("copies of the local tracer inside each other that must be looked for to their ends", 300, GEN1, |n| {
            let delivered = [gen1::open(0, 9), gen1::begin(5, 1), gen1::close(3, 1)].concat();
            let step = |_| [gen1::open(7, 9), gen1::begin(5, 1)].concat();
            let copies = [gen1::open(0, 9), repeat(n, step), repeat(n + 1, |_| gen1::close(9000, 1))].concat();
            vec![("trc", delivered), ("trc", copies)]
        }),
        case("equal traces of the local tracer, and copies of all of them and of others", 150, GEN1, |n| {
            let call = |start, ticks| [gen1::open(start, 9), gen1::begin(5, 1), gen1::close(start + ticks, 1)].concat();
            let copies = repeat(n, |at| [call(at as u64, 3), call(at as u64, 1000)].concat());
            let outer = [gen1::open(0, 9), gen1::begin(5, 2), copies, gen1::close(9000, 1)].concat();
            (0..n).map(|_| ("trc", call(0, 3))).chain([("trc", outer)]).collect()
        }),
        packets("records of Fressian nested deeper and deeper", 500, |n| {
            vec![content(|content| {
                for at in 0..n {
                    content.record(1 + n - at, (at == 0).then_some(5));
                    content.null();
                    content.list(1);
                }
                content.leaf(1, None);
            })]
        }),
        packets("records of Fressian that never end", 500, |n| {
            vec![content(|content| {
                for at in 0..n {
                    content.record(1, (at == 0).then_some(5));
                    content.null();
                    content.bytes.push(0xEE);
                }
            })]
        }),
        packets("traces of Fressian that are delivered, and copies of all of them in one", 300, |n| {
            let inner = content(|content| (0..n).for_each(|at| content.leaf(at, Some(5))));
            let outer = content(|content| {
                content.record(1_000_000, Some(4));
                content.null();
                content.list(2 * n);
                (0..n).for_each(|at| {
                    content.leaf(at, Some(5));
                    content.leaf(at + n, Some(6));
                });
            });
            vec![inner, outer]
        }),
        packets("equal traces of Fressian, and copies of all of them and of others", 300, |n| {
            let inner = content(|content| (0..n).for_each(|_| content.leaf(3, Some(5))));
            let outer = content(|content| {
                content.record(1_000_000, Some(4));
                content.null();
                content.list(2 * n);
                (0..n).for_each(|_| {
                    content.leaf(3, Some(5));
                    content.leaf(1000, Some(5));
                });
            });
            vec![inner, outer]
        }),
        packets("a packet of Fressian that is sent again and again", 30, |n| {
            let sent = content(|content| (0..n).for_each(|at| content.leaf(at, Some(5))));
            vec![sent; 10]
        }),
        packets("attributes of one record of Fressian", 500, |n| {
            vec![content(|content| {
                content.record(1, Some(5));
                content.attributes(n);
                content.null();
            })]
        }),
        packets("symbols of Fressian defined again and again, and used", 300, |n| {
            vec![content(|content| {
                (0..n).for_each(|at| {
                    content.symbol(1 + at % 3, &at.to_string());
                    content.leaf(at, Some(5));
                });
            })]
        }),
        packets("cached values of Fressian, and references to them", 500, |n| {
            vec![content(|content| {
                content.record(1, Some(5));
                content.bytes.push(0xC0);
                content.list(4 * n);
                for at in 0..n {
                    content.int(4 + at);
                    content.bytes.push(0xCD);
                    content.text("a text that is cached");
                    content.int(4 + n + at);
                    content.bytes.push(0xCC);
                    content.int(at);
                }
                content.null();
            })]
        }),
        packets("lists of Fressian in one another beside records", 500, |n| {
            vec![content(|content| {
                content.leaf(1, Some(5));
                (0..n).for_each(|_| content.list(1));
                content.null();
            })]
        }),
        // A scan of the table with each registration would make it quadratic.
        Case::new("registrations beside more and more agents", 12, registrations),
        case("strings and methods defined again and again, and used", 300, GEN2, |n| {
            let strings = repeat(n, |at| gen2::string(at % 3 + 1, &at.to_string()));
            let methods = repeat(n, |at| gen2::method(at + 1, [1, 2, 3]));
            let records = repeat(n, |at| [gen2::open(at, at + 1), gen2::close(at + 1, 1, None)].concat());
            vec![("agd", [strings, methods].concat()), ("trc", records)]
        }),
        case("one definition and one record by turns", 150, GEN2, |n| {
            let method =
                |at: i64| ("agd", [gen2::string(1, &at.to_string()), gen2::method(at + 1, [1, 1, 1])].concat());
            let record = |at: i64| ("trc", [gen2::open(at, at + 1), gen2::close(at + 1, 1, None)].concat());
            (0..n).flat_map(|at| [method(at), record(at)]).collect()
        }),
    ];
    assert_linear(twice_the_bodies_are_at_most_two_and_a_half_times_the_work, &cases);
}
