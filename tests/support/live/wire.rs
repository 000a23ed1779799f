//! Bytes of a `datadog` tracer, written by hand without the decoder.

/// The greeting of every connection.
pub fn process() -> Vec<u8> {
    [&[0xDD, 0, 0, 0, 0, 1][..], &64_u64.to_be_bytes()].concat()
}

pub fn string(id: u64, text: &str) -> Vec<u8> {
    [string_head(id, text.len() as u32), text.into()].concat()
}

/// The head of a string of this many bytes.
pub fn string_head(id: u64, len: u32) -> Vec<u8> {
    [&[0xDD, 6][..], &id.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// A span whose name is the string `name`.
pub fn span(name: u64) -> Vec<u8> {
    let (span_id, parent_id, trace_id) = (name.to_be_bytes(), [0; 8], [7; 16]);
    let (start, duration) = (1_795_176_900_000_000_000_u64.to_be_bytes(), 1_000_u64.to_be_bytes());
    let texts = [name.to_be_bytes(), [0; 8], [0; 8], [0; 8]].concat();
    [&[0xDD, 2][..], &span_id, &parent_id, &trace_id, &start, &duration, &texts, &[0]].concat()
}

/// A string and a span of that name.
pub fn named_span(id: u64, name: &str) -> Vec<u8> {
    [string(id, name), span(id)].concat()
}

/// One metric of the object before it.
pub fn metric(name: u64, value: f64) -> Vec<u8> {
    [&[0xDD, 4, 1][..], &name.to_be_bytes(), &value.to_be_bytes()].concat()
}

/// A trace object. It completes the objects before it.
pub fn trace() -> Vec<u8> {
    [&[0xDD, 1][..], &[7; 16]].concat()
}

/// A greeting and this many spans called `work`, each with a metric; and the number of their events.
pub fn work(spans: usize) -> (Vec<u8>, u64) {
    let one = [span(1), metric(2, 0.5)].concat();
    let bytes = [process(), string(1, "work"), string(2, "load"), one.repeat(spans)].concat();
    (bytes, 1 + spans as u64)
}
