//! The periods of version 3 aggregates: text → start and end.

use jiff::civil::Date;
use jiff::{ToSpan, tz::TimeZone};

use tributary_event::UnixNanos;

/// Start and end of a period `YYYY-MM-DD` or `YYYY-MM` in UTC (rule 11). `None`: the text is no such period, or the period
/// is not within 1970 to 2554.
pub(super) fn bounds(period: &str) -> Option<(UnixNanos, UnixNanos)> {
    let is_form = |form: &str| {
        period.len() == form.len()
            && period.bytes().zip(form.bytes()).all(|(found, wanted)| match wanted {
                b'-' => found == b'-',
                _ => found.is_ascii_digit(),
            })
    };
    let number = |at: std::ops::Range<usize>| period.get(at)?.parse::<i16>().ok();
    let (day, length) = match period.len() {
        10 if is_form("YYYY-MM-DD") => (i8::try_from(number(8..10)?).ok()?, 1.day()),
        7 if is_form("YYYY-MM") => (1, 1.month()),
        _ => return None,
    };
    let first = Date::new(number(0..4)?, i8::try_from(number(5..7)?).ok()?, day).ok()?;
    let next = first.checked_add(length).ok()?;
    Some((midnight(first)?, midnight(next)?))
}

/// Start and end of a period of the draft layout: an `h`our, `d`ay, `w`eek or `m`onth from `start` on, in nanoseconds since
/// 1970. `None`: the letter is unknown, or the calendar has no such month.
pub(super) fn draft_bounds(length: u8, start: i64) -> Option<(i128, i128)> {
    const HOUR: i128 = 3_600_000_000_000;
    let start = i128::from(start);
    let end = match length {
        b'h' => start + HOUR,
        b'd' => start + 24 * HOUR,
        b'w' => start + 7 * 24 * HOUR,
        b'm' => {
            let first = jiff::Timestamp::from_nanosecond(start).ok()?.to_zoned(TimeZone::UTC);
            first.checked_add(1.month()).ok()?.timestamp().as_nanosecond()
        }
        _ => return None,
    };
    Some((start, end))
}

fn midnight(date: Date) -> Option<UnixNanos> {
    let nanos = date.to_zoned(TimeZone::UTC).ok()?.timestamp().as_nanosecond();
    u64::try_from(nanos).ok().map(UnixNanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(text: &str) -> u64 {
        u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_nanosecond()).unwrap()
    }

    #[test]
    fn a_period_is_a_day_or_a_month_and_nothing_else() {
        let between = |from, to| Some((UnixNanos(nanos(from)), UnixNanos(nanos(to))));
        assert_eq!(bounds("2024-02-28"), between("2024-02-28T00:00:00Z", "2024-02-29T00:00:00Z"));
        assert_eq!(bounds("2024-12"), between("2024-12-01T00:00:00Z", "2025-01-01T00:00:00Z"));
        for text in
            ["2023-02-29", "2024-13", "2024-1-1", "2024-01-1", "+024-01", "2024", "2024-01-01 ", "", "1969-12-31"]
        {
            assert_eq!(bounds(text), None, "{text}");
        }
    }

    #[test]
    fn periods_of_the_draft_are_added_to_their_start() {
        let start = nanos("2024-01-31T10:00:00Z");
        let end = |letter| draft_bounds(letter, start as i64).map(|(_, end)| end);
        assert_eq!(end(b'h'), Some(nanos("2024-01-31T11:00:00Z").into()));
        assert_eq!(end(b'd'), Some(nanos("2024-02-01T10:00:00Z").into()));
        assert_eq!(end(b'w'), Some(nanos("2024-02-07T10:00:00Z").into()));
        assert_eq!(end(b'm'), Some(nanos("2024-02-29T10:00:00Z").into()));
        assert_eq!(end(b'y'), None);
        assert_eq!(draft_bounds(b'd', -1), Some((-1, 86_399_999_999_999)));
        assert_eq!(draft_bounds(b'h', i64::MAX).map(|(_, end)| end > i64::MAX.into()), Some(true));
    }
}
