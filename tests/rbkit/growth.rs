//! Work grows with the bytes received, whatever they are: adversarial messages of size n and 2n.

use crate::growth_support::{Case, assert_linear, connection_in_reads};
use crate::rbkit_law_support::pack::{Pack, Texts, frame, hello};
use tributary::protocol::Protocol;
use tributary::protocol::rbkit::{AgentOptions, Options, RbkitAgent, Subscription};

fn case(name: &'static str, size: usize, attack: fn(usize) -> Vec<u8>) -> Case {
    case_in_reads(name, size, 64 * 1024, attack)
}

/// `attack` writes everything after READY.
fn case_in_reads(name: &'static str, size: usize, read_bytes: usize, attack: fn(usize) -> Vec<u8>) -> Case {
    Case::new(name, size as u64, move |size| {
        let wire = [hello("PUB"), attack(size as usize)].concat();
        let agent = RbkitAgent::new(AgentOptions::default());
        let session = Subscription::new(agent, Options::default().into(), 16 << 20);
        move || connection_in_reads(session, Protocol::Rbkit, &wire, read_bytes)
    })
}

/// A message of the dialect spec-2.1 with these events.
fn message(counter: u64, events: &[Vec<u8>]) -> Vec<u8> {
    let mut pack = Pack::new(Texts::Raw);
    pack.raw(&[0x83, 0, 6, 9]);
    pack.uint(counter);
    pack.raw(&[2]);
    pack.array(events.len());
    events.iter().for_each(|event| pack.raw(event));
    frame(0, &pack.bytes)
}

/// An event with this payload.
fn event(kind: u64, write: impl FnOnce(&mut Pack)) -> Vec<u8> {
    let mut pack = Pack::new(Texts::Raw);
    pack.raw(&[0x82, 0]);
    pack.uint(kind);
    pack.uint(2);
    write(&mut pack);
    pack.bytes
}

/// A snapshot: `stacks` stacks of one frame, and `sites` sites, each with samples of all of `samples`.
fn snapshot(stacks: usize, sites: usize, samples: &[u64]) -> Vec<u8> {
    event(0, |pack| {
        pack.raw(&[0x82, 16]);
        pack.map(stacks);
        for id in 0..stacks {
            pack.uint(id as u64);
            pack.raw(&[0x91, 0x81, 12]);
            pack.text(format!("method{id}").as_bytes());
        }
        pack.raw(&[18, 0x81, 0xA1, b'f']);
        pack.map(sites);
        for line in 0..sites {
            pack.text(format!("{line} String 40").as_bytes());
            pack.raw(&[0x81, 16]);
            pack.map(samples.len());
            for id in samples {
                pack.uint(*id);
                pack.uint(1);
            }
        }
    })
}

#[test]
fn twice_the_stream_is_at_most_two_and_a_half_times_the_work() {
    let cases = [
        case("many small messages", 300, |n| {
            (0..n).flat_map(|at| message(at as u64, &[event(1, |pack| pack.raw(&[0x81, 3, 1]))])).collect()
        }),
        case("messages whose numbers have gaps or go back", 300, |n| {
            (0..n).flat_map(|at| message((at * 7919 % 1000) as u64, &[])).collect()
        }),
        case("one message of many events", 500, |n| {
            message(1, &(0..n).map(|at| event(1, |pack| pack.raw(&[0x81, 3, at as u8 & 127]))).collect::<Vec<_>>())
        }),
        case("events of an unknown type", 500, |n| message(1, &vec![event(99, |pack| pack.nil()); n])),
        case("an event with more and more keys, its payload first", 500, |n| {
            let mut pack = Pack::new(Texts::Raw);
            pack.map(n + 2);
            pack.raw(&[2, 0x81, 3, 1]);
            (0..n).for_each(|at| {
                pack.uint(1000 + at as u64);
                pack.nil();
            });
            pack.raw(&[0, 1]);
            message(1, &[pack.bytes])
        }),
        case_in_reads("a message whose payload stands before its type, byte by byte", 2000, 1, |n| {
            let mut pack = Pack::new(Texts::Raw);
            pack.raw(&[0x83, 2]);
            pack.array(n);
            (0..n).for_each(|_| pack.nil());
            pack.raw(&[0, 6, 9, 1]);
            frame(0, &pack.bytes)
        }),
        case_in_reads("one event that arrives byte by byte", 2000, 1, |n| {
            message(
                1,
                &[event(1, |pack| {
                    pack.raw(&[0x82, 3, 1, 5]);
                    pack.array(n);
                    (0..n).for_each(|_| pack.uint(1));
                })],
            )
        }),
        case("a snapshot of many stacks and one site that names all", 300, |n| {
            message(1, &[snapshot(n, 1, &(0..n as u64).collect::<Vec<_>>())])
        }),
        case("a snapshot of one stack and many sites", 300, |n| message(1, &[snapshot(1, n, &[0])])),
        case("a snapshot of many stacks, and sites that name an unknown one", 300, |n| {
            message(1, &[snapshot(n, n, &[u64::MAX])])
        }),
        case("many snapshots", 100, |n| message(1, &vec![snapshot(1, 1, &[0]); n])),
        case("a cpu sample of many frames", 500, |n| {
            message(
                1,
                &[event(10, |pack| {
                    pack.array(n);
                    (0..n).for_each(|at| {
                        pack.raw(&[0x81, 12]);
                        pack.text(format!("method{at}").as_bytes());
                    });
                })],
            )
        }),
        case("arrays inside arrays", 500, |n| {
            message(
                1,
                &[event(1, |pack| {
                    (0..n).for_each(|_| pack.array(1));
                    pack.nil();
                })],
            )
        }),
        case("messages of many frames", 500, |n| [frame(1, b"x").repeat(n), frame(0, b"x")].concat()),
        case_in_reads("small frames, byte by byte", 100, 1, |n| {
            (0..n).flat_map(|at| message(at as u64, &[])).collect()
        }),
        case("heap dumps that end before their objects", 200, |n| {
            let dump = |at: usize| {
                let mut pack = Pack::new(Texts::Raw);
                pack.raw(&[0x84, 0, 5, 10]);
                pack.uint(at as u64);
                pack.raw(&[11, 100, 2, 0x91, 0x82, 3, 1, 4, 0xA1, b'S']);
                pack.bytes
            };
            message(1, &(0..n).map(dump).collect::<Vec<_>>())
        }),
        case("a heap dump of objects with references", 300, |n| {
            let mut pack = Pack::new(Texts::Raw);
            pack.raw(&[0x84, 0, 5, 10, 1, 11]);
            pack.uint(n as u64);
            pack.raw(&[2]);
            pack.array(n);
            (0..n).for_each(|at| {
                pack.raw(&[0x83, 3]);
                pack.uint(at as u64);
                pack.raw(&[4, 0xA1, b'S', 5, 0x93, 1, 2, 3]);
            });
            message(1, &[pack.bytes])
        }),
    ];
    assert_linear(twice_the_stream_is_at_most_two_and_a_half_times_the_work, &cases);
}
