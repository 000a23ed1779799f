//! A real NATS server with JetStream, and a client of its own that looks into streams.
//!
//! `TRIBUTARY_NATS_SERVER` names the program; otherwise `nats-server` is searched in `PATH`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tributary::codec::base64;

use crate::live::PATIENCE;
use crate::live::binary::{end_with_this_thread, free_port, signal, until};

/// The server of one test, on a free port of loopback, with a store of its own. Killed when dropped.
pub struct NatsServer {
    pub port: u16,
    pub directory: tempfile::TempDir,
    child: Child,
    token: Option<String>,
}

/// A message of a stream.
#[derive(Clone, Debug)]
pub struct Stored {
    pub subject: String,
    pub headers: Vec<(String, String)>,
    /// As it is stored.
    pub body: Vec<u8>,
    /// Decompressed.
    pub lines: String,
}

impl Stored {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body, of which bytes that are no text are replaced.
    pub fn lines_or_bytes(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl NatsServer {
    /// Starts a server with JetStream. `None`: there is none on this machine, and the test prints that.
    pub fn start() -> Option<NatsServer> {
        NatsServer::start_with("")
    }

    /// The same with further lines of configuration.
    pub fn start_with(lines: &str) -> Option<NatsServer> {
        NatsServer::on(None, &format!("jetstream {{ store_dir: \"DIR/store\" }}\n{lines}"))
    }

    /// A server with this configuration alone.
    pub fn on(port: Option<u16>, configuration: &str) -> Option<NatsServer> {
        let server = NatsServer::spawn(port, configuration)?;
        server.until_it_answers();
        Some(server)
    }

    /// A server that speaks TLS only, with this configuration alone.
    pub fn on_tls(configuration: &str) -> Option<NatsServer> {
        let server = NatsServer::spawn(None, configuration)?;
        until("the server of NATS greets", || Connection::greeted(server.port));
        Some(server)
    }

    fn spawn(port: Option<u16>, configuration: &str) -> Option<NatsServer> {
        if let Err(error) = Command::new(program()).arg("--version").stdout(Stdio::null()).status() {
            eprintln!("NOT TESTED: {} cannot be run: {error} (apt-get install nats-server)", program());
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let port = port.unwrap_or_else(free_port);
        let place = directory.path().display().to_string();
        std::fs::write(directory.path().join("nats.conf"), configuration.replace("DIR", &place)).unwrap();
        let child = spawn(&directory.path().join("nats.conf"), port);
        let token =
            configuration.split_once("token: ").map(|(_, rest)| rest.split([' ', '\n']).next().unwrap().to_owned());
        Some(NatsServer { port, directory, child, token })
    }

    /// Ends it, as the loss of its process.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it with the same store.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.directory.path().join("nats.conf"), self.port);
        self.until_it_answers();
    }

    /// Stops it from running, or lets it run again: `STOP`, `CONT`.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Creates a stream with this configuration, besides name and subjects.
    pub fn create(&self, stream: &str, subjects: &[&str], more: Value) {
        let mut config = json!({ "name": stream, "subjects": subjects, "retention": "limits", "discard": "new",
            "storage": "file", "num_replicas": 1, "duplicate_window": 120_000_000_000_u64, "max_msgs": -1, "max_bytes": -1 });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let created = self.api(&format!("STREAM.CREATE.{stream}"), &config);
        assert!(created["error"].is_null(), "{created}");
    }

    /// The configuration of a stream with other values. It is created again if it was deleted.
    pub fn update(&self, stream: &str, changes: Value) {
        let mut config = self.api(&format!("STREAM.INFO.{stream}"), &json!({}))["config"].clone();
        config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        let updated = self.api(&format!("STREAM.UPDATE.{stream}"), &config);
        assert!(updated["error"].is_null(), "{updated}");
    }

    pub fn delete(&self, stream: &str) {
        assert_eq!(self.api(&format!("STREAM.DELETE.{stream}"), &json!({}))["success"], true);
    }

    /// Removes the messages of a subject.
    pub fn purge(&self, stream: &str, subject: &str) {
        assert_eq!(self.api(&format!("STREAM.PURGE.{stream}"), &json!({ "filter": subject }))["success"], true);
    }

    /// The number of messages in a stream. 0: it does not exist.
    pub fn count(&self, stream: &str) -> u64 {
        self.api(&format!("STREAM.INFO.{stream}"), &json!({}))["state"]["messages"].as_u64().unwrap_or(0)
    }

    /// The messages of a stream, in order.
    pub fn messages(&self, stream: &str) -> Vec<Stored> {
        let mut connection = self.connect();
        let info = connection.api(&format!("STREAM.INFO.{stream}"), &json!({}));
        let last = info["state"]["last_seq"].as_u64().unwrap_or(0);
        let get = |seq| connection.api(&format!("STREAM.MSG.GET.{stream}"), &json!({ "seq": seq }))["message"].clone();
        (1..=last).map(get).filter(|message| !message.is_null()).map(|message| stored(&message)).collect()
    }

    /// The lines of all messages: those of events, and those of losses.
    pub fn lines(&self, stream: &str) -> (Vec<String>, Vec<String>) {
        let lines = self
            .messages(stream)
            .into_iter()
            .flat_map(|message| message.lines.lines().map(str::to_owned).collect::<Vec<_>>());
        lines.partition(|line| !line.contains("\"tributary.loss\""))
    }

    /// Publishes messages, each of which the stream acknowledges.
    pub fn publish(&self, subject: &str, headers: &[(&str, &str)], bodies: &[Vec<u8>]) {
        let mut connection = self.connect();
        for body in bodies {
            let stored = connection.publish(subject, headers, body);
            assert!(stored["seq"].is_u64(), "{stored}");
        }
    }

    /// A request to JetStream.
    pub fn api(&self, call: &str, body: &Value) -> Value {
        self.connect().api(call, body)
    }

    fn connect(&self) -> Connection {
        Connection::open(self.port, self.token.as_deref()).unwrap()
    }

    fn until_it_answers(&self) {
        until("the server of NATS answers", || Connection::open(self.port, self.token.as_deref()));
    }
}

impl Drop for NatsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection by a client that consists of these lines only.
struct Connection(BufReader<TcpStream>);

impl Connection {
    /// The server has sent its first line.
    fn greeted(port: u16) -> Option<Connection> {
        let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let mut connection = Connection(BufReader::new(stream));
        connection.line().filter(|line| line.starts_with("INFO "))?;
        Some(connection)
    }

    /// `None`: the server does not answer, or not yet.
    fn open(port: u16, token: Option<&str>) -> Option<Connection> {
        let mut connection = Connection::greeted(port)?;
        let options = json!({ "verbose": false, "auth_token": token.unwrap_or_default(), "no_responders": true, "headers": true });
        let hello = format!("CONNECT {options}\r\nSUB reply 1\r\nPING\r\n");
        connection.0.get_mut().write_all(hello.as_bytes()).ok()?;
        loop {
            match connection.line()?.as_str() {
                "PONG" => return Some(connection),
                line if line.starts_with("-ERR") => return None,
                _ => {}
            }
        }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().to_owned())
    }

    fn publish(&mut self, subject: &str, headers: &[(&str, &str)], body: &[u8]) -> Value {
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("NATS/1.0\r\n{lines}\r\n");
        let request = format!("HPUB {subject} reply {} {}\r\n{head}", head.len(), head.len() + body.len());
        self.0.get_mut().write_all(&[request.as_bytes(), body, b"\r\n"].concat()).unwrap();
        self.reply()
    }

    fn api(&mut self, call: &str, body: &Value) -> Value {
        let body = body.to_string();
        let request = format!("PUB $JS.API.{call} reply {}\r\n{body}\r\n", body.len());
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.reply()
    }

    fn reply(&mut self) -> Value {
        loop {
            let line = self.line().unwrap();
            if line == "PING" {
                self.0.get_mut().write_all(b"PONG\r\n").unwrap();
            } else if line.starts_with("HMSG ") {
                panic!("JetStream does not answer: {line}");
            } else if line.starts_with("MSG ") {
                let length: usize = line.rsplit(' ').next().unwrap().parse().unwrap();
                let mut body = vec![0; length + 2];
                self.0.read_exact(&mut body).unwrap();
                return serde_json::from_slice(&body).unwrap();
            }
        }
    }
}

fn stored(message: &Value) -> Stored {
    let decoded = |key: &str| base64::decode(message[key].as_str().unwrap_or_default().as_bytes()).unwrap();
    let (head, body) = (String::from_utf8(decoded("hdrs")).unwrap(), decoded("data"));
    let headers: Vec<_> = head.lines().filter_map(|line| line.split_once(": ")).collect();
    let headers: Vec<_> = headers.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let is_compressed = headers.iter().any(|(key, value)| key == "Content-Encoding" && value == "zstd");
    let lines = if is_compressed { zstd::stream::decode_all(&body[..]).unwrap() } else { body.clone() };
    let subject = message["subject"].as_str().unwrap().to_owned();
    // Only messages of the sink have lines; those of buckets have other values.
    Stored { subject, headers, body, lines: String::from_utf8(lines).unwrap_or_default() }
}

pub fn program() -> String {
    std::env::var("TRIBUTARY_NATS_SERVER").unwrap_or_else(|_| "nats-server".to_owned())
}

fn spawn(configuration: &PathBuf, port: u16) -> Child {
    let mut command = Command::new(program());
    command.args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--config"]).arg(configuration);
    end_with_this_thread(&mut command);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}
