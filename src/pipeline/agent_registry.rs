//! The recently seen agents of a listener, as their events describe them, for operators.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};

use tributary_codec::lru::Lru;
use tributary_event::{
    AgentIdentity, Batch, DataView, EventView, Kind, Origin, Resource, ResourceValue, UnixNanos, semconv,
};

/// Agents of one listener that are kept. When there are more, the one that was silent for longest is removed.
const MAX_AGENTS: usize = 1024;
/// The attributes of an agent's resource are kept as far as they fit into this many bytes.
const MAX_RESOURCE_BYTES: usize = 2048;
/// Size of an attribute besides its key and text.
const ATTRIBUTE_BYTES: usize = 80;
/// Of the name of a service, this much is kept.
const MAX_SERVICE_BYTES: usize = 64;
/// Size of an agent besides its attributes.
const AGENT_BYTES: usize = 256;
/// The maximum size of a listener's registry.
pub const AGENT_REGISTRY_BYTES: u64 = (MAX_AGENTS * (MAX_RESOURCE_BYTES + AGENT_BYTES)) as u64;

/// The agents of one listener, each by its [`AgentIdentity`].
#[derive(Debug)]
pub(super) struct AgentRegistry {
    seed: RandomState,
    agents: Mutex<Lru<u64, Agent>>,
}

/// One agent.
#[derive(Clone, Debug)]
pub struct Agent {
    /// Its number ([`AgentIdentity::fingerprint`]).
    pub fingerprint: u32,
    /// Its latest connection.
    pub origin: Arc<Origin>,
    /// The service of its first root span, where its resource names none and it sends the spans of several services.
    pub service: Option<Box<str>>,
    /// Its latest resource, as far as it is kept.
    pub resource: Vec<(String, ResourceValue)>,
    /// When its first and its latest events were received, by the collector's clock.
    pub since: UnixNanos,
    #[allow(missing_docs)]
    pub last_seen: UnixNanos,
    /// Its events, including losses.
    pub events: u64,
    /// Losses among them.
    pub losses: u64,
    /// How many events came lately.
    pub recent: RecentEvents,
}

/// Events by the time at which they were received, in two periods of ten seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentEvents {
    /// The number of the present period since 1970, its events, and those of the period before it.
    period: u64,
    present: u64,
    before: u64,
}

impl RecentEvents {
    const PERIOD_NANOS: u64 = 10_000_000_000;

    fn add(&mut self, at: UnixNanos, events: u64) {
        self.advance(at);
        self.present += events;
    }

    fn advance(&mut self, at: UnixNanos) {
        let period = at.0 / RecentEvents::PERIOD_NANOS;
        if period > self.period {
            self.before = if period == self.period + 1 { self.present } else { 0 };
            (self.period, self.present) = (period, 0);
        }
    }

    /// Events per second in the last 10 to 20 seconds.
    pub fn per_second(mut self, now: UnixNanos) -> f64 {
        self.advance(now);
        let passed = now.0.saturating_sub(self.period * RecentEvents::PERIOD_NANOS).min(RecentEvents::PERIOD_NANOS);
        let seconds = (RecentEvents::PERIOD_NANOS + passed) as f64 / 1e9;
        (self.before + self.present) as f64 / seconds
    }
}

impl Default for AgentRegistry {
    fn default() -> Self {
        AgentRegistry { seed: RandomState::new(), agents: Mutex::new(Lru::default()) }
    }
}

impl AgentRegistry {
    /// Counts the events of a batch for their agent: that of the last event.
    pub(super) fn record(&self, batch: &Batch) {
        let Some(last) = batch.events().last() else { return };
        let (origin, resource, at) = (last.origin(), last.resource().agent(), last.observed());
        let identity = AgentIdentity::of(origin, resource);
        let key = self.seed.hash_one(identity);
        let (events, losses) = (batch.len() as u64, batch.count(Kind::Loss));
        let mut agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(agent) = agents.get(&key) {
            agent.origin.clone_from(origin);
            if !identity.has_whole_resource() && !is_kept(&agent.resource, resource) {
                agent.resource = kept(resource);
            }
            if agent.service.is_none() {
                agent.service = service(batch, resource);
            }
            // Batches of several connections may arrive in another order than they were read.
            agent.since = agent.since.min(at);
            agent.last_seen = agent.last_seen.max(at);
            agent.events += events;
            agent.losses += losses;
            agent.recent.add(at, events);
            return;
        }
        if agents.len() >= MAX_AGENTS {
            agents.pop_oldest();
        }
        let service = service(batch, resource);
        let (fingerprint, origin, resource) = (identity.fingerprint(), origin.clone(), kept(resource));
        let mut recent = RecentEvents::default();
        recent.add(at, events);
        let agent = Agent { fingerprint, origin, service, resource, since: at, last_seen: at, events, losses, recent };
        agents.insert(key, agent);
    }

    /// All agents, in the order in which they were first seen.
    pub(super) fn agents(&self) -> Vec<Agent> {
        let agents = self.agents.lock().unwrap_or_else(PoisonError::into_inner);
        let mut agents: Vec<_> = agents.iter().map(|(_, agent)| agent.clone()).collect();
        agents.sort_by_key(|agent| agent.since);
        agents
    }
}

/// The service of the first root span of an agent: of a process, the service that it is, not one that it calls.
fn service(batch: &Batch, agent: &Resource) -> Option<Box<str>> {
    // Only Datadog agents name services beside their own resource.
    let is_other_protocol = batch.origin().is_none_or(|origin| origin.protocol != "datadog");
    if is_other_protocol || agent.text(semconv::SERVICE_NAME).is_some() {
        return None;
    }
    let is_root = |event: &EventView<'_>| {
        matches!(event.data(), DataView::Span(span) if span.parent.is_none())
            && std::ptr::eq(event.resource().agent(), agent)
    };
    let root = batch.events().find(is_root)?;
    let name = root.resource().text(semconv::SERVICE_NAME).filter(|name| !name.is_empty())?;
    Some(name[..name.floor_char_boundary(MAX_SERVICE_BYTES)].into())
}

/// Whether these are the attributes that are kept of a resource.
fn is_kept(known: &[(String, ResourceValue)], resource: &Resource) -> bool {
    resource.attributes().iter().filter(|attribute| known.contains(attribute)).count() == known.len()
}

fn kept(resource: &Resource) -> Vec<(String, ResourceValue)> {
    let mut space = MAX_RESOURCE_BYTES;
    let fits = |(key, value): &&(String, ResourceValue)| {
        let bytes = ATTRIBUTE_BYTES + key.len() + if let ResourceValue::Text(text) = value { text.len() } else { 0 };
        let fits = bytes <= space;
        if fits {
            space -= bytes;
        }
        fits
    };
    resource.attributes().iter().filter(fits).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tributary_event::{BatchBuilder, Header, Loss, Position, Reason};

    fn batch(peer: &str, resource: &[(&str, &str)], events: u64, at: u64) -> Batch {
        batch_of("datadog", peer, resource, events, at)
    }

    fn batch_of(protocol: &'static str, peer: &str, resource: &[(&str, &str)], events: u64, at: u64) -> Batch {
        let origin = Origin::new(protocol, "spans".into(), peer.into(), at);
        let mut builder = BatchBuilder::new(origin.into());
        let resource = resource.iter().map(|(key, value)| ((*key).to_owned(), ResourceValue::from(*value)));
        builder.set_resource(Resource::new(resource).into());
        for _ in 0..events {
            let header = Header::observed_at(semconv::LOSS, UnixNanos(at), Position::default());
            let loss = Loss { reason: Reason::Malformed, bytes: 1, events: None, detail: "", excerpt: &[] };
            builder.loss(header, loss);
        }
        builder.take()
    }

    #[test]
    fn an_agent_is_identified_by_its_address_and_its_resource() {
        let agent_registry = AgentRegistry::default();
        agent_registry.record(&batch("10.0.0.1:1000", &[("service.name", "shop")], 2, 5));
        agent_registry.record(&batch("10.0.0.1:2000", &[("service.name", "shop")], 3, 7));
        agent_registry.record(&batch("10.0.0.1:1000", &[("service.name", "cart")], 1, 8));
        agent_registry.record(&batch("[::1]:1000", &[], 1, 9));
        let seen: Vec<_> = agent_registry
            .agents()
            .into_iter()
            .map(|agent| (agent.origin.peer.to_string(), agent.since.0, agent.last_seen.0, agent.events, agent.losses))
            .collect();
        let expected = [("10.0.0.1:2000", 5, 7, 5, 5), ("10.0.0.1:1000", 8, 8, 1, 1), ("[::1]:1000", 9, 9, 1, 1)];
        assert_eq!(
            seen,
            expected.map(|(peer, since, last, events, losses)| (peer.to_owned(), since, last, events, losses))
        );
    }

    #[test]
    fn a_machine_with_an_id_is_one_agent_with_its_latest_address_and_resource() {
        let agent_registry = AgentRegistry::default();
        for upload in 1..=3000_u64 {
            let (machine, number) = ((upload % 10).to_string(), upload.to_string());
            let resource = [("endless.machine.id", &*machine), ("endless.send_number", &*number)];
            let peer = format!("10.0.{}.1:9", upload % 7);
            agent_registry.record(&batch_of("endless", &peer, &resource, 1, upload));
        }
        let agents = agent_registry.agents();
        assert_eq!(agents.len(), 10);
        let last = agents.iter().max_by_key(|agent| agent.last_seen).unwrap();
        assert_eq!((last.events, &*last.origin.peer), (300, "10.0.4.1:9"));
        assert!(last.resource.contains(&("endless.send_number".to_owned(), ResourceValue::from("3000"))));
    }

    #[test]
    fn the_rate_of_an_agent_is_that_of_the_last_seconds() {
        let second = 1_000_000_000;
        let at = |seconds: u64| UnixNanos(seconds * second);
        let mut recent = RecentEvents::default();
        recent.add(at(100), 50);
        recent.add(at(109), 50);
        assert_eq!(recent.per_second(at(110)), 10.0);
        recent.add(at(110), 100);
        assert_eq!(recent.per_second(at(120)), 10.0);
        assert_eq!(recent.per_second(at(140)), 0.0);
    }

    #[test]
    fn the_longest_silent_agents_are_removed_and_attributes_that_do_not_fit_are_not_kept() {
        let agent_registry = AgentRegistry::default();
        let long = "x".repeat(MAX_RESOURCE_BYTES);
        agent_registry.record(&batch("10.0.0.1:1", &[("story", &long), ("name", "talker")], 1, 0));
        for at in 1..=MAX_AGENTS as u64 {
            agent_registry.record(&batch("10.0.0.2:1", &[("id", &at.to_string())], 1, at));
            agent_registry.record(&batch("10.0.0.1:1", &[("story", &long), ("name", "talker")], 1, at));
        }
        let agents = agent_registry.agents();
        assert_eq!(agents.len(), MAX_AGENTS);
        assert_eq!(agents[0].resource, [("name".to_owned(), ResourceValue::from("talker"))]);
        assert_eq!(agents[0].events, 1 + MAX_AGENTS as u64);
        assert_eq!(agents[1].since, UnixNanos(2));
    }
}
