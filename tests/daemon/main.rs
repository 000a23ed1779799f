//! The daemon: listeners, limits, faults of the machine, TLS, reload, capture, tap and the admin endpoint.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed; the lint knows only test functions")]

#[path = "../support/common/mod.rs"]
mod common;
#[path = "../support/endless/mod.rs"]
mod endless_support;
#[path = "../support/http_server/mod.rs"]
mod http_server;
#[path = "../support/live/mod.rs"]
mod live;
#[path = "../support/rbkit_law/mod.rs"]
mod rbkit_law_support;
#[path = "../support/sink_file/mod.rs"]
mod sink_file_support;
#[path = "../support/small_disk/mod.rs"]
mod small_disk;
#[path = "../support/tls/mod.rs"]
mod tls_support;
#[path = "../support/zico/mod.rs"]
mod zico_support;

mod acknowledge;
mod admin;
mod api;
mod backpressure;
mod balancer;
mod capture;
mod daemon;
mod daemon_full_disk;
mod faults;
mod faults_clock;
mod faults_pace;
mod grace;
mod identity;
mod keep_alive;
mod memory;
mod memory_flood;
mod oneshots;
mod orphans;
mod peers;
mod prometheus;
mod proxy;
mod quarantine;
mod reload;
mod reload_load;
mod rules;
mod service;
mod shed;
mod sink_faults;
mod spool;
mod spool_directory;
mod spool_lives;
mod spool_small_disk;
mod tap;
mod threads;
mod tls;
mod tls_reload;
mod transport;
mod wrong_client;
