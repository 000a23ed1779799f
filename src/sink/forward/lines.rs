//! Requests of JSON lines.

use bytes::Bytes;

use super::Request;

/// Divides a request with these lines between two of them, near the middle; `store` makes the payload of a part. `None`: it has
/// one line only, or a payload cannot be made.
pub(crate) fn divide_lines(
    request: &Request,
    lines: &[u8],
    store: impl Fn(&[u8]) -> Option<Bytes>,
) -> Option<[Request; 2]> {
    let middle = lines.len() / 2;
    let after_line = |at: usize| lines[at..].iter().position(|byte| *byte == b'\n').map(|line| at + line + 1);
    let before = lines[..middle].iter().rposition(|byte| *byte == b'\n').map(|line| line + 1);
    let cut = before.or_else(|| after_line(middle)).filter(|cut| *cut < lines.len())?;
    let count = lines[..cut].iter().filter(|byte| **byte == b'\n').count();
    // Lines that report losses are not counted as events.
    let events = request.events.min(u32::try_from(count).unwrap_or(u32::MAX));
    let part = |number: u32, events: u32, lines: &[u8]| {
        Some(Request { id: format!("{}.{number}", request.id), events, payload: store(lines)? })
    };
    Some([part(1, events, &lines[..cut])?, part(2, request.events - events, &lines[cut..])?])
}
