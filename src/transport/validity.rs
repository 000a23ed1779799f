//! Until when a certificate is valid.

use jiff::civil::DateTime;

const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
/// The version, which certificates of version 1 lack.
const VERSION: u8 = 0xa0;

/// The end of the validity of a certificate in DER, in seconds since 1970 (RFC 5280, 4.1.2.5). `None`: it cannot be read.
pub(super) fn not_after(certificate: &[u8]) -> Option<i64> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (mut fields, _) = element(certificate, SEQUENCE)?;
    if let Some((_, rest)) = element(fields, VERSION) {
        fields = rest;
    }
    // The serial number, the algorithm of the signature, the issuer.
    for tag in [INTEGER, SEQUENCE, SEQUENCE] {
        (_, fields) = element(fields, tag)?;
    }
    let (validity, _) = element(fields, SEQUENCE)?;
    let (_, not_after) = time(validity)?;
    time(not_after).map(|(seconds, _)| seconds)
}

/// A time at the front, and what follows it.
fn time(input: &[u8]) -> Option<(i64, &[u8])> {
    let (year_digits, (text, rest)) = match element(input, UTC_TIME) {
        Some(found) => (2, found),
        None => (4, element(input, GENERALIZED_TIME)?),
    };
    let digits = text.strip_suffix(b"Z")?;
    if digits.len() != year_digits + 10 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |digits: &[u8]| digits.iter().fold(0, |number: i16, digit| number * 10 + i16::from(digit - b'0'));
    let (year, others) = digits.split_at(year_digits);
    let year = match number(year) {
        year @ 0..50 if year_digits == 2 => 2000 + year,
        year @ 50..100 if year_digits == 2 => 1900 + year,
        year => year,
    };
    let mut others = others.chunks_exact(2).map(|digits| number(digits) as i8);
    let mut next = || others.next().unwrap_or_default();
    let time = DateTime::new(year, next(), next(), next(), next(), next(), 0).ok()?;
    Some((time.duration_since(EPOCH).as_secs(), rest))
}

/// The content of the element with this tag at the front, and what follows it.
fn element(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&found, input) = input.split_first()?;
    let (&first, input) = input.split_first()?;
    if found != tag {
        return None;
    }
    let (len, input) = match first {
        0..0x80 => (usize::from(first), input),
        // Of an unknown length.
        0x80 => return None,
        // No certificate has 16 MiB.
        0x81..=0x83 => {
            let (len, input) = input.split_at_checked(usize::from(first & 0x7f))?;
            (len.iter().fold(0, |all, byte| all << 8 | usize::from(*byte)), input)
        }
        _ => return None,
    };
    input.split_at_checked(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(tag: u8, content: &[u8]) -> Vec<u8> {
        let len = content.len();
        let head = if len < 0x80 { vec![tag, len as u8] } else { vec![tag, 0x82, (len >> 8) as u8, len as u8] };
        [&head, content].concat()
    }

    fn certificate(version: &[u8], not_after: &[u8]) -> Vec<u8> {
        let issuer = tagged(SEQUENCE, &[0; 200]);
        let validity = tagged(SEQUENCE, &[tagged(UTC_TIME, b"200101000000Z"), not_after.to_vec()].concat());
        let fields = [version, &tagged(INTEGER, &[7]), &tagged(SEQUENCE, &[]), &issuer, &validity].concat();
        tagged(SEQUENCE, &tagged(SEQUENCE, &fields))
    }

    #[test]
    fn both_forms_of_times_are_read_in_certificates_with_and_without_a_version() {
        let version = tagged(VERSION, &tagged(INTEGER, &[2]));
        for (time, seconds) in [
            (tagged(UTC_TIME, b"491231235959Z"), 2_524_607_999),
            (tagged(UTC_TIME, b"500101000000Z"), -631_152_000),
            (tagged(GENERALIZED_TIME, b"20500101000000Z"), 2_524_608_000),
            (tagged(GENERALIZED_TIME, b"99991231235959Z"), 253_402_300_799),
        ] {
            assert_eq!(not_after(&certificate(&version, &time)), Some(seconds));
            assert_eq!(not_after(&certificate(&[], &time)), Some(seconds));
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        let whole = certificate(&[], &tagged(UTC_TIME, b"300101000000Z"));
        assert!(not_after(&whole).is_some());
        for len in 0..whole.len() {
            assert_eq!(not_after(&whole[..len]), None);
        }
        for time in [&b"301301000000Z"[..], b"3001010000Z", b"300101000000", b"30010100000xZ", b""] {
            assert_eq!(not_after(&certificate(&[], &tagged(UTC_TIME, time))), None, "{time:?}");
        }
    }
}
