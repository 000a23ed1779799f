//! The fields of payloads, as azafea, the original collector, reads them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::endless_support::http::sha512;
use serde_json::{Value, json};
use tributary::decode;
use tributary::event::{Origin, UnixNanos};
use tributary::memory::MemoryBudget;
use tributary::pipeline::accounting::ListenerCounters;
use tributary::protocol::endless::{EndlessExchange, Options};
use tributary::protocol::{Now, Protocol, Request, RequestHead};
use tributary::sink::encode::{Encoder, Format};
use zgvariant::serialized::Context;
use zgvariant::{LE, Variant, to_bytes};

type Payload = Option<Variant<'static>>;
type Singular = (u32, Vec<u8>, i64, Payload);
type Aggregate = (u32, Vec<u8>, i64, i64, Payload);
type Sequence = (u32, Vec<u8>, Vec<(i64, Payload)>);

/// The events of a version 2 bundle.
fn upload(singular: Vec<Singular>, sequences: Vec<Sequence>) -> Vec<Value> {
    let bundle =
        (1i32, 5i64, 1_700_000_000_000_000_000i64, vec![1u8; 16], singular, Vec::<Aggregate>::new(), sequences);
    let body = to_bytes(Context::new(LE, 0), &bundle).unwrap().bytes().to_vec();
    let exchange = EndlessExchange::new(Options::default(), &MemoryBudget::unlimited());
    let head = RequestHead { method: "PUT".into(), target: format!("/2/{}", sha512(&body)), headers: Vec::new() };
    let now = Now { unix: UnixNanos(1_700_000_000_000_000_000), elapsed: Duration::from_secs(1) };
    let origin = Arc::new(Origin::new("endless", "test".into(), "test".into(), 1));
    let (mut encoder, mut lines) = (Encoder::new(Format::Json), Vec::new());
    let counters = ListenerCounters::new("test".into(), Protocol::Endless);
    let (response, _) = decode::answer(
        &exchange,
        Request { head, body: body.into(), number: 1 },
        origin,
        &counters,
        now,
        &mut |batch| {
            batch.events().for_each(|event| encoder.encode(event, &mut lines));
        },
    );
    assert_eq!(response.status, 200);
    std::str::from_utf8(&lines).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Payloads of version 2 are wrapped twice.
fn payload(value: impl Into<Variant<'static>>) -> Payload {
    Some(Variant::Variant(Box::new(value.into())))
}

fn id(id: u128) -> Vec<u8> {
    id.to_be_bytes().to_vec()
}

const OS_VERSION: u128 = 0x1fa16a31_9225_467e_8502_e31806e9b4eb;
const PARENTAL_CONTROLS_CHANGED: u128 = 0x449ec188_cb7b_45d3_a0ed_291d943b9aa6;
const SHELL_APP_IS_OPEN: u128 = 0xb5e11a3d_13f8_4219_84fd_c9ba0bf3d1f0;

#[test]
fn the_os_version_is_the_second_member_without_quotation_marks() {
    let version = |name: &str, version: &str| {
        let value = (name.to_owned(), version.to_owned(), "obsolete and ignored".to_owned());
        let events = upload(vec![(1000, id(OS_VERSION), 3, payload(value))], Vec::new());
        events[0]["attributes"]["endless.fields"].clone()
    };
    assert_eq!(version("Endless", "3.5.3"), json!({"version": "3.5.3"}));
    assert_eq!(version("\"Endless\"", "\"3.5.3\""), json!({"version": "3.5.3"}));
}

#[test]
fn the_filters_of_parental_controls_are_members_of_tuples() {
    let apps = vec!["app/org.gnome.Totem/x86_64/stable".to_owned(), "/usr/bin/gedit".to_owned()];
    let categories = HashMap::from([("violence-bloodshed".to_owned(), "mild".to_owned())]);
    let controls: HashMap<String, Variant<'static>> = HashMap::from([
        ("AppFilter".to_owned(), Variant::from((true, apps.clone()))),
        ("OarsFilter".to_owned(), Variant::from(("oars-1.1".to_owned(), categories))),
        ("AllowUserInstallation".to_owned(), Variant::from(true)),
        ("AllowSystemInstallation".to_owned(), Variant::from(false)),
        ("IsInitialSetup".to_owned(), Variant::from(true)),
    ]);
    let events = upload(vec![(1000, id(PARENTAL_CONTROLS_CHANGED), 3, payload(controls))], Vec::new());
    let expected = json!({
        "app_filter_is_whitelist": true,
        "app_filter": apps,
        "oars_filter": {"violence-bloodshed": "mild"},
        "allow_user_installation": true,
        "allow_system_installation": false,
        "is_initial_setup": true,
    });
    assert_eq!(events[0]["attributes"]["endless.fields"], expected, "{}", events[0]);
}

#[test]
fn the_end_of_a_sequence_expects_no_payload() {
    let items = vec![(3, Some(Variant::from("org.gnome.Totem"))), (4, None), (5, None)];
    let events = upload(Vec::new(), vec![(1000, id(SHELL_APP_IS_OPEN), items)]);
    let expected: Vec<&Value> = events.iter().map(|event| &event["attributes"]["endless.payload.expected"]).collect();
    assert_eq!(expected, [&Value::Null, &json!("s"), &Value::Null], "{events:#?}");
}
