//! A packet of Fressian (section 6).

use super::super::route::HOST_HEADER;
use super::*;

impl ZicoWork {
    /// The same for a packet of this connection.
    pub(in super::super) fn with_link(self, link: Arc<Mutex<Link>>) -> Self {
        ZicoWork { link: Some(link), ..self }
    }

    /// Section 6.4.
    pub(super) fn packet(&mut self, now: Now, out: &mut Output) {
        let context = self.context(ZicoDialect::Fressian);
        let connection = out.batch.origin().connection;
        let link = self.link.get_or_insert_with(|| {
            // A packet that is kept as a request, by itself.
            let host = self.request.head.header(HOST_HEADER).unwrap_or_default();
            Arc::new(Mutex::new(Link::open(&self.shared, host, connection, now)))
        });
        let mut link = connection::lock(link);
        let slot = link.session(&self.shared, now);
        let mut session = slot.lock();
        if link.is_first && session.resends.has_others(connection) {
            // One of the connections that were woken together was quicker.
            self.stage = RequestStage::Start;
            return;
        }
        session.charge_to(self.lease.budget());
        out.batch.set_origin(out.batch.origin().with_version(ZicoDialect::Fressian.as_str()).into());
        out.batch.set_resource(session.resource.clone());
        self.resend = Some((Resend::begin(slot.clone(), &mut session.resends, connection), Vec::new()));
        let own = session.delivered.of_body();
        drop(session);
        let options = &self.shared.options;
        let body = self.request.body.len();
        let mut state = BodyState::new(context, self.shared.open_limits(), body, true, options.max_remembered);
        state.own = Some(own);
        link.is_first = false;
        let reader = PacketReader::new(state.with(options), options.max_record_depth, self.shared.emit_definitions);
        self.stage = RequestStage::Packet(Box::new(reader));
        drop(link);
        self.slot = Some(slot);
    }

    pub(super) fn read_packet(&mut self, mut reading: Box<PacketReader>, now: Now, out: &mut Output) {
        let (Some(link), Some(slot)) = (self.link.clone(), self.slot.clone()) else { return };
        let (mut link, mut session) = (connection::lock(&link), slot.lock());
        let body = &self.request.body;
        let is_read = reading.read(body, &mut link, &session, now, out);
        let calls = reading.state.calls.as_ref().map_or(0, BodyCalls::memory_bytes);
        let has_memory = self.lease.resize((reading.memory_bytes() + calls) as u64)
            && link.hold(self.lease.budget())
            && session.hold();
        if !has_memory && reading.fault.is_none() {
            let detail = "the memory for requests is used up (limits.memory_bytes, limits.memory_per_address)";
            self.answer = Response::unavailable(detail);
            reading.give_up((Reason::Failed, reading.state.at, detail.to_owned()));
        } else if is_read {
            reading.report(body, out);
            if let Some((reason, offset, detail)) = reading.fault.take() {
                reading.state.lose(reason, (offset, body.len()), None, &detail, body, out);
                self.quarantine_reason = (reason != Reason::Failed).then_some(detail);
            }
            if let Some((_, digests)) = &mut self.resend {
                *digests = std::mem::take(&mut reading.digests);
            }
            let resource = session.resource.clone();
            drop((link, session));
            self.settle(reading.state, resource, out);
            return;
        }
        self.stage = RequestStage::Packet(reading);
    }
}
