//! Further values in human-readable form: times, durations, ids and counts.

use jiff::Timestamp;

use tributary_event::write_hex;

/// The most bytes that are shown in hex as a value.
const MOST_HEX_BYTES: usize = 100;

/// A text as the name of a field, if it has the form of a name. Names are not escaped, so other texts are refused.
pub fn as_name(text: &[u8]) -> Option<&str> {
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.".contains(byte);
    let text = str::from_utf8(text).ok()?;
    ((1..=40).contains(&text.len()) && text.as_bytes().iter().all(is_name)).then_some(text)
}

/// Nanoseconds since 1970 as a time (RFC 3339), or as a number if it is out of the range of the calendar.
pub fn moment(nanos: i128) -> String {
    Timestamp::from_nanosecond(nanos).map_or_else(|_| format!("{nanos} ns since 1970"), |moment| moment.to_string())
}

/// Nanoseconds in the largest unit that gives at least 1.
pub fn duration(nanos: i128) -> String {
    let size = nanos.unsigned_abs();
    let (unit, name) = match size {
        1_000_000_000.. => (1_000_000_000, "s"),
        1_000_000.. => (1_000_000, "ms"),
        1_000.. => (1_000, "µs"),
        _ => (1, "ns"),
    };
    let sign = if nanos < 0 { "-" } else { "" };
    let fraction = size % unit;
    if fraction == 0 {
        return format!("{sign}{} {name}", size / unit);
    }
    let digits = unit.ilog10() as usize;
    let fraction = format!("{fraction:0digits$}");
    format!("{sign}{}.{} {name}", size / unit, fraction.trim_end_matches('0'))
}

/// 16 bytes as a UUID, anything else in hex.
pub fn uuid(id: &[u8]) -> String {
    let mut text = hex(id);
    if id.len() == 16 {
        for at in [20, 16, 12, 8] {
            text.insert(at, '-');
        }
    }
    text
}

/// Bytes in hex; of many the first ones.
pub fn hex(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(MOST_HEX_BYTES)];
    let mut text = String::new();
    let _ = write_hex(&mut text, shown);
    if shown.len() < bytes.len() {
        text.push('…');
    }
    text
}

/// `1 entry`, `2 entries`.
pub fn counted(count: u64, one: &str) -> String {
    match (count, one.strip_suffix('y')) {
        (1, _) => format!("1 {one}"),
        (_, Some(stem)) => format!("{count} {stem}ies"),
        _ => format!("{count} {one}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_human_readable() {
        assert_eq!(moment(1_795_176_900_000_000_500), "2026-11-20T12:15:00.0000005Z");
        assert_eq!(moment(i128::MAX), format!("{} ns since 1970", i128::MAX));
        for (nanos, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.5 µs"),
            (-2_000_001, "-2.000001 ms"),
            (61_000_000_000, "61 s"),
            (1_000_000_001, "1.000000001 s"),
        ] {
            assert_eq!(duration(nanos), expected);
        }
        let id: Vec<u8> = (0..16).collect();
        assert_eq!(uuid(&id), "00010203-0405-0607-0809-0a0b0c0d0e0f");
        assert_eq!(uuid(&id[..3]), "000102");
        assert_eq!(counted(1, "pair"), "1 pair");
        assert_eq!(counted(0, "pair"), "0 pairs");
        assert_eq!(counted(2, "entry"), "2 entries");
    }

    #[test]
    fn only_texts_with_the_form_of_a_name_are_names() {
        assert_eq!(as_name(b"total_gc.runs-2"), Some("total_gc.runs-2"));
        for text in [&b""[..], b"a b", b"\x1b[2J", b"\xff", &[b'a'; 41]] {
            assert_eq!(as_name(text), None);
        }
    }
}
