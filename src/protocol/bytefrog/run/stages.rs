//! The stages of a run's events, from their number to the batch: what waits, for what, and for how long.

use tributary_event::{Header, Loss, Position, Reason, semconv as names};
use tributary_protocol::{Now, Output};

use super::super::calls::{OpenCall, OpenCalls};
use super::super::dictionary::Id;
use super::super::normalize::{self, CallPosition, RunEnd};
use super::super::options::CallOutput;
use super::super::profile::CallProfile;
use super::super::queue::{Body, Event};
use super::super::sequence::{Gap, Late, Seen};
use super::super::wire::{Call, What};
use super::{Arrival, MAX_AWAITING_RENAME, MAX_GAPS_AT_ONCE, Run, RunState};

impl Run {
    /// Writes all events that are ready or have waited long enough to the batch of this connection, unless another one
    /// has a batch with events in order that is not handed over. `false`: the batch is full; call again.
    pub(crate) fn pump(&mut self, source: u16, now: Now, out: &mut Output) -> bool {
        if self.has_other_writer(source) {
            return true;
        }
        let written = self.charges.written;
        let is_done = self.write_ready(now, out);
        if self.is_in_order && self.charges.written > written {
            self.handing_over = Some(source);
        }
        is_done
    }

    fn write_ready(&mut self, now: Now, out: &mut Output) -> bool {
        self.sequence.deadline(self.options.reorder_window, now.elapsed);
        loop {
            if out.batch.is_full() {
                return false;
            }
            if !self.step(now, out) {
                break;
            }
        }
        self.report_further_gaps(now, out);
        self.report_found(now, out);
        if self.state == RunState::Closing {
            self.state = RunState::Ended;
            self.report_end(now, out);
        }
        true
    }

    /// Does one thing that is ready. `false`: there is none.
    fn step(&mut self, now: Now, out: &mut Output) -> bool {
        if let Some(open_call) = self.open_calls.as_mut().and_then(OpenCalls::take_unfinished) {
            self.write_span(&open_call, None, out);
            return true;
        }
        if self.profile.is_some() && self.write_profile(false, now, out) {
            return true;
        }
        if let Some(event) = self.ready.pop_front() {
            self.release(event, now, out);
            return true;
        }
        let is_closing = self.state == RunState::Closing;
        let is_over = is_closing || self.is_short_of_memory || self.held() > self.options.max_waiting;
        let is_due = self.may_expire() && self.waiting.deadline().is_some_and(|due| due <= now.elapsed);
        let is_over_limit =
            is_over && (self.awaiting_rename.is_empty() || self.waiting.len() > self.options.max_waiting / 2);
        if (is_due || is_over_limit)
            && let Some(events) = self.waiting.give_up()
        {
            self.ready.extend(events);
            return true;
        }
        let is_due = |event: &Event| event.arrived + self.rename_wait() <= now.elapsed;
        let has_too_many = is_over || self.awaiting_rename.len() > MAX_AWAITING_RENAME;
        if self.awaiting_rename.front().is_some_and(|event| has_too_many || is_due(event)) {
            if let Some(event) = self.awaiting_rename.pop_front() {
                self.release(event, now, out);
            }
            if is_closing || !is_over {
                self.release_due(is_closing, now, out);
            }
            return true;
        }
        if self.take_next_in_order(is_over, now) {
            return true;
        }
        let must_give_up = self.sequence.has_jumped() || (is_over && (is_closing || self.reorder_buffer.is_some()));
        let gap = match must_give_up {
            true => self.sequence.give_up(),
            false if self.may_expire() && self.waits_for_numbers() => self.sequence.expire(now.elapsed),
            false => None,
        };
        if let Some(gap) = gap {
            let is_short = !is_closing && is_over;
            self.report_gap(gap, is_short, now, out);
            return true;
        }
        if is_closing && let Some(calls) = &mut self.open_calls {
            calls.end_all();
            return calls.has_unfinished();
        }
        is_closing && self.write_profile(true, now, out)
    }

    /// Releases events whose wait for renames is over, until the batch is full: at this time nothing else becomes ready.
    fn release_due(&mut self, is_closing: bool, now: Now, out: &mut Output) {
        let wait = self.rename_wait();
        while !out.batch.is_full()
            && self.awaiting_rename.front().is_some_and(|event| is_closing || event.arrived + wait <= now.elapsed)
            && let Some(event) = self.awaiting_rename.pop_front()
        {
            self.release(event, now, out);
        }
    }

    /// Writes the next event of a profile whose interval has ended, or is ended now. `false`: there is none.
    #[inline(never)]
    fn write_profile(&mut self, is_last: bool, now: Now, out: &mut Output) -> bool {
        let is_due = |profile: &CallProfile| profile.is_writing() || profile.is_due(now.elapsed, is_last);
        if !self.profile.as_ref().is_some_and(is_due) {
            return false;
        }
        self.set_origin(0, out);
        let (Some(profile), names) = (&mut self.profile, &mut self.dictionary) else { return false };
        if !profile.is_writing() {
            profile.end_interval(now.elapsed, self.options.amplification, names, out);
        }
        profile.write_next(now, names, out, &mut self.charges.paid)
    }

    /// The number of an event. `None`: it has arrived before, which is reported as a loss (rule 18).
    #[inline]
    pub(super) fn number(&mut self, sequence: u32, arrival: Arrival<'_>, out: &mut Output) -> Option<u64> {
        let Arrival { message, source, offset, now } = arrival;
        let number = match self.sequence.see(sequence) {
            Seen::New(number) => number,
            Seen::Late(late) => {
                out.warn("number_after_its_gap");
                self.take_back(late, out);
                late.number
            }
            Seen::Repeated => {
                self.set_origin(source, out);
                let position = normalize::MessagePosition { offset, length: message.len() as u64, now };
                normalize::repeated(out, sequence, message, position);
                return None;
            }
        };
        if self.events == 0 {
            self.settle();
        }
        self.events += 1;
        out.decoded_bytes += message.len() as u64;
        Some(number)
    }

    pub(super) fn accept(&mut self, event: Event, now: Now, out: &mut Output) {
        if self.profile.is_some() && self.is_next_of_profile(&event) {
            self.clear_stacks(event.number);
            return self.emit(&event, out);
        }
        if let Some(reorder_buffer) = &mut self.reorder_buffer {
            let late = reorder_buffer.push(event, self.sequence.start());
            self.ready.extend(late.map(|event| Event { is_late: true, ..event }));
        } else if self.rename_wait().is_zero() {
            self.release(event, now, out);
        } else {
            self.awaiting_rename.push_back(event);
        }
    }

    /// Whether an event can be counted in the profile without waiting: it is the next one, and its thread has a name.
    #[inline]
    fn is_next_of_profile(&mut self, event: &Event) -> bool {
        let waits_for_others = self.is_in_order || !self.ready.is_empty() || !self.rename_wait().is_zero();
        let can_pass = !waits_for_others && self.missing(event).is_none();
        let start = self.sequence.start();
        can_pass && self.reorder_buffer.as_mut().is_some_and(|buffer| buffer.pass(event.number, start))
    }

    /// Writes an event, unless it still has to wait for a name. In order, it has waited for names before its turn.
    fn release(&mut self, event: Event, now: Now, out: &mut Output) {
        let wait = self.options.unresolved_wait;
        let may_wait = self.reorder_buffer.is_none() && self.state == RunState::Open && !self.is_short_of_memory;
        match self.missing(&event) {
            Some(id) if may_wait && !wait.is_zero() && !event.has_waited => {
                self.waiting.push(id, event, now.elapsed + wait);
            }
            _ => self.emit(&event, out),
        }
    }

    /// In order: moves the next event to `ready` once its waits are over. `false`: there is none.
    fn take_next_in_order(&mut self, is_over: bool, now: Now) -> bool {
        let (rename_wait, names_threads) = (self.rename_wait(), self.version.names_threads());
        let (may_expire, is_counted) = (self.may_expire(), self.only_counts());
        let Some(reorder_buffer) = &mut self.reorder_buffer else { return false };
        let Some(event) = reorder_buffer.front(self.sequence.next()) else { return false };
        if !is_over && event.arrived + rename_wait > now.elapsed {
            return false;
        }
        let missing = event.missing(&self.dictionary, names_threads, is_counted);
        if let Some(id) = missing.filter(|id| !self.waiting.is_abandoned(*id)) {
            if !is_over && (!may_expire || event.arrived + self.options.unresolved_wait > now.elapsed) {
                return false;
            }
            self.waiting.abandon(id);
        }
        let Some(event) = reorder_buffer.pop() else { return false };
        self.clear_stacks(event.number);
        // The calls that the break has closed are written first.
        self.ready.push_back(event);
        true
    }

    /// Whether calls are counted in the profile, and no event of them is written.
    fn only_counts(&self) -> bool {
        self.profile.is_some() && self.coverage.is_none()
    }

    #[inline]
    fn missing(&self, event: &Event) -> Option<Id> {
        let names_threads = self.version.names_threads();
        let missing = event.missing(&self.dictionary, names_threads, self.only_counts());
        missing.filter(|id| !self.waiting.is_abandoned(*id))
    }

    /// Writes an event, makes a span of it, or counts it in the profile.
    fn emit(&mut self, event: &Event, out: &mut Output) {
        if self.has_sums
            && let Body::Call(call) = &event.body
            && self.count(event, call, out)
        {
            return;
        }
        if self.open_calls.is_none()
            && let Body::Call(call) = &event.body
            && self.write_plain(call, event.source, event.into(), out)
        {
            return;
        }
        self.set_origin(event.source, out);
        self.charges.written += u64::from(event.length);
        let time = self.clock.time(event.time(), event.observed);
        let call = match &event.body {
            Body::Call(call) => *call,
            Body::Marker(marker) => {
                self.marker_bytes -= marker.memory_bytes();
                return self.writer.marker(out, event, marker, time);
            }
        };
        let mut ids = None;
        if let Some(calls) = self.open_calls.as_mut().filter(|_| !event.is_late) {
            let only_spans = self.options.calls == CallOutput::Spans;
            match call.what {
                What::Entry => {
                    match self.is_short_of_memory {
                        false => ids = calls.open(event, call.method, call.thread, call.time),
                        true => out.warn("call_without_memory"),
                    }
                    if ids.is_some() && only_spans {
                        return;
                    }
                }
                What::Exit { .. } | What::ExitAtLine(_) | What::Bubbled { .. } => {
                    if let Some(open_call) = calls.close(call.method, call.thread) {
                        ids = Some(open_call.ids);
                        self.write_span(&open_call, Some((event, &call)), out);
                        if only_spans {
                            return;
                        }
                    }
                }
                What::Thrown { .. } => ids = calls.current(call.thread),
                What::Visit { .. } => ids = calls.closed(call.thread),
            }
        }
        self.writer.call(out, event, &call, time, ids, &mut self.dictionary);
    }

    /// Writes a call as an event, if it is one of [`EventWriter::plain_call`]. `false`: it is another one.
    ///
    /// [`EventWriter::plain_call`]: super::super::normalize::EventWriter::plain_call
    #[inline]
    pub(super) fn write_plain(&mut self, call: &Call, source: u16, place: CallPosition, out: &mut Output) -> bool {
        self.set_origin(source, out);
        let clock = &mut self.clock;
        let time = || clock.time(call.time, place.observed);
        let is_written = self.writer.plain_call(out, place, call, time, &mut self.dictionary);
        if is_written {
            self.charges.written += u64::from(place.length);
        }
        is_written
    }

    /// Counts a call in the coverage and in the profile. `true`: nothing more is written of it. Not part of
    /// [`Run::emit`], which most listeners use without either.
    #[inline(never)]
    fn count(&mut self, event: &Event, call: &Call, out: &mut Output) -> bool {
        if let Some(coverage) = &mut self.coverage
            && call.what == What::Entry
            && coverage.enter(call.method, &mut self.dictionary)
        {
            self.set_origin(event.source, out);
            let time = self.clock.time(call.time, event.observed);
            self.writer.covered(out, event, call, time, &mut self.dictionary);
        }
        let Some(profile) = &mut self.profile else { return false };
        self.charges.counted += u64::from(event.length);
        profile.add(
            (call, event.length),
            !self.is_short_of_memory,
            event.is_late,
            self.clock.elapsed,
            &mut self.dictionary,
        );
        true
    }

    fn write_span(&mut self, open_call: &OpenCall, exit: Option<(&Event, &Call)>, out: &mut Output) {
        self.set_origin(exit.map_or(open_call.source, |(event, _)| event.source), out);
        let start = self.clock.time(open_call.time, open_call.observed);
        self.writer.span(out, open_call, start, exit, &mut self.dictionary);
    }

    /// Events up to this number were written: a break among them ends every open call.
    pub(super) fn clear_stacks(&mut self, number: u64) {
        if self.breaks.reach(number) {
            self.open_calls.iter_mut().for_each(OpenCalls::end_all);
            self.profile.iter_mut().for_each(CallProfile::end_calls);
        }
    }

    /// Reports missing numbers. `is_short`: they may still arrive, but the events after them cannot wait any longer.
    fn report_gap(&mut self, gap: Gap, is_short: bool, now: Now, out: &mut Output) {
        if self.breaks.explain(gap) {
            return;
        }
        self.gaps += 1;
        self.gaps_reported += 1;
        self.sequence.set_reported();
        if self.gaps_reported <= MAX_GAPS_AT_ONCE {
            self.set_origin(0, out);
            let detail = match is_short {
                false => "numbers that never arrived",
                true => "numbers that had not arrived when memory or max_waiting was used up",
            };
            return normalize::gap(out, gap, gap.len(), detail, now);
        }
        let unreported = self.gaps_unreported.get_or_insert((gap, 0));
        unreported.0.last = gap.last;
        unreported.1 += gap.len();
    }

    /// Reports the gaps over the limit in one loss, so that few bytes of a peer do not cause many bytes of output.
    fn report_further_gaps(&mut self, now: Now, out: &mut Output) {
        let further = self.gaps_reported.saturating_sub(MAX_GAPS_AT_ONCE);
        self.gaps_reported = 0;
        if let Some((around, missing)) = self.gaps_unreported.take() {
            self.set_origin(0, out);
            let detail = format!("{further} further gaps between these numbers");
            normalize::gap(out, around, missing, &detail, now);
        }
    }

    /// A number has arrived whose gap was reported: the gap is smaller, or none.
    fn take_back(&mut self, late: Late, out: &mut Output) {
        if !late.is_reported {
            return;
        }
        self.gaps = self.gaps.saturating_add_signed(late.more_gaps);
        out.found_events += 1;
        let (found, count) = self.found.get_or_insert((Gap { first: late.number, last: late.number }, 0));
        (found.first, found.last) = (found.first.min(late.number), found.last.max(late.number));
        *count += 1;
    }

    /// Reports the numbers that have arrived after their gap was reported, those of one call together.
    fn report_found(&mut self, now: Now, out: &mut Output) {
        if let Some((around, found)) = self.found.take() {
            self.set_origin(0, out);
            normalize::gap_closed(out, around, found, now);
        }
    }

    fn report_end(&mut self, now: Now, out: &mut Output) {
        self.set_origin(0, out);
        if self.writer.unresolved > 0 {
            let detail = "events were written with raw ids: their names never arrived";
            let events = Some(self.writer.unresolved);
            let loss = Loss { reason: Reason::Unresolved, bytes: 0, events, detail, excerpt: &[] };
            out.loss(Header::observed_at(names::LOSS, now.unix, Position::default()), loss);
        }
        if let Some(coverage) = &self.coverage {
            normalize::coverage(out, coverage.methods(), coverage.classes(), now);
        }
        let end = RunEnd {
            events: self.events,
            gaps: self.gaps,
            duration: now.elapsed.saturating_sub(self.opened),
            outcome: self.agent.outcome(self.gaps > 0, self.events_with_control.is_some_and(|with| with < self.events)),
        };
        if let Some(log) = &self.log {
            log.ended(self, &end);
        }
        normalize::run_ended(out, end, now);
    }
}
