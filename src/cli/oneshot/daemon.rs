//! An agent of a running daemon: its events through a live view, and commands through the admin endpoint.

use http_body_util::{BodyExt, Limited};
use hyper::{Method, StatusCode};
use serde_json::Value;

use super::super::CommandLineError;
use super::super::endpoint::{Endpoint, EndpointArguments};
use super::feed::{Feed, FeedPart, Identity, host};
use tributary_codec::terminal;
use tributary_event::ResourceValue;
use tributary_protocol::Protocol;
use tributary_rbkit as rbkit;
use tributary_stored::json;

/// The most bytes of an error response that are read.
const MAX_ERROR_BYTES: usize = 16 * 1024;
/// The attributes of resources that distinguish agents of one listener, where the protocol numbers them.
const RUN: &str = "bytefrog.run.id";
const PID: &str = "process.pid";

/// The arguments that name an agent of a running daemon.
#[derive(Debug, clap::Args)]
pub(super) struct AgentArguments {
    /// The agent of a running daemon, by its id in `tributary agents`
    #[arg(value_name = "AGENT", required = true)]
    agent: Option<String>,
    #[command(flatten)]
    endpoint: EndpointArguments,
}

impl AgentArguments {
    /// Asks the daemon for the agent.
    pub(super) async fn find(&self) -> Result<SeenAgent, CommandLineError> {
        SeenAgent::find(self.endpoint.endpoint()?, self.agent.as_deref().unwrap_or_default()).await
    }
}

/// An agent that a daemon has seen.
pub(super) struct SeenAgent {
    endpoint: Endpoint,
    id: String,
    pub(super) protocol: Protocol,
    /// What the daemon knows of it.
    known: Value,
}

impl SeenAgent {
    /// Asks the daemon for the agent with this id.
    async fn find(endpoint: Endpoint, id: &str) -> Result<SeenAgent, CommandLineError> {
        let (status, body) = endpoint.ask(Method::GET, "/agents").await?;
        if status != StatusCode::OK {
            return Err(endpoint.refused(status, &body));
        }
        let agents: Vec<Value> = serde_json::from_slice(&body).map_err(|error| {
            CommandLineError::Failed(format!("the daemon's list of agents cannot be read: {error}"))
        })?;
        let ids: Vec<&str> = agents.iter().filter_map(|agent| agent["id"].as_str()).collect();
        let Some(known) = agents.iter().find(|agent| agent["id"] == id) else {
            let there: String = ids.iter().map(|id| format!("\n  there is {}", terminal::shown(id))).collect();
            let there = if there.is_empty() { "; it has seen no agents".to_owned() } else { there };
            return Err(CommandLineError::Failed(format!("the daemon has no agent {id:?}{there}")));
        };
        let protocol = known["protocol"].as_str().and_then(Protocol::by_name);
        let protocol =
            protocol.ok_or_else(|| CommandLineError::Failed(format!("the protocol of {id} is unknown here")))?;
        Ok(SeenAgent { endpoint, id: id.to_owned(), protocol, known: known.clone() })
    }

    /// Its id.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Its id, and what operators call it.
    pub(super) fn name(&self) -> String {
        let name = self.known["name"].as_str().filter(|name| *name != self.id);
        let pid = self.known["pid"].as_u64().map(|pid| format!("pid {pid}"));
        let words: Vec<String> = name.map(str::to_owned).into_iter().chain(pid).collect();
        if words.is_empty() { self.id.clone() } else { format!("{} ({})", self.id, words.join(", ")) }
    }

    /// Whether this is true of it, as far as the daemon knows.
    pub(super) fn is(&self, key: &str) -> Option<bool> {
        self.known[key].as_bool()
    }

    /// Opens a live view of its events of these kinds, and of losses.
    pub(super) async fn feed(&self, kinds: &[&str]) -> Result<Feed, CommandLineError> {
        let listener = self.known["listener"].as_str().unwrap_or_default();
        let kinds: String = kinds.iter().map(|kind| format!("&kind={kind}")).collect();
        let response =
            self.endpoint.request(Method::GET, &format!("/tap?listener={listener}&kind=loss{kinds}")).await?;
        let (status, mut body) = (response.status(), response.into_body());
        if status != StatusCode::OK {
            let why = Limited::new(body, MAX_ERROR_BYTES).collect().await.map(|body| body.to_bytes());
            return Err(self.endpoint.refused(status, &why.unwrap_or_default()));
        }
        let (parts, feed) = Feed::new(Some(self.identity()));
        tokio::spawn(async move {
            // The stream of a daemon that is killed ends with an error.
            while let Some(Ok(frame)) = body.frame().await {
                if let Ok(data) = frame.into_data()
                    && !parts.send(FeedPart::Lines(data)).await
                {
                    return;
                }
            }
        });
        Ok(feed)
    }

    /// Sends it a command; returns when the daemon has answered.
    pub(super) async fn command(&self, command: rbkit::RbkitCommand) -> Result<(), CommandLineError> {
        let target = format!("/agents/{}/commands/{}", self.id, command.as_str());
        let (status, body) = self.endpoint.ask(Method::POST, &target).await?;
        if status.is_success() { Ok(()) } else { Err(self.endpoint.refused(status, &body)) }
    }

    fn identity(&self) -> Identity {
        let known = &self.known;
        let listener = known["listener"].as_str().unwrap_or_default().to_owned();
        let mut resource = json::resource(&known["resource"].to_string()).unwrap_or_default();
        let mut address = known["peer"].as_str().map(|peer| host(peer).to_owned());
        // A number is enough; other attributes become known later.
        for (key, number) in [(RUN, &known["run"]), (PID, &known["pid"])] {
            if let Some(number) = number.as_u64() {
                resource = vec![(key.to_owned(), ResourceValue::U64(number))];
                if key == RUN {
                    address = None;
                }
            }
        }
        Identity { listener, address, resource }
    }
}
