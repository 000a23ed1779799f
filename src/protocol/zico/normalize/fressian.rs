//! Exceptions and samples of Fressian → events.

use std::fmt::Write;
use std::ops::Range;

use tributary_codec::fressian::{Definitions as FressianDefinitions, FressianError, FressianReader};
use tributary_codec::mutf8::{self, Repair};
use tributary_codec::text::cut;
use tributary_event::{
    EventBuilder, Header, Label, MetricData, MetricType, Number, Position, SpanId, TraceId, UnixNanos, Value,
    semconv as names,
};
use tributary_protocol::Output;

use super::super::fressian::metrics::Metric;
use super::super::fressian::structs::{self, ExceptionPart, Sample};
use super::super::record::OpenRecord;
use super::super::symbols::{Symbols, placeholder};
use super::super::value::ValueTarget;
use super::super::wire::{TextOrSymbol, ZicoDialect};
use super::{BodyContext, Buffers, NATIVE, Thrown};

/// Writes what records of Fressian have beside those of other dialects.
pub(super) fn record_attributes(event: &mut EventBuilder<'_>, record: &OpenRecord) {
    if let Some(errors) = record.errors.filter(|errors| *errors > 0) {
        event.attribute(names::ZICO_ERRORS, errors);
    }
    if let Some(flags) = record.epilog.and_then(|epilog| epilog.flags) {
        event.attribute(names::ZICO_TRACE_FLAGS, flags);
    }
    if record.begin.is_none() {
        event.text(names::TIME_BASIS, names::TIME_BASIS_ESTIMATED);
    }
}

impl Buffers {
    /// Writes the log of an exception with its cause.
    ///
    /// # Errors
    /// The bytes were not checked before.
    #[expect(clippy::too_many_arguments, reason = "those of `exception`, and the packet")]
    pub(in super::super) fn java_exception(
        &mut self,
        body: &[u8],
        range: Range<usize>,
        span: (TraceId, SpanId, Option<UnixNanos>, Position),
        symbols: &mut Symbols<'_>,
        defined: &mut FressianDefinitions,
        context: &BodyContext,
        out: &mut Output,
    ) -> Result<(), FressianError> {
        let mut thrown = Thrown { id: None, class: None, message: None, stack: String::new() };
        let mut is_full = false;
        let mut reader = FressianReader::at(body, range.start);
        structs::exception(&mut reader, defined, |part| {
            is_full |= thrown.stack.len() > self.record_bytes;
            if is_full {
                return;
            }
            match part {
                ExceptionPart::Thrown { class, message, is_cause } => {
                    let class = self.symbol(class, symbols);
                    let message = message.map(|message| {
                        let (text, repair) = mutf8::read(&message);
                        self.writer.is_repaired |= repair != Repair::None;
                        text.into_owned()
                    });
                    let before = if is_cause { "\nCaused by: " } else { "" };
                    let _ = write!(thrown.stack, "{before}{}", class.as_deref().unwrap_or("null"));
                    if let Some(message) = &message {
                        let _ = write!(thrown.stack, ": {message}");
                    }
                    if !is_cause {
                        (thrown.class, thrown.message) = (class, message);
                    }
                }
                ExceptionPart::Frame { class, method, file, line } => {
                    let [class, method, file] = [class, method, file].map(|id| self.symbol(id, symbols));
                    let dot = if class.is_some() && method.is_some() { "." } else { "" };
                    let _ =
                        write!(thrown.stack, "\n\tat {}{dot}{}", class.unwrap_or_default(), method.unwrap_or_default());
                    let _ = match (file, line) {
                        (_, NATIVE) => write!(thrown.stack, "(Native Method)"),
                        (None, _) => write!(thrown.stack, "(Unknown Source)"),
                        (Some(file), ..=0) => write!(thrown.stack, "({file})"),
                        (Some(file), line) => write!(thrown.stack, "({file}:{line})"),
                    };
                }
            }
        })?;
        // A few bytes may refer to long texts.
        if thrown.stack.len() > self.record_bytes {
            thrown.stack.truncate(cut(&thrown.stack, self.record_bytes).len());
            self.writer.is_cut = true;
        }
        self.members.clear();
        self.thrown(None, Some(&thrown), false, 0, span, context, out);
        Ok(())
    }

    /// The text of a symbol; `None`: it is none.
    fn symbol(&mut self, id: u64, symbols: &mut Symbols<'_>) -> Option<String> {
        if id == 0 { None } else { self.owned(&TextOrSymbol::Symbol(id), symbols) }
    }

    /// Writes a sample of a metric. `at`: when it was read, in milliseconds since 1970.
    #[expect(clippy::too_many_arguments, reason = "one caller")]
    pub(in super::super) fn sample(
        &mut self,
        sample: &Sample<'_>,
        metric: Option<&Metric>,
        (at, scanner): (i64, u64),
        position: Position,
        symbols: &mut Symbols<'_>,
        context: &BodyContext,
        out: &mut Output,
    ) {
        let name = match metric {
            Some(metric) => out.batch.push_text(&metric.event),
            None => out.batch.push_text(&format!("{}metric.{}", names::ZICO_METRIC.as_str(), sample.metric)),
        };
        let nanos = u64::try_from(at).ok().and_then(|at| at.checked_mul(1_000_000));
        let time = nanos.map(UnixNanos);
        self.members.clear();
        self.writer.credit = self.record_bytes;
        let place = &mut ValueTarget { batch: &mut out.batch, symbols, dialect: ZicoDialect::Fressian };
        for (key, value) in metric.iter().flat_map(|metric| &metric.attributes) {
            let member = self.writer.text_member(key, value, place);
            self.members.push(member);
        }
        for (key, value) in &sample.attributes {
            let (value, repair) = mutf8::read(value);
            self.writer.is_repaired |= repair != Repair::None;
            // The agent does not define these keys, unless something else uses the same symbol.
            let key = place.symbols.string(*key).map_or_else(|| placeholder(*key), |symbol| symbol.text.to_string());
            let member = self.writer.text_member(&key, &value, place);
            self.members.push(member);
        }
        // Those of the sample follow, and win.
        self.writer.keep_last(&mut self.members);
        let scanner = (scanner != 0).then(|| self.writer.symbol(scanner, place).text);
        let mut event = out.batch.event(Header { name: name.into(), time, observed: context.observed, position });
        event.attribute(names::ZICO_METRIC_ID, sample.metric);
        if let Some(description) = metric.and_then(|metric| metric.description.as_deref()) {
            event.text(names::ZICO_METRIC_DESCRIPTION, description);
        }
        if let Some(scanner) = scanner {
            event.attribute(names::ZICO_METRIC_SCANNER, scanner);
        }
        for member in &self.members {
            if !matches!(member.value, Value::Null) {
                event.attribute(member.key, member.value);
            }
        }
        self.marks(&mut event);
        let value: Number = sample.value;
        event.metric(MetricData { metric_type: MetricType::Gauge, unit: Label::Constant(""), value, start: None });
    }
}
