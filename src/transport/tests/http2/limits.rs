//! Limits of sizes, times and numbers.

use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::Reason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tributary_transport::options::{HttpOptions, ListenerOptions};

use crate::client::{Client, Frames, read};
use crate::listener::{MAX_BODY, Served};
use crate::{PREFACE, until, within};

const SHORT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_other_streams_live() {
    let served = Served::new();
    let client = Client::connect(served.address).await;
    let other = {
        let client = client.clone();
        tokio::spawn(async move { client.post("/wait/300", 7).await })
    };
    let answer = client.post("/", MAX_BODY as usize + 1).await;
    assert_eq!(answer.status, 413, "{}", answer.body);
    assert_eq!(other.await.unwrap().status, 200);
    // Without a declared length.
    let mut frames = Frames::connect(served.address).await;
    let (response, mut body) = frames.try_open("/", None).await.unwrap();
    for _ in 0..=MAX_BODY / 10_000 {
        body.send_data(vec![0; 10_000].into(), false).unwrap();
    }
    assert_eq!(read(response).await.unwrap().0, 413);
    let (totals, events) = served.stop().await;
    assert_eq!(totals.bytes_decoded, 7);
    assert_eq!(events.iter().filter(|event| event.contains("too_large")).count(), 2, "{events:?}");
}

#[tokio::test]
async fn a_slow_body_is_a_loss_of_its_bytes_and_other_streams_live() {
    let served = Served::with(ListenerOptions { message_timeout: SHORT, ..Default::default() }, HttpOptions::default());
    let mut frames = Frames::connect(served.address).await;
    let (slow, _body) = frames.open("/", 100, b"0123456789").await;
    let (other, _) = frames.open("/wait/1000", 3, b"abc").await;
    assert_eq!(read(slow).await.unwrap().0, 408);
    assert_eq!(read(other).await.unwrap(), (200, "2 t.example 3\n".to_owned()));
    let (totals, events) = served.stop().await;
    assert_eq!((totals.bytes_in, totals.bytes_decoded, totals.lost()), (13, 3, 10));
    let loss = events.iter().find(|event| event.contains("tributary.loss")).unwrap();
    assert!(loss.contains("truncated") && loss.contains("message_timeout"), "{loss}");
}

#[tokio::test]
async fn streams_that_are_reset_at_once_keep_nothing() {
    let http = HttpOptions { max_requests: 2, max_concurrent_streams: 4, ..HttpOptions::default() };
    let served = Served::with(ListenerOptions::default(), http);
    let mut frames = Frames::connect(served.address).await;
    for number in 0..40 {
        let (_, mut whole) = frames.open("/wait/20", 3, b"abc").await;
        let (_, mut part) = frames.open("/", 9, b"abcdef").await;
        // Some are reset before they are accepted, some afterwards.
        sleep(Duration::from_millis(number % 4 * 5)).await;
        whole.send_reset(Reason::CANCEL);
        part.send_reset(Reason::CANCEL);
        sleep(Duration::from_millis(1)).await;
    }
    let client = Client::connect(served.address).await;
    assert_eq!(client.post("/", 1).await.status, 200, "there are permits");
    let (last, _) = frames.open("/", 1, b"z").await;
    assert_eq!(read(last).await.unwrap().0, 200, "there are places on the connection");
    until("all memory of requests is given back", || served.totals().buffered() == 0).await;
    let (totals, events) = served.stop().await;
    assert!(totals.lost() > 0 && events.iter().any(|event| event.contains("truncated")), "{totals:?}");
}

#[tokio::test]
async fn a_peer_that_only_resets_streams_is_disconnected() {
    let served = Served::new();
    let mut frames = Frames::connect(served.address).await;
    let mut count = 0;
    let ended = async {
        while let Ok((_, mut stream)) = frames.try_open("/", None).await {
            stream.send_reset(Reason::CANCEL);
            // Many arrive together.
            count += 1;
            if count % 50 == 0 {
                sleep(Duration::from_millis(2)).await;
            }
        }
    };
    within("the end of the connection", ended).await;
    let (_, events) = served.stop().await;
    assert!(events.iter().any(|event| event.contains("does not send valid HTTP/2")), "{events:?}");
}

/// Waits until the connection ends; returns how long that takes.
async fn end(mut stream: TcpStream, sent: &[u8]) -> (Duration, Vec<u8>) {
    let began = Instant::now();
    stream.write_all(sent).await.unwrap();
    let mut answer = Vec::new();
    within("the end of the connection", stream.read_to_end(&mut answer)).await.unwrap();
    (began.elapsed(), answer)
}

#[tokio::test]
async fn a_connection_that_sends_no_request_is_closed() {
    let options = ListenerOptions { handshake_timeout: SHORT, close_linger: SHORT, ..Default::default() };
    let served = Served::with(options, HttpOptions::default());
    let settings = [PREFACE.as_slice(), &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat();
    for sent in [&b""[..], &PREFACE[..10], PREFACE, &settings] {
        let stream = TcpStream::connect(served.address).await.unwrap();
        let (time, answer) = end(stream, sent).await;
        assert!(time >= SHORT && time < 10 * SHORT, "{time:?}");
        // A GOAWAY frame: its type is 7.
        assert_eq!(answer.windows(9).any(|frame| frame[3] == 7 && frame[..2] == [0, 0]), sent.len() >= PREFACE.len());
    }
    let (totals, events) = served.stop().await;
    assert_eq!((totals.connections, totals.lost(), events.len()), (4, 10, 1), "{events:?}");
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_one_with_a_request_is_not() {
    let options = ListenerOptions { idle_timeout: SHORT, handshake_timeout: SHORT, ..Default::default() };
    let served = Served::with(options, HttpOptions::default());
    let (client, connection) = Client::over(TcpStream::connect(served.address).await.unwrap()).await;
    assert_eq!(client.post("/wait/1500", 1).await.status, 200);
    let began = Instant::now();
    within("the end of the connection", connection).await.unwrap();
    assert!(began.elapsed() > SHORT / 2 && began.elapsed() < 10 * SHORT, "{:?}", began.elapsed());
    served.stop().await;
}

#[tokio::test]
async fn a_peer_that_does_not_read_answers_is_idle() {
    let served = Served::with(ListenerOptions { idle_timeout: SHORT, ..Default::default() }, HttpOptions::default());
    let stream = TcpStream::connect(served.address).await.unwrap();
    let (requests, connection) =
        h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let head = hyper::Request::get("http://t.example/").body(()).unwrap();
    let (response, _) = requests.ready().await.unwrap().send_request(head, true).unwrap();
    let response = within("the head of the answer", response).await.unwrap();
    let began = Instant::now();
    let _ = within("the end of the connection", connection).await.unwrap();
    assert!(began.elapsed() < 10 * SHORT, "{:?}", began.elapsed());
    drop(response);
    served.stop().await;
}

#[tokio::test]
async fn frames_that_are_not_valid_are_a_loss() {
    let served = Served::new();
    let invalid = [PREFACE.as_slice(), &[0, 0, 0, 4, 0, 0, 0, 0, 0], &[0, 0, 1, 0, 0, 0, 0, 0, 0, 0]].concat();
    end(TcpStream::connect(served.address).await.unwrap(), &invalid).await;
    let (totals, events) = served.stop().await;
    assert!(events.len() == 1 && events[0].contains("the peer does not send valid HTTP/2"), "{events:?}");
    assert_eq!(totals.lost(), 0);
}

#[tokio::test]
async fn a_head_over_the_limit_is_refused_and_the_connection_lives() {
    let served = Served::new();
    let client = Client::connect(served.address).await;
    let mut request = crate::client::post("/", "abc");
    request.headers_mut().insert("long", "x".repeat(20_000).parse().unwrap());
    assert_eq!(client.try_send(request).await.unwrap().status, 431);
    assert_eq!(client.post("/", 1).await.status, 200);
    served.stop().await;
}

#[tokio::test]
async fn bodies_of_all_streams_take_memory() {
    let served = Served::new();
    let mut frames = Frames::connect(served.address).await;
    let before = served.memory.used();
    let mut streams = Vec::new();
    for _ in 0..30 {
        streams.push(frames.open("/", 2000, &[0; 1000]).await);
    }
    until("the bodies are read", || served.totals().bytes_in == 30_000).await;
    // All but one, which uses the memory of the connection.
    let of_connection = 64 << 10;
    until("they are counted", || served.memory.used() > before + of_connection + 29 * 9_000).await;
    drop(streams);
    served.stop().await;
}

#[tokio::test]
async fn a_stream_without_memory_is_answered_and_others_live() {
    let served = Served::within(800_000, ListenerOptions::default(), HttpOptions::default());
    let mut frames = Frames::connect(served.address).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        let (response, mut body) = frames.try_open("/", None).await.unwrap();
        body.send_data(vec![0; 200_000].into(), false).unwrap();
        streams.push((tokio::spawn(read(response)), body));
    }
    until("some are refused", || streams.iter().any(|(response, _)| response.is_finished())).await;
    let mut statuses = Vec::new();
    for (response, mut body) in streams {
        let _ = body.send_data(Bytes::new(), true);
        statuses.push(response.await.unwrap().unwrap().0);
    }
    assert!(statuses.contains(&503) && statuses.contains(&200), "{statuses:?}");
    let (last, _) = frames.open("/", 1, b"z").await;
    assert_eq!(read(last).await.unwrap().0, 200);
    let (totals, _) = served.stop().await;
    assert!(totals.lost() >= 200_000, "{totals:?}");
}
