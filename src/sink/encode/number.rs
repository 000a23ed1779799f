//! Numbers and bytes as text: decimal integers, shortest doubles, hex, base64.

use crate::event::Number;

/// Appends an unsigned integer in decimal.
#[inline]
pub(super) fn push_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends a signed integer in decimal.
#[inline]
pub(super) fn push_i64(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends the shortest text that reads back as the same double. JSON has no number for the three that are not
/// finite, so they are strings.
pub(super) fn push_f64(out: &mut Vec<u8>, value: f64) {
    // Most doubles of peers are whole numbers, which cost a quarter of the others this way.
    let whole = value as i64;
    let text: &[u8] = if whole as f64 == value && (1..1_000_000_000_000_000).contains(&whole.unsigned_abs()) {
        push_i64(out, whole);
        b".0"
    } else if value.is_finite() {
        return out.extend_from_slice(zmij::Buffer::new().format_finite(value).as_bytes());
    } else if value.is_nan() {
        b"\"NaN\""
    } else if value > 0.0 {
        b"\"Infinity\""
    } else {
        b"\"-Infinity\""
    };
    out.extend_from_slice(text);
}

/// Appends a number of any type.
pub(super) fn push_number(out: &mut Vec<u8>, number: Number) {
    match number {
        Number::I64(value) => push_i64(out, value),
        Number::U64(value) => push_u64(out, value),
        Number::F64(value) => push_f64(out, value),
    }
}

/// The two lower-case hex digits of every byte.
pub(super) const HEX: [[u8; 2]; 256] = {
    let digits = b"0123456789abcdef";
    let mut pairs = [[0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [digits[byte >> 4], digits[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Appends bytes as lower-case hex digits.
#[inline]
pub(super) fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    // Eight bytes at a time: ids are eight or sixteen, and one append costs more than a table look-up.
    for chunk in bytes.chunks(8) {
        let mut digits = [[0; 2]; 8];
        for (pair, byte) in digits.iter_mut().zip(chunk) {
            *pair = HEX[*byte as usize];
        }
        out.extend_from_slice(&digits.as_flattened()[..chunk.len() * 2]);
    }
}

/// Appends bytes as base64: standard alphabet, padded.
pub(super) fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        let mut group = [18, 12, 6, 0].map(|shift| ALPHABET[(bits >> shift & 63) as usize]);
        // n bytes fill n + 1 characters of a group.
        group[chunk.len() + 1..].fill(b'=');
        out.extend_from_slice(&group);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(push: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        push(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn integers_keep_full_precision() {
        assert_eq!(text(|out| push_u64(out, u64::MAX)), "18446744073709551615");
        assert_eq!(text(|out| push_i64(out, i64::MIN)), "-9223372036854775808");
        assert_eq!(text(|out| push_number(out, Number::I64(-1))), "-1");
        assert_eq!(text(|out| push_number(out, Number::U64(1))), "1");
        assert_eq!(text(|out| push_number(out, Number::F64(1.0))), "1.0");
    }

    #[test]
    fn doubles_are_the_shortest_text_that_reads_back() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (200.0, "200.0"),
            (0.1, "0.1"),
            (-7.0, "-7.0"),
            (999_999_999_999_999.0, "999999999999999.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1e308, "1e+308"),
            (f64::MAX, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
            (9_007_199_254_740_993.0, "9007199254740992.0"),
        ];
        for (value, expected) in cases {
            assert_eq!(text(|out| push_f64(out, value)), expected);
            assert_eq!(expected.parse::<f64>().unwrap().to_bits(), value.to_bits());
        }
    }

    #[test]
    fn doubles_that_are_not_finite_are_strings() {
        assert_eq!(text(|out| push_f64(out, f64::NAN)), "\"NaN\"");
        assert_eq!(text(|out| push_f64(out, -f64::NAN)), "\"NaN\"");
        assert_eq!(text(|out| push_f64(out, f64::INFINITY)), "\"Infinity\"");
        assert_eq!(text(|out| push_f64(out, f64::NEG_INFINITY)), "\"-Infinity\"");
    }

    #[test]
    fn hex_is_two_lower_case_digits_a_byte() {
        assert_eq!(text(|out| push_hex(out, &[0x00, 0x7f, 0xab, 0xff])), "007fabff");
    }

    #[test]
    fn base64_is_padded_and_of_the_standard_alphabet() {
        let cases: [(&[u8], &str); 6] = [
            (b"", ""),
            (b"f", "Zg=="),
            (b"fo", "Zm8="),
            (b"foo", "Zm9v"),
            (b"foob", "Zm9vYg=="),
            (&[0xfb, 0xff, 0xfe], "+//+"),
        ];
        for (bytes, expected) in cases {
            assert_eq!(text(|out| push_base64(out, bytes)), expected);
        }
    }
}
