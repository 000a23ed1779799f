//! A listener that stops.

use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::time::sleep;
use tributary_transport::options::{HttpOptions, ListenerOptions};

use crate::client::{Client, Frames, read};
use crate::listener::Served;
use crate::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_in_flight_are_answered_and_further_ones_refused() {
    let options = ListenerOptions { close_linger: Duration::ZERO, ..Default::default() };
    let served = Served::with(options, HttpOptions::default());
    let (client, connection) = Client::over(TcpStream::connect(served.address).await.unwrap()).await;
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.post("/wait/1500", 10).await.status })
        })
        .collect();
    let counters = served.counters.clone();
    until("they are received", || counters.totals().bytes_in == 80).await;
    served.stop.cancel();
    sleep(Duration::from_millis(200)).await;
    assert!(client.try_send(crate::client::post("/", "late")).await.is_err());
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), 200);
    }
    connection.await.unwrap();
    let (totals, events) = served.stop().await;
    assert_eq!((totals.bytes_decoded, totals.lost(), events.len()), (80, 0, 8));
}

#[tokio::test]
async fn an_idle_connection_and_a_body_that_does_not_end_delay_no_stop() {
    let served = Served::new();
    let idle = Client::connect(served.address).await;
    idle.post("/", 1).await;
    let mut frames = Frames::connect(served.address).await;
    let (slow, _body) = frames.open("/", 100, b"0123456789").await;
    let counters = served.counters.clone();
    until("it is received", || counters.totals().bytes_in == 11).await;
    let began = Instant::now();
    let answer = tokio::spawn(read(slow));
    let (totals, _) = served.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(answer.await.unwrap().unwrap().0, 503);
    assert_eq!(totals.lost(), 10);
}
