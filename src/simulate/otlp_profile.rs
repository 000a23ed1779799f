//! The profile of a simulated program: samples of processor time, and the dictionary of the request.

use tributary_codec::protobuf::{push_bytes_field, push_fixed64_field, push_message, push_varint, push_varint_field};

use super::rng::Rng;

/// Texts; the functions are behind [`FIRST_FUNCTION`], each with its line.
const STRINGS: [&str; 7] = ["", "samples", "count", "cpu", "nanoseconds", "shop/server.py", "thread.name"];
const FUNCTIONS: [(&str, u64); 6] = [
    ("main", 12),
    ("shop.server.handle", 41),
    ("shop.cart.total", 77),
    ("shop.orders.pay", 103),
    ("json.dumps", 238),
    ("psycopg.execute", 97),
];
const FIRST_FUNCTION: u64 = STRINGS.len() as u64;
/// Locations of stacks, innermost first: they have the numbers of their functions, counted from 1.
const STACKS: [&[u64]; 5] = [&[2, 1], &[3, 2, 1], &[4, 2, 1], &[6, 4, 2, 1], &[5, 3, 2, 1]];
const THREADS: [&str; 2] = ["worker-1", "worker-2"];
/// The time between two samples.
const PERIOD_NANOS: u64 = 10_000_000;

/// Appends a profile with this many samples as a field of a scope.
pub(super) fn push_profile(out: &mut Vec<u8>, rng: &mut Rng, now_nanos: u64, samples: u64) {
    let duration = samples * PERIOD_NANOS;
    let start = now_nanos.saturating_sub(duration);
    let value_type = |out: &mut Vec<u8>, field, of, unit| {
        push_message(out, field, 1, |out| {
            push_varint_field(out, 1, of);
            push_varint_field(out, 2, unit);
        });
    };
    push_message(out, 2, 3, |out| {
        value_type(out, 1, 1, 2);
        for number in 0..samples {
            let (stack, thread) = (1 + rng.below(STACKS.len() as u64), 1 + rng.below(THREADS.len() as u64));
            push_message(out, 2, 1, |out| {
                push_varint_field(out, 1, stack);
                push_list(out, 2, &[thread]);
                push_list(out, 4, &[1]);
                push_bytes_field(out, 5, &(start + number * PERIOD_NANOS).to_le_bytes());
            });
        }
        push_fixed64_field(out, 3, start);
        push_varint_field(out, 4, duration);
        value_type(out, 5, 3, 4);
        push_varint_field(out, 6, PERIOD_NANOS);
        push_bytes_field(out, 7, &[rng.next().to_le_bytes(), rng.next().to_le_bytes()].concat());
    });
}

/// Appends the dictionary as a field of a request.
pub(super) fn push_dictionary(out: &mut Vec<u8>) {
    push_message(out, 2, 2, |out| {
        // Each table begins with an empty entry.
        for table in [1, 2, 3, 4, 6, 7] {
            push_bytes_field(out, table, &[]);
        }
        for number in 1..=FUNCTIONS.len() as u64 {
            push_message(out, 2, 1, |out| {
                push_message(out, 3, 1, |out| {
                    push_varint_field(out, 1, number);
                    push_varint_field(out, 2, FUNCTIONS[number as usize - 1].1);
                });
            });
            push_message(out, 3, 1, |out| {
                push_varint_field(out, 1, FIRST_FUNCTION + number - 1);
                push_varint_field(out, 3, 5);
            });
        }
        let functions = FUNCTIONS.iter().map(|(name, _)| *name);
        STRINGS.into_iter().chain(functions).for_each(|text| push_bytes_field(out, 5, text.as_bytes()));
        for thread in THREADS {
            push_message(out, 6, 1, |out| {
                push_varint_field(out, 1, 6);
                push_message(out, 2, 1, |out| push_bytes_field(out, 1, thread.as_bytes()));
            });
        }
        for stack in STACKS {
            push_message(out, 7, 1, |out| push_list(out, 1, stack));
        }
    });
}

fn push_list(out: &mut Vec<u8>, field: u8, numbers: &[u64]) {
    push_message(out, field, 1, |out| numbers.iter().for_each(|number| push_varint(out, *number)));
}
