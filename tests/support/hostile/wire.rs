//! Wire objects as the specification has them: a writer, and a walker that says where each stands.

/// A string id made of a number.
pub fn id(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

pub fn process(string_cache_size: u64) -> Vec<u8> {
    [&[0xDD, 0, 0, 0, 0, 1][..], &string_cache_size.to_be_bytes()].concat()
}

pub fn trace(trace_id: u128) -> Vec<u8> {
    [&[0xDD, 1][..], &trace_id.to_be_bytes()].concat()
}

/// A span with these ids for name, type, resource and service.
pub fn span(trace_id: u128, texts: [u64; 4]) -> Vec<u8> {
    span_with(trace_id, texts, 1, 1, 0)
}

pub fn span_with(trace_id: u128, texts: [u64; 4], start: u64, duration: u64, error: u8) -> Vec<u8> {
    let mut bytes = vec![0xDD, 2];
    bytes.extend(1u64.to_be_bytes());
    bytes.extend(0u64.to_be_bytes());
    bytes.extend(trace_id.to_be_bytes());
    bytes.extend(start.to_be_bytes());
    bytes.extend(duration.to_be_bytes());
    texts.iter().for_each(|text| bytes.extend(text.to_be_bytes()));
    bytes.push(error);
    bytes
}

/// One metaList of at most 255 entries.
pub fn meta(entries: &[(u64, u64)]) -> Vec<u8> {
    list(5, entries)
}

/// One metricsList of at most 255 entries; values are the bits of doubles.
pub fn metrics(entries: &[(u64, u64)]) -> Vec<u8> {
    list(4, entries)
}

fn list(object_type: u8, entries: &[(u64, u64)]) -> Vec<u8> {
    let count = u8::try_from(entries.len()).expect("at most 255 entries");
    let mut bytes = vec![0xDD, object_type, count];
    for (key, value) in entries {
        bytes.extend(key.to_be_bytes());
        bytes.extend(value.to_be_bytes());
    }
    bytes
}

pub fn string(number: u64, text: &[u8]) -> Vec<u8> {
    [&string_head(number, text.len() as u32)[..], text].concat()
}

pub fn string_head(number: u64, len: u32) -> Vec<u8> {
    [&[0xDD, 6][..], &id(number), &len.to_be_bytes()].concat()
}

/// What a stream consists of, read by the layout table alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Walk {
    /// Complete process, trace and span objects.
    pub owners: u64,
    /// Complete string objects.
    pub strings: u64,
    /// Bytes of complete objects.
    pub good: usize,
    /// Whether what follows them can never be decoded.
    pub fault: bool,
}

/// Reads a stream up to the first object that is not all there or cannot be one.
pub fn walk(bytes: &[u8], max_string: u64, padded: bool) -> Walk {
    let mut walk = Walk::default();
    loop {
        let rest = &bytes[walk.good..];
        let (size, is_owner) = match rest {
            [] => return walk,
            _ if walk.good == 0 => {
                let magic = [0xDD, 0, 0, 0, 0, 1];
                walk.fault = rest.iter().zip(magic).any(|(found, expected)| *found != expected);
                (14, true)
            }
            [0xDD] => return walk,
            [0xDD, 1, ..] => (18, true),
            [0xDD, 2, ..] => (83, true),
            [0xDD, 4 | 5] => return walk,
            [0xDD, 4 | 5, count, ..] if padded => {
                walk.fault = *count > 32;
                (515, false)
            }
            [0xDD, 4 | 5, count, ..] => (3 + 16 * usize::from(*count), false),
            [0xDD, 6, ..] if rest.len() < 14 => return walk,
            [0xDD, 6, ..] => {
                let len = u32::from_be_bytes([rest[10], rest[11], rest[12], rest[13]]);
                walk.fault = u64::from(len) > max_string;
                (14 + len as usize, false)
            }
            _ => {
                walk.fault = true;
                return walk;
            }
        };
        if walk.fault || rest.len() < size {
            return walk;
        }
        walk.good += size;
        walk.owners += u64::from(is_owner);
        walk.strings += u64::from(rest[1] == 6);
    }
}
