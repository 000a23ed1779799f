//! The sockets of a listener beside that of `listen`: Unix sockets, and those of datagrams.

use std::io;

use socket2::{Socket, Type};
use tracing::error;

use crate::config::{FurtherAddress, ListenerConfig, ProtocolOptions};
use tributary_transport::datagrams::{self, DatagramListener};
use tributary_transport::options::ListenerOptions;
use tributary_transport::port_holder;
use tributary_transport::tcp::{self, Listener};
use tributary_transport::unix_socket;

use super::StartError;

/// A socket beside that of `listen`.
#[derive(Debug)]
pub(super) struct FurtherSocket {
    pub(super) address: FurtherAddress,
    socket: Socket,
}

impl FurtherSocket {
    /// Another handle of it.
    pub(super) fn second(&self) -> io::Result<FurtherSocket> {
        Ok(FurtherSocket { address: self.address.clone(), socket: self.socket.try_clone()? })
    }
}

/// Opens the sockets of a listener beside that of `listen`: those of `known` with the same address, or new ones.
pub(super) fn open(
    name: &str,
    protocol: &ProtocolOptions,
    known: &[&FurtherSocket],
) -> Result<Vec<FurtherSocket>, StartError> {
    let open_one = |address: FurtherAddress| {
        let open = || match known.iter().find(|known| known.address == address) {
            Some(known) => known.second(),
            None => Ok(FurtherSocket {
                socket: match &address {
                    FurtherAddress::Udp(address) => datagrams::bind(*address)?,
                    FurtherAddress::Tcp(address) => {
                        tcp::bind(*address).map_err(|error| port_holder::explained(*address, &error))?
                    }
                    FurtherAddress::UnixDatagram(path, mode) => unix_socket::bind(path, Type::DGRAM, *mode)?,
                    FurtherAddress::Unix(path, mode) => unix_socket::bind(path, Type::STREAM, *mode)?,
                },
                address: address.clone(),
            }),
        };
        open().map_err(|source| StartError { part: format!("listener {name} on {address}"), source })
    };
    protocol.further_addresses().into_iter().map(open_one).collect()
}

/// The listeners of these sockets: for connections, and for datagrams.
pub(super) fn served(sockets: Vec<FurtherSocket>, config: &ListenerConfig) -> (Vec<Listener>, Vec<DatagramListener>) {
    let (mut connections, mut datagrams) = (Vec::new(), Vec::new());
    for FurtherSocket { address, socket } in sockets {
        let served = match address {
            // Who may open a Unix socket is decided by the file system.
            FurtherAddress::Unix(..) => {
                let options = ListenerOptions { tls: None, ..config.options.clone() };
                Listener::on(socket, &options).map(|listener| connections.push(listener))
            }
            FurtherAddress::Tcp(_) => Listener::on(socket, &config.options).map(|listener| connections.push(listener)),
            FurtherAddress::Udp(_) | FurtherAddress::UnixDatagram(..) => {
                DatagramListener::on(socket).map(|listener| datagrams.push(listener))
            }
        };
        if let Err(error) = served {
            error!(listener = config.name, %error, "a socket cannot be served");
        }
    }
    (connections, datagrams)
}
