//! The severity of logs.

/// The severity of a log event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Severity {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
    Fatal,
}

impl Severity {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Trace => "TRACE",
            Severity::Debug => "DEBUG",
            Severity::Info => "INFO",
            Severity::Warn => "WARN",
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
        }
    }
}

/// The severity of a log event as OpenTelemetry numbers it: 1 to 24, four numbers for each name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SeverityNumber(u8);

impl SeverityNumber {
    /// The greatest number.
    pub const MAX: u64 = 24;

    /// `None`: it is not 1 to 24.
    #[inline]
    pub fn new(number: u64) -> Option<Self> {
        (1..=Self::MAX).contains(&number).then_some(SeverityNumber(number as u8))
    }

    /// The number.
    #[inline]
    pub fn get(self) -> u8 {
        self.0
    }

    /// The severity with whose name it is shown.
    #[inline]
    pub fn severity(self) -> Severity {
        match (self.0 - 1) / 4 {
            0 => Severity::Trace,
            1 => Severity::Debug,
            2 => Severity::Info,
            3 => Severity::Warn,
            4 => Severity::Error,
            _ => Severity::Fatal,
        }
    }

    /// Whether it is the first number of its severity, for which the name alone stands.
    #[inline]
    pub fn is_first(self) -> bool {
        (self.0 - 1).is_multiple_of(4)
    }

    /// The number of this severity, if it is one of its range.
    pub fn of(severity: Severity, number: u64) -> Option<Self> {
        SeverityNumber::new(number).filter(|number| number.severity() == severity)
    }
}

impl From<Severity> for SeverityNumber {
    /// The first number of the severity.
    #[inline]
    fn from(severity: Severity) -> Self {
        SeverityNumber(severity as u8 * 4 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_severity_has_four_numbers() {
        let numbers: Vec<_> = (0..=25).filter_map(SeverityNumber::new).collect();
        assert_eq!(numbers.len(), 24);
        for number in numbers {
            let first = SeverityNumber::from(number.severity());
            assert!((first.get()..first.get() + 4).contains(&number.get()));
            assert_eq!(number.is_first(), first == number);
        }
        assert_eq!(SeverityNumber::of(Severity::Warn, 12), None);
    }
}
