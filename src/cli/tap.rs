//! `tributary tap`: a live view of a running daemon, through its admin endpoint.

use std::io::{self, Write};

use http_body_util::{BodyExt, Limited};
use hyper::{Method, StatusCode};

use crate::admin::KEEP_ALIVE;
use tributary_event::Kind;

use super::endpoint::{Endpoint, EndpointArguments};
use super::{CommandLineError, OutputFormat, block_on, printed};

/// The most bytes of an error response that are read.
const MAX_ERROR_BYTES: usize = 16 * 1024;

/// Watch a running daemon live: its events, or annotated bytes of its connections
///
/// A tap delays no connection: if its reader is too slow, events are dropped, and a line says how many. With --wire, open
/// connections are shown from their next message on.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tributary tap                                all events of the daemon on this machine
  tributary tap --listener spans --kind loss   losses only
  tributary tap --listener java --wire         every message: offset, bytes, field, value
  tributary tap --admin collector:9464 --token-file admin-token --ca ca.pem")]
pub(super) struct Arguments {
    #[command(flatten)]
    endpoint: EndpointArguments,
    /// Only this listener
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Only events of this kind; can be repeated
    #[arg(long = "kind", value_name = "KIND", value_parser = kind, conflicts_with = "wire")]
    kinds: Vec<Kind>,
    /// Annotated bytes and losses instead of events
    #[arg(long, conflicts_with = "format")]
    wire: bool,
    /// Format of events
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    format: OutputFormat,
}

fn kind(name: &str) -> Result<Kind, String> {
    let known = Kind::ALL.into_iter().find(|kind| kind.as_str() == name);
    known.ok_or_else(|| format!("the kinds are {}", Kind::ALL.map(Kind::as_str).join(", ")))
}

pub(super) fn run(arguments: &Arguments) -> Result<(), CommandLineError> {
    block_on(follow(&arguments.endpoint.endpoint()?, arguments))?
}

/// Writes the live view to stdout until the daemon ends or the reader closes stdout.
async fn follow(endpoint: &Endpoint, arguments: &Arguments) -> Result<(), CommandLineError> {
    let response = endpoint.request(Method::GET, &format!("/tap?{}", query(arguments))).await?;
    let (status, mut body) = (response.status(), response.into_body());
    if status != StatusCode::OK {
        let why = Limited::new(body, MAX_ERROR_BYTES).collect().await.map(|body| body.to_bytes());
        return Err(endpoint.refused(status, &why.unwrap_or_default()));
    }
    let mut stdout = io::stdout();
    // The stream of a daemon that is killed ends with an error.
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(data) = frame.into_data() else { continue };
        if *data == *KEEP_ALIVE {
            continue;
        }
        if let Err(error) = stdout.write_all(&data).and_then(|()| stdout.flush()) {
            return printed(Err(error));
        }
    }
    Ok(())
}

fn query(arguments: &Arguments) -> String {
    let Arguments { listener, kinds, wire, format, .. } = arguments;
    let mut query = match wire {
        true => "wire".to_owned(),
        false => format!("format={}", tributary_sink::encode::Format::from(*format).as_str()),
    };
    // Names of listeners need no escapes. No listener has another name.
    let is_plain = |name: &&String| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if let Some(name) = listener {
        query.push_str("&listener=");
        query.push_str(Some(name).filter(is_plain).map_or("?", |name| name));
    }
    kinds.iter().for_each(|kind| query.push_str(&format!("&kind={}", kind.as_str())));
    query
}
