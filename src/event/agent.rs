//! Which events are those of one agent, and what an agent is called: one rule for lists, the page, pictures and lines.

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

use super::{Name, Origin, Resource, ResourceValue, peer_address, semconv};

/// The attribute that identifies an agent of a protocol wherever it connects from, if it sends one.
fn identifying(protocol: &str) -> Option<Name> {
    match protocol {
        "datadog_agent" | "otlp" => Some(semconv::SERVICE_INSTANCE_ID),
        "endless" => Some(semconv::ENDLESS_MACHINE_ID),
        "zico" => Some(semconv::HOST_ID),
        _ => None,
    }
}

/// Attributes of resources that change from request to request of one agent.
const CHANGING: [Name; 1] = [semconv::ENDLESS_SEND_NUMBER];

/// What identifies an agent among those of its listener: the id that it sends; without one, its address without the port and
/// its resource.
#[derive(Clone, Copy, Debug)]
pub struct AgentIdentity<'a> {
    id: Option<&'a (String, ResourceValue)>,
    address: &'a str,
    resource: &'a [(String, ResourceValue)],
}

impl<'a> AgentIdentity<'a> {
    /// The agent of a connection with this resource.
    pub fn of(origin: &'a Origin, resource: &'a Resource) -> Self {
        let resource = resource.attributes();
        let name = identifying(origin.protocol).map(Name::as_str);
        let id = name.and_then(|name| resource.iter().find(|(key, _)| key == name));
        AgentIdentity { id, address: origin.peer_address().0, resource }
    }

    /// The number by which agents without a number of their own are known. The same after a restart of the daemon.
    pub fn fingerprint(self) -> u32 {
        let attributes: Vec<_> = self.attributes().collect();
        crc32c::crc32c(format!("{} {attributes:?}", self.address()).as_bytes())
    }

    /// Whether agents with different resources are different agents.
    pub fn has_whole_resource(self) -> bool {
        self.attributes().count() == self.resource.len()
    }

    fn address(self) -> &'a str {
        if self.id.is_some() { "" } else { self.address }
    }

    fn attributes(self) -> impl Iterator<Item = &'a (String, ResourceValue)> {
        let resource = if self.id.is_some() { &[] } else { self.resource };
        let is_constant = |(key, _): &&(String, ResourceValue)| CHANGING.iter().all(|name| key != name.as_str());
        self.id.into_iter().chain(resource.iter().filter(is_constant))
    }
}

impl Hash for AgentIdentity<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
        for (key, value) in self.attributes() {
            key.hash(state);
            match value {
                ResourceValue::Bool(value) => value.hash(state),
                ResourceValue::I64(value) => value.hash(state),
                ResourceValue::U64(value) => value.hash(state),
                ResourceValue::F64(value) => value.to_bits().hash(state),
                ResourceValue::Text(text) => text.hash(state),
            }
        }
    }
}

/// The attributes of a resource that name an agent and distinguish its processes.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct AgentFacts<'a> {
    pub service: Option<&'a str>,
    pub program: Option<&'a str>,
    pub pid: Option<u64>,
    pub host: Option<&'a str>,
    pub project: Option<i64>,
    pub run: Option<u64>,
    pub machine: Option<&'a str>,
    pub image: Option<&'a str>,
    /// The attributes of the site, as `key=text, key=text`.
    pub site: String,
}

/// What an agent is called, and where its name is from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AgentName {
    /// A name that its events have: a service, a program, a machine, a run.
    Own(String),
    /// The address of its peer without the port; the name of its listener where a sink must not show the address.
    Address(String),
}

impl AgentName {
    /// The name.
    pub fn into_text(self) -> String {
        match self {
            AgentName::Own(name) | AgentName::Address(name) => name,
        }
    }
}

impl<'a> AgentFacts<'a> {
    /// The facts in the attributes of a resource.
    pub fn of(attributes: &'a [(String, ResourceValue)]) -> Self {
        let mut facts = AgentFacts::default();
        for (key, value) in attributes {
            let text = || match value {
                ResourceValue::Text(text) => Some(text.as_str()),
                _ => None,
            };
            let number = || match value {
                ResourceValue::U64(number) => Some(*number),
                ResourceValue::I64(number) => u64::try_from(*number).ok(),
                _ => None,
            };
            match key.as_str() {
                "service.name" => facts.service = text(),
                "process.executable.name" => facts.program = text(),
                "process.pid" => facts.pid = number(),
                "host.name" => facts.host = text(),
                "bytefrog.project.id" => facts.project = number().and_then(|number| i64::try_from(number).ok()),
                "bytefrog.run.id" => facts.run = number(),
                "endless.machine.id" => facts.machine = text(),
                "endless.image" => facts.image = text(),
                key => {
                    if let (Some(name), Some(text)) = (key.strip_prefix(semconv::ENDLESS_SITE.as_str()), text()) {
                        let comma = if facts.site.is_empty() { "" } else { ", " };
                        facts.site += &format!("{comma}{name}={text}");
                    }
                }
            }
        }
        facts
    }

    /// What the agent is called: the first that there is of its service, its program, the host of a Zorka agent, the project
    /// or the run of a Bytefrog agent, the machine id or the image and site of an Endless machine, and its address.
    pub fn name(&self, protocol: &str, listener: &str, peer: &str) -> AgentName {
        fn present<'t>(text: &'t Option<&str>) -> Option<&'t str> {
            text.as_deref().filter(|text| !text.is_empty())
        }
        let host = present(&self.host).filter(|_| protocol == "zico");
        let run = || match self.project {
            Some(project) => Some(format!("project {project}")),
            None => self.run.map(|run| format!("{listener}:{run}")),
        };
        let place = || {
            let parts = present(&self.image).into_iter().chain(Some(&*self.site).filter(|site| !site.is_empty()));
            Some(parts.collect::<Vec<_>>().join(", ")).filter(|place| !place.is_empty())
        };
        let text = present(&self.service).or(present(&self.program)).or(host).map(str::to_owned);
        let own = text.or_else(run).or_else(|| present(&self.machine).map(str::to_owned)).or_else(place);
        match (own, peer_address(peer).0) {
            (Some(name), _) => AgentName::Own(name),
            (None, "") => AgentName::Address(listener.to_owned()),
            (None, address) => AgentName::Address(address.to_owned()),
        }
    }

    /// What distinguishes the processes of one name, as `run 3, pid 4711`. Empty: the agent says nothing about its
    /// process.
    pub fn process(&self) -> String {
        let run = self.run.map(|run| format!("run {run}"));
        let pid = self.pid.map(|pid| format!("pid {pid}"));
        run.into_iter().chain(pid).collect::<Vec<_>>().join(", ")
    }

    /// The process in words, different for different processes: its name, and in parentheses what else there is of its run,
    /// its pid and its host or address.
    pub fn in_words(&self, protocol: &str, listener: &str, peer: &str) -> String {
        let address = peer.parse::<SocketAddr>().ok();
        let name = match self.name(protocol, listener, peer) {
            AgentName::Own(name) => name,
            // The name of a file says nothing.
            AgentName::Address(name) => {
                if address.is_some() {
                    name
                } else {
                    protocol.to_owned()
                }
            }
        };
        let place = match (&self.host, address) {
            (Some(host), _) if !host.is_empty() => Some(host.to_string()),
            // The address that we dial is that of one process. Other peers connect from any port.
            (_, Some(address)) if protocol == "rbkit" => Some(address.to_string()),
            (_, address) => address.map(|address| address.ip().to_string()),
        };
        let is_run_named = self.run.is_some_and(|run| name == format!("{listener}:{run}"));
        let run = self.run.filter(|_| !is_run_named).map(|run| format!("run {run}"));
        let pid = self.pid.map(|pid| format!("pid {pid}"));
        let place = place.filter(|place| *place != name);
        let details: Vec<String> = [run, pid, place].into_iter().flatten().collect();
        if details.is_empty() { name } else { format!("{name} ({})", details.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(attributes: &[(&str, ResourceValue)]) -> Resource {
        Resource::new(attributes.iter().map(|(key, value)| ((*key).to_owned(), value.clone())))
    }

    fn named(protocol: &str, listener: &str, peer: &str, attributes: &[(&str, ResourceValue)]) -> (AgentName, String) {
        let resource = resource(attributes);
        let facts = AgentFacts::of(resource.attributes());
        (facts.name(protocol, listener, peer), facts.in_words(protocol, listener, peer))
    }

    #[test]
    fn an_agent_is_called_by_the_first_name_that_it_has() {
        let own = |name: &str, words: &str| (AgentName::Own(name.to_owned()), words.to_owned());
        let text = ResourceValue::from;
        let service = ("service.name", text("shop"));
        let program = ("process.executable.name", text("puma"));
        let pid = ("process.pid", ResourceValue::U64(7));
        let run = ("bytefrog.run.id", ResourceValue::U64(3));
        let peer = "192.0.2.7:4711";
        let ruby = named("rbkit", "ruby", peer, &[program.clone(), pid.clone()]);
        assert_eq!(ruby, own("puma", "puma (pid 7, 192.0.2.7:4711)"));
        let span = named("datadog", "spans", peer, &[program, service.clone(), pid]);
        assert_eq!(span, own("shop", "shop (pid 7, 192.0.2.7)"));
        assert_eq!(named("bytefrog", "java", peer, std::slice::from_ref(&run)), own("java:3", "java:3 (192.0.2.7)"));
        let project = [run.clone(), ("bytefrog.project.id", ResourceValue::I64(5))];
        assert_eq!(named("bytefrog", "java", peer, &project), own("project 5", "project 5 (run 3, 192.0.2.7)"));
        assert_eq!(named("bytefrog", "java", peer, &[run, service]), own("shop", "shop (run 3, 192.0.2.7)"));
        let host = ("host.name", text("web-1"));
        assert_eq!(named("zico", "zorka", peer, std::slice::from_ref(&host)), own("web-1", "web-1"));
        let (image, site) = (("endless.image", text("eos")), ("endless.site.city", text("Rio")));
        assert_eq!(named("endless", "pcs", peer, &[image, site]).0, AgentName::Own("eos, city=Rio".into()));
        let machine = ("endless.machine.id", text("0a0b"));
        assert_eq!(named("endless", "pcs", peer, &[machine]).0, AgentName::Own("0a0b".into()));
    }

    #[test]
    fn an_agent_without_a_name_is_called_by_its_address_which_stands_once() {
        let address = |name: &str, words: &str| (AgentName::Address(name.to_owned()), words.to_owned());
        assert_eq!(named("datadog", "spans", "192.0.2.7:4711", &[]), address("192.0.2.7", "192.0.2.7"));
        assert_eq!(named("datadog", "spans", "[2001:db8::7]:1", &[]), address("2001:db8::7", "2001:db8::7"));
        assert_eq!(named("datadog", "decode", "a/wire.bin", &[]), address("a/wire.bin", "datadog"));
        assert_eq!(named("datadog", "spans", "", &[]), address("spans", "datadog"));
        let empty = ("service.name", ResourceValue::from(""));
        assert_eq!(named("datadog", "spans", "192.0.2.7:4711", &[empty]).0.into_text(), "192.0.2.7");
    }

    #[test]
    fn a_machine_is_one_agent_whatever_its_uploads_and_its_address_are() {
        let fingerprint = |protocol, peer: &str, attributes: &[(&str, ResourceValue)]| {
            let origin = Origin::new(protocol, "pcs".into(), peer.into(), 1);
            AgentIdentity::of(&origin, &resource(attributes)).fingerprint()
        };
        let upload = |number| ("endless.send_number", ResourceValue::I64(number));
        let machine = |id: &str| ("endless.machine.id", ResourceValue::from(id));
        let first = fingerprint("endless", "192.0.2.7:1", &[machine("a"), upload(1)]);
        assert_eq!(fingerprint("endless", "192.0.2.9:1", &[machine("a"), upload(2)]), first);
        assert_ne!(fingerprint("endless", "192.0.2.7:1", &[machine("b"), upload(1)]), first);
        let without_id = fingerprint("endless", "192.0.2.7:1", &[upload(1)]);
        assert_eq!(fingerprint("endless", "192.0.2.7:2", &[upload(2)]), without_id);
        assert_ne!(fingerprint("endless", "192.0.2.8:1", &[upload(1)]), without_id);
        let jvm = |session: &str| [("host.id", ResourceValue::from("u")), ("zico.session.id", session.into())];
        assert_eq!(fingerprint("zico", "192.0.2.7:1", &jvm("s1")), fingerprint("zico", "192.0.2.8:1", &jvm("s2")));
    }
}
