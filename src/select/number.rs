//! Numbers are compared by value, whatever their types: 1 is 1.0.

use std::cmp::Ordering;

use tributary_event::Number;

/// Compares exactly. `None`: one of them is no number (NaN).
pub(super) fn compare(one: Number, other: Number) -> Option<Ordering> {
    match (whole(one), whole(other)) {
        (Ok(one), Ok(other)) => Some(one.cmp(&other)),
        (Ok(one), Err(other)) => compare_mixed(one, other),
        (Err(one), Ok(other)) => compare_mixed(other, one).map(Ordering::reverse),
        (Err(one), Err(other)) => one.partial_cmp(&other),
    }
}

/// The number that a text is, as JSON has numbers. Surrounding blanks, and names such as `inf`, are none.
pub(super) fn parse(text: &str) -> Option<Number> {
    let starts = |byte: &u8| byte.is_ascii_digit() || *byte == b'-';
    if !text.as_bytes().first().is_some_and(starts) || !text.as_bytes().last().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    let whole = text.parse().map(Number::I64).or_else(|_| text.parse().map(Number::U64)).ok();
    whole.or_else(|| text.parse().ok().filter(|number: &f64| number.is_finite()).map(Number::F64))
}

/// An integer; `Err`: a double.
fn whole(number: Number) -> Result<i128, f64> {
    match number {
        Number::I64(number) => Ok(number.into()),
        Number::U64(number) => Ok(number.into()),
        Number::F64(number) => Err(number),
    }
}

/// A conversion of the integer would round it.
fn compare_mixed(whole: i128, double: f64) -> Option<Ordering> {
    /// Integers have at most 64 bits, so they are nearer to zero than this; doubles nearer to zero fit into an `i128`.
    const BEYOND: f64 = 1e30;
    if double.is_nan() {
        return None;
    }
    if double.abs() >= BEYOND {
        return Some(if double > 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    let integral = double.trunc();
    Some(whole.cmp(&(integral as i128)).then(0.0_f64.total_cmp(&(double - integral))))
}

#[cfg(test)]
mod tests {
    use super::Number::{F64, I64, U64};
    use super::*;
    use std::cmp::Ordering::{Equal, Greater, Less};

    #[test]
    fn numbers_are_compared_by_value_and_not_rounded() {
        for (one, other, expected) in [
            (I64(1), F64(1.0), Some(Equal)),
            (I64(7), U64(7), Some(Equal)),
            (I64(-1), U64(u64::MAX), Some(Less)),
            (U64(0), F64(-0.0), Some(Equal)),
            (I64((1 << 53) + 1), F64((1_u64 << 53) as f64), Some(Greater)),
            (U64(u64::MAX), F64(18_446_744_073_709_551_616.0), Some(Less)),
            (I64(2), F64(2.5), Some(Less)),
            (I64(-2), F64(-2.5), Some(Greater)),
            (I64(-3), F64(-2.5), Some(Less)),
            (I64(1), F64(f64::INFINITY), Some(Less)),
            (I64(1), F64(f64::NEG_INFINITY), Some(Greater)),
            (I64(1), F64(f64::NAN), None),
            (F64(f64::NAN), F64(f64::NAN), None),
        ] {
            assert_eq!(compare(one, other), expected, "{one:?} {other:?}");
            assert_eq!(compare(other, one), expected.map(Ordering::reverse), "{other:?} {one:?}");
        }
    }
}
