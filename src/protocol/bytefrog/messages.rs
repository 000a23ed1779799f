//! Applies the messages of a connection to its run.

use tributary_codec::reader::DecodeError;
use tributary_event::{Reason, Severity, semconv as names};
use tributary_protocol::fault::SessionError;
use tributary_protocol::{Now, Output};

use super::command::Mode;
use super::dictionary::{Id, PeerName};
use super::normalize::{self, Definition, MessagePosition};
use super::queue::Marker;
use super::run::{Arrival, Run};
use super::wire::{self, Control, DataMessage};

/// Handles one message of a control connection: its size. `None`: it is incomplete.
pub(super) fn control(
    run: &mut Run,
    input: &[u8],
    offset: u64,
    now: Now,
    out: &mut Output,
) -> Result<Option<usize>, DecodeError> {
    let Some((message, size)) = wire::control(input)? else { return Ok(None) };
    let position = MessagePosition { offset, length: size as u64, now };
    match message {
        Control::Heartbeat { mode, buffers } => {
            let mode = Mode::of(mode);
            let has_recovered = run.agent.heartbeat(mode, now.elapsed);
            let misses_numbers = run.misses_numbers();
            run.agent.count_buffers(buffers == 0, misses_numbers);
            normalize::heartbeat(out, mode, buffers, position);
            if has_recovered {
                let position = MessagePosition { length: 0, ..position };
                normalize::agent_changed(out, names::BYTEFROG_AGENT_RECOVERED, mode, Severity::Info, position);
            }
        }
        Control::DataBreak { sequence } if run.data_break(sequence) => {
            // An agent that shuts down is suspended by us, and traces nothing after that.
            if !run.agent.is_draining() {
                normalize::data_break(out, sequence, position);
            }
        }
        Control::DataBreak { sequence } => {
            let detail = format!("data break for number {sequence}, which is not after the last one; ignored");
            let mut fault = SessionError::new(Reason::Malformed, offset, detail);
            fault.count(&input[..size]);
            fault.report(now, out);
            return Ok(Some(size));
        }
        Control::Class { outcome, name } => {
            run.agent.settle();
            normalize::class(out, outcome, name, position);
        }
        Control::Error { text } => {
            let is_answer = run.agent.answers_stop(text);
            if !is_answer {
                run.agent.failed();
            }
            normalize::error(out, text, if is_answer { Severity::Info } else { Severity::Error }, position);
        }
    }
    out.decoded_bytes += size as u64;
    Ok(Some(size))
}

/// Handles one message of a data connection: its size. `None`: it is incomplete.
pub(super) fn data(
    run: &mut Run,
    source: u16,
    emit_definitions: bool,
    input: &[u8],
    offset: u64,
    now: Now,
    out: &mut Output,
) -> Result<Option<usize>, DecodeError> {
    if let Some((call, size)) = wire::call(input, run.version) {
        run.call(call, Arrival { message: &input[..size], source, offset, now }, out);
        return Ok(Some(size));
    }
    let Some((message, size)) = wire::data(input, run.version)? else { return Ok(None) };
    let arrival = Arrival { message: &input[..size], source, offset, now };
    let (id, definition) = match message {
        DataMessage::Marker { time, sequence, key, value } => {
            let (key, value) = (PeerName::read(key), PeerName::read(value));
            let is_repaired = key.is_repaired || value.is_repaired;
            let marker = Marker { time, key: key.text, value: value.text, is_repaired };
            run.marker(sequence, marker, arrival, out);
            return Ok(Some(size));
        }
        DataMessage::ThreadName { thread, time, name } => {
            let is_kept = run.may_keep_names() && run.dictionary.name_thread(thread, time, name);
            let resolved = run.definition_time(time, now);
            (is_kept.then_some(Id::Thread(thread)), Definition::Thread { thread, time, resolved, name })
        }
        DataMessage::Method { method, signature } => {
            let is_kept = run.may_keep_names() && run.dictionary.map_method(method, signature);
            (is_kept.then_some(Id::Method(method)), Definition::Method { method, signature })
        }
        DataMessage::Exception { exception, name } => {
            let is_kept = run.may_keep_names() && run.dictionary.map_exception(exception, name);
            (is_kept.then_some(Id::Exception(exception)), Definition::Exception { exception, name })
        }
        DataMessage::SourceLocation { location, method, lines, characters } => {
            let is_kept = run.may_keep_names() && run.dictionary.map_location(location, lines);
            let definition = Definition::SourceLocation { location, method, lines, characters };
            (is_kept.then_some(Id::SourceLocation(location)), definition)
        }
        DataMessage::SourceLocationCount { method, count } => (None, Definition::SourceLocationCount { method, count }),
    };
    match id {
        Some(id) => run.mapped(id),
        None if matches!(definition, Definition::SourceLocationCount { .. }) => {}
        None => out.warn("dictionary_full"),
    }
    if emit_definitions {
        run.set_origin(source, out);
        let position = MessagePosition { offset, length: size as u64, now };
        normalize::definition(out, definition, position);
    }
    out.decoded_bytes += size as u64;
    Ok(Some(size))
}
