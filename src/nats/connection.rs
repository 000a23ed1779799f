//! A connection to a server of NATS. It is not repaired: when it is lost, its user makes another one, and the
//! credentials are read again.

use std::error::Error as _;
use std::future::ready;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event};
use tokio_util::sync::CancellationToken;

use super::{NatsError, Servers};

/// How often a silent server is asked whether it is there.
const PING_INTERVAL: Duration = Duration::from_secs(10);

/// A connection, and the last error that the server has reported on it.
#[derive(Clone, Debug)]
pub struct NatsConnection {
    /// The client of this connection.
    pub client: Client,
    /// Cancelled when the connection is lost.
    pub lost: CancellationToken,
    said: Arc<Mutex<Option<String>>>,
}

impl NatsConnection {
    /// Connects to one of the servers. `user` is the name that the servers show.
    ///
    /// # Errors
    /// [`NatsError::Blocked`]: the credentials are not valid. [`NatsError::Later`]: no server can be reached, or TLS fails.
    pub async fn open(user: &str, options: &Servers) -> Result<NatsConnection, NatsError> {
        let (lost, said) = (CancellationToken::new(), Arc::<Mutex<Option<String>>>::default());
        let (on_loss, on_error) = (lost.clone(), said.clone());
        let connect = authenticated(options).map_err(NatsError::Blocked)?;
        let mut connect = connect
            .name(format!("tributary, {user}"))
            .connection_timeout(options.connect_timeout)
            .request_timeout(Some(options.request_timeout))
            .ping_interval(PING_INTERVAL)
            // Each server once. The client makes these attempts after a loss too; their connection is not used.
            .max_reconnects(options.servers.len())
            .reconnect_delay_callback(|_| Duration::ZERO)
            .require_tls(options.requires_tls())
            .event_callback(move |event| {
                match event {
                    Event::Disconnected | Event::Closed => on_loss.cancel(),
                    Event::ServerError(error) => {
                        *on_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                    }
                    _ => {}
                }
                ready(())
            });
        if let Some(ca) = &options.tls.ca {
            connect = connect.add_root_certificates(ca.clone());
        }
        if let Some((cert, key)) = &options.tls.identity {
            connect = connect.add_client_certificate(cert.clone(), key.clone());
        }
        let servers = options.shown();
        let addresses: Vec<String> = options.servers.iter().map(ToString::to_string).collect();
        let client = connect.connect(addresses).await.map_err(|error| {
            let mut why = error.to_string();
            let mut cause = error.source().and_then(std::error::Error::source);
            while let Some(error) = cause {
                why = format!("{why}: {error}");
                cause = error.source();
            }
            match error.kind() {
                ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                    NatsError::Blocked(format!("{servers} does not accept the credentials: {why}"))
                }
                _ => NatsError::Later(format!("cannot connect to {servers}: {why}")),
            }
        })?;
        Ok(NatsConnection { client, lost, said })
    }

    /// Whether it can be used.
    pub fn is_open(&self) -> bool {
        !self.lost.is_cancelled() && self.client.connection_state() == State::Connected
    }

    /// Whether this is the same connection, and not another one to the same servers.
    pub fn is_same(&self, other: &NatsConnection) -> bool {
        Arc::ptr_eq(&self.said, &other.said)
    }

    /// The same fault; if another attempt can succeed, with the last error that the server has sent on this connection.
    pub fn explain(&self, fault: NatsError) -> NatsError {
        match fault {
            NatsError::Later(why) => NatsError::Later(self.explained(&why)),
            blocked => blocked,
        }
    }

    /// A fault, with the last error that the server has sent on this connection.
    pub fn explained(&self, fault: &str) -> String {
        match &*self.said.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(said) => format!("{fault}; the server said: {said}"),
            None => fault.to_owned(),
        }
    }
}

/// Options with the credentials, which are read now.
fn authenticated(options: &Servers) -> Result<ConnectOptions, String> {
    let read =
        |path: &Path| std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
    let mut connect = ConnectOptions::new();
    if let Some(path) = &options.credentials_file {
        let invalid = |error| format!("{} has no credentials of NATS: {error}", path.display());
        connect = connect.credentials(&read(path)?).map_err(invalid)?;
    }
    if let Some(path) = &options.token_file {
        connect = connect.token(read(path)?.trim().to_owned());
    }
    Ok(connect)
}
