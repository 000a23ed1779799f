//! Sizes and durations with units: `8MiB`, `1h30m`.
//!
//! This module reads and prints them, and everything that it prints can be read again.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes. `KiB`, `MiB`, `GiB` are powers of 1024; `kB` (or `KB`), `MB`, `GB` are powers of 1000; `B` or no
/// unit is bytes.
///
/// Displayed without rounding, in the largest binary unit that divides it: `8MiB`, `1000B`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = UnitError;

    /// # Errors
    /// The text is not one whole number with a size unit, or the size is larger than 64 bits.
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split_number(text)?;
        let factor = match unit {
            "" => 1,
            _ => factor_of(unit, SIZE_UNITS).ok_or(UnitError::UnknownSizeUnit)?,
        };
        number.checked_mul(factor).map(ByteSize).ok_or(UnitError::TooBig)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, factor) = match self.0 {
            0 => ("B", 1),
            bytes if bytes % GIB == 0 => ("GiB", GIB),
            bytes if bytes % MIB == 0 => ("MiB", MIB),
            bytes if bytes % KIB == 0 => ("KiB", KIB),
            _ => ("B", 1),
        };
        write!(f, "{}{unit}", self.0 / factor)
    }
}

/// Reads a duration: whole numbers, each with a unit (`d`, `h`, `m`, `s`, `ms`, `us`, `ns`), largest unit first: `1h30m`.
///
/// # Errors
/// A number has no unit (zero needs one too: `0s`), a unit is unknown, repeated or out of order, or the number of seconds
/// is larger than 64 bits.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let mut rest = text;
    let mut nanos: u128 = 0;
    let mut last_factor = u64::MAX;
    loop {
        let (number, after) = split_number(rest)?;
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        if unit.is_empty() {
            return Err(UnitError::NoUnit);
        }
        let factor = factor_of(unit, DURATION_UNITS).ok_or(UnitError::UnknownDurationUnit)?;
        if factor >= last_factor {
            return Err(UnitError::UnitsOutOfOrder);
        }
        last_factor = factor;
        // The sum of seven terms of at most 2^64 * 2^47 is far less than 2^128.
        nanos += u128::from(number) * u128::from(factor);
        rest = next;
        if rest.is_empty() {
            break;
        }
    }
    let seconds = u64::try_from(nanos / u128::from(SECOND)).map_err(|_| UnitError::TooBig)?;
    Ok(Duration::from_secs(seconds) + Duration::from_nanos((nanos % u128::from(SECOND)) as u64))
}

/// Writes a duration so that [`parse_duration`] reads the same one back: `1h30m`, `500ms`, `0s`.
pub fn format_duration(duration: Duration) -> String {
    let mut nanos = duration.as_nanos();
    let mut text = String::new();
    for (unit, factor) in DURATION_UNITS {
        let number = nanos / u128::from(*factor);
        nanos %= u128::from(*factor);
        if number > 0 {
            text.push_str(&format!("{number}{unit}"));
        }
    }
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// The units that a size can have.
pub fn size_units() -> Vec<&'static str> {
    SIZE_UNITS.iter().map(|(unit, _)| *unit).collect()
}

/// The units that a duration can have.
pub fn duration_units() -> Vec<&'static str> {
    DURATION_UNITS.iter().map(|(unit, _)| *unit).collect()
}

/// The longest duration of an option: a year. Clocks can add it without overflow.
pub const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Why a size or duration is invalid. Displayed as an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnitError {
    /// It does not begin with a digit.
    NoNumber,
    /// A duration without a unit.
    NoUnit,
    /// An unknown unit of a size.
    UnknownSizeUnit,
    /// An unknown unit of a duration.
    UnknownDurationUnit,
    /// Units in the wrong order, or one unit twice: `30m1h`, `1s1s`.
    UnitsOutOfOrder,
    /// Larger than 64 bits.
    TooBig,
}

impl fmt::Display for UnitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnitError::NoNumber => "write a whole number and a unit, without spaces and decimal points",
            UnitError::NoUnit => "write a unit, e.g. 10s",
            UnitError::UnknownSizeUnit => {
                "the units are KiB, MiB, GiB (powers of 1024), kB, MB, GB (powers of 1000) and B"
            }
            UnitError::UnknownDurationUnit => "the units are d, h, m, s, ms, us and ns",
            UnitError::UnitsOutOfOrder => "write every unit once, the largest first, e.g. 1h30m",
            UnitError::TooBig => "the number is too large",
        })
    }
}

impl std::error::Error for UnitError {}

/// The whole number at the start, and the rest.
fn split_number(text: &str) -> Result<(u64, &str), UnitError> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if digits.is_empty() {
        return Err(UnitError::NoNumber);
    }
    digits.parse().map(|number| (number, rest)).map_err(|_| UnitError::TooBig)
}

fn factor_of(unit: &str, units: &[(&str, u64)]) -> Option<u64> {
    units.iter().find(|(name, _)| *name == unit).map(|(_, factor)| *factor)
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const SIZE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("KiB", KIB),
    ("MiB", MIB),
    ("GiB", GIB),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

const SECOND: u64 = 1_000_000_000;

/// Units in nanoseconds, the largest first: [`format_duration`] depends on the order.
const DURATION_UNITS: &[(&str, u64)] = &[
    ("d", 24 * 3600 * SECOND),
    ("h", 3600 * SECOND),
    ("m", 60 * SECOND),
    ("s", SECOND),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_units_of_1024_and_of_1000() {
        let bytes = |text: &str| text.parse::<ByteSize>().map(|size| size.0);
        assert_eq!(bytes("8MiB"), Ok(8 << 20));
        assert_eq!(bytes("64KiB"), Ok(64 << 10));
        assert_eq!(bytes("2GiB"), Ok(2 << 30));
        assert_eq!(bytes("16MB"), Ok(16_000_000));
        assert_eq!(bytes("3kB"), bytes("3KB"));
        assert_eq!(bytes("1GB"), Ok(1_000_000_000));
        assert_eq!(bytes("1000"), Ok(1000));
        assert_eq!(bytes("7B"), Ok(7));
        assert_eq!(bytes("0"), Ok(0));
    }

    #[test]
    fn an_invalid_size_has_an_error_that_says_what_to_write() {
        let error = |text: &str| text.parse::<ByteSize>().unwrap_err();
        assert_eq!(error(""), UnitError::NoNumber);
        assert_eq!(error("-1"), UnitError::NoNumber);
        assert_eq!(error("8M"), UnitError::UnknownSizeUnit);
        assert_eq!(error("8mib"), UnitError::UnknownSizeUnit);
        assert_eq!(error("1.5MiB"), UnitError::UnknownSizeUnit);
        assert_eq!(error("8 MiB"), UnitError::UnknownSizeUnit);
        assert_eq!(error("18446744073709551616"), UnitError::TooBig);
        assert_eq!(error("17179869184GiB"), UnitError::TooBig);
    }

    #[test]
    fn a_size_is_printed_in_the_largest_unit_without_rounding() {
        for (bytes, text) in [(0, "0B"), (1000, "1000B"), (1024, "1KiB"), (1536, "1536B"), (5 << 20, "5MiB")] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
        assert_eq!(ByteSize(3 << 40).to_string(), "3072GiB");
        for bytes in [0, 1, 1023, 1024, 1025, 1 << 40, u64::MAX] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
    }

    #[test]
    fn a_duration_has_one_unit_or_several() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_duration("48h"), Ok(Duration::from_secs(48 * 3600)));
        assert_eq!(parse_duration("2d"), parse_duration("48h"));
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("90m"), Ok(Duration::from_secs(5400)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn an_invalid_duration_has_an_error_that_says_what_to_write() {
        let error = |text: &str| parse_duration(text).unwrap_err();
        assert_eq!(error(""), UnitError::NoNumber);
        assert_eq!(error("s"), UnitError::NoNumber);
        assert_eq!(error("-1s"), UnitError::NoNumber);
        assert_eq!(error("10"), UnitError::NoUnit);
        assert_eq!(error("0"), UnitError::NoUnit);
        assert_eq!(error("1h30"), UnitError::NoUnit);
        assert_eq!(error("2w"), UnitError::UnknownDurationUnit);
        assert_eq!(error("1.5s"), UnitError::UnknownDurationUnit);
        assert_eq!(error("30m1h"), UnitError::UnitsOutOfOrder);
        assert_eq!(error("1s1s"), UnitError::UnitsOutOfOrder);
        assert_eq!(error("18446744073709551615h"), UnitError::TooBig);
    }

    #[test]
    fn a_printed_duration_can_be_read_again() {
        assert_eq!(format_duration(Duration::from_secs(5400)), "1h30m");
        assert_eq!(format_duration(Duration::from_micros(1_500_250)), "1s500ms250us");
        assert_eq!(format_duration(Duration::ZERO), "0s");
        for nanos in [0, 1, 999, 1_000_000_007, 3_600_000_000_000, u64::MAX] {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }
        assert_eq!(parse_duration(&format_duration(Duration::MAX)), Ok(Duration::MAX));
    }
}
