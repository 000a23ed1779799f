//! Times of lines. Of times that follow each other, as an encoder writes them, the date is read once.

use jiff::Timestamp;

use tributary_event::UnixNanos;

/// A time, after one of this day.
pub(super) fn time_after(text: &str, last: &mut Day) -> Option<UnixNanos> {
    let ours = text.as_bytes().split_first_chunk::<DATE_LEN>().filter(|_| text.len() == TIME_LEN);
    let Some((date, nanos)) = ours.and_then(|(date, time)| Some((date, nanos_of_day(time)?))) else {
        return any_time(text);
    };
    if last.date != *date {
        let start = any_time(&format!("{}00:00:00Z", text.get(..DATE_LEN)?))?;
        *last = Day { date: *date, start };
    }
    last.start.0.checked_add(nanos).map(UnixNanos)
}

/// Of a time such as `12:15:00.000000001Z`. `None`: it is not of this form, or a leap second.
fn nanos_of_day(time: &[u8]) -> Option<u64> {
    let &[h, hh, b':', m, mm, b':', s, ss, b'.', ref fraction @ .., b'Z'] = time else { return None };
    let two = |tens: u8, ones: u8| {
        let (tens, ones) = (tens.wrapping_sub(b'0'), ones.wrapping_sub(b'0'));
        (tens < 10 && ones < 10).then(|| u64::from(10 * tens + ones))
    };
    let (hours, minutes, seconds) = (two(h, hh)?, two(m, mm)?, two(s, ss)?);
    if hours > 23 || minutes > 59 || seconds > 59 {
        return None;
    }
    let nanos = fraction.iter().try_fold(0, |nanos, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| 10 * nanos + u64::from(digit))
    })?;
    Some((hours * 3600 + minutes * 60 + seconds) * 1_000_000_000 + nanos)
}

/// The length of a time as the encoder writes it, and that of its date.
pub(super) const TIME_LEN: usize = "2026-11-20T12:15:00.000000001Z".len();
const DATE_LEN: usize = "2026-11-20T".len();

/// A day, as it stands in times.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Day {
    date: [u8; DATE_LEN],
    start: UnixNanos,
}

impl Default for Day {
    fn default() -> Self {
        Day { date: [0; DATE_LEN], start: UnixNanos(0) }
    }
}

fn any_time(text: &str) -> Option<UnixNanos> {
    let time: Timestamp = text.parse().ok()?;
    u64::try_from(time.as_nanosecond()).ok().map(UnixNanos)
}
