//! Requests of JSON lines.

use bytes::Bytes;

use super::EncodedRequest;

/// Divides a request with these lines between two of them, so that both parts have as many; `store` makes the payload of part 1 and
/// of part 2. `None`: it has one line only, or a payload cannot be made.
pub fn divide_lines(
    request: &EncodedRequest,
    lines: &[u8],
    store: impl Fn(u32, &[u8]) -> Option<Bytes>,
) -> Option<[EncodedRequest; 2]> {
    let count = memchr::memchr_iter(b'\n', lines).count() / 2;
    let cut = memchr::memchr_iter(b'\n', lines).nth(count.checked_sub(1)?)? + 1;
    // Lines that report losses are not counted as events.
    let events = request.events.min(u32::try_from(count).unwrap_or(u32::MAX));
    let part = |number: u32, events: u32, lines: &[u8]| {
        Some(EncodedRequest { id: format!("{}.{number}", request.id), events, payload: store(number, lines)? })
    };
    Some([part(1, events, &lines[..cut])?, part(2, request.events - events, &lines[cut..])?])
}
