//! `[listeners.NAME]`: the addresses that agents connect to, and their protocols.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use super::conflicts::{Addresses, check_name};
use crate::endless_store::SeenOptions;
use tributary_bytefrog as bytefrog;
use tributary_datadog as datadog;
use tributary_datadog_agent as datadog_agent;
use tributary_endless as endless;
use tributary_event::{Identity, ResourceValue};
use tributary_nats::BucketOptions;
use tributary_options::{Bounds, Section, describe};
use tributary_otlp as otlp;
use tributary_pipeline::AGENT_REGISTRY_BYTES;
use tributary_protocol::Protocol;
use tributary_rbkit as rbkit;
use tributary_system::kept_files;
use tributary_transport::nats::options::NatsOptions;
use tributary_transport::options::{HttpOptions, ListenerOptions};
use tributary_zico as zico;
use tributary_zico_store::StoreOptions;

/// The memory of a session of an agent that daemons share, beside that of its definitions: its key, and counters of its agent.
const SHARED_SESSION_BYTES: u64 = 512;

/// One listener.
#[derive(Clone, Debug, PartialEq)]
pub struct ListenerConfig {
    /// Its name, which appears in `origin.listener`. 1 to 64 characters of `A-Z a-z 0-9 _ -`.
    pub name: String,
    /// The address that it binds. Port 0: the system chooses a port. Default: loopback, and the port that agents of the
    /// protocol use. None for rbkit, which connects to its agents, and nats.
    pub listen: Option<SocketAddr>,
    /// The options of every listener.
    pub options: ListenerOptions,
    /// The protocol and its options.
    pub protocol: ProtocolOptions,
}

/// A protocol and its options.
#[derive(Clone, Debug, PartialEq)]
pub enum ProtocolOptions {
    /// Bytefrog and Code Pulse agents.
    Bytefrog(bytefrog::Options),
    /// Datadog-style binary spans.
    Datadog(datadog::Options),
    /// Datadog tracers, over HTTP.
    DatadogAgent(datadog_agent::Options, HttpOptions),
    /// Endless OS metrics, over HTTP.
    Endless(endless::Options, SeenOptions, HttpOptions),
    /// Ruby processes, which the listener connects to.
    Rbkit(rbkit::Options),
    /// Zorka agents, over HTTP.
    Zico(zico::Options, StoreOptions, HttpOptions),
    /// OpenTelemetry SDKs and Collectors, over HTTP and gRPC.
    Otlp(otlp::Options, HttpOptions),
    /// Events of other collectors, from a stream of NATS JetStream.
    Nats(Box<NatsOptions>),
}

/// An address beside that of `listen`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FurtherAddress {
    /// A path for connections, with the permissions of the socket.
    Unix(PathBuf, u32),
    /// A path for datagrams.
    UnixDatagram(PathBuf, u32),
    /// An address for datagrams.
    Udp(SocketAddr),
    /// An address for connections.
    Tcp(SocketAddr),
}

impl fmt::Display for FurtherAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FurtherAddress::Unix(path, _) | FurtherAddress::UnixDatagram(path, _) => write!(f, "{}", path.display()),
            FurtherAddress::Udp(address) => write!(f, "UDP {address}"),
            FurtherAddress::Tcp(address) => write!(f, "{address}"),
        }
    }
}

impl ProtocolOptions {
    /// The addresses that it binds beside that of `listen`.
    pub fn further_addresses(&self) -> Vec<FurtherAddress> {
        let options = match self {
            ProtocolOptions::DatadogAgent(options, _) => options,
            ProtocolOptions::Otlp(options, _) => return options.grpc.map(FurtherAddress::Tcp).into_iter().collect(),
            _ => return Vec::new(),
        };
        let mode = options.unix_mode.0;
        let path = |path: &PathBuf| Some(path.clone()).filter(|path| !path.as_os_str().is_empty());
        let unix = path(&options.unix).map(|path| FurtherAddress::Unix(path, mode));
        let datagrams = path(&options.dogstatsd.unix).map(|path| FurtherAddress::UnixDatagram(path, mode));
        let udp = options.dogstatsd.listen.map(FurtherAddress::Udp);
        [unix, datagrams, udp].into_iter().flatten().collect()
    }

    /// The protocol.
    pub fn protocol(&self) -> Protocol {
        match self {
            ProtocolOptions::Bytefrog(_) => Protocol::Bytefrog,
            ProtocolOptions::Datadog(_) => Protocol::Datadog,
            ProtocolOptions::DatadogAgent(..) => Protocol::DatadogAgent,
            ProtocolOptions::Endless(..) => Protocol::Endless,
            ProtocolOptions::Rbkit(_) => Protocol::Rbkit,
            ProtocolOptions::Zico(..) => Protocol::Zico,
            ProtocolOptions::Otlp(..) => Protocol::Otlp,
            ProtocolOptions::Nats(_) => Protocol::Nats,
        }
    }

    /// The bucket of NATS that it shares with other daemons.
    pub(crate) fn bucket(&self) -> Option<&BucketOptions> {
        match self {
            ProtocolOptions::Endless(_, seen, _) => seen.seen.as_ref(),
            ProtocolOptions::Zico(_, store, _) => store.state.as_ref(),
            _ => None,
        }
    }

    /// Reads the options of `protocol`.
    fn read(protocol: Protocol, section: &mut Section<'_>) -> Self {
        match protocol {
            Protocol::Bytefrog => ProtocolOptions::Bytefrog(bytefrog::Options::read(section)),
            Protocol::Datadog => ProtocolOptions::Datadog(datadog::Options::read(section)),
            Protocol::DatadogAgent => {
                ProtocolOptions::DatadogAgent(datadog_agent::Options::read(section), HttpOptions::read(section))
            }
            Protocol::Endless => ProtocolOptions::Endless(
                endless::Options::read(section),
                SeenOptions::read(section),
                HttpOptions::read(section),
            ),
            Protocol::Rbkit => ProtocolOptions::Rbkit(rbkit::Options::read(section)),
            Protocol::Zico => ProtocolOptions::Zico(
                zico::Options::read(section),
                StoreOptions::read(section),
                HttpOptions::read(section),
            ),
            Protocol::Otlp => ProtocolOptions::Otlp(otlp::Options::read(section), HttpOptions::read(section)),
            Protocol::Nats => ProtocolOptions::Nats(Box::new(NatsOptions::read(section))),
        }
    }
}

impl ListenerConfig {
    /// Whether heap dumps come as objects and as samples of their sums.
    pub(super) fn has_both_heaps(&self) -> bool {
        matches!(&self.protocol, ProtocolOptions::Rbkit(options) if options.heap == rbkit::HeapDumps::Both)
    }

    /// Whether its events have other listeners as their origin, and other protocols.
    pub fn has_foreign_events(&self) -> bool {
        matches!(self.protocol, ProtocolOptions::Nats(_))
    }

    /// Whether the daemon runs without it if its address is in use: it is the built-in one at the address of Datadog's agent, which
    /// may run on the machine.
    pub(crate) fn is_optional(&self) -> bool {
        let default = SocketAddr::from((Ipv4Addr::LOCALHOST, default_port(Protocol::DatadogAgent)));
        matches!(self.protocol, ProtocolOptions::DatadogAgent(..))
            && self.name == "tracers"
            && self.listen == Some(default)
    }

    /// Declares the memory that the listener can use.
    pub(super) fn declare(&self, bounds: &mut Bounds) {
        let of = format!("listeners.{}", self.name);
        self.options.declare(&of, bounds);
        bounds.add(&of, "recently seen agents", AGENT_REGISTRY_BYTES);
        match &self.protocol {
            ProtocolOptions::Bytefrog(_) | ProtocolOptions::Datadog(_) | ProtocolOptions::Rbkit(_) => {
                bounds.need(self.options.most_buffered_bytes());
            }
            ProtocolOptions::DatadogAgent(options, http) => {
                http.declare(&of, bounds);
                options.declare(&of, bounds);
                if options.keep_profiles.is_on() {
                    let bytes = kept_files::list_bytes(options.keep_profiles.max_bytes);
                    bounds.add(&of, "the list of files that are kept (keep_profiles.max_bytes)", bytes);
                }
            }
            ProtocolOptions::Endless(options, seen, http) => {
                http.declare(&of, bounds);
                options.declare(&of, bounds);
                seen.declare(&of, bounds);
            }
            ProtocolOptions::Zico(options, store, http) => {
                http.declare(&of, bounds);
                options.declare(&of, bounds);
                store.declare(&of, bounds);
                if store.state.is_some() {
                    let what = format!("{} sessions of agents that daemons share (max_sessions)", options.max_sessions);
                    bounds.add(&of, what, options.max_sessions as u64 * SHARED_SESSION_BYTES);
                }
            }
            ProtocolOptions::Otlp(options, http) => {
                http.declare(&of, bounds);
                options.declare(&of, bounds);
            }
            ProtocolOptions::Nats(options) => options.declare(&of, bounds),
        }
    }
}

/// Reads all listeners, in the order of the file. `bound` has the addresses that others bind; `labels` are the attributes of
/// every listener's events.
pub(super) fn read(
    root: &mut Section<'_>,
    bound: &mut Addresses,
    labels: &[(String, ResourceValue)],
) -> Vec<ListenerConfig> {
    let listeners = root.named_sections("listeners", |name, section| listener(name, section, bound));
    let mut listeners: Vec<_> = listeners.into_iter().flatten().collect();
    for listener in listeners.iter_mut().filter(|listener| !labels.is_empty() && !listener.has_foreign_events()) {
        let own = listener.options.identity.take();
        listener.options.identity = Some(Arc::new(Identity::labelled(labels, own.as_deref())));
    }
    listeners
}

/// None when the section has no valid `protocol`.
fn listener(name: &str, section: &mut Section<'_>, bound: &mut Addresses) -> Option<ListenerConfig> {
    check_name(name, section);
    section.about(
        "The protocol: \"bytefrog\", \"datadog\", \"datadog_agent\", \"endless\", \"otlp\", \"rbkit\", \"zico\", or \"nats\" for events of other collectors.",
    );
    let protocol = section.required_choice("protocol", &Protocol::ALL.map(|protocol| (protocol.as_str(), protocol)));
    let listen = match protocol {
        Some(Protocol::Rbkit | Protocol::Nats) => None,
        Some(of @ (Protocol::DatadogAgent | Protocol::Otlp)) => {
            section.about(match of {
                Protocol::DatadogAgent => {
                    "The IP address and port that it binds. The default is that of Datadog's agent. Empty: none, see `unix`. With port 0 \
                     the system chooses a port. Two listeners cannot bind the same address."
                }
                _ => {
                    "The IP address and port that it binds. The default is that of OTLP over HTTP. Empty: none, see `grpc`. With port 0 \
                     the system chooses a port. Two listeners cannot bind the same address."
                }
            });
            section.address_or_none("listen", SocketAddr::from((Ipv4Addr::LOCALHOST, default_port(of))))
        }
        _ => {
            let port = protocol.map_or(0, default_port);
            section.about(
                "The IP address and port that it binds. The default is loopback, and the port that agents of the protocol use. With \
                 port 0 the system chooses a port. Two listeners cannot bind the same address.",
            );
            Some(section.address("listen", SocketAddr::from((Ipv4Addr::LOCALHOST, port))))
        }
    };
    let options = match protocol {
        // Its connections are not those of agents, and its events stay as they are.
        Some(Protocol::Nats) => ListenerOptions::default(),
        protocol => ListenerOptions::read(section, protocol),
    };
    section.explain_keys(protocol.map(misplaced_keys).unwrap_or_default());
    let Some(protocol) = protocol.map(|protocol| ProtocolOptions::read(protocol, section)) else {
        section.accept_other_keys();
        return None;
    };
    let (key, listen) = match &protocol {
        ProtocolOptions::Rbkit(options) => ("listen_publish", options.listen_publish),
        _ => ("listen", listen),
    };
    if let Some(listen) = listen
        && let Some((owner, other)) = bound.claim(listen, format!("listener `{name}`"))
    {
        let message = format!("listener `{name}` cannot listen on {listen}: {owner} listens on {other}");
        section.error(key, message, Some("set another port".into()));
    }
    for further in protocol.further_addresses() {
        if let FurtherAddress::Tcp(address) = further
            && let Some((owner, other)) = bound.claim(address, format!("listener `{name}`"))
        {
            let message = format!("listener `{name}` cannot listen on {address}: {owner} listens on {other}");
            section.error("grpc", message, Some("set another port, or \"\"".into()));
        }
    }
    let other_keys = match &protocol {
        ProtocolOptions::DatadogAgent(..) => Some("unix or dogstatsd"),
        ProtocolOptions::Otlp(..) => Some("grpc"),
        _ => None,
    };
    if let Some(keys) = other_keys
        && listen.is_none()
        && protocol.further_addresses().is_empty()
    {
        section.error("listen", "the listener has no address", Some(format!("set listen, {keys}")));
    }
    Some(ListenerConfig { name: name.to_owned(), listen, options, protocol })
}

/// A key of another protocol, and a sentence that says whose it is.
type MisplacedKey = (String, String);

/// The keys of other protocols.
fn misplaced_keys(of: Protocol) -> &'static [MisplacedKey] {
    // They are the same for every listener of a protocol.
    static KEYS: LazyLock<Vec<(Protocol, Vec<MisplacedKey>)>> =
        LazyLock::new(|| Protocol::ALL.map(|protocol| (protocol, read_misplaced_keys(protocol))).to_vec());
    KEYS.iter().find(|(protocol, _)| *protocol == of).map_or(&[], |(_, keys)| keys)
}

fn read_misplaced_keys(of: Protocol) -> Vec<MisplacedKey> {
    let others = Protocol::ALL.into_iter().filter(|protocol| *protocol != of);
    let mut keys: Vec<_> = others
        .flat_map(|protocol| keys_of(protocol).into_iter().map(move |key| (key, format!("it is a key of {protocol}"))))
        .collect();
    if of == Protocol::Nats {
        let help = "the daemon connects to the servers: write servers = [\"nats://HOST:4222\"]";
        keys.push(("listen".to_owned(), help.to_owned()));
    }
    if of == Protocol::Rbkit {
        let help =
            "the daemon connects to Ruby processes: write agents = [{ publish = \"HOST:PORT\" }], or listen_publish";
        keys.push(("listen".to_owned(), help.to_owned()));
    }
    keys
}

/// The keys that the options of a protocol read.
fn keys_of(protocol: Protocol) -> Vec<String> {
    let settings = describe("", |section| drop(ProtocolOptions::read(protocol, section))).settings;
    let first = |key: &str| key.split('.').next().unwrap_or(key).to_owned();
    settings.iter().map(|setting| first(&setting.path())).collect()
}

/// The port that agents of the protocol connect to by default.
fn default_port(protocol: Protocol) -> u16 {
    match protocol {
        // Not used: the listener connects to port 5555 of the Ruby processes.
        Protocol::Rbkit => 5555,
        // Not used either.
        Protocol::Nats => 4222,
        Protocol::Bytefrog => 8765,
        Protocol::Datadog => 8136,
        Protocol::DatadogAgent => 8126,
        Protocol::Endless => 8080,
        Protocol::Zico => 8640,
        Protocol::Otlp => 4318,
    }
}
