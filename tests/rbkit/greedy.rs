//! Messages that try to cost more than their size: memory, quadratic work, numbers at the limits of their types.
//! Most of these tests show that decoding ends soon and in little memory.

use crate::rbkit_law_support::pack::{Pack, Texts, frame, hello};
use crate::rbkit_law_support::{Outcome, Setting, Side, check_accounting, read_stream};
use tributary::protocol::End;

fn stream(bodies: &[Vec<u8>]) -> Vec<u8> {
    let frames: Vec<Vec<u8>> = bodies.iter().map(|body| frame(0, body)).collect();
    [hello("PUB"), frames.concat()].concat()
}

/// Reads one message in pieces of 64 KiB, as from a socket.
fn outcome(body: Vec<u8>) -> Outcome {
    let stream = stream(&[body]);
    let cuts: Vec<usize> = (0..stream.len()).step_by(64 << 10).collect();
    let outcome = read_stream(&Setting::default(), Side::Published, &stream, &cuts, End::Closed);
    check_accounting(&outcome, &stream);
    outcome
}

/// A collection of the dialect spec-2.1 with one event of this type, whose payload `write` writes.
fn collection(kind: u64, write: impl FnOnce(&mut Pack)) -> Vec<u8> {
    let mut pack = Pack::new(Texts::Raw);
    pack.raw(&[0x83, 0, 6, 9, 0, 2, 0x91, 0x82, 0]);
    pack.uint(kind);
    pack.uint(2);
    write(&mut pack);
    pack.bytes
}

/// A snapshot of one site that names stack 1 `count` times.
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
    let outcome = outcome(body);
    assert_eq!(outcome.lines.len(), 40);
    assert!(outcome.largest_batch < 6_000_000, "{}", outcome.largest_batch);
}

#[test]
fn a_long_stack_without_frames_is_not_read_again_for_each_of_its_samples() {
    // 10,000 samples of a stack of 2 MB with one frame: 20 GB if it were read for each.
    let body = collection(0, |pack| {
        let stack = |pack: &mut Pack| {
            pack.raw(&[0x91, 0x82, 12, 0xA1, b'm', 99]);
            pack.array(2_000_000);
            pack.raw(&vec![0xC0; 2_000_000]);
        };
        snapshot(pack, stack, 10_000);
    });
    let outcome = outcome(body);
    assert_eq!(outcome.lines.len(), 10_000);
    assert!(outcome.lines[9_999].contains(r#""frames":[{"function":"m"}]"#));
}

#[test]
fn more_stacks_than_any_agent_has_are_not_all_indexed() {
    let mut pack = Pack::new(Texts::Raw);
    pack.raw(&[0x83, 0, 6, 9, 0, 2, 0x91, 0x82, 0, 0, 2, 0x82, 16]);
    pack.map(200_000);
    for id in 0..200_000 {
        pack.uint(id);
        pack.raw(&[0x91, 0x81, 12, 0xA1, b'm']);
    }
    pack.raw(&[18, 0x81, 0xA1, b'f', 0x81]);
    pack.text(b"7 String 40");
    pack.raw(&[0x81, 16, 0x82]);
    for id in [5, 199_999] {
        pack.uint(id);
        pack.uint(1);
    }
    let events = outcome(pack.bytes).events();
    assert_eq!(events.len(), 2);
    assert_eq!(events[0]["sample"]["frames"][0]["function"], "m");
    assert!(events[0]["attributes"].get("tributary.incomplete").is_none());
    assert_eq!(events[1]["sample"]["frames"].as_array().unwrap().len(), 0);
    assert_eq!(events[1]["attributes"]["tributary.incomplete"][0], "frames");
}

#[test]
fn a_snapshot_outside_of_collections_is_read_however_it_is_cut() {
    let mut pack = Pack::new(Texts::Raw);
    pack.raw(&[0x82, 0, 0, 2]);
    snapshot(&mut pack, |pack| pack.raw(&[0x91, 0x81, 12, 0xA1, b'm']), 3);
    let stream = stream(&[pack.bytes]);
    let whole = read_stream(&Setting::default(), Side::Published, &stream, &[], End::Closed);
    check_accounting(&whole, &stream);
    assert_eq!(whole.names(), [("rbkit.allocations".to_owned(), 3)].into());
    for cut in 0..stream.len() {
        let cut = read_stream(&Setting::default(), Side::Published, &stream, &[cut], End::Closed);
        assert_eq!(cut.lines, whole.lines);
    }
}

#[test]
fn a_payload_that_announces_millions_of_pairs_is_read_once() {
    // A map of a million pairs whose first key is incomplete: a loop over the pairs would read the key for each.
    let mut pack = Pack::new(Texts::Raw);
    pack.raw(&[0x82, 0, 0, 2]);
    pack.map(1_000_000);
    pack.array(2_000_000);
    pack.raw(&vec![0xC0; 2_000_000]);
    pack.raw(&vec![0xC0; 125_000]);
    let outcome = outcome(pack.bytes);
    assert_eq!(outcome.names().keys().collect::<Vec<_>>(), ["loss malformed"]);
}

#[test]
fn a_part_that_arrives_in_many_pieces_is_not_read_again_for_each() {
    // One object with 4 million references, in pieces of 1 KB.
    let body = collection(4, |pack| {
        pack.raw(&[0x91, 0x82, 3, 1, 5]);
        pack.array(4_000_000);
        pack.raw(&vec![1; 4_000_000]);
    });
    let stream = stream(&[body]);
    let cuts: Vec<usize> = (0..stream.len()).step_by(1 << 10).collect();
    let outcome = read_stream(&Setting::default(), Side::Published, &stream, &cuts, End::Closed);
    check_accounting(&outcome, &stream);
    let events = outcome.events();
    assert_eq!(events[0]["attributes"]["rbkit.object.references"].as_array().unwrap().len(), 100_000);
    assert_eq!(outcome.lost, 3_900_000);
}

#[test]
fn the_smallest_and_largest_numbers_are_read() {
    let counters = [u64::MAX, 0, u64::MAX - 1, u64::MAX, u64::MAX];
    let bodies: Vec<Vec<u8>> = counters
        .iter()
        .map(|counter| {
            let mut pack = Pack::new(Texts::Raw);
            pack.raw(&[0x83, 0, 7, 9]);
            pack.uint(*counter);
            pack.raw(&[2, 0x92]);
            // A dump that announces 2^64 - 1 objects and has one with the largest numbers, twice.
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
    let outcome = read_stream(&Setting::default(), Side::Published, &stream, &[], End::Closed);
    check_accounting(&outcome, &stream);
    let names = outcome.names();
    assert_eq!(names["rbkit.heap.object"], 10);
    assert_eq!(names["rbkit.agent.restarted"], 2);
    assert!(outcome.events().iter().any(|event| event["loss"]["events"].as_u64() == Some(u64::MAX - 2)), "the gap");
}

#[test]
fn invalid_times_are_replaced_by_the_receive_time() {
    let time = |bytes: &[u8]| {
        let mut pack = Pack::new(Texts::Raw);
        pack.raw(&[0x82, 0, 7, 2, 0x91, 0x82, 0, 2, 1]);
        pack.raw(bytes);
        outcome(pack.bytes).events().remove(0)
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
