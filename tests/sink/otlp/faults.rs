//! Receivers that fail, refuse, reject, or answer what is no OTLP.

use std::time::Duration;

use tributary::event::{Batch, Header, Number, SampleData, Severity, semconv};
use tributary::pipeline::DeliveryOutcome;
use tributary::sink::DestinationState;
use tributary::sink::otlp::{Options, Protocol, Signal};

use super::receiver::{Raw, Receiver, Reply};
use super::{builder, header, logs, mixed, names, start};
use crate::live::{until, within};
use crate::otlp_support::profiles;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_that_can_pass_are_retried_until_the_events_are_accepted_once() {
    for protocol in Protocol::ALL {
        let half = if protocol == Protocol::Grpc { Reply::Half } else { Reply::Close };
        let away = ["1", "2", "4", "8", "10", "13", "15"].map(|code| Reply::Refuse(code, 500));
        let away = away.into_iter().chain([408, 425, 429, 501, 502, 504].map(|status| Reply::Refuse("14", status)));
        for fault in [Reply::Busy, Reply::Close, half, Reply::Hang].into_iter().chain(away) {
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
        for (reply, failed) in [(Reply::Refuse("3", 400), 5), (Reply::Refuse("11", 422), 5), (Reply::Partial(2), 2)] {
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
async fn a_receiver_that_refuses_loses_nothing_until_it_is_corrected() {
    for protocol in Protocol::ALL {
        let of_codes = [("7", 403), ("16", 401), ("12", 404), ("5", 405), ("9", 415)];
        let statuses = [301, 302, 307, 407].map(|status| ("16", status));
        for (code, status) in of_codes.into_iter().chain(statuses.into_iter().filter(|_| protocol == Protocol::Http)) {
            let receiver = Receiver::start(protocol).await;
            receiver.state().of_path = Some(("/", Reply::Refuse(code, status)));
            let sending = start(receiver.options());
            let sender = sending.sender.clone();
            let delivery = tokio::spawn(async move { sender.deliver(mixed(0..10)).await });
            let state = || sending.counters.remote().map(|remote| remote.state().destination);
            until("it refuses", || (state() == Some(DestinationState::Refusing)).then_some(())).await;
            until("it is tried again", || (receiver.state().attempts.len() > 6).then_some(())).await;
            receiver.state().of_path = None;
            assert_eq!(within("the events are delivered", delivery).await.unwrap(), DeliveryOutcome::Written);
            assert_eq!(state(), Some(DestinationState::Ready));
            let totals = sending.finish().await;
            assert_eq!((totals.events, totals.written, totals.failed), (30, 30, 0), "{protocol:?} {status}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn profiles_alone_are_off_for_a_receiver_of_other_signals_unless_they_are_configured() {
    for protocol in Protocol::ALL {
        let receiver = Receiver::start(protocol).await;
        receiver.state().of_path = Some(("rofiles", Reply::Refuse("12", 404)));
        let profiles = |receiver: &Receiver| {
            receiver.state().attempts.iter().filter(|(path, ..)| path.contains("rofiles")).count()
        };
        let sending = start(receiver.options());
        for _ in 0..4 {
            sending.deliver(heap_and_sample("ruby")).await;
        }
        let totals = sending.finish().await;
        assert_eq!((totals.events, totals.written, totals.failed), (20, 16, 4), "{protocol:?}");
        // The profiles of a heap dump are in a request of their own, which may be under way at the same time.
        assert!((1..=2).contains(&profiles(&receiver)), "it is not asked for every request");
        let sending = start(Options { signals: Signal::ALL.to_vec(), ..receiver.options() });
        let sender = sending.sender.clone();
        let delivery = tokio::spawn(async move { sender.deliver(heap_and_sample("ruby")).await });
        until("it is tried again", || (profiles(&receiver) > 6).then_some(())).await;
        receiver.state().of_path = None;
        assert_eq!(within("the events are delivered", delivery).await.unwrap(), DeliveryOutcome::Written);
        let totals = sending.finish().await;
        assert_eq!((totals.events, totals.written, totals.failed), (5, 5, 0), "{protocol:?}");
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
