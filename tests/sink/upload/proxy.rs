//! A TCP proxy in front of a server, which stalls or cuts connections.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// What the proxy does to requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    None,
    /// Closes both connections after this many bytes of a PUT, its head included.
    CutPut(usize),
    /// Passes nothing on to the server until this changes.
    Stall,
    /// Passes on what the server has to say to a PUT only when this changes.
    StallAnswerOfPut,
}

pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    fault: Fault,
    /// The number of PUTs that were started.
    puts: u64,
}

impl Proxy {
    pub(super) fn start(server: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Mutex::new(State { fault: Fault::None, puts: 0 });
        let shared = Arc::new(Shared { server, state, changed: Condvar::new() });
        let of_connections = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let shared = of_connections.clone();
                thread::spawn(move || shared.connect(client.unwrap()));
            }
        });
        Proxy { address, shared }
    }

    pub(super) fn set(&self, fault: Fault) {
        self.shared.state.lock().unwrap().fault = fault;
        self.shared.changed.notify_all();
    }

    pub(super) fn puts(&self) -> u64 {
        self.shared.state.lock().unwrap().puts
    }
}

impl Shared {
    fn connect(self: Arc<Self>, client: TcpStream) {
        // A server that is stopped refuses: so does the proxy then, by closing.
        let Ok(server) = TcpStream::connect(self.server) else { return };
        let is_put = Arc::new(Mutex::new(false));
        let (to_client, from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let (back, is_put_back) = (self.clone(), is_put.clone());
        thread::spawn(move || back.pass_answers(from_server, to_client, &is_put_back));
        self.pass_requests(client, server, &is_put);
    }

    fn pass_requests(&self, mut client: TcpStream, mut server: TcpStream, is_put: &Mutex<bool>) {
        let mut block = [0; 4096];
        let mut sent = 0;
        while let Ok(read @ 1..) = client.read(&mut block) {
            // A client sends a request after the answer to the one before it, so a head begins a block.
            let is_head = [&b"GET "[..], b"HEAD", b"PUT ", b"POST", b"DELE"].contains(&&block[..read.min(4)]);
            if is_head {
                *is_put.lock().unwrap() = block.starts_with(b"PUT ");
                sent = 0;
                if block.starts_with(b"PUT ") {
                    self.state.lock().unwrap().puts += 1;
                }
            }
            let state = self.state.lock().unwrap();
            let fault = self.changed.wait_while(state, |state| state.fault == Fault::Stall).unwrap().fault;
            sent += read;
            match fault {
                Fault::CutPut(most) if *is_put.lock().unwrap() && sent > most => {
                    let _ = server.write_all(&block[..read - (sent - most).min(read)]);
                    break;
                }
                _ if server.write_all(&block[..read]).is_err() => break,
                _ => {}
            }
        }
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    }

    fn pass_answers(&self, mut server: TcpStream, mut client: TcpStream, is_put: &Mutex<bool>) {
        let mut block = [0; 4096];
        while let Ok(read @ 1..) = server.read(&mut block) {
            let of_put = *is_put.lock().unwrap();
            let state = self.state.lock().unwrap();
            let stalls = |state: &mut State| of_put && state.fault == Fault::StallAnswerOfPut;
            drop(self.changed.wait_while(state, stalls).unwrap());
            if client.write_all(&block[..read]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    }
}
