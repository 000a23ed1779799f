//! Every row of section 1.4 that a collector can cause is noticed.

use std::future::pending;
use std::time::Duration;

use tokio::join;
use tributary::simulate::bytefrog::{Options, run_alone};

use super::collector::{Collector, PAUSE, START, STOP, SUSPEND, UNPAUSE, UNSUSPEND, configuration, with_body};
use super::options;
use super::walk;

/// The error of an agent whose collector answers the hello with these bytes, and then may close.
async fn handshake(options: Options, answer: &[u8], closes: bool) -> String {
    let (to, collector) = Collector::bind(options.version).await;
    let conversation = async {
        let mut collector = collector.await;
        collector.send(answer).await;
        if closes {
            drop(collector);
        } else {
            while collector.next().await.is_some() {}
        }
    };
    let ((sent, _), ()) = join!(run_alone(to, options, 1, 1_000, pending()), conversation);
    sent.unwrap_err().to_string()
}

/// The error of an agent whose collector sends these bytes as soon as the agent has settled, and its later messages.
async fn commanded(version: u8, commands: &[&[u8]]) -> (String, Vec<walk::Message>) {
    let (to, collector) = Collector::bind(version).await;
    let conversation = async {
        let mut collector = collector.await;
        collector.start(1).await;
        collector.settled().await;
        for command in commands {
            collector.send(command).await;
        }
        while collector.next().await.is_some() {}
        collector.messages_received.into()
    };
    let ((sent, _), messages_received) = join!(run_alone(to, options(version), 1, u64::MAX, pending()), conversation);
    (sent.unwrap_err().to_string(), messages_received)
}

#[track_caller]
fn assert_says(error: &str, expected: &str) {
    assert!(error.contains(expected), "{error:?} should contain {expected:?}");
}

#[tokio::test]
async fn a_hello_that_is_not_answered_with_a_configuration_aborts_the_jvm() {
    for version in 1..=4 {
        let error = handshake(options(version), b"\x63\x00\x02no", false).await;
        assert_says(&error, "the JVM would have aborted: the hello was answered with an error: no");
        assert_says(&handshake(options(version), b"", true).await, "the JVM would have aborted: the connection");
        assert_says(&handshake(options(version), START, false).await, "aborted: the hello was answered with start");
        let half = &configuration(version, 20, 1, 1)[..100];
        assert_says(&handshake(options(version), half, true).await, "the JVM would have aborted: the connection");
    }
}

#[tokio::test]
async fn silence_hangs_the_program() {
    let hasty = Options { timeout: Duration::from_secs(1), ..options(4) };
    assert_says(&handshake(hasty, b"", false).await, "the program would have hung: no configuration within 1s");
    let error = handshake(hasty, &configuration(4, 1_000, 1, 1), false).await;
    assert_says(&error, "the program would have hung: no start within 1s");
}

#[tokio::test]
async fn harmful_values_are_noticed() {
    for version in 1..=4 {
        let error = handshake(options(version), &configuration(version, 0, 1, 1), false).await;
        assert_says(&error, "the program would have hung: a heartbeat interval of 0 ms");
        let error = handshake(options(version), &configuration(version, 20, 0, 1), false).await;
        assert_says(&error, "the program would have hung: 0 data connections");
    }
    let json = r#"{"bufferMemoryBudget":639,"exclusions":["x"],"heartbeatInterval":9,"inclusions":[],"numDataSenders":1,"queueRetryCount":5,"runId":7}"#;
    for (json, expected) in [
        (json.to_owned(), "the JVM would have aborted: a buffer memory budget of 639 bytes"),
        (json.replace("639", "640").replace(r#"["x"]"#, "[]"), "the program would have hung: without exclusions"),
        (json.replace(r#"["x"]"#, "null"), "the JVM would have aborted: the configuration cannot be read"),
        (json.replace(r#""runId":7"#, r#""runId":200"#), "the JVM would have aborted"),
        (json.replace(r#","runId":7"#, ""), "runId is missing"),
    ] {
        assert_says(&handshake(options(2), &with_body(&json), false).await, expected);
    }
    let mut blob = configuration(1, 20, 1, 1);
    blob[5 + 8..5 + 18].copy_from_slice(b"com.codedx");
    assert_says(&handshake(options(1), &blob, false).await, "the JVM would have aborted: the configuration cannot");
    let crowd = Options { threads: 513, ..options(1) };
    let error = handshake(crowd, &configuration(1, 20, 1, 1), false).await;
    assert_says(&error, "the program would have hung: 513 threads at once deadlock over 512 buffers");
}

#[tokio::test]
async fn commands_before_start_keep_the_program_from_running() {
    for (command, expected) in [
        (STOP, "the program would have hung: stop came before start"),
        (PAUSE, "ended without having run: pause came before start"),
        (b"\x63\x00\x02no", "ended without having run: an error (no) came before start"),
        (&[77], "ended without having run: a message of the unknown type 77 came before start"),
    ] {
        let answer = [&configuration(4, 20, 1, 1), command].concat();
        assert_says(&handshake(options(4), &answer, false).await, expected);
    }
    let error = handshake(options(4), &configuration(4, 20, 1, 1), true).await;
    assert_says(&error, "ended without having run: the control connection");
}

#[tokio::test]
async fn commands_immediately_after_start_are_noticed() {
    for (command, expected) in [
        (STOP, "out of control: stop came right after start"),
        (SUSPEND, "out of control: suspend came right after start"),
        (PAUSE, "out of control: pause came before the agent had settled"),
    ] {
        let answer = [&configuration(4, 20, 1, 1), START, command].concat();
        assert_says(&handshake(options(4), &answer, false).await, expected);
    }
}

#[tokio::test]
async fn commands_in_the_wrong_mode_end_the_trace_which_reports_it() {
    let settings = configuration(2, 20, 1, 1);
    for (commands, expected) in [
        (&[UNPAUSE] as &[&[u8]], "unpause came in mode Tracing"),
        (&[UNSUSPEND], "unsuspend came in mode Tracing"),
        (&[PAUSE, SUSPEND], "suspend came in mode Paused"),
        (&[SUSPEND, PAUSE], "pause came in mode Suspended"),
        (&[START], "start came in mode Tracing"),
        (&[&settings], "a configuration came in mode Tracing"),
        (&[&[77]], "a message of the unknown type 77 came in mode Tracing"),
        (&[b"\x63\x00\x02no"], "received error from HQ: no"),
    ] {
        let (error, messages_received) = commanded(2, commands).await;
        assert_says(&error, &format!("the trace would have died: {expected}"));
        let errors: Vec<_> = messages_received
            .iter()
            .filter(|messages_received| messages_received.kind == 99)
            .map(|messages_received| messages_received.text.as_str())
            .collect();
        assert_eq!(errors, [expected]);
        assert_eq!(
            messages_received.last().map(|messages_received| (messages_received.kind, messages_received.value)),
            Some((8, u32::from(b'X')))
        );
    }
}

#[tokio::test]
async fn refused_or_unanswered_data_connections_are_noticed() {
    for (answer, expected) in [
        (b"\x63\x00\x02no" as &[u8], "the trace would have died: data connection 1 was refused: no"),
        (b"\x02", "the trace would have died: data connection 1 was answered with 2"),
        (b"", "the program would have hung: data connection 1 got no answer within 1s"),
    ] {
        let (to, collector) = Collector::bind(1).await;
        let conversation = async {
            let mut collector = collector.await;
            collector.send(&configuration(1, 20, 2, 1)).await;
            collector.send(START).await;
            collector.take(1).await;
            let _open = collector.accept(answer).await;
            while collector.next().await.is_some() {}
        };
        let hasty = Options { timeout: Duration::from_secs(1), ..options(1) };
        let ((sent, _), ()) = join!(run_alone(to, hasty, 1, 1_000, pending()), conversation);
        assert_says(&sent.unwrap_err().to_string(), expected);
    }
}

/// Lets the agent open its data connections; then the collector closes everything while the program is traced.
async fn abandoned(options: Options) -> String {
    let (to, collector) = Collector::bind(options.version).await;
    let conversation = async {
        let mut collector = collector.await;
        collector.send(&configuration(options.version, 20, 1, 1)).await;
        collector.send(START).await;
        drop(collector.accept(&[31]).await);
        while collector.next().await.is_some() {}
    };
    let ((sent, _), ()) = join!(run_alone(to, options, 1, u64::MAX, pending()), conversation);
    sent.unwrap_err().to_string()
}

#[tokio::test]
async fn a_data_connection_that_is_closed_while_there_are_events_hangs_the_program_or_loses_them() {
    for version in 1..=4 {
        let error = abandoned(options(version)).await;
        assert_says(&error, "the program would have hung: a data connection broke before all buffers were sent");
        let kills = Options { error_handling_fails: false, ..options(version) };
        assert_says(
            &abandoned(kills).await,
            "the trace would have died: a data connection broke, and buffers are lost",
        );
    }
}

#[tokio::test]
async fn control_that_is_lost_before_the_data_connections_are_open_hangs_the_program() {
    for version in 1..=4 {
        let (to, collector) = Collector::bind(version).await;
        let conversation = async {
            let mut collector = collector.await;
            collector.send(&configuration(version, 20, 1, 1)).await;
            collector.send(START).await;
            drop(collector);
        };
        let slow = Options { start_up: Duration::from_millis(200), ..options(version) };
        let ((sent, _), ()) = join!(run_alone(to, slow, 1, 1_000, pending()), conversation);
        let expected = "the program would have hung: control was lost before the buffers existed";
        assert_says(&sent.unwrap_err().to_string(), expected);
    }
}

#[tokio::test]
async fn a_buffer_that_is_not_read_hangs_the_program() {
    let (to, collector) = Collector::bind(2).await;
    let conversation = async {
        let mut collector = collector.await;
        collector.send(&configuration(2, 20, 1, 1)).await;
        collector.send(START).await;
        let _unread = collector.accept(&[31]).await;
        while collector.next().await.is_some() {}
    };
    let hasty = Options { timeout: Duration::from_secs(1), ..options(2) };
    let ((sent, _), ()) = join!(run_alone(to, hasty, 1, u64::MAX, pending()), conversation);
    assert_says(&sent.unwrap_err().to_string(), "the program would have hung: no buffer was read within 1s");
}

#[tokio::test]
async fn a_program_is_traced_to_its_end_when_control_is_lost() {
    let (to, collector) = Collector::bind(4).await;
    let conversation = async {
        let mut collector = collector.await;
        collector.send(&configuration(4, 20, 1, 1)).await;
        collector.send(START).await;
        let mut data = collector.accept(&[31]).await;
        let _listener = collector.hang_up().await;
        let mut bytes = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut data, &mut bytes).await.unwrap();
        walk::messages(&bytes, 4)
    };
    let ((sent, observations), messages) = join!(run_alone(to, options(4), 1, 200_000, pending()), conversation);
    assert_says(&sent.unwrap_err().to_string(), "closed the control connection while the program was traced");
    assert!(observations.control_lost);
    assert_eq!(messages.iter().filter(|message| message.sequence.is_some()).count(), 200_000);
}
