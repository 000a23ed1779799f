//! Messages that are made to cost more than they are worth: memory, work that grows with its square, numbers out of range.
//! What is asked of a test here is mostly that it ends, and in little memory.

use crate::rbkit_law_support::pack::{Pack, Texts, frame, hello};
use crate::rbkit_law_support::{Heard, Setting, Side, check_law, hear};
use tributary::protocol::End;

fn stream(bodies: &[Vec<u8>]) -> Vec<u8> {
    let frames: Vec<Vec<u8>> = bodies.iter().map(|body| frame(0, body)).collect();
    [hello("PUB"), frames.concat()].concat()
}

/// Hears one message, in pieces of 64 KiB as from a socket.
fn heard(body: Vec<u8>) -> Heard {
    let stream = stream(&[body]);
    let cuts: Vec<usize> = (0..stream.len()).step_by(64 << 10).collect();
    let heard = hear(&Setting::default(), Side::Published, &stream, &cuts, End::Closed);
    check_law(&heard, &stream);
    heard
}

/// A collection of the spec's dialect with one event of this type, whose payload `write` writes.
fn collection(kind: u64, write: impl FnOnce(&mut Pack)) -> Vec<u8> {
    let mut pack = Pack::new(Texts::Raw);
    pack.raw(&[0x83, 0, 6, 9, 0, 2, 0x91, 0x82, 0]);
    pack.uint(kind);
    pack.uint(2);
    write(&mut pack);
    pack.bytes
}

/// A snapshot of one site whose list has `count` times stack 1.
fn snapshot(pack: &mut Pack, write_stack: impl FnOnce(&mut Pack), count: usize) {
    pack.raw(&[0x82, 16, 0x81, 1]);
    write_stack(pack);
    pack.raw(&[18, 0x81, 0xA1, b'f', 0x81]);
    pack.text(b"7 String 40");
    pack.raw(&[0x81, 16]);
    pack.map(count);
    (0..count).for_each(|_| pack.raw(&[1, 1]));
}

#[test]
fn a_long_text_that_many_samples_share_does_not_fill_memory() {
    // Samples of 1 MB each: a thousand of them in one batch would be 1 GB.
    let name = vec![b'x'; 1_000_000];
    let body = collection(0, |pack| {
        let stack = |pack: &mut Pack| {
            pack.raw(&[0x91, 0x81, 12]);
            pack.text(&name);
        };
        snapshot(pack, stack, 40);
    });
    let heard = heard(body);
    assert_eq!(heard.lines.len(), 40);
    assert!(heard.largest_batch < 6_000_000, "{}", heard.largest_batch);
}

#[test]
fn a_stack_of_useless_bytes_is_not_read_again_for_each_of_its_samples() {
    // 50 000 samples of a stack of 2 MB that has nothing to show: 100 GB to go through.
    let body = collection(0, |pack| {
        let stack = |pack: &mut Pack| {
            pack.raw(&[0x91, 0x82, 12, 0xA1, b'm', 99]);
            pack.array(2_000_000);
            pack.raw(&vec![0xC0; 2_000_000]);
        };
        snapshot(pack, stack, 50_000);
    });
    let heard = heard(body);
    assert_eq!(heard.lines.len(), 50_000);
    assert!(heard.lines[49_999].contains(r#""frames":[{"function":"m"}]"#));
}

#[test]
fn more_stacks_than_any_agent_has_are_not_all_remembered() {
    let mut pack = Pack::new(Texts::Raw);
    pack.raw(&[0x83, 0, 6, 9, 0, 2, 0x91, 0x82, 0, 0, 2, 0x82, 16]);
    pack.map(1_000_000);
    for id in 0..1_000_000 {
        pack.uint(id);
        pack.raw(&[0x91, 0x81, 12, 0xA1, b'm']);
    }
    pack.raw(&[18, 0x81, 0xA1, b'f', 0x81]);
    pack.text(b"7 String 40");
    pack.raw(&[0x81, 16, 0x82]);
    for id in [5, 999_999] {
        pack.uint(id);
        pack.uint(1);
    }
    let events = heard(pack.bytes).events();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0]["sample"]["frames"][0]["function"], "m");
    assert!(events[0]["attributes"].get("tributary.incomplete").is_none());
    assert_eq!(events[1]["sample"]["frames"].as_array().unwrap().len(), 0);
    assert_eq!(events[1]["attributes"]["tributary.incomplete"][0], "frames");
}

#[test]
fn a_snapshot_outside_of_collections_is_known_however_it_arrives() {
    let mut pack = Pack::new(Texts::Raw);
    pack.raw(&[0x82, 0, 0, 2]);
    snapshot(&mut pack, |pack| pack.raw(&[0x91, 0x81, 12, 0xA1, b'm']), 3);
    let stream = stream(&[pack.bytes]);
    let whole = hear(&Setting::default(), Side::Published, &stream, &[], End::Closed);
    check_law(&whole, &stream);
    assert_eq!(whole.names(), [("rbkit.allocations".to_owned(), 3)].into());
    for cut in 0..stream.len() {
        let cut = hear(&Setting::default(), Side::Published, &stream, &[cut], End::Closed);
        assert_eq!(cut.lines, whole.lines);
    }
}

#[test]
fn a_payload_that_promises_millions_of_pairs_is_asked_for_them_once() {
    // A map of 4 million pairs whose first key does not end: to ask for each of them is to read the key as often.
    let mut pack = Pack::new(Texts::Raw);
    pack.raw(&[0x82, 0, 0, 2]);
    pack.map(4_000_000);
    pack.array(8_000_000);
    pack.raw(&vec![0xC0; 8_000_000]);
    pack.raw(&vec![0xC0; 500_000]);
    let heard = heard(pack.bytes);
    assert_eq!(heard.names().keys().collect::<Vec<_>>(), ["loss malformed"]);
}

#[test]
fn a_part_that_arrives_in_many_pieces_is_not_begun_anew_with_each() {
    // One object with 4 million references, in pieces of 1 KB.
    let body = collection(4, |pack| {
        pack.raw(&[0x91, 0x82, 3, 1, 5]);
        pack.array(4_000_000);
        pack.raw(&vec![1; 4_000_000]);
    });
    let stream = stream(&[body]);
    let cuts: Vec<usize> = (0..stream.len()).step_by(1 << 10).collect();
    let heard = hear(&Setting::default(), Side::Published, &stream, &cuts, End::Closed);
    check_law(&heard, &stream);
    let events = heard.events();
    assert_eq!(events[0]["attributes"]["rbkit.object.references"].as_array().unwrap().len(), 100_000);
    assert_eq!(heard.lost, 3_900_000);
}

#[test]
fn numbers_at_their_ends_are_numbers() {
    let counters = [u64::MAX, 0, u64::MAX - 1, u64::MAX, u64::MAX];
    let bodies: Vec<Vec<u8>> = counters
        .iter()
        .map(|counter| {
            let mut pack = Pack::new(Texts::Raw);
            pack.raw(&[0x83, 0, 7, 9]);
            pack.uint(*counter);
            pack.raw(&[2, 0x92]);
            // A dump that promises 2^64 - 1 objects and has one of all the largest numbers, twice over.
            for _ in 0..2 {
                pack.raw(&[0x84, 0, 5, 10]);
                pack.uint(u64::MAX);
                pack.uint(11);
                pack.uint(u64::MAX);
                pack.raw(&[2, 0x91, 0x84]);
                for key in [3, 7, 8] {
                    pack.uint(key);
                    pack.uint(u64::MAX);
                }
                pack.raw(&[5, 0x90]);
            }
            pack.bytes
        })
        .collect();
    let stream = stream(&bodies);
    let heard = hear(&Setting::default(), Side::Published, &stream, &[], End::Closed);
    check_law(&heard, &stream);
    let names = heard.names();
    assert_eq!(names["rbkit.heap.object"], 10);
    assert_eq!(names["rbkit.agent.restarted"], 2);
    assert!(heard.events().iter().any(|event| event["loss"]["events"].as_u64() == Some(u64::MAX - 2)), "the gap");
}

#[test]
fn times_that_are_none_are_ours() {
    let time = |bytes: &[u8]| {
        let mut pack = Pack::new(Texts::Raw);
        pack.raw(&[0x82, 0, 7, 2, 0x91, 0x82, 0, 2, 1]);
        pack.raw(bytes);
        heard(pack.bytes).events().remove(0)
    };
    let float = |number: f64| [&[0xCB][..], &number.to_be_bytes()].concat();
    for none in [f64::NAN, f64::INFINITY, -1.0, 1e300].map(float) {
        let event = time(&none);
        assert_eq!(event["attributes"]["tributary.time.basis"], "received");
        assert_eq!(event["time"], "2026-11-20T12:15:00.000000000Z");
    }
    assert_eq!(time(&float(1_436_012_100_122.0))["time"], "2015-07-04T12:15:00.122000000Z");
    assert_eq!(
        time(&[0xCF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF])["attributes"]["tributary.time.basis"],
        "received"
    );
}
