//! Numbers and bytes as text: decimal integers, shortest doubles, hex.

use tributary_event::Number;

/// The numbers below this have at most eight digits, which [`eight_digits`] writes at once.
const EIGHT_DIGITS: u64 = 100_000_000;
/// The character `0` in each of eight bytes.
const ZEROS: u64 = 0x3030_3030_3030_3030;

/// Appends an unsigned integer in decimal.
#[inline]
pub(super) fn push_u64(out: &mut Vec<u8>, value: u64) {
    if value < EIGHT_DIGITS { push_small(out, value) } else { push_large(out, value) }
}

/// Appends a number of at most eight digits: all eight, and then their end is cut to the length of the number.
#[inline]
fn push_small(out: &mut Vec<u8>, value: u64) {
    let digits = eight_digits(value);
    // The first digit is in the lowest byte. The last digit stays also if it is 0.
    let leading_zeros = ((digits | (1 << 56)).trailing_zeros() / 8) as usize;
    out.extend_from_slice(&((digits | ZEROS) >> (8 * leading_zeros)).to_le_bytes());
    out.truncate(out.len() - leading_zeros);
}

#[inline(never)]
fn push_large(out: &mut Vec<u8>, value: u64) {
    push_u64(out, value / EIGHT_DIGITS);
    out.extend_from_slice(&(eight_digits(value % EIGHT_DIGITS) | ZEROS).to_le_bytes());
}

/// The eight decimal digits of a number, the first one in the lowest byte. Pairs of halves are divided at once: by 10,000, then
/// by 100, then by 10, where a multiplication and a shift stand for the division.
#[inline]
fn eight_digits(value: u64) -> u64 {
    let halves = (value / 10_000) | ((value % 10_000) << 32);
    let hundreds = ((halves * 10_486) >> 20) & 0x0000_007F_0000_007F;
    let pairs = hundreds | ((halves - hundreds * 100) << 16);
    let tens = ((pairs * 103) >> 10) & 0x000F_000F_000F_000F;
    tens | ((pairs - tens * 10) << 8)
}

/// Appends a signed integer in decimal.
#[inline]
pub(super) fn push_i64(out: &mut Vec<u8>, value: i64) {
    if value < 0 {
        out.push(b'-');
    }
    push_u64(out, value.unsigned_abs());
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
pub(super) fn push_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    let (chunks, rest) = bytes.as_chunks::<8>();
    chunks.iter().for_each(|chunk| push_id(out, chunk));
    rest.iter().for_each(|byte| out.extend_from_slice(&HEX[usize::from(*byte)]));
}

/// The same for an id, whose digits are computed all at once.
#[inline]
pub(super) fn push_id<const N: usize>(out: &mut Vec<u8>, id: &[u8; N]) {
    // Both digits of a byte are one number, the first one in its lower half.
    let digits = id.map(|byte| u16::from(byte >> 4) | (u16::from(byte & 15) << 8));
    let characters = digits.map(|pair| {
        let is_letter = ((pair + 0x0606) >> 4) & 0x0101;
        (pair + 0x3030 + is_letter * u16::from(b'a' - b'0' - 10)).to_le_bytes()
    });
    out.extend_from_slice(characters.as_flattened());
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
    fn integers_of_every_length_have_their_digits() {
        let mut numbers = vec![0];
        for digits in 0..20 {
            let power = 10_u64.pow(digits);
            numbers.extend([power - 1, power, power + 1, power / 3 * 2, power.saturating_mul(9), 11 * (power / 10)]);
        }
        // Every four digits in both halves.
        numbers.extend((0..10_000).flat_map(|four| [four, four * 10_000, four * 10_000 + 9_999]));
        numbers.extend([u64::MAX, u64::MAX / 2, 99_999_999, 100_000_000, 1_000_000_000_000_000_000]);
        for number in numbers {
            assert_eq!(text(|out| push_u64(out, number)), number.to_string());
            let negative = (number as i64).wrapping_neg();
            assert_eq!(text(|out| push_i64(out, negative)), negative.to_string());
        }
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
        let all: Vec<u8> = (0..=255).collect();
        let expected: String = all.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text(|out| push_hex(out, &all)), expected);
        assert_eq!(text(|out| push_hex(out, &all[..251])), expected[..502]);
        assert_eq!(text(|out| push_id(out, &[0x9a; 16])), "9a".repeat(16));
    }
}
