//! What a configuration file means, how it is printed, and that the files in `config/` match the code.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tributary::config::{Config, Loaded, ProtocolOptions, SinkKind};
use tributary::endless_store::SeenOptions;
use tributary::event::{Identity, Kind, ResourceValue};
use tributary::memory::Amplification;
use tributary::nats::{BucketOptions, Servers};
use tributary::pipeline::options::{OnFailure, QueueOptions, WhenFull};
use tributary::profile::limits::ProfileLimits;
use tributary::protocol::datadog::{self, ListLayout, StringCache};
use tributary::protocol::{Protocol, endless, zico};
use tributary::sink::encode::{Format, LineFields};
use tributary::sink::{AckLevel, file};
use tributary::sink::{http, nats, otlp, parquet, stdout, tcp};
use tributary::transport::nats::options::NatsOptions;
use tributary::transport::options::{CaptureOptions, HttpOptions, ListenerOptions, QuarantineOptions, TlsOptions};
use tributary::zico_store::StoreOptions;

const REFERENCE: &str = include_str!("../../config/tributary.toml");
const MINIMAL: &str = include_str!("../../config/minimal.toml");
const DEBIAN: &str = include_str!("../../config/debian/tributary.toml");
const IMAGE: &str = include_str!("../../config/oci/tributary.toml");

fn read(text: &str) -> Loaded {
    Config::parse("t.toml", text).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn an_empty_file_means_the_built_in_configuration() {
    let config = read("").config;
    assert_eq!(config, Config::builtin());
    assert_eq!(config.limits.memory_bytes, None);
    assert_eq!(config.limits.shutdown_grace, Duration::from_secs(60));
    let listener = &config.listeners[0];
    assert_eq!(listener.name, "spans");
    assert_eq!(listener.listen, Some(SocketAddr::from(([127, 0, 0, 1], 8136))));
    assert_eq!(listener.options, ListenerOptions::default());
    assert_eq!(listener.protocol, ProtocolOptions::Datadog(datadog::Options::default()));
    let [sink] = config.sinks.as_slice() else { panic!("one sink") };
    assert_eq!(sink.name, "console");
    assert_eq!(sink.kind, SinkKind::Stdout(stdout::Options { format: Format::Json, fields: LineFields::Full }));
    assert_eq!(sink.queue, QueueOptions::default());
}

#[test]
fn files_and_spooled_otlp_fit_into_the_memory_that_is_computed() {
    let listeners = "[listeners.a]\nprotocol = \"datadog\"\n[listeners.b]\nprotocol = \"bytefrog\"\n\
                     [listeners.c]\nprotocol = \"endless\"\n[listeners.d]\nprotocol = \"zico\"\n";
    let file = "[sinks.archive]\ntype = \"file\"\npath = \"events/{protocol}.ndjson\"\n";
    let otlp = |name: &str| {
        format!(
            "[sinks.{name}]\ntype = \"otlp\"\nendpoint = \"http://localhost:4317\"\nspool = {{ dir = \"spool\" }}\n"
        )
    };
    for sinks in [format!("{file}{}", otlp("a")), format!("{file}{}{}{}", otlp("a"), otlp("b"), otlp("c"))] {
        let mut config = read(&format!("{listeners}{sinks}")).config;
        config.limits.system = None;
        assert!(config.bounds().left_of(config.memory_limit()) >= 256 << 20);
    }
}

#[test]
fn the_built_in_listeners_are_on_loopback_and_connect_to_nothing() {
    for config in [Config::builtin(), read(MINIMAL).config, read(DEBIAN).config] {
        let mut protocols: Vec<_> = config.listeners.iter().map(|listener| listener.protocol.protocol()).collect();
        protocols.sort_by_key(|protocol| protocol.as_str());
        let expected =
            [Protocol::Bytefrog, Protocol::Datadog, Protocol::DatadogAgent, Protocol::Endless, Protocol::Zico];
        assert_eq!(protocols, expected);
        assert!(
            config.listeners.iter().all(|listener| listener.listen.is_some_and(|listen| listen.ip().is_loopback()))
        );
    }
}

/// Otherwise agents up to 1.90.6 are unknown after each restart.
#[test]
fn the_package_and_the_image_keep_registered_agents() {
    for text in [DEBIAN, IMAGE] {
        let listeners = read(text).config.listeners;
        let stores = listeners.iter().filter_map(|listener| match &listener.protocol {
            ProtocolOptions::Zico(_, store, _) => Some(store.state_dir.clone()),
            _ => None,
        });
        assert_eq!(stores.collect::<Vec<_>>(), [Some("agents".into())]);
    }
}

#[test]
fn listeners_and_sinks_keep_the_order_of_the_file() {
    let loaded = read(
        "[sinks.b]\ntype = \"discard\"\n[listeners.z]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n\
         [listeners.a]\nprotocol = \"datadog\"\nlisten = \"127.0.0.1:0\"\n[sinks.a]\ntype = \"discard\"\n",
    );
    assert_eq!(loaded.config.listeners.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["z", "a"]);
    assert_eq!(loaded.config.sinks.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
}

#[test]
fn every_option_of_a_listener_is_read_from_the_file() {
    let config = read(LISTENER).config;
    let listener = &config.listeners[0];
    assert_eq!(listener.listen, Some("[::1]:9000".parse().unwrap()));
    let tls =
        TlsOptions { cert: "c.pem".into(), key: "k.pem".into(), client_ca: Some("a.pem".into()), allow_plain: true };
    let attributes = vec![
        ("service.name".to_owned(), ResourceValue::from("shop")),
        ("zone".to_owned(), ResourceValue::I64(-3)),
        ("canary".to_owned(), ResourceValue::Bool(true)),
        ("weight".to_owned(), ResourceValue::F64(0.5)),
    ];
    let options = ListenerOptions {
        max_connections: 1,
        max_connections_per_address: Some(2),
        max_message_bytes: 3 << 10,
        handshake_timeout: Duration::from_secs(4),
        message_timeout: Duration::from_secs(5),
        min_message_rate: 6,
        idle_timeout: Duration::ZERO,
        keepalive: Duration::from_secs(7),
        close_linger: Duration::from_millis(8),
        allow: vec!["10.0.0.0/8".parse().unwrap(), "192.0.2.7/32".parse().unwrap(), "::1/128".parse().unwrap()],
        proxy_protocol: vec!["10.0.0.5/32".parse().unwrap()],
        emit_definitions: true,
        max_losses_per_second: 9,
        reserved_bytes: 10 << 10,
        identity: Some(Arc::new(Identity::new(attributes, true))),
        tls: Some(tls),
        capture: Some(CaptureOptions { dir: "cap".into(), max_bytes: 3 << 20 }),
    };
    assert_eq!(listener.options, options);
    let datadog = datadog::Options {
        list_layout: ListLayout::Padded32,
        string_cache: StringCache { min_entries: 1, max_entries: 2, bytes: 3 << 20 },
        kept_string_bytes: 4096,
        waiting: datadog::WaitingLimits { records: 5, bytes: 6, time: Duration::from_millis(7) },
        max_record_entries: 8,
        max_record_bytes: 9 << 20,
        max_traces: 10,
        max_trace_entries: 21,
        span_idle: Duration::from_millis(11),
        max_text: datadog::MaxText { name: 12, service: 13, type_: 14, resource: 15, key: 16, value: 17 },
        amplification: Amplification { ratio: 18, burst: 19 << 20, rate: 20 << 20 },
    };
    assert_eq!(listener.protocol, ProtocolOptions::Datadog(datadog));
}

const LISTENER: &str = r#"
[listeners.all]
protocol = "datadog"
listen = "[::1]:9000"
max_connections = 1
max_connections_per_address = 0x2
max_message_bytes = "3KiB"
handshake_timeout = "4s"
message_timeout = "5s"
min_message_rate = 6
idle_timeout = "0s"
keepalive = "7s"
close_linger = "8ms"
allow = ["10.1.2.3/8", "192.0.2.7", "::1"]
proxy_protocol = ["10.0.0.5"]
emit_definitions = true
max_losses_per_second = 9
reserved_bytes = "10KiB"
resource = { "service.name" = "shop", zone = -3, canary = true, weight = 0.5 }
resource_wins = true
tls = { cert = "c.pem", key = "k.pem", client_ca = "a.pem", allow_plain = true }
capture = { dir = "cap", max_bytes = "3MiB" }
list_layout = "padded32"
string_cache = { min_entries = 1, max_entries = 2, bytes = "3MiB" }
kept_string_bytes = 4_096
waiting = { records = 5, bytes = "6B", time = "7ms" }
max_record_entries = 8
max_record_bytes = "9MiB"
max_traces = 10
max_trace_entries = 21
span_idle = "11ms"
[listeners.all.max_text]
name = 12
service = 13
type = 14
resource = 15
key = 16
value = 17
[listeners.all.amplification]
ratio = 18
burst = "19MiB"
rate = "20MiB"
"#;

#[test]
fn every_option_of_an_http_listener_is_read_from_the_file() {
    let text = "[listeners.all]\nprotocol = \"endless\"\nmax_requests = 1\nmax_head_bytes = \"9KiB\"\n\
                max_concurrent_streams = 2\ndelivery_timeout = \"2s\"\nacknowledge = \"written\"\n\
                quarantine = { dir = \"q\", max_bytes = \"3MiB\" }\npath_prefix = \"/p/\"\n\
                max_body_bytes = \"4KiB\"\nmax_inflated_bytes = \"5KiB\"\nmax_payload_bytes = \"6KiB\"\n\
                max_channel_bytes = \"7KiB\"\ndedup = { time = \"8s\", entries = 9 }\n\
                amplification = { ratio = 10, burst = \"11MiB\", rate = \"12MiB\" }\nseen = \"nats://a,b:5/c\"\n\
                seen_timeout = \"13s\"\nmax_seen_events = 14\nmax_seen_waiting = 15\n\
                nats = { create = false, replicas = 3, token_file = \"t\", request_timeout = \"16s\" }\n";
    let endless = endless::Options {
        path_prefix: "/p".into(),
        max_body_bytes: 4 << 10,
        max_inflated_bytes: 5 << 10,
        max_payload_bytes: 6 << 10,
        max_channel_bytes: 7 << 10,
        dedup: endless::Dedup { time: Duration::from_secs(8), entries: 9 },
        amplification: Amplification { ratio: 10, burst: 11 << 20, rate: 12 << 20 },
    };
    let http = HttpOptions {
        max_requests: 1,
        max_head_bytes: 9 << 10,
        max_concurrent_streams: 2,
        delivery_timeout: Duration::from_secs(2),
        acknowledge: Some(AckLevel::Written),
        quarantine: QuarantineOptions { dir: "q".into(), max_bytes: 3 << 20 },
    };
    let mut servers = Servers::new(["nats://a", "nats://b:5"].map(|server| server.parse().unwrap()).into());
    (servers.token_file, servers.request_timeout) = (Some("t".into()), Duration::from_secs(16));
    let seen = SeenOptions {
        seen: Some(BucketOptions { servers, bucket: "c".into(), create: false, replicas: 3 }),
        seen_timeout: Duration::from_secs(13),
        max_seen_events: 14,
        max_seen_waiting: 15,
    };
    assert_eq!(read(text).config.listeners[0].protocol, ProtocolOptions::Endless(endless, seen, http));
}

#[test]
fn every_option_of_a_zico_listener_is_read_from_the_file() {
    let text = "[listeners.all]\nprotocol = \"zico\"\nmax_body_bytes = \"1KiB\"\nmax_inflated_bytes = \"2KiB\"\n\
                max_registration_bytes = \"3KiB\"\nmax_sessions = 4\nmax_symbols = 5\nmax_symbol_bytes = \"66KiB\"\n\
                max_text_bytes = 70\nmax_record_bytes = \"8KiB\"\nmax_open_bytes = \"90KiB\"\ntrace_timeout = \"10s\"\n\
                max_packet_bytes = \"70KiB\"\nmax_record_depth = 25\nresend_time = \"26s\"\n\
                max_remembered = 11\nrecords = \"both\"\nmin_duration = \"21ms\"\nprofile_interval = \"22s\"\n\
                max_nodes = 23\nmax_depth = 24\nmax_profile_bytes = \"1MiB\"\namplification = { ratio = 12, burst = \"13MiB\", rate = \"14MiB\" }\n\
                state_dir = \"s\"\nkeys_file = \"k\"\nsession_timeout = \"15s\"\nmax_agents = 16\n\
                max_agents_per_address = 17\nmax_sessions_per_agent = 18\nagent_retention = \"19h\"\n\
                unused_agent_retention = \"20s\"\n";
    let zico = zico::Options {
        max_body_bytes: 1 << 10,
        max_inflated_bytes: 2 << 10,
        max_registration_bytes: 3 << 10,
        max_sessions: 4,
        max_symbols: 5,
        max_symbol_bytes: 66 << 10,
        max_text_bytes: 70,
        max_record_bytes: 8 << 10,
        max_open_bytes: 90 << 10,
        max_packet_bytes: 70 << 10,
        max_record_depth: 25,
        resend_time: Duration::from_secs(26),
        trace_timeout: Duration::from_secs(10),
        max_remembered: 11,
        records: zico::Records::Both,
        min_duration: Duration::from_millis(21),
        profile: ProfileLimits { interval: Duration::from_secs(22), max_nodes: 23, max_depth: 24, max_bytes: 1 << 20 },
        amplification: Amplification { ratio: 12, burst: 13 << 20, rate: 14 << 20 },
    };
    let store = StoreOptions {
        state_dir: Some("s".into()),
        state: None,
        keys_file: Some("k".into()),
        session_timeout: Duration::from_secs(15),
        max_agents: 16,
        max_agents_per_address: 17,
        max_sessions_per_agent: 18,
        agent_retention: Duration::from_secs(19 * 3600),
        unused_agent_retention: Duration::from_secs(20),
    };
    let config = read(text).config;
    let ProtocolOptions::Zico(found, agents, _) = &config.listeners[0].protocol else { panic!("{config:?}") };
    assert_eq!((found, agents), (&zico, &store));
    assert_eq!(config.listeners[0].listen.unwrap().port(), 8640);
}

#[test]
fn every_option_of_a_sink_is_read_from_the_file() {
    let config = read(SINKS).config;
    let options = file::Options {
        path: "out/%H.txt".into(),
        format: Format::Text,
        fields: LineFields::Full,
        rotate_bytes: 4 << 20,
        rotate_interval: Duration::from_secs(60),
        rotate_records: 0,
        compression: file::Compression::Lz4,
        keep_files: 3,
        keep_bytes: 5 << 20,
        keep_time: Duration::from_secs(7 * 86_400),
        fsync: file::Fsync::Always,
        fsync_interval: Duration::from_millis(4),
        remembered_messages: 7,
        max_listeners: 8,
    };
    assert_eq!(config.sinks[0].kind, SinkKind::File(options));
    let queue = QueueOptions {
        buffer_batches: 5,
        buffer_bytes: 6 << 20,
        when_full: WhenFull::Shed,
        on_failure: OnFailure::Fatal,
        protocols: vec![Protocol::Datadog],
        kinds: [Kind::Span, Kind::Loss].into_iter().collect(),
    };
    assert_eq!(config.sinks[0].queue, queue);
    assert_eq!(
        config.sinks[1].kind,
        SinkKind::Stdout(stdout::Options { format: Format::Text, fields: LineFields::Full })
    );
    assert_eq!(config.sinks[2].kind, SinkKind::Discard);
    let file = file::Options { fields: LineFields::Compact, ..file::Options::default() };
    assert_eq!(config.sinks[3].kind, SinkKind::File(file));
    assert_eq!(config.sinks[3].kind.to_string(), "compact json to events/%Y-%m-%d/{protocol}.ndjson");
    assert_eq!(config.sinks[0].kind.to_string(), "text to out/%H.txt");
}

const SINKS: &str = r#"
[sinks.all]
type = "file"
path = "out/%H.txt"
format = "text"
rotate_bytes = "4MiB"
rotate_interval = "1m"
compression = "lz4"
keep_files = 3
keep_bytes = "5MiB"
keep_time = "7d"
fsync = "always"
fsync_interval = "4ms"
remembered_messages = 7
max_listeners = 8
buffer_batches = 5
buffer_bytes = "6MiB"
when_full = "shed"
on_failure = "fatal"
protocols = ["datadog"]
kinds = ["span", "loss"]
[sinks.terminal]
type = "stdout"
format = "text"
[sinks.nowhere]
type = "discard"
[sinks.compact]
type = "file"
fields = "compact"
"#;

#[test]
fn a_byte_order_mark_and_windows_line_ends_change_nothing() {
    let windows = format!("\u{feff}{}", LISTENER.replace('\n', "\r\n"));
    assert_eq!(read(&windows), read(LISTENER));
}

// ---- The printed configuration ----

#[test]
fn every_string_is_printed_as_valid_toml() {
    let nasty = "a'b\"c\\d\ne\u{1b}#é";
    let text = format!("listeners.\"a\".protocol = \"datadog\"\nlisteners.a.tls = {{ cert = {nasty:?}, key = 'k' }}\n");
    let loaded = read(&text.replace("\\u{1b}", "\\u001b"));
    assert_eq!(loaded.config.listeners[0].options.tls.as_ref().unwrap().cert.to_str(), Some(nasty));
    assert_eq!(read(&loaded.effective).config, loaded.config);
}

#[test]
fn the_effective_configuration_reads_as_itself() {
    for text in ["", MINIMAL, LISTENER, SINKS, &uncommented(REFERENCE, &["# "]), &with_examples()] {
        let loaded = read(text);
        let again = read(&loaded.effective);
        assert_eq!((again.config, again.effective, again.options), (loaded.config, loaded.effective, loaded.options));
    }
}

#[test]
fn the_effective_configuration_has_defaults_and_options_that_are_not_set() {
    let effective = read("[sinks.a]\ntype = \"discard\"\nbuffer_bytes = 65536\n").effective;
    assert!(effective.starts_with(
        "labels = {}\n\n[limits]\n# memory_bytes is not set\n# memory_per_address is not set\n# threads is not set\nshutdown_grace = \"1m\"\n\n[admin]\n"
    ));
    assert!(effective.contains("\nlisten = \"127.0.0.1:8136\"\n"));
    assert!(effective.contains("\nallow = []\n"));
    assert!(effective.contains("\n# tls.cert is not set\n"));
    assert!(effective.contains("\nstring_cache.bytes = \"8MiB\"\n"));
    let sink = "\n\n[sinks.a]\ntype = \"discard\"\nbuffer_batches = 256\nbuffer_bytes = \"64KiB\"\nwhen_full = \"block\"\n\
                on_failure = \"restart\"\nprotocols = []\nkinds = []\nwhere = []\nunless = []\n# sample.keep is not set\n\
                # sample.by is not set\nremove = []\n# hash.attributes is not set\n# hash.key_file is not set\n";
    assert!(effective.ends_with(sink), "{effective}");
}

#[test]
fn options_are_listed_by_path_and_value() {
    let options = read("").options;
    let value = |path: &str| options.iter().find(|(known, _)| known == path).map(|(_, value)| value.as_str());
    assert_eq!(value("limits.shutdown_grace"), Some("\"1m\""));
    assert_eq!(value("listeners.spans.max_text.type"), Some("100"));
    assert_eq!(value("listeners.spans.tls.cert"), Some(""));
    assert_eq!(value("sinks.console.type"), Some("\"stdout\""));
}

// ---- The files in `config/` ----

#[test]
fn the_reference_file_means_the_built_in_configuration() {
    assert_eq!(read(REFERENCE).config, Config::builtin());
}

#[test]
fn the_reference_file_shows_every_default() {
    let shown = read(&uncommented(REFERENCE, &["# "])).config;
    let builtin = Config::builtin();
    assert_eq!(shown.limits, builtin.limits);
    assert_eq!(shown.admin, builtin.admin);
    assert_eq!((&shown.view, &shown.view), (&builtin.view, &Default::default()));
    let [built_in @ .., ruby, sdks] = shown.listeners.as_slice() else { panic!("listeners for rbkit and otlp") };
    assert_eq!(*built_in, builtin.listeners);
    assert_eq!(*ruby, read("[listeners.ruby]\nprotocol = \"rbkit\"\n").config.listeners[0]);
    assert_eq!(*sdks, read("[listeners.sdks]\nprotocol = \"otlp\"\n").config.listeners[0]);
    let [console, archive] = shown.sinks.as_slice() else { panic!("two sinks") };
    let with_examples = read(&with_examples()).config;
    let Some(ProtocolOptions::Nats(stream)) = with_examples.listeners.get(7).map(|listener| &listener.protocol) else {
        panic!("eight listeners")
    };
    let Servers { servers: addresses, tls, credentials_file, token_file, .. } = stream.servers.clone();
    assert!(tls.identity.is_some() && credentials_file.is_some() && token_file.is_some() && addresses.len() == 2);
    let defaults = Servers::new(addresses);
    assert_eq!(stream.servers, Servers { tls, credentials_file, token_file, ..defaults });
    let acknowledge = Some(AckLevel::Written);
    assert_eq!(**stream, NatsOptions { acknowledge, ..NatsOptions::new(stream.servers.clone()) });
    let Some(remote) = with_examples.sinks.get(2) else { panic!("three sinks") };
    assert_eq!(remote.kind, SinkKind::Tcp(tcp::Options::to("collector.example:9000")));
    assert_eq!(remote.queue, QueueOptions::default());
    let Some(SinkKind::Http(backend)) = with_examples.sinks.get(3).map(|sink| &sink.kind) else { panic!("four sinks") };
    let http::Options { tls, spool, proxy, .. } = (**backend).clone();
    // The default depends on the file system.
    let (dir, min_free_bytes) = ("/var/lib/tributary/spool", Some(1 << 30));
    assert_eq!(proxy.describe(&backend.endpoint).unwrap(), "http://proxy.example:3128 (the option proxy)");
    assert!(tls.ca.is_some() && tls.identity.is_some());
    let endpoint = "https://collector.example:8443/events".parse().unwrap();
    let defaults = http::Options { tls, spool: spool.clone(), proxy: proxy.clone(), ..http::Options::to(endpoint) };
    assert_eq!(**backend, defaults);
    assert_eq!(spool, Some(http::SpoolOptions { min_free_bytes, ..http::SpoolOptions::at(dir.into()) }));
    let Some(SinkKind::Otlp(tempo)) = with_examples.sinks.get(4).map(|sink| &sink.kind) else { panic!("five sinks") };
    let otlp::Options { tls, spool, .. } = (**tempo).clone();
    assert!(tls.ca.is_some() && tls.identity.is_some() && tls.server_name.is_some());
    assert_eq!(spool, Some(otlp::SpoolOptions { min_free_bytes, ..otlp::SpoolOptions::at(dir.into()) }));
    let endpoint = "https://tempo.example:4317".parse().unwrap();
    assert_eq!(**tempo, otlp::Options { tls, spool, proxy: proxy.clone(), ..otlp::Options::to(endpoint) });
    let Some(SinkKind::Nats(stream)) = with_examples.sinks.get(5).map(|sink| &sink.kind) else { panic!("six sinks") };
    let nats::Options { servers, spool, .. } = (**stream).clone();
    let Servers { servers: addresses, tls, credentials_file, token_file, .. } = servers.clone();
    assert!(tls.identity.is_some() && credentials_file.is_some() && token_file.is_some() && addresses.len() == 2);
    assert_eq!(spool, Some(nats::SpoolOptions { min_free_bytes, ..nats::SpoolOptions::at(dir.into()) }));
    let defaults = Servers::new(addresses.clone());
    assert_eq!(servers, Servers { tls, credentials_file, token_file, ..defaults });
    assert_eq!(**stream, nats::Options { servers, spool, ..nats::Options::to(addresses) });
    let Some(SinkKind::Parquet(lake)) = with_examples.sinks.get(6).map(|sink| &sink.kind) else {
        panic!("seven sinks")
    };
    let parquet::Options { upload: Some(upload), .. } = &**lake else { panic!("with an upload") };
    assert_eq!(upload.settings.len(), 16, "{:?}", upload.settings);
    let upload = Some(parquet::UploadOptions {
        settings: upload.settings.clone(),
        tls: upload.tls.clone(),
        proxy: upload.proxy.clone(),
        ..parquet::UploadOptions::to(parquet::Url::parse("s3://telemetry/tributary").unwrap())
    });
    // An option without a default of its own.
    let conversions = Some(1);
    assert_eq!(**lake, parquet::Options { upload, conversions, ..parquet::Options::default() });
    assert_eq!(*console, builtin.sinks[0]);
    assert_eq!(archive.kind, SinkKind::File(file::Options::default()));
    assert_eq!(archive.queue, QueueOptions::default());
}

#[test]
fn the_reference_file_shows_every_option_once() {
    let text = with_examples();
    let mut known: Vec<String> = read(&text).options.into_iter().map(|(path, _)| path).collect();
    let mut shown = Vec::new();
    let mut header = "";
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[') {
            header = name.trim_end_matches(']');
        } else if let Some((key, _)) = line.split_once(" = ") {
            shown.push(if header.is_empty() { key.to_owned() } else { format!("{header}.{key}") });
        }
    }
    // It is in the file, and left out here because `state` is there.
    assert!(REFERENCE.contains("\n#: state_dir = "));
    shown.push("listeners.zorka.state_dir".to_owned());
    known.sort();
    shown.sort();
    assert_eq!(shown, known);
}

#[test]
fn an_endpoint_of_otlp_that_ends_in_the_path_of_a_signal_is_refused_with_the_one_to_write() {
    let message = |endpoint: &str, protocol: &str| {
        let text = format!("[sinks.tempo]\ntype = \"otlp\"\nendpoint = \"{endpoint}\"\nprotocol = \"{protocol}\"\n");
        Config::parse("t.toml", &text).map(drop).map_err(|errors| errors.to_string())
    };
    for path in ["/v1/traces", "/v1/logs/", "/v1/metrics", "/v1development/profiles"] {
        for before in ["", "/api/otlp"] {
            for (protocol, help) in [("http/protobuf", ""), ("grpc", " and protocol = \"http/protobuf\"")] {
                let why = message(&format!("http://h:4318{before}{path}"), protocol).unwrap_err();
                let path = path.trim_end_matches('/');
                assert!(
                    why.contains(&format!("`endpoint` ends in {path}, which is appended for each signal")),
                    "{why}"
                );
                assert!(why.contains(&format!("write endpoint = \"http://h:4318{before}\"{help}")), "{why}");
            }
        }
    }
    for endpoint in ["http://h:4318", "http://h:4318/", "http://h:4318/api/v1/otlp", "http://h:4318/v1"] {
        assert_eq!(message(endpoint, "http/protobuf"), Ok(()));
    }
    assert!(message("http://h:4317/otlp", "grpc").unwrap_err().contains("has a path, which gRPC does not have"));
}

#[test]
fn headers_of_otlp_are_read_from_files_and_the_environment_and_never_shown() {
    let text = "[sinks.tempo]\ntype = \"otlp\"\nendpoint = \"http://h:4317\"\nheaders = { a = \"secret\", b = { file = \"/f\" }, c = { env = \"V\" } }\n";
    let parsed = read(text);
    let (_, shown) = parsed.options.iter().find(|(path, _)| path == "sinks.tempo.headers").unwrap();
    assert_eq!(shown, "{ a = \"***\", b = { file = \"/f\" }, c = { env = \"V\" } }");
    assert!(!format!("{:?}", parsed.config.sinks).contains("secret"));
}

#[test]
fn the_minimal_file_writes_everything_to_files() {
    let config = read(MINIMAL).config;
    assert_eq!(config.listeners, Config::builtin().listeners);
    assert!(matches!(&config.sinks[0].kind, SinkKind::File(file) if file.compression == file::Compression::Gzip));
    assert_eq!(config.sinks.len(), 1);
}

/// The reference file with every option and every sink in it, and memory for all of them.
pub(super) fn with_examples() -> String {
    // Of registered agents either the file or the bucket.
    let (before, agents) = REFERENCE.split_once("# -- Registered agents --").unwrap();
    let reference = format!("{before}{}", agents.replacen("#: state_dir", "# not with state: state_dir", 1));
    uncommented(&reference, &["# ", "#: "]).replace("memory_bytes = \"512MiB\"", "memory_bytes = \"768MiB\"")
}

/// `text` without the comment signs `marks` before options and headers.
fn uncommented(text: &str, marks: &[&str]) -> String {
    let is_option_or_header = |line: &str| {
        let key = line.split(" = ").next().filter(|key| key.len() < line.len());
        let is_option =
            key.is_some_and(|key| key.bytes().all(|byte| byte.is_ascii_lowercase() || b"_.".contains(&byte)));
        is_option || (line.starts_with('[') && line.ends_with(']'))
    };
    let line = |line: &str| {
        let found = marks.iter().find_map(|mark| line.strip_prefix(mark)).filter(|rest| is_option_or_header(rest));
        format!("{}\n", found.unwrap_or(line))
    };
    text.lines().map(line).collect()
}

// ---- Files with secrets ----

#[test]
fn files_with_secrets_that_every_user_can_access_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str, mode: u32| {
        let path = directory.path().join(name);
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let (key, token, registration_keys) = (path("key", 0o644), path("token", 0o604), path("keys", 0o602));
    let (private, group) = (path("private", 0o600), path("group", 0o640));
    let (sink_key, header) = (path("sink_key", 0o644), path("header", 0o604));
    let (otlp_key, otlp_header) = (path("otlp_key", 0o644), path("otlp_header", 0o604));
    let text = format!(
        "[limits]\nmemory_bytes = \"1GiB\"\n[admin]\ntoken_file = {token:?}\ntls = {{ cert = \"c\", key = {key:?} }}\n\
         [listeners.a]\nprotocol = \"datadog\"\ntls = {{ cert = \"c\", key = {group:?} }}\n\
         [listeners.b]\nprotocol = \"zico\"\nkeys_file = {registration_keys:?}\ntls = {{ cert = \"c\", key = {private:?} }}\n\
         [listeners.c]\nprotocol = \"endless\"\ntls = {{ cert = \"c\", key = \"/nowhere\" }}\n\
         [sinks.d]\ntype = \"http\"\nendpoint = \"https://a/\"\ncert = \"c\"\nkey = {sink_key:?}\n\
         headers = {{ Authorization = {{ file = {header:?} }}, X-Private = {{ file = {private:?} }}, b = \"plain\" }}\n\
         [sinks.e]\ntype = \"otlp\"\nendpoint = \"https://a\"\ntls = {{ cert = \"c\", key = {otlp_key:?} }}\n\
         headers = {{ a = \"plain\", b = {{ file = {otlp_header:?} }}, c = {{ env = \"HOME\" }}, d = {{ file = {private:?} }} }}\n"
    );
    let exposed = read(&text).config.exposed_secrets();
    let found: Vec<_> =
        exposed.iter().map(|one| (one.option.as_str(), one.path.display().to_string(), one.mode)).collect();
    let expected = [
        ("admin.tls.key", key, 0o644),
        ("admin.token_file", token, 0o604),
        ("listeners.b.keys_file", registration_keys, 0o602),
        ("sinks.d.key", sink_key, 0o644),
        ("sinks.d.headers.Authorization", header, 0o604),
        ("sinks.e.tls.key", otlp_key, 0o644),
        ("sinks.e.headers.b", otlp_header, 0o604),
    ];
    assert_eq!(found, expected);
}

#[test]
fn keys_in_addresses_and_values_of_headers_are_not_shown() {
    let text = "[limits]\nmemory_bytes = \"1GiB\"\n[sinks.a]\ntype = \"http\"\nendpoint = \"http://h/x?api_key=secret1&db=secret2\"\n\
                headers = { Authorization = \"Bearer secret3\" }\n\
                [sinks.b]\ntype = \"otlp\"\nprotocol = \"http/protobuf\"\nendpoint = \"http://h/base?token=secret4\"\n";
    let Loaded { config, effective, .. } = read(text);
    for expected in ["\"http://h/x?api_key=***&db=***\"", "{ Authorization = \"***\" }", "\"http://h/base?token=***\""]
    {
        assert!(effective.contains(expected), "{expected}: {effective}");
    }
    assert!(!effective.contains("secret"), "{effective}");
    // As the log and the page name the sinks.
    let texts: Vec<String> = config.sinks.iter().map(|sink| sink.kind.to_string()).collect();
    assert!(texts[0].contains("http://h/x?api_key=***") && !texts.concat().contains("secret"), "{texts:?}");
}
