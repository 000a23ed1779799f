//! Times as text: RFC 3339, UTC, always nine digits of a second, so that lines sort and align.

use tributary_event::UnixNanos;

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_DAY: u64 = 86_400 * NANOS_PER_SECOND;

/// Formats times; caches the second of the last one, because the next is mostly in the same second, and its day.
#[derive(Debug)]
pub(super) struct TimeFormat {
    midnight: u64,
    /// The beginning of the second.
    second: u64,
    /// The text of a time in that second; its fraction is replaced.
    text: [u8; 30],
}

impl Default for TimeFormat {
    fn default() -> Self {
        TimeFormat { midnight: 0, second: 0, text: *b"1970-01-01T00:00:00.000000000Z" }
    }
}

impl TimeFormat {
    /// Appends the time in RFC 3339, e.g. `2026-11-20T12:15:00.123456789Z`.
    #[inline]
    pub(super) fn push(&mut self, out: &mut Vec<u8>, time: UnixNanos) {
        let nanos = match time.0.checked_sub(self.second) {
            Some(nanos) if nanos < NANOS_PER_SECOND => nanos,
            _ => self.set_second(time),
        } as u32;
        // The digits are written in place: to build them elsewhere and copy them takes twice as long.
        out.extend_from_slice(&self.text);
        let Some(text) = out.last_chunk_mut::<30>() else { return };
        text[20..22].copy_from_slice(&pair(nanos / 10_000_000));
        text[22..24].copy_from_slice(&pair(nanos / 100_000 % 100));
        text[24..26].copy_from_slice(&pair(nanos / 1_000 % 100));
        text[26..28].copy_from_slice(&pair(nanos / 10 % 100));
        text[28] = b'0' + (nanos % 10) as u8;
    }

    /// Moves to the second of this time; returns the nanoseconds since its beginning.
    #[inline(never)]
    fn set_second(&mut self, time: UnixNanos) -> u64 {
        let nanos = time.0 % NANOS_PER_SECOND;
        self.second = time.0 - nanos;
        // The last day that nanoseconds reach is not complete: without the first condition 1970-01-01 would pass for its rest.
        if time.0 < self.midnight || time.0 - self.midnight >= NANOS_PER_DAY {
            self.midnight = time.0 - time.0 % NANOS_PER_DAY;
            self.text[..10].copy_from_slice(&date((time.0 / NANOS_PER_DAY) as u32));
        }
        let seconds = ((self.second - self.midnight) / NANOS_PER_SECOND) as u32;
        self.text[11..13].copy_from_slice(&pair(seconds / 3600));
        self.text[14..16].copy_from_slice(&pair(seconds / 60 % 60));
        self.text[17..19].copy_from_slice(&pair(seconds % 60));
        nanos
    }
}

/// Formats times that are often the same as the one before: events of one read were observed at the same time, and many
/// events can have the same millisecond.
#[derive(Debug, Default)]
pub(super) struct RepeatedTime {
    times: TimeFormat,
    last: Option<UnixNanos>,
    /// The text of `last`, once it has occurred twice: reading back what was just written stalls the processor.
    text: Option<[u8; 30]>,
}

impl RepeatedTime {
    /// As [`TimeFormat::push`].
    #[inline]
    pub(super) fn push(&mut self, out: &mut Vec<u8>, time: UnixNanos) {
        let is_again = self.last.replace(time) == Some(time);
        match &self.text {
            Some(text) if is_again => out.extend_from_slice(text),
            _ => {
                self.times.push(out, time);
                self.text = if is_again { out.last_chunk().copied() } else { None };
            }
        }
    }
}

/// The two digits of a number below 100.
#[inline]
fn pair(number: u32) -> [u8; 2] {
    PAIRS[number as usize]
}

const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut number = 0;
    while number < 100 {
        pairs[number] = [b'0' + (number / 10) as u8, b'0' + (number % 10) as u8];
        number += 1;
    }
    pairs
};

/// The civil date of a day, counted from 1970-01-01, as `2026-11-20`.
///
/// Years are counted from March: then the leap day is the last day of its year, and does not move any month.
/// The calendar repeats every 400 years; we count from the 1st of March 1600, where such a cycle begins.
fn date(days_since_1970: u32) -> [u8; 10] {
    const FROM_1600_TO_1970: u32 = 135_080;
    const CYCLE: u32 = 400 * 365 + 97;
    const CENTURY: u32 = 100 * 365 + 24;
    const FOUR_YEARS: u32 = 4 * 365 + 1;
    const MONTH_STARTS: [u32; 12] = [0, 31, 61, 92, 122, 153, 184, 214, 245, 275, 306, 337];

    let days = days_since_1970 + FROM_1600_TO_1970;
    let (cycle, days) = (days / CYCLE, days % CYCLE);
    // The last century of a cycle, and the last year of four, are one day longer; that day does not belong to the next.
    let century = (days / CENTURY).min(3);
    let days = days - century * CENTURY;
    let (four_years, days) = (days / FOUR_YEARS, days % FOUR_YEARS);
    let year_of_four = (days / 365).min(3);
    let day_of_year = days - year_of_four * 365;
    let march_year = 1600 + cycle * 400 + century * 100 + four_years * 4 + year_of_four;

    let months_since_march = MONTH_STARTS.iter().rposition(|start| *start <= day_of_year).unwrap_or(0);
    let day = day_of_year - MONTH_STARTS[months_since_march] + 1;
    let (year, month) = match months_since_march as u32 {
        months @ 0..=9 => (march_year, months + 3),
        months => (march_year + 1, months - 9),
    };

    let mut text = *b"0000-00-00";
    text[..2].copy_from_slice(&pair(year / 100));
    text[2..4].copy_from_slice(&pair(year % 100));
    text[5..7].copy_from_slice(&pair(month));
    text[8..].copy_from_slice(&pair(day));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(nanos: u64) -> String {
        format_with(&mut TimeFormat::default(), nanos)
    }

    fn format_with(times: &mut TimeFormat, nanos: u64) -> String {
        let mut out = Vec::new();
        times.push(&mut out, UnixNanos(nanos));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_day_that_nanoseconds_reach_has_its_civil_date() {
        let mut expected = jiff::civil::date(1970, 1, 1);
        for day in 0..=(u64::MAX / NANOS_PER_DAY) as u32 {
            assert_eq!(str::from_utf8(&date(day)).unwrap(), expected.to_string());
            expected = expected.tomorrow().unwrap();
        }
        assert_eq!(expected.to_string(), "2554-07-22");
    }

    #[test]
    fn instants_are_rfc_3339_with_nine_digits() {
        assert_eq!(format(0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(format(1), "1970-01-01T00:00:00.000000001Z");
        assert_eq!(format(1_795_176_900_123_456_789), "2026-11-20T12:15:00.123456789Z");
        assert_eq!(format(NANOS_PER_DAY - 1), "1970-01-01T23:59:59.999999999Z");
        assert_eq!(format(951_782_400 * NANOS_PER_SECOND), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(format(1_709_251_199 * NANOS_PER_SECOND), "2024-02-29T23:59:59.000000000Z");
        assert_eq!(format(u64::MAX), "2554-07-21T23:34:33.709551615Z");
    }

    #[test]
    fn a_repeated_time_has_the_same_text_and_another_one_has_its_own() {
        let (mut times, mut out) = (RepeatedTime::default(), Vec::new());
        let nanos = [0, 0, 0, 1, 1, 1, 1, 0, NANOS_PER_DAY, 0, u64::MAX, u64::MAX, u64::MAX];
        nanos.iter().for_each(|nanos| times.push(&mut out, UnixNanos(*nanos)));
        assert_eq!(String::from_utf8(out).unwrap(), nanos.map(format).concat());
    }

    #[test]
    fn the_cached_date_is_right_back_and_forth_across_midnight() {
        let mut times = TimeFormat::default();
        let midnight = 1_795_132_800 * NANOS_PER_SECOND;
        for nanos in [midnight, midnight - 1, midnight + 1, 0, u64::MAX, 2, midnight + NANOS_PER_DAY, midnight] {
            assert_eq!(format_with(&mut times, nanos), format(nanos));
        }
        assert_eq!(format(midnight - 1), "2026-11-19T23:59:59.999999999Z");
    }
}
