//! Ticks and nanoseconds of agents → calendar times.
//!
//! Only a begin has the calendar time (section 2.3). All other times are relative to the begin of the nearest enclosing trace,
//! in the dialect's unit.

use tributary_event::UnixNanos;

use super::wire::ZicoDialect;

/// Nanoseconds per tick in doc and gen1.
const TICK_NANOS: u64 = 1 << 16;
/// The number of bits of a tick counter, which wraps every 2.3 years.
const TICK_BITS: u32 = 40;

/// The time of a begin on both clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Anchor {
    /// Nanoseconds since 1970. Exact; may be outside the calendar.
    wall: i128,
    /// The start of its record in the dialect's unit, if the record has one.
    start: Option<u64>,
}

impl Anchor {
    /// The anchor of a begin with this calendar time, in milliseconds since 1970, on a record that starts at `start`.
    pub(super) fn new(clock_millis: i64, start: Option<u64>) -> Self {
        Anchor { wall: i128::from(clock_millis) * 1_000_000, start }
    }

    /// The same, but not before `earliest`.
    pub(super) fn not_before(self, earliest: Option<UnixNanos>) -> Self {
        let earliest = earliest.map_or(self.wall, |earliest| i128::from(earliest.0));
        Anchor { wall: self.wall.max(earliest), ..self }
    }

    /// The calendar time of `at`. A time before the anchor is a step back, not a wrapped counter.
    pub(super) fn time(self, at: Option<u64>, dialect: ZicoDialect) -> Option<UnixNanos> {
        let nanos = self.wall + step(self.start?, at?, dialect);
        u64::try_from(nanos).ok().map(UnixNanos)
    }
}

/// The nanoseconds from `start` to `stop`. `None`: the end is before the start.
pub(super) fn duration(start: u64, stop: u64, dialect: ZicoDialect) -> Option<u64> {
    u64::try_from(step(start, stop, dialect)).ok()
}

/// The ticks from `start` to `stop` on the counter of doc and gen1.
pub(super) fn ticks(start: u64, stop: u64) -> u64 {
    stop.wrapping_sub(start) & ((1 << TICK_BITS) - 1)
}

/// The nanoseconds from one time to another, the shorter way around the counter.
fn step(from: u64, to: u64, dialect: ZicoDialect) -> i128 {
    match dialect {
        ZicoDialect::Gen2 | ZicoDialect::Fressian => i128::from(to.wrapping_sub(from) as i64),
        ZicoDialect::Doc | ZicoDialect::Gen1 => {
            let unused = u64::BITS - TICK_BITS;
            let ticks = (to.wrapping_sub(from) << unused) as i64 >> unused;
            i128::from(ticks) * i128::from(TICK_NANOS)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAP: u64 = 1 << TICK_BITS;

    #[test]
    fn ticks_continue_when_their_counter_wraps() {
        assert_eq!(duration(1000, 1100, ZicoDialect::Gen1), Some(6_553_600));
        assert_eq!(duration(LAP - 5, 10, ZicoDialect::Gen1), Some(15 * TICK_NANOS));
        assert_eq!(duration(10, 9, ZicoDialect::Doc), None);
        let anchor = Anchor::new(1_542_000_000_000, Some(LAP - 5));
        let base = 1_542_000_000_000_000_000;
        assert_eq!(anchor.time(Some(LAP - 5), ZicoDialect::Gen1), Some(UnixNanos(base)));
        assert_eq!(anchor.time(Some(3), ZicoDialect::Gen1), Some(UnixNanos(base + 8 * TICK_NANOS)));
        assert_eq!(anchor.time(Some(LAP - 6), ZicoDialect::Gen1), Some(UnixNanos(base - TICK_NANOS)));
    }

    #[test]
    fn nanoseconds_have_64_bits_and_may_start_below_zero() {
        assert_eq!(duration(1_326_258_996_611, 1_326_263_697_713, ZicoDialect::Gen2), Some(4_701_102));
        assert_eq!(duration(u64::MAX - 4, 5, ZicoDialect::Gen2), Some(10), "from -5 to 5");
        assert_eq!(duration(5, 4, ZicoDialect::Gen2), None);
        assert_eq!(duration(0, i64::MAX as u64, ZicoDialect::Gen2), Some(i64::MAX as u64));
    }

    #[test]
    fn times_beyond_the_calendar_are_unknown_and_nothing_overflows() {
        for clock in [i64::MIN, -1, i64::MAX, 18_446_744_073_710] {
            for at in [0, 1 << 63, u64::MAX] {
                assert_eq!(Anchor::new(clock, Some(0)).time(Some(at), ZicoDialect::Gen1).filter(|_| at > 0), None);
                assert_eq!(Anchor::new(clock, Some(0)).time(Some(0), ZicoDialect::Gen2), None, "{clock}");
            }
        }
        assert_eq!(Anchor::new(0, None).time(Some(1), ZicoDialect::Gen2), None);
        assert_eq!(Anchor::new(0, Some(1)).time(None, ZicoDialect::Gen2), None);
    }
}
