//! Attacks on what is scarce: run ids, registered agents, connections per address.

use std::time::Duration;

use super::attackers::{Attackers, Steps, connect};
use super::site::BALANCED;
use super::{Attack, withstand};
use crate::zico_support::client::{ask, post};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const HELLOS: u8 = 140;
/// `data_connection_wait` and `first_event_wait` of a test. Only time shows that they have passed: the daemon takes the id of an agent
/// that sends nothing when another agent needs one.
const ID_WAIT: Duration = Duration::from_secs(1);

/// Sends a hello of an agent of version 4, and reads the answer. Returns the connection and the run id.
async fn hello(last: u8, to: std::net::SocketAddr) -> (TcpStream, u8) {
    let mut stream = connect(last, to).await.unwrap();
    stream.write_all(&[0, 4]).await.unwrap();
    let mut answer = vec![0; 4096];
    let length = stream.read(&mut answer).await.unwrap();
    let configuration = String::from_utf8_lossy(&answer[..length]).into_owned();
    let id = run_id(&configuration).unwrap_or_else(|| panic!("{configuration:?}"));
    (stream, id)
}

/// The run id in a configuration, which is JSON.
fn run_id(configuration: &str) -> Option<u8> {
    let (_, rest) = configuration.split_once("\"runId\":")?;
    rest.split([',', '}']).next()?.trim().parse().ok()
}

/// Hellos that are held; with `has_data` each with a data connection that stays silent. A step is a hello.
fn start_hellos(attackers: &mut Attackers, addresses: u8, has_data: bool) {
    let (to, steps) = (attackers.target("java"), attackers.steps());
    attackers.spawn(async move {
        let mut held = Vec::new();
        for number in 0..HELLOS {
            let last = 2 + number % addresses;
            let (control, id) = hello(last, to).await;
            held.push(control);
            if has_data {
                let mut data = connect(last, to).await.unwrap();
                data.write_all(&[30, id]).await.unwrap();
                let _ = data.read(&mut [0; 1]).await;
                held.push(data);
            }
            steps.add(1);
        }
        std::future::pending::<()>().await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hellos_that_are_held() {
    let start = |attackers: &mut Attackers| start_hellos(attackers, 1, false);
    withstand(Attack { options: &[], start, steps: HELLOS.into(), honest_after: None }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hellos_with_silent_data_connections() {
    let start = |attackers: &mut Attackers| start_hellos(attackers, 1, true);
    withstand(Attack { options: &[], start, steps: HELLOS.into(), honest_after: None }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hellos_with_silent_data_connections_of_many_addresses() {
    let start = |attackers: &mut Attackers| start_hellos(attackers, 10, true);
    let options = &[("java", "data_connection_wait = \"1s\"\nfirst_event_wait = \"1s\"")];
    withstand(Attack { options, start, steps: HELLOS.into(), honest_after: Some(ID_WAIT) }).await;
}

/// Registrations of ten addresses, each with a new name. A step is an answer.
fn start_registrations(attackers: &mut Attackers) {
    for last in 0..10 {
        let (to, steps) = (attackers.target("zorka"), attackers.steps());
        attackers.spawn(register(last, to, steps));
    }
}

async fn register(last: u8, to: std::net::SocketAddr, steps: Steps) {
    let mut stream = connect(2 + last, to).await.unwrap();
    for number in 0.. {
        let body = format!(r#"{{"rkey":"k","name":"host-{last}-{number}","app":"a","env":"e"}}"#);
        let request = post("/agent/register", &[("Content-Type", "application/json")], body.as_bytes());
        ask(&mut stream, &request).await;
        steps.add(1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registrations_of_ten_addresses() {
    let options = &[("zorka", "max_agents = 200")];
    withstand(Attack { options, start: start_registrations, steps: 400, honest_after: None }).await;
}

/// The pause of an attacker whose connection was refused or closed: 400 of them connect 2,000 times a second.
const CONNECT_PAUSE: Duration = Duration::from_millis(200);

/// Addresses of one IPv6 /64, as a load balancer reports them.
fn start_network(attackers: &mut Attackers) {
    for number in 0..400_u32 {
        let (to, steps) = (attackers.target(BALANCED), attackers.steps());
        attackers.spawn(async move {
            loop {
                let Ok(mut stream) = connect(2, to).await else { continue };
                let header = format!("PROXY TCP6 2001:db8::{number:x} 2001:db8::ffff 9 9\r\n");
                let _ = stream.write_all(&[header.as_bytes(), &crate::live::wire::process()].concat()).await;
                steps.add(1);
                let _ = stream.read(&mut [0; 1]).await;
                tokio::time::sleep(CONNECT_PAUSE).await;
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_addresses_of_one_ipv6_network() {
    let options =
        &[(BALANCED, "proxy_protocol = [\"127.0.0.0/8\"]\nmax_connections = 200\nmax_connections_per_address = 64")];
    withstand(Attack { options, start: start_network, steps: 800, honest_after: None }).await;
}
