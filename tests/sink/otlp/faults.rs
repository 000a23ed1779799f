//! Receivers that fail, refuse, reject, or answer what is no OTLP.

use std::time::Duration;

use tributary::event::{Batch, Header, Number, SampleData, Severity, semconv};
use tributary::pipeline::DeliveryOutcome;
use tributary::sink::otlp::{Options, Protocol};

use super::receiver::{Raw, Receiver, Reply};
use super::{builder, header, logs, mixed, names, start};
use crate::live::until;
use crate::otlp_support::profiles;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_that_can_pass_are_retried_until_the_events_are_accepted_once() {
    for protocol in Protocol::ALL {
        let half = if protocol == Protocol::Grpc { Reply::Half } else { Reply::Close };
        for fault in [Reply::Busy, Reply::Close, half, Reply::Hang, Reply::Refuse("4", 502)] {
            let receiver = Receiver::start(protocol).await;
            receiver.state().replies = [fault, fault].into();
            let options = Options { timeout: Duration::from_millis(300), ..receiver.options() };
            let sending = start(options);
            assert_eq!(sending.deliver(logs(&names(5, 4))).await, DeliveryOutcome::Written);
            let totals = sending.finish().await;
            assert_eq!((totals.written, totals.failed), (5, 0), "{protocol:?} {fault:?}");
            assert_eq!(receiver.names(), names(5, 4), "{protocol:?} {fault:?}");
            assert!(receiver.state().attempts.len() >= 3);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_receiver_refuses_or_rejects_counts_as_failed_and_is_reported_as_a_loss() {
    for protocol in Protocol::ALL {
        for (reply, failed) in [(Reply::Refuse("3", 400), 5), (Reply::Refuse("7", 403), 5), (Reply::Partial(2), 2)] {
            let receiver = Receiver::start(protocol).await;
            receiver.state().replies = [reply].into();
            let sending = start(receiver.options());
            sending.deliver(logs(&names(5, 4))).await;
            until("it failed", || (sending.counters.totals().failed == failed).then_some(())).await;
            assert_eq!(sending.deliver(logs(&["next".to_owned()])).await, DeliveryOutcome::Written);
            let totals = sending.finish().await;
            assert_eq!(
                (totals.events, totals.written, totals.failed),
                (6, 6 - failed, failed),
                "{protocol:?} {reply:?}"
            );
            let names = receiver.names();
            assert!(names.contains(&"next".to_owned()) && names.contains(&"tributary.loss".to_owned()), "{names:?}");
            let state = receiver.state();
            let records = state.accepted.requests.logs.resource_logs.iter().flat_map(|group| &group.scope_logs);
            let mut records = records.flat_map(|scope| &scope.log_records);
            let loss = records.find(|record| record.event_name == "tributary.loss").unwrap();
            let attributes = format!("{:?}", loss.attributes);
            assert!(attributes.contains("\"failed\"") && attributes.contains("apm"), "{attributes}");
            assert!(attributes.contains(&format!("IntValue({failed})")), "{attributes}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_no_otlp_loses_nothing() {
    for protocol in Protocol::ALL {
        let receiver = Receiver::start(protocol).await;
        receiver.state().replies = [Reply::Nonsense].into();
        let sending = start(receiver.options());
        assert_eq!(sending.deliver(logs(&names(5, 4))).await, DeliveryOutcome::Written);
        assert_eq!(sending.finish().await.written, 5);
        assert_eq!(receiver.names(), names(5, 4));
        // Over HTTP the status says that the request was accepted.
        assert_eq!(receiver.state().attempts.len(), if protocol == Protocol::Grpc { 2 } else { 1 });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_that_the_receiver_does_not_take_is_left_alone_and_the_others_go_on() {
    for protocol in Protocol::ALL {
        let receiver = Receiver::start(protocol).await;
        receiver.state().of_path = Some(("trace", Reply::Refuse("12", 404)));
        let sending = start(receiver.options());
        for start in 0..4 {
            sending.deliver(mixed(start * 10..start * 10 + 10)).await;
        }
        let totals = sending.finish().await;
        assert_eq!((totals.events, totals.written, totals.failed), (120, 80, 40), "{protocol:?}");
        let attempts = receiver.state().attempts.iter().filter(|(path, ..)| path.contains("trace")).count();
        assert_eq!(attempts, 1, "it is not asked for every request");
        assert_eq!(receiver.names().iter().filter(|name| name.starts_with("log ")).count(), 40);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_or_are_not_http_lose_nothing() {
    for protocol in Protocol::ALL {
        for fault in [Raw::Garbage, Raw::Reset] {
            let receiver = Receiver::start(protocol).await;
            receiver.state().raw = [fault, fault].into();
            let sending = start(receiver.options());
            assert_eq!(sending.deliver(logs(&names(5, 4))).await, DeliveryOutcome::Written);
            let totals = sending.finish().await;
            assert_eq!((totals.written, totals.failed), (5, 0), "{protocol:?} {fault:?}");
            assert_eq!(receiver.names(), names(5, 4), "{protocol:?} {fault:?}");
            assert!(receiver.state().raw.is_empty(), "each fault has happened");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_of_success_counts_although_its_body_cannot_be_read() {
    let receiver = Receiver::start(Protocol::Http).await;
    receiver.state().raw = [Raw::HalfResponse].into();
    let sending = start(receiver.options());
    assert_eq!(sending.deliver(logs(&names(5, 4))).await, DeliveryOutcome::Written);
    assert_eq!(sending.finish().await.written, 5);
    assert!(receiver.state().attempts.is_empty(), "it is not sent again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_receiver_gets_each_request_once() {
    for protocol in Protocol::ALL {
        let receiver = Receiver::start(protocol).await;
        receiver.state().of_path = Some(("/", Reply::Slow));
        let sending = start(receiver.options());
        for number in 0..4 {
            assert_eq!(sending.deliver(logs(&[number.to_string()])).await, DeliveryOutcome::Written);
        }
        let totals = sending.finish().await;
        assert_eq!((totals.written, totals.failed), (4, 0), "{protocol:?}");
        assert_eq!(receiver.names(), ["0", "1", "2", "3"]);
        assert_eq!(receiver.state().attempts.len(), 4);
    }
}

/// A log of three objects of a heap dump, a sample, and a log that ends the dump.
fn heap_and_sample(listener: &str) -> Batch {
    let mut builder = builder(listener);
    for number in 0..3u64 {
        let head = Header { name: semconv::RBKIT_HEAP_OBJECT.into(), ..header(&mut builder, "") };
        let mut event = builder.event(head);
        event.text(semconv::RBKIT_CLASS_NAME, "String");
        event.attribute(semconv::RBKIT_OBJECT_SIZE, 40 * number);
        event.log(Severity::Info, None);
    }
    let head = header(&mut builder, "rbkit.allocations");
    builder.event(head).sample(SampleData::new("alloc_objects", "count", Number::U64(1)), &[]);
    let head = Header { name: semconv::RBKIT_HEAP_DUMP.into(), ..header(&mut builder, "") };
    builder.event(head).log(Severity::Info, None);
    builder.take()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_profiles_at_the_receiver_objects_of_heaps_count_as_their_logs() {
    for protocol in Protocol::ALL {
        for (reply, refused) in
            [(Reply::Accept, 0), (Reply::Refuse("12", 404), 2), (Reply::Refuse("3", 400), 2), (Reply::Partial(1), 2)]
        {
            let receiver = Receiver::start(protocol).await;
            receiver.state().of_path = Some(("rofiles", reply));
            let sending = start(receiver.options());
            for _ in 0..2 {
                sending.deliver(heap_and_sample("ruby")).await;
            }
            let counters = sending.counters.clone();
            let totals = sending.finish().await;
            let failed = if reply == Reply::Accept { 0 } else { 2 };
            assert_eq!((totals.events, totals.written, totals.failed), (10, 10 - failed, failed), "{reply:?}");
            let refused_profiles = counters.remote().unwrap().state().refused_heap_profiles;
            assert_eq!(refused_profiles, refused, "{protocol:?} {reply:?}");
            let objects = receiver.names().iter().filter(|name| *name == "rbkit.heap.object").count();
            assert_eq!(objects, 6, "{protocol:?} {reply:?}");
            if reply == Reply::Accept {
                let samples = profiles::samples(&receiver.take());
                let sums: Vec<i64> = samples.heap.values().copied().collect();
                assert_eq!(sums, [6, 240], "{:?}", samples.heap);
                assert_eq!(samples.timed.values().sum::<u32>(), 2);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heaps_that_come_as_samples_too_are_no_profiles_of_their_objects() {
    let receiver = Receiver::start(Protocol::Grpc).await;
    let sending = start(Options { summed_heaps: vec!["both".to_owned()], ..receiver.options() });
    for listener in ["both", "objects"] {
        sending.deliver(heap_and_sample(listener)).await;
    }
    let totals = sending.finish().await;
    assert_eq!((totals.written, totals.failed), (10, 0));
    let samples = profiles::samples(&receiver.take());
    assert_eq!(samples.heap.len(), 2, "{:?}", samples.heap);
    assert!(!samples.heap.keys().any(|profile| profile.contains("both")), "{:?}", samples.heap);
    assert_eq!(samples.timed.values().sum::<u32>(), 2);
}
