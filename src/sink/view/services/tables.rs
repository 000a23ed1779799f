//! The rows of services, of their operations, and of the calls between them.

use std::collections::VecDeque;

use tributary_event::SpanKind;

use super::export::Unexported;
use super::sums::{MinuteSums, Sums};

/// The row of a service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name.
    pub name: Box<str>,
    /// It stands for all services for which there is no row of their own.
    pub is_other: bool,
    /// Its entries.
    pub entries: Sums,
    /// Minutes that are older than those of `entries`, the oldest first.
    pub history: VecDeque<MinuteTotals>,
    /// The types of its errors, of all its spans.
    pub errors: Vec<ErrorType>,
    /// Spans of operations for which there is no row of their own.
    pub other_spans: u64,
}

/// A minute of the entries of a service.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct MinuteTotals {
    /// Its number, counted since 1970.
    pub minute: u64,
    pub count: u64,
    pub errors: u64,
    pub nanos: u128,
    /// Durations in nanoseconds that 50, 95 and 99 % do not exceed.
    pub quantiles: [u64; 3],
}

/// Errors of one type (`exception.type`).
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct ErrorType {
    pub name: Box<str>,
    /// The number of a step, and its errors; the oldest first.
    pub steps: VecDeque<(u64, u32)>,
}

/// The row of an operation.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Operation {
    pub(super) service: u32,
    pub kind: Option<SpanKind>,
    pub name: Box<str>,
    /// What it works on: the resource of a Datadog span; empty: the name says it.
    pub detail: Box<str>,
    /// It stands for all operations of the service for which there is no row of their own.
    pub is_other: bool,
    pub sums: Sums,
    pub(super) unexported: Option<Box<Unexported>>,
}

/// Calls from one service to another.
#[derive(Debug)]
pub(super) struct Edge {
    /// `None`: unknown. [`OTHERS`](super::find::OTHERS): those for which there is no row of their own.
    pub(super) caller: Option<u32>,
    pub(super) callee: u32,
    pub(super) sums: Sums,
}

/// Calls from one service to another.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct ServiceEdge {
    /// `None`: unknown.
    pub caller: Option<Box<str>>,
    pub callee: Box<str>,
    pub sums: Sums,
}

impl MinuteTotals {
    pub(super) fn of(minute: &MinuteSums) -> MinuteTotals {
        let quantile = |share| minute.latencies.quantile(share).unwrap_or(0);
        MinuteTotals {
            minute: minute.minute,
            count: minute.count,
            errors: minute.errors,
            nanos: minute.nanos,
            quantiles: [quantile(0.5), quantile(0.95), quantile(0.99)],
        }
    }
}
